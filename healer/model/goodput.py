"""How the GPU-time of jobs was spent: one set of definitions for the ledger, the reports and the simulator.

Effective training time is `productive` time divided by the time from submission to end, as Llama 3 defines it
(arXiv 2407.21783, section 3.3.4); without `queued` and `spare` in the divisor it is ByteRobust's ETTR (arXiv
2509.16293): productive time over the wall time of the job's runs.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

import msgspec

#: Hours of the ledger are kept as long as the longest report.
HOURS_KEPT = timedelta(days=400)


class Spent(StrEnum):
    """What GPU-time is spent on."""

    #: Steps that were kept: a durable checkpoint holds them, a later life continued after them, or the job
    #: completed.
    productive = "productive"
    #: Steps that nothing is known to hold yet.
    unsaved = "unsaved"
    #: From the first step that was done again, or that no checkpoint held when the job ended, to the last.
    lost = "lost"
    #: Excess of the steps' duration over the job's own usual one while an incident affected it.
    slowed = "slowed"
    #: Pauses between steps in which a checkpoint became durable.
    checkpointing = "checkpointing"
    #: The job holds its GPUs and makes no step, and an incident explains it.
    hung = "hung"
    #: It waits in Slurm's queue: the GPUs that it got later, or had before.
    queued = "queued"
    #: From its allocation to its first step, and from the end of a fault to the first step after it.
    starting = "starting"
    #: GPUs of the allocation on nodes that made no step in this life, while others did.
    spare = "spare"
    #: Telemetry is missing, or nothing explains a pause. Never counted as productive.
    unknown = "unknown"


#: GPU-time that was paid for without a result. Spares are a choice, and unknown time is not judged.
WASTED = frozenset({Spent.lost, Spent.slowed, Spent.hung, Spent.starting})


class Stretch(msgspec.Struct, frozen=True, array_like=True):
    """Steps without a pause between them: from the start of step `first` to the end of step `last`. Without
    step numbers `first` is -1 and `last` the number of steps less 2."""

    begin: datetime
    end: datetime
    first: int
    last: int

    @property
    def steps(self) -> int:
        return self.last - self.first + 1

    @property
    def is_numbered(self) -> bool:
        return self.first >= 0

    @property
    def step_s(self) -> float:
        # A sender may report that steps took no time at all.
        return max((self.end - self.begin).total_seconds(), 1e-6) / self.steps


class SavedStep(msgspec.Struct, frozen=True, array_like=True):
    """A durable checkpoint holds all steps up to this one."""

    at: datetime
    step: int


class Harm(msgspec.Struct, frozen=True, kw_only=True):
    """An incident that hit this life of the job. `stopped_at`: its work ended then, and what was done since
    `lost_since` was lost (None: unknown, or its work went on). `until` None: it goes on."""

    incident: str
    cause: str
    since: datetime
    until: datetime | None = None
    stopped_at: datetime | None = None
    lost_since: datetime | None = None


class Held(msgspec.Struct, frozen=True, array_like=True):
    """What a life holds from `since` on; `spare` of its `gpus` are on nodes without a rank (None: not known).
    `racks` counts `gpus` by rack."""

    since: datetime
    gpus: int
    spare: int | None = None
    racks: dict[str, int] = {}


class JobLife(msgspec.Struct, frozen=True, kw_only=True):
    """One life of a job, from its submission or requeue. `started_at` None: it still waits, or never ran;
    `ended_at` None: it goes on. `state` is Slurm's last word of it. Lists are sorted by time."""

    restart: int
    queued_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    state: str = "PENDING"
    held: tuple[Held, ...] = ()
    stretches: tuple[Stretch, ...] = ()
    saved: tuple[SavedStep, ...] = ()
    harms: tuple[Harm, ...] = ()


class LifeSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A life of a job as Slurm showed it. `seen_at`: when Slurm last showed the job. `leader`: of a component
    of a heterogeneous job, whose ranks all report under the leader's id; else empty."""

    job: str
    restart: int
    queued_at: datetime
    seen_at: datetime
    state: str
    started_at: datetime | None = None
    ended_at: datetime | None = None
    held: tuple[Held, ...] = ()
    user: str = ""
    account: str = ""
    partition: str = ""
    leader: str = ""

    @property
    def reports_as(self) -> str:
        """The job under whose id its steps, checkpoints and incidents are."""
        return self.leader or self.job


class HourSpent(NamedTuple):
    """GPU-seconds of one hour, of one life."""

    hour: datetime
    restart: int
    held: int | None
    spent: Spent
    cause: str
    incident: str
    gpu_s: float


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """`rules/prices.yaml`: the price of a GPU-hour, by partition; None: the site names none."""

    currency: str = ""
    gpu_hour: float | None = None
    partitions: dict[str, float] = {}

    def of(self, partition: str) -> float | None:
        return self.partitions.get(partition, self.gpu_hour)


class GoodputRow(msgspec.Struct, frozen=True, kw_only=True):
    """GPU-hours by class, of one job, user, cause… `effective`: the share that was productive; None: nothing
    is known. `cost`: at the site's prices, without the queue; `wasted`: of it, what was lost, slowed, hung or
    starting."""

    name: str
    gpu_hours: dict[Spent, float]
    total: float
    effective: float | None = None
    cost: float | None = None
    wasted: float | None = None


class Slice(NamedTuple):
    """`gpus` that were spent on one thing from `begin` to `end`; `cause` and `incident` empty: none. `held`:
    index in the life's list; None: in the queue."""

    begin: datetime
    end: datetime
    gpus: int
    spent: Spent
    cause: str = ""
    incident: str = ""
    restart: int = 0
    held: int | None = None

    @property
    def gpu_s(self) -> float:
        return self.gpus * (self.end - self.begin).total_seconds()


#: What only steps show.
_STEPPED = (Spent.productive, Spent.unsaved, Spent.lost, Spent.slowed, Spent.checkpointing)


def effective(gpu_s: Iterable[tuple[Spent, float]]) -> float | None:
    """Effective training time. None: no step is known; what waited or hung says nothing of the rest."""
    sums = dict.fromkeys(Spent, 0.0)
    for spent, seconds in gpu_s:
        sums[spent] += seconds
    stepped = any(sums[spent] for spent in _STEPPED)
    return sums[Spent.productive] / sum(sums.values()) if stepped else None
