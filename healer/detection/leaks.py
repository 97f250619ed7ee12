"""Memory leaks: free memory on the nodes of a job falls for hours, towards zero. Names the job.

The least free memory of a node's GPUs and the host's available memory (page cache counts as available) are
followed in points of 10 minutes, from the moment the node got this life of this job. A leak is reported if
the fall is a trend (Mann-Kendall), lasts through both halves of it, and reaches zero within a day
(Theil-Sen). What an allocator takes at the start, or a cache that fills, ends by itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from healer.detection.language.truth_columns import min_of
from healer.detection.outlook import slope_of
from healer.detection.presentation import with_unit
from healer.detection.protocol import Detector, Episode, Episodes, TickInput, new_evidence
from healer.model import Component, Detections, FaultClass, Finding, Scope, Sense, SlurmSnapshot
from healer.observations.telemetry_windows import Telemetry
from healer.observations.trends import Series
from healer.text import Said, name_some, say

JOB_LEAK = "job-memory-leak"
LOOK_S = 60.0
POINT_S = 600.0
#: Points of the last 6 hours; 2 hours must be known. A series that falls at each of 12 points has a z of 4.5.
WINDOW, LEAST_POINTS = 36, 12
TREND_Z = 4.0
#: It is reported if nothing will be left within this many hours.
WITHIN_H = 24.0
#: It is reported only if this share of the highest level is gone.
GONE_LEAST = 0.03
#: It is over when this many points in a row do not show it.
OVER_POINTS = 3
_TOGETHER = 256
_NODES_NAMED = 4
#: What is used up, as in the text keys.
HOST, GPU = "host", "gpu"


class _Leak(NamedTuple):
    title: Said
    text: Said


@dataclass(slots=True, frozen=True)
class _Fall:
    """On one node: hours until nothing is left (with their range), and bytes lost per hour."""

    node: str
    what: str
    hours: float
    low: float
    high: float
    per_h: float
    left: float


@dataclass(slots=True)
class Leaks(Detector):
    """The leaks of all jobs of one cluster."""

    _of: Telemetry | None = None
    _looked_s: float = -np.inf
    _series: dict[str, Series] = field(default_factory=dict)
    #: (nodes,) the job's row and its life at the beginning of each node's series.
    _job: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    _life: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    _leaks: Episodes[_Leak] = field(default_factory=lambda: Episodes(OVER_POINTS))

    def tick(self, given: TickInput) -> Detections:
        """Cheap, except once per `LOOK_S`."""
        telemetry, slurm, now = given.telemetry, given.slurm, given.now
        at_s = now.timestamp()
        if self._of is not telemetry or at_s < self._looked_s:
            self._begin(telemetry)
        if slurm is not None and at_s - self._looked_s >= LOOK_S:
            self._looked_s = at_s
            self._look(telemetry, slurm, now)
        findings = tuple(_finding(where, episode, now) for where, episode in self._leaks.due())
        return Detections(at=now, findings=findings, clear_since=self._leaks.cleared(JOB_LEAK, given.watched))

    def _begin(self, telemetry: Telemetry) -> None:
        """Starts without series: rows of another telemetry are different nodes."""
        self._of, self._looked_s = telemetry, -np.inf
        self._series = {what: Series(counter=False, point_s=POINT_S) for what in (HOST, GPU)}
        self._job = self._life = np.zeros(0, np.int64)

    def _look(self, telemetry: Telemetry, slurm: SlurmSnapshot, now: datetime) -> None:
        job = telemetry.axis(Scope.node).parent(Scope.job).astype(np.int64)
        self._follow(telemetry, slurm, job)
        falls: dict[Component, list[_Fall]] = {}
        is_complete = False
        for what, readings in _readings(telemetry, now):
            series = self._series[what]
            if series.look(np.where(job >= 0, readings, np.nan), now.timestamp()):
                is_complete = True
                for row, fall in _falling(telemetry, series, what):
                    falls.setdefault(telemetry.axis(Scope.job).components()[job[row]], []).append(fall)
        if is_complete:
            self._judge(falls, job, telemetry, slurm, now)

    def _follow(self, telemetry: Telemetry, slurm: SlurmSnapshot, job: NDArray[np.int64]) -> None:
        """Starts a new series on a node that got another job, or another life of the same job."""
        shown = (slurm.jobs.get(where.job or "") for where in telemetry.axis(Scope.job).components())
        lives = np.array([*(life.restarts if life is not None else -1 for life in shown), -1], np.int64)
        life = lives[job]  # -1 reads the last element
        moved = np.ones(len(job), np.bool_)
        n = len(self._job)
        moved[:n] = (job[:n] != self._job[: len(job)]) | (life[:n] != self._life[: len(job)])
        for series in self._series.values():
            series.forget(np.flatnonzero(moved))
        self._job, self._life = job, life

    def _judge(
        self,
        falls: dict[Component, list[_Fall]],
        job: NDArray[np.int64],
        telemetry: Telemetry,
        slurm: SlurmSnapshot,
        now: datetime,
    ) -> None:
        nodes = np.bincount(job[job >= 0], minlength=telemetry.axis(Scope.job).n)
        for where, found in falls.items():
            row = telemetry.axis(Scope.job).row(where)
            shown = slurm.jobs.get(where.job or "")
            leak = _leak(where, shown.user if shown else "", found, int(nodes[row or 0]))
            self._leaks.show(where, leak, now)
        for where in [where for where in self._leaks.on if where not in falls]:
            self._leaks.miss(where, now)
        self._leaks.drop_gone(telemetry)


def _finding(where: Component, episode: Episode[_Leak], now: datetime) -> Finding:
    identity = f"{JOB_LEAK}|{where.cluster}|{where.job}|{episode.since.isoformat()}"
    return Finding.from_evidence(
        new_evidence(identity, where, episode.since, episode.now.text, now, Sense.metrics),
        fault=JOB_LEAK,
        fault_class=FaultClass.application,
        title=episode.now.title,
        confidence=0.7,
    )


def _readings(telemetry: Telemetry, now: datetime) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """(nodes,) bytes free: of the host, and of the fullest GPU."""
    if telemetry.scope_of("host_memory_available_bytes") is not None:
        yield HOST, telemetry.value("host_memory_available_bytes", now)
    free, total, used = (
        telemetry.value_on(Scope.gpu, f"gpu_memory_{name}_bytes", now) for name in ("free", "total", "used")
    )
    free = np.where(np.isnan(free), total - used, free)
    if np.isfinite(free).any():
        parent = telemetry.axis(Scope.gpu).parent(Scope.node)
        yield GPU, min_of(free, parent, telemetry.axis(Scope.node).n)


def _falling(telemetry: Telemetry, series: Series, what: str) -> Iterator[tuple[int, _Fall]]:
    """Rows whose memory will run out in time."""
    whole = series.series(np.arange(series.rows))[-WINDOW:]
    enough = np.isfinite(whole).sum(axis=0) >= LEAST_POINTS
    most, newest = np.fmax.reduce(whole, axis=0), series.newest(2)
    with np.errstate(invalid="ignore"):
        looked = np.flatnonzero(enough & (newest < (1 - GONE_LEAST) * most))
    names = telemetry.axis(Scope.node).components()
    for first in range(0, len(looked), _TOGETHER):
        rows = looked[first : first + _TOGETHER]
        found = slope_of(whole[:, rows])
        left = newest[rows]
        with np.errstate(all="ignore"):
            hours = left / -found.per_point * POINT_S / 3600
            fast, slow = (left / -end * POINT_S / 3600 for end in (found.low, found.high))
            is_leak = (found.z <= -TREND_Z) & found.lasts & (hours <= WITHIN_H)
        for index in np.flatnonzero(is_leak).tolist():
            row = int(rows[index])
            fall = _Fall(
                node=names[row].node or "",
                what=what,
                hours=max(0.0, float(hours[index])),
                low=max(0.0, float(fast[index])),
                high=float(slow[index]) if slow[index] > 0 else np.inf,
                per_h=float(-found.per_point[index]) * 3600 / POINT_S,
                left=max(0.0, float(left[index])),
            )
            yield row, fall


def _leak(where: Component, user: str, falls: list[_Fall], nodes: int) -> _Leak:
    """Its text: `job 7 (ann) uses up the node's memory on all its 16 nodes: gpu0003 has …`"""
    first = min(falls, key=lambda fall: (fall.hours, fall.node))
    alike = sorted({fall.node for fall in falls if fall.what == first.what})
    if len(alike) == nodes:
        place = say("detection.on_all_nodes", count=nodes, node=first.node)
    else:
        place = say("detection.on_some_nodes", nodes=name_some(alike, _NODES_NAMED), of=nodes)
    if np.isfinite(first.high):
        span = say("detection.hours_range", low=first.low, high=first.high)
    else:
        span = say("detection.hours_or_more", low=first.low)
    memory = say(f"detection.memory_of_{first.what}")
    text = say(
        "detection.leak_text",
        job=f"{where.job} ({user})" if user else where.job,
        memory=memory,
        place=place,
        node=first.node,
        left=with_unit(first.left, "B"),
        per_h=with_unit(first.per_h, "B"),
        hours=first.hours,
        span=span,
    )
    return _Leak(say("detection.leak", job=where.job, memory=memory, hours=first.hours), text)
