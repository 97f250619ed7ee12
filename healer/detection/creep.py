"""Is a job getting slower little by little over its life? Names the job, never a node.

`job-slow` sees a jump. This one keeps the life of a job as at most 56 medians, each of an equal stretch of
time; when there are more, two become one and stretches are twice as long. So an hour and a month take the
same room. It is told where the medians rise by a trend (Mann-Kendall) in both halves of the life, and by 5 %
in all (Theil-Sen). Where ranks tell their work, compute per work is looked at in place of the step time:
longer sequences or larger batches are no creeping.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from statistics import median

import numpy as np
from numpy.typing import NDArray

from healer.detection.outlook import slope_of
from healer.detection.protocol import Detector, Look
from healer.detection.streams import WARM_UP, medians_of
from healer.model import Component, Detections, Evidence, FaultClass, Finding, Sense
from healer.observations.steps import JobSteps

JOB_CREEP = "job-creep"
#: The first stretch; it doubles as the life goes on. A median of fewer steps says nothing.
STRETCH_S, STEPS_LEAST = 600.0, 5
STRETCHES = 56
LEAST_STRETCHES = 12
TREND_Z = 4.0
SLOWER = 0.05
#: It is over when the newest stretches are back to half of what was gained.
BACK = 0.5
#: One jump may make so much of it: a new phase of the job is no creeping.
JUMP_MOST = 0.4
#: Steps of one stretch that are kept for its median; beyond it every second one, every fourth, and so on.
STEPS_KEPT = 1024


@dataclass(slots=True)
class Life:
    """One life of a job, told step by step: medians of equal stretches of time, s a step (or per work)."""

    stretch_s: float = STRETCH_S
    medians: list[float] = field(default_factory=list)
    began_s: float | None = None
    told: int = 0
    _open: list[float] = field(default_factory=list)
    _until_s: float = 0.0
    _every: int = 1

    def step(self, at_s: float, seconds: float) -> bool:
        """One step that ended at `at_s`. True when a stretch was completed. Of time without steps there is no
        stretch: a job that hung was not slower."""
        self.told += 1
        if self.told <= WARM_UP or not (np.isfinite(seconds) and np.isfinite(at_s)) or seconds <= 0:
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
        if self.told % self._every == 0:
            self._open.append(seconds)
        return done

    def _halve(self) -> None:
        even = len(self.medians) // 2 * 2
        self.medians = [
            *(
                (one + other) / 2
                for one, other in zip(self.medians[:even:2], self.medians[1:even:2], strict=True)
            ),
            *self.medians[even:],
        ]
        self.stretch_s *= 2

    def slower(self) -> "Slower | None":
        """None: no creeping that can be told."""
        if len(self.medians) < LEAST_STRETCHES:
            return None
        found = slope_of(np.array(self.medians)[:, np.newaxis])
        z, per_point, level = (float(one[0]) for one in (found.z, found.per_point, found.level))
        first = level - per_point * (len(self.medians) - 1)
        if not (z >= TREND_Z and found.lasts[0] and first > 0 and level / first - 1 >= SLOWER):
            return None
        if self._largest_jump() > JUMP_MOST * (level - first):
            return None
        hours = self.stretch_s / 3600
        return Slower(first, level, per_point / first / hours, hours * len(self.medians))

    def _largest_jump(self) -> float:
        """Between the medians of three stretches before and after a moment."""
        told, places = self.medians, range(3, len(self.medians) - 2)
        return max(median(told[at : at + 3]) - median(told[at - 3 : at]) for at in places)


@dataclass(slots=True, frozen=True)
class Slower:
    """From `first` to `now` s, so much of `first` more each hour, over so many hours."""

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
    with_work: bool
    life: Life = field(default_factory=Life)
    done: int = -1
    told: Slower | None = None
    since: datetime | None = None
    cleared: datetime | None = None
    due: bool = False

    def begin(self, now: datetime) -> Iterator[tuple[float, NDArray[np.float32]]]:
        """Steps that are new: when each ended, s since 1970, and what its ranks told of it."""
        told = self.job.compute if self.with_work else self.job.step_s
        for step in self.job.ready(self.done, now):
            row, self.done = self.job.row(step), step
            if row is not None:
                yield float(self.job.at[row]), told[row]

    def take(self, at_s: float, seconds: float, now: datetime) -> None:
        """`seconds`: the median over its ranks, NaN where none told."""
        if not np.isnan(seconds) and self.life.step(at_s, seconds):
            self._judge(now)

    def _judge(self, now: datetime) -> None:
        found = self.life.slower()
        if found is not None:
            self.told, self.since, self.cleared, self.due = found, self.since or now, None, True
        elif self.told is not None:
            newest = median(self.life.medians[-3:])
            if newest < self.told.first + BACK * (self.told.now - self.told.first):
                self.told, self.since, self.cleared = None, None, now


class Creep(Detector):
    """Of all jobs of one cluster. One thread owns it."""

    def __init__(self) -> None:
        self._watched: dict[tuple[str, int], _Watch] = {}

    def tick(self, look: Look) -> Detections:
        slurm, now = look.slurm, look.now
        jobs = {(one.job, one.restart): one for one in look.steps.jobs()}
        self._watched = {key: one for key, one in self._watched.items() if key in jobs}
        findings, clear = [], {}
        watches = {key: self._watch(key, job) for key, job in jobs.items()}
        told = [(watch, *step) for watch in watches.values() for step in watch.begin(now)]
        for (watch, at_s, _), seconds in zip(
            told, medians_of([one[2] for one in told]).tolist(), strict=True
        ):
            watch.take(at_s, seconds, now)
        for key, watch in watches.items():
            job = jobs[key]
            where = Component(cluster=job.cluster, job=job.job)
            shown = slurm.jobs.get(job.job) if slurm is not None else None
            if shown is None or not shown.active:
                continue
            if watch.due and watch.told is not None:
                watch.due = False
                findings.append(_finding(job, where, watch.told, watch.since or now, now, watch.with_work))
            if watch.cleared is not None and (JOB_CREEP, where) in look.watched:
                clear[JOB_CREEP, where] = watch.cleared
        return Detections(at=now, findings=tuple(findings), clear_since=clear)

    def _watch(self, key: tuple[str, int], job: JobSteps) -> _Watch:
        """A life that went back to a checkpoint, or tells its work only now, is followed anew."""
        with_work = bool(job.with_work[job.seen].all()) and bool(job.seen.any())
        known = self._watched.get(key)
        if (
            known is None
            or known.job is not job
            or known.rewound != job.rewound
            or known.with_work != with_work
        ):
            known = self._watched[key] = _Watch(job, job.rewound, with_work)
        return known


def _finding(
    job: JobSteps, where: Component, seen: Slower, since: datetime, now: datetime, with_work: bool
) -> Finding:
    what = "of compute per unit of work" if with_work else "a step"
    text = (
        f"job {job.job}: {seen.now:.3g} s {what} now, {seen.share:.0%} more than the {seen.first:.3g} s with "
        f"which this life began, {seen.per_h:.1%} more each hour for {seen.hours:.1f} h; it "
        "grew all the time, without a jump"
    ).replace("%", " %")
    identity = f"{JOB_CREEP}|{where.cluster}|{job.job}|{job.restart}|{since.isoformat()}"
    evidence = Evidence(
        digest=sha256(identity.encode()).hexdigest(),
        at=since,
        arrived_at=now,
        component=where,
        text=text,
        job=job.job,
        sense=Sense.step_times,
    )
    return Finding.from_evidence(
        evidence,
        fault=JOB_CREEP,
        fault_class=FaultClass.application,
        title=f"Job {job.job} gets slower all the time: {seen.share:.0%} since it began".replace("%", " %"),
        confidence=0.7,
    )
