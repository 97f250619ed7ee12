"""Nodes that are slow from the start of their job, which comparing the job's own ranks cannot show: compared
with other jobs.

With two of four nodes slow, no majority of peers agrees. The time that the same program needed per unit of
work on the same GPU model elsewhere is an outside reference. It is only evidence, because the program may
have changed; so a job in which no node works like the others did is not judged.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

import numpy as np

from healer.detection.protocol import Detector, Pair, Reports, TickInput, percent
from healer.detection.step_findings import Onset, finding_at
from healer.detection.streams import WARM_UP, robust
from healer.model import Component, Detections, Finding, SlurmJob, SlurmSnapshot
from healer.observations.steps import JobSteps, LifeKey, active_job
from healer.observations.telemetry_windows import Telemetry
from healer.text import say

SLOWER_ELSEWHERE = "slower-than-elsewhere"
#: A node's figure is the median of this many steps, computed this often.
STEPS = 20
#: This much slower than the others, and by this many of their robust deviations. Our own figures: nodes of
#: one kind differ by about a percent.
SLOWER, SPREADS = 0.05, 4.0
#: Nodes of other jobs needed for a baseline, and how long their figures count.
NODES_LEAST, KEPT = 4, timedelta(days=7)
#: Limits on the kinds of jobs, and on the figures of each.
KINDS_MOST, FIGURES_MOST = 500, 2000
#: With this many nodes the job's own ranks show a slow one, unless more than this share of them are slow.
OWN_PEERS, SHARED = 5, 0.25
#: Jobs per tick; the others wait for the next.
LOOKS_MOST = 20


class Kind(NamedTuple):
    """Jobs of one kind run the same program, as far as Slurm shows."""

    name: str
    user: str
    partition: str
    model: str


class _Figure(NamedTuple):
    """Seconds of compute per unit of work: the median of a node's ranks and steps."""

    seconds: float
    at: datetime


@dataclass(slots=True)
class _Watch:
    job: JobSteps
    #: The step at which it was first seen, the one from which its steps count, and the last one examined.
    began: int
    first: int
    done: int
    #: Node -> how much slower than elsewhere, as a log; and the number of figures behind that.
    slower: dict[str, tuple[float, int]] = field(default_factory=dict)


class Baseline(Detector):
    """Follows all jobs that report their work. Its figures of other jobs are lost at a restart."""

    def __init__(self) -> None:
        self._figures: dict[Kind, dict[tuple[str, str], _Figure]] = {}
        self._watches: dict[LifeKey, _Watch] = {}
        self._reports = Reports()
        self._clear: dict[Pair, datetime] = {}

    def tick(self, given: TickInput) -> Detections:
        slurm, now = given.slurm, given.now
        findings: list[Finding] = []
        watches: dict[LifeKey, _Watch] = {}
        looks = 0
        for job in given.steps.jobs():
            shown = active_job(slurm, job.job)
            if slurm is None or shown is None or not job.vouched or job.newest < 0:
                continue
            watch = self._watches.get(job.key)
            if watch is None or watch.job is not job or job.newest < watch.done:
                watch = _Watch(job, job.newest, job.newest, job.newest)
            watches[job.key] = watch
            if looks < LOOKS_MOST and job.newest - max(watch.done, watch.first + WARM_UP) >= STEPS:
                looks += 1
                watch.done = job.newest
                self._look(watch, shown, slurm, now)
            findings += self._findings(watch, now)
        self._watches = watches
        well = {pair for pair in given.watched if pair[0] == SLOWER_ELSEWHERE and self._is_well(pair[1])}
        self._clear = {pair: self._clear.get(pair, now) for pair in sorted(well, key=repr)}
        return Detections(at=now, findings=tuple(findings), clear_since=self._clear)

    def forget(self, telemetry: Telemetry, node: str, since: datetime) -> None:
        for watch in self._watches.values():
            if watch.slower.pop(node, None) is not None:
                watch.first = watch.done = watch.job.newest  # earlier steps no longer count
        for figures in self._figures.values():
            for key in [key for key in figures if key[1] == node]:
                del figures[key]
        self._reports.forget(node)

    def _look(self, watch: _Watch, shown: SlurmJob, slurm: SlurmSnapshot, now: datetime) -> None:
        seconds_of = _by_node(watch.job, slurm)
        models = {slurm.nodes[node].gpu_model for node in seconds_of if node in slurm.nodes}
        if not seconds_of or len(models) != 1 or "" in models:
            return
        kind = Kind(shown.name, shown.user, shown.partition, models.pop())
        figures = self._figures.setdefault(kind, {})
        others = [
            figure.seconds
            for (job, node), figure in figures.items()
            if job != shown.id and node not in seconds_of and now - figure.at <= KEPT
        ]
        watch.slower = _slower(seconds_of, np.array(others)) if len(others) >= NODES_LEAST else {}
        for node, seconds in seconds_of.items():
            figures.pop((shown.id, node), None)  # moves it to the end, as the newest
            figures[shown.id, node] = _Figure(seconds, now)
        while len(figures) > FIGURES_MOST:
            del figures[next(iter(figures))]
        self._figures[kind] = self._figures.pop(kind)
        while len(self._figures) > KINDS_MOST:
            del self._figures[next(iter(self._figures))]

    def _findings(self, watch: _Watch, now: datetime) -> Iterator[Finding]:
        slow = {node: (height, count) for node, (height, count) in watch.slower.items() if height > 0}
        if len(watch.slower) >= OWN_PEERS and len(slow) <= SHARED * len(watch.slower):
            return  # the job's own ranks show it
        job = watch.job
        for node, (height, count) in slow.items():
            where = Component(cluster=job.cluster, node=node)
            if not self._reports.is_due((SLOWER_ELSEWHERE, where), now):
                continue
            share = percent(float(np.expm1(height)))
            text = say("detection.slower_elsewhere_text", where=str(where), share=share, job=job.job, n=count)
            title = say("detection.slower_elsewhere", share=share)
            onset = Onset(job, where, watch.began - 1, now)
            yield finding_at(onset, SLOWER_ELSEWHERE, text=text, title=title)

    def _is_well(self, where: Component) -> bool:
        slower = [watch.slower[where.node] for watch in self._watches.values() if where.node in watch.slower]
        return bool(slower) and all(height <= 0 for height, _ in slower)


def _by_node(job: JobSteps, slurm: SlurmSnapshot) -> dict[str, float]:
    """Node -> median seconds of the last steps; only nodes of which all ranks report their work."""
    places, ranks = job.places(slurm), job.ranks
    rows = np.flatnonzero(job.number > job.newest - STEPS)
    found = {}
    for index, name in enumerate(places.nodes):
        here = places.node == index
        members = np.flatnonzero(here & job.seen[:ranks] & job.with_work[:ranks])
        values = job.compute[np.ix_(rows, members)]
        values = values[np.isfinite(values)]
        if len(members) and len(values) >= STEPS * len(members) / 2 and len(members) == here.sum():
            found[name] = float(np.median(values))
    return found


def _slower(seconds_of: dict[str, float], others: np.ndarray) -> dict[str, tuple[float, int]]:
    """Node -> by how much it is slower than `others`, or 0; empty if no comparison holds, because none of the
    nodes works like them."""
    middle, spread = robust(np.log(others))
    limit = max(np.log1p(SLOWER), SPREADS * spread)
    heights = {node: float(np.log(seconds)) - middle for node, seconds in seconds_of.items()}
    if not any(abs(height) < limit / 2 for height in heights.values()):
        return {}
    return {node: (height if height > limit else 0.0, len(others)) for node, height in heights.items()}
