"""The last 15 minutes of all gauges, or of all counters, of one axis.

One slot per 5 s, one float32 per signal, slot and row, feature-major: `[signal, slot, row]`. A window of a
signal is then one block of memory. A slot of a gauge keeps the last value. A slot of a counter keeps its
growth and over how many seconds, which raw values in float32 could not represent (2^24 is soon exceeded) and
which a reset does not spoil. Last values are kept separately in float64, with their times.

A counter that fell starts over: whether the remaining value grew since a reset or belongs to another sender
cannot be known. If it is back at its old value within the window, or above that by less than the fall, it
never fell and that step is no growth: an exporter returned 0 once, or two senders count separately. False
growth would drain a node."""

import math

import numpy as np
from numpy.typing import NDArray

SLOT_S = 5.0
SLOTS = 180
WINDOW_S = SLOT_S * SLOTS
#: Observed time of a counter's slot is kept in these units: 16 ms, so that 15 minutes plus a slot fit into 16
#: bits.
SPAN_UNITS = 64
#: Growth is also summed by the minute, on first use: most of a long window no longer changes.
BLOCK = 12
BLOCKS = SLOTS // BLOCK
#: A counter that falls by less than a unit, or than this share of it, did not fall: it has two senders, one
#: of them coarser or slightly behind. The larger value stays.
SLIGHT, SLIGHT_SHARE = 1.0, 0.01


def slot_of(at_s: float) -> int:
    return math.floor(at_s / SLOT_S)


class Run:
    """When samples of adjacent rows were measured, computed once for all signals."""

    def __init__(self, at_s: NDArray[np.float64]) -> None:
        self.at_s = at_s
        slot = np.floor(at_s / SLOT_S).astype(np.int64)
        #: Positions in the ring, and which of the rows go there.
        self.slots = [(number % SLOTS, slot == number) for number in np.unique(slot).tolist()]


# Wide: its arrays are private, so each query is a method.
class Rings:
    """Windows of one axis. Arrays are (signals, rows) and (signals, SLOTS, rows), with room for more."""

    def __init__(self, *, counters: bool) -> None:
        self.counters = counters
        self.signals: dict[str, int] = {}
        self.rows = 0
        #: The newest slot so far; anything older than SLOTS before it is forgotten.
        self.head: int | None = None
        self._last = np.full((0, 0), np.nan)
        self._at = np.full((0, 0), -np.inf)
        self._ring = np.empty((0, SLOTS, 0), np.float32)
        self._span = np.empty((0, SLOTS, 0), np.uint16)
        # For counters: growth and seconds of each block, and by (signal, block) whether they are still valid.
        self._block_ring = np.empty((0, BLOCKS, 0), np.float32)
        self._block_span = np.empty((0, BLOCKS, 0), np.uint16)
        self._summed = np.zeros((0, BLOCKS), bool)
        # For counters: the value before the last fall, and when it fell.
        self._high = np.empty((0, 0))
        self._fell = np.empty((0, 0))

    @property
    def cell_bytes(self) -> int:
        """Bytes per row and slot."""
        return len(self.signals) * (6 if self.counters else 4)

    @property
    def nbytes(self) -> int:
        arrays = (self._last, self._at, self._ring, self._span, self._high, self._fell)
        return sum(array.nbytes for array in (*arrays, self._block_ring, self._block_span))

    # --- room ---

    def add(self, signal: str) -> int:
        """The number of a signal. `reserve` makes the room."""
        return self.signals.setdefault(signal, len(self.signals))

    def reserve(self, rows: int) -> None:
        """Makes room for the signals added and for `rows` rows."""
        signals, had_rows = len(self.signals), self.rows
        had = len(self._last)
        if signals <= had and rows <= had_rows:
            return
        if rows > had_rows:
            # An eighth more: the fleet's size is usually known before (`Telemetry.show`), and during growth
            # the old array and the new one are both in memory, gigabytes each in a large fleet.
            rows = max(rows, had_rows + had_rows // 8)
        rows = max(rows, had_rows)
        signals = max(signals, had)
        self._last = larger(self._last, (signals, rows), np.nan)
        self._at = larger(self._at, (signals, rows), -np.inf)
        self._ring = larger(self._ring, (signals, SLOTS, rows), 0 if self.counters else np.nan)
        if self.counters:
            self._span = larger(self._span, (signals, SLOTS, rows), 0)
            self._block_ring = larger(self._block_ring, (signals, BLOCKS, rows), 0)
            self._block_span = larger(self._block_span, (signals, BLOCKS, rows), 0)
            self._summed = larger(self._summed, (signals, BLOCKS), 0)
            self._high = larger(self._high, (signals, rows), np.nan)
            self._fell = larger(self._fell, (signals, rows), -np.inf)
        self.rows = rows

    def heard_since(self, signal: int, since_s: float) -> NDArray[np.intp]:
        """The rows with a value of it at least that recent."""
        return np.flatnonzero(self._at[signal] >= since_s)

    def advance(self, slot: int) -> None:
        """Moves on to `slot`; reused slots are emptied."""
        if self.head is None:
            self.head = slot
        if slot <= self.head:
            return
        entered = np.arange(max(self.head + 1, slot - SLOTS + 1), slot + 1) % SLOTS
        self.head = slot
        self._summed[:, entered // BLOCK] = False
        if self.counters and len(entered) == SLOTS:
            # New zeros cost nothing until they are written; emptying every slot took 1.4 s for 100,000 GPUs.
            self._ring = np.zeros(self._ring.shape, np.float32)
            self._span = np.zeros(self._span.shape, np.uint16)
            return
        for position in entered.tolist():
            self._ring[:, position] = 0 if self.counters else np.nan
            if self.counters:
                self._span[:, position] = 0

    # --- writing ---

    def put(self, signal: NDArray, row: NDArray, values: NDArray, at_s: NDArray) -> tuple[int, int]:
        """Stores samples, at most one per series; returns how many are dropped: those older than the ring,
        and those not newer than the last of their series (a repeated request must not count twice).

        `values` have any shape, the others one that broadcasts to it; rows and signals must have room.
        """
        if self.head is None:
            raise RuntimeError("advance() comes before put()")
        slot = np.floor(at_s / SLOT_S).astype(np.int64)
        place = slot % SLOTS * self.rows + row
        signal = signal.astype(np.int64)
        cell, place = signal * self.rows + row, signal * (SLOTS * self.rows) + place
        before = self._at.reshape(-1)[cell]
        timely = slot > self.head - SLOTS
        fits = (at_s > before) & timely
        at_s = np.broadcast_to(at_s, values.shape)
        late = repeated = 0
        if not fits.all():
            late = int(np.count_nonzero(~np.broadcast_to(timely, values.shape)))
            repeated = fits.size - int(np.count_nonzero(fits)) - late
            slot = np.broadcast_to(slot, values.shape)
            values, at_s, slot, cell, place, before = (
                array[fits] for array in (values, at_s, slot, cell, place, before)
            )
        if self.counters:
            values = self._put_growth(cell, place, values, at_s, before)
            if len(slot):
                oldest = int(slot.min())
                slots = oldest + np.flatnonzero(np.bincount(slot - oldest))
                self._summed[:, slots % SLOTS // BLOCK] = False
        else:
            self._ring.reshape(-1)[place] = values
        self._last.reshape(-1)[cell] = values
        self._at.reshape(-1)[cell] = at_s
        return late, repeated

    def is_late(self, at_s: float) -> bool:
        """Older than the ring."""
        return self.head is None or slot_of(at_s) <= self.head - SLOTS

    def put_run(
        self, signal: int, first: int, values: NDArray, run: "Run", given: NDArray[np.bool_] | None
    ) -> int | None:
        """Like `put`, for samples of one signal and of adjacent rows, without looking up cells. Returns how
        many are not newer than the last; None, with nothing stored, if a counter fell or comes back, which
        only `put` can handle. `given`: which samples exist; None: all."""
        rows = slice(first, first + len(values))
        before = self._at[signal, rows]
        fits = run.at_s > before
        if given is not None:
            fits &= given
        count = len(values) if given is None else int(np.count_nonzero(given))
        taken = int(np.count_nonzero(fits))
        if self.counters and not self._grow_run(signal, rows, values, run, fits):
            return None
        all_fit = taken == len(values)
        if not self.counters:
            for position, inside in run.slots:
                here = inside if all_fit else inside & fits
                np.copyto(self._ring[signal, position, rows], values, "same_kind", where=here)
        np.copyto(self._last[signal, rows], values, where=True if all_fit else fits)
        np.copyto(before, run.at_s, where=True if all_fit else fits)
        return count - taken

    def _grow_run(
        self, signal: int, rows: slice, values: NDArray, run: "Run", fits: NDArray[np.bool_]
    ) -> bool:
        """False, with nothing done, if a counter fell or comes back."""
        last, since_s = self._last[signal, rows], run.at_s - self._at[signal, rows]
        grows = fits & (since_s <= WINDOW_S)
        back = last < self._high[signal, rows]
        if back.any():
            back &= run.at_s - self._fell[signal, rows] <= WINDOW_S
        if (grows & (back | (values < last))).any():
            return False
        grew = values - last
        units = np.maximum(np.rint(np.where(grows, since_s, 0.0) * SPAN_UNITS), 1.0).astype(np.uint16)
        for position, inside in run.slots:
            here = grows & inside
            ring, span = self._ring[signal, position, rows], self._span[signal, position, rows]
            np.add(ring, grew, out=ring, where=here, casting="same_kind")
            np.add(span, units, out=span, where=here)
            self._summed[signal, position // BLOCK] = False
        return True

    def _put_growth(
        self, cell: NDArray, place: NDArray, values: NDArray, at_s: NDArray, before: NDArray
    ) -> NDArray:
        """A gap longer than the window, and a fall, start over. Returns the values to keep as the last
        ones."""
        last = self._last.reshape(-1)[cell]
        high, fell_at = self._high.reshape(-1), self._fell.reshape(-1)
        going_on = at_s - before <= WINDOW_S
        fell = going_on & (values < last)
        if fell.any():
            slight = fell & (last - values < np.maximum(SLIGHT, SLIGHT_SHARE * last))
            values, fell = np.where(slight, last, values), fell & ~slight
        kept = values
        if fell.any():
            # After two falls in a row, the first value is the one it may come back to.
            at, still = cell[fell], at_s[fell] - fell_at[cell[fell]] <= WINDOW_S
            high[at] = np.where(still, np.fmax(high[at], last[fell]), last[fell])
            fell_at[at] = at_s[fell]
        grows = going_on & ~fell
        if not grows.all():
            cell, place, values, at_s, before, last = (
                array[grows] for array in (cell, place, values, at_s, before, last)
            )
        grew, back = values - last, high[cell]
        returned = (last < back) & (values >= back) & (at_s - fell_at[cell] <= WINDOW_S)
        if returned.any():
            grew = np.where(returned & (values - back < back - last), 0.0, grew)
            high[cell[returned]] = np.nan
        units = np.maximum(np.rint((at_s - before) * SPAN_UNITS), 1.0)
        ring, span = self._ring.reshape(-1), self._span.reshape(-1)
        ring[place] += grew
        span[place] += units.astype(np.uint16)
        return kept

    def forget(self, rows: NDArray, before_s: float) -> None:
        """Empties these rows up to `before_s` and to the end of its slot; a series whose last value is older
        starts over. Counters are emptied completely: growth reported after that moment may be from before
        it."""
        if self.head is None or not len(rows):
            return
        first, stop = self.head - SLOTS + 1, self.head + 1
        if not self.counters:
            stop = min(slot_of(before_s) + 1, stop)
        emptied = np.arange(first, stop)[:, None] % SLOTS
        self._ring[:, emptied, rows] = 0 if self.counters else np.nan
        if self.counters:
            self._span[:, emptied, rows] = 0
        self._summed[:] = False
        old = self._at[:, rows] <= before_s
        for array, fill in ((self._last, np.nan), (self._at, -np.inf), (self._high, np.nan)):
            if array.size:
                array[:, rows] = np.where(old, fill, array[:, rows])

    # --- reading ---

    def last(self, number: int, n: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The last values and their times (-inf: never), as (n,) views."""
        return self._last[number, :n], self._at[number, :n]

    def window(self, number: int, n: int, slots: int, end: int) -> NDArray[np.float32]:
        """(slots, n), oldest first, up to slot `end`; NaN without a value. A view if possible."""
        parts = self._parts(slots, end)
        pieces = [self._ring[number, part, :n] for part in parts]
        if self.counters:
            spans = [self._span[number, part, :n] for part in parts]
            nothing = np.float32(np.nan)
            pieces = [np.where(span > 0, piece, nothing) for piece, span in zip(pieces, spans, strict=True)]
        missing = slots - sum(map(len, pieces))
        if missing:
            pieces.insert(0, np.full((missing, n), np.nan, np.float32))
        found = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        found.flags.writeable = False
        return found

    def growth(self, number: int, n: int, slots: int, end: int) -> tuple[NDArray, NDArray]:
        """(n,) growth in the window and seconds observed; growth is NaN if nothing was observed."""
        grew, span = np.zeros(n), np.zeros(n, np.int64)
        for part in self._parts(slots, end):
            first, stop = -(-part.start // BLOCK), part.stop // BLOCK
            if first >= stop:
                pieces = [(self._ring, self._span, part)]
            else:
                self._sum_up(number, first, stop)
                pieces = [
                    (self._ring, self._span, slice(part.start, first * BLOCK)),
                    (self._block_ring, self._block_span, slice(first, stop)),
                    (self._ring, self._span, slice(stop * BLOCK, part.stop)),
                ]
            for ring, spans, piece in pieces:
                if piece.start < piece.stop:
                    grew += ring[number, piece, :n].sum(axis=0, dtype=np.float64)
                    span += spans[number, piece, :n].sum(axis=0, dtype=np.uint32)
        grew[span == 0] = np.nan
        return grew, span / SPAN_UNITS

    def _sum_up(self, number: int, first: int, stop: int) -> None:
        """Recomputes the sums of these blocks."""
        for block in (first + np.flatnonzero(~self._summed[number, first:stop])).tolist():
            part = slice(block * BLOCK, (block + 1) * BLOCK)
            self._ring[number, part].sum(axis=0, out=self._block_ring[number, block])
            self._span[number, part].sum(axis=0, dtype=np.uint16, out=self._block_span[number, block])
            self._summed[number, block] = True

    def _parts(self, slots: int, end: int) -> list[slice]:
        """Where the slots up to `end` lie in the ring, oldest first; slots from before the ring lie
        nowhere."""
        self.advance(end)
        oldest = (end if self.head is None else self.head) - SLOTS + 1
        first = max(end - slots + 1, oldest)
        if first > end:
            return []
        begin, stop = first % SLOTS, end % SLOTS + 1
        return [slice(begin, stop)] if begin < stop else [slice(begin, SLOTS), slice(0, stop)]


def larger(array: NDArray, shape: tuple[int, ...], fill: float) -> NDArray:
    # Zeros are not written before they are needed.
    made = np.full(shape, fill, array.dtype) if fill else np.zeros(shape, array.dtype)
    made[tuple(slice(length) for length in array.shape)] = array
    return made
