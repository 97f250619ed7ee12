"""Chooses the adapters, and wires and starts every part."""

import gc
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import sqlalchemy as sa
import structlog
from sqlalchemy.exc import SQLAlchemyError

from healer.actions import Toolbox
from healer.adapters.commands.command_runs import Commands
from healer.adapters.nodes.verbs import NodeVerbs
from healer.adapters.postgres.audit_rows import PostgresChain
from healer.adapters.postgres.claims import LedgerParts
from healer.adapters.postgres.engine import make_engine
from healer.adapters.postgres.evidence import PostgresEvidence
from healer.adapters.postgres.inbox import PostgresCheckpoints
from healer.adapters.postgres.ledger import PostgresLedger
from healer.adapters.postgres.loops import Beat, Waiting, Waker
from healer.adapters.postgres.node_rows import SNAPSHOT_CHANNEL, PostgresSnapshots
from healer.adapters.postgres.sample_reads import PostgresReadings, PostgresSignalReads
from healer.adapters.postgres.samples import PostgresColumns
from healer.adapters.signing import CHECKPOINT_FILE, CheckpointFile, load_signer, trusted_keys
from healer.adapters.slurm.cli_client import CliScheduler
from healer.adapters.slurm.preferred import OtherCluster, PreferredScheduler
from healer.adapters.slurm.rest_token import CommandToken, FileToken
from healer.adapters.system_clock import SystemClock
from healer.audit import Sealer, Trail
from healer.engine.drive import Driver
from healer.model import Role, Ruleset
from healer.observations.slurm_poll import POLL_S
from healer.ports.callers import NewToken
from healer.ports.node_exec import Bmc, NodeExec
from healer.ports.scheduling import Scheduler, SchedulerError
from healer.ports.transactions import Poke
from healer.processes.rulebook import KeptRules, Rulebook
from healer.processes.scheduler import (
    DELIVER_S,
    LEFT_JOBS_S,
    SEAL_S,
    SWEEP_S,
    TIDY_S,
    Duty,
    Poll,
    leftover_jobs,
    run_duties,
    sweep,
    woken_by,
)
from healer.rulebook.ruleset import RulesInvalid
from healer.rulebook.ruleset import load as load_rules
from healer.settings import CHECKED, Settings, SettingsError, guard_overrides, rules_folder

log = structlog.get_logger()

#: Timeout of a call that changes Slurm: shorter than the lease's margin for effects.
SLURM_TIMEOUT_S = 4.0
#: Records of the site's commands, below the data directory.
COMMANDS_FOLDER = "commands"
SIGN_IN_LASTS = timedelta(minutes=10)
#: The machine's own list of host keys.
KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")
#: Level of DCGM's tests: about two minutes.
DIAGNOSE_LEVEL = 2


def database_url(settings: Settings) -> str:
    """The database of this installation: as set, else the embedded one of a running `healer up`."""
    if settings.database_url is not None:
        return settings.database_url
    from healer.embedded.postgres import forget_others
    from healer.embedded.running import find

    forget_others(os.environ)
    return find(settings.data_dir).database_url


def broker_url(settings: Settings) -> str:
    if settings.redis_url is not None:
        return settings.redis_url
    from healer.embedded.running import find

    return find(settings.data_dir).broker_url


def engine(settings: Settings, *, name: str = "healer", pool_size: int = 8) -> sa.Engine:
    return make_engine(database_url(settings), name=name, pool_size=pool_size)


def scheduler(settings: Settings, *, cluster: str | None = None) -> PreferredScheduler:
    """Slurm, by the adapters of HEALER_SLURM_ADAPTERS in their order. With `cluster` it reaches no other."""
    adapters = [_adapter(name, settings) for name in settings.slurm_adapters]
    return PreferredScheduler(adapters, cluster=cluster)


def _adapter(name: str, settings: Settings) -> Scheduler:
    if name == "rest":
        return _rest(settings)
    if name == "pyslurm":
        from healer.adapters.slurm.pyslurm_client import PyslurmScheduler

        env = {"SLURM_CONF": str(settings.slurm_conf)} if settings.slurm_conf else None
        return PyslurmScheduler(timeout_s=SLURM_TIMEOUT_S, env=env)
    if name == "sim":
        if settings.sim_socket is None:
            raise SettingsError("HEALER_SIM_SOCKET must name the socket of the simulated Slurm.")
        from healer.sim.sim_slurm import SimClient

        return SimClient(settings.sim_socket, timeout_s=SLURM_TIMEOUT_S)
    conf = str(settings.slurm_conf) if settings.slurm_conf else None
    return CliScheduler(conf, timeout_s=SLURM_TIMEOUT_S, bin_dir=settings.slurm_bin_dir)


def _rest(settings: Settings) -> Scheduler:
    from healer.adapters.slurm.rest import RestScheduler

    if settings.slurm_rest_url is None:
        raise SettingsError("HEALER_SLURM_REST_URL must name slurmrestd's address.")
    try:
        return RestScheduler(
            settings.slurm_rest_url,
            user=settings.slurm_user,
            token=slurm_token(settings),
            timeout_s=SLURM_TIMEOUT_S,
            cluster=settings.cluster,
        )
    except ValueError as error:
        raise SettingsError(f"HEALER_SLURM_REST_URL or HEALER_SLURM_USER is wrong: {error}.") from error


def slurm_token(settings: Settings) -> FileToken | CommandToken:
    """Where slurmrestd's token comes from."""
    if settings.slurm_token_command is not None:
        return CommandToken(
            settings.slurm_token_command, timeout_s=SLURM_TIMEOUT_S, slurm_conf=settings.slurm_conf
        )
    if settings.slurm_token_file is not None:
        return FileToken(settings.slurm_token_file)
    raise SettingsError("HEALER_SLURM_TOKEN_FILE must name the file with slurmrestd's token.")


def slurm_users(settings: Settings) -> tuple[str, ...]:
    """The users as whom healer's adapters call Slurm: it reserves nodes under test for them.

    Raises SchedulerError while a token cannot be read.
    """
    from healer.adapters.slurm.commands import own_account
    from healer.adapters.slurm.rest_token import user_of

    found = []
    for name in settings.slurm_adapters:
        if name == "rest":
            now = SystemClock().now()
            found.append(settings.slurm_user or user_of(slurm_token(settings).current(now)))
        else:
            found.append("root" if name == "sim" else own_account())
    return tuple(dict.fromkeys(user for user in found if user))


def node_exec(settings: Settings) -> NodeExec | None:
    """How playbooks work on nodes themselves; None where nothing is configured."""
    if settings.ssh_key_file is not None:
        if settings.sim_nodes_socket is not None:
            raise SettingsError("HEALER_SSH_KEY_FILE and HEALER_SIM_NODES_SOCKET are both set: keep one.")
        return ssh_nodes(settings, settings.ssh_key_file)
    if settings.sim_nodes_socket is None:
        return None
    from healer.sim.nodes import NodesClient

    return NodesClient(settings.sim_nodes_socket, timeout_s=SLURM_TIMEOUT_S)


def ssh_nodes(settings: Settings, key_file: Path) -> NodeVerbs:
    """healer-node over SSH."""
    from healer.adapters.nodes.ssh import Ssh, SshSettings

    chosen = SshSettings(
        key_file=key_file,
        known_hosts=settings.ssh_known_hosts or KNOWN_HOSTS,
        user=settings.ssh_user or "root",
        port=settings.ssh_port,
        config=settings.ssh_config,
    )
    return NodeVerbs(Ssh(chosen), level=settings.ssh_diagnose_level or DIAGNOSE_LEVEL)


def bmc(settings: Settings) -> Bmc | None:
    """The BMCs of the nodes; None where none is configured."""
    if settings.bmc_url is None:
        return None
    from healer.adapters.bmc.redfish import Redfish, RedfishSettings

    chosen = RedfishSettings(
        url=settings.bmc_url,
        user=settings.bmc_user or "",
        password=settings.bmc_password or "",
        ca_file=settings.bmc_ca_file,
        check_tls=settings.bmc_tls == CHECKED,
        system=settings.bmc_system,
    )
    try:
        return Redfish(chosen)
    except ValueError as error:
        raise SettingsError(f"{error}.") from None


def cluster_name(settings: Settings) -> str:
    """HEALER_CLUSTER, else what Slurm calls itself."""
    if settings.cluster is not None:
        return settings.cluster
    try:
        return scheduler(settings).cluster_name()
    except SchedulerError as error:
        raise SettingsError(f"HEALER_CLUSTER is not set and Slurm does not tell its name: {error}") from error


def is_own_cluster(slurm: Scheduler, cluster: str) -> bool:
    """True if Slurm says that it is this cluster, False while it does not answer.

    Raises SettingsError for another cluster: nodes of the same name would be drained there.
    """
    try:
        name = slurm.cluster_name()
    except OtherCluster as error:
        raise SettingsError(str(error)) from error
    except SchedulerError as error:
        log.warning("slurm does not tell its name", error=str(error))
        return False
    if name != cluster:
        raise SettingsError(
            f"Slurm on this machine is the cluster {name}, not {cluster}: mend SLURM_CONF or HEALER_CLUSTER."
        )
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


def rulebook(settings: Settings) -> Rulebook:
    """Raises SettingsError if neither the files nor the last proven rules can be used."""
    where = rules_folder(settings)

    def load(folder: Path, prove: bool) -> Ruleset:
        return load_site_rules(folder, settings, prove=prove)

    try:
        return Rulebook(where, load, KeptRules(settings.data_dir / "rules"))
    except RulesInvalid as error:
        first, *others = error.problems
        more = f", and {len(others)} more" if others else ""
        why = f"`healer rules check` lists what is wrong: {first}{more}"
        if not where.is_dir():
            why = "it is no folder"
    except OSError as error:
        why = f"{error.filename}: {error.strerror}"
    raise SettingsError(f"the rules in {where} cannot be used (HEALER_RULES_DIR chooses others); {why}")


def poke(settings: Settings, cluster: str) -> Poke:
    """Returns a function that has the workers drive runs. A lost message is harmless: the sweep finds due
    runs."""
    from workers.app import make_app, send

    app = make_app(broker_url(settings), cluster)

    def poked(runs: Sequence[str]) -> None:
        try:
            send(app, runs)
        except Exception as error:
            log.warning("the broker took no message; the sweep will find the runs", error=str(error))

    return poked


def audit_trail(settings: Settings, db: sa.Engine | None = None) -> Trail:
    """The audit of this installation; without `db` for `healer audit`."""
    db = db or engine(settings, name="healer audit", pool_size=2)
    file = CheckpointFile(settings.data_dir / CHECKPOINT_FILE)
    return Trail(PostgresChain(db), lambda: trusted_keys(settings.data_dir), file)


def has_sink(settings: Settings) -> bool:
    return bool(settings.notify_webhook_url or settings.ticket_webhook_url or settings.tickets)


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
            has_sink=has_sink(settings),
        ),
        connection,
    )


def sign_in_link(database: str, url: str, *, name: str) -> str:
    """A URL that signs in an administrator, once, within ten minutes."""
    from healer.adapters.postgres.tokens import PostgresTokens

    now = SystemClock().now()
    db = make_engine(database, name="healer sign-in", pool_size=1)
    try:
        token = PostgresTokens(db, "").create(
            NewToken(role=Role.admin, name=name, once=True, expires_at=now + SIGN_IN_LASTS),
            now=now,
            by="healer",
        )
    finally:
        db.dispose()
    return f"{url}/sign-in?token={token}"


# --- the parts ---


def run_api(settings: Settings) -> None:
    """Serves the REST API and the console until stopped."""
    import uvicorn

    from healer.api.edge import uvicorn_settings
    from healer.bootstrap.web import web_app

    app = web_app(settings)
    collect_less()
    uvicorn.run(
        app,
        host=settings.listen.host,
        port=settings.listen.port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=3,
        server_header=False,
        **uvicorn_settings(),
    )


def collect_less() -> None:
    # Objects made at the start stay to the end: a full collection over them would delay requests by 0.1 s.
    gc.collect()
    gc.freeze()
    # Nearly all objects of a request die with it: collecting after every 700, Python's default, cost 5 % of a
    # small post and 10 % of a rebuild.
    gc.set_threshold(20_000)


def run_scheduler(settings: Settings) -> None:
    from healer.bootstrap.messaging import ALIVE_S, CONNECTIONS, Switch, check_channels
    from healer.bootstrap.models import duty as refits
    from healer.bootstrap.rehearse import duty as rehearsals
    from healer.processes.scheduler import REFIT_S, REHEARSE_S

    rules = rulebook(settings)
    check_channels(settings, rules().notifications)
    stopped = until_stopped()
    db = engine(settings, name="healer scheduler")
    cluster = cluster_name(settings)
    telling_db = engine(settings, name="healer messages", pool_size=CONNECTIONS)
    snapshots = PostgresSnapshots(db)
    checkpoints = CheckpointFile(settings.data_dir / CHECKPOINT_FILE)
    sealer = Sealer(PostgresChain(db), load_signer(settings.data_dir), checkpoint_file=checkpoints)
    poll = Poll(scheduler(settings), snapshots, rules, cluster, clock=SystemClock())
    switch = Switch(settings, telling_db, cluster, rules)
    slurm, book = scheduler(settings, cluster=cluster), ledger(settings, db, cluster)
    rehearsing, refitting = rehearsals(settings, db, cluster), refits(cluster)
    duties = [
        Duty("poll", POLL_S, switch.seen(poll)),
        Duty("alive", ALIVE_S, switch),
        Duty("left jobs", LEFT_JOBS_S, leftover_jobs(slurm, book, snapshots, lambda: slurm_users(settings))),
        *_database_duties(settings, db, telling_db, book, rules, sealer),
        Duty("rehearse", REHEARSE_S, rehearsing),
        Duty("refit", REFIT_S, refitting),
    ]
    run_duties(duties, stopped)
    rehearsing.close()
    refitting.close()
    sealer.close()


def _database_duties(
    settings: Settings,
    db: sa.Engine,
    telling_db: sa.Engine,
    book: PostgresLedger,
    rules: Rulebook,
    sealer: Sealer,
) -> list[Duty]:
    """Duties with work in the database; all but the last two are woken when there is some."""
    from healer.adapters.postgres.retention import free_share, tidy
    from healer.bootstrap.messaging import Telling, delivery, event_duty

    cluster, clock = book.cluster, SystemClock()
    swept, beat = sweep(book, poke(settings, cluster), clock), Beat(db, cluster, "scheduler")

    def sweeping() -> None:
        swept()
        beat()

    def seal() -> None:
        sealer.seal_once()

    woken = [
        Duty("sweep", SWEEP_S, sweeping),
        Duty("seal", SEAL_S, seal),
        Duty("deliver", DELIVER_S, delivery(settings, db, lambda: rules().notifications.console_url)),
        Duty("tell", DELIVER_S, Telling(settings, telling_db, cluster, rules, clock)),
    ]
    return [
        *woken_by(Waiting(db, cluster, clock), woken),
        Duty("tidy", TIDY_S, lambda: tidy(db, clock.now(), free=free_share(db))),
        *event_duty(settings, db, cluster),
    ]


def run_worker(settings: Settings) -> None:
    """A Celery worker with pools of threads; each task advances a few runs."""
    from workers.app import make_app, run

    _log_as_json()
    cluster, slurm = cluster_name(settings), scheduler(settings)
    is_confirmed = is_own_cluster(slurm, cluster)
    db = engine(settings, name="healer worker", pool_size=12)
    snapshots = PostgresSnapshots(db)
    threading.Thread(target=_look_ahead, args=(db, snapshots, cluster), daemon=True).start()
    tools = Toolbox(
        now=SystemClock().now,
        scheduler=slurm,
        nodes=node_exec(settings),
        bmc=bmc(settings),
        checkpoints=PostgresCheckpoints(db, cluster),
        evidence=PostgresEvidence(db),
        commands=Commands(settings.data_dir / COMMANDS_FOLDER),
        readings=PostgresReadings(PostgresSignalReads(db, PostgresColumns(db)), cluster),
        picture=lambda: snapshots.latest(cluster),
        users=lambda: slurm_users(settings),
    )
    driver = Driver(ledger(settings, db, cluster, snapshots=snapshots), rulebook(settings), tools)

    def drive(name: str) -> None:
        """Does nothing before Slurm has confirmed its name; the sweep sends the run again."""
        nonlocal is_confirmed
        is_confirmed = is_confirmed or is_own_cluster(slurm, cluster)
        if is_confirmed:
            driver.drive(name)

    run(make_app(broker_url(settings), cluster), cluster, drive)


def _look_ahead(db: sa.Engine, snapshots: PostgresSnapshots, cluster: str) -> None:
    """Decodes changes of Slurm's picture ahead of the next step: 5 ms for 1,250 nodes."""
    waker, beat = Waker(db, [SNAPSHOT_CHANNEL]), Beat(db, cluster, "worker")
    while True:
        beat()
        try:
            snapshots.latest(cluster)
        except SQLAlchemyError as error:
            log.warning("no picture ahead", error=str(error))
        waker.wait(10.0)


def until_stopped() -> threading.Event:
    """Set by SIGTERM and SIGINT."""
    stopped = threading.Event()

    def stop(_number: int, _frame: object) -> None:
        stopped.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    _log_as_json()
    return stopped


def _log_as_json() -> None:
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def log_to_stderr() -> None:
    """Logs to standard error, as standard output is the document's. Tracebacks show no values, which may be
    secrets."""
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=True),
            plain,
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def slurm_tree(text: str) -> Mapping[str, tuple[str, ...]]:
    """Node -> its switches, leaf first, from the output of `scontrol show topology`. Raises ValueError."""
    from healer.adapters.slurm.parse_json import NotUnderstood
    from healer.adapters.slurm.parse_text import switches

    try:
        return switches(text)
    except NotUnderstood as error:
        raise ValueError(str(error)) from error
