"""The worker, healer's privileged executor: the one part with the calls that change Slurm, the SSH key, the
BMCs' password and the site's commands.

No other part imports this (`lint-imports` checks it).
"""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from hashlib import sha256
from pathlib import Path

import sqlalchemy as sa
import structlog
from sqlalchemy.exc import SQLAlchemyError

from healer.actions import Toolbox
from healer.adapters.bmc.redfish import Redfish, RedfishSettings
from healer.adapters.commands.command_runs import Commands
from healer.adapters.nodes.ssh import Ssh, SshSettings
from healer.adapters.nodes.verbs import NodeVerbs
from healer.adapters.postgres.audit_rows import PostgresChain
from healer.adapters.postgres.evidence import PostgresEvidence
from healer.adapters.postgres.inbox import PostgresCheckpoints
from healer.adapters.postgres.ledger import PostgresLedger
from healer.adapters.postgres.loops import (
    BEAT_S,
    WITNESS_PART,
    FrozenWorkers,
    Heartbeat,
    PendingDuties,
    Waker,
    expect_witnesses,
)
from healer.adapters.postgres.migrate import require_tables
from healer.adapters.postgres.node_rows import PostgresSnapshots, snapshot_channel
from healer.adapters.postgres.roles import AUDITOR
from healer.adapters.postgres.sample_reads import PostgresReadings, PostgresSignalReads
from healer.adapters.postgres.samples import PostgresColumns
from healer.adapters.signing import (
    CHECKPOINT_FILE,
    CheckpointFile,
    Ed25519Signer,
    KeyUnreadable,
    PositionFile,
    load_signer,
)
from healer.adapters.slurm.cli_client import CliScheduler
from healer.adapters.slurm.preferred import PreferredScheduler
from healer.adapters.slurm.traced import Note, TracedScheduler
from healer.adapters.slurm.withheld import ReadOnlyScheduler
from healer.adapters.system_clock import SystemClock
from healer.adapters.witnesses import witness_at
from healer.audit import Deliveries, Sealer
from healer.bootstrap import (
    SLURM_TIMEOUT_S,
    broker_url,
    cluster_name,
    conf_environ,
    engine,
    is_own_cluster,
    ledger,
    log_as_json,
    rest_by,
    rulebook,
    sim_socket,
    slurm_conf,
    slurm_token,
)
from healer.bootstrap.traced_parts import TracedRuns, traces_of
from healer.engine.drive import Driver
from healer.engine.permission import free_slots_of
from healer.model import Ruleset
from healer.ports.lease import SENT
from healer.ports.node_exec import Bmc, NodeExec
from healer.ports.scheduling import Scheduler
from healer.ports.transactions import LedgerAway
from healer.processes.scheduler import SEAL_S, Duty, run_duties, woken_by
from healer.processes.worker import (
    LEFT_JOBS_S,
    MISSED_AT_ONCE,
    MISSED_S,
    WITNESS_S,
    SharedSealer,
    leftover_jobs,
    missed_runs,
    patient,
)
from healer.settings import CHECKED, ON, ExecutorSettings, Settings, SettingsError
from healer.text import said_by, say

log = structlog.get_logger()

#: Records of the site's commands, below the data directory.
COMMANDS_FOLDER = "commands"
#: The machine's own list of host keys.
KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")
#: Level of DCGM's tests: about two minutes.
DIAGNOSE_LEVEL = 2


def scheduler(
    settings: ExecutorSettings, *, cluster: str | None = None, note: Note | None = None
) -> PreferredScheduler:
    """Slurm, by the adapters of HEALER_SLURM_ADAPTERS in their order. With `cluster` it reaches no other.
    `note`: called after each call."""
    adapters = [slurm_adapter(name, settings) for name in settings.slurm_adapters]
    if settings.read_only == ON:
        return ReadOnlyScheduler(adapters, cluster=cluster)
    if note is not None:
        return TracedScheduler(adapters, note, cluster=cluster)
    return PreferredScheduler(adapters, cluster=cluster)


def slurm_adapter(name: str, settings: ExecutorSettings) -> Scheduler:
    if name == "rest":
        from healer.adapters.slurm.rest import RestScheduler

        return rest_by(RestScheduler, settings, slurm_token(settings), settings.slurm_user)
    if name == "pyslurm":
        from healer.adapters.slurm.pyslurm_client import PyslurmScheduler

        return PyslurmScheduler(timeout_s=SLURM_TIMEOUT_S, env=conf_environ(settings))
    if name == "sim":
        from healer.sim.sim_slurm import SimClient

        return SimClient(sim_socket(settings), timeout_s=SLURM_TIMEOUT_S)
    return CliScheduler(slurm_conf(settings), timeout_s=SLURM_TIMEOUT_S, bin_dir=settings.slurm_bin_dir)


def slurm_users(settings: ExecutorSettings) -> tuple[str, ...]:
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


def node_exec(settings: ExecutorSettings) -> NodeExec | None:
    """How playbooks work on nodes themselves; None where nothing is configured, or nothing may change."""
    if settings.read_only == ON:
        return None
    if settings.ssh_key_file is not None:
        if settings.sim_nodes_socket is not None:
            raise SettingsError(say("setup.ssh_key_file_sim"))
        return ssh_nodes(settings, settings.ssh_key_file)
    if settings.sim_nodes_socket is None:
        return None
    from healer.sim.nodes import NodesClient

    return NodesClient(settings.sim_nodes_socket, timeout_s=SLURM_TIMEOUT_S)


def ssh_nodes(settings: ExecutorSettings, key_file: Path) -> NodeVerbs:
    """healer-node over SSH."""

    chosen = SshSettings(
        key_file=key_file,
        known_hosts=settings.ssh_known_hosts or KNOWN_HOSTS,
        user=settings.ssh_user or "root",
        port=settings.ssh_port,
        config=settings.ssh_config,
        signing_key_file=settings.ssh_signing_key_file,
        cluster=settings.cluster or "",
    )
    return NodeVerbs(Ssh(chosen), level=settings.ssh_diagnose_level or DIAGNOSE_LEVEL)


def bmc(settings: ExecutorSettings) -> Bmc | None:
    """The BMCs of the nodes; None where none is configured, or nothing may change."""
    if settings.bmc_url is None or settings.read_only == ON:
        return None

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


def run_worker(settings: ExecutorSettings) -> None:
    """A Celery worker with pools of threads; each task advances a few runs."""
    from workers.app import make_app, run

    log_as_json()
    cluster, db = cluster_name(settings), engine(settings, name="healer worker", pool_size=12)
    require_tables(db)
    traces = traces_of(settings, "worker", cluster)
    traced = TracedRuns(db, traces) if traces is not None else None
    slurm = scheduler(settings, note=traced.note if traced is not None else None)
    is_confirmed = is_own_cluster(slurm, cluster)
    snapshots = PostgresSnapshots(db)
    book = ledger(settings, db, cluster, snapshots=snapshots)
    threading.Thread(target=_look_ahead, args=(db, snapshots, book), daemon=True).start()
    own_slurm = scheduler(settings, cluster=cluster)
    left = leftover_jobs(own_slurm, book, snapshots, lambda: slurm_users(settings))
    sealer, seals, deliveries = _sealing(settings, db, cluster)
    duties = [*seals, *deliveries]
    if settings.read_only != ON:
        duties.append(Duty("left jobs", LEFT_JOBS_S, left))
    rules = rulebook(settings, "worker-rules")
    tools = _toolbox(settings, db, slurm, snapshots, rules)
    advance = Driver(book, rules, tools).drive
    if traced is not None:
        advance = traced.driving(advance)

    def drive(name: str) -> None:
        """Does nothing before Slurm has confirmed its name; the sweep sends the run again."""
        nonlocal is_confirmed
        is_confirmed = is_confirmed or is_own_cluster(slurm, cluster)
        if is_confirmed:
            advance(name)

    pool = ThreadPoolExecutor(MISSED_AT_ONCE, thread_name_prefix="missed")
    duties.append(Duty("missed runs", MISSED_S, missed_runs(_due_runs(db, book, tools.now), drive, pool)))
    duties.append(Duty("pulse", BEAT_S, book.pulse))
    stopped = threading.Event()
    threading.Thread(target=run_duties, args=(duties, stopped), daemon=True).start()
    try:
        run(make_app(broker_url(settings), cluster), cluster, drive)
    finally:
        stopped.set()
        pool.shutdown(cancel_futures=True)
        with contextlib.suppress(SQLAlchemyError):
            sealer.close()
        for deliver in deliveries:
            deliver.work()


def _due_runs(db: sa.Engine, book: PostgresLedger, now: Callable[[], datetime]) -> Callable[[], list[str]]:
    """The runs that are due, to be asked for once a second: frozen workers that hold one lose it."""
    frozen = FrozenWorkers(db)

    def due_runs() -> list[str]:
        due = book.due_runs(now(), sent=SENT)
        frozen.look(due)
        return due

    return due_runs


def _toolbox(
    settings: ExecutorSettings,
    db: sa.Engine,
    slurm: Scheduler,
    snapshots: PostgresSnapshots,
    rules: Callable[[], Ruleset],
) -> Toolbox:
    cluster = cluster_name(settings)
    return Toolbox(
        now=SystemClock().now,
        scheduler=slurm,
        nodes=node_exec(settings),
        claim_rules=rules if settings.ssh_key_file is not None else None,
        bmc=bmc(settings),
        checkpoints=PostgresCheckpoints(db, cluster),
        evidence=PostgresEvidence(db),
        commands=Commands(settings.data_dir / COMMANDS_FOLDER) if settings.read_only != ON else None,
        readings=PostgresReadings(PostgresSignalReads(db, PostgresColumns(db)), cluster),
        picture=lambda: snapshots.latest(cluster),
        users=lambda: slurm_users(settings),
    )


def audit_signer(settings: Settings) -> Ed25519Signer:
    """Raises SettingsError where the key cannot be used, or its public key not be written."""
    try:
        return load_signer(settings.data_dir, settings.published_audit)
    except KeyUnreadable as error:
        raise SettingsError(said_by(error)) from None
    except OSError as error:
        setting = "HEALER_AUDIT_DIR" if settings.audit_dir else "HEALER_DATA_DIR"
        path = str(error.filename or settings.published_audit)
        why = say("setup.audit_unwritable", setting=setting, path=path, why=error.strerror)
        raise SettingsError(why) from None


def _sealing(settings: Settings, db: sa.Engine, cluster: str) -> tuple[SharedSealer, list[Duty], list[Duty]]:
    """The sealer of the audit, whose key no other part reads, and the deliveries to its witnesses."""
    file = CheckpointFile(settings.published_audit / CHECKPOINT_FILE)
    sealing_db = engine(settings, name="healer sealer", pool_size=2, acts_as=AUDITOR)
    signer = audit_signer(settings)
    sealer = SharedSealer(Sealer(PostgresChain(sealing_db), signer, checkpoint_file=file))
    witnesses = [witness_at(address) for address in settings.audit_witnesses or ()]
    expect_witnesses(db, cluster, [witness.name for witness in witnesses])
    deliveries = []
    for witness in witnesses:
        name = sha256(witness.name.encode()).hexdigest()[:12]
        position = PositionFile(settings.data_dir / "witnesses" / name)
        deliver = Deliveries(witness, file, position, Heartbeat(db, cluster, f"{WITNESS_PART}{witness.name}"))
        # Each in a thread of its own: a witness that is slow keeps neither the seal nor another waiting.
        deliveries.append(Duty(f"witness {witness.name}", WITNESS_S, patient(deliver, witness.name)))
    seal = Duty("seal", SEAL_S, sealer.seal)
    return sealer, woken_by(PendingDuties(db, cluster, SystemClock()), [seal]), deliveries


def _look_ahead(db: sa.Engine, snapshots: PostgresSnapshots, book: PostgresLedger) -> None:
    """Decodes changes of Slurm's picture ahead of the next step (5 ms for 1,250 nodes), and frees the slots
    that hold nothing any more by it."""
    cluster, clock = book.cluster, SystemClock()
    waker, beat = Waker(db, [snapshot_channel(cluster)]), Heartbeat(db, cluster, "worker")
    while True:
        beat()
        try:
            snapshots.latest(cluster)
            free_slots_of(book, clock.now())
        except (SQLAlchemyError, LedgerAway) as error:
            log.warning("slot release skipped, no snapshot", error=str(error))
        except Exception:  # a row of another version must end neither the beat nor the freeing of slots
            log.exception("releasing slots failed")
        waker.wait(10.0)
