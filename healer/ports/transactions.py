"""The ledger, PostgreSQL or memory: the transactions of the walk and of the gate, and the claim of a run."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

import msgspec

from healer.model import (
    AuditRecord,
    Breaker,
    Command,
    Component,
    Decision,
    FaultBurst,
    Finding,
    Forecast,
    GateFacts,
    HookRequest,
    Incident,
    IncidentVerdict,
    Inventory,
    JobCheckpoint,
    LogEntry,
    Message,
    NodeHistory,
    Observation,
    Permit,
    Reference,
    RemedyUse,
    RequeueUse,
    Run,
    RunState,
    Slot,
    Sweeps,
    Ticket,
    Trial,
    Verdict,
    Veto,
)
from healer.text import Said

T = TypeVar("T")


class LedgerAway(Exception):
    """The database does not answer: it is unknown whether the write happened. Try again later."""


class LeaseLost(Exception):
    """This worker's claim is over; it must stop immediately and touch nothing."""


class AlreadyRequeued(Exception):
    """The restart of this life of the job is granted to another run: `run`."""

    def __init__(self, run: str) -> None:
        super().__init__(run)
        self.run = run


# Wide: everything that one walk reads and writes in its single transaction; smaller Protocols serve the gate
# and people's commands.
class WalkTx(Protocol):
    """The walk's one transaction: all or nothing."""

    def open_incidents(self) -> list[Incident]:
        """Every incident not resolved, and those resolved in the last 5 minutes (for the storm count), in the
        order `by_opening`."""
        ...

    def incident(self, name: str) -> Incident | None: ...

    def merged_into(self, name: str) -> list[Incident]:
        """Incidents merged into this one, in the order `by_opening`."""
        ...

    def active_runs(self) -> list[Run]: ...
    def has_active_runs(self) -> bool: ...
    def run(self, name: str) -> Run | None: ...

    def lock_run(self, run: str) -> Run | None:
        """The run with the epoch of its newest claim. It does not change before the transaction ends."""
        ...

    def is_returning(self, run: str) -> bool:
        """Whether the run was granted the return of its node, or its tests, and has not drained it again
        since: that is why the node has no drain."""
        ...

    def lock_gate(self) -> GateFacts:
        """Takes the gate's lock until the end of the transaction and reads everything that guards may use."""
        ...

    def sweeps(self, playbooks: Sequence[str], since: datetime) -> Sweeps:
        """Sweeps in progress by these playbooks, nodes with faults, and nodes tested since then."""
        ...

    def at_work(self, batch: Sequence[Observation]) -> tuple[list[Run], set[str]]:
        """The active runs, and the incidents with committed commands that are not in this batch. Called under
        the gate's lock: such an incident is decided by the next walk, which has the command.
        """
        ...

    def save_incident(self, incident: Incident) -> None: ...
    def add_findings(self, incident: str, findings: Sequence[Finding]) -> None: ...

    def add_verdict(self, incident: str, verdict: IncidentVerdict, *, at: datetime) -> None:
        """Stores the verdict of a saved incident from now on."""

    def newest_durable(self, job: str, since: datetime | None = None) -> JobCheckpoint | None:
        """The checkpoint that a requeued job would resume from, of those that came since then."""
        ...

    def save_bursts(self, bursts: Sequence[FaultBurst]) -> None:
        """Stores bursts; a burst that continues replaces its earlier row."""

    def forecasts(self, since: datetime) -> list[Forecast]:
        """Open forecasts, and those that ended at `since` or later; oldest first."""
        ...

    def save_forecasts(self, forecasts: Sequence[Forecast]) -> None:
        """Stores them, each once in a transaction, and after they were read there."""

    def save_inventories(self, inventories: Sequence[Inventory]) -> None: ...
    def references(self) -> list[Reference]: ...
    def add_decision(self, decision: Decision) -> None: ...
    def create_run(self, run: Run) -> None: ...

    def set_run_state(
        self, run: str, state: RunState, *, why: str, at: datetime, question: str | None = None, **change: Any
    ) -> Run:
        """The run in its new state, with other fields changed; unchanged if it has ended. Raises NodeTaken if
        another run already works on its node.
        """
        ...

    def has_slots(self) -> bool:
        """Whether any node holds a slot. Does not lock the gate."""
        ...

    def release_slot(self, node: str, *, at: datetime, why: str) -> None:
        """Called by the worker only: no part that faces the network has this right."""

    def slot_of(self, node: str) -> Slot | None:
        """The present slot: runs record a drain and free their slots without the gate's lock."""
        ...

    def save_breaker(self, breaker: Breaker) -> None: ...
    def add_veto(self, veto: Veto) -> None: ...

    def queue_message(self, message: Message | Ticket) -> None:
        """A page, note or ticket that is sent after the commit; repeating the id has no effect."""

    def has_ticket(self, incident: str) -> bool:
        """A ticket for it was filed, delivered or not."""
        ...

    def steps_of(self, incident: Incident) -> list[LogEntry]:
        """The logs of its runs, and of those on its node since it opened, oldest first; without shadow
        runs."""
        ...

    def audit(self, record: AuditRecord) -> None: ...

    def consume(self, observations: Sequence[Observation]) -> None:
        """Marks their inbox rows as walked. Observations without an `inbox_id` need nothing."""


# Wide: everything that a driver reads and writes of its run, under one fence.
class RunClaim(Protocol):
    """A run held by one worker: session lock, lease and epoch.

    Writes that may wait until the run continues (`keep`, `send_command`, `queue_message`, `release_slot`) are
    stored with the next write, in that order and in that transaction; a worker that dies before has done none
    of them. `write`, `set_state` and `gate` are one transaction each. They, and all reads, raise LeaseLost if
    another worker has claimed the run since, or the lease is over.
    """

    run: Run

    def log(self) -> list[LogEntry]: ...
    def incident(self) -> Incident | None: ...

    def known_bad(self) -> set[str]:
        """Nodes that are certainly unusable and that a guard keeps in service now (law 2)."""
        ...

    def on_probation(self) -> dict[str, datetime]:
        """Recently returned nodes -> until when they are on probation."""
        ...

    def history(self, node: str, since: datetime) -> NodeHistory:
        """A node's record: its incidents that were open at `since` or later."""
        ...

    def earlier_now(self) -> datetime:
        """The time by this host's clock, or by the ledger's if that is earlier: a wait ends by both."""
        ...

    def permits(self) -> Sequence[Permit]:
        """Hooks that were permitted to fail in the last 24 h."""
        ...

    def alone(self, what: str) -> AbstractContextManager[bool]:
        """Locks a name within the cluster, as a context; False, immediately: another run holds it."""
        ...

    def references(self) -> Sequence[Reference]: ...

    def reported_gpu(self, root: Component) -> Mapping[str, Any]:
        """What the node last reported of this GPU: `pci`, `uuid`, `serial`; empty if it reported nothing."""
        ...

    def facts(self, playbooks: Sequence[str]) -> GateFacts:
        """The gate's present facts, without its lock, including sweeps in progress by these playbooks: to
        check whether something may stay that takes no capacity.
        """
        ...

    def paused(self) -> bool:
        """Whether any pause is in force for this cluster now; the gate decides whom it concerns."""
        ...

    def fence(self) -> bool:
        """Raises LeaseLost if the run belongs to another worker. True: the claim had to be proven again.
        Proves a claim that has aged: the reads before the effect may have taken long, and what was checked
        before them (a pause) may have changed.
        """
        ...

    def gate(self, judge: "Callable[[GateTx], T]") -> T:
        """A transaction with the gate's lock: judges a removing step and logs it in one commit. Returns the
        result of `judge` once it is stored; if that fails, nothing is. `judge` uses only `tx`, and has no
        other side effects: others wait for it, and it may be called again after its transaction was rolled
        back.
        """
        ...

    def write(
        self, entry: LogEntry, *, audit: AuditRecord | None = None, drained: RemedyUse | None = None
    ) -> None:
        """`drained`: healer's drain was read back; the slot and the remedy that begins are recorded with the
        entry."""

    def keep(self, entry: LogEntry) -> None:
        """The entry of a step that only looked: a worker that dies before it is stored looks again."""

    def set_state(
        self,
        state: RunState,
        *,
        why: str,
        wake_at: datetime | None = None,
        question: str | None = None,
        approve_until: datetime | None = None,
        command: Command | None = None,
    ) -> None:
        """`command` reaches the detector's inbox together with the state, or not at all. If an approval is
        awaited, people are reminded after `approve_until`.
        """

    def send_command(self, command: Command) -> None: ...
    def queue_message(self, message: Message | Ticket) -> None: ...
    def release_slot(self, node: str, *, why: str) -> None: ...


class GateTx(Protocol):
    """One transaction under the gate's lock."""

    facts: GateFacts

    def sweeps(self, playbooks: Sequence[str], since: datetime) -> Sweeps: ...
    def add_decision(self, decision: Decision) -> None: ...
    def write(self, entry: LogEntry) -> None: ...
    def grant_slot(self, slot: Slot) -> None:
        """A run takes over the slot of a run that has ended or has not drained the node yet; in the latter
        case its time restarts. A run may later mark its own slot's node as certainly unusable."""

    def release_slot(self, node: str, *, at: datetime, why: str) -> None: ...

    def add_requeue(self, use: RequeueUse) -> None:
        """Raises AlreadyRequeued while another run that has not ended holds it; the transaction continues. A
        run that ended without restarting the job leaves the grant to the next: the restart count fences a
        second requeue.
        """

    def drop_requeue(self, job: str, restarts: int) -> None:
        """Returns this run's grant, which was not used: it no longer counts, and another run may get it. No
        effect without such a grant.
        """

    def add_remedy(self, use: RemedyUse) -> None: ...
    def save_breaker(self, breaker: Breaker) -> None: ...
    def audit(self, record: AuditRecord) -> None: ...


class Ledger(Protocol):
    """The one source of truth. One instance per cluster."""

    cluster: str

    def transaction(self) -> AbstractContextManager[WalkTx]: ...

    def claim(self, run: str) -> AbstractContextManager[RunClaim | None]:
        """None if someone else holds the run, or it has ended."""
        ...

    def bursts(self, since: datetime) -> list[FaultBurst]:
        """Bursts since then, oldest first: for a detector that starts."""
        ...

    def inventories(self) -> list[Inventory]:
        """What nodes last reported about themselves: for a detector that starts."""
        ...

    def rename_texts(self, digests: Mapping[str, tuple[str, str]]) -> None:
        """Keeps the record of each text that an older version stored under its former digest
        (`Ruleset.digests`), with its trial, under the present one."""
        ...

    def note_texts(self, texts: Mapping[str, str], first_runs: int, now: datetime) -> list[Trial]:
        """Records the present text of rules and playbooks (`Ruleset.texts`). The first ones of a cluster are
        accepted as they are; later new or changed ones are recorded, and their first runs wait for a person.
        Returns all that still have runs left, recounted.
        """
        ...

    def due_runs(self, now: datetime, *, sent: timedelta = timedelta(0)) -> list[str]:
        """Runs to advance now: new, woken, or abandoned by a dead worker. Without new ones that began no
        longer than `sent` ago: the workers have been poked for them.
        """
        ...


class Checkpoints(Protocol):
    """Checkpoints that jobs can resume from. One instance per cluster."""

    def newest_durable(self, job: str, since: datetime | None = None) -> JobCheckpoint | None:
        """The highest step of the job's latest life, of those that came since then; None if it reported none.
        Raises LedgerAway."""
        ...


#: What a walk's caller does with the started runs: poke the workers. Losing a poke is harmless.
Poke = Callable[[Sequence[str]], None]


class HookStanding(msgspec.Struct, frozen=True, kw_only=True):
    """healer's verdict on a node, by its worst open incident, and that incident's title."""

    verdict: Verdict
    reason: str


class OutOfService(msgspec.Struct, frozen=True, kw_only=True):
    """A node that healer has drained for a hardware fault, and that has not returned. `at`: when the drain
    was read back. `playbook` and `input`: of the run that drained it."""

    cluster: str
    node: str
    at: datetime
    incident: str
    rule: str
    title: Said
    playbook: str
    input: dict[str, Any]


class HookTx(Protocol):
    """One transaction under the gate's lock, like for any drain."""

    facts: GateFacts

    def permit_for(self, ask: HookRequest) -> Permit | None: ...
    def cause(self, slot: Slot) -> tuple[Incident, Run] | None: ...

    def add(self, permit: Permit) -> None:
        """Records the permit in the audit too."""


class HookBook(Protocol):
    """Storage for hooks. Raises Unavailable."""

    def standings(self, cluster: str, now: datetime) -> Mapping[str, HookStanding]:
        """By node; nodes without an open incident and without probation are left out."""
        ...

    def out_of_service(self) -> Sequence[OutOfService]:
        """Of all clusters."""
        ...

    def is_held(self, cluster: str, node: str) -> bool:
        """Whether the node's slot is granted: only then is a permit possible."""
        ...

    def permit_for(self, ask: HookRequest) -> Permit | None:
        """The earlier permit for this very hook."""
        ...

    def note(self, permit: Permit, now: datetime) -> None:
        """Stores it, unless this very hook has one."""

    def asking(self, cluster: str, now: datetime) -> AbstractContextManager[HookTx]: ...
