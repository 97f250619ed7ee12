"""What is due when, in simulated time."""

import heapq
from collections.abc import Callable
from datetime import datetime


class Agenda:
    """Things due at the same moment are done in the order in which they were noted."""

    def __init__(self) -> None:
        self._heap: list[tuple[datetime, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, moment: datetime, do: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (moment, self._count, do))

    def next(self) -> datetime | None:
        return self._heap[0][0] if self._heap else None

    def do_due(self, now: datetime) -> int:
        """How many things were done."""
        done = 0
        while self._heap and self._heap[0][0] <= now:
            _, _, do = heapq.heappop(self._heap)
            do()
            done += 1
        return done
