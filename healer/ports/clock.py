"""The time, as healer asks for it."""

from datetime import datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """The time, UTC and aware."""
        ...


def is_due(last: datetime | None, every: timedelta, now: datetime) -> bool:
    """Whether the next time has come, `every` after the `last`. A clock that was set back delays nothing."""
    return last is None or abs(now - last) >= every
