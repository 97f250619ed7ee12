"""A site's own past: what people did, what healer would have done, and the difference in hours."""

from datetime import date, datetime, timedelta
from typing import Annotated, Any

import msgspec

#: healer's own restart of a job, from its death to its start, if nodes are free.
RESTART_S = 60
#: Longer waits for the next start are not counted: the person may not have wanted the job again.
WAIT_MOST = timedelta(hours=24)
#: This many days without a line are a silence.
SILENT_DAYS = 7


class Hold(msgspec.Struct, kw_only=True):
    """A node out of service from `at` until `until`; None: to the end of the recording. `check`: what the
    node's own prolog, epilog or health check printed before Slurm drained it."""

    node: str
    at: datetime
    reason: str
    owner: str
    by: str
    until: datetime | None = None
    check: str = ""
    number: int = 0


class Death(msgspec.Struct, kw_only=True):
    """A life of a job that ended badly. `again_at`: when the same job started next, or else one of the same
    person and name."""

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


_AtLeast0 = Annotated[float, msgspec.Meta(ge=0)]


class Assumptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the figures rest on. `start_up_s`: healer's own restart, from a job's death to its start, where
    nodes are free; `checkpoint_h`: half of it is lost with a job, None: its whole life; `price`: of a
    GPU-hour."""

    start_up_s: _AtLeast0 = RESTART_S
    checkpoint_h: _AtLeast0 | None = None
    price: _AtLeast0 | None = None


class LostLife(msgspec.Struct, frozen=True, array_like=True):
    """A life that ended by hardware. `waited_s` until the next start, None: not counted; `on_bad_node`: it
    started there after healer would have drained the node."""

    gpus: int
    hours: float
    waited_s: float | None
    on_bad_node: bool

    def lost(self, assumed: Assumptions) -> float:
        """GPU-hours."""
        hours = self.hours if assumed.checkpoint_h is None else min(self.hours, assumed.checkpoint_h / 2)
        return self.gpus * hours

    def waiting(self, assumed: Assumptions) -> float:
        """GPU-hours."""
        return self.gpus * max(0.0, (self.waited_s or 0.0) - assumed.start_up_s) / 3600


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """GPU-hours. `lost`: of jobs hit, `unknown` of which have no figure; `on_bad_nodes`: jobs that started on
    a node after healer would have drained it; `waiting`: from death to the next start, less healer's own;
    `cost`: of nodes that healer would have held without need. All but `cost` follow from `lives`."""

    assumed: Assumptions
    lives: list[LostLife]
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


class JobMix(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that started; nodes of the largest and of the median one; those that died of hardware, and how
    many of these were started again within a day."""

    started: int = 0
    largest: int = 0
    median: int = 0
    died: int = 0
    again: int = 0


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
    jobs: JobMix
    #: Incidents of what was slow, by id.
    slow: list[str]
    imported: dict[str, Any]
