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
    """The database does not answer: nothing is known of what was about to be written. Try again later."""


class LeaseLost(Exception):
    """This worker's claim is over; it must stop at once and touch nothing."""


class AlreadyRequeued(Exception):
    """The restart of this life of the job is granted to another run: `run`."""

    def __init__(self, run: str) -> None:
        super().__init__(run)
        self.run = run


# Wide: all that one walk reads and writes in its single transaction; smaller Protocols serve the gate and
# people's commands.
class WalkTx(Protocol):
    """The walk's one transaction. All of it becomes true together, or none."""

    def open_incidents(self) -> list[Incident]:
        """Every incident not resolved, and those resolved in the last 5 minutes (for the storm count)."""
        ...

    def incident(self, name: str) -> Incident | None: ...

    def merged_into(self, name: str) -> list[Incident]:
        """What was merged into this incident, the oldest first."""
        ...

    def active_runs(self) -> list[Run]: ...
    def has_active_runs(self) -> bool: ...
    def run(self, name: str) -> Run | None: ...

    def lock_run(self, run: str) -> Run | None:
        """The run with the epoch of its newest claim. It does not change before the transaction ends."""
        ...

    def is_returning(self, run: str) -> bool:
        """Whether the run was granted the return of its node, or its tests, and has not drained it again
        since: the node is without its drain because of it."""
        ...

    def lock_gate(self) -> GateFacts:
        """Takes the gate's lock until the end of the transaction and reads all that guards may look at."""
        ...

    def sweeps(self, playbooks: Sequence[str], since: datetime) -> Sweeps:
        """Sweeps under way by these playbooks, nodes with faults, and nodes tested since then."""
        ...

    def incidents_with_commands(self, batch: Sequence[Observation]) -> set[str]:
        """Incidents of committed commands that are not in this batch. Asked under the gate's lock: such an
        incident is decided by the next walk, which has the command.
        """
        ...

    def save_incident(self, incident: Incident) -> None: ...
    def add_findings(self, incident: str, findings: Sequence[Finding]) -> None: ...

    def add_verdict(self, incident: str, verdict: IncidentVerdict, *, at: datetime) -> None:
        """What healer holds true of a saved incident from now on."""

    def newest_durable(self, job: str, since: datetime | None = None) -> JobCheckpoint | None:
        """What a requeue of the job could go back to, of what came since then."""
        ...

    def save_bursts(self, bursts: Sequence[FaultBurst]) -> None:
        """What parts have had; a burst that goes on takes the place of what was known of it."""

    def forecasts(self, since: datetime) -> list[Forecast]:
        """Those that are open, and those that ended at `since` or later; the oldest first."""
        ...

    def save_forecast(self, forecast: Forecast) -> None: ...
    def save_inventories(self, inventories: Sequence[Inventory]) -> None: ...
    def references(self) -> list[Reference]: ...
    def add_decision(self, decision: Decision) -> None: ...
    def create_run(self, run: Run) -> None: ...

    def set_run_state(
        self, run: str, state: RunState, *, why: str, at: datetime, question: str | None = None, **change: Any
    ) -> Run:
        """The run in its new state, with other fields changed; as it is, where it has ended. Raises NodeTaken
        if another run works on its node already.
        """
        ...

    def has_slots(self) -> bool:
        """Whether any node holds a slot. The gate is not locked."""
        ...

    def release_slot(self, node: str, *, at: datetime, why: str) -> None:
        """By the worker, which has the right to; so has no part that faces the network."""

    def slot_of(self, node: str) -> Slot | None:
        """As it is held by now: runs note a drain and free their slots without the gate's lock."""
        ...

    def save_breaker(self, breaker: Breaker) -> None: ...
    def add_veto(self, veto: Veto) -> None: ...

    def queue_message(self, message: Message | Ticket) -> None:
        """A page, note or ticket that leaves after the commit; the same id again is nothing."""

    def has_ticket(self, incident: str) -> bool:
        """One of it was filed, delivered or not."""
        ...

    def steps_of(self, incident: Incident) -> list[LogEntry]:
        """The logs of the runs for it, and of those on its node since it opened, oldest first; of none that
        only looked (shadow).
        """
        ...

    def audit(self, record: AuditRecord) -> None: ...

    def consume(self, observations: Sequence[Observation]) -> None:
        """Marks their inbox rows as walked. Rows without an `inbox_id` are nothing to do."""


# Wide: all that a driver reads and writes of its run, under one fence.
class RunClaim(Protocol):
    """A run held by one worker: session lock, lease and epoch.

    What may wait until the run goes on (`keep`, `send_command`, `queue_message`, `release_slot`) is
    stored with what is written next, in that order and in that transaction; a worker that dies before has
    done nothing of it. `write`, `set_state` and `gate` are one transaction each. They, and whatever reads,
    raise LeaseLost when another worker has claimed the run since, or the lease is over.
    """

    run: Run

    def log(self) -> list[LogEntry]: ...
    def incident(self) -> Incident | None: ...

    def known_bad(self) -> set[str]:
        """Nodes that are surely unusable and that a guard keeps in service (law 2), now."""
        ...

    def on_probation(self) -> dict[str, datetime]:
        """Nodes that were returned lately -> until when they are on probation."""
        ...

    def history(self, node: str, since: datetime) -> NodeHistory:
        """What healer keeps of a node: its incidents that were open at `since` or later."""
        ...

    def permits(self) -> Sequence[Permit]:
        """Hooks that were permitted to fail in the last 24 h."""
        ...

    def alone(self, what: str) -> AbstractContextManager[bool]:
        """Holds the named thing of the cluster while it lasts; False, at once: another run holds it."""
        ...

    def references(self) -> Sequence[Reference]: ...

    def reported_gpu(self, root: Component) -> Mapping[str, Any]:
        """What the node last reported of this GPU: `pci`, `uuid`, `serial`; empty if it reported nothing."""
        ...

    def facts(self, playbooks: Sequence[str]) -> GateFacts:
        """What the gate knows now, without its lock, with what is in sweep by these playbooks: for looking
        whether something may stay that takes no capacity.
        """
        ...

    def paused(self) -> bool:
        """Whether any pause is in force for this cluster, now; the gate says whom it concerns."""
        ...

    def fence(self) -> bool:
        """Raises LeaseLost if the run is another's. True: it had to be proven again.
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
        self, entry: LogEntry, *, audit: AuditRecord | None = None, drained: RemedyUse | None = None
    ) -> None:
        """`drained`: our drain was read back; the slot and the remedy that begins are noted with the line."""

    def keep(self, entry: LogEntry) -> None:
        """A line of a step that only looked: who dies before it is stored looks again."""

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
        """`command` reaches the detector's inbox together with the state, or not at all. Where an approval is
        waited for, people hear after `approve_until` that none came.
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
        case its time begins again. Of its own slot it may say later that the node is surely unusable."""

    def release_slot(self, node: str, *, at: datetime, why: str) -> None: ...

    def add_requeue(self, use: RequeueUse) -> None:
        """Raises AlreadyRequeued while another run that has not ended holds it; the transaction goes on.
        A run that ended without it leaves the grant to the next: the restart count fences a second requeue.
        """

    def drop_requeue(self, job: str, restarts: int) -> None:
        """What was granted to this run came to nothing: it counts no more, and another run may be granted it.
        Nothing where it was not granted to this run.
        """

    def add_remedy(self, use: RemedyUse) -> None: ...
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
        """What nodes last reported of themselves: for a detector that starts."""
        ...

    def note_texts(self, texts: Mapping[str, str], first_runs: int, now: datetime) -> list[Trial]:
        """What the rules and playbooks of now say (`Ruleset.texts`). The first ones that a cluster has are
        taken as they are; what is new or changed later is on record, and its first runs wait for a person.
        Answers with all that still has runs left, counted again.
        """
        ...

    def due_runs(self, now: datetime, *, sent: timedelta = timedelta(0)) -> list[str]:
        """Runs to advance now: new, woken, or abandoned by a dead worker. Without new ones that began no
        longer than `sent` ago: the workers have been poked for them.
        """
        ...


class Checkpoints(Protocol):
    """What jobs can go back to. One value per cluster."""

    def newest_durable(self, job: str, since: datetime | None = None) -> JobCheckpoint | None:
        """Of the job's latest life, the highest step, of those that came since then; None when it reported
        none. Raises LedgerAway."""
        ...


#: What a walk's caller does with the runs it started: poke the workers. Losing a poke is harmless.
Poke = Callable[[Sequence[str]], None]


class HookStanding(msgspec.Struct, frozen=True, kw_only=True):
    """What healer thinks of a node, by its worst open incident, and that incident's title."""

    verdict: Verdict
    reason: str


class OutOfService(msgspec.Struct, frozen=True, kw_only=True):
    """A node that healer has drained for a fault of its hardware, and that has not returned. `at`: when the
    drain was read back. `playbook` and `input`: of the run that drained it."""

    cluster: str
    node: str
    at: datetime
    incident: str
    rule: str
    title: Said
    playbook: str
    input: dict[str, Any]


class HookTx(Protocol):
    """One transaction under the gate's lock, like any drain."""

    facts: GateFacts

    def permit_for(self, ask: HookRequest) -> Permit | None: ...
    def cause(self, slot: Slot) -> tuple[Incident, Run] | None: ...

    def add(self, permit: Permit) -> None:
        """Recorded in the audit."""


class HookBook(Protocol):
    """What is stored for hooks. Raises Unavailable."""

    def standings(self, cluster: str, now: datetime) -> Mapping[str, HookStanding]:
        """By node; those with no open incident and on no probation are not in it."""
        ...

    def out_of_service(self) -> Sequence[OutOfService]:
        """Of all clusters."""
        ...

    def is_held(self, cluster: str, node: str) -> bool:
        """Whether the node's slot is granted: only then a permit can be had."""
        ...

    def permit_for(self, ask: HookRequest) -> Permit | None:
        """What this very hook was permitted before."""
        ...

    def note(self, permit: Permit, now: datetime) -> None:
        """Keeps it, unless this very hook has one."""

    def asking(self, cluster: str, now: datetime) -> AbstractContextManager[HookTx]: ...
