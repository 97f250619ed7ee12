"""Values of expressions as columns: three-valued truth with its past, and parts combined into one value per
whole.

Truth is uint8 (Kleene): `and` is the minimum, `or` the maximum, `not` 2 - x.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from healer.detection.language.expr import SPEAKS_FOR_S, TICK_S, slots_of

FALSE, UNKNOWN, TRUE = 0, 1, 2
Truth = NDArray[np.uint8]


def truth_of(true: NDArray[np.bool_], unknown: NDArray[np.bool_] | None) -> Truth:
    """TRUE where `true`, UNKNOWN where `unknown` (never both), else FALSE."""
    found = true.view(np.uint8) << np.uint8(1)
    if unknown is not None:
        found |= unknown.view(np.uint8)
    return found


class Past:
    """How often a condition was true over a window: a ring of ticks, and running counts.

    One byte of memory per tick and row; a tick costs a few passes over the rows, whatever the window.
    """

    def __init__(self, seconds: float) -> None:
        self.slots = slots_of(seconds)
        self._ring = np.full((self.slots, 0), UNKNOWN, np.uint8)
        self.true = np.zeros(0, np.int16)
        self.known = np.zeros(0, np.int16)
        self._last: int | None = None
        #: The last tick's column, and for how many slots without a break: then the ring holds nothing else.
        self._same: tuple[Truth, int] | None = None

    def push(self, at_s: float, now: Truth) -> None:
        """Adds the tick at `at_s` (seconds since 1970); a second one in the same slot replaces the first."""
        slot, rows = int(at_s // TICK_S), len(self.true)
        self._grow(len(now))
        if self._last is not None and slot < self._last:
            return
        if self._is_full_of(now, slot):
            self._last = slot
            return
        if self._last is not None:
            # A late tick covers the time since the one before it, except for new rows.
            between = np.full_like(now, UNKNOWN)
            if (slot - self._last) * TICK_S <= SPEAKS_FOR_S:
                between[:rows] = now[:rows]
            for between_slot in range(max(self._last, slot - self.slots) + 1, slot):
                self._put(between_slot, between)
        self._put(slot, now)
        self._last = slot

    def _is_full_of(self, now: Truth, slot: int) -> bool:
        """Whether each slot of the ring already has this very column: then adding it changes nothing."""
        if self._last is None or self._same is None or self._same[0] is not now:
            self._same = now, 1
            return False
        gap = slot - self._last
        whole = gap * TICK_S <= SPEAKS_FOR_S or bool((now == UNKNOWN).all())  # the gap is unknown
        had = self._same[1]
        self._same = now, (had + gap if whole else 1)
        return whole and had >= self.slots

    def forget(self, rows: NDArray[np.int64]) -> None:
        """Discards the past of these rows."""
        rows = rows[rows < len(self.true)]
        self._same = None
        self._ring[:, rows] = UNKNOWN
        self.true[rows] = 0
        self.known[rows] = 0

    def _put(self, slot: int, now: Truth) -> None:
        old = self._ring[slot % self.slots]
        self.true += (now == TRUE).view(np.int8) - (old == TRUE).view(np.int8)
        self.known += (now != UNKNOWN).view(np.int8) - (old != UNKNOWN).view(np.int8)
        old[:] = now

    def _grow(self, rows: int) -> None:
        more = rows - len(self.true)
        if more > 0:
            self._ring = np.concatenate((self._ring, np.full((self.slots, more), UNKNOWN, np.uint8)), axis=1)
            self.true = np.concatenate((self.true, np.zeros(more, np.int16)))
            self.known = np.concatenate((self.known, np.zeros(more, np.int16)))


Numbers = NDArray[np.float64]
Rows = NDArray[np.int32]


def _count(mask: NDArray[np.bool_], parent: Rows, wholes: int) -> NDArray[np.int64]:
    return np.bincount(parent[mask & (parent >= 0)], minlength=wholes)


def any_of(parts: Truth, parent: Rows, wholes: int) -> Truth:
    """Kleene: true with one true part, false only if every part is known false; no parts: unknown."""
    found = np.full(wholes, FALSE, np.uint8)
    found[_count(np.ones(len(parts), np.bool_), parent, wholes) == 0] = UNKNOWN
    found[_count(parts == UNKNOWN, parent, wholes) > 0] = UNKNOWN
    found[_count(parts == TRUE, parent, wholes) > 0] = TRUE
    return found


def count_of(parts: Truth, parent: Rows, wholes: int) -> Numbers:
    found = _count(parts == TRUE, parent, wholes).astype(np.float64)
    found[_count(parts != UNKNOWN, parent, wholes) == 0] = np.nan
    return found


def share_of(parts: Truth, parent: Rows, wholes: int) -> Numbers:
    count = _count(parts != UNKNOWN, parent, wholes).astype(np.float64)
    count[count == 0] = np.nan
    return _count(parts == TRUE, parent, wholes).astype(np.float64) / count


def sum_of(parts: Numbers, parent: Rows, wholes: int) -> Numbers:
    valid = ~np.isnan(parts) & (parent >= 0)
    found = np.bincount(parent[valid], parts[valid], minlength=wholes).astype(np.float64)
    found[np.bincount(parent[valid], minlength=wholes) == 0] = np.nan
    return found


def max_of(parts: Numbers, parent: Rows, wholes: int) -> Numbers:
    found = np.full(wholes, np.nan)
    valid = ~np.isnan(parts) & (parent >= 0)
    np.fmax.at(found, parent[valid], parts[valid])
    return found


def min_of(parts: Numbers, parent: Rows, wholes: int) -> Numbers:
    return -max_of(-parts, parent, wholes)


def median_of(parts: Numbers, parent: Rows, wholes: int) -> Numbers:
    valid = ~np.isnan(parts) & (parent >= 0)
    rows, values = parent[valid], parts[valid]
    ranked = values[np.lexsort((values, rows))]
    count = np.bincount(rows, minlength=wholes)
    first = np.cumsum(count) - count
    found = np.full(wholes, np.nan)
    some = count > 0
    low = ranked[(first + (count - 1) // 2)[some]]
    found[some] = (low + ranked[(first + count // 2)[some]]) / 2
    return found


OVER_PARTS: dict[str, Callable[[Any, Rows, int], Any]] = {
    "any_of": any_of,
    "count_of": count_of,
    "share_of": share_of,
    "sum_of": sum_of,
    "max_of": max_of,
    "min_of": min_of,
    "median_of": median_of,
}


class Kept(NamedTuple):
    """`layout`: the rows that it belongs to. `inputs`: the argument values that were used, in order."""

    layout: tuple[object, int]
    inputs: tuple[Any, ...]
    value: Any


#: The inputs of a signal that was never reported: unknown everywhere, or a constant.
UNREPORTED = ("unreported",)
NOTHING_KEPT = Kept((None, -1), (), None)


def is_same(before: Any, value: Any) -> bool:
    """Equal to the last bit, including unknown values."""
    if not isinstance(value, np.ndarray):
        return before is not None and before == value
    if before is None or before.shape != value.shape or before.dtype != value.dtype:
        return False
    if value.dtype == np.float64:
        before, value = before.view(np.int64), value.view(np.int64)
    return bool((before == value).all())
