"""The ledger in memory: for replay and simulation. Same Protocols, same meaning, one process, no crash.

A transaction notes how to take back what it writes, so a failed walk leaves nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec

from healer.model import (
    ENDED_RUN_STATES,
    HARDWARE,
    LIFTING_VERBS,
    NODE_REMOVING,
    SLOT_GUARDS,
    AuditRecord,
    Breaker,
    Command,
    Component,
    Decision,
    FaultBurst,
    Finding,
    Forecast,
    GateFacts,
    Guard,
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
    Remedy,
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
    Waiting,
)
from healer.model.gate import COUNTED
from healer.ports.clock import Clock
from healer.ports.commanding import NodeTaken
from healer.ports.transactions import AlreadyRequeued, Checkpoints, GateTx, LeaseLost
from healer.sim.ledger_tables import Tables, Undo
from healer.sim.stores import MemoryCheckpoints

__all__ = ["MemoryClaim", "MemoryLedger", "MemoryTx", "Tables"]

_RECENT = timedelta(minutes=5)
#: Steps that took nodes: so many of the last ones the breaker looks at.
ENDED_KEPT = 10
T = TypeVar("T")


# Wide: implements `ports.Ledger`, and what PostgreSQL's own readers give the detector beside it.
class MemoryLedger:
    """`healer.ports.Ledger`. `snapshot` is what the gate sees of Slurm; its owner keeps it fresh."""

    def __init__(self, cluster: str, clock: Clock) -> None:
        self.cluster, self.clock = cluster, clock
        self.tables = Tables(breaker=Breaker(cluster=cluster))
        self.snapshot: SlurmSnapshot | None = None
        #: Where jobs tell their checkpoints; whoever hears them gives it.
        self.checkpoints: Checkpoints = MemoryCheckpoints()
        self._claimed: set[str] = set()

    @contextmanager
    def transaction(self) -> Iterator["MemoryTx"]:
        tx = MemoryTx(self)
        try:
            yield tx
        except BaseException:
            tx.undo()
            raise

    @contextmanager
    def claim(self, run: str) -> Iterator["MemoryClaim | None"]:
        known = self.tables.runs.get(run)
        due = known is not None and (known.wake_at is None or known.wake_at <= self.clock.now())
        if known is None or not due or known.state is not RunState.running or run in self._claimed:
            yield None
            return
        self._claimed.add(run)
        try:
            yield MemoryClaim(self, known)
        finally:
            self._claimed.discard(run)

    def bursts(self, since: datetime) -> list[FaultBurst]:
        found = (one for one in self.tables.bursts.values() if one.last_at >= since)
        return sorted(found, key=lambda one: (one.last_at, one.node, one.part, one.fault))

    def inventories(self) -> list[Inventory]:
        return list(self.tables.inventories.values())

    def note_texts(self, texts: Mapping[str, str], first_runs: int, now: datetime) -> list[Trial]:
        known = self.tables.texts
        left = first_runs if known else 0
        new = {
            (name, digest): Trial(name=name, digest=digest, since=now, left=left)
            for name, digest in texts.items()
            if (name, digest) not in known
        }
        if known and new:
            data = {"names": sorted(name for name, _ in new), "first_runs_by_approval": first_runs}
            record = AuditRecord(
                cluster=self.cluster,
                at=now,
                actor="healer",
                verb="rules.changed",
                subject=f"cluster/{self.cluster}",
                data=data,
            )
            self.tables.audit.append(record)
        known |= new
        for key, one in known.items():
            if one.left and texts.get(one.name) == one.digest:
                known[key] = msgspec.structs.replace(one, left=max(0, first_runs - self._let_go(one)))
        return [one for one in known.values() if one.left and texts.get(one.name) == one.digest]

    def _let_go(self, trial: Trial) -> int:
        return sum(
            run.state in COUNTED
            and not run.shadow
            and run.created_at >= trial.since
            and (run.approved_by is not None or run.by != "healer")
            and trial.name in {f"rule/{run.rule}", f"playbook/{run.playbook}"}
            for run in self.tables.runs.values()
        )

    def due_runs(self, now: datetime, *, sent: timedelta = timedelta(0)) -> list[str]:
        due = (
            run
            for run in self.tables.active_runs()
            if run.state is RunState.running and (run.wake_at is None or run.wake_at <= now)
        )
        return [run.id for run in due if run.epoch > 0 or not now - sent < run.created_at <= now]

    def has_run(self, run: str) -> bool:
        return run in self.tables.runs

    def consumed(self, row: int) -> bool:
        command = list(self.tables.requests.values())[row]
        return command not in self.tables.commands

    def command(self) -> AbstractContextManager["MemoryTx"]:
        return self.transaction()

    def together(
        self,
        work: Callable[["MemoryTx", Sequence[T]], Sequence[object]],
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
        """What runs and people told the detector since the last call, as the inbox would give it."""
        told, self.tables.commands = self.tables.commands, []
        return [
            Observation(
                digest=f"command-{index}",
                kind=ObservationKind.command,
                component=Component(cluster=self.cluster),
                event_at=one.at,
                arrived_at=one.at,
                data=msgspec.to_builtins(one),
            )
            for index, one in enumerate(told)
        ]

    def facts(self) -> GateFacts:
        now, tables = self.clock.now(), self.tables
        return GateFacts(
            cluster=self.cluster,
            snapshot=self.snapshot,
            slots=tuple(tables.slots.values()),
            granted=tuple(
                one.granted_at
                for one in tables.granted
                if not one.unusable and now - one.granted_at < timedelta(hours=1)
            ),
            pauses=tuple(one for one in tables.pauses if one.until is None or one.until > now),
            breaker=tables.breaker or Breaker(cluster=self.cluster),
            requeues=tuple(one for one in tables.requeues if now - one.at < timedelta(hours=24)),
            remedies=tuple(one for one in tables.remedies if now - one.at < timedelta(hours=24)),
            vetoes=tuple(one for one in tables.vetoes if one.until > now),
            modes=dict(tables.modes),
            actions=tuple(tables.ended),
            running={
                run.node: run.id
                for run in tables.active_runs()
                if run.state is RunState.running and not run.shadow and not run.alongside and run.node
            },
            permits=tuple(one for one in tables.permits if now - one.at < timedelta(hours=24)),
            waiting=tuple(self._waiting()),
            trials=tuple(one for one in tables.texts.values() if one.left),
        )

    def sweeps(self, playbooks: Sequence[str], since: datetime) -> Sweeps:
        tables = self.tables
        own = [run for run in tables.runs.values() if run.playbook in playbooks and run.node]
        known = tables.recent_incidents(self.clock.now() - _RECENT)
        ill = [one for one in known if one.is_open and one.fault_class in HARDWARE]
        ill.sort(key=lambda one: str(one.fault_class))
        tests = [
            (run.node or "", one.at)
            for run in tables.runs.values()
            for one in tables.log.get(run.id, ())
            if one.event is StepEvent.done
            and one.data.get("passed") is not None
            and one.data.get("verb") in {Verb.diagnose, Verb.sweep}
        ]
        begun = sorted((run.created_at, run.node or "") for run in own if not run.shadow)
        at_work = {RunState.running, RunState.stuck}
        return Sweeps(
            running={run.node or "": run.id for run in own if run.state in at_work and not run.shadow},
            ailing={one.root.node: one.fault_class for one in ill if one.root.node},
            tested={node: at for node, at in sorted(tests, key=lambda one: one[1]) if node and at > since},
            begun={node: at for at, node in begun if at > since},
        )

    def _waiting(self) -> Iterator[Waiting]:
        """Runs that a cap holds back, before they began or at a step."""
        for run in self.tables.active_runs():
            incident = self.tables.incidents.get(run.incident or "")
            at_step = run.state is RunState.running and run.question is not None
            if incident is None or run.shadow or not (at_step or run.state is RunState.held):
                continue
            log = self.tables.log.get(run.id, [])
            guard = log[-1].data.get("guard") if at_step and log else incident.held_by
            if guard in SLOT_GUARDS or guard == Guard.floor:
                yield Waiting(
                    run=run.id,
                    node=run.node,
                    guard=Guard(guard),
                    severity=incident.severity,
                    since=incident.opened,
                    jobs=incident.jobs_hit,
                )


def _settled(entry: LogEntry) -> bool:
    """A step that takes a node, at its end: done, or failed for good."""
    if entry.data.get("verb") not in NODE_REMOVING:
        return False
    return entry.event is StepEvent.done or (
        entry.event is StepEvent.failed and bool(entry.data.get("final"))
    )


# Wide: implements `ports.WalkTx`, `GateTx` and what people's commands write, as one transaction has them.
class MemoryTx:
    """`healer.ports.WalkTx` and `GateTx` at once."""

    #: Of a transaction of the gate: most walks need none.
    facts: GateFacts

    def __init__(self, ledger: MemoryLedger) -> None:
        self._ledger = ledger
        self.undo = Undo()
        #: The run that asks the gate; empty in the walk.
        self.run_id = ""

    @property
    def _tables(self) -> Tables:
        return self._ledger.tables

    def open_incidents(self) -> list[Incident]:
        return self._tables.recent_incidents(self._ledger.clock.now() - _RECENT)

    def incident(self, name: str) -> Incident | None:
        return self._tables.incidents.get(name)

    def merged_into(self, name: str) -> list[Incident]:
        found = (one for one in self._tables.incidents.values() if one.merged_into == name)
        return sorted(found, key=lambda one: (one.opened, one.id))

    def active_runs(self) -> list[Run]:
        return self._tables.active_runs()

    def has_active_runs(self) -> bool:
        return bool(self._tables.active_runs())

    def run(self, name: str) -> Run | None:
        return self._tables.runs.get(name)

    def is_returning(self, run: str) -> bool:
        log = self._tables.log.get(run, [])
        return any(one.event is StepEvent.started and one.data.get("verb") in LIFTING_VERBS for one in log)

    def lock_gate(self) -> GateFacts:
        return self._ledger.facts()

    def sweeps(self, playbooks: Sequence[str], since: datetime) -> Sweeps:
        return self._ledger.sweeps(playbooks, since)

    def spoken_of(self, batch: Sequence[Observation]) -> set[str]:
        return {one.incident for one in self._tables.commands if one.incident is not None}

    def save_incident(self, incident: Incident) -> None:
        self.undo.put(self._tables.incidents, incident.id, incident)

    def add_findings(self, incident: str, findings: Sequence[Finding]) -> None:
        self.undo.add(self._tables.findings, *((incident, one) for one in findings))

    def add_verdict(self, incident: str, verdict: IncidentVerdict, *, at: datetime) -> None:
        before = self._tables.verdicts.get(incident, ())
        self.undo.put(self._tables.verdicts, incident, (*before, VerdictAt(at=at, verdict=verdict)))

    def newest_durable(self, job: str) -> JobCheckpoint | None:
        return self._ledger.checkpoints.newest_durable(job)

    def save_bursts(self, bursts: Sequence[FaultBurst]) -> None:
        for one in bursts:
            self.undo.put(self._tables.bursts, (one.node, one.part, one.fault, one.began_at), one)

    def forecasts(self, since: datetime) -> list[Forecast]:
        found = self._tables.forecasts.values()
        kept = [one for one in found if one.ended_at is None or one.ended_at >= since]
        return sorted(kept, key=lambda one: (one.told_at, one.id))

    def save_forecast(self, forecast: Forecast) -> None:
        self.undo.put(self._tables.forecasts, forecast.id, forecast)

    def save_inventories(self, inventories: Sequence[Inventory]) -> None:
        for one in inventories:
            self.undo.put(self._tables.inventories, one.node, one)

    def references(self) -> list[Reference]:
        return list(self._tables.references.values())

    def add_decision(self, decision: Decision) -> None:
        self.undo.add(self._tables.decisions, decision)

    def create_run(self, run: Run) -> None:
        if run.id not in self._tables.runs:
            self._put(run)

    def _put(self, run: Run) -> None:
        """One run per node at a time; shadow runs and those that only look never count."""
        for other in self._tables.active_runs():
            both = other.state is run.state is RunState.running and not (other.shadow or run.shadow)
            both = both and not (other.alongside or run.alongside)
            if both and other.id != run.id and run.node is not None and other.node == run.node:
                raise NodeTaken(run.node)
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
        known = self._tables.runs[run]
        if known.state in ENDED_RUN_STATES:
            return known  # what has ended stays so
        ended = at if state in ENDED_RUN_STATES else None
        changed = msgspec.structs.replace(
            known,
            state=state,
            ended_at=ended,
            wake_at=None,
            question=question,
            epoch=known.epoch + 1,
            reason=known.reason or why,
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

    def running_beside(self, node: str | None, playbook: str) -> str | None:
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
        slots: Sequence[Slot],
        decisions: Sequence[Decision],
        records: Sequence[AuditRecord],
    ) -> None:
        for slot in slots:
            self.grant_slot(slot)
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
            taken_over = msgspec.structs.replace(held, run=slot.run, incident=incident)
            self.undo.put(self._tables.slots, slot.node, taken_over)

    def _has_ended(self, run: str) -> bool:
        known = self._tables.runs.get(run)
        return known is not None and known.state in ENDED_RUN_STATES

    def release_slot(self, node: str, *, at: datetime, why: str) -> None:
        """One that nothing was taken for is no slot of the hour."""
        slot = self._tables.slots.get(node)
        self.undo.drop(self._tables.slots, node)
        if slot is not None and slot.drained_at is None:
            granted = self._tables.granted
            gone = (node, slot.granted_at)
            self.undo.keep(granted, [one for one in granted if (one.node, one.granted_at) != gone])

    def slot_of(self, node: str) -> Slot | None:
        return self._tables.slots.get(node)

    def save_breaker(self, breaker: Breaker) -> None:
        self.undo.change(self._tables, "breaker", breaker)

    def add_veto(self, veto: Veto) -> None:
        self.undo.add(self._tables.vetoes, veto)

    def queue_message(self, message: Message | Ticket) -> None:
        """Healer's own list; the same id again is the same message."""
        if message.id not in self._tables.messages:
            self.undo.put(self._tables.messages, message.id, message)
            self.undo.add(self._tables.sent, (self._ledger.clock.now(), message))

    def has_ticket(self, incident: str) -> bool:
        kept = self._tables.messages.values()
        return any(isinstance(one, Ticket) and one.incident == incident for one in kept)

    def steps_of(self, incident: Incident) -> list[LogEntry]:
        meant = [
            run.id
            for run in self._tables.runs.values()
            if not run.shadow and (run.incident == incident.id or _on_node_since(run, incident))
        ]
        return sorted((one for run in meant for one in self._tables.log.get(run, ())), key=lambda one: one.at)

    def audit(self, record: AuditRecord) -> None:
        self.undo.add(self._tables.audit, record)

    def consume(self, observations: Sequence[Observation]) -> None:
        """There is no inbox: the caller gave the batch and forgets it."""

    def write(self, entry: LogEntry) -> None:
        tables = self._tables
        if entry.run not in tables.log:
            self.undo.put(tables.log, entry.run, [])
        self.undo.add(tables.log[entry.run], entry)
        self.undo.change(tables, "logged", tables.logged + 1)
        if _settled(entry):
            self.undo.keep(tables.ended, [*tables.ended, entry.event is StepEvent.done][-ENDED_KEPT:])

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
        if any((one.job, one.restarts) == key for one in self._tables.requeues):
            holder = self._tables.requeued_by.get(key, "")
            if holder != self.run_id and not self._has_ended(holder):
                raise AlreadyRequeued(holder)
        else:
            self.undo.add(self._tables.requeues, use)
        self.undo.put(self._tables.requeued_by, key, self.run_id)

    def send_command(self, command: Command, *, request: str = "") -> int:
        """What a person's request has told before is nothing. The row is its place among all requests."""
        requests = self._tables.requests
        if request and request not in requests:
            self.undo.put(requests, request, command)
        elif request:
            return list(requests).index(request)
        self.undo.add(self._tables.commands, command)
        return len(requests) - 1

    def audited(self, subject: str, request: str) -> bool:
        about = (one for one in self._tables.audit if one.subject == subject)
        return any(one.data.get("request") == request for one in about)

    def add_note(self, incident: str, text: str, *, by: str, at: datetime) -> None:
        self.undo.add(self._tables.notes, (incident, text, by, at))

    def add_pause(self, pause: Pause) -> bool:
        if self.pause(pause.id) is not None:
            return False
        self.undo.add(self._tables.pauses, pause)
        return True

    def pause(self, name: str) -> Pause | None:
        known = (*self._tables.pauses, *self._tables.ended_pauses)
        return next((one for one in known if one.id == name), None)

    def end_pause(self, name: str, *, by: str, at: datetime) -> Pause | None:
        ended = next((one for one in self._tables.pauses if one.id == name), None)
        if ended is not None:
            self.undo.keep(self._tables.pauses, [one for one in self._tables.pauses if one.id != name])
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
        """No replay is proof here, so `texts` decides nothing."""
        of_rule = [one for one in self._tables.incidents.values() if one.rule == rule]
        of_rule.sort(key=lambda one: one.opened, reverse=True)
        outcomes = [
            self._outcome(one, review[1] if review is not None and review[0] == one.id else one.review)
            for one in of_rule
            if one.merged_into is None
        ]
        judged = [outcome for outcome in outcomes if outcome is not None][:most]
        return Proof(right=judged.count(True), wrong=judged.count(False))

    def _outcome(self, incident: Incident, review: Review | None) -> bool | None:
        """A person's word stands above what was measured."""
        if review in (Review.true_fault, Review.false_alarm):
            return review is Review.true_fault
        runs = (run.id for run in self._tables.runs.values() if run.incident == incident.id)
        ended = (one for run in runs for one in self._tables.log.get(run, ()) if one.event is StepEvent.done)
        failed = any(
            one.data.get("verb") == Verb.diagnose and one.data.get("passed") is False for one in ended
        )
        replaced = not incident.is_open and incident.tried is Remedy.replace
        return True if failed or replaced else None

    def save_reference(self, reference: Reference) -> None:
        self.undo.put(self._tables.references, reference.kind, reference)

    def drop_reference(self, reference: Reference) -> bool:
        known = reference.kind in self._tables.references
        self.undo.drop(self._tables.references, reference.kind)
        return known

    def drop_requeue(self, job: str, restarts: int) -> None:
        key = (job, restarts)
        if self._tables.requeued_by.get(key) == self.run_id:
            self.undo.drop(self._tables.requeued_by, key)
            requeues = self._tables.requeues
            self.undo.keep(requeues, [one for one in requeues if (one.job, one.restarts) != key])


def _on_node_since(run: Run, incident: Incident) -> bool:
    node = incident.root.node
    return node is not None and run.node == node and run.created_at >= incident.opened


# Wide: implements `ports.RunClaim`.
class MemoryClaim:
    """`healer.ports.RunClaim`. No time-out takes it; a person who ends the run does, as in PostgreSQL."""

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
        known = self._ledger.tables.recent_incidents(self._ledger.clock.now() - _RECENT)
        return {name for one in known if one.is_open for name in one.bad_nodes}

    def references(self) -> list[Reference]:
        return list(self._ledger.tables.references.values())

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
        self,
        entry: LogEntry,
        *,
        audit: AuditRecord | None = None,
        drained: RemedyUse | None = None,
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
        ended = self._ledger.clock.now() if state in ENDED_RUN_STATES else None
        changed = msgspec.structs.replace(
            self.run,
            state=state,
            wake_at=wake_at,
            question=question,
            approve_until=approve_until,
            ended_at=ended,
        )
        with self._written() as tx:
            tx.undo.put(self._ledger.tables.runs, self.run.id, changed)
            if command is not None:
                tx.send_command(command)
        self.run = changed

    def history(self, node: str, since: datetime) -> NodeHistory:
        tables = self._ledger.tables
        mine = (one for one in tables.incidents.values() if one.root.node == node)
        kept = [
            one for one in mine if one.merged_into is None and (one.closed is None or one.closed >= since)
        ]
        filed = {one.incident for one in tables.messages.values() if isinstance(one, Ticket)}
        return NodeHistory(
            incidents=tuple(sorted(kept, key=lambda one: (one.opened, one.id))),
            ticketed=frozenset(one.id for one in kept if one.id in filed),
        )

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
        """One transaction that also proves the claim, with all that was kept for it."""
        with self._ledger.transaction() as tx:
            if self._ledger.tables.runs[self.run.id].epoch != self.run.epoch:
                raise LeaseLost(f"run {self.run.id} was ended by a person")
            for one in self._kept:
                one(tx)
            yield tx
        self._kept.clear()
