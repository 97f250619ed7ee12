"""Storage of the goodput ledger's input and of its hours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from healer.model import Incident
from healer.model.goodput import HourSpent, LifeSeen, SavedStep, Stretch


class GoodputBy(StrEnum):
    """What sums are grouped by."""

    job = "job"
    user = "user"
    account = "account"
    partition = "partition"  # pyright: ignore[reportAssignmentType]
    cause = "cause"
    rack = "rack"
    month = "month"


@dataclass(frozen=True, kw_only=True)
class PastJob:
    """The stored data of a job; `stretches` and `saved` by restart count, sorted by time."""

    lives: Sequence[LifeSeen]
    stretches: Mapping[int, Sequence[Stretch]]
    saved: Mapping[int, Sequence[SavedStep]]
    incidents: Sequence[Incident]


class GoodputBook(Protocol):
    def latest_lives(self, now: datetime) -> list[LifeSeen]:
        """The newest life of each job that has not ended, or ended within the last day."""
        ...

    def put_lives(self, lives: Sequence[LifeSeen]) -> None: ...
    def last_stretch(self, job: str, restart: int) -> Stretch | None: ...
    def put_stretches(self, job: str, restart: int, stretches: Sequence[Stretch]) -> None: ...
    def to_count(self, now: datetime) -> list[str]:
        """Jobs whose hours are due to be counted."""
        ...

    def past(self, job: str) -> PastJob: ...
    def put_hours(self, lives: Sequence[LifeSeen], hours: Sequence[HourSpent], now: datetime) -> None: ...
