"""The order in which series come: of a known one the next is guessed, and compared instead of looked up.

A table of 300,000 label blocks lies in no cache of a processor, so to look a block up is to wait for memory.
Blocks that followed each other before lie side by side.
"""

from itertools import repeat

import numpy as np
from numpy.typing import NDArray

#: Stretches of remembered order that one request may be put together of, and what is remembered in all.
_RUNS_MAX = 8
#: A request of which more than one part in so many had to be looked up is remembered in its order.
_NEW_SHARE = 16
_ORDER_MAX = 500_000
_ORDER_BYTES_MAX = 192 * 2**20


class Order:
    """Label blocks in the order in which they came, bounded. A scrape's series follow each other each time;
    where one request ends and the next one begins changes."""

    def __init__(self) -> None:
        self._start(0)

    def _start(self, generation: int) -> None:
        self._generation = generation
        self._blocks: list[bytes] = []
        self._bytes = 0
        #: By place: slot, -1 for a block that has none; length. And by block with a slot: one place of it.
        self._slots = np.empty(0, np.int32)
        self._lengths = np.empty(0, np.int64)
        #: By place, bytes of the sample that followed the block last.
        self._widths = np.empty(0, np.int64)
        self._places = np.full(0, -1, np.int64)

    def forget(self, generation: int) -> None:
        """All, when slots are no more what they were."""
        if generation != self._generation:
            self._start(generation)

    def sizes(self, slot: int, most: int) -> NDArray[np.int64] | None:
        """(n,) int64: how long the series of this slot and those behind it were last, block and sample; None
        where nothing is known."""
        place = self._place(slot)
        if place < 0:
            return None
        stop = min(place + most, len(self._blocks))
        return self._lengths[place:stop] + self._widths[place:stop]

    def _place(self, slot: int) -> int:
        return int(self._places[slot]) if 0 <= slot < len(self._places) else -1

    def slots(
        self,
        data: bytes,
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        widths: NDArray[np.int64],
        known: dict[bytes, int],
    ) -> NDArray[np.int32]:
        """(n,) int32: what `known` says of each block of `data` from a start to its end, -1 for those it does
        not know. Only blocks that are looked up are cut out. `widths`: of the samples behind them."""
        begins, lengths = starts.tolist(), ends - starts
        slots = np.full(len(begins), -1, np.int32)

        def block(at: int) -> bytes:
            return data[begins[at] : int(ends[at])]

        done, end = 0, len(begins)
        for _ in range(_RUNS_MAX):
            slot = -1
            while done < end and (slot := known.get(block(done), -1)) < 0:
                done += 1
            place = self._place(slot)
            if place < 0:
                break
            run = self._run(data, begins[done:] if done else begins, lengths[done:], place)
            slots[done : done + run] = self._slots[place : place + run]
            self._widths[place : place + run] = widths[done : done + run]
            done += run
        # Those of a run that had no slot then may have got one since.
        for one in np.flatnonzero(slots[:done] < 0).tolist():
            slots[one] = known.get(block(one), -1)
        if done < end:
            rest = list(map(block, range(done, end)))
            slots[done:] = np.fromiter(map(known.get, rest, repeat(-1)), np.int32, len(rest))
            if len(rest) > end // _NEW_SHARE:
                self._remember([*map(block, range(done)), *rest], slots, widths)
        return slots

    def _run(self, data: bytes, begins: list[int], lengths: NDArray[np.int64], place: int) -> int:
        """How many blocks that begin there and are so long are those that are remembered from `place` on."""
        before = self._lengths[place : min(place + len(begins), len(self._blocks))]
        other = np.flatnonzero(before != lengths[: len(before)])
        run = int(other[0]) if len(other) else len(before)
        same = bytes(map(data.startswith, self._blocks[place : place + run], begins))
        differs = same.find(0)
        return differs if differs >= 0 else run

    def _remember(self, blocks: list[bytes], slots: NDArray[np.int32], widths: NDArray[np.int64]) -> None:
        size, here = sum(map(len, blocks)), np.flatnonzero(slots >= 0)
        if not len(here) or len(blocks) > _ORDER_MAX or size > _ORDER_BYTES_MAX:
            return
        if len(self._blocks) + len(blocks) > _ORDER_MAX or self._bytes + size > _ORDER_BYTES_MAX:
            self._start(self._generation)
        begin = len(self._blocks)
        self._slots = _grown(self._slots, begin + len(blocks))
        self._slots[begin : begin + len(blocks)] = slots
        self._lengths = _grown(self._lengths, begin + len(blocks))
        self._lengths[begin : begin + len(blocks)] = list(map(len, blocks))
        self._widths = _grown(self._widths, begin + len(blocks))
        self._widths[begin : begin + len(blocks)] = widths
        self._places = _grown(self._places, int(slots.max()) + 1)
        self._places[slots[here]] = here + begin
        self._blocks += blocks
        self._bytes += size


def _grown(array: NDArray, size: int) -> NDArray:
    """The same with room for so many, -1 where nothing was."""
    if size <= len(array):
        return array
    return np.concatenate((array, np.full(max(size, 2 * len(array)) - len(array), -1, array.dtype)))
