"""Checks of `healer doctor`: rules, database, broker, Slurm, nodes, BMCs, commands, guards, channels, API."""

import contextlib
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from healer import bootstrap
from healer.adapters.bmc.redfish import kinds_missing
from healer.adapters.identity_provider.provider_client import ProviderClient
from healer.adapters.postgres.gate_facts import read_facts
from healer.adapters.postgres.node_rows import PostgresSnapshots, cluster_names
from healer.adapters.postgres.tables import deliveries
from healer.adapters.slurm.preferred_reads import PreferredReads
from healer.adapters.slurm.rest_token import ends_at, user_of
from healer.adapters.system_clock import SystemClock
from healer.bootstrap import database, executor
from healer.bootstrap.messaging import access_to, tickets
from healer.decisions.capacity import IneffectiveLimit, ineffective_limits
from healer.embedded.running import find, unchecked_tls
from healer.embedded.user import EmbeddedError
from healer.model import Channel, Ruleset, SlurmNode
from healer.model.grants import fits_any
from healer.ports.node_exec import BmcError, NodeError
from healer.ports.outbound import DeliveryFailed
from healer.ports.request_errors import Unavailable
from healer.ports.scheduling import SchedulerError, SlurmReads
from healer.ports.sign_in import ProviderAway
from healer.recordings.recording_folder import recordings
from healer.rulebook import ruleset
from healer.settings import ExecutorSettings, Settings, SettingsError, guard_overrides, own_url, rules_folder
from healer.text import NO_WORDS, Said, from_stored, joined, name_some, quoted, said_by, say

OLDEST_POSTGRES = 15
#: Clocks further apart than this make the order of evidence doubtful.
CLOCK_S = 1.0


class Check(NamedTuple):
    """One check and its result; `repair` says what to do about it. `fix` does it, where that is safe and
    loses nothing; it may raise OSError."""

    name: Said
    ok: bool
    text: Said
    repair: Said = NO_WORDS
    fix: Callable[[], object] | None = None

    @property
    def state(self) -> str:
        """`ok`, `note` (nothing is wrong, and something could be better) or `fail`."""
        return "fail" if not self.ok else "note" if self.repair else "ok"


def each_cluster(settings: ExecutorSettings, check: Callable[[ExecutorSettings], list[Check]]) -> list[Check]:
    """The checks of each cluster, prefixed with its name where there are several."""
    return [
        found._replace(name=say("words.labelled", label=cluster.cluster, text=found.name))
        if settings.clusters
        else found
        for cluster in settings.each()
        for found in check(cluster)
    ]


T = TypeVar("T")


@contextlib.contextmanager
def open_database(settings: Settings) -> Iterator[sa.Engine | None]:
    """The database; None if there is none, which another check reports."""
    try:
        db = bootstrap.engine(settings, name="healer doctor", pool_size=1)
    except EmbeddedError:
        yield None
        return
    try:
        yield db
    finally:
        db.dispose()


def ask_database(settings: Settings, ask: Callable[[sa.Engine, sa.Connection], T]) -> T | None:
    """None where there is no database or it does not answer, which another check reports."""
    with open_database(settings) as db:
        if db is None:
            return None
        try:
            with db.connect() as conn:
                return ask(db, conn)
        except (SQLAlchemyError, Unavailable):
            return None


#: What only the logins of the API and of the owner may read as a whole.
_PRIVATE = ("tokens", "break_glass")


def unreadable(conn: sa.Connection) -> list[str]:
    """The tables of checks that this login may not read; a table that is not there is none of them."""
    asked = sa.text(
        "SELECT name FROM unnest(CAST(:names AS text[])) AS name"
        " WHERE NOT has_table_privilege(to_regclass(name), 'SELECT')"
    )
    return list(conn.scalars(asked, {"names": list(_PRIVATE)}))


def valid_rules(settings: Settings) -> Ruleset | None:
    """None where the rules are invalid, which another check reports."""
    try:
        return ruleset.load(rules_folder(settings), default_mode=settings.mode, prove=False)
    except ruleset.RulesInvalid:
        return None


#: Names that a check prints.
NAMED = 5


def check_slurm(settings: ExecutorSettings) -> list[Check]:
    """Checks each configured adapter of Slurm, without changing anything."""
    return each_cluster(settings, _slurm_of_cluster)


def _slurm_of_cluster(settings: ExecutorSettings) -> list[Check]:
    chain = bootstrap.slurm_reads(settings, cluster=settings.cluster)
    found: list[Check] = []
    answered = False
    for adapter in chain.adapters:
        name = say("doctor.slurm_adapter", adapter=adapter.name)
        if adapter.name == "rest":
            found += [_token(settings), _read_token(settings)]
        try:
            text = say(
                "doctor.slurm_answers", adapter=quoted(adapter.describe()), cluster=adapter.cluster_name()
            )
            # slurmrestd answers both even for a token that slurmctld refuses.
            adapter.controller()
            found.append(Check(name, True, text))
        except SchedulerError as error:
            found.append(Check(name, False, said_by(error), say(f"doctor.adapter_{adapter.name}")))
            continue
        answered = True
    return found + _together(chain) if answered else found


def _together(chain: PreferredReads[SlurmReads]) -> list[Check]:
    try:
        cluster, nodes = chain.cluster_name(), chain.snapshot().nodes.values()
        lacks = chain.unavailable()
    except SchedulerError as error:
        return [Check(say("doctor.slurm"), False, said_by(error), say("doctor.slurm_repair"))]
    gpus = sum(1 for node in nodes if node.gpus)
    text = say("doctor.slurm_nodes", cluster=cluster, count=len(nodes), gpus=gpus)
    repair = NO_WORDS if gpus else say("doctor.slurm_no_gpus")
    found = [Check(say("doctor.slurm"), gpus > 0, text, repair)]
    if lacks:
        calls = [say("doctor.because", text=call, why=quoted(why)) for call, why in lacks.items()]
        text = say("doctor.slurm_verbs_lack", calls=joined(calls, "semicolon"))
        found.append(Check(say("doctor.slurm_verbs"), True, text, say("doctor.slurm_verbs_repair")))
    return found


def _token(settings: Settings) -> Check:
    """Checks the lifetime of slurmrestd's token."""
    name, now = say("doctor.slurm_token"), datetime.now(UTC)
    try:
        token = bootstrap.slurm_token(settings).current(now)
        end, user = ends_at(token), settings.slurm_user or user_of(token)
    except SchedulerError as error:
        return Check(name, False, said_by(error), say("doctor.token_repair"))
    whose = say("doctor.token_for", user=user) if user else say("doctor.token_for_unnamed")
    if end is None:
        return Check(name, True, say("doctor.token_lasts", whose=whose))
    left_s = end - now.timestamp()
    minutes = round(abs(left_s) / 60)
    if left_s > 0:
        return Check(name, True, say("doctor.token_ends", whose=whose, count=minutes))
    text = say("doctor.token_ended", whose=whose, count=minutes)
    return Check(name, False, text, say("doctor.token_renew"))


def _read_token(settings: Settings) -> Check:
    name, file = say("doctor.read_token"), settings.slurm_read_token_file
    if file is not None:
        return Check(name, True, say("doctor.read_token_file", file=str(file)))
    if settings.slurm_token_command is not None:
        return Check(name, True, say("doctor.read_token_command"))
    return Check(name, True, say("doctor.read_token_none"), say("doctor.read_token_repair"))


def check_node_actions(settings: ExecutorSettings) -> list[Check]:
    """Checks access to nodes, without changing anything. A site may leave work on nodes to people."""
    return each_cluster(settings, lambda cluster: [_node_actions_of_cluster(cluster)])


def _node_actions_of_cluster(settings: ExecutorSettings) -> Check:
    name = say("doctor.node_actions")
    try:
        executor.node_exec(settings)
    except SettingsError as error:
        return Check(name, False, said_by(error), say("doctor.node_actions_two"))
    if settings.sim_nodes_socket is not None:
        return Check(name, True, say("doctor.node_actions_sim", socket=str(settings.sim_nodes_socket)))
    if settings.ssh_key_file is None:
        return Check(name, True, say("doctor.node_actions_none"), say("doctor.node_actions_repair"))
    node = _some_node(settings, name)
    if isinstance(node, Check):
        return node
    return _asked(settings, name, node)


def _some_node(settings: Settings, title: Said) -> str | Check:
    """A node for a trial, or why there is none."""
    try:
        nodes = bootstrap.slurm_reads(settings, cluster=settings.cluster).snapshot().gpu_nodes
    except SchedulerError:
        return Check(title, True, say("doctor.untested_no_nodes"), say("doctor.untested_repair"))
    return chosen(nodes) or Check(title, True, say("doctor.untested_no_answer"))


def chosen(nodes: Sequence[SlurmNode]) -> str | None:
    """The first node by name that responds to Slurm; None if none does."""
    return min((node.name for node in nodes if node.responding), default=None)


def _asked(settings: ExecutorSettings, name: Said, node: str) -> Check:
    assert settings.ssh_key_file is not None
    try:
        identity = executor.ssh_nodes(settings, settings.ssh_key_file).identify(node)
    except NodeError as error:
        return Check(name, False, said_by(error), say("doctor.node_setup"))
    gpus, driver = identity.get("gpus") or [], str(identity.get("driver", "?"))
    return Check(name, True, say("doctor.node_answers", node=node, driver=driver, count=len(gpus)))


def check_bmcs(settings: ExecutorSettings) -> list[Check]:
    """Checks access to the BMCs, without switching power; empty if none is configured."""
    return each_cluster(
        settings, lambda cluster: [] if cluster.bmc_url is None else [_bmcs_of_cluster(cluster)]
    )


def _bmcs_of_cluster(settings: ExecutorSettings) -> Check:
    name, repair = say("doctor.bmcs"), say("doctor.bmcs_repair")
    try:
        bmc = executor.bmc(settings)
    except SettingsError as error:
        return Check(name, False, said_by(error))
    assert bmc is not None  # it has an address
    node = _some_node(settings, name)
    if isinstance(node, Check):
        return node
    try:
        power = bmc.power(node)
    except BmcError as error:
        return Check(name, False, said_by(error), repair)
    if lacks := kinds_missing(power.kinds):
        return Check(name, False, say("doctor.bmc_lacks", node=node, kinds=joined(lacks, "and")), repair)
    state = quoted(power.state or "unknown")
    return Check(name, True, say("doctor.bmc_answers", node=node, system=power.system, state=state))


def check_site_commands(settings: ExecutorSettings) -> list[Check]:
    """Checks the programs of site commands, without starting them; empty if the rules are invalid."""
    if (rules := valid_rules(settings)) is None:
        return []
    if not rules.commands:
        return [Check(say("doctor.site_commands"), True, say("doctor.site_commands_none"))]
    return [_checked(name, command.argv[0]) for name, command in sorted(rules.commands.items())]


def _checked(name: str, program: str) -> Check:
    title = say("doctor.site_command", name=name)
    if not Path(program).is_file():
        return Check(title, False, say("doctor.missing", path=program), say("doctor.site_command_repair"))
    if not os.access(program, os.X_OK):
        text = say("doctor.site_command_refused", program=program)
        return Check(title, False, text, quoted(f"chmod a+x {program}"))
    return Check(title, True, quoted(program))


def check_guards(settings: Settings) -> list[Check]:
    """Warns of guards that never or always hold; a site may want that. Fails for values of clusters and
    partitions that are not there. Empty if rules or database cannot be read, which other checks report."""
    with open_database(settings) as db:
        try:
            if db is None:
                return []
            found = [result for of in settings.each() for result in _guards_of(db, of, settings)]
            return _guards_of_nothing(db, settings) + found
        except (SQLAlchemyError, ruleset.RulesInvalid):
            return []


def managed_clusters(settings: Settings, conn: sa.Connection) -> list[str]:
    """The clusters of the settings, else the one that Slurm named."""
    return [of.cluster for of in settings.each() if of.cluster] or cluster_names(conn)


def _guards_of_nothing(db: sa.Engine, settings: Settings) -> list[Check]:
    """Values under a misspelt name, or under the old name of a cluster: the general ones apply instead, which
    may allow more."""
    rules, snapshots = ruleset.load(rules_folder(settings), prove=False), PostgresSnapshots(db)
    with db.connect() as conn:
        clusters = managed_clusters(settings, conn)
        shown = [snapshots.read(conn, cluster) for cluster in clusters]
    if not clusters:
        return []
    absent = {"clusters": rules.cluster_guards.keys() - {*clusters}}
    found = [snapshot for snapshot in shown if snapshot is not None]
    if len(found) == len(clusters):
        partitions = {
            name for snapshot in found for node in snapshot.nodes.values() for name in node.partitions
        }
        absent["partitions"] = {name.rpartition("/")[2] for name in rules.partition_guards} - partitions
    return [
        Check(
            say("doctor.guards"),
            False,
            say(f"doctor.guards_of_no_{kind}", names=name_some(sorted(names), NAMED)),
            say("doctor.guards_named"),
        )
        for kind, names in absent.items()
        if names
    ]


def _guards_of(db: sa.Engine, of: Settings, settings: Settings) -> list[Check]:
    rules = ruleset.load(rules_folder(settings), overrides=guard_overrides(of), prove=False)
    found = []
    with db.connect() as conn:
        names = cluster_names(conn)
        for cluster in [of.cluster] if of.cluster else names:
            facts = read_facts(conn, cluster, PostgresSnapshots(db), SystemClock().now())
            found += [
                warn_of_bound(cluster, limit)
                for limit in ineffective_limits(facts, rules, SystemClock().now())
            ]
    return found or ([Check(say("doctor.guards"), True, say("doctor.guards_well"))] if names else [])


def warn_of_bound(cluster: str, bound: IneffectiveLimit) -> Check:
    text = say(
        "doctor.guard_always" if bound.always else "doctor.guard_never",
        cluster=cluster, guard=quoted(bound.guard.value), why=bound.text,
    )  # fmt: skip
    return Check(say("doctor.guards"), True, text, say("doctor.guards_repair", setting=bound.setting))


#: How far back dead letters are reported.
RECENT = timedelta(days=1)


def check_notification_channels(settings: Settings) -> list[Check]:
    """Checks secrets and deliveries of channels, without sending anything; empty if the rules are invalid."""
    rules = valid_rules(settings)
    if rules is None or not (named := rules.notifications.channels):
        return []
    now = SystemClock().now()
    histories = ask_database(settings, lambda _, conn: delivery_histories(conn, now)) or {}
    found = [check_notification_channel(settings, channel, histories.get(channel.name)) for channel in named]
    return _routes_of_nothing(settings, rules) + found


def _routes_of_nothing(settings: Settings, rules: Ruleset) -> list[Check]:
    """Routes under a misspelt name, or under the old name of a cluster: no one is notified of it."""
    clusters = ask_database(settings, lambda _, conn: managed_clusters(settings, conn)) or []
    globs = {glob for route in rules.notifications.routes for glob in route.clusters}
    lost = sorted(glob for glob in globs if not any(fits_any(cluster, (glob,)) for cluster in clusters))
    if not clusters or not lost:
        return []
    text = say("doctor.routes_of_no_clusters", names=name_some(lost, NAMED))
    return [Check(say("doctor.routes"), False, text, say("doctor.routes_named"))]


def delivery_histories(conn: sa.Connection, now: datetime) -> dict[str, sa.Row]:
    """By channel: time of the last delivery, numbers of failing and given-up ones and of those that missed
    recipients, and their errors, the newest first."""
    row = deliveries.c
    failing = (row.state == "due") & row.error.is_not(None)
    dead = (row.state == "failed") & (row.ended_at > now - RECENT)
    missed = (row.state == "sent") & row.error.is_not(None) & (row.ended_at > now - RECENT)
    errors = sa.func.array_agg(aggregate_order_by(row.error, row.id.desc()))
    query = sa.select(
        row.channel,
        sa.func.max(row.ended_at).filter(row.state == "sent").label("sent_at"),
        sa.func.count().filter(failing).label("failing"),
        sa.func.count().filter(dead).label("dead"),
        sa.func.count().filter(missed).label("missed"),
        errors.filter(failing | dead | missed, row.error.is_not(None)).label("errors"),
    ).group_by(row.channel)
    return {history.channel: history for history in conn.execute(query)}


def check_notification_channel(settings: Settings, channel: Channel, history: sa.Row | None) -> Check:
    name = say("doctor.channel", name=channel.name)
    try:
        access_to(settings, channel)
    except SettingsError as error:
        return Check(name, False, said_by(error), say("doctor.channel_secret"))
    if history is None:
        return Check(name, True, say("doctor.channel_ready", kind=channel.kind))
    last = say("doctor.channel_unused")
    if history.sent_at:
        last = say("doctor.channel_last", at=f"{history.sent_at:%Y-%m-%d %H:%M} UTC")
    error = from_stored(history.errors[0], Said) if history.errors else NO_WORDS
    if not history.failing and not history.dead:
        if not history.missed:
            return Check(name, True, say("words.labelled", label=channel.kind, text=last))
        text = say("doctor.channel_missed", kind=channel.kind, last=last, missed=history.missed, error=error)
        return Check(name, False, text, say("doctor.channel_missed_repair"))
    text = say(
        "doctor.channel_fails", kind=channel.kind, last=last, failing=history.failing, dead=history.dead,
        error=error,
    )  # fmt: skip
    return Check(name, False, text, say("doctor.channel_repair", channel=channel.name))


def check_tickets(settings: Settings) -> list[Check]:
    """Checks access to the ticket system, without opening a ticket; empty if there is none."""
    system = tickets(settings)
    if system is None:
        return []
    try:
        return [Check(say("doctor.tickets"), True, quoted(system.check()))]
    except DeliveryFailed as error:
        return [Check(say("doctor.tickets"), False, said_by(error), say("doctor.tickets_repair"))]


#: Longest silence of a recording: the detector writes every ten seconds, at least heartbeats.
RECORDING_SILENT = timedelta(minutes=10)


def check_recordings(settings: ExecutorSettings) -> list[Check]:
    """Checks the recording of each cluster: size, start and problems."""
    return [
        _recording_of(cluster, cluster.cluster if settings.clusters else None) for cluster in settings.each()
    ]


def _recording_of(settings: Settings, cluster: str | None) -> Check:
    name = say("doctor.recording_of", cluster=cluster) if cluster else say("doctor.recording")
    folder = settings.recording
    if folder is None:
        return Check(name, True, say("doctor.recording_off"))
    found = recordings(folder)
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if found.problem or not os.access(nearest, os.W_OK | os.X_OK):
        why = quoted(found.problem) or say("doctor.cannot_write", path=str(nearest))
        return Check(name, False, why, say("doctor.recording_repair", folder=str(folder)))
    if found.oldest is None or found.newest is None:
        return Check(name, True, say("doctor.recording_empty", folder=str(folder)))
    since = f"{found.oldest:%Y-%m-%d %H:%M} UTC"
    text = say("doctor.recording_on", mb=found.bytes / 1e6, since=since, folder=str(folder))
    if lost := sum(file.lost for file in found.files):
        text = say("doctor.recording_lost", text=text, count=lost)
    if datetime.now(UTC) - found.newest > RECORDING_SILENT:
        text = say("doctor.recording_silent", text=text, at=f"{found.newest:%Y-%m-%d %H:%M} UTC")
        return Check(name, False, text, say("doctor.recording_silent_repair"))
    return Check(name, True, text)


def check_rules(settings: Settings) -> list[Check]:
    name, folder = say("doctor.rules"), rules_folder(settings)
    try:
        rules = ruleset.load(folder)
    except ruleset.RulesInvalid as error:
        problems = [problem.sentence() for problem in error.problems]
        return [Check(name, False, name_some(problems, NAMED), say("doctor.rules_repair"))]
    counts = {"rules": len(rules.rules), "playbooks": len(rules.playbooks)}
    return [Check(name, True, say("doctor.rules_well", folder=str(folder), **counts))]


def check_database(settings: Settings) -> list[Check]:
    try:
        engine = bootstrap.engine(settings)
        with engine.connect() as connection:
            version, ahead_s, is_read_only = connection.exec_driver_sql(
                "SELECT current_setting('server_version'), extract(epoch FROM clock_timestamp())::float8, "
                "current_setting('transaction_read_only')::bool"
            ).one()
            ahead_s -= time.time()
            revision = database.current(connection)
            is_newer = revision is not None and database.is_newer(connection, revision)
            rights = _rights(connection)
        engine.dispose()
    except EmbeddedError as error:
        return [Check(say("doctor.database"), False, said_by(error))]
    except OperationalError as error:
        text = say("doctor.silent", error=" ".join(str(error.orig).split()))
        return [Check(say("doctor.database"), False, text, say("doctor.database_repair"))]
    is_supported = int(version.split(".")[0]) >= OLDEST_POSTGRES
    needed = database.head()
    text = say("doctor.tables_at", revision=revision or say("doctor.none"), needed=needed)
    repair = say("doctor.postgres_repair", version=OLDEST_POSTGRES)
    refuses = Check(say("doctor.database"), False, say("doctor.read_only"), say("doctor.read_only_repair"))
    return [
        _unless(is_supported, say("doctor.database"), say("doctor.postgres", version=version), repair),
        *([refuses] if is_read_only else []),
        _unless(is_newer or revision == needed, say("doctor.tables"), text, say("doctor.tables_repair")),
        _unless(
            abs(ahead_s) < CLOCK_S, say("doctor.clock"), say("doctor.clock_off", seconds=ahead_s),
            say("doctor.clock_repair"),
        ),
        *rights,
    ]  # fmt: skip


def _rights(conn: sa.Connection) -> list[Check]:
    """A note of what is not checked, as the login of a part may not read it."""
    if not (tables := unreadable(conn)):
        return []
    login = conn.scalar(sa.text("SELECT current_user"))
    text = say("doctor.rights_lack", login=login, tables=joined(tables, "comma"))
    return [Check(say("doctor.rights"), True, text, say("doctor.rights_repair"))]


def _unless(well: bool, name: Said, text: Said, repair: Said) -> Check:
    return Check(name, well, text, NO_WORDS if well else repair)


def check_broker(settings: Settings) -> list[Check]:
    from workers.app import make_app

    name, repair = say("doctor.broker"), say("doctor.broker_repair")
    try:
        url = bootstrap.broker_url(settings)
        with make_app(url, "doctor").connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
    except EmbeddedError as error:
        return [Check(name, False, said_by(error))]
    except OSError as error:
        return [Check(name, False, say("doctor.silent", error=str(error)), repair)]
    except Exception as error:  # each transport of kombu has errors of its own
        return [Check(name, False, say("doctor.silent", error=f"{type(error).__name__}: {error}"), repair)]
    return [Check(name, True, say("doctor.broker_well", kind=url.split(":", 1)[0]))]


def check_api(settings: Settings) -> list[Check]:
    name, url = say("doctor.api"), own_url(settings)
    if settings.database_url is None:
        try:
            url = find(settings.data_dir).url
        except EmbeddedError as error:
            return [Check(name, False, said_by(error))]
    try:
        # It carries no secret, and asks for an address that the certificate need not name.
        with urllib.request.urlopen(f"{url}/readyz", timeout=5, context=unchecked_tls()):  # noqa: S310
            return [Check(name, True, say("doctor.api_well", url=url))]
    except urllib.error.HTTPError as error:
        answer = error.read(2000).decode(errors="replace")
        return [Check(name, False, say("doctor.api_not_ready", url=url, answer=answer))]
    except OSError as error:
        text = say("doctor.api_silent", url=url, error=str(error))
        return [Check(name, False, text, say("doctor.api_repair"))]


def check_sign_in(settings: Settings) -> list[Check]:
    """Whether people can sign in by the site's identity provider."""
    if settings.oidc_issuer is None:
        return []
    name = say("doctor.sign_in")
    client = settings.oidc_client_id or "", settings.oidc_client_secret or ""
    redirect = f"{settings.public_url}/auth/callback"
    document = ProviderClient(settings.oidc_issuer, client, SystemClock().now).document
    try:
        document.published()
        document.keys(None)
    except ProviderAway as error:
        return [Check(name, False, said_by(error), say("doctor.sign_in_repair"))]
    text = say("doctor.sign_in_well", issuer=settings.oidc_issuer, redirect=redirect)
    results = [Check(name, True, text)]
    rules = valid_rules(settings)
    if rules is not None and not rules.access.grants:
        text = say("doctor.sign_in_no_grants")
        results.append(Check(name, False, text, say("doctor.sign_in_grants_repair")))
    return results
