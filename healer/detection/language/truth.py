"""Three-valued truth as uint8 columns (Kleene): `and` is the minimum, `or` the maximum, `not` 2 - x."""

import numpy as np
from numpy.typing import NDArray

from healer.detection.language.meaning import SPEAKS_FOR_S, TICK_S, slots_of

FALSE, UNKNOWN, TRUE = 0, 1, 2
Truth = NDArray[np.uint8]


def of(true: NDArray[np.bool_], unknown: NDArray[np.bool_] | None) -> Truth:
    """TRUE where `true`, UNKNOWN where `unknown` (never both), else FALSE."""
    found = true.view(np.uint8) << np.uint8(1)
    if unknown is not None:
        found |= unknown.view(np.uint8)
    return found


class Past:
    """How often a condition was true over a window: a ring of ticks, and running counts.

    Memory is one byte per tick and row; a tick costs a few passes over the rows whatever the window.
    """

    def __init__(self, seconds: float) -> None:
        self.slots = slots_of(seconds)
        self._ring = np.full((self.slots, 0), UNKNOWN, np.uint8)
        self.true = np.zeros(0, np.int16)
        self.known = np.zeros(0, np.int16)
        self._last: int | None = None

    def push(self, at_s: float, now: Truth) -> None:
        """The tick at `at_s` (seconds since 1970); a second one in the same slot replaces the first."""
        slot, known = int(at_s // TICK_S), len(self.true)
        self._grow(len(now))
        if self._last is not None and slot < self._last:
            return
        if self._last is not None:
            # A slower tick speaks for the time since the one before it, but of no row that is new.
            between = np.full_like(now, UNKNOWN)
            if (slot - self._last) * TICK_S <= SPEAKS_FOR_S:
                between[:known] = now[:known]
            for one in range(max(self._last, slot - self.slots) + 1, slot):
                self._put(one, between)
        self._put(slot, now)
        self._last = slot

    def forget(self, rows: NDArray[np.int64]) -> None:
        """Nothing is known of these rows' past."""
        rows = rows[rows < len(self.true)]
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
