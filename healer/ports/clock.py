"""The time, as healer asks for it."""

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    # The time, UTC and aware.
    def now(self) -> datetime: ...
