"""Chooses the adapters, and wires and starts every part."""

import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import sqlalchemy as sa
import structlog

from healer.adapters.certificate_files import CertificateFiles, CertificateUnusable
from healer.adapters.password_hashing import Argon2
from healer.adapters.postgres.account_rows import PostgresAccounts
from healer.adapters.postgres.audit_rows import PostgresChain
from healer.adapters.postgres.claims import LedgerParts
from healer.adapters.postgres.engine import earlier_clock, make_engine
from healer.adapters.postgres.glass_rows import PostgresBreakGlass
from healer.adapters.postgres.ledger import PostgresLedger
from healer.adapters.postgres.local_processes import connection_name
from healer.adapters.postgres.loops import Heartbeat, PendingDuties
from healer.adapters.postgres.migrate import require_tables
from healer.adapters.postgres.node_rows import PostgresSnapshots
from healer.adapters.postgres.roles import login_url
from healer.adapters.postgres.tokens import PostgresTokens
from healer.adapters.signing import CHECKPOINT_FILE, CheckpointFile, trusted_keys
from healer.adapters.slurm.cli_reads import CliReads
from healer.adapters.slurm.preferred_reads import OtherCluster, PreferredReads
from healer.adapters.slurm.rest_token import CommandToken, FileToken
from healer.adapters.system_clock import SystemClock
from healer.adapters.token_key import KEY_FILE as TOKEN_KEY_FILE
from healer.adapters.token_key import TokenKeyUnreadable, token_key
from healer.adapters.witnesses import witnessed_lines
from healer.audit import Report, Trail, read_checkpoints, report_against
from healer.bootstrap.log_lines import logged_to, shown_by_logging, shown_traceback, with_symbols
from healer.engine.emergency import Emergency
from healer.engine.local_accounts import LocalAccounts
from healer.model import Role, Ruleset
from healer.observations.slurm_poll import POLL_S
from healer.ports.callers import NewToken
from healer.ports.scheduling import SchedulerError, SlurmReads
from healer.ports.transactions import Poke
from healer.processes.rulebook import KeptRules, Rulebook
from healer.processes.scheduler import (
    ACCOUNTS_S,
    DELIVER_S,
    ENROLMENTS_S,
    SWEEP_S,
    TICKETS_S,
    TIDY_S,
    WATCH_S,
    Duty,
    Poll,
    account_watch,
    enrolment_watch,
    run_duties,
    seal_watch,
    sweep,
    watching_sweeps,
    woken_by,
)
from healer.rulebook.ruleset import RulesInvalid
from healer.rulebook.ruleset import load as load_rules
from healer.settings import SIM_FOLDER, Settings, SettingsError, check_listener, guard_overrides, rules_folder
from healer.text import said_by, say

if TYPE_CHECKING:
    from healer.adapters.slurm.rest_reads import RestReads

log = structlog.get_logger()

#: Timeout of a call that changes Slurm: shorter than the lease's margin for effects.
SLURM_TIMEOUT_S = 4.0
SIGN_IN_LASTS = timedelta(minutes=10)
#: Below the data directory's folder of what is simulated: the tokens of the demo's nodes and technician.
DEMO_TOKENS = "demo-tokens.json"


def database_url(settings: Settings, role: str = "healer_api") -> str:
    """The database of this installation: as set, with its login, else the embedded one of a running `healer
    up`, as `role`."""
    if settings.database_url is not None:
        return settings.database_url
    from healer.embedded.postgres import forget_others
    from healer.embedded.running import find

    forget_others(os.environ)
    return login_url(find(settings.data_dir).database_url, role)


def broker_url(settings: Settings) -> str:
    if settings.redis_url is not None:
        return settings.redis_url
    from healer.embedded.running import find

    return find(settings.data_dir).broker_url


def engine(
    settings: Settings,
    *,
    name: str = "healer",
    pool_size: int = 8,
    role: str = "healer_api",
    acts_as: str | None = None,
) -> sa.Engine:
    """`role`: for commands, on an embedded database. `acts_as`: a role that the login takes at once."""
    url = database_url(settings, role)
    return make_engine(url, name=connection_name(name), pool_size=pool_size, acts_as=acts_as)


def slurm_reads(settings: Settings, *, cluster: str | None = None) -> PreferredReads[SlurmReads]:
    """Slurm to read, by the adapters of HEALER_SLURM_ADAPTERS in their order; `healer.bootstrap.executor` has
    the calls that change it. With `cluster` it reaches no other."""
    return PreferredReads([_reads(name, settings) for name in settings.slurm_adapters], cluster=cluster)


def _reads(name: str, settings: Settings) -> SlurmReads:
    if name == "rest":
        from healer.adapters.slurm.rest_reads import RestReads

        if settings.slurm_read_token_file is None:
            return rest_by(RestReads, settings, slurm_token(settings), settings.slurm_user)
        return rest_by(RestReads, settings, FileToken(settings.slurm_read_token_file), None)
    if name == "pyslurm":
        from healer.adapters.slurm.pyslurm_reads import PyslurmReads

        return PyslurmReads(timeout_s=SLURM_TIMEOUT_S, env=conf_environ(settings))
    if name == "sim":
        from healer.sim.sim_slurm import SimReads

        return cast(SlurmReads, SimReads(sim_socket(settings), timeout_s=SLURM_TIMEOUT_S))
    return CliReads(slurm_conf(settings), timeout_s=SLURM_TIMEOUT_S, bin_dir=settings.slurm_bin_dir)


R = TypeVar("R", bound="RestReads")


def rest_by(client: "type[R]", settings: Settings, token: FileToken | CommandToken, user: str | None) -> R:
    """slurmrestd as this client asks it. `user` None: whom the token names."""
    if settings.slurm_rest_url is None:
        raise SettingsError(say("setup.slurm_rest_url_must"))
    try:
        return client(
            settings.slurm_rest_url,
            user=user,
            token=token,
            timeout_s=SLURM_TIMEOUT_S,
            cluster=settings.cluster,
        )
    except ValueError as error:
        raise SettingsError(say("setup.slurm_rest_url_slurm", why=said_by(error))) from error


def slurm_conf(settings: Settings) -> str | None:
    return str(settings.slurm_conf) if settings.slurm_conf else None


def conf_environ(settings: Settings) -> dict[str, str] | None:
    return {"SLURM_CONF": str(settings.slurm_conf)} if settings.slurm_conf else None


def sim_socket(settings: Settings) -> Path:
    if settings.sim_socket is None:
        raise SettingsError(say("setup.sim_socket_must_name"))
    return settings.sim_socket


def slurm_token(settings: Settings) -> FileToken | CommandToken:
    """Where slurmrestd's token that may write comes from."""
    if settings.slurm_token_command is not None:
        return CommandToken(
            settings.slurm_token_command, timeout_s=SLURM_TIMEOUT_S, slurm_conf=settings.slurm_conf
        )
    if settings.slurm_token_file is not None:
        return FileToken(settings.slurm_token_file)
    raise SettingsError(say("setup.slurm_token_file_must"))


def cluster_name(settings: Settings) -> str:
    """HEALER_CLUSTER, else Slurm's own name."""
    if settings.cluster is not None:
        return settings.cluster
    try:
        return slurm_reads(settings).cluster_name()
    except SchedulerError as error:
        raise SettingsError(say("setup.cluster_set_slurm_does", why=said_by(error))) from error


def is_own_cluster(slurm: SlurmReads, cluster: str) -> bool:
    """True if Slurm says that it is this cluster, False while it does not answer.

    Raises SettingsError for another cluster: nodes of the same name would be drained there.
    """
    try:
        name = slurm.cluster_name()
    except OtherCluster as error:
        raise SettingsError(str(error)) from error
    except SchedulerError as error:
        log.warning("Slurm gave no cluster name", error=str(error))
        return False
    if name != cluster:
        raise SettingsError(say("setup.slurm_machine_cluster_mend", name=name, cluster=cluster))
    return True


def load_site_rules(folder: Path, settings: Settings, *, prove: bool = True) -> Ruleset:
    """The rules of the folder with the site's mode, settling time and guards. Raises RulesInvalid."""
    return load_rules(
        folder,
        default_mode=settings.mode,
        settle_s=settings.settle_s,
        overrides=guard_overrides(settings),
        prove=prove,
    )


def rulebook(settings: Settings, kept: str = "rules") -> Rulebook:
    """`kept`: the folder of the data directory for the last proven rules; the worker believes its own alone.

    Raises SettingsError if neither the files nor the last proven rules can be used."""
    where = rules_folder(settings)

    def load(folder: Path, prove: bool) -> Ruleset:
        return load_site_rules(folder, settings, prove=prove)

    try:
        return Rulebook(where, load, KeptRules(settings.data_dir / kept))
    except RulesInvalid as error:
        why = say("setup.rules_problems", first=error.problems[0].sentence())
        if not where.is_dir():
            why = say("setup.rules_not_a_folder")
    except OSError as error:
        why = say("setup.rules_unreadable", file=str(error.filename), why=error.strerror)
    raise SettingsError(say("setup.rules_cannot_used_rules", where=str(where), why=why))


def poke(settings: Settings, cluster: str) -> Poke:
    """Returns a function that has the workers drive runs. A lost message is harmless: the sweep finds due
    runs."""
    from workers.app import make_app, send

    app = make_app(broker_url(settings), cluster)

    def poked(runs: Sequence[str]) -> None:
        try:
            send(app, runs)
        except Exception as error:
            log.warning("broker unreachable, the sweep will start the runs", error=str(error))

    return poked


def audit_trail(settings: Settings, db: sa.Engine | None = None) -> Trail:
    """The audit of this installation; without `db` for `healer audit`."""
    db = db or engine(settings, name="healer audit", pool_size=2)
    file = CheckpointFile(settings.published_audit / CHECKPOINT_FILE)
    return Trail(PostgresChain(db), lambda: trusted_keys(settings.published_audit), file)


def audit_against(settings: Settings, place: str, keys: Sequence[str]) -> Report:
    """The audit in the database, held against a witness. Raises WitnessAway and ExportError."""
    held = read_checkpoints(witnessed_lines(place))
    db = engine(settings, name="healer audit", pool_size=2)
    return report_against(PostgresChain(db), place, held, keys=keys)


def ledger(
    settings: Settings,
    db: sa.Engine,
    cluster: str,
    connection: sa.Connection | None = None,
    snapshots: PostgresSnapshots | None = None,
) -> PostgresLedger:
    return PostgresLedger(
        LedgerParts(
            engine=db,
            cluster=cluster,
            snapshots=snapshots or PostgresSnapshots(db),
            clock=SystemClock(),
            # Only the scheduler knows where messages go: it lists those without a destination.
            has_sink=True,
        ),
        connection,
    )


def tokens_key(settings: Settings) -> bytes:
    """The key of the tokens' digests. Raises SettingsError."""
    try:
        return token_key(settings.token_key_file or settings.data_dir / TOKEN_KEY_FILE)
    except TokenKeyUnreadable as error:
        raise SettingsError(str(error)) from None


def emergency(settings: Settings, db: sa.Engine, cluster: str) -> Emergency:
    """Break-glass; `cluster` takes its records and messages."""
    return Emergency(PostgresBreakGlass(db, cluster, tokens_key(settings)), cluster, SystemClock())


def has_provider(settings: Settings) -> bool:
    """Whether something else than this site decides who is a person: an identity provider, or a proxy."""
    return settings.oidc_issuer is not None or settings.sign_in_proxy_secret is not None


def local_accounts(settings: Settings, db: sa.Engine, cluster: str) -> LocalAccounts | None:
    """People of this site; None if it has an identity provider, which identifies people."""
    if has_provider(settings):
        return None
    return LocalAccounts(PostgresAccounts(db, cluster), Argon2(), tokens_key(settings), SystemClock())


def sign_in_link(settings: Settings, database: str, url: str, *, name: str, role: Role = Role.admin) -> str:
    """A URL that signs in a person of this role, once, within ten minutes."""
    now = SystemClock().now()
    db = make_engine(database, name="healer sign-in", pool_size=1)
    try:
        book = PostgresTokens(db, "", tokens_key(settings))
        new = NewToken(role=role, name=name, once=True, expires_at=now + SIGN_IN_LASTS)
        token = book.create(new, now=now, by="healer")
        book.wait_for_seal(token)  # without: the page says that the link counts in a moment
    finally:
        db.dispose()
    return f"{url}/sign-in?token={token}"


def demo_tokens(settings: Settings, database: str) -> None:
    """Creates tokens for the demo's actors, which hold no key to create any."""
    now, db = SystemClock().now(), make_engine(database, name="healer demo", pool_size=1)
    wanted = (
        NewToken(role=Role.signals, name="demo nodes", vouches="kernel"),
        NewToken(role=Role.operator, name="demo technician"),
    )
    try:
        book = PostgresTokens(db, settings.each()[0].cluster or "pod1", tokens_key(settings))
        made = {new.name: book.create(new, now=now, by="demo") for new in wanted}
    finally:
        db.dispose()
    folder = settings.data_dir / SIM_FOLDER
    file, owner = folder / DEMO_TOKENS, folder.stat()
    descriptor = os.open(file.with_suffix(".new"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as opened:
        json.dump(made, opened)
        if os.geteuid() == 0:
            os.fchown(opened.fileno(), owner.st_uid, owner.st_gid)
    file.with_suffix(".new").rename(file)


# --- the parts ---


def certificate_files(settings: Settings) -> CertificateFiles | None:
    """The certificate that healer serves TLS by; None without one. Raises SettingsError."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    try:
        return CertificateFiles(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    except CertificateUnusable as error:
        raise SettingsError(f"{error}.") from None


def run_api(settings: Settings) -> None:
    """Serves the REST API and the console until stopped."""
    import uvicorn

    from healer.api.edge import tls_settings, uvicorn_settings
    from healer.bootstrap.web import web_app

    _check_user(settings)
    check_listener(settings)
    files = certificate_files(settings)
    app = web_app(settings, files.names if files else tuple)
    tune_garbage_collection()
    uvicorn.run(
        app,
        host=settings.listen.host,
        port=settings.listen.port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=3,
        server_header=False,
        **uvicorn_settings(),
        **(tls_settings(files.context()) if files else {}),
    )


def _check_user(settings: Settings) -> None:
    """What faces the network runs neither as root nor as the worker's user, who may change Slurm. Raises
    SettingsError."""
    folder = settings.audit_dir
    if os.geteuid() == 0:
        raise SettingsError(say("setup.api_as_root"))
    if folder is not None and folder.is_dir() and folder.stat().st_uid == os.geteuid():
        raise SettingsError(say("setup.api_as_worker", folder=str(folder)))


def tune_garbage_collection() -> None:
    # Objects made at the start stay to the end: a full collection over them would delay requests by 0.1 s.
    gc.collect()
    gc.freeze()
    # Nearly all objects of a request die with it: collecting after every 700, Python's default, cost 5 % of a
    # small post and 10 % of a rebuild.
    gc.set_threshold(20_000)


def run_scheduler(settings: Settings) -> None:
    from healer.bootstrap.messaging import ALIVE_S, CONNECTIONS, Switch, check_channels
    from healer.bootstrap.rehearse import duty as rehearsals
    from healer.processes.scheduler import REHEARSE_S

    rules = rulebook(settings)
    check_channels(settings, rules().notifications)
    stopped = until_stopped()
    db = engine(settings, name="healer scheduler")
    require_tables(db)
    cluster = cluster_name(settings)
    telling_db = engine(settings, name="healer messages", pool_size=CONNECTIONS)
    snapshots = PostgresSnapshots(db)
    book = ledger(settings, db, cluster)

    def sweeping() -> bool:
        return book.has_running(rules().sweeping)

    poll = Poll(slurm_reads(settings), snapshots, rules, cluster, clock=SystemClock())
    switch = Switch(settings, telling_db, cluster, rules)
    rehearsing = rehearsals(settings, db, cluster)
    duties = [
        Duty("poll", POLL_S, switch.seen(watching_sweeps(poll, sweeping))),
        Duty("alive", ALIVE_S, switch),
        *_database_duties(settings, db, telling_db, book, rules),
        *_goodput_duties(db, snapshots, cluster),
        Duty("rehearse", REHEARSE_S, rehearsing),
    ]
    run_duties(duties, stopped)
    rehearsing.close()


def _goodput_duties(db: sa.Engine, snapshots: PostgresSnapshots, cluster: str) -> list[Duty]:
    from healer.adapters.postgres.goodput_rows import PostgresGoodput
    from healer.adapters.postgres.sample_reads import PostgresSignalReads
    from healer.adapters.postgres.samples import PostgresColumns
    from healer.processes.goodput_duty import COUNT_S, FOLLOW_S, GoodputDuty

    steps = PostgresSignalReads(db, PostgresColumns(db))
    goodput = GoodputDuty(PostgresGoodput(db, cluster), steps, cluster, SystemClock())
    return [
        Duty("goodput lives", FOLLOW_S, lambda: goodput.follow(snapshots.latest(cluster))),
        Duty("goodput", COUNT_S, goodput.count),
    ]


def _database_duties(
    settings: Settings, db: sa.Engine, telling_db: sa.Engine, book: PostgresLedger, rules: Rulebook
) -> list[Duty]:
    """Duties with work in the database; the first three are woken when there is some."""
    from healer.adapters.postgres.own_health import seal_state
    from healer.adapters.postgres.retention import free_share, tidy
    from healer.adapters.postgres.token_book import accounts_ending
    from healer.adapters.postgres.tokens import enrolled_again
    from healer.bootstrap.messaging import Telling, delivery, event_duty

    cluster, clock = book.cluster, SystemClock()
    swept, beat = sweep(book, poke(settings, cluster), clock), Heartbeat(db, cluster, "scheduler")

    def again(since: datetime) -> list[tuple[datetime, str, str]]:
        return enrolled_again(db, cluster, since)

    def sweeping() -> None:
        swept()
        beat()

    messages_go, tickets_go = delivery(settings, db, lambda: rules().notifications)
    woken = [
        Duty("sweep", SWEEP_S, sweeping),
        Duty("deliver", DELIVER_S, messages_go),
        Duty("tell", DELIVER_S, Telling(settings, telling_db, cluster, rules, clock)),
    ]
    return [
        *woken_by(PendingDuties(db, cluster, clock), woken),
        Duty("tickets", TICKETS_S, tickets_go),
        Duty("seal watch", WATCH_S, seal_watch(book, lambda: seal_state(db, cluster), clock)),
        Duty("enrolment watch", ENROLMENTS_S, enrolment_watch(book, again, clock)),
        Duty("account watch", ACCOUNTS_S, account_watch(book, lambda now: accounts_ending(db, now), clock)),
        Duty("tidy", TIDY_S, lambda: tidy(db, earlier_clock(db, clock.now()), free=free_share(db))),
        *event_duty(settings, db, cluster),
    ]


def until_stopped() -> threading.Event:
    """Set by SIGTERM and SIGINT."""
    stopped = threading.Event()

    def stop(_number: int, _frame: object) -> None:
        stopped.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    log_as_json()
    return stopped


def log_as_json() -> None:
    shown_by_logging()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=logged_to(sys.stderr),
    )


def log_to_stderr() -> None:
    """Logs to standard error, as standard output is the document's. Tracebacks show no values, which may be
    secrets."""
    plain = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=shown_traceback)
    shown_by_logging()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=True),
            with_symbols,
            plain,
        ],
        logger_factory=logged_to(sys.stderr),
    )


def slurm_tree(text: str) -> Mapping[str, tuple[str, ...]]:
    """Node -> its switches, leaf first, from the output of `scontrol show topology`. Raises ValueError."""
    from healer.adapters.slurm.parse_json import NotUnderstood
    from healer.adapters.slurm.parse_text import switches

    try:
        return switches(text)
    except NotUnderstood as error:
        raise ValueError(str(error)) from error
