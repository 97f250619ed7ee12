"""The last 15 minutes of all measurements in one cluster, as arrays over its GPUs, nodes and links.

Used by one thread only. Returned arrays are valid until the next `update` or `show`.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatch
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from healer.model import (
    MEASURED_SCOPES,
    OF_DEVICES,
    Catalogue,
    Column,
    Component,
    GpuModel,
    Part,
    Scope,
    Signal,
    SignalKind,
    SlurmSnapshot,
    Topology,
    device_in,
)
from healer.model.telemetry import Report
from healer.observations.axes import (
    GPUS_MAX,
    ROWS_MAX,
    Axes,
    Axis,
    derived_signals,
    grown,
    place_jobs,
    place_nodes,
)
from healer.observations.figure_senders import FigureSenders, either_of
from healer.observations.groups import Groups, groups_of, node_groups_of, rack_groups_of
from healer.observations.report_order import (
    AHEAD_S,
    BACK_S,
    NO_ROOM,
    NOT_LOOKED_UP,
    UNKNOWN,
    Clocks,
    ClockStepped,
    Layout,
    Layouts,
    Place,
    Stretch,
    in_rounds,
)
from healer.observations.rings import SLOT_S, SLOTS, WINDOW_S, Rings, Run, slot_of
from healer.ports.measurements import ColumnBook

SIGNALS_MAX = 200
#: Limit for the windows of one axis. 100,000 GPUs with 70 signals fit.
BYTES_MAX = 8 << 30
#: Samples stored in the windows at once: some arrays of this size fit into the processor's cache.
TOGETHER = 8192
#: Adjacent rows are stored together, signal by signal, if there are this many on average: for few rows many
#: calls cost more than they save.
RUN_LEAST = 512


@dataclass(slots=True)
class Counts:
    """Counts of this process. `late`: samples older than the windows, or from before a repair.
    `out_of_order`: not newer than the last of their series, or repeated. `future`: reports whose clock, or
    that of the host where they arrived, was ahead. `unknown_columns`: samples of series that the catalogue
    lacks. `dropped`: samples without room, of another cluster, or of a node with more moments than are
    processed."""

    reports: int = 0
    samples: int = 0
    late: int = 0
    out_of_order: int = 0
    future: int = 0
    unknown_columns: int = 0
    dropped: int = 0


# Wide: the only reading side of all windows: values, windows, rows and peers of one moment belong together.
class Telemetry:
    """The input of rules, models and charts."""

    def __init__(self, cluster: str, catalogue: Catalogue, gpu_models: Sequence[GpuModel] = ()) -> None:
        self.cluster = cluster
        self.counts = Counts()
        #: Signals that have ever been reported.
        self.reported_signals: set[str] = set()
        self._axes = Axes(cluster)
        #: By the name of a report's node, or of a device with its mark. Rows never move.
        self._rows: dict[str, tuple[Scope, int]] = {}
        #: Of nodes and of devices, by their rows.
        self._clocks = {Scope.node: Clocks(), Scope.device: Clocks()}
        self._senders = FigureSenders()
        # Two per axis: gauges (with enums and bit masks), and counters. A column's place is an index into
        # this.
        self._rings = [(on, Rings(counters=counters)) for on in MEASURED_SCOPES for counters in (False, True)]
        #: By the function that makes the groups, and scope: their layout, and the groups.
        self._groups: dict[tuple[Callable[[Axes, Scope], Groups], Scope], tuple[int, Groups]] = {}
        self._specs: dict[str, NDArray[np.float64]] = {}
        self._layouts = Layouts(self._place)
        self._snapshot: SlurmSnapshot | None = None
        self._shown_s = -math.inf
        self._places: Topology | None = None
        #: Rows of Slurm's nodes, and the signals derived from its snapshot: signal -> values by those rows.
        self._derived: tuple[NDArray[np.int32], dict[str, NDArray]] = (np.zeros(0, np.int32), {})
        #: By node row: samples up to this moment, s since 1970, no longer count.
        self._over = np.full(0, -np.inf)
        self._catalogue = catalogue
        self.models(gpu_models)

    def models(self, gpu_models: Sequence[GpuModel]) -> None:
        """Sets the specifications of GPU models."""
        self._gpu_models = tuple(gpu_models)
        self._specs.clear()

    @property
    def layout(self) -> int:
        """A number that changes whenever rows, or what belongs to what, have changed."""
        return self._axes.version

    @property
    def reports(self) -> int:
        """The number of reports stored so far."""
        return self.counts.reports

    # --- Slurm ---

    def show(self, snapshot: SlurmSnapshot, places: Topology, now: datetime | None = None) -> None:
        """Adopts a Slurm snapshot. Cheap if nodes and jobs are the same as last time.

        A snapshot from a host whose clock is ahead counts as of `now`.
        """
        before, places, at_s = self._snapshot, places.of(self.cluster), snapshot.taken_at.timestamp()
        if now is not None:
            at_s = min(at_s, now.timestamp())
        if before is not None and at_s < self._shown_s:
            return
        self._snapshot, self._shown_s = snapshot, at_s
        moved = before is None or snapshot.nodes is not before.nodes or places is not self._places
        if moved:
            self._places = places
            place_nodes(self._axes, snapshot, places)
            self._specs.clear()
            gpus = sum(min(node.gpus, GPUS_MAX) for node in snapshot.nodes.values())
            self._reserve(Scope.gpu, min(gpus, ROWS_MAX[Scope.gpu]))
        if moved or before is None or snapshot.jobs is not before.jobs:
            loads = place_jobs(self._axes, snapshot)
            self._derived = derived_signals(self._axes, snapshot, loads)
        self._put_derived(at_s)

    def _put_derived(self, at_s: float) -> None:
        """Stores signals derived from the Slurm snapshot, as samples of the moment it was taken."""
        rows, derived = self._derived
        self._enter(at_s)
        columns: dict[int, tuple[Rings, list[tuple[int, NDArray]]]] = {}
        for name, values in derived.items():
            signal = self._catalogue.signals.get(name)
            if signal is None or not signal.derived or (rings := self._room_for(signal)) is None:
                continue
            self._reserve(signal.scope, self._axes.axis(signal.scope).n)
            columns.setdefault(id(rings), (rings, []))[1].append((rings.signals[name], values))
        for rings, of_rings in columns.values():
            values = np.concatenate([values for _, values in of_rings])
            numbers = np.repeat([number for number, _ in of_rings], len(rows))
            valid = np.flatnonzero(~np.isnan(values))
            where = np.tile(rows, len(of_rings))[valid]
            rings.put(numbers[valid], where, values[valid], np.full(len(valid), at_s))

    # --- samples ---

    def forget(self, node: str, until: datetime) -> None:
        """The node was repaired, returned or booted at `until`: older measurements no longer count, even if
        they arrive late."""
        row = self._axes.node(node)
        if row is None:
            return
        until_s = until.timestamp()
        self._over = grown(self._over, row + 1, -np.inf)
        self._over[row] = max(self._over[row], until_s)
        self._senders.forget(row, until_s)
        for scope, rings in self._rings:
            rows = self._axes.of_node(scope, row)
            rings.forget(rows[rows < rings.rows], until_s)

    def update(self, reports: Sequence[Report], book: ColumnBook, now: datetime | None = None) -> None:
        """Stores reports, in the order of their times. A repeated report counts once.

        Nothing is dated after `now`, this process's clock. For each node, the newest 8 moments of a call
        count.
        """
        now_s = math.inf if now is None else now.timestamp()
        reports_of: dict[Scope, list[tuple[int, Report]]] = {Scope.node: [], Scope.device: []}
        for report in reports:
            scope, row = self._row_of(report)
            if row is None:
                self.counts.dropped += len(report.values)
            else:
                reports_of[scope].append((row, report))
        self.counts.reports += len(reports)
        for scope, pairs in reports_of.items():
            numbers = np.array([row for row, _ in pairs], np.int32)
            given = [report for _, report in pairs]
            at_s = np.array([report.at.timestamp() for report in given])
            arrived_s = np.array([report.arrived_at.timestamp() for report in given])
            made = in_rounds(numbers, self._clocks[scope].date(numbers, at_s, arrived_s, now_s), given)
            self.counts.out_of_order += made.repeated
            self.counts.dropped += made.surplus
            if made.rounds:
                self._enter(max(float(each.times.max()) for each in made.rounds))
            for each in made.rounds:
                self._take(scope, each.nodes, each.times, each.reports, book)
        self.counts.future = sum(clocks.future for clocks in self._clocks.values())

    def _row_of(self, report: Report) -> tuple[Scope, int | None]:
        """Whether it is from a node or a device, and its row; None: of another cluster, or too many."""
        if report.cluster != self.cluster:
            return Scope.node, None
        if report.node not in self._rows:
            device = device_in(report.node)
            if device is None:
                scope, row = Scope.node, self._axes.node(report.node)
            else:
                scope, row = Scope.device, self._axes.device(device)
            if row is None:
                return scope, None
            self._rows[report.node] = scope, row
        return self._rows[report.node]

    @property
    def slow_clocks(self) -> int:
        """Nodes whose samples are steadily late by more than 30 s and are dated by that lag."""
        return sum(clocks.slow for clocks in self._clocks.values())

    def check_clock(self, now: datetime) -> None:
        """Raises ClockStepped if windows reach into the future: this process's clock went back."""
        latest = slot_of(now.timestamp() + BACK_S)
        if any(rings.head is not None and rings.head > latest for _, rings in self._rings):
            raise ClockStepped(f"it is {now:%H:%M:%S} UTC, and windows go beyond that")

    def _take(
        self, scope: Scope, nodes: NDArray, times: NDArray, reports: Sequence[Report], book: ColumnBook
    ) -> None:
        """One round: reports of different nodes (or devices), with one set of numpy operations per layout."""
        self._over = grown(self._over, self._axes.axis(Scope.node).n, -np.inf)
        over = times <= self._over[nodes] if scope is Scope.node else np.zeros(len(nodes), bool)
        groups, others = self._layouts.alike(reports, book)
        by = np.array([self._senders.number(report.relayed_by) for report in reports], np.int16)
        for indexes, layout in groups:
            values = np.array([reports[index].values for index in indexes])
            self._take_alike(scope, nodes[indexes], times[indexes], values, over[indexes], layout)
            for stretch in layout.stretches if scope is Scope.node else ():
                signal = stretch.signal[:, np.newaxis]
                self._senders.put(stretch.ring, signal, nodes[indexes], by[indexes], times[indexes])
        if others:
            mixed = [reports[index] for index in others]
            self._take_mixed(scope, nodes[others], times[others], mixed, over[others], book)
            if scope is Scope.node and by[others].any():
                self._note_senders(nodes[others], times[others], mixed, by[others])

    def _take_alike(
        self, scope: Scope, nodes: NDArray, times: NDArray, values: NDArray, over: NDArray, layout: Layout
    ) -> None:
        """`values` (k, m): k reports of m columns."""
        given = np.isfinite(values)
        if over.any():
            self.counts.late += int(np.count_nonzero(given[over]))
            given[over] = False
        self.counts.unknown_columns += int(np.count_nonzero(given[:, layout.unknown]))
        self.counts.dropped += int(np.count_nonzero(given[:, layout.no_room]))
        whole = bool(given.all())
        for stretch in layout.stretches:
            part = given[:, stretch.at]
            if self._fits(scope, stretch.ring, int(np.count_nonzero(part))):
                self._put_alike(stretch, nodes, times, values, None if whole else part)

    def _put_alike(
        self, stretch: Stretch, nodes: NDArray, times: NDArray, values: NDArray, given: NDArray | None
    ) -> None:
        """A few signals at a time, so that the data stays in the processor's cache. `given` (k, s, p): which
        samples exist; None: all."""
        scope, rings = self._rings[stretch.ring]
        parts = len(stretch.part)
        at_s = np.repeat(times, parts)
        node, part = np.repeat(nodes, parts), np.tile(stretch.part, len(nodes))
        rows = np.full(len(node), -1, np.int32)
        # A part without any report gets no row.
        heard = slice(None) if given is None else given.any(axis=1).reshape(-1)
        rows[heard] = self._axes.rows(scope, node[heard], part[heard])
        self._reserve(scope, self._axes.axis(scope).n)
        runs = self._runs(rings, rows, at_s)
        if runs:
            self._put_runs(rings, stretch, rows, values, runs, given)
            return
        step = max(1, TOGETHER // len(rows))
        for first in range(0, len(stretch.signal), step):
            some = slice(first, first + step)
            samples = values[:, stretch.at[some]].swapaxes(0, 1).reshape(-1, len(rows))
            there = None if given is None else given[:, some].swapaxes(0, 1).reshape(-1, len(rows))
            self._put(rings, stretch.signal[some, np.newaxis], rows, samples, at_s, there)

    def _runs(self, rings: Rings, rows: NDArray, at_s: NDArray) -> list[tuple[slice, Run]]:
        """Stretches of adjacent `rows`; none if there are many stretches, or if some rows have no room or are
        late: the cell-by-cell path handles all cases."""
        edges = [0, *(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]
        if len(rows) < RUN_LEAST * (len(edges) - 1) or rows.min() < 0 or rings.is_late(float(at_s.min())):
            return []
        return [(slice(a, b), Run(at_s[a:b])) for a, b in pairwise(edges)]

    def _put_runs(
        self,
        rings: Rings,
        stretch: Stretch,
        rows: NDArray,
        values: NDArray,
        runs: Sequence[tuple[slice, Run]],
        given: NDArray | None,
    ) -> None:
        for number, (signal, at) in enumerate(zip(stretch.signal, stretch.at, strict=True)):
            # A view costs a third of a selection.
            is_block = at[-1] - at[0] == len(at) - 1 and bool((np.diff(at) == 1).all())
            samples = (values[:, at[0] : at[-1] + 1] if is_block else values[:, at]).reshape(-1)
            there = None if given is None else given[:, number].reshape(-1)
            for part, run in runs:
                some = None if there is None else there[part]
                repeated = rings.put_run(int(signal), int(rows[part.start]), samples[part], run, some)
                if repeated is None:
                    self._put(rings, np.array([signal]), rows[part], samples[part], run.at_s, some)
                    continue
                self.counts.samples += len(run.at_s) if some is None else int(np.count_nonzero(some))
                self.counts.out_of_order += repeated

    def _take_mixed(
        self,
        of: Scope,
        nodes: NDArray,
        times: NDArray,
        reports: Sequence[Report],
        over: NDArray,
        book: ColumnBook,
    ) -> None:
        """Reports with columns of their own each, sample by sample."""
        values = np.concatenate([report.values for report in reports])
        columns, ring = self._layouts.looked_up(np.concatenate([report.columns for report in reports]), book)
        report = np.repeat(np.arange(len(reports), dtype=np.int32), [len(each.columns) for each in reports])
        given = np.isfinite(values)
        late = over[report]
        self.counts.late += int(np.count_nonzero(late & given))
        given &= ~late
        unknown = given & ((ring == UNKNOWN) | (ring == NOT_LOOKED_UP))
        self.counts.unknown_columns += int(np.count_nonzero(unknown))
        self.counts.dropped += int(np.count_nonzero(given & (ring == NO_ROOM)))
        for number in range(len(self._rings)):
            chosen = np.flatnonzero((ring == number) & given)
            if len(chosen) and self._fits(of, number, len(chosen)):
                where, column = report[chosen], columns[chosen]
                scope, rings = self._rings[number]
                rows = self._axes.rows(scope, nodes[where], self._layouts.part[column])
                self._reserve(scope, self._axes.axis(scope).n)
                self._put(rings, self._layouts.signal[column], rows, values[chosen], times[where])

    def _note_senders(
        self, nodes: NDArray, times: NDArray, reports: Sequence[Report], by: NDArray[np.int16]
    ) -> None:
        """For reports with columns of their own each, whose columns were looked up."""
        report = np.repeat(np.arange(len(reports)), [len(each.columns) for each in reports])
        columns = np.concatenate([each.columns for each in reports])
        numbered = (columns >= 0) & (columns < len(self._layouts.ring))
        columns, report = columns[numbered], report[numbered]
        for ring in range(len(self._rings)):
            some = self._layouts.ring[columns] == ring
            signal, where = self._layouts.signal[columns[some]], report[some]
            self._senders.put(ring, signal, nodes[where], by[where], times[where])

    def _fits(self, scope: Scope, number: int, count: int) -> bool:
        """Whether a ring is for reports of nodes, or of devices; counts reports for the wrong kind."""
        fits = (self._rings[number][0] in OF_DEVICES) is (scope is Scope.device)
        self.counts.unknown_columns += 0 if fits else count
        return fits

    def _put(
        self,
        rings: Rings,
        signal: NDArray,
        rows: NDArray,
        values: NDArray,
        at_s: NDArray,
        given: NDArray | None = None,
    ) -> None:
        """Samples for one of the rings, at most one per series: see `Rings.put` for the shapes. Rows below 0
        have no room. `given`: which samples exist; None: all."""
        self.counts.samples += values.size if given is None else int(np.count_nonzero(given))
        if rows.min(initial=0) < 0:
            there = np.broadcast_to(True, values.shape) if given is None else given
            given = there & (rows >= 0)
            self.counts.dropped += int(np.count_nonzero(there)) - int(np.count_nonzero(given))
        if given is not None:
            signal, rows, at_s = (np.broadcast_to(array, values.shape) for array in (signal, rows, at_s))
            signal, rows, values, at_s = signal[given], rows[given], values[given], at_s[given]
        late, repeated = rings.put(signal, rows, values, at_s)
        self.counts.late += late
        self.counts.out_of_order += repeated

    def _place(self, column: Column) -> Place | int:
        """Where a column's samples go; UNKNOWN or NO_ROOM."""
        signal = self._catalogue.signals.get(column.signal)
        part = None if signal is None or signal.derived else self._part_of(signal.scope, column)
        if signal is None or part is None:
            return UNKNOWN
        rings = self._room_for(signal)
        if rings is None:
            return NO_ROOM
        number = next(place for place, (_, each) in enumerate(self._rings) if each is rings)
        return Place(number, rings.signals[signal.name], part)

    def _part_of(self, scope: Scope, column: Column) -> int | None:
        """The number of the part on its axis; None if the signal cannot live there."""
        part = column.part
        if scope in (Scope.node, Scope.device):
            return 0 if part == Part() else None
        if scope is Scope.device_part:
            return self._axes.device_part(part.port)
        if scope is Scope.gpu:
            fits = part.gpu is not None and part.link is None and 0 <= part.gpu < GPUS_MAX
            return part.gpu if fits else None
        return self._axes.part(part)

    # --- room ---

    def _ring(self, signal: Signal) -> Rings:
        counters = signal.kind is SignalKind.counter
        for scope, rings in self._rings:
            if scope is signal.scope and rings.counters == counters:
                return rings
        raise KeyError(f"{signal.name}: nothing is measured of a {signal.scope}")

    def _room_for(self, signal: Signal) -> Rings | None:
        """The rings of this signal, None if there is no room left for it; call `_reserve` before `put`."""
        if signal.scope not in MEASURED_SCOPES:
            return None
        rings = self._ring(signal)
        if signal.name in rings.signals:
            return rings
        axis = self._axes.axis(signal.scope)
        both = [each for scope, each in self._rings if scope is signal.scope]
        if sum(len(each.signals) for each in both) >= SIGNALS_MAX:
            return None
        row_bytes = SLOTS * (sum(each.cell_bytes for each in both) + (6 if rings.counters else 4))
        most = min(ROWS_MAX[signal.scope], BYTES_MAX // row_bytes)
        if most < max(axis.n, rings.rows):
            return None
        axis.most = most
        rings.add(signal.name)
        self.reported_signals.add(signal.name)
        return rings

    def _reserve(self, scope: Scope, rows: int) -> None:
        for of, rings in self._rings:
            if of is scope:
                rings.reserve(rows)

    def _enter(self, at_s: float) -> None:
        for _, rings in self._rings:
            rings.advance(slot_of(at_s))

    # --- reading ---

    def axis(self, scope: Scope) -> Axis:
        return self._axes.axis(scope)

    def rows_of(self, node: str, scope: Scope) -> NDArray[np.int64]:
        """Rows of a node and of its GPUs or links; none for an unknown node."""
        row = self._axes.axis(Scope.node).row(Component(cluster=self.cluster, node=node))
        return np.zeros(0, np.int64) if row is None else self._axes.of_node(scope, row)

    def relayed_by(
        self, node: str, signals: Collection[str] | None, now: datetime, *, peers: bool = False
    ) -> str:
        """The relays that sent these signals of the node (None: any), within the time covered by the windows
        and the last values; empty: all came from the node itself. `peers`: also those that sent the figures
        of many others."""
        row = self._axes.axis(Scope.node).row_of_key(node)
        if row is None:
            return ""
        found = set[str]()
        for number, (scope, rings) in enumerate(self._rings):
            if signals is None:
                found |= self._senders.of(number, None, row, now.timestamp() - WINDOW_S)
            for name in rings.signals.keys() & set(signals or ()):
                signal, lasts_s = rings.signals[name], self._catalogue.signals[name].stale_s
                since_s = now.timestamp() - max(WINDOW_S, lasts_s)
                found |= self._senders.of(number, signal, row, since_s)
                if peers:
                    nodes = self._nodes_of(scope, rings.heard_since(signal, since_s))
                    found |= self._senders.of_peers(number, signal, since_s, nodes)
        return either_of(found)

    def _nodes_of(self, scope: Scope, rows: NDArray) -> int:
        """The number of nodes that these rows are on."""
        if scope is Scope.node:
            return len(rows)
        node = self._axes.axis(scope).parent(Scope.node)
        there = node[rows[rows < len(node)]]
        return len(np.unique(there[there >= 0]))

    def nodes_behind(self, where: Component) -> list[str]:
        """Nodes of this cluster that are reached through a device, or a part of it, as far as known."""
        if where.device is None:
            return []
        names = set(self._places.behind(where.device, where.part)) if self._places is not None else set()
        leaf = self._axes.axis(Scope.switch).row(Component(cluster=self.cluster, switch=where.device))
        nodes = self._axes.axis(Scope.node)
        if leaf is not None and where.part is None:
            rows = np.flatnonzero(nodes.parent(Scope.switch) == leaf).tolist()
            names |= {name for row in rows if (name := nodes.components()[row].node)}
        shown = self._snapshot.nodes if self._snapshot is not None else {}
        return sorted(name for name in names if name in shown)

    def is_gone(self, where: Component) -> bool:
        """Slurm no longer shows that node, or that job as active; False without a snapshot."""
        shown = self._snapshot
        if shown is None or not shown.nodes:
            return False
        if where.node is not None:
            return where.node not in shown.nodes
        job = shown.jobs.get(where.job) if where.job is not None else None
        return where.job is not None and (job is None or not job.active)

    def scope_of(self, signal: str) -> Scope | None:
        """The scope of the signal; None if it was never reported, or if the catalogue lacks it."""
        of = self._catalogue.signals.get(signal)
        if of is None or of.scope not in MEASURED_SCOPES or signal not in self._ring(of).signals:
            return None
        return of.scope

    def value(self, signal: str, now: datetime) -> NDArray[np.float64]:
        """(n,) the last value, NaN if unknown, older than the signal's `stale_s`, or in the future."""
        last, at_s, stale_s = self._last(signal)
        age_s = now.timestamp() - at_s
        return np.where((age_s <= stale_s) & (age_s >= -AHEAD_S), last, np.nan)

    def value_on(self, scope: Scope, signal: str, now: datetime) -> NDArray[np.float64]:
        """(n of `scope`,) `value`, or all NaN for a signal that was never reported there."""
        if self.scope_of(signal) is not scope:
            return np.full(self._axes.axis(scope).n, np.nan)
        return self.value(signal, now)

    def heard_s(self, signal: str) -> NDArray[np.float64]:
        """(n,) the time of the last value, s since 1970; -inf if there never was one."""
        return self._last(signal)[1]

    def age_s(self, signal: str, now: datetime) -> NDArray[np.float64]:
        """(n,) seconds since the last value, NaN if there never was one."""
        _, at_s, _ = self._last(signal)
        age_s = np.maximum(now.timestamp() - at_s, 0.0).astype(np.float64)
        age_s[np.isinf(age_s)] = np.nan
        return age_s

    def window(self, signal: str, seconds: float, now: datetime) -> NDArray[np.float32]:
        """(k, n) slots of 5 s, oldest first, that of `now` last; NaN without a value. Counters: growth.

        Values beyond 2^24 are rounded (a bit mask's `value` is exact). Raises ValueError beyond 15 minutes.
        """
        rings, number, n = self._found(signal)
        slots = _slots(seconds)
        if number is None:
            return np.full((slots, n), np.nan, np.float32)
        return rings.window(number, n, slots, slot_of(now.timestamp()))

    def increase(
        self, signal: str, seconds: float, now: datetime
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """For a counter: (n,) growth by the samples of the window, and (n,) the seconds in which it grew.

        Growth is counted from the sample before, so the first may reach back beyond the window: by one
        interval of the sender, or over a gap of at most 15 minutes. Growth over those seconds is the rate. If
        nothing is known, growth is NaN and the seconds 0.
        """
        rings, number, n = self._found(signal)
        if not rings.counters:
            raise ValueError(f"{signal} is no counter")
        slots = _slots(seconds)
        if number is None:
            return np.full(n, np.nan), np.zeros(n)
        return rings.growth(number, n, slots, slot_of(now.timestamp()))

    def times(self, seconds: float, now: datetime) -> NDArray[np.float64]:
        """(k,) when each slot of such a window began, in seconds since 1970."""
        slots, end = _slots(seconds), slot_of(now.timestamp())
        return np.arange(end - slots + 1, end + 1, dtype=np.float64) * SLOT_S

    def spec(self, name: str, scope: Scope = Scope.gpu) -> NDArray[np.float64]:
        """(n,) the specification of the GPU model of a GPU's, link's or node's node; NaN if unknown."""
        by_model = self._specs.get(name)
        if by_model is None:
            models = [self._model(model) for model in self._axes.models]
            values = [model.values.get(name, np.nan) if model else np.nan for model in models]
            by_model = self._specs[name] = np.array([*values, np.nan])  # the last is read by -1
        return by_model[self._model_index(scope)]

    def is_model(self, globs: Sequence[str], scope: Scope = Scope.gpu) -> NDArray[np.bool_]:
        """(n,) whether the GPU model, as named by Slurm, matches one of `globs`; False if unknown."""
        fits = [any(fnmatch(name.lower(), glob.lower()) for glob in globs) for name in self._axes.models]
        return np.array([*fits, False])[self._model_index(scope)]  # the last is read by -1

    def model_of(self, scope: Scope = Scope.gpu) -> list[str]:
        """(n,) GPU model as named by Slurm, empty if unknown."""
        names = [*self._axes.models, ""]
        return [names[model] for model in self._model_index(scope).tolist()]

    def _model_index(self, scope: Scope) -> NDArray[np.int32]:
        """(n,) into the names of GPU models, -1 if unknown."""
        node = self._axes.axis(scope).parent(Scope.node)
        return np.where(node >= 0, self._axes.model[node], -1)

    def groups(self, scope: Scope) -> Groups:
        """Peers of the same job, or of the same model and load."""
        return self._cached_groups(groups_of, scope)

    def rack_groups(self, scope: Scope) -> Groups:
        """Parts of the same rack."""
        return self._cached_groups(rack_groups_of, scope)

    def node_groups(self, scope: Scope) -> Groups:
        """GPUs of the same node."""
        return self._cached_groups(node_groups_of, scope)

    def _cached_groups(self, make: Callable[[Axes, Scope], Groups], scope: Scope) -> Groups:
        cached = self._groups.get((make, scope))
        if cached is None or cached[0] != self._axes.version:
            cached = self._groups[make, scope] = (self._axes.version, make(self._axes, scope))
        return cached[1]

    @property
    def nbytes(self) -> int:
        """Bytes of all windows."""
        return sum(rings.nbytes for _, rings in self._rings)

    def _model(self, name: str) -> GpuModel | None:
        low = name.lower()
        for model in self._gpu_models:
            if any(fnmatch(low, pattern.lower()) for pattern in model.match):
                return model
        return None

    def _found(self, name: str) -> tuple[Rings, int | None, int]:
        """Raises KeyError for a name that the catalogue lacks."""
        signal = self._catalogue.signals[name]
        rings = self._ring(signal)
        n = self._axes.axis(signal.scope).n
        self._reserve(signal.scope, n)
        return rings, rings.signals.get(name), n

    def _last(self, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        rings, number, n = self._found(name)
        stale_s = self._catalogue.signals[name].stale_s
        if number is None:
            return np.full(n, np.nan), np.full(n, -np.inf), stale_s
        return *rings.last(number, n), stale_s


def _slots(seconds: float) -> int:
    slots = max(1, -int(-seconds // SLOT_S))
    if slots > SLOTS:
        raise ValueError(f"a window of {seconds:g} s is longer than {SLOTS * SLOT_S:g} s")
    return slots
