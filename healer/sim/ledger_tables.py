"""The tables of the ledger in memory, and the undo log of a transaction."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from healer.model import (
    ENDED_RUN_STATES,
    HARDWARE,
    SLOT_GUARDS,
    AuditRecord,
    Breaker,
    Command,
    Decision,
    FaultBurst,
    Finding,
    Forecast,
    GateFacts,
    Guard,
    Incident,
    Inventory,
    LogEntry,
    Message,
    Mode,
    NodeHistory,
    Pause,
    Permit,
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
    by_opening,
)
from healer.model.gate import COUNTED

K = TypeVar("K")
V = TypeVar("V")
_NOTHING = object()


class Rows(dict[str, V], Generic[V]):
    """Rows by id in the order of insertion. Unfinished rows are found without a scan of the others, of which
    a month has thousands. Write single items only."""

    def __init__(self, rows: Mapping[str, V] | Iterable[tuple[str, V]] = ()) -> None:
        super().__init__(rows)
        self._place = {name: place for place, name in enumerate(self)}
        self._left = set(self)
        self._next = len(self)

    def __setitem__(self, name: str, row: V) -> None:
        if name not in self:
            self._place[name] = self._next
            self._next += 1
        self._left.add(name)
        super().__setitem__(name, row)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        del self._place[name]
        self._left.discard(name)

    def left(self, is_over: Callable[[V], bool]) -> list[V]:
        """Rows that are not over, oldest first. A row that is over stays so until it is written again."""
        if over := [name for name in self._left if is_over(self[name])]:
            self._left.difference_update(over)
        if len(self._left) < 2:
            return [self[name] for name in self._left]
        return [self[name] for name in sorted(self._left, key=self._place.__getitem__)]


# Wide: one field for each table of the ledger.
@dataclass
class Tables:
    """All rows of the ledger."""

    incidents: dict[str, Incident] = field(default_factory=Rows[Incident])
    #: Nodes whose incident was dropped -> until when they are on probation.
    probations: dict[str, datetime] = field(default_factory=dict)
    findings: list[tuple[str, Finding]] = field(default_factory=list)
    #: By incident, oldest first.
    verdicts: dict[str, tuple[VerdictAt, ...]] = field(default_factory=dict)
    bursts: dict[tuple[str, str, str, datetime], FaultBurst] = field(default_factory=dict)
    #: Inventories by node, references by kind.
    inventories: dict[str, Inventory] = field(default_factory=dict)
    forecasts: dict[str, Forecast] = field(default_factory=dict)
    references: dict[str, Reference] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    runs: dict[str, Run] = field(default_factory=Rows[Run])
    log: dict[str, list[LogEntry]] = field(default_factory=dict)
    #: Number of log entries ever written: it grows when a run does something.
    logged: int = 0
    #: When each of the last ten steps that removed nodes ended, and whether it succeeded, oldest first.
    ended: list[tuple[datetime, bool]] = field(default_factory=list)
    slots: dict[str, Slot] = field(default_factory=dict)
    granted: list[Slot] = field(default_factory=list)
    requeues: list[RequeueUse] = field(default_factory=list)
    #: (job, restarts) -> the run that was granted its requeue.
    requeued_by: dict[tuple[str, int], str] = field(default_factory=dict)
    remedies: list[RemedyUse] = field(default_factory=list)
    vetoes: list[Veto] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)
    ended_pauses: list[Pause] = field(default_factory=list)
    #: Incident, text, who, when.
    notes: list[tuple[str, str, str, datetime]] = field(default_factory=list)
    permits: list[Permit] = field(default_factory=list)
    modes: dict[str, Mode] = field(default_factory=dict)
    #: Who set each mode.
    modes_by: dict[str, str] = field(default_factory=dict)
    messages: dict[str, Message | Ticket] = field(default_factory=dict)
    sent: list[tuple[datetime, Message | Ticket]] = field(default_factory=list)
    audit: list[AuditRecord] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    #: By the request of the person who sent it.
    requests: dict[str, Command] = field(default_factory=dict)
    breaker: Breaker | None = None
    #: By name and digest.
    texts: dict[tuple[str, str], Trial] = field(default_factory=dict)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in {"incidents", "runs"} and not isinstance(value, Rows):
            value = Rows(value)
        super().__setattr__(name, value)

    def recent_incidents(self, since: datetime) -> list[Incident]:
        """Incidents that are open or opened after `since`, which must never decrease."""
        assert isinstance(self.incidents, Rows)
        return self.incidents.left(lambda incident: not incident.is_open and incident.opened <= since)

    def active_runs(self) -> list[Run]:
        assert isinstance(self.runs, Rows)
        return self.runs.left(lambda run: run.state in ENDED_RUN_STATES)


class Undo:
    """Writes into tables and remembers how to undo it: a copy of all tables would grow with the history."""

    def __init__(self) -> None:
        self._back: list[Callable[[], object]] = []

    def __bool__(self) -> bool:
        """Whether anything was written: tests count such commits."""
        return bool(self._back)

    def __call__(self) -> None:
        """Undoes all writes, newest first."""
        while self._back:
            self._back.pop()()

    def put(self, rows: dict[K, V], key: K, row: V) -> None:
        self._back.append(partial(_restore, rows, key, rows.get(key, _NOTHING)))
        rows[key] = row

    def drop(self, rows: dict[K, V], key: K) -> None:
        if key in rows:
            self._back.append(partial(_restore, rows, key, rows[key]))
            del rows[key]

    def add(self, rows: list[V], *more: V) -> None:
        self._back.append(partial(rows.__delitem__, slice(len(rows), None)))
        rows.extend(more)

    def remove(self, rows: list[V], is_removed: Callable[[V], bool]) -> None:
        self.replace(rows, [row for row in rows if not is_removed(row)])

    def replace(self, rows: list[V], kept: Iterable[V]) -> None:
        before = list(rows)
        self._back.append(lambda: rows.__setitem__(slice(None), before))
        rows[:] = kept

    def change(self, tables: Tables, name: str, value: object) -> None:
        self._back.append(partial(setattr, tables, name, getattr(tables, name)))
        setattr(tables, name, value)


def _restore(rows: dict[Any, Any], key: Any, before: Any) -> None:
    if before is _NOTHING:
        del rows[key]
    else:
        rows[key] = before


#: So long after its end an incident still counts as recent.
RECENT = timedelta(minutes=5)
_DAY = timedelta(hours=24)


def gate_facts(tables: Tables, cluster: str, snapshot: SlurmSnapshot | None, now: datetime) -> GateFacts:
    """What the gate decides by: `snapshot` is Slurm's picture as it sees it."""
    breaker = tables.breaker or Breaker(cluster=cluster)
    since = breaker.since
    return GateFacts(
        cluster=cluster,
        snapshot=snapshot,
        slots=tuple(tables.slots.values()),
        granted=tuple(
            slot.granted_at
            for slot in tables.granted
            if not slot.unusable and now - slot.granted_at < timedelta(hours=1)
        ),
        pauses=tuple(pause for pause in tables.pauses if pause.until is None or pause.until > now),
        breaker=breaker,
        requeues=_of_last_day(tables.requeues, now),
        remedies=_of_last_day(tables.remedies, now),
        vetoes=tuple(veto for veto in tables.vetoes if veto.until > now),
        modes=dict(tables.modes),
        actions=tuple(worked for at, worked in tables.ended if since is None or at > since),
        running={
            run.node: run.id
            for run in tables.active_runs()
            if run.state is RunState.running and not run.shadow and not run.alongside and run.node
        },
        unmade=dict(_unmade(tables)),
        kept={
            slot.node: run.by
            for slot in tables.slots.values()
            if (run := tables.runs.get(slot.run)) is not None
            and run.by != "healer"
            and run.state not in ENDED_RUN_STATES
        },
        permits=_of_last_day(tables.permits, now),
        waiting=tuple(_waiting(tables)),
        trials=tuple(trial for trial in tables.texts.values() if trial.left),
    )


def _unmade(tables: Tables) -> Iterator[tuple[str, datetime]]:
    for slot in tables.slots.values():
        run = tables.runs.get(slot.run)
        if slot.drained_at is None and (run is None or run.state in ENDED_RUN_STATES):
            yield slot.node, run.ended_at or slot.granted_at if run is not None else slot.granted_at


def _of_last_day(rows: Iterable[Any], now: datetime) -> tuple[Any, ...]:
    return tuple(row for row in rows if now - row.at < _DAY)


def _waiting(tables: Tables) -> Iterator[Waiting]:
    """Runs that a cap holds back, before they began or at a step."""
    for run in tables.active_runs():
        incident = tables.incidents.get(run.incident or "")
        at_step = run.state is RunState.running and run.question is not None
        if incident is None or run.shadow or not (at_step or run.state is RunState.held):
            continue
        log = tables.log.get(run.id, [])
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


def sweeps(tables: Tables, playbooks: Sequence[str], since: datetime, now: datetime) -> Sweeps:
    """Runs of these playbooks, tests since then, and nodes with an open hardware fault."""
    runs = [run for run in tables.runs.values() if run.playbook in playbooks and run.node]
    open_faults = [
        incident
        for incident in tables.recent_incidents(now - RECENT)
        if incident.is_open and incident.fault_class in HARDWARE
    ]
    open_faults.sort(key=lambda incident: str(incident.fault_class))
    tests = [
        (entry.at, run.node)
        for run in tables.runs.values()
        for entry in tables.log.get(run.id, ())
        if run.node
        and entry.event is StepEvent.done
        and entry.data.get("passed") is not None
        and entry.data.get("verb") in {Verb.diagnose, Verb.sweep}
    ]
    tests.sort(key=lambda test: test[0])
    begun = sorted((run.created_at, run.node or "") for run in runs if not run.shadow)
    at_work = {RunState.running, RunState.stuck}
    return Sweeps(
        running={run.node or "": run.id for run in runs if run.state in at_work and not run.shadow},
        ailing={fault.root.node: fault.fault_class for fault in open_faults if fault.root.node},
        tested={node: at for at, node in tests if at > since},
        begun={node: at for at, node in begun if at > since},
    )


def node_history(tables: Tables, node: str, since: datetime) -> NodeHistory:
    """Incidents of the node that were open after `since`, oldest first, and which of them have a ticket."""
    incidents = sorted(
        (
            incident
            for incident in tables.incidents.values()
            if incident.root.node == node
            and incident.merged_into is None
            and (incident.closed is None or incident.closed >= since)
        ),
        key=by_opening,
    )
    filed = {message.incident for message in tables.messages.values() if isinstance(message, Ticket)}
    return NodeHistory(
        incidents=tuple(incidents),
        ticketed=frozenset(incident.id for incident in incidents if incident.id in filed),
    )


def outcome(tables: Tables, incident: Incident, review: Review | None) -> bool | None:
    """Whether the incident was a true fault; None: unknown. A person's review outweighs what was measured."""
    if review in (Review.true_fault, Review.false_alarm):
        return review is Review.true_fault
    failed = any(
        entry.event is StepEvent.done
        and entry.data.get("verb") == Verb.diagnose
        and entry.data.get("passed") is False
        for run in tables.runs.values()
        if run.incident == incident.id
        for entry in tables.log.get(run.id, ())
    )
    replaced = not incident.is_open and incident.tried is Remedy.replace
    return True if failed or replaced else None


def rename_texts(tables: Tables, digests: Mapping[str, tuple[str, str]]) -> None:
    """Keeps the record of each text that is known under its former digest under the present one."""
    for name, (digest, former) in digests.items():
        trial = tables.texts.get((name, former))
        if trial is not None and (name, digest) not in tables.texts:
            del tables.texts[name, trial.digest]
            tables.texts[name, digest] = msgspec.structs.replace(trial, digest=digest)


def record_texts(
    tables: Tables, cluster: str, texts: Mapping[str, str], first_runs: int, now: datetime
) -> list[Trial]:
    """Stores new texts of rules and playbooks, and counts down the first runs that need approval. Returns the
    trials that are left."""
    known_texts = tables.texts
    new = {
        (name, digest): Trial(name=name, digest=digest, since=now, left=first_runs if known_texts else 0)
        for name, digest in texts.items()
        if (name, digest) not in known_texts
    }
    if known_texts and new:
        data = {"names": sorted(name for name, _ in new), "first_runs_by_approval": first_runs}
        subject = f"cluster/{cluster}"
        tables.audit.append(
            AuditRecord(
                cluster=cluster, at=now, actor="healer", verb="rules.changed", subject=subject, data=data
            )
        )
    known_texts |= new
    in_trial = []
    for key, trial in known_texts.items():
        if trial.left and texts.get(trial.name) == trial.digest:
            left = max(0, first_runs - _approved_runs(tables.runs.values(), trial))
            known_texts[key] = msgspec.structs.replace(trial, left=left)
            in_trial += [known_texts[key]] if left else []
    return in_trial


def _approved_runs(runs: Iterable[Run], trial: Trial) -> int:
    return sum(
        run.state in COUNTED
        and not run.shadow
        and run.created_at >= trial.since
        and (run.approved_by is not None or run.by != "healer")
        and trial.name in {f"rule/{run.rule}", f"playbook/{run.playbook}"}
        for run in runs
    )
