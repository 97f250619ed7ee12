"""Where the columns of reports go. A fleet's nodes tell the same columns again and again: what a set of them
means is worked out once."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from healer.model import Column
from healer.model.samples import Report
from healer.ports.measurements import ColumnBook

#: Numbers of columns are given densely; what is far beyond the book's own bound is none.
COLUMN_ID_MAX = 1 << 22
NOT_LOOKED_UP, UNKNOWN, NO_ROOM = -2, -1, -3
#: Sets of columns that are remembered: some kB each.
LAYOUTS_MAX = 2000
#: So many reports with the same columns are worth a matrix of their own.
ALIKE = 8


class Place(NamedTuple):
    """Of one column: number of the ring, of the signal in it, and of the part on its axis."""

    ring: int
    signal: int
    part: int


class Stretch(NamedTuple):
    """What one ring takes of a report of the same parts: (p,) parts, (s,) signals, and `at`, (s, p): where in
    the report each signal of each part stands."""

    ring: int
    part: NDArray[np.int32]
    signal: NDArray[np.int32]
    at: NDArray[np.intp]


class Layout(NamedTuple):
    """Of one set of columns. `unknown` and `no_room` are places of what no ring takes."""

    stretches: tuple[Stretch, ...]
    unknown: NDArray[np.intp]
    no_room: NDArray[np.intp]


class Layouts:
    """`place` says where a column goes: a Place, UNKNOWN or NO_ROOM; it is asked once for each."""

    def __init__(self, place: Callable[[Column], Place | int]) -> None:
        self._place = place
        #: By number of the column: which ring (below 0: none of them), which signal in it, which part.
        self.ring = np.full(0, NOT_LOOKED_UP, np.int8)
        self.signal = np.zeros(0, np.int32)
        self.part = np.zeros(0, np.int32)
        self._known: OrderedDict[bytes, Layout] = OrderedDict()

    def alike(
        self, reports: Sequence[Report], book: ColumnBook
    ) -> tuple[list[tuple[list[int], Layout]], list[int]]:
        """Which reports (by their place) have one layout, and those with too few of their kind."""
        # Reports that were unpacked together share one array, and then its bytes are looked at once.
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
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return known
        safe, of = self.looked_up(columns, book)
        nowhere = np.flatnonzero((of == UNKNOWN) | (of == NOT_LOOKED_UP))
        made = Layout(tuple(self._stretches(safe, of)), nowhere, np.flatnonzero(of == NO_ROOM))
        # What the book does not know yet is asked again the next time.
        if not (of == NOT_LOOKED_UP).any():
            self._known[key] = made
            if len(self._known) > LAYOUTS_MAX:
                self._known.popitem(last=False)
        return made

    def _stretches(self, columns: NDArray[np.int32], ring: NDArray[np.int8]) -> Iterator[Stretch]:
        """Signals of the same parts stand together: where their samples go is worked out once for all."""
        same: dict[tuple[int, bytes], list[NDArray[np.intp]]] = {}
        kept = np.flatnonzero(ring >= 0)
        kept = kept[np.lexsort((self.part[columns[kept]], self.signal[columns[kept]], ring[kept]))]
        told = np.stack((ring[kept], self.signal[columns[kept]]))
        edges = np.flatnonzero((told[:, 1:] != told[:, :-1]).any(axis=0)) + 1
        for at in np.split(kept, edges) if len(kept) else ():
            same.setdefault((int(ring[at[0]]), self.part[columns[at]].tobytes()), []).append(at)
        for (number, _), each in same.items():
            at = np.stack(each)
            yield Stretch(number, self.part[columns[at[0]]], self.signal[columns[at[:, 0]]], at)

    def looked_up(self, columns: NDArray[np.int32], book: ColumnBook) -> tuple[NDArray, NDArray[np.int8]]:
        """(m,) the columns, 0 for what is no number of one, and which ring each goes to."""
        told = (columns >= 0) & (columns < COLUMN_ID_MAX)
        safe = np.where(told, columns, 0)
        self._learn(safe, book)
        return safe, np.where(told, self.ring[safe], np.int8(UNKNOWN))

    def _learn(self, columns: NDArray, book: ColumnBook) -> None:
        """What the book does not know is asked again the next time."""
        most = int(columns.max(initial=-1)) + 1
        if most > len(self.ring):
            more = max(most, 2 * len(self.ring)) - len(self.ring)
            self.ring = np.concatenate([self.ring, np.full(more, NOT_LOOKED_UP, np.int8)])
            self.signal = np.concatenate([self.signal, np.zeros(more, np.int32)])
            self.part = np.concatenate([self.part, np.zeros(more, np.int32)])
        new = columns[self.ring[columns] == NOT_LOOKED_UP]
        if not len(new):
            return
        for number, column in sorted(book.columns(np.unique(new).tolist()).items()):
            place = self._place(column)
            if isinstance(place, Place):
                self.ring[number], self.signal[number], self.part[number] = place
            else:
                self.ring[number] = place
