"""Samples of remote_write -> reports: the slots of series, kept by one process; grouping by node and time."""

from datetime import datetime, timedelta
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from healer.model import Combine
from healer.model.samples import Report
from healer.signals import remote_write
from healer.signals.gather import at_ms, still_known, too_old
from healer.signals.gpu_names import Where
from healer.signals.measured import Measured
from healer.signals.series import NO_NODE, NOT_KNOWN, Placer, check_labels, example
from healer.signals.values import clean
from healer.signals.wire import Known, Rejected

#: Series remembered by one process, then forgotten all at once.
SERIES_MAX = 500_000
#: Series without a node of ours are looked at again after so long: the node may be new.
_LOOK_AGAIN = timedelta(minutes=1)
#: Reasons of series that are not kept, told apart.
_REASONS_MAX = 5_000
_SEVERAL = "several series make one number: send this exporter's text to /signals/openmetrics"
_HOW = {Combine.last: 0, Combine.max: 1, Combine.min: 2, Combine.sum: 3}


class _Rows(NamedTuple):
    """Samples that are kept, (n,) each: column, place of the node, ms since 1970, value."""

    columns: NDArray[np.int32]
    homes: NDArray[np.int32]
    times: NDArray[np.int64]
    values: NDArray[np.float64]

    def pick(self, which: NDArray) -> "_Rows":
        return _Rows(self.columns[which], self.homes[which], self.times[which], self.values[which])


class Pushed:
    """Bodies of remote_write -> reports. Slots are never given back, only all forgotten at once."""

    def __init__(self, placer: Placer) -> None:
        self._placer = placer
        self._start()

    def _start(self) -> None:
        self._generation = self._placer.gpus.generation
        self._slots: dict[bytes, int] = {}
        #: Blocks of series that name no node of ours, until they are looked at again.
        self._homeless: dict[bytes, int] = {}
        self._homeless_since: datetime | None = None
        self._n = 0
        #: By slot: column (-1: not kept), place in `_nodes` or in `_reasons`, scale, how several combine.
        self._column = np.empty(1024, np.int32)
        self._home = np.empty(1024, np.int32)
        self._scale = np.empty(1024, np.float64)
        self._how = np.empty(1024, np.int8)
        self._nodes: dict[Where, int] = {}
        #: (name, why) of what is not kept -> its one slot; and name, why and example by `_home`.
        self._refusals: dict[tuple[str, str], int] = {}
        self._reasons: list[tuple[str, str, dict[str, str]]] = []

    def take(self, raw: bytes, known: Known, now: datetime) -> Measured:
        """Raises BadBody."""
        data = remote_write.unpacked(raw)
        self._forget(now)
        out = Measured()

        def resolve(block: bytes, labels: dict[str, str]) -> int | None:
            slot = self._homeless.get(block)
            return self._resolved(block, labels, known) if slot is None else slot

        samples = remote_write.read(data, self._slots, resolve, self._unwanted(out))
        if len(samples.slots):
            self._sort_out(samples, known, now, out)
        return out

    def _forget(self, now: datetime) -> None:
        full = len(self._slots) + len(self._homeless) >= SERIES_MAX
        if full or self._generation != self._placer.gpus.generation:
            self._start()
        if self._homeless_since is None or now - self._homeless_since >= _LOOK_AGAIN:
            self._homeless.clear()
            self._homeless_since = now

    def _unwanted(self, out: Measured) -> remote_write.Unwanted:
        names = self._placer.names

        def unwanted(name: str) -> bool:
            if name in names:
                return False
            out.unplaced(name, NOT_KNOWN)
            return True

        return unwanted

    def _resolved(self, block: bytes, labels: dict[str, str], known: Known) -> int:
        """The slot of a block that is new."""
        name = labels.pop("__name__", "")
        found = check_labels(labels) or self._placer.place(name, labels, known)
        if not isinstance(found, str) and found.counter and found.combine is not Combine.last:
            # Its parts may come in different requests, and a sum over some of them would look like resets.
            found = _SEVERAL
        if isinstance(found, str):
            slot = self._refused(name, found, labels)
            (self._homeless if found == NO_NODE else self._slots)[block] = slot
            return slot
        home = self._nodes.setdefault(found.where, len(self._nodes))
        slot = self._slots[block] = self._new(found.column, home, found.scale, _HOW[found.combine])
        return slot

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

    def _sort_out(self, samples: remote_write.Samples, known: Known, now: datetime, out: Measured) -> None:
        slots, values = samples.slots, clean(samples.values)
        kept = self._column[slots] >= 0
        if not kept.all():
            self._count_refused(self._home[slots[~kept]], out)
        kept &= ~np.isnan(values)  # stale markers among them
        slots = slots[kept]
        if not len(slots):
            return
        rows = _Rows(
            self._column[slots], self._home[slots], samples.times[kept], values[kept] * self._scale[slots]
        )
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
        self._report(rows, np.flatnonzero(begins).tolist(), known, now, out)

    def _count_refused(self, reasons: NDArray[np.int32], out: Measured) -> None:
        numbers, counts = np.unique(reasons, return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            name, why, labels = self._reasons[number]
            out.unplaced(name, why, count, labels)

    def _report(self, rows: _Rows, firsts: list[int], known: Known, now: datetime, out: Measured) -> None:
        nodes = list(self._nodes)
        seen: dict[Where, bool] = {}
        rejected: list[Rejected] = []
        for first, end in zip(firsts, [*firsts[1:], len(rows.columns)], strict=True):
            where = nodes[rows.homes[first]]
            at = at_ms(int(rows.times[first]), now)
            if at is None:
                too_old(rejected, first, where)
            elif not still_known(where, known, seen):
                out.unplaced("", NO_NODE, end - first, {"node": where[1]})
            else:
                out.samples += end - first
                columns, values = rows.columns[first:end], rows.values[first:end]
                out.reports.append(Report(where[0], where[1], at, now, columns, values))
        out.rejected = tuple(rejected)
        out.inventory = self._placer.gpus.inventory(seen, now)


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
