"""The order in which series come: of a known one the next is guessed, and compared instead of looked up.

A table of 300,000 label blocks lies in no cache of a processor, so to look a block up is to wait for memory.
Blocks that followed each other before lie side by side.
"""

from itertools import repeat
from operator import ne

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
        #: By place: slot, -1 for a block that has none. And by block with a slot: one place of it.
        self._slots = np.empty(0, np.int32)
        self._places = np.full(0, -1, np.int64)

    def forget(self, generation: int) -> None:
        """All, when slots are no more what they were."""
        if generation != self._generation:
            self._start(generation)

    def slots(self, blocks: list[bytes], known: dict[bytes, int]) -> NDArray[np.int32]:
        """(n,) int32: what `known` says of each, -1 for those it does not know."""
        slots = np.full(len(blocks), -1, np.int32)
        done, end = 0, len(blocks)
        for _ in range(_RUNS_MAX):
            slot = -1
            while done < end and (slot := known.get(blocks[done], -1)) < 0:
                done += 1
            place = int(self._places[slot]) if 0 <= slot < len(self._places) else -1
            if place < 0:
                break
            before = self._blocks[place : place + end - done]
            differs = list(map(ne, blocks[done:] if done else blocks, before))
            run = differs.index(True) if True in differs else len(before)
            slots[done : done + run] = self._slots[place : place + run]
            done += run
        # Those of a run that had no slot then may have got one since.
        for one in np.flatnonzero(slots[:done] < 0).tolist():
            slots[one] = known.get(blocks[one], -1)
        if rest := blocks[done:]:
            slots[done:] = np.fromiter(map(known.get, rest, repeat(-1)), np.int32, len(rest))
        if len(rest) > end // _NEW_SHARE:
            self._remember(blocks, slots)
        return slots

    def _remember(self, blocks: list[bytes], slots: NDArray[np.int32]) -> None:
        size, here = sum(map(len, blocks)), np.flatnonzero(slots >= 0)
        if not len(here) or len(blocks) > _ORDER_MAX or size > _ORDER_BYTES_MAX:
            return
        if len(self._blocks) + len(blocks) > _ORDER_MAX or self._bytes + size > _ORDER_BYTES_MAX:
            self._start(self._generation)
        begin = len(self._blocks)
        self._slots = _grown(self._slots, begin + len(blocks))
        self._slots[begin : begin + len(blocks)] = slots
        self._places = _grown(self._places, int(slots.max()) + 1)
        self._places[slots[here]] = here + begin
        self._blocks += blocks
        self._bytes += size


def _grown(array: NDArray, size: int) -> NDArray:
    """The same with room for so many, -1 where nothing was."""
    if size <= len(array):
        return array
    return np.concatenate((array, np.full(max(size, 2 * len(array)) - len(array), -1, array.dtype)))
