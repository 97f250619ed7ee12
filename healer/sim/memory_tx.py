"""One transaction on the ledger in memory: what walks, the gate and people's commands read and write."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from healer.model import (
    ENDED_RUN_STATES,
    LIFTING_VERBS,
    NODE_REMOVING,
    AuditRecord,
    Breaker,
    Command,
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
    Observation,
    Pause,
    Proof,
    Reference,
    RemedyUse,
    RequeueUse,
    Review,
    Run,
    RunState,
    Slot,
    StepEvent,
    Sweeps,
    Ticket,
    VerdictAt,
    Veto,
)
from healer.ports.commanding import NodeTaken
from healer.ports.transactions import AlreadyRequeued
from healer.sim.ledger_reads import RECENT, outcome
from healer.sim.ledger_tables import Tables, Undo

if TYPE_CHECKING:
    from healer.sim.memory_ledger import MemoryLedger

#: Ended steps that removed nodes from service: the breaker looks at this many.
ENDED_KEPT = 10


def _is_settled(entry: LogEntry) -> bool:
    """Whether a step that removes a node from service is over: done, or failed for good."""
    if entry.data.get("verb") not in NODE_REMOVING:
        return False
    return entry.event is StepEvent.done or (
        entry.event is StepEvent.failed and bool(entry.data.get("final"))
    )


def _same_grant(slot: Slot, other: Slot) -> bool:
    return (slot.node, slot.granted_at) == (other.node, other.granted_at)


# Wide: implements `ports.WalkTx`, `ports.GateTx` and `ports.CommandTx`.
class MemoryTx:
    """`healer.ports.WalkTx`, `GateTx` and `CommandTx` in one."""

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
        return self._tables.recent_incidents(self._ledger.clock.now() - RECENT)

    def incident(self, name: str) -> Incident | None:
        return self._tables.incidents.get(name)

    def merged_into(self, name: str) -> list[Incident]:
        parts = (incident for incident in self._tables.incidents.values() if incident.merged_into == name)
        return sorted(parts, key=lambda incident: (incident.opened, incident.id))

    def active_runs(self) -> list[Run]:
        return self._tables.active_runs()

    def has_active_runs(self) -> bool:
        return bool(self._tables.active_runs())

    def run(self, name: str) -> Run | None:
        return self._tables.runs.get(name)

    def is_returning(self, run: str) -> bool:
        return any(
            entry.event is StepEvent.started and entry.data.get("verb") in LIFTING_VERBS
            for entry in self._tables.log.get(run, ())
        )

    def lock_gate(self) -> GateFacts:
        return self._ledger.facts()

    def sweeps(self, playbooks: Sequence[str], since: datetime) -> Sweeps:
        return self._ledger.sweeps(playbooks, since)

    def incidents_with_commands(self, batch: Sequence[Observation]) -> set[str]:
        return {command.incident for command in self._tables.commands if command.incident is not None}

    def save_incident(self, incident: Incident) -> None:
        self.undo.put(self._tables.incidents, incident.id, incident)

    def add_findings(self, incident: str, findings: Sequence[Finding]) -> None:
        self.undo.add(self._tables.findings, *((incident, finding) for finding in findings))

    def add_verdict(self, incident: str, verdict: IncidentVerdict, *, at: datetime) -> None:
        before = self._tables.verdicts.get(incident, ())
        self.undo.put(self._tables.verdicts, incident, (*before, VerdictAt(at=at, verdict=verdict)))

    def newest_durable(self, job: str) -> JobCheckpoint | None:
        return self._ledger.checkpoints.newest_durable(job)

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

    def save_forecast(self, forecast: Forecast) -> None:
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
        self,
        run: str,
        state: RunState,
        *,
        why: str,
        at: datetime,
        question: str | None = None,
        **change: Any,
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

    def read_gate(self) -> GateFacts:
        return self._ledger.facts()

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
        self,
        runs: Sequence[Run],
        decisions: Sequence[Decision],
        records: Sequence[AuditRecord],
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
        elif held.drained_at is None or self._has_ended(held.run):  # a later run takes over what is left
            incident = slot.incident or held.incident
            newest = slot if held.drained_at is None else held
            change = {"run": slot.run, "incident": incident, "drained_at": held.drained_at}
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
        """A message of the same id is queued once."""
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
            self.undo.replace(tables.ended, [*tables.ended, entry.event is StepEvent.done][-ENDED_KEPT:])

    def mark_drained(self, use: RemedyUse) -> None:
        slot = self._tables.slots.get(use.node)
        if slot is not None:
            self.undo.put(self._tables.slots, use.node, msgspec.structs.replace(slot, drained_at=use.at))
        if use.incident is not None:
            self.add_remedy(use)

    def add_remedy(self, use: RemedyUse) -> None:
        self.undo.add(self._tables.remedies, use)

    def add_requeue(self, use: RequeueUse) -> None:
        key = (use.job, use.restarts)
        if any((other.job, other.restarts) == key for other in self._tables.requeues):
            holder = self._tables.requeued_by.get(key, "")
            if holder != self.run_id and not self._has_ended(holder):
                raise AlreadyRequeued(holder)
        else:
            self.undo.add(self._tables.requeues, use)
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
        texts: Mapping[str, str],
        review: tuple[str, Review] | None = None,
    ) -> Proof:
        """`texts` is ignored: replays are no proof here."""
        of_rule = [incident for incident in self._tables.incidents.values() if incident.rule == rule]
        of_rule.sort(key=lambda incident: incident.opened, reverse=True)
        outcomes: list[bool | None] = []
        for incident in of_rule:
            if incident.merged_into is None:
                given = review[1] if review is not None and review[0] == incident.id else incident.review
                outcomes.append(outcome(self._tables, incident, given))
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
