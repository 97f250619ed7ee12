"""A site's own past: what people did, what healer would have done, and what that means in hours."""

from datetime import date, datetime, timedelta
from typing import Any

import msgspec

#: healer's own restart of a job, from its death to its start, where nodes are free.
RESTART_S = 60
#: Longer waits for the next start are not counted: the person may not have wanted the job again.
WAIT_MOST = timedelta(hours=24)
#: So many days without a line are silence.
SILENT_DAYS = 7


class Hold(msgspec.Struct, kw_only=True):
    """A node out of service from `at` until `until`; None: to the end of the recording."""

    node: str
    at: datetime
    reason: str
    owner: str
    by: str
    until: datetime | None = None
    number: int = 0


class Death(msgspec.Struct, kw_only=True):
    """A life of a job that ended badly. `again_at`: when the same job, or one of the same person and name,
    started next."""

    job: str
    state: str
    nodes: list[str]
    gpus: int
    start: datetime | None
    end: datetime
    user: str = ""
    name: str = ""
    requeue: bool = True
    again_at: datetime | None = None
    number: int = 0

    @property
    def gpu_hours(self) -> float | None:
        """Of this life; None: unknown."""
        if self.start is None or not self.gpus:
            return None
        return self.gpus * max(0.0, (self.end - self.start).total_seconds()) / 3600


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """healer's drain of one node, and what people did. `minutes`: how much earlier healer was; negative:
    later. `died`: jobs that started there afterwards and died, by number."""

    word: str
    node: str
    incident: str
    rule: str
    healer_at: datetime | None
    hold: int | None = None
    minutes: float | None = None
    died: list[int] = []


class RuleAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """`agreed`: drains that people or later deaths of jobs confirmed, of `drains`."""

    rule: str
    incidents: int
    drains: int
    agreed: int
    unneeded: int
    mode: str


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """GPU-hours. `lost`: of jobs hit, `unknown` of which have no figure; `on_bad_nodes`: jobs that started on
    a node after healer would have drained it; `waiting`: from death to the next start, less healer's own;
    `cost`: of nodes that healer would have held without need."""

    lost: float
    unknown: int
    on_bad_nodes: float
    waiting: float
    cost: float


class WorstNode(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    incidents: list[str]
    deaths: list[int]
    hours_out: float


class Silence(msgspec.Struct, frozen=True, kw_only=True):
    """Days, first and last, on which these nodes wrote nothing."""

    first: date
    last: date
    nodes: list[str]


# Wide: one field for each chapter of the report.
class PastReport(msgspec.Struct, frozen=True, kw_only=True):
    cluster: str
    since: datetime
    until: datetime
    nodes: int
    gpus: int
    mode: str
    incidents: list[dict[str, Any]]
    by_class: dict[str, list[str]]
    answers: list[Answer]
    holds: list[Hold]
    deaths: list[Death]
    hit: dict[str, list[int]]
    requeued: list[dict[str, Any]]
    held_back: list[dict[str, Any]]
    saved: Saved
    worst: list[WorstNode]
    silent: list[Silence]
    blind: list[str]
    advice: list[RuleAdvice]
    imported: dict[str, Any]
