"""Limits the cost of callers without a token: few at once, and few refusals per address."""

import threading
import time
from collections import OrderedDict

from healer.ports.request_errors import TooMany
from healer.text import Said, say

#: Attempts at once, and refusals of one address per minute; beyond that 429.
AT_ONCE = 4
REFUSALS_PER_MIN = 20
_ADDRESSES = 10_000


class Door:
    """`busy`: the sentence for callers while it is full."""

    def __init__(self, busy: Said) -> None:
        self._busy = busy
        self._room = threading.BoundedSemaphore(AT_ONCE)
        self._lock = threading.Lock()
        self._refused: OrderedDict[str, list[float]] = OrderedDict()

    def __enter__(self) -> None:
        if not self._room.acquire(blocking=False):
            raise TooMany(self._busy, 2)

    def __exit__(self, *_: object) -> None:
        self._room.release()

    def check(self, peer: str) -> None:
        with self._lock:
            if len(self._recent(peer)) >= REFUSALS_PER_MIN:
                raise TooMany(say("api.refused_often", peer=peer, n=REFUSALS_PER_MIN), 60)

    def refused(self, peer: str) -> None:
        with self._lock:
            self._refused[peer] = [*self._recent(peer), time.monotonic()]
            self._refused.move_to_end(peer)
            while len(self._refused) > _ADDRESSES:
                self._refused.popitem(last=False)

    def _recent(self, peer: str) -> list[float]:
        now = time.monotonic()
        return [at for at in self._refused.get(peer, ()) if now - at < 60]
