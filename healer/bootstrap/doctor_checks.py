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
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from healer import bootstrap
from healer.adapters.bmc.redfish import kinds_missing
from healer.adapters.identity_provider.provider_client import ProviderClient
from healer.adapters.postgres.gate_facts import read_facts
from healer.adapters.postgres.node_rows import PostgresSnapshots
from healer.adapters.postgres.read_queries import cluster_names
from healer.adapters.postgres.tables import deliveries
from healer.adapters.slurm import commands
from healer.adapters.slurm.preferred_reads import PreferredReads
from healer.adapters.slurm.rest_token import ends_at, user_of
from healer.adapters.system_clock import SystemClock
from healer.bootstrap import database, executor
from healer.bootstrap.messaging import access_to, tickets
from healer.decisions.capacity import IneffectiveLimit, ineffective_limits
from healer.embedded.running import find, unchecked_tls
from healer.embedded.user import EmbeddedError
from healer.model import Channel, Mode, SlurmNode
from healer.ports.node_exec import BmcError, NodeError
from healer.ports.outbound import DeliveryFailed
from healer.ports.request_errors import Unavailable
from healer.ports.scheduling import SchedulerError, SlurmReads
from healer.ports.sign_in import ProviderAway
from healer.recordings.recording_folder import recordings
from healer.rulebook import ruleset
from healer.settings import ExecutorSettings, Settings, SettingsError, guard_overrides, own_url, rules_folder

#: What to check if an adapter does not answer.
_REPAIRS = {
    "rest": "Check that slurmrestd runs at HEALER_SLURM_REST_URL and that the token is valid; see its log.",
    "cli": "Check that slurmctld and munge run, SLURM_CONF is correct, and this user may run scontrol.",
    "pyslurm": "Check that slurmctld and munge run, and that pyslurm and libslurm are of the same release.",
    "sim": "Start `healer up`, or correct HEALER_SIM_SOCKET.",
}


OLDEST_POSTGRES = 15
#: Clocks further apart than this make the order of evidence doubtful.
CLOCK_S = 1.0


class Look(NamedTuple):
    """The result of one check; `repair` says what to do about it. `fix` does it, where that is safe and loses
    nothing; it may raise OSError."""

    name: str
    ok: bool
    text: str
    repair: str = ""
    fix: Callable[[], object] | None = None

    @property
    def state(self) -> str:
        """`ok`, `note` (nothing is wrong, and something could be better) or `fail`."""
        return "fail" if not self.ok else "note" if self.repair else "ok"


def _each_cluster(settings: ExecutorSettings, look: Callable[[ExecutorSettings], list[Look]]) -> list[Look]:
    """The checks of each cluster, prefixed with its name where there are several."""
    return [
        found._replace(name=f"{cluster.cluster}: {found.name}") if settings.clusters else found
        for cluster in settings.each()
        for found in look(cluster)
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


#: Names that a check prints.
_NAMED = 5


def name_few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def look_at_slurm(settings: ExecutorSettings) -> list[Look]:
    """Checks each configured adapter of Slurm, without changing anything."""
    return _each_cluster(settings, _slurm_of_cluster)


def _slurm_of_cluster(settings: ExecutorSettings) -> list[Look]:
    chain = bootstrap.slurm_reads(settings, cluster=settings.cluster)
    found: list[Look] = []
    answered = False
    for adapter in chain.adapters:
        name = f"slurm {adapter.name}"
        user = "" if adapter.name == "sim" else commands.own_account()
        if adapter.name == "rest":
            token, user = _token(settings)
            found += [token, _read_token(settings)]
        try:
            text = f"{adapter.describe()}, cluster {adapter.cluster_name()}"
            # slurmrestd answers both even for a token that slurmctld refuses.
            adapter.controller()
            found.append(Look(name, True, text))
        except SchedulerError as error:
            found.append(Look(name, False, str(error), _REPAIRS[adapter.name]))
            continue
        answered = True
        if user:
            found.append(_rights(adapter.name, user, settings))
    return found + _together(chain) if answered else found


def _together(chain: PreferredReads[SlurmReads]) -> list[Look]:
    try:
        cluster, nodes = chain.cluster_name(), chain.snapshot().nodes.values()
        lacks = chain.unavailable()
    except SchedulerError as error:
        return [Look("slurm", False, str(error), "Fix the adapters listed above.")]
    gpus = sum(1 for node in nodes if node.gpus)
    text = f"cluster {cluster}, {len(nodes)} nodes, {gpus} with GPUs"
    found = [Look("slurm", gpus > 0, text, "" if gpus else "healer monitors only nodes with Gres=gpu.")]
    if lacks:
        calls = "; ".join(f"{call} ({why})" for call, why in lacks.items())
        hint = "Add `cli` to HEALER_SLURM_ADAPTERS: it supports every call."
        found.append(Look("slurm verbs", True, f"not available: {calls}", hint))
    return found


def _token(settings: Settings) -> tuple[Look, str]:
    """Checks the lifetime of slurmrestd's token. Returns its user too; empty if unknown."""
    now = datetime.now(UTC)
    try:
        token = bootstrap.slurm_token(settings).current(now)
        end, user = ends_at(token), settings.slurm_user or user_of(token)
    except SchedulerError as error:
        return Look("slurm rest token", False, str(error), "Fix the token file or the token command."), ""
    whose = f"for {user}" if user else "for an unnamed user"
    if end is None:
        return Look("slurm rest token", True, f"{whose}, does not expire"), user
    left_s = end - now.timestamp()
    if left_s > 0:
        return Look("slurm rest token", True, f"{whose}, expires in {left_s / 60:.0f} minutes"), user
    repair = "Renew the token. If it is new, synchronise this host's clock and slurmctld's by NTP."
    return Look("slurm rest token", False, f"{whose}, expired {-left_s / 60:.0f} minutes ago", repair), user


def _read_token(settings: Settings) -> Look:
    name = "slurm rest read token"
    if settings.slurm_read_token_file is not None:
        return Look(name, True, f"{settings.slurm_read_token_file}, used by all parts except the worker")
    if settings.slurm_token_command is not None:
        return Look(name, True, "none: each part runs the token command as its own user")
    repair = "Set HEALER_SLURM_READ_TOKEN_FILE to the token of an unprivileged user."
    return Look(name, True, "none: every part holds the token that can change Slurm", repair)


def _rights(adapter: str, user: str, settings: Settings) -> Look:
    may, text, repair = commands.rights_of(user, settings.slurm_bin_dir, settings.slurm_conf)
    if may is False and settings.mode in (Mode.off, Mode.shadow):
        return Look(f"slurm {adapter} rights", True, f"{text}; sufficient in mode {settings.mode}", repair)
    return Look(f"slurm {adapter} rights", may is not False, text, repair)


NODE_ACTIONS = "node actions"


def look_at_node_actions(settings: ExecutorSettings) -> list[Look]:
    """Checks access to nodes, without changing anything. A site may leave work on nodes to people."""
    return _each_cluster(settings, lambda cluster: [_node_actions_of_cluster(cluster)])


def _node_actions_of_cluster(settings: ExecutorSettings) -> Look:
    try:
        executor.node_exec(settings)
    except SettingsError as error:
        return Look(NODE_ACTIONS, False, str(error), "Remove one of the two settings.")
    if settings.sim_nodes_socket is not None:
        return Look(NODE_ACTIONS, True, f"simulated nodes at {settings.sim_nodes_socket}")
    if settings.ssh_key_file is None:
        repair = "Set HEALER_SSH_KEY_FILE and install healer-node on the nodes: docs/nodes.md."
        return Look(NODE_ACTIONS, True, "not configured: steps on a node wait for a person", repair)
    node = _some_node(settings, NODE_ACTIONS)
    if isinstance(node, Look):
        return node
    return _asked(settings, node)


def _some_node(settings: Settings, title: str) -> str | Look:
    """A node for a trial, or why there is none."""
    try:
        nodes = bootstrap.slurm_reads(settings, cluster=settings.cluster).snapshot().gpu_nodes
    except SchedulerError:
        return Look(title, True, "not tested: Slurm lists no nodes", "Correct what is said of Slurm.")
    return chosen(nodes) or Look(title, True, "not tested: no node responds to Slurm")


def chosen(nodes: Sequence[SlurmNode]) -> str | None:
    """The first node by name that responds to Slurm; None if none does."""
    return min((node.name for node in nodes if node.responding), default=None)


def _asked(settings: ExecutorSettings, node: str) -> Look:
    assert settings.ssh_key_file is not None
    try:
        identity = executor.ssh_nodes(settings, settings.ssh_key_file).identify(node)
    except NodeError as error:
        return Look(NODE_ACTIONS, False, str(error), "See docs/nodes.md for the setup of a node.")
    gpus = identity.get("gpus") or []
    return Look(
        NODE_ACTIONS, True, f"{node} answers by SSH: driver {identity.get('driver', '?')}, {len(gpus)} GPUs"
    )


BMCS = "BMCs"


def look_at_bmcs(settings: ExecutorSettings) -> list[Look]:
    """Checks access to the BMCs, without switching power; empty if none is configured."""
    return _each_cluster(
        settings, lambda cluster: [] if cluster.bmc_url is None else [_bmcs_of_cluster(cluster)]
    )


def _bmcs_of_cluster(settings: ExecutorSettings) -> Look:
    try:
        bmc = executor.bmc(settings)
    except SettingsError as error:
        return Look(BMCS, False, str(error))
    assert bmc is not None  # it has an address
    node = _some_node(settings, BMCS)
    if isinstance(node, Look):
        return node
    repair = "See docs/runbooks/power-cycle.md for what a BMC needs. Until then, a person switches power."
    try:
        power = bmc.power(node)
    except BmcError as error:
        return Look(BMCS, False, str(error), repair)
    if lacks := kinds_missing(power.kinds):
        return Look(
            BMCS, False, f"the BMC of {node} supports neither PowerCycle nor {' and '.join(lacks)}", repair
        )
    return Look(
        BMCS, True, f"{node} answers by Redfish: system {power.system}, power {power.state or 'unknown'}"
    )


SITE_COMMANDS = "site commands"


def look_at_site_commands(settings: ExecutorSettings) -> list[Look]:
    """Checks the programs of site commands, without starting them; empty if the rules are invalid."""
    try:
        commands = ruleset.load(rules_folder(settings), prove=False).commands
    except ruleset.RulesInvalid:
        return []
    if not commands:
        return [Look(SITE_COMMANDS, True, "none: steps that need the site's own tools wait for a person")]
    return [_checked(name, command.argv[0]) for name, command in sorted(commands.items())]


def _checked(name: str, program: str) -> Look:
    title = f"{SITE_COMMANDS}: {name}"
    if not Path(program).is_file():
        return Look(
            title,
            False,
            f"{program} is missing",
            "Install it on this machine, or fix rules/commands.yaml.",
        )
    if not os.access(program, os.X_OK):
        return Look(title, False, f"this user may not run {program}", f"chmod a+x {program}")
    return Look(title, True, program)


def look_at_guards(settings: Settings) -> list[Look]:
    """Warns of guards that never or always hold; a site may want that. Empty if rules or database cannot be
    read, which other checks report."""
    with open_database(settings) as db:
        try:
            return [look for of in settings.each() for look in _guards_of(db, of, settings)] if db else []
        except (SQLAlchemyError, ruleset.RulesInvalid):
            return []


def _guards_of(db: sa.Engine, of: Settings, settings: Settings) -> list[Look]:
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
    return found or (
        [Look("guards", True, "every cap can take effect, and none blocks everything")] if names else []
    )


def warn_of_bound(cluster: str, bound: IneffectiveLimit) -> Look:
    what = "blocks every removal" if bound.always else "never takes effect"
    text = f"{cluster}: guard {bound.guard} {what}: {bound.text}"
    return Look(
        "guards", True, text, f"If this is not intended, change {bound.setting} in rules/guards.yaml."
    )


#: How far back dead letters are reported.
RECENT = timedelta(days=1)


def look_at_channels(settings: Settings) -> list[Look]:
    """Checks secrets and deliveries of channels, without sending anything; empty if the rules are invalid."""
    try:
        named = ruleset.load(rules_folder(settings), prove=False).notifications.channels
    except ruleset.RulesInvalid:
        return []
    if not named:
        return []
    with open_database(settings) as db:
        if db is None:
            return []
        try:
            histories = delivery_histories(db, SystemClock().now())
        except SQLAlchemyError:
            histories = {}
    return [look_at_channel(settings, channel, histories.get(channel.name)) for channel in named]


def delivery_histories(db: sa.Engine, now: datetime) -> dict[str, sa.Row]:
    """By channel: time of the last delivery, numbers of failing and of given-up ones, and the last error."""
    row = deliveries.c
    failing = (row.state == "due") & row.error.is_not(None)
    dead = (row.state == "failed") & (row.ended_at > now - RECENT)
    query = sa.select(
        row.channel,
        sa.func.max(row.ended_at).filter(row.state == "sent").label("sent_at"),
        sa.func.count().filter(failing).label("failing"),
        sa.func.count().filter(dead).label("dead"),
        sa.func.max(row.error).filter(failing | dead).label("error"),
    ).group_by(row.channel)
    with db.connect() as conn:
        return {history.channel: history for history in conn.execute(query)}


def look_at_channel(settings: Settings, channel: Channel, history: sa.Row | None) -> Look:
    name = f"channel {channel.name}"
    try:
        access_to(settings, channel)
    except SettingsError as error:
        return Look(name, False, str(error), "Set it in the scheduler's environment (docs/notifications.md).")
    if history is None:
        return Look(name, True, f"{channel.kind}: secrets found, nothing sent yet")
    last = f"last message at {history.sent_at:%Y-%m-%d %H:%M} UTC" if history.sent_at else "nothing sent yet"
    if not history.failing and not history.dead:
        return Look(name, True, f"{channel.kind}: {last}")
    text = f"{channel.kind}: {last}; {history.failing} waiting to be retried, {history.dead} given up in 24 h"
    repair = f"`healer messages --channel {channel.name}` lists them; `healer messages retry` resends one."
    return Look(name, False, f"{text}: {history.error}", repair)


def look_at_tickets(settings: Settings) -> list[Look]:
    """Checks access to the ticket system, without opening a ticket; empty if there is none."""
    system = tickets(settings)
    if system is None:
        return []
    try:
        return [Look("tickets", True, system.check())]
    except DeliveryFailed as error:
        repair = (
            "Fix HEALER_TICKETS_* or the permissions of its user. Tickets stay in healer's list until then."
        )
        return [Look("tickets", False, str(error), repair)]


#: Longest silence of a recording: the detector writes every ten seconds, at least heartbeats.
RECORDING_SILENT = timedelta(minutes=10)


def look_at_recordings(settings: ExecutorSettings) -> list[Look]:
    """Checks the recording of each cluster: size, start and problems."""
    return [
        _recording_of(cluster, cluster.cluster if settings.clusters else None) for cluster in settings.each()
    ]


def _recording_of(settings: Settings, cluster: str | None) -> Look:
    name = f"recording {cluster}" if cluster else "recording"
    folder = settings.recording
    if folder is None:
        return Look(name, True, "off (HEALER_RECORDING=on records for `healer replay`)")
    found = recordings(folder)
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if found.problem or not os.access(nearest, os.W_OK | os.X_OK):
        why = found.problem or f"this user cannot write {nearest}"
        return Look(
            name,
            False,
            why,
            f"Make {folder} writable for healer's user, or set HEALER_RECORDING to another folder.",
        )
    if found.oldest is None or found.newest is None:
        return Look(name, True, f"on, {folder} is still empty")
    lost = sum(file.lost for file in found.files)
    holes = f", {lost} entries lost" if lost else ""
    since = f"{found.oldest:%Y-%m-%d %H:%M} UTC"
    text = f"on, {found.bytes / 1e6:.1f} MB since {since} in {folder}{holes}"
    if datetime.now(UTC) - found.newest > RECORDING_SILENT:
        return Look(name, False, f"{text}; nothing since {found.newest:%Y-%m-%d %H:%M} UTC", _SILENT_REPAIR)
    return Look(name, True, text)


_SILENT_REPAIR = "The detector writes the recording: check that it runs, and read its log."


def look_at_rules(settings: Settings) -> list[Look]:
    folder = rules_folder(settings)
    try:
        rules = ruleset.load(folder)
    except ruleset.RulesInvalid as error:
        return [Look("rules", False, str(error), "Fix the file; `healer rules check` lists every error.")]
    return [Look("rules", True, f"{len(rules.rules)} rules, {len(rules.playbooks)} playbooks in {folder}")]


def look_at_database(settings: Settings) -> list[Look]:
    try:
        engine = bootstrap.engine(settings)
        with engine.connect() as connection:
            version, ahead_s = connection.exec_driver_sql(
                "SELECT current_setting('server_version'), extract(epoch FROM clock_timestamp())::float8"
            ).one()
            ahead_s -= time.time()
            revision = database.current(connection)
        engine.dispose()
    except EmbeddedError as error:
        return [Look("database", False, str(error))]
    except OperationalError as error:
        return [
            Look(
                "database",
                False,
                f"does not respond: {' '.join(str(error.orig).split())}",
                "Start PostgreSQL, or fix HEALER_DATABASE_URL.",
            )
        ]
    is_supported = int(version.split(".")[0]) >= OLDEST_POSTGRES
    postgres = Look("database", is_supported, f"PostgreSQL {version}")
    needed = database.head()
    text = f"revision {revision or 'none'}; this version needs {needed}"
    tables = Look("tables", revision == needed, text)
    text = f"the database's clock differs from this machine's by {ahead_s:+.3f} s"
    clock = Look("clock", abs(ahead_s) < CLOCK_S, text)
    return [
        postgres if postgres.ok else postgres._replace(repair=f"Use PostgreSQL {OLDEST_POSTGRES} or newer."),
        tables if tables.ok else tables._replace(repair="Run `healer db upgrade`."),
        clock if clock.ok else clock._replace(repair="Synchronise both hosts by NTP."),
    ]


def look_at_broker(settings: Settings) -> list[Look]:
    from workers.app import make_app

    repair = "Start Redis, or fix HEALER_REDIS_URL. Until then runs start a little later, by the sweep."
    try:
        url = bootstrap.broker_url(settings)
        with make_app(url, "doctor").connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
    except EmbeddedError as error:
        return [Look("broker", False, str(error))]
    except OSError as error:
        return [Look("broker", False, f"does not respond: {error}", repair)]
    except Exception as error:  # each transport of kombu has errors of its own
        return [Look("broker", False, f"does not respond: {type(error).__name__}: {error}", repair)]
    return [Look("broker", True, f"responds ({url.split(':', 1)[0]})")]


def look_at_api(settings: Settings) -> list[Look]:
    url = own_url(settings)
    if settings.database_url is None:
        try:
            url = find(settings.data_dir).url
        except EmbeddedError as error:
            return [Look("api", False, str(error))]
    try:
        # It carries no secret, and asks for an address that the certificate need not name.
        with urllib.request.urlopen(f"{url}/readyz", timeout=5, context=unchecked_tls()):  # noqa: S310
            return [Look("api", True, f"ready at {url}")]
    except urllib.error.HTTPError as error:
        return [Look("api", False, f"{url} is not ready: {error.read(2000).decode(errors='replace')}")]
    except OSError as error:
        return [Look("api", False, f"{url} does not respond: {error}", "Start `healer api` or `healer up`.")]


def look_at_sign_in(settings: Settings) -> list[Look]:
    """Whether people can sign in by the site's identity provider."""
    if settings.oidc_issuer is None:
        return []
    client = settings.oidc_client_id or "", settings.oidc_client_secret or ""
    redirect = f"{settings.public_url}/auth/callback"
    document = ProviderClient(settings.oidc_issuer, client, SystemClock().now).document
    try:
        document.published()
        document.keys(None)
    except ProviderAway as error:
        repair = "Check HEALER_OIDC_ISSUER, and that this machine reaches it by HTTPS."
        return [Look("sign-in", False, str(error), repair)]
    looks = [Look("sign-in", True, f"{settings.oidc_issuer} responds; its redirect URI is {redirect}")]
    try:
        grants = ruleset.load(rules_folder(settings), prove=False).access.grants
    except ruleset.RulesInvalid:
        return looks  # the look at the rules says so
    if not grants:
        text = "rules/access.yaml grants no roles: people can sign in, but see nothing"
        looks.append(Look("sign-in", False, text, "Add an entry under grants (docs/sign-in.md)."))
    return looks


#: In the order in which `healer doctor` prints them.
LOOKS = (
    look_at_rules,
    look_at_database,
    look_at_broker,
    look_at_slurm,
    look_at_node_actions,
    look_at_bmcs,
    look_at_site_commands,
    look_at_guards,
    look_at_tickets,
    look_at_channels,
    look_at_recordings,
    look_at_sign_in,
    look_at_api,
)
