"""When tokens were used last: noted in memory, and written once a minute at most for each."""

import threading
import time
from datetime import datetime

from healer.ports.callers import Caller
from healer.ports.clock import Clock
from healer.ports.request_errors import Unavailable
from healer.ports.service_accounts import TokenBook

NOTED_EVERY_S = 60.0
_TOKENS = 10_000


class LastUses:
    """Thread-safe. `note` never raises and never asks the database. Tokens of nodes and jobs are left out:
    there are many, and what they send is counted by sender."""

    def __init__(self, book: TokenBook, clock: Clock) -> None:
        self._book, self._clock = book, clock
        self._lock = threading.Lock()
        #: By token's id: when it was noted last, and what is not written yet.
        self._noted: dict[str, float] = {}
        self._waiting: dict[str, datetime] = {}

    def note(self, caller: Caller) -> None:
        if caller.node is not None or caller.job is not None:
            return
        now = time.monotonic()
        if now - self._noted.get(caller.id, float("-inf")) < NOTED_EVERY_S:
            return
        with self._lock:
            if len(self._noted) >= _TOKENS:
                self._noted.clear()
            self._noted[caller.id] = now
            self._waiting[caller.id] = self._clock.now()

    def flush(self) -> None:
        """Writes what waits. Raises Unavailable, and keeps it."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        if not waiting:
            return
        try:
            self._book.used(waiting)
        except Unavailable:
            with self._lock:
                self._waiting = waiting | self._waiting
            raise
