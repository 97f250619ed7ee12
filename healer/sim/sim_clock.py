"""The clock of simulations, which its owner moves."""

import threading
from datetime import UTC, datetime, timedelta


class SimClock:
    """A clock that only moves when it is set or advanced, and never goes back."""

    def __init__(self, start: datetime) -> None:
        if start.tzinfo is None:
            raise ValueError("a clock needs an aware time")
        self._now = start.astimezone(UTC)
        self._lock = threading.Lock()

    def now(self) -> datetime:
        return self._now

    def advance(self, seconds: float) -> datetime:
        if seconds < 0:
            raise ValueError(f"a clock cannot go back by {-seconds:g} s")
        with self._lock:
            self._now += timedelta(seconds=seconds)
            return self._now

    def set(self, now: datetime) -> None:
        with self._lock:
            if now < self._now:
                raise ValueError(f"a clock cannot go back from {self._now} to {now}")
            self._now = now.astimezone(UTC)
