"""The time, for all parts of healer."""

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """The time, UTC and timezone-aware."""
        ...
