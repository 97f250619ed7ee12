"""Reports in order of arrival: when their samples were taken, by the clocks of hosts, and where their columns
go.

A fleet's nodes report the same columns again and again, so a set of them is looked up once.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from healer.model import Column
from healer.model.telemetry import Report, StepBatch
from healer.observations.axes import grown
from healer.observations.figure_senders import either_of
from healer.ports.measurements import ColumnBook

#: If a sender's clock is ahead of the arrival by more than this, the time of arrival counts.
AHEAD_S = 5.0
#: Anything further in the future of this process is counted: clocks of machines differ a little.
FUTURE_S = 30.0
#: This process's own clock went back if it is this far before what it has seen: two slots of the windows.
BACK_S = 10.0
#: Senders that lag by more in two successive looks have a slow clock, or are steadily behind.
SLOW_S = 30.0
LOOK_S = 120.0
#: A lag is steady if the minima of two looks differ by no more than this; a corrected clock changes it by
#: more.
STEADY_S = 10.0


def timely(batch: StepBatch, now: datetime) -> StepBatch:
    """Step times, with any time further in the future than clocks differ replaced by now."""
    latest = now + timedelta(seconds=FUTURE_S)
    late = batch.at > latest.timestamp()
    if batch.arrived_at <= latest and not late.any():
        return batch
    at = np.where(late, now.timestamp(), batch.at)
    return replace(batch, at=at, arrived_at=min(batch.arrived_at, now))


class ClockStepped(Exception):
    """This process's clock went back: what is remembered is from a time that has not come yet."""


@dataclass(slots=True)
class _Lag:
    """The lag of one node. `off_s` is the correction; the rest belongs to the current look."""

    begun_s: float
    least_s: float
    before_s: float = float("nan")
    off_s: float = 0.0


class Clocks:
    """Dates reports. A node whose samples are steadily late is assumed to have a slow clock and is dated by
    its least lag, so that its samples are neither stale nor older than all windows. A backlog being sent is
    not steady: it keeps its age. One instance per `Telemetry`; bounded by its nodes.
    """

    def __init__(self) -> None:
        #: Reports with a time in the future, of their sender or of the host where they arrived.
        self.future = 0
        self._lags: dict[int, _Lag] = {}

    @property
    def slow(self) -> int:
        """Nodes whose samples are currently corrected by their lag."""
        return sum(lag.off_s > 0 for lag in self._lags.values())

    def date(self, node: NDArray, at_s: NDArray, arrived_s: NDArray, now_s: float) -> NDArray[np.float64]:
        """When reports were measured, s since 1970, never after `now_s`. `node`: their rows, in order of
        arrival."""
        ahead = at_s - arrived_s > AHEAD_S
        self.future += int(np.count_nonzero(ahead | (np.maximum(at_s, arrived_s) > now_s + FUTURE_S)))
        arrived_s = np.minimum(arrived_s, now_s)
        at_s = np.where(ahead, arrived_s, at_s)
        lag_s = arrived_s - at_s
        lagging = lag_s > SLOW_S
        if self._lags or lagging.any():
            slow = np.isin(node, [*self._lags, *node[lagging].tolist()])
            for index in np.flatnonzero(slow).tolist():
                row, late_s = int(node[index]), float(lag_s[index])
                if late_s > SLOW_S or row in self._lags:
                    at_s[index] += self._off(row, late_s, float(arrived_s[index]))
        return np.minimum(at_s, now_s)

    def _off(self, node: int, lag_s: float, arrived_s: float) -> float:
        lag = self._lags.get(node)
        if lag_s <= SLOW_S:
            del self._lags[node]
            return 0.0
        if lag is None or lag_s < lag.off_s - STEADY_S:
            lag = self._lags[node] = _Lag(begun_s=arrived_s, least_s=lag_s)
        lag.least_s = min(lag.least_s, lag_s)
        if arrived_s - lag.begun_s >= LOOK_S:
            if abs(lag.least_s - lag.before_s) <= STEADY_S:
                lag.off_s = lag.least_s
            lag.before_s, lag.begun_s, lag.least_s = lag.least_s, arrived_s, lag_s
        return lag.off_s


#: Moments per node that are processed in one call; a node that sends more must not delay the others.
MOMENTS_MAX = 8


@dataclass(slots=True)
class Round:
    """Reports of different nodes: `nodes` are their rows, ascending, `times` in s since 1970."""

    nodes: NDArray[np.int32]
    times: NDArray[np.float64]
    reports: list[Report]


@dataclass(slots=True)
class Rounds:
    """Oldest first. `repeated`: samples repeated for one moment. `surplus`: samples of moments older than the
    newest 8 of their node."""

    rounds: list[Round] = field(default_factory=list)
    repeated: int = 0
    surplus: int = 0


def in_rounds(nodes: NDArray[np.int32], times: NDArray[np.float64], reports: Sequence[Report]) -> Rounds:
    """`nodes` are rows. Several reports for one moment are merged into one: a scrape arrives in many pieces
    through a sharded remote_write."""
    made = Rounds()
    if not len(reports):
        return made
    order = np.lexsort((times, nodes))
    node, at_s = nodes[order], times[order]
    moments = np.flatnonzero(np.r_[True, (np.diff(node) != 0) | (np.diff(at_s) != 0)])
    ends = np.r_[moments[1:], len(order)]
    # The index of the moment within its node; the oldest that counts is 0.
    firsts = np.flatnonzero(np.r_[True, np.diff(node[moments]) != 0])
    each = np.diff(np.r_[firsts, len(moments)])
    turn = np.arange(len(moments)) - np.repeat(firsts + np.maximum(each - MOMENTS_MAX, 0), each)
    for moment in np.flatnonzero(turn < 0).tolist():
        made.surplus += sum(len(reports[at].values) for at in order[moments[moment] : ends[moment]].tolist())
    alone = ends - moments == 1
    for number in range(int(turn.max()) + 1):
        some = np.flatnonzero(turn == number)
        chosen = [reports[at] for at in order[moments[some]].tolist()]
        for place in np.flatnonzero(~alone[some]).tolist():
            pieces = order[moments[some[place]] : ends[some[place]]].tolist()
            chosen[place] = _joined([reports[at] for at in pieces], made)
        made.rounds.append(Round(node[moments[some]], at_s[moments[some]], chosen))
    return made


def _joined(reports: list[Report], made: Rounds) -> Report:
    """The first report of a series counts."""
    columns = np.concatenate([report.columns for report in reports])
    values = np.concatenate([report.values for report in reports])
    given = np.isfinite(values)
    columns, first = np.unique(columns[given], return_index=True)
    made.repeated += int(np.count_nonzero(given)) - len(columns)
    relayed_by = either_of(report.relayed_by for report in reports)
    return msgspec.structs.replace(
        reports[0], columns=columns, values=values[given][first], relayed_by=relayed_by
    )


#: Column numbers are assigned densely; a number far beyond the book's own limit is invalid.
COLUMN_ID_MAX = 1 << 22
NOT_LOOKED_UP, UNKNOWN, NO_ROOM = -2, -1, -3
#: Sets of columns that are remembered: some kB each.
LAYOUTS_MAX = 2000
#: This many reports with the same columns are worth a matrix of their own.
ALIKE = 8


class Place(NamedTuple):
    """The place of one column: number of the ring, of the signal in it, and of the part on its axis."""

    ring: int
    signal: int
    part: int


class Stretch(NamedTuple):
    """The part of a report for one ring and the same parts: (p,) parts, (s,) signals, and `at`, (s, p): where
    in the report each signal of each part is."""

    ring: int
    part: NDArray[np.int32]
    signal: NDArray[np.int32]
    at: NDArray[np.intp]


class Layout(NamedTuple):
    """The layout of one set of columns. `unknown` and `no_room` are places of columns that no ring takes."""

    stretches: tuple[Stretch, ...]
    unknown: NDArray[np.intp]
    no_room: NDArray[np.intp]


class Layouts:
    """`place` returns where a column goes: a Place, UNKNOWN or NO_ROOM; it is called once per column."""

    def __init__(self, place: Callable[[Column], Place | int]) -> None:
        self._place = place
        #: By number of the column: its ring (below 0: none), its signal there, its part.
        self.ring = np.full(0, NOT_LOOKED_UP, np.int8)
        self.signal = np.zeros(0, np.int32)
        self.part = np.zeros(0, np.int32)
        self._known: OrderedDict[bytes, Layout] = OrderedDict()

    def alike(
        self, reports: Sequence[Report], book: ColumnBook
    ) -> tuple[list[tuple[list[int], Layout]], list[int]]:
        """Which reports (by index) share a layout, and those with too few of their kind."""
        # Reports that were unpacked together share one array, whose bytes are then read only once.
        shared: dict[int, list[int]] = {}
        for index, report in enumerate(reports):
            shared.setdefault(id(report.columns), []).append(index)
        same: dict[bytes, list[int]] = {}
        for indexes in shared.values():
            same.setdefault(reports[indexes[0]].columns.tobytes(), []).extend(indexes)
        groups, others = [], []
        for key, indexes in same.items():
            if len(indexes) < ALIKE:
                others += indexes
            else:
                indexes.sort()
                groups.append((indexes, self._layout(key, reports[indexes[0]].columns, book)))
        return groups, others

    def _layout(self, key: bytes, columns: NDArray[np.int32], book: ColumnBook) -> Layout:
        layout = self._known.get(key)
        if layout is not None:
            self._known.move_to_end(key)
            return layout
        safe, of = self.looked_up(columns, book)
        nowhere = np.flatnonzero((of == UNKNOWN) | (of == NOT_LOOKED_UP))
        made = Layout(tuple(self._stretches(safe, of)), nowhere, np.flatnonzero(of == NO_ROOM))
        # Columns that the book does not know yet are looked up again next time.
        if not (of == NOT_LOOKED_UP).any():
            self._known[key] = made
            if len(self._known) > LAYOUTS_MAX:
                self._known.popitem(last=False)
        return made

    def _stretches(self, columns: NDArray[np.int32], ring: NDArray[np.int8]) -> Iterator[Stretch]:
        """Signals of the same parts are kept together, so that the place of their samples is computed once
        for all."""
        same: dict[tuple[int, bytes], list[NDArray[np.intp]]] = {}
        kept = np.flatnonzero(ring >= 0)
        kept = kept[np.lexsort((self.part[columns[kept]], self.signal[columns[kept]], ring[kept]))]
        places = np.stack((ring[kept], self.signal[columns[kept]]))
        edges = np.flatnonzero((places[:, 1:] != places[:, :-1]).any(axis=0)) + 1
        for at in np.split(kept, edges) if len(kept) else ():
            same.setdefault((int(ring[at[0]]), self.part[columns[at]].tobytes()), []).append(at)
        for (number, _), each in same.items():
            at = np.stack(each)
            yield Stretch(number, self.part[columns[at[0]]], self.signal[columns[at[:, 0]]], at)

    def looked_up(self, columns: NDArray[np.int32], book: ColumnBook) -> tuple[NDArray, NDArray[np.int8]]:
        """(m,) the columns, 0 for an invalid number, and the ring of each."""
        valid = (columns >= 0) & (columns < COLUMN_ID_MAX)
        safe = np.where(valid, columns, 0)
        self._learn(safe, book)
        return safe, np.where(valid, self.ring[safe], np.int8(UNKNOWN))

    def _learn(self, columns: NDArray, book: ColumnBook) -> None:
        """Columns that the book does not know are looked up again next time."""
        most = int(columns.max(initial=-1)) + 1
        self.ring = grown(self.ring, most, NOT_LOOKED_UP)
        self.signal, self.part = grown(self.signal, most, 0), grown(self.part, most, 0)
        new = columns[self.ring[columns] == NOT_LOOKED_UP]
        if not len(new):
            return
        for number, column in sorted(book.columns(np.unique(new).tolist()).items()):
            place = self._place(column)
            if isinstance(place, Place):
                self.ring[number], self.signal[number], self.part[number] = place
            else:
                self.ring[number] = place
