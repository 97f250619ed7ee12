"""Series that one process knows, by slot; and samples of slots -> one report per node and moment."""

from collections.abc import Callable, Hashable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from healer.model import Combine
from healer.model.samples import Report
from healer.signals.gpu_names import Where
from healer.signals.measured import REJECTED_TOLD, Measured
from healer.signals.series import NO_NODE, NOT_KNOWN, Placer, check_labels, example
from healer.signals.values import TOO_OLD, clean, moment
from healer.signals.wire import Known, Rejected

K = TypeVar("K", bound=Hashable)

#: Series remembered for one wire form, then forgotten all at once.
SERIES_MAX = 500_000
#: Time of a sample that tells none.
NOT_TOLD = -(2**62)
#: Series without a node of ours are looked at again after so long: the node may be new.
_LOOK_AGAIN = timedelta(minutes=1)
#: Reasons of series that are not kept, told apart.
_REASONS_MAX = 5_000
_EXAMPLES_MAX = 5_000
_SEVERAL = "several series make one number: send this exporter's text to /signals/openmetrics"
_HOW = {Combine.last: 0, Combine.max: 1, Combine.min: 2, Combine.sum: 3}


class Samples(NamedTuple):
    """slots: (n,) int32; values: (n,) float64; times: (n,) int64, ms since 1970 or NOT_TOLD."""

    slots: NDArray[np.int32]
    values: NDArray[np.float64]
    times: NDArray[np.int64]


class _Rows(NamedTuple):
    """Samples that are kept, (n,) each: column, place of the node, time, value, place in the request."""

    columns: NDArray[np.int32]
    homes: NDArray[np.int32]
    times: NDArray[np.int64]
    values: NDArray[np.float64]
    places: NDArray[np.intp]

    def pick(self, which: NDArray) -> "_Rows":
        return _Rows(
            self.columns[which],
            self.homes[which],
            self.times[which],
            self.values[which],
            self.places[which],
        )


class Slots(Generic[K]):
    """`known` is looked up by the wire form's own key of a series. A slot is never given back, only all are
    forgotten at once. `whole`: one request holds all series of a node that together make one number."""

    def __init__(self, placer: Placer, *, whole: bool) -> None:
        self.placer, self._whole = placer, whole
        self._start()

    def _start(self) -> None:
        self._generation = self.placer.gpus.generation
        self.known: dict[K, int] = {}
        #: Series that name no node of ours, until they are looked at again.
        self._homeless: dict[K, int] = {}
        self._homeless_since: datetime | None = None
        self._n = 0
        #: By slot: column (-1: not kept), place in `_nodes` or in `_reasons`, scale, how several combine.
        self._column = np.empty(1024, np.int32)
        self._home = np.empty(1024, np.int32)
        self._scale = np.empty(1024, np.float64)
        self._how = np.empty(1024, np.int8)
        self._nodes: dict[Where, int] = {}
        #: Labels of one series of each name that nobody wants.
        self._examples: dict[str, dict[str, str]] = {}
        #: (name, why) of what is not kept -> its one slot; and name, why and example by `_home`.
        self._refusals: dict[tuple[str, str], int] = {}
        self._reasons: list[tuple[str, str, dict[str, str]]] = []

    def forget(self, now: datetime) -> None:
        """Before a request: drops what may be wrong by now, or is too much."""
        full = len(self.known) + len(self._homeless) >= SERIES_MAX
        if full or self._generation != self.placer.gpus.generation:
            self._start()
        if self._homeless_since is None or now - self._homeless_since >= _LOOK_AGAIN:
            self._homeless.clear()
            self._homeless_since = now

    def add(
        self, key: K, name: str, labels: dict[str, str], known: Known, where: Where | None = None
    ) -> tuple[int, bool]:
        """(slot of a series that `known` does not have, whether its labels alone say all but its node)."""
        slot = self._homeless.get(key)
        if slot is not None:
            return slot, True
        found = check_labels(labels) or self.placer.place(name, labels, known, where)
        if not isinstance(found, str) and found.counter and found.combine is not Combine.last:
            # Its parts may come in different requests, and a sum over some of them would look like resets.
            found = found if self._whole else _SEVERAL
        if isinstance(found, str):
            slot = self._refused(name, found, labels)
            (self._homeless if found == NO_NODE else self.known)[key] = slot
            return slot, True
        home = self._nodes.setdefault(found.where, len(self._nodes))
        slot = self._new(found.column, home, found.scale, _HOW[found.combine])
        if found.portable or where is None:
            self.known[key] = slot
        return slot, found.portable or where is None

    def unwanted(self, name: str, labels: Callable[[], dict[str, str]], out: Measured) -> bool:
        """Whether the catalogue lacks this name; counts the series then. `labels` is asked once per name."""
        if name in self.placer.names:
            return False
        if name not in self._examples and len(self._examples) < _EXAMPLES_MAX:
            self._examples[name] = example(labels())
        out.unplaced(name, NOT_KNOWN, 1, self._examples.get(name))
        return True

    def _refused(self, name: str, why: str, labels: dict[str, str]) -> int:
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

    def report(
        self,
        samples: Samples,
        known: Known,
        now: datetime,
        out: Measured,
        *,
        where: Where | None = None,
        lines: Mapping[int, int] | None = None,
    ) -> None:
        """Adds the samples' reports. `where`: all are of this node. `lines`: line by place, for what is told
        as rejected."""
        slots, values = samples.slots, clean(samples.values)
        kept = self._column[slots] >= 0
        if not kept.all():
            self._count_refused(self._home[slots[~kept]], out)
        kept &= ~np.isnan(values)  # stale markers among them
        places = np.flatnonzero(kept)
        if not len(places):
            return
        slots = slots[places]
        home = self._home[slots] if where is None else np.zeros(len(slots), np.int32)
        values = values[places] * self._scale[slots]
        rows = _Rows(self._column[slots], home, samples.times[places], values, places)
        order = np.lexsort((rows.columns, rows.times, rows.homes))
        rows = rows.pick(order)
        begins = np.ones(len(slots), np.bool_)
        begins[1:] = (rows.homes[1:] != rows.homes[:-1]) | (rows.times[1:] != rows.times[:-1])
        new = begins.copy()
        new[1:] |= rows.columns[1:] != rows.columns[:-1]
        if not new.all():
            first = np.flatnonzero(new)
            one = _one_of_several(rows.values, first, self._how[slots[order][first]])
            rows, begins = rows.pick(first)._replace(values=one), begins[first]
        nodes = list(self._nodes) if where is None else [where]
        firsts = np.flatnonzero(begins).tolist()
        rejected = list(out.rejected)
        for place, node in _group(rows, firsts, nodes, known, now, out):
            rejected.append(Rejected((lines or {}).get(place, place), f"{TOO_OLD} (node {node})"))
        out.rejected = tuple(sorted(rejected, key=lambda one: one.index)[:REJECTED_TOLD])

    def _count_refused(self, reasons: NDArray[np.int32], out: Measured) -> None:
        numbers, counts = np.unique(reasons, return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            name, why, labels = self._reasons[number]
            out.unplaced(name, why, count, labels)


def _group(
    rows: _Rows, firsts: list[int], nodes: list[Where], known: Known, now: datetime, out: Measured
) -> Iterator[tuple[int, str]]:
    """Adds one report for each run of rows that begins at one of `firsts`; yields (place, node) of those that
    are too old."""
    seen: dict[Where, bool] = {}
    for first, end in zip(firsts, [*firsts[1:], len(rows.columns)], strict=True):
        where = nodes[rows.homes[first]]
        if where not in seen:
            seen[where] = known(*where)  # what was learned may be older than Slurm's picture
        at = _at(int(rows.times[first]), now)
        if at is None:
            yield int(rows.places[first]), where[1]
        elif not seen[where]:
            out.unplaced("", NO_NODE, end - first, {"node": where[1]})
        else:
            out.samples += end - first
            columns, values = rows.columns[first:end], rows.values[first:end]
            out.reports.append(Report(where[0], where[1], at, now, columns, values))


def _at(ms: int, now: datetime) -> datetime | None:
    """The moment that counts for a time stamp; None when it is too old, or no time at all."""
    if ms == NOT_TOLD:
        return now
    try:
        return moment(datetime.fromtimestamp(ms / 1000, UTC), now)
    except (OverflowError, ValueError, OSError):
        return None if ms < 0 else now


def _one_of_several(
    values: NDArray[np.float64], first: NDArray[np.intp], how: NDArray[np.int8]
) -> NDArray[np.float64]:
    """One value for each run that begins at `first`: the last, or the largest, smallest, the sum."""
    last = np.append(first[1:], len(values)) - 1
    forms = (
        values[last],
        np.maximum.reduceat(values, first),
        np.minimum.reduceat(values, first),
        np.add.reduceat(values, first),
    )
    return np.choose(how, forms)
