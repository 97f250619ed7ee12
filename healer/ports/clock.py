"""The time, as healer asks for it."""

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """The time, UTC and aware."""
        ...
