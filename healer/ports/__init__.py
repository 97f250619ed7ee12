"""What healer needs from outside, as Protocols over `healer.model` alone.

Adapters of equal rank implement them: the real ones in `healer.adapters`, the simulated ones in `healer.sim`.
Both pass the same contract suites in `tests/contract`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from healer.model import (
    AuditRecord,
    Breaker,
    Bundle,
    Column,
    Command,
    CommandSeen,
    Controller,
    Decision,
    Diagnosis,
    EvidenceFile,
    FabricState,
    FaultBurst,
    Finding,
    Forecast,
    GateFacts,
    Incident,
    IncidentVerdict,
    Inventory,
    JobCheckpoint,
    JobOnNode,
    JobStacks,
    LastHeard,
    LogEntry,
    Loss,
    MemoryState,
    Message,
    NodeHistory,
    Observation,
    Permit,
    Reference,
    RemedyUse,
    RequeueUse,
    Run,
    RunState,
    Sender,
    Slot,
    SlurmSnapshot,
    Sweeps,
    Ticket,
    Trial,
    Veto,
)
from healer.ports.bmc import Bmc, BmcError, BmcUnavailable
from healer.ports.slurm import (
    Nodes,
    NotAvailable,
    Scheduler,
    SchedulerError,
    SchedulerRefused,
    SchedulerUnavailable,
    UnknownNode,
    whole_job,
    whole_jobs,
)

if TYPE_CHECKING:
    from healer.model.samples import Report, StepBatch

T = TypeVar("T")

__all__ = [
    "AlreadyRequeued",
    "Bmc",
    "BmcError",
    "BmcUnavailable",
    "Checkpoints",
    "Clock",
    "ColumnBook",
    "CommandFailed",
    "DeliveryFailed",
    "Devices",
    "EvidenceBook",
    "EvidenceBroken",
    "GateTx",
    "Inbox",
    "Json",
    "LeaseLost",
    "Ledger",
    "LedgerAway",
    "NodeError",
    "NodeExec",
    "NodeUnavailable",
    "Nodes",
    "NotAvailable",
    "Notifier",
    "Poke",
    "Readings",
    "RunClaim",
    "Samples",
    "Scheduler",
    "SchedulerError",
    "SchedulerRefused",
    "SchedulerUnavailable",
    "SignalReads",
    "SiteCommands",
    "Snapshots",
    "Spool",
    "SpoolState",
    "Spooled",
    "Tickets",
    "TooManyColumns",
    "UnknownNode",
    "WalkTx",
    "whole_job",
    "whole_jobs",
]


class Clock(Protocol):
    def now(self) -> datetime:
        """The time, UTC and aware."""
        ...


# --- what leaves healer for people -----------------------------------------------------------------------


class DeliveryFailed(Exception):
    """A sink did not take it; `retry_after_s` if it said so. `refused`: it was asked, and says that it never
    will (4xx)."""

    def __init__(self, text: str, retry_after_s: float | None = None, *, refused: bool = False) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s
        self.refused = refused


class Notifier(Protocol):
    def send(self, message: Message) -> None:
        """Raises DeliveryFailed. The same `message.id` again is the same message."""
        ...


class Tickets(Protocol):
    """Where repairs are tracked. The same delivery again is nothing: a crash may have followed the first."""

    def tell(self, ticket: Ticket) -> str:
        """Finds the ticket with this key, or opens it; then notes, closes or opens it again, as `stage` says.

        Returns the sink's own name for it. Raises DeliveryFailed.
        """
        ...

    def check(self) -> str:
        """What the sink says of itself and of what healer may do there. Raises DeliveryFailed."""
        ...


# --- the ledger: PostgreSQL, or memory -----------------------------------------------------------------


class WalkTx(Protocol):
    """The walk's one transaction. All of it becomes true together, or none."""

    def open_incidents(self) -> list[Incident]:
        """Every incident not resolved, and those resolved in the last 5 minutes (for the storm count)."""
        ...

    def incident(self, name: str) -> Incident | None: ...

    def merged_into(self, name: str) -> list[Incident]:
        """What was merged into this incident, the oldest first."""
        ...

    def active_runs(self) -> list[Run]:
        """Runs that have not ended."""
        ...

    def has_active_runs(self) -> bool: ...

    def run(self, name: str) -> Run | None: ...

    def is_returning(self, run: str) -> bool:
        """The run was granted a return of its node: that the node is in service is its doing."""
        ...

    def lock_gate(self) -> GateFacts:
        """Takes the gate's lock until the end of the transaction and reads all that guards may look at."""
        ...

    def sweeps(self, playbooks: Sequence[str], since: datetime) -> Sweeps:
        """What is in sweep by these playbooks, which nodes are ill, and what was tested since then."""
        ...

    def spoken_of(self, batch: Sequence[Observation]) -> set[str]:
        """Incidents that a command speaks of which is committed and not in this batch.

        Asked under the gate's lock: such an incident is decided by the next walk, which knows the news.
        """
        ...

    def save_incident(self, incident: Incident) -> None: ...
    def add_findings(self, incident: str, findings: Sequence[Finding]) -> None: ...
    def add_verdict(self, incident: str, verdict: IncidentVerdict, *, at: datetime) -> None:
        """What healer holds true of a saved incident from now on."""
        ...

    def newest_durable(self, job: str) -> JobCheckpoint | None:
        """What a requeue of the job could go back to."""
        ...

    def save_bursts(self, bursts: Sequence[FaultBurst]) -> None:
        """What parts have had; a burst that goes on takes the place of what was known of it."""
        ...

    def forecasts(self, since: datetime) -> list[Forecast]:
        """Those that are open, and those that ended at `since` or later; the oldest first."""
        ...

    def save_forecast(self, forecast: Forecast) -> None:
        """In place of what was known of it."""
        ...

    def save_inventories(self, inventories: Sequence[Inventory]) -> None:
        """What these nodes told of themselves, in place of what was known."""
        ...

    def references(self) -> list[Reference]:
        """What nodes of each kind should be."""
        ...

    def add_decision(self, decision: Decision) -> None: ...
    def create_run(self, run: Run) -> None: ...
    def set_run_state(
        self, run: str, state: RunState, *, why: str, at: datetime, question: str | None = None, **change: Any
    ) -> Run:
        """The run in its new state, with other fields changed; as it is, where it has ended. NodeTaken when
        it would run beside another one on its node."""
        ...

    def grant_slot(self, slot: Slot) -> None: ...
    def release_slot(self, node: str, *, at: datetime, why: str) -> None: ...

    def slot_of(self, node: str) -> Slot | None:
        """As it is held by now: runs note a drain and free their slots without the gate's lock."""
        ...

    def save_breaker(self, breaker: Breaker) -> None: ...
    def add_veto(self, veto: Veto) -> None: ...

    def queue_message(self, message: Message | Ticket) -> None:
        """A page, note or ticket that leaves after the commit; the same id again is nothing."""
        ...

    def has_ticket(self, incident: str) -> bool:
        """One of it was filed, delivered or not."""
        ...

    def steps_of(self, incident: Incident) -> list[LogEntry]:
        """The logs of the runs for it, and of those on its node since it opened, oldest first; of none that
        only looked (shadow)."""
        ...

    def audit(self, record: AuditRecord) -> None: ...

    def consume(self, observations: Sequence[Observation]) -> None:
        """Marks their inbox rows as walked. Rows without an `inbox_id` are nothing to do."""
        ...


class RunClaim(Protocol):
    """A run held by one worker: session lock, lease and epoch.

    What needs nobody's attention before the run goes on (`keep`, `tell`, `queue_message`, `release_slot`) is
    stored with what is written next, in that order and in that transaction; a worker that dies before has
    done nothing of it. `write`, `set_state` and `gate` are one transaction each. They, and whatever reads,
    raise LeaseLost when another worker has claimed the run since, or the lease is over.
    """

    run: Run

    def log(self) -> list[LogEntry]:
        """The whole log, oldest first."""
        ...

    def incident(self) -> Incident | None: ...

    def known_bad(self) -> set[str]:
        """Nodes that are surely unusable and that a guard keeps in service (law 2), now."""
        ...

    def history(self, node: str, since: datetime) -> NodeHistory:
        """What healer keeps of a node: its incidents that were open at `since` or later."""
        ...

    def permits(self) -> Sequence[Permit]:
        """Hooks that were permitted to fail in the last 24 h."""
        ...

    def references(self) -> Sequence[Reference]:
        """What nodes of each kind of the run's cluster should be."""
        ...

    def facts(self, playbooks: Sequence[str]) -> GateFacts:
        """What the gate knows now, without its lock, with what is in sweep by these playbooks: for looking
        whether something may stay that takes no capacity."""
        ...

    def paused(self) -> bool:
        """Whether any pause stands for this cluster, now; whom it concerns the gate tells."""
        ...

    def fence(self) -> bool:
        """Raises LeaseLost if the run is another's. True: it had to be proven anew.

        Proves a claim that has aged: what was read before the effect may have taken long, and what was looked
        at before that (a pause) may have changed.
        """
        ...

    def gate(self, judge: "Callable[[GateTx], T]") -> T:
        """A transaction with the gate's lock: judge a removing step and log it in one commit. What `judge`
        answers, once that is stored; where it fails nothing is.

        `judge` asks nothing but `tx`, and leaves no trace elsewhere: others wait for it, and it may be called
        again after its transaction was undone.
        """
        ...

    def write(
        self,
        entry: LogEntry,
        *,
        audit: AuditRecord | None = None,
        drained: RemedyUse | None = None,
    ) -> None:
        """`drained`: our drain was read back; the slot and the remedy that begins are noted with the line."""
        ...

    def keep(self, entry: LogEntry) -> None:
        """A line of a step that only looked: who dies before it is stored looks again."""
        ...

    def set_state(
        self,
        state: RunState,
        *,
        why: str,
        wake_at: datetime | None = None,
        question: str | None = None,
        approve_until: datetime | None = None,
        tell: Command | None = None,
    ) -> None:
        """`tell` reaches the detector's inbox together with the state, or not at all. Where an approval is
        waited for, people are told after `approve_until` that none came."""
        ...

    def tell(self, command: Command) -> None:
        """Puts a command into the detector's inbox."""
        ...

    def queue_message(self, message: Message | Ticket) -> None: ...
    def release_slot(self, node: str, *, why: str) -> None: ...


class LedgerAway(Exception):
    """The database does not answer: nothing is known of what was about to be written. Try again later."""


class LeaseLost(Exception):
    """This worker's claim is over; it must stop at once and touch nothing."""


class AlreadyRequeued(Exception):
    """The restart of this life of the job is granted to another run: `run`."""

    def __init__(self, run: str) -> None:
        super().__init__(run)
        self.run = run


class GateTx(Protocol):
    """One transaction under the gate's lock."""

    facts: GateFacts

    def sweeps(self, playbooks: Sequence[str], since: datetime) -> Sweeps:
        """As of `WalkTx`."""
        ...

    def add_decision(self, decision: Decision) -> None: ...
    def write(self, entry: LogEntry) -> None: ...
    def grant_slot(self, slot: Slot) -> None: ...
    def release_slot(self, node: str, *, at: datetime, why: str) -> None: ...
    def add_requeue(self, use: RequeueUse) -> None:
        """Raises AlreadyRequeued while another run that has not ended holds it; the transaction goes on.

        A run that ended without it leaves the grant to the next: the restart count fences a second requeue.
        """
        ...

    def drop_requeue(self, job: str, restarts: int) -> None:
        """What was granted to this run came to nothing: it counts no more, and another run may be granted it.

        Nothing where it was not granted to this run.
        """
        ...

    def add_remedy(self, use: RemedyUse) -> None:
        """One more try of this remedy, for the caps on it."""
        ...

    def save_breaker(self, breaker: Breaker) -> None: ...
    def audit(self, record: AuditRecord) -> None: ...


class Ledger(Protocol):
    """The one truth. One value per cluster."""

    cluster: str

    def transaction(self) -> AbstractContextManager[WalkTx]: ...
    def claim(self, run: str) -> AbstractContextManager[RunClaim | None]:
        """None when somebody else holds the run, or it has ended."""
        ...

    def bursts(self, since: datetime) -> list[FaultBurst]:
        """What parts have had since then, the oldest first: for a detector that starts."""
        ...

    def inventories(self) -> list[Inventory]:
        """What nodes told of themselves last: for a detector that starts."""
        ...

    def note_texts(self, texts: Mapping[str, str], first_runs: int, now: datetime) -> list[Trial]:
        """What the rules and playbooks of now say (`Ruleset.texts`). The first ones that a cluster has are
        taken as they are; what is new or changed later is on record, and its first runs wait for a person.
        Answers with all that still has runs left, counted anew."""
        ...

    def due_runs(self, now: datetime, *, sent: timedelta = timedelta(0)) -> list[str]:
        """Runs to advance now: new, woken, or abandoned by a dead worker. Without new ones that began no
        longer than `sent` ago: whoever began them has told the workers."""
        ...


class Snapshots(Protocol):
    """Slurm's latest picture, written by the poller, read by the detector, the API and the gate."""

    def put(self, snapshot: SlurmSnapshot) -> None: ...
    def latest(self, cluster: str) -> SlurmSnapshot | None: ...

    def put_controller(self, controller: Controller) -> None:
        """How slurmctld does: beside the picture, because its figures change with every poll."""
        ...

    def controller(self, cluster: str) -> Controller | None: ...


class Inbox(Protocol):
    """Where accepted signals lie until the walk takes them. Accepted means stored."""

    def add(self, observations: Sequence[Observation]) -> int:
        """Stores what is new in one durable commit and returns its number; the rest are duplicates."""
        ...

    def unconsumed(self, limit: int) -> list[Observation]:
        """Oldest first, of this cluster."""
        ...

    def since(self, moment: datetime) -> Iterable[Observation]:
        """Consumed or not, by arrival: to rebuild the picture after a restart."""
        ...

    def alerts(self, moment: datetime) -> Iterable[Observation]:
        """Of kind `alert` alone, since an earlier moment: they stand for hours."""
        ...


# --- samples ---------------------------------------------------------------------------------------------


class LossBook(Protocol):
    """What was sent and is not stored. `add` raises `healer.api.services.Unavailable`, and adds nothing."""

    def add(self, told: Sequence[Loss]) -> None:
        """Adds the counts to those of the same cluster, source, reason and sender."""
        ...

    def losses(self, clusters: Sequence[str] | None, limit: int) -> list[Loss]:
        """The latest first; None: of all clusters."""
        ...


class SenderBook(Protocol):
    """Who sends what. `add` raises `healer.api.services.Unavailable`, and adds nothing."""

    def add(self, told: Sequence[Sender]) -> None:
        """Adds to what is known of the same cluster, token's name and route."""
        ...

    def senders(self, clusters: Sequence[str] | None, limit: int, *, node: str | None = None) -> list[Sender]:
        """The latest first; None: of all clusters."""
        ...


class Spooled(NamedTuple):
    """One accepted thing on its way to the store. `kind` is one byte, `body` what that kind's store reads."""

    kind: bytes
    body: bytes


class SpoolState(NamedTuple):
    """What waits on disk. `since`: when the oldest of it began to; None: nothing waits."""

    entries: int
    size_bytes: int
    limit_bytes: int
    since: datetime | None


class Spool(Protocol):
    """Accepted signals on disk while the database is away, in their order. Thread-safe.

    One thread alone calls `oldest`, `drop_oldest` and `adopt`.
    """

    @property
    def pending(self) -> bool: ...

    def state(self) -> SpoolState: ...

    def append(self, records: Sequence[Spooled]) -> None:
        """All of them, safe on disk when this returns; or none, and `healer.api.services.NoRoom`."""
        ...

    def oldest(self, most: int, size: int) -> list[Spooled]:
        """The oldest records: at most `most`, and at most `size` bytes but for the first one."""
        ...

    def drop_oldest(self, records: Sequence[Spooled]) -> None:
        """What `oldest` gave last is stored."""
        ...

    def set_aside(self, records: Sequence[Spooled]) -> None:
        """Keeps what this version cannot read for one that can, off the queue. NoRoom."""
        ...

    def take_lost(self) -> list[tuple[int, str]]:
        """What could not be read since the last call: (entries, at least; a sentence)."""
        ...

    def adopt(self) -> int:
        """Takes over what processes left that died; the number of records."""
        ...

    def close(self) -> None:
        """What is left stays for the next process."""
        ...


class ColumnBook(Protocol):
    """Each series of a node has a number, the same in all processes and for all nodes: interned once."""

    def ids(self, columns: Sequence[Column]) -> list[int]:
        """The number of each, given durably to those that have none. At most 100,000 in all: then raises
        `TooManyColumns`, and nothing is numbered."""
        ...

    def columns(self, ids: Iterable[int]) -> dict[int, Column]:
        """What these numbers stand for; a number that nobody gave is left out."""
        ...


class TrendBook(Protocol):
    """Two weeks of what `rules/forecasts.yaml` follows, packed by rule: what a restart needs."""

    def read(self) -> dict[str, bytes]: ...

    def write(self, packed: Mapping[str, bytes], now: datetime) -> None:
        """In place of what was kept of these rules."""
        ...


class TooManyColumns(Exception):
    """The book is full: somebody sends names that change all the time."""


class Samples(Protocol):
    """Accepted samples, in the order in which they became visible; kept for the longest window and a bit."""

    def put(self, reports: Sequence["Report"]) -> None:
        """Committed when it returns; the last moments may be lost at a power loss, never at a crash."""
        ...

    def put_steps(self, batches: Sequence["StepBatch"]) -> None:
        """Committed with fsync when it returns."""
        ...

    def new(self) -> "tuple[list[Report], list[StepBatch]]":
        """What became visible since the last call, each exactly once, by arrival; at the first call what
        arrived in the last 15 minutes. Of the caller's cluster only.

        An answer is bounded (15 minutes of a large cluster are half a gigabyte): where there is more, the
        next call goes on.
        """
        ...


class Devices(NamedTuple):
    """`reports` by device, without its mark, in the page's order; `columns`: what their numbers stand for.
    `more`: the page ends before the last device."""

    reports: "dict[str, list[Report]]"
    columns: "dict[int, Column]"
    more: bool


class SignalReads(Protocol):
    """Samples of one node or job, for pages; what is still kept of them (about an hour), oldest first."""

    def node_signals(
        self, cluster: str, node: str, since: datetime
    ) -> "tuple[list[Report], dict[int, Column]]":
        """What arrived after `since`, and what the numbers in it stand for. A device bears its mark."""
        ...

    def devices(self, cluster: str, since: datetime, *, limit: int, after: str = "") -> "Devices":
        """Those that were heard within the hour, by name behind `after`, each with its newest reports after
        `since`, a few of them, oldest first."""
        ...

    def job_steps(self, cluster: str, job: str, since: datetime) -> "list[StepBatch]": ...
    def heard(self, cluster: str, node: str, since: datetime) -> LastHeard:
        """When it last spoke, after `since`."""
        ...

    def alerts(self, cluster: str, node: str, since: datetime) -> list[Observation]:
        """What other systems' alerting told of it after `since`, oldest first."""
        ...


class Readings(Protocol):
    """What was measured of late (the last hour), for checks. One value per cluster."""

    def counters(self, subject: str, since: datetime) -> dict[Column, list[tuple[datetime, float]]]:
        """Counters of a node, or of a device (`@` and its name), that arrived after `since`, by series: when
        each value arrived, oldest first. Raises LedgerAway."""
        ...


class Checkpoints(Protocol):
    """What jobs can go back to. One value per cluster."""

    def newest_durable(self, job: str) -> JobCheckpoint | None:
        """Of the job's latest life, the highest step; None when it told none. Raises LedgerAway."""
        ...


# --- nodes -----------------------------------------------------------------------------------------------


class NodeError(Exception):
    """The node refused or could not be reached. The text is one sentence for people."""


class NodeUnavailable(NodeError):
    """No answer, or none in time: it is unknown whether anything happened. Read back before any retry.

    `sent` is False where it is certain that nothing reached the node.
    """

    def __init__(self, text: str, *, sent: bool = True) -> None:
        super().__init__(text)
        self.sent = sent


class NodeExec(Protocol):
    """What healer may do on a node itself. Every call is bounded in time; callers read back."""

    name: str

    def restart_service(self, node: str, service: str) -> None: ...

    def service_active(self, node: str, service: str) -> bool: ...

    def fabric_state(self, node: str) -> FabricState:
        """The NVLink fabric as nvidia-smi on the node tells it."""
        ...

    def memory_state(self, node: str) -> MemoryState:
        """Rows that wait to be remapped or could not be, by nvidia-smi on the node. NodeError where it does
        not tell."""
        ...

    def start_diagnosis(self, node: str, key: str) -> None:
        """Starts the node's tests; the same key again is nothing."""
        ...

    def diagnosis(self, node: str, key: str) -> Diagnosis | None:
        """Its result; None while it runs. Raises NodeError for a key that was never started."""
        ...

    def start_reset(self, node: str, key: str, gpu: str) -> None:
        """Begins to reset a GPU, by its PCI address as `0000:9b:00.0`, or `all`; the same key again is
        nothing. What serves the GPU stops for it and starts again. NodeError where a process holds it."""
        ...

    def reset(self, node: str, key: str) -> Diagnosis | None:
        """What came of it, as `diagnosis` tells of tests; NodeError also where it was cut short."""
        ...

    def start_collection(self, node: str, key: str) -> None:
        """Begins to put logs and NVIDIA's bug report into one file; the same key again is nothing."""
        ...

    def collection(self, node: str, key: str) -> Bundle | None:
        """The file; None while it is made. NodeError for a key that was never started or was cut short."""
        ...

    def read_collection(self, node: str, key: str, start: int) -> bytes:
        """Its bytes from there on, as many as one call brings; none at its end."""
        ...

    def job_stacks(self, node: str, job: str) -> JobStacks:
        """Where some Python processes of the job stand. None of them is stopped for it."""
        ...

    def job_on_node(self, node: str, job: str) -> JobOnNode:
        """What the node's GPUs do now, and what NCCL's flight recorder has left of the job's ranks."""
        ...


# --- commands of the site --------------------------------------------------------------------------------


class CommandFailed(Exception):
    """The command surely did not begin. One sentence."""


class SiteCommands(Protocol):
    """Programs of the site on this machine. Each is started once under a key, and outlives who asked."""

    def start(self, key: str, argv: tuple[str, ...], timeout_s: float) -> None:
        """Starts it without a shell and does not wait; the same key is nothing new. Raises CommandFailed."""
        ...

    def look(self, key: str) -> CommandSeen:
        """What became of it."""
        ...


# --- what was collected ----------------------------------------------------------------------------------


class EvidenceBroken(Exception):
    """What was stored is not the file that the node told of. It is dropped."""


class EvidenceBook(Protocol):
    """Where collected files are kept, piece by piece. Raises LedgerAway. Readers see whole files alone."""

    def stored(self, file: str) -> int:
        """How many of its bytes are here; 0 for one that nobody began."""
        ...

    def add(self, file: EvidenceFile, start: int, data: bytes) -> None:
        """Stores one piece; the same piece again is nothing. Pieces come in their order."""
        ...

    def finish(self, file: EvidenceFile) -> None:
        """All pieces are here: from now on it is shown. Again is nothing. Raises EvidenceBroken."""
        ...

    def files(self, *, incident: str | None = None, run: str | None = None) -> list[EvidenceFile]:
        """The finished ones of an incident or a run, oldest first."""
        ...

    def file(self, file: str) -> EvidenceFile | None:
        """A finished one."""
        ...

    def content(self, file: str) -> bytes:
        """The bytes of a finished one."""
        ...


#: What a walk's caller does with the runs it started: poke the workers. Losing a poke is harmless.
Poke = Callable[[Sequence[str]], None]

Json = Mapping[str, Any]
