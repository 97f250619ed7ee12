"""The tables of the ledger in memory, and the undo log of a transaction."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Generic, TypeVar

from healer.model import (
    ENDED_RUN_STATES,
    AuditRecord,
    Breaker,
    Command,
    Decision,
    FaultBurst,
    Finding,
    Forecast,
    Incident,
    Inventory,
    LogEntry,
    Message,
    Mode,
    Pause,
    Permit,
    Reference,
    RemedyUse,
    RequeueUse,
    Run,
    Slot,
    Ticket,
    Trial,
    VerdictAt,
    Veto,
)

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
        self._left -= {name for name in self._left if is_over(self[name])}
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
    #: Whether each of the last ten steps that removed nodes succeeded, oldest first.
    ended: list[bool] = field(default_factory=list)
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
        """Whether anything was written."""
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
