"""The ledger in memory, for replay and simulation: the Protocols of the one in PostgreSQL, in one process.

A transaction records how to undo its writes, so that a walk that fails leaves nothing behind.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec

from healer.model import (
    ENDED_RUN_STATES,
    LIFTING_VERBS,
    NODE_REMOVING,
    AuditRecord,
    Breaker,
    Command,
    CommandKind,
    Component,
    Decision,
    FaultBurst,
    Finding,
    Forecast,
    GateFacts,
    Incident,
    IncidentVerdict,
    Inventory,
    JobCheckpoint,
    LogEntry,
    Message,
    Mode,
    NodeHistory,
    Observation,
    ObservationKind,
    Pause,
    Permit,
    Proof,
    Reference,
    RemedyUse,
    RequeueUse,
    Review,
    Run,
    RunState,
    Slot,
    SlurmSnapshot,
    StepEvent,
    Sweeps,
    Ticket,
    Trial,
    Verb,
    VerdictAt,
    Veto,
    by_opening,
    probations,
)
from healer.ports.clock import Clock
from healer.ports.commanding import NodeTaken
from healer.ports.lease import is_awake
from healer.ports.transactions import AlreadyRequeued, GateTx, LeaseLost
from healer.sim.ledger_tables import (
    RECENT,
    Tables,
    Undo,
    gate_facts,
    node_history,
    outcome,
    record_texts,
    rename_texts,
    sweeps,
)
from healer.sim.stores import MemoryCheckpoints
from healer.text import to_stored

T = TypeVar("T")
#: Ended steps that removed nodes from service: the breaker looks at this many.
ENDED_KEPT = 10


def _is_settled(entry: LogEntry) -> bool:
    """Whether a step that removes a node from service is over: done, or failed for good."""
    if entry.data.get("verb") not in NODE_REMOVING:
        return False
    return entry.event is StepEvent.done or (
        entry.event is StepEvent.failed and bool(entry.data.get("final"))
    )


def _moves_drain(entry: LogEntry) -> bool:
    """A step that lifts the drain was granted, or a drain was read back."""
    verb = entry.data.get("verb")
    lifts = entry.event is StepEvent.started and verb in LIFTING_VERBS
    return lifts or (entry.event is StepEvent.done and verb == Verb.drain)


def _same_grant(slot: Slot, other: Slot) -> bool:
    return (slot.node, slot.granted_at) == (other.node, other.granted_at)


# Wide: implements `ports.WalkTx`, `ports.GateTx` and `ports.CommandTx`.
class MemoryTx:
    """`healer.ports.transactions.WalkTx` and `GateTx`, and `healer.ports.commanding.CommandTx`, in one."""

    #: Set in a transaction of the gate only.
    facts: GateFacts

    def __init__(self, ledger: "MemoryLedger") -> None:
        self._ledger = ledger
        self.undo = Undo()
        #: The run that asks the gate; empty in a walk.
        self.run_id = ""

    @property
    def _tables(self) -> Tables:
        return self._ledger.tables

    def open_incidents(self) -> list[Incident]:
        recent = self._tables.recent_incidents(self._ledger.clock.now() - RECENT)
        return sorted(recent, key=by_opening)

    def incident(self, name: str) -> Incident | None:
        return self._tables.incidents.get(name)

    def merged_into(self, name: str) -> list[Incident]:
        parts = (incident for incident in self._tables.incidents.values() if incident.merged_into == name)
        return sorted(parts, key=by_opening)

    def active_runs(self) -> list[Run]:
        return self._tables.active_runs()

    def has_active_runs(self) -> bool:
        return bool(self._tables.active_runs())

    def run(self, name: str) -> Run | None:
        return self._tables.runs.get(name)

    def is_returning(self, run: str) -> bool:
        last = next(filter(_moves_drain, reversed(self._tables.log.get(run, ()))), None)
        return last is not None and last.event is StepEvent.started

    def lock_gate(self) -> GateFacts:
        return self._ledger.facts()

    read_gate = lock_gate

    def sweeps(self, playbooks: Sequence[str], since: datetime) -> Sweeps:
        return self._ledger.sweeps(playbooks, since)

    def at_work(self, batch: Sequence[Observation]) -> tuple[list[Run], set[str]]:
        commanded = {command.incident for command in self._tables.commands if command.incident is not None}
        return self.active_runs(), commanded

    def save_incident(self, incident: Incident) -> None:
        self.undo.put(self._tables.incidents, incident.id, incident)

    def add_findings(self, incident: str, findings: Sequence[Finding]) -> None:
        self.undo.add(self._tables.findings, *((incident, finding) for finding in findings))

    def add_verdict(self, incident: str, verdict: IncidentVerdict, *, at: datetime) -> None:
        before = self._tables.verdicts.get(incident, ())
        self.undo.put(self._tables.verdicts, incident, (*before, VerdictAt(at=at, verdict=verdict)))

    def newest_durable(self, job: str, since: datetime | None = None) -> JobCheckpoint | None:
        return self._ledger.checkpoints.newest_durable(job, since)

    def save_bursts(self, bursts: Sequence[FaultBurst]) -> None:
        for burst in bursts:
            self.undo.put(self._tables.bursts, (burst.node, burst.part, burst.fault, burst.began_at), burst)

    def forecasts(self, since: datetime) -> list[Forecast]:
        kept = (
            forecast
            for forecast in self._tables.forecasts.values()
            if forecast.ended_at is None or forecast.ended_at >= since
        )
        return sorted(kept, key=lambda forecast: (forecast.told_at, forecast.id))

    def save_forecasts(self, forecasts: Sequence[Forecast]) -> None:
        for forecast in forecasts:
            self.undo.put(self._tables.forecasts, forecast.id, forecast)

    def save_inventories(self, inventories: Sequence[Inventory]) -> None:
        for inventory in inventories:
            self.undo.put(self._tables.inventories, inventory.node, inventory)

    def references(self) -> list[Reference]:
        return list(self._tables.references.values())

    def add_decision(self, decision: Decision) -> None:
        self.undo.add(self._tables.decisions, decision)

    def create_run(self, run: Run) -> None:
        if run.id not in self._tables.runs:
            self._put(run)

    def _put(self, run: Run) -> None:
        """Raises NodeTaken for a second run at work on a node; shadow runs and those that only look do not
        count."""
        if _occupies_node(run):
            for other in self._tables.active_runs():
                if other.id != run.id and other.node == run.node and _occupies_node(other):
                    raise NodeTaken(run.node or "")
        self.undo.put(self._tables.runs, run.id, run)

    def set_run_state(
        self, run: str, state: RunState, *, why: str, at: datetime, question: str | None = None, **change: Any
    ) -> Run:
        before = self._tables.runs[run]
        if before.state in ENDED_RUN_STATES:
            return before  # an ended run never changes again
        changed = msgspec.structs.replace(
            before,
            state=state,
            ended_at=at if state in ENDED_RUN_STATES else None,
            wake_at=None,
            question=question,
            epoch=before.epoch + 1,
            reason=before.reason or why,
            **change,
        )
        self._put(changed)
        return changed

    def lock_run(self, run: str) -> Run | None:
        return self._tables.runs.get(run)

    def known_runs(self, names: Sequence[str]) -> dict[str, Run]:
        return {name: self._tables.runs[name] for name in names if name in self._tables.runs}

    def waiting_on(self, nodes: Sequence[str]) -> list[Run]:
        active = self._tables.active_runs()
        return [run for run in active if run.node in nodes and run.state is not RunState.running]

    def running_on(self, node: str | None, playbook: str) -> str | None:
        for run in self._tables.active_runs():
            same = run.node == node and run.playbook == playbook and not run.shadow
            if same and run.state is RunState.running:
                return run.id
        return None

    def log(self, run: str) -> list[LogEntry]:
        return list(self._tables.log.get(run, ()))

    def add_starts(
        self, runs: Sequence[Run], decisions: Sequence[Decision], records: Sequence[AuditRecord]
    ) -> None:
        for run in runs:
            self.create_run(run)
        self.undo.add(self._tables.decisions, *decisions)
        self.undo.add(self._tables.audit, *records)

    def grant_slot(self, slot: Slot) -> None:
        held = self._tables.slots.get(slot.node)
        if held is None:
            self.undo.put(self._tables.slots, slot.node, slot)
            self.undo.add(self._tables.granted, slot)
        elif held.drained_at is None or held.run == slot.run or self._has_ended(held.run):
            incident = slot.incident or held.incident  # a later run takes over what is left
            newest = slot if held.drained_at is None else held
            unusable = newest.unusable or (held.run == slot.run and slot.unusable)
            change = {"run": slot.run, "incident": incident, "drained_at": held.drained_at}
            change |= {"unusable": unusable}
            taken_over = msgspec.structs.replace(newest, **change)
            self.undo.put(self._tables.slots, slot.node, taken_over)
            granted = self._tables.granted
            self.undo.replace(granted, [taken_over if _same_grant(each, held) else each for each in granted])

    def _has_ended(self, run: str) -> bool:
        found = self._tables.runs.get(run)
        return found is not None and found.state in ENDED_RUN_STATES

    def release_slot(self, node: str, *, at: datetime, why: str) -> None:
        """A slot whose node was never drained does not count for the hour either."""
        slot = self._tables.slots.get(node)
        self.undo.drop(self._tables.slots, node)
        if slot is not None and slot.drained_at is None:
            self.undo.remove(self._tables.granted, lambda granted: _same_grant(granted, slot))

    def has_slots(self) -> bool:
        return bool(self._tables.slots)

    def slot_of(self, node: str) -> Slot | None:
        return self._tables.slots.get(node)

    def save_breaker(self, breaker: Breaker) -> None:
        self.undo.change(self._tables, "breaker", breaker)

    def add_veto(self, veto: Veto) -> None:
        self.undo.add(self._tables.vetoes, veto)

    def queue_message(self, message: Message | Ticket) -> None:
        if message.id not in self._tables.messages:
            self.undo.put(self._tables.messages, message.id, message)
            self.undo.add(self._tables.sent, (self._ledger.clock.now(), message))

    def has_ticket(self, incident: str) -> bool:
        return any(
            isinstance(message, Ticket) and message.incident == incident
            for message in self._tables.messages.values()
        )

    def steps_of(self, incident: Incident) -> list[LogEntry]:
        entries = (
            entry
            for run in self._tables.runs.values()
            if not run.shadow and (run.incident == incident.id or _on_node_since(run, incident))
            for entry in self._tables.log.get(run.id, ())
        )
        return sorted(entries, key=lambda entry: entry.at)

    def audit(self, record: AuditRecord) -> None:
        self.undo.add(self._tables.audit, record)

    def consume(self, observations: Sequence[Observation]) -> None:
        """Nothing to do: without an inbox, the caller drops the batch itself."""

    def write(self, entry: LogEntry) -> None:
        tables = self._tables
        if entry.run not in tables.log:
            self.undo.put(tables.log, entry.run, [])
        self.undo.add(tables.log[entry.run], entry)
        self.undo.change(tables, "logged", tables.logged + 1)
        if _is_settled(entry):
            ended = (entry.at, entry.event is StepEvent.done)
            self.undo.replace(tables.ended, [*tables.ended, ended][-ENDED_KEPT:])

    def mark_drained(self, use: RemedyUse) -> None:
        slot = self._tables.slots.get(use.node)
        if slot is not None:
            self.undo.put(self._tables.slots, use.node, msgspec.structs.replace(slot, drained_at=use.at))
        if use.incident is not None:
            self.add_remedy(use)

    def add_remedy(self, use: RemedyUse) -> None:
        self.undo.add(self._tables.remedies, use)

    def add_requeue(self, use: RequeueUse) -> None:
        key, before = (use.job, use.restarts), self._tables.requeues
        same = [other for other in before if (other.job, other.restarts) == key]
        if same:
            holder = self._tables.requeued_by.get(key, "")
            if holder != self.run_id and not self._has_ended(holder):
                raise AlreadyRequeued(holder)
            self.undo.replace(before, [use if other in same else other for other in before])
        else:
            self.undo.add(before, use)
        self.undo.put(self._tables.requeued_by, key, self.run_id)

    def send_command(self, command: Command, *, request: str = "") -> int:
        """A second command of the same request is ignored. Returns its row: its place among all requests."""
        requests = self._tables.requests
        if request and request not in requests:
            self.undo.put(requests, request, command)
        elif request:
            return list(requests).index(request)
        self.undo.add(self._tables.commands, command)
        return len(requests) - 1

    def audited(self, subject: str, request: str) -> bool:
        return any(
            record.subject == subject and record.data.get("request") == request
            for record in self._tables.audit
        )

    def add_note(self, incident: str, text: str, *, by: str, at: datetime) -> None:
        self.undo.add(self._tables.notes, (incident, text, by, at))

    def add_pause(self, pause: Pause) -> bool:
        if self.pause(pause.id) is not None:
            return False
        self.undo.add(self._tables.pauses, pause)
        return True

    def pause(self, name: str) -> Pause | None:
        pauses = (*self._tables.pauses, *self._tables.ended_pauses)
        return next((pause for pause in pauses if pause.id == name), None)

    def end_pause(self, name: str, *, by: str, at: datetime) -> Pause | None:
        ended = next((pause for pause in self._tables.pauses if pause.id == name), None)
        if ended is not None:
            self.undo.remove(self._tables.pauses, lambda pause: pause.id == name)
            self.undo.add(self._tables.ended_pauses, ended)
        return ended

    def rule_mode(self, rule: str) -> tuple[Mode, str] | None:
        mode = self._tables.modes.get(rule)
        return (mode, self._tables.modes_by.get(rule, "")) if mode is not None else None

    def save_rule_mode(self, rule: str, mode: Mode, *, by: str, reason: str, at: datetime) -> None:
        self.undo.put(self._tables.modes, rule, mode)
        self.undo.put(self._tables.modes_by, rule, by)

    def proof(
        self,
        rule: str,
        most: int,
        *,
        digests: Mapping[str, tuple[str, str]],
        review: tuple[str, Review] | None = None,
    ) -> Proof:
        """`digests` is ignored: replays are no proof here."""
        of_rule = [incident for incident in self._tables.incidents.values() if incident.rule == rule]
        of_rule.sort(key=lambda incident: incident.opened, reverse=True)
        pending = [command for command in self._tables.commands if command.kind is CommandKind.review]
        given = {command.incident: Review(command.data["review"]) for command in pending}
        given |= dict([review] if review else ())
        outcomes = [
            outcome(self._tables, incident, given.get(incident.id, incident.review))
            for incident in of_rule
            if incident.merged_into is None
        ]
        judged = [right for right in outcomes if right is not None][:most]
        return Proof(right=judged.count(True), wrong=judged.count(False))

    def save_reference(self, reference: Reference) -> None:
        self.undo.put(self._tables.references, reference.kind, reference)

    def drop_reference(self, reference: Reference) -> bool:
        is_stored = reference.kind in self._tables.references
        self.undo.drop(self._tables.references, reference.kind)
        return is_stored

    def drop_requeue(self, job: str, restarts: int) -> None:
        key = (job, restarts)
        if self._tables.requeued_by.get(key) == self.run_id:
            self.undo.drop(self._tables.requeued_by, key)
            self.undo.remove(self._tables.requeues, lambda use: (use.job, use.restarts) == key)


def _on_node_since(run: Run, incident: Incident) -> bool:
    node = incident.root.node
    return node is not None and run.node == node and run.created_at >= incident.opened


def _occupies_node(run: Run) -> bool:
    return run.state is RunState.running and run.node is not None and not (run.shadow or run.alongside)


# Wide: implements `ports.Ledger`, and what the detector reads from PostgreSQL directly.
class MemoryLedger:
    """`healer.ports.transactions.Ledger`. `snapshot` is the Slurm snapshot for the gate; the ledger's owner
    updates it."""

    def __init__(self, cluster: str, clock: Clock) -> None:
        self.cluster, self.clock = cluster, clock
        self.tables = Tables(breaker=Breaker(cluster=cluster))
        self.snapshot: SlurmSnapshot | None = None
        self.checkpoints = MemoryCheckpoints()
        self._claimed: set[str] = set()
        #: Names locked by runs.
        self.held = set[str]()

    @contextmanager
    def transaction(self) -> Iterator[MemoryTx]:
        tx = MemoryTx(self)
        try:
            yield tx
        except BaseException:
            tx.undo()
            raise

    @contextmanager
    def claim(self, run: str) -> Iterator["MemoryClaim | None"]:
        found = self.tables.runs.get(run)
        if found is None or not _is_due(found, self.clock.now()) or run in self._claimed:
            yield None
            return
        self._claimed.add(run)
        try:
            yield MemoryClaim(self, found)
        finally:
            self._claimed.discard(run)

    def bursts(self, since: datetime) -> list[FaultBurst]:
        recent = (burst for burst in self.tables.bursts.values() if burst.last_at >= since)
        return sorted(recent, key=lambda burst: (burst.last_at, burst.node, burst.part, burst.fault))

    def inventories(self) -> list[Inventory]:
        return list(self.tables.inventories.values())

    def rename_texts(self, digests: Mapping[str, tuple[str, str]]) -> None:
        rename_texts(self.tables, digests)

    def note_texts(self, texts: Mapping[str, str], first_runs: int, now: datetime) -> list[Trial]:
        return record_texts(self.tables, self.cluster, texts, first_runs, now)

    def due_runs(self, now: datetime, *, sent: timedelta = timedelta(0)) -> list[str]:
        return [
            run.id
            for run in self.tables.active_runs()
            if _is_due(run, now) and (run.epoch > 0 or not now - sent < run.created_at <= now)
        ]

    def has_run(self, run: str) -> bool:
        return run in self.tables.runs

    def consumed(self, row: int) -> bool:
        command = list(self.tables.requests.values())[row]
        return command not in self.tables.commands

    def command(self) -> AbstractContextManager[MemoryTx]:
        return self.transaction()

    def together(
        self,
        work: Callable[[MemoryTx, Sequence[T]], Sequence[object]],
        after: Callable[[Sequence[object]], None],
    ) -> Callable[[T], Any]:
        def do(item: T) -> Any:
            with self.transaction() as tx:
                [result] = work(tx, [item])
            after([result])
            if isinstance(result, BaseException):
                raise result
            return result

        return do

    def take_commands(self) -> list[Observation]:
        """What runs and people have sent since the last call, as the inbox would deliver it."""
        commands, self.tables.commands = self.tables.commands, []
        return [
            Observation(
                digest=f"command-{index}",
                kind=ObservationKind.command,
                component=Component(cluster=self.cluster),
                event_at=command.at,
                arrived_at=command.at,
                data=to_stored(command),
            )
            for index, command in enumerate(commands)
        ]

    def facts(self) -> GateFacts:
        return gate_facts(self.tables, self.cluster, self.snapshot, self.clock.now())

    def sweeps(self, playbooks: Sequence[str], since: datetime) -> Sweeps:
        return sweeps(self.tables, playbooks, since, self.clock.now())


def _is_due(run: Run, now: datetime) -> bool:
    return run.state is RunState.running and is_awake(run.wake_at, now)


# Wide: implements `ports.RunClaim`.
class MemoryClaim:
    """`healer.ports.transactions.RunClaim`. It never times out; as in PostgreSQL, a person who ends the run
    revokes it."""

    def __init__(self, ledger: MemoryLedger, run: Run) -> None:
        self._ledger = ledger
        self._kept: list[Callable[[MemoryTx], object]] = []
        self.run = msgspec.structs.replace(run, epoch=run.epoch + 1, wake_at=None)
        ledger.tables.runs[run.id] = self.run

    def log(self) -> list[LogEntry]:
        return list(self._ledger.tables.log.get(self.run.id, []))

    def incident(self) -> Incident | None:
        return self._ledger.tables.incidents.get(self.run.incident or "")

    def known_bad(self) -> set[str]:
        recent = self._ledger.tables.recent_incidents(self._ledger.clock.now() - RECENT)
        return {name for incident in recent if incident.is_open for name in incident.bad_nodes}

    def on_probation(self) -> dict[str, datetime]:
        tables, now = self._ledger.tables, self._ledger.clock.now()
        dropped = {node: until for node, until in tables.probations.items() if until > now}
        return dropped | probations(tables.incidents.values(), now)

    def earlier_now(self) -> datetime:
        return self._ledger.clock.now()

    @contextmanager
    def alone(self, what: str) -> Iterator[bool]:
        held = self._ledger.held
        if what in held:
            yield False
            return
        held.add(what)
        try:
            yield True
        finally:
            held.discard(what)

    def references(self) -> list[Reference]:
        return list(self._ledger.tables.references.values())

    def reported_gpu(self, root: Component) -> dict[str, Any]:
        return {}  # simulated nodes send no lists

    def facts(self, playbooks: Sequence[str]) -> GateFacts:
        sweeps = self._ledger.sweeps(playbooks, self._ledger.clock.now())
        return msgspec.structs.replace(self._ledger.facts(), sweeps=sweeps)

    def paused(self) -> bool:
        return bool(self._ledger.facts().pauses)

    def fence(self) -> bool:
        return False

    def gate(self, judge: Callable[[GateTx], T]) -> T:
        with self._written() as tx:
            tx.run_id, tx.facts = self.run.id, self._ledger.facts()
            return judge(tx)

    def write(
        self, entry: LogEntry, *, audit: AuditRecord | None = None, drained: RemedyUse | None = None
    ) -> None:
        with self._written() as tx:
            tx.write(entry)
            if audit is not None:
                tx.audit(audit)
            if drained is not None:
                tx.mark_drained(drained)

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
        changed = msgspec.structs.replace(
            self.run,
            state=state,
            wake_at=wake_at,
            question=question,
            approve_until=approve_until,
            ended_at=self._ledger.clock.now() if state in ENDED_RUN_STATES else None,
        )
        with self._written() as tx:
            tx.undo.put(self._ledger.tables.runs, self.run.id, changed)
            if command is not None:
                tx.send_command(command)
        self.run = changed

    def history(self, node: str, since: datetime) -> NodeHistory:
        return node_history(self._ledger.tables, node, since)

    def permits(self) -> tuple[Permit, ...]:
        return self._ledger.facts().permits

    def keep(self, entry: LogEntry) -> None:
        self._kept.append(lambda tx: tx.write(entry))

    def send_command(self, command: Command) -> None:
        self._kept.append(lambda tx: tx.send_command(command))

    def queue_message(self, message: Message | Ticket) -> None:
        self._kept.append(lambda tx: tx.queue_message(message))

    def release_slot(self, node: str, *, why: str) -> None:
        at = self._ledger.clock.now()
        self._kept.append(lambda tx: tx.release_slot(node, at=at, why=why))

    @contextmanager
    def _written(self) -> Iterator[MemoryTx]:
        """One transaction that proves the claim and carries out what was kept for it."""
        with self._ledger.transaction() as tx:
            if self._ledger.tables.runs[self.run.id].epoch != self.run.epoch:
                raise LeaseLost(f"run {self.run.id} was ended by a person")
            for write in self._kept:
                write(tx)
            yield tx
        self._kept.clear()
