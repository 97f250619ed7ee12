"""Series that one process knows, by slot; and samples of slots -> one report per node and moment."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from healer.model import Combine
from healer.model.telemetry import Report
from healer.signals.hardware_names import GPU_BEYOND, NOT_YOURS, PASSING
from healer.signals.inventory import INFO_SERIES, Where
from healer.signals.rejects import Rejects
from healer.signals.series import (
    NAME_MAX,
    NO_GPU,
    NO_NODE,
    NOT_KNOWN,
    REPORTS_MAX,
    SAMPLES_MAX,
    SERIES_OF_NODE_MAX,
    TOO_MANY_MOMENTS,
    TOO_MANY_SERIES,
    Measured,
    Placer,
    check_labels,
    example,
)
from healer.signals.values import TOO_OLD, accepted_time, blanks_to_nan
from healer.signals.wire import HasNode
from healer.text import Said, say

# --- prepared -----------------------------------------------------------------------------------------------
# Reports of repeated scrapes: their slots are resolved once.


class Refusal(NamedTuple):
    """Samples of one name that are not kept, and why."""

    name: str
    why: Said
    samples: int
    example: dict[str, str]


class Prepared(NamedTuple):
    """The meaning of slots in this order, if all kept ones are of one node and each is a column of its own.

    `order`: positions of the kept samples, by column; `columns`: (n,) int32; `scale`: (n,) float64, None if
    all are 1."""

    where: Where
    order: NDArray[np.intp]
    columns: NDArray[np.int32]
    scale: NDArray[np.float64] | None
    refused: tuple[Refusal, ...]

    def report(self, values: NDArray[np.float64], has_node: HasNode, now: datetime, out: Measured) -> bool:
        """Adds the report. Returns False, with nothing done, if one of the values or the node is unknown."""
        kept = blanks_to_nan(values[self.order])
        if np.count_nonzero(np.isnan(kept)) or not has_node(*self.where):
            return False
        if self.scale is not None:
            kept *= self.scale
        for refusal in self.refused:
            out.unplaced(refusal.name, refusal.why, refusal.samples, refusal.example)
        out.samples += len(kept)
        out.reports.append(Report(*self.where, now, now, self.columns, kept))
        return True


# --- slots --------------------------------------------------------------------------------------------------

K = TypeVar("K", str, bytes)

#: Limits per wire form: remembered series, and bytes of their keys; beyond them all are forgotten at once.
#: 1,250 nodes of 8 GPUs are some 300,000 series of 350 bytes.
SERIES_MAX = 500_000
KEY_BYTES_MAX = 192 * 2**20
#: The same for series that are not kept. They are remembered separately, so that they never push out the
#: others.
REFUSED_MAX = 100_000
REFUSED_BYTES_MAX = 32 * 2**20
#: Time of a sample without one.
NO_TIME = -(2**62)
#: Series that are not kept are looked up again after this long, because their node may be new.
_LOOK_AGAIN = timedelta(minutes=1)
#: Limit of reasons, by name, of series that are not kept; beyond it names are merged.
_REASONS_MAX = 5_000
_EXAMPLES_MAX = 5_000
_SEVERAL = say("signals.several_series")
_TOO_MANY_SAMPLES = say("signals.samples_of_moment", most=SAMPLES_MAX)
_NAME_TOO_LONG = say("signals.name_too_long", most=NAME_MAX)
#: Reasons that the next request of the node, or of another sender, may remove.
_PASSING = frozenset({NO_GPU, NOT_YOURS, GPU_BEYOND}) | PASSING
_HOW = {Combine.last: 0, Combine.max: 1, Combine.min: 2, Combine.sum: 3}


class Samples(NamedTuple):
    """slots: (n,) int32; values: (n,) float64; times: (n,) int64, ms since 1970 or NO_TIME.

    `lines`: the line of a sample by its position, for rejections; if there is none, the position itself."""

    slots: NDArray[np.int32]
    values: NDArray[np.float64]
    times: NDArray[np.int64]
    lines: Mapping[int, int] = MappingProxyType({})

    @classmethod
    def of(
        cls, slots: list[int], values: list[float], times: list[int], lines: Mapping[int, int] | None = None
    ) -> "Samples":
        arrays = np.array(slots, np.int32), np.array(values, np.float64), np.array(times, np.int64)
        return cls(*arrays, lines or {})


class _Rows(NamedTuple):
    """Kept samples, (n,) each: column, index of the node, time, value, position in the request."""

    columns: NDArray[np.int32]
    homes: NDArray[np.int32]
    times: NDArray[np.int64]
    values: NDArray[np.float64]
    places: NDArray[np.intp]

    def pick(self, which: NDArray) -> "_Rows":
        return _Rows(
            self.columns[which], self.homes[which], self.times[which], self.values[which], self.places[which]
        )


class Slots(Generic[K]):
    """`by_key` is looked up by the wire form's own key of a series. A slot is never freed individually, only
    all at once. `whole`: one request has all series of a node that together make one number."""

    def __init__(self, placer: Placer, *, whole: bool) -> None:
        self.placer, self._whole = placer, whole
        self._changed = placer.gpus.changes()
        #: Increases when a slot, or the assignment of series to slots, changes its meaning.
        self.generation = 0
        #: Names of which a single series means nothing: their parts may come in different requests, and then
        #: the number would jump with each. The signal's own name is complete by itself, because it was
        #: combined before.
        self._partial = frozenset() if whole else placer.names.of_several()
        self._start()

    def _start(self) -> None:
        self.generation += 1
        self.by_key: dict[K, int] = {}
        self._key_bytes = 0
        #: By node, the keys of series that were placed by its learnt GPU names.
        self._by_names: dict[Where, list[K]] = {}
        self._changed.clear()
        #: Series that are not kept, until they are looked up again.
        self.refused: dict[K, int] = {}
        self._refused_bytes = 0
        self._refused_since: datetime | None = None
        self._n = 0
        #: By slot: column (-1: not kept), index in `_nodes` or in `_reasons`, scale, how several combine.
        self._column = np.empty(1024, np.int32)
        self._home = np.empty(1024, np.int32)
        self._scale = np.empty(1024, np.float64)
        self._how = np.empty(1024, np.int8)
        self._nodes: dict[Where, int] = {}
        #: By place in `_nodes`: series that were placed there.
        self._of_node: Counter[int] = Counter()
        #: Labels of one series of each name outside the catalogue.
        self._examples: dict[str, dict[str, str]] = {}
        #: (name, why) of series that are not kept -> their one slot; and name, why and example by `_home`.
        self._refusals: dict[tuple[str, Said], int] = {}
        self._reasons: list[tuple[str, Said, dict[str, str]]] = []

    def forget(self, now: datetime) -> None:
        """Before a request: drops whatever may be outdated, or exceeds the limits."""
        if self._n >= SERIES_MAX or self._key_bytes >= KEY_BYTES_MAX:
            self._start()
        if self._refused_since is None or now - self._refused_since >= _LOOK_AGAIN:
            self.refused.clear()
            self._refused_bytes = 0
            self._refused_since = now
        while self._changed:
            for key in self._by_names.pop(self._changed.pop(), ()):
                if self.by_key.pop(key, None) is not None:
                    self._key_bytes -= len(key)
                    self.generation += 1

    def age(self, slots: NDArray[np.int32] | None = None) -> tuple[int, datetime | None]:
        """The meaning of `slots` is valid while this value stays the same; without them, that of any slot."""
        passing = slots is None or bool((self._column[slots] < 0).any())
        return self.generation, self._refused_since if passing else None

    def add(
        self,
        key: K,
        name: str,
        labels: dict[str, str],
        has_node: HasNode,
        where: Where | None = None,
        node_key: K | None = None,
    ) -> int:
        """The slot of a series that is in neither `by_key` nor `refused`. If the request names the node,
        `key` identifies the series on any node, and `node_key` only on this one."""
        if why := _NAME_TOO_LONG if len(name) > NAME_MAX else check_labels(labels):
            return self._refuse(name[:NAME_MAX], why, labels)
        found = self.placer.place(name, labels, has_node, where)
        if not isinstance(found, str) and not self._whole:
            found = found if found.is_signal_name or found.combine is Combine.last else _SEVERAL
        if (
            not isinstance(found, str)
            and self._of_node[self._nodes.get(found.where, -1)] >= SERIES_OF_NODE_MAX
        ):
            found = TOO_MANY_SERIES
        if isinstance(found, str):
            slot = self._refuse(name, found, labels)
            full = len(self.refused) >= REFUSED_MAX or self._refused_bytes >= REFUSED_BYTES_MAX
            if found not in _PASSING and not full:
                self.refused[key] = slot
                self._refused_bytes += len(key)
            return slot
        home = self._nodes.setdefault(found.where, len(self._nodes))
        self._of_node[home] += 1
        self.placer.placed += 1
        slot = self._new(found.column, home, found.scale, _HOW[found.combine])
        if node_key is not None and not found.portable:
            key = node_key
        if self._key_bytes < KEY_BYTES_MAX:  # one request may hold more than may be remembered
            self.by_key[key] = slot
            self._key_bytes += len(key)
            if not found.portable:
                self._by_names.setdefault(found.where, []).append(key)
        return slot

    def is_unwanted(self, name: str) -> bool:
        if name in INFO_SERIES:
            return False  # none of its numbers is kept, but its labels are read
        return name not in self.placer.names or name in self._partial

    def unwanted(
        self, name: str, labels: Callable[[], dict[str, str]], out: Measured, count: int = 1
    ) -> bool:
        """Whether no series of this name is kept; counts it then. `labels` is called once per name."""
        if not self.is_unwanted(name):
            return False
        why = _SEVERAL if name in self._partial else NOT_KNOWN
        if name not in self._examples and len(self._examples) < _EXAMPLES_MAX:
            self._examples[name] = example(labels())
        out.unplaced(name, why, count, self._examples.get(name))
        return True

    def _refuse(self, name: str, why: Said, labels: dict[str, str]) -> int:
        key = (name, why) if len(self._reasons) < _REASONS_MAX else ("…", why)
        if key not in self._refusals:
            self._refusals[key] = self._new(-1, len(self._reasons), 1.0, 0)
            self._reasons.append((key[0], why, example(labels)))
        return self._refusals[key]

    def _new(self, column: int, home: int, scale: float, how: int) -> int:
        slot = self._n
        if slot == len(self._column):
            for field in ("_column", "_home", "_scale", "_how"):
                array = getattr(self, field)
                setattr(self, field, np.concatenate((array, np.empty_like(array))))
        self._column[slot], self._home[slot] = column, home
        self._scale[slot], self._how[slot] = scale, how
        self._n += 1
        return slot

    def prepare(self, slots: NDArray[np.int32], where: Where | None) -> Prepared | None:
        """The meaning of slots in this order; None if each request must be assembled separately. `where`: the
        node named by the request."""
        columns = self._column[slots]
        places = np.flatnonzero(columns >= 0)
        homes = np.unique(self._home[slots[places]])
        alone = len(np.unique(columns[places])) == len(places)
        if not 0 < len(places) <= SAMPLES_MAX or not alone or (where is None and len(homes) > 1):
            return None
        order = places[np.argsort(columns[places], kind="stable")]
        kept, scale = columns[order], self._scale[slots[order]]
        kept.setflags(write=False)  # shared by all reports of these slots
        return Prepared(
            where=where or list(self._nodes)[int(homes[0])],
            order=order,
            columns=kept,
            scale=None if (scale == 1).all() else scale,
            refused=tuple(self._refusals_of(slots[columns < 0])),
        )

    def report(
        self,
        samples: Samples,
        has_node: HasNode,
        now: datetime,
        out: Measured,
        *,
        where: Where | None = None,
        rejects: Rejects | None = None,
    ) -> None:
        """Adds the samples' reports, and rejections to `rejects`. `where`: all samples are of this node."""
        rejects, lines = rejects or Rejects(), samples.lines
        for place, why in self._reported(samples, has_node, now, out, where):
            rejects.add(lines.get(place, place), why)
        out.reject(rejects)

    def _reported(
        self, samples: Samples, has_node: HasNode, now: datetime, out: Measured, where: Where | None
    ) -> Iterator[tuple[int, Said]]:
        """(position, reason) of rejected samples."""
        slots, values = samples.slots, blanks_to_nan(samples.values)
        kept = self._column[slots] >= 0
        if not kept.all():
            for refusal in self._refusals_of(slots[~kept]):
                out.unplaced(refusal.name, refusal.why, refusal.samples, refusal.example)
        kept &= ~np.isnan(values)  # stale markers among them
        places = np.flatnonzero(kept)
        if not len(places):
            return
        slots = slots[places]
        home = self._home[slots] if where is None else np.zeros(len(slots), np.int32)
        values = values[places] * self._scale[slots]
        rows = _Rows(self._column[slots], home, samples.times[places], values, places)
        order = _order(rows)
        rows = rows.pick(order)
        begins = np.ones(len(slots), np.bool_)
        begins[1:] = (rows.homes[1:] != rows.homes[:-1]) | (rows.times[1:] != rows.times[:-1])
        new = begins.copy()
        new[1:] |= rows.columns[1:] != rows.columns[:-1]
        if not new.all():
            first = np.flatnonzero(new)
            combined = _one_of_several(rows.values, first, self._how[slots[order][first]])
            rows, begins = rows.pick(first)._replace(values=combined), begins[first]
        nodes = list(self._nodes) if where is None else [where]
        firsts = np.flatnonzero(begins).tolist()
        yield from _group(rows, firsts, nodes, has_node, now, out)

    def add_inventory(self, out: Measured, now: datetime) -> None:
        """Called after the reports: adds observations due for their nodes' GPUs and facts."""
        nodes = {(report.cluster, report.node) for report in out.reports}
        out.inventory = self.placer.gpus.inventory(nodes, now)

    def _refusals_of(self, slots: NDArray[np.int32]) -> Iterator[Refusal]:
        numbers, counts = np.unique(self._home[slots], return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            name, why, labels = self._reasons[number]
            yield Refusal(name, why, count, labels)


def _group(
    rows: _Rows, firsts: list[int], nodes: list[Where], has_node: HasNode, now: datetime, out: Measured
) -> Iterator[tuple[int, Said]]:
    """Adds one report for each run of rows that begins at one of `firsts`; yields (position, reason) of
    rejected ones. Runs of a node are adjacent, oldest first."""
    seen: dict[Where, bool] = {}
    homes = rows.homes[firsts].tolist()
    left = Counter(homes)
    for first, end, home in zip(firsts, [*firsts[1:], len(rows.columns)], homes, strict=True):
        where = nodes[home]
        left[home] -= 1
        if where not in seen:
            seen[where] = has_node(*where)  # learnt data may be older than the Slurm snapshot
        at = _at(int(rows.times[first]), now)
        if at is None:
            yield int(rows.places[first]), say("signals.of_node_named", why=TOO_OLD, node=where[1])
        elif left[home] >= REPORTS_MAX:
            yield int(rows.places[first]), say("signals.of_node_named", why=TOO_MANY_MOMENTS, node=where[1])
        elif end - first > SAMPLES_MAX:
            yield int(rows.places[first]), say("signals.of_node_named", why=_TOO_MANY_SAMPLES, node=where[1])
        elif not seen[where]:
            out.unplaced("", NO_NODE, end - first, {"node": where[1]})
        else:
            out.samples += end - first
            columns, values = rows.columns[first:end], rows.values[first:end]
            out.reports.append(Report(where[0], where[1], at, now, columns, values))


def _at(ms: int, now: datetime) -> datetime | None:
    """The time that counts for a time stamp; None if it is too old, or invalid."""
    if ms == NO_TIME:
        return now
    try:
        return accepted_time(datetime.fromtimestamp(ms / 1000, UTC), now)
    except (OverflowError, ValueError, OSError):
        return None if ms < 0 else now


def _order(rows: _Rows) -> NDArray[np.intp]:
    """By node, time and column; stable."""
    # A node nearly always has one moment, and then one sort is enough.
    order = np.argsort(rows.homes.astype(np.int64) << 32 | rows.columns, kind="stable")
    homes, times = rows.homes[order], rows.times[order]
    if ((times[1:] != times[:-1]) & (homes[1:] == homes[:-1])).any():
        return np.lexsort((rows.columns, rows.times, rows.homes))
    return order


def _one_of_several(
    values: NDArray[np.float64], first: NDArray[np.intp], how: NDArray[np.int8]
) -> NDArray[np.float64]:
    """One value for each run that begins at `first`: the last, the largest, the smallest, or the sum."""
    last = np.append(first[1:], len(values)) - 1
    forms = (
        values[last],
        np.maximum.reduceat(values, first),
        np.minimum.reduceat(values, first),
        np.add.reduceat(values, first),
    )
    return np.choose(how, forms)
