"""Jobs that get slower gradually over their life. Names the job, never a node.

`job-slow` detects a jump. This detector keeps the life of a job as at most 56 medians, each over an equal
stretch of time. When there are more, pairs are merged and stretches become twice as long, so that an hour and
a month take the same space. It reports a job if the medians rise by a trend (Mann-Kendall) in both halves of
the life, and by 5 % in total (Theil-Sen). If ranks report their work, compute per work replaces the step
time: longer sequences or larger batches do not count as slower.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median

import numpy as np
from numpy.typing import NDArray

from healer.detection.outlook import slope_of
from healer.detection.protocol import Detector, TickInput, new_evidence, percent, watch_jobs
from healer.detection.streams import WARM_UP, medians_of
from healer.model import Component, Detections, FaultClass, Finding, Sense
from healer.observations.steps import JobSteps, LifeKey, active_job
from healer.text import say

JOB_CREEP = "job-creep"
#: Length of the first stretches; it doubles as the life continues. A stretch with fewer steps has no median.
STRETCH_S, STEPS_LEAST = 600.0, 5
STRETCHES = 56
LEAST_STRETCHES = 12
TREND_Z = 4.0
SLOWER = 0.05
#: It is over when the newest stretches have lost half of the growth.
BACK = 0.5
#: One jump may make up this share: a new phase of the job is not a gradual slowdown.
JUMP_MOST = 0.4
#: Steps of one stretch kept for its median; above this only every second one, every fourth, and so on.
STEPS_KEPT = 1024


@dataclass(slots=True)
class Life:
    """One life of a job, step by step: medians of equal stretches of time, in s per step (or per work)."""

    stretch_s: float = STRETCH_S
    medians: list[float] = field(default_factory=list)
    began_s: float | None = None
    steps: int = 0
    _open: list[float] = field(default_factory=list)
    _until_s: float = 0.0
    _every: int = 1

    def step(self, at_s: float, seconds: float) -> bool:
        """Adds one step that ended at `at_s`. Returns True when a stretch was completed. Time without steps
        has no stretch: a job that hung was not slower."""
        self.steps += 1
        if self.steps <= WARM_UP or not (np.isfinite(seconds) and np.isfinite(at_s)) or seconds <= 0:
            return False
        if self.began_s is None:
            self.began_s, self._until_s = at_s, at_s + self.stretch_s
        done = at_s >= self._until_s and len(self._open) >= STEPS_LEAST
        if done:
            self.medians.append(median(self._open))
            self._open.clear()
            self._every = 1
            self._until_s = at_s + self.stretch_s
            if len(self.medians) > STRETCHES:
                self._halve()
        if len(self._open) >= STEPS_KEPT:
            self._open, self._every = self._open[::2], 2 * self._every
        if self.steps % self._every == 0:
            self._open.append(seconds)
        return done

    def _halve(self) -> None:
        even = len(self.medians) // 2 * 2
        pairs = zip(self.medians[:even:2], self.medians[1:even:2], strict=True)
        self.medians = [*((first + second) / 2 for first, second in pairs), *self.medians[even:]]
        self.stretch_s *= 2

    def slower(self) -> "Slower | None":
        """The slowdown; None if there is none."""
        if len(self.medians) < LEAST_STRETCHES:
            return None
        found = slope_of(np.array(self.medians)[:, np.newaxis])
        z, per_point, level = (float(column[0]) for column in (found.z, found.per_point, found.level))
        first = level - per_point * (len(self.medians) - 1)
        if not (z >= TREND_Z and found.lasts[0] and first > 0 and level / first - 1 >= SLOWER):
            return None
        if self._largest_jump() > JUMP_MOST * (level - first):
            return None
        hours = self.stretch_s / 3600
        return Slower(first, level, per_point / first / hours, hours * len(self.medians))

    def _largest_jump(self) -> float:
        """The largest jump between the medians of three stretches before and after a moment."""
        medians, places = self.medians, range(3, len(self.medians) - 2)
        return max(median(medians[at : at + 3]) - median(medians[at - 3 : at]) for at in places)


@dataclass(slots=True, frozen=True)
class Slower:
    """From `first` to `now` s: the growth per hour as a share of `first`, over so many hours."""

    first: float
    now: float
    per_h: float
    hours: float

    @property
    def share(self) -> float:
        return self.now / self.first - 1


@dataclass(slots=True, eq=False)
class _Watch:
    job: JobSteps
    rewound: int
    life: Life = field(default_factory=Life)
    done: int = -1
    #: While the job gets slower: by how much, and since when; else when that ended.
    slower: Slower | None = None
    since: datetime | None = None
    cleared: datetime | None = None
    due: bool = False
    #: Its ranks report their work.
    with_work: bool = field(init=False)

    def __post_init__(self) -> None:
        self.with_work = _reports_work(self.job)

    def begin(self, now: datetime) -> Iterator[tuple[float, NDArray[np.float32]]]:
        """Steps that are new: when each ended, s since 1970, and seconds by rank."""
        seconds = self.job.compute if self.with_work else self.job.step_s
        for step in self.job.ready(self.done, now):
            row, self.done = self.job.row(step), step
            if row is not None:
                yield float(self.job.at[row]), seconds[row]

    def take(self, at_s: float, seconds: float, now: datetime) -> None:
        """`seconds`: the median over its ranks, NaN where none is known."""
        if not np.isnan(seconds) and self.life.step(at_s, seconds):
            self._judge(now)

    def _judge(self, now: datetime) -> None:
        found = self.life.slower()
        if found is not None:
            self.slower, self.since, self.cleared, self.due = found, self.since or now, None, True
        elif self.slower is not None:
            newest = median(self.life.medians[-3:])
            if newest < self.slower.first + BACK * (self.slower.now - self.slower.first):
                self.slower, self.since, self.cleared = None, None, now


class Creep(Detector):
    """Of all jobs of one cluster. One thread owns it."""

    def __init__(self) -> None:
        self._watches: dict[LifeKey, _Watch] = {}

    def tick(self, given: TickInput) -> Detections:
        now = given.now
        # A life that reports its work only now is followed from scratch.
        same = {
            key: watch for key, watch in self._watches.items() if watch.with_work == _reports_work(watch.job)
        }
        self._watches = watch_jobs(same, given.steps, _Watch)
        steps = [(watch, *step) for watch in self._watches.values() for step in watch.begin(now)]
        medians = medians_of([seconds for _, _, seconds in steps]).tolist()
        for (watch, at_s, _), seconds in zip(steps, medians, strict=True):
            watch.take(at_s, seconds, now)
        findings, clear = [], {}
        for watch in self._watches.values():
            where = Component(cluster=watch.job.cluster, job=watch.job.job)
            if active_job(given.slurm, watch.job.job) is None:
                continue
            if watch.due and watch.slower is not None:
                watch.due = False
                findings.append(_finding(watch, where, watch.slower, now))
            if watch.cleared is not None and (JOB_CREEP, where) in given.watched:
                clear[JOB_CREEP, where] = watch.cleared
        return Detections(at=now, findings=tuple(findings), clear_since=clear)


def _reports_work(job: JobSteps) -> bool:
    return bool(job.with_work[job.seen].all()) and bool(job.seen.any())


def _finding(watch: _Watch, where: Component, slower: Slower, now: datetime) -> Finding:
    job, since = watch.job, watch.since or now
    text = say(
        "detection.creep_text",
        job=job.job,
        now=slower.now,
        what=say("detection.of_compute_per_work" if watch.with_work else "detection.a_step"),
        share=percent(slower.share),
        first=slower.first,
        per_h=100 * slower.per_h,
        hours=slower.hours,
    )
    identity = f"{JOB_CREEP}|{where.cluster}|{job.job}|{job.restart}|{since.isoformat()}"
    return Finding.from_evidence(
        new_evidence(identity, where, since, text, now, Sense.step_times),
        fault=JOB_CREEP,
        fault_class=FaultClass.application,
        title=say("detection.creep", job=job.job, share=percent(slower.share)),
        confidence=0.7,
    )
