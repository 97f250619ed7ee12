"""Stragglers: the rank with more compute than its peers, for which all wait; ranks to GPUs to nodes.

The steps of all jobs are followed side by side.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from healer.detection.fleet_figures import FleetFigures
from healer.detection.protocol import Detector, Look, Pair
from healer.detection.step_findings import (
    JOB_SLOW,
    SLOWNESS_SHARED,
    STRAGGLER,
    Together,
    job_slow,
    ratios_of,
    slow_many,
    slower_parts,
    straggler,
)
from healer.detection.streams import BIAS_MAX, BIAS_SCALE, LEARNT, Pace, Streams, Told, medians_of, step_all
from healer.detection.suspects import Suspects
from healer.model import Component, Detections, Finding, SlurmSnapshot
from healer.observations.steps import JobSteps, Places, StepTimes, is_of_life
from healer.observations.telemetry_windows import Telemetry

#: More of the ranks than this slow together share a cause: nobody is blamed.
SHARED = 0.25
#: Below this noise the short median tells a node's slow ranks apart, above it only the longer mean can.
_QUIET_NOISE = 0.03

Floats = NDArray[np.float64]


@dataclass(slots=True)
class Claim:
    where: Component
    ranks: NDArray[np.intp]
    since: int
    limit: float


@dataclass(slots=True, eq=False)
class Watch:
    """What is followed of one life of a job."""

    job: JobSteps
    rewound: int
    done: int = -1
    ranks: Streams = field(default_factory=Streams)
    nodes: Streams = field(default_factory=Streams)
    pace: Pace = field(default_factory=Pace)
    places: Places | None = None
    #: Rank -> the node where it was last known to run; empty: never known.
    where: NDArray[np.str_] = field(default_factory=lambda: np.zeros(0, "U1"))
    #: What was said of a slowness that all share, while it lasts.
    shared: Together | None = None
    first: int | None = None

    def begin(self, slurm: SlurmSnapshot | None, now: datetime) -> list[int]:
        """Looks where its ranks run now; the steps that are to be taken in."""
        places = self.job.places(slurm)
        if self.places is not places:
            if self._moved(places):
                self.ranks, self.nodes = Streams(), Streams()
            elif self.places is None or places.nodes[: len(self.places.nodes)] != self.places.nodes:
                self.nodes = Streams()
        self.places = places
        return self.job.ready(self.done, now)

    def _moved(self, places: Places) -> bool:
        """A rank runs on another node than before: what was learnt of it speaks of that one."""
        where = np.array([*places.nodes, ""])[places.node]  # -1 is the last
        before = np.full(len(where), "", dtype=self.where.dtype)
        before[: len(self.where)] = self.where[: len(where)]
        known = where != ""
        self.where = np.where(known, where, before)
        return bool((known & (before != "") & (before != where)).any())

    def forget(self, node: str) -> None:
        """What was learnt of its ranks is over."""
        if self.places is None or node not in self.places.nodes:
            return
        index = self.places.nodes.index(node)
        self.ranks.forget(np.flatnonzero(self.places.node == index))
        self.nodes.forget(np.array([index]))

    def claims(self) -> Iterator[Claim]:
        """Who is slow, unless so many are that they share a cause."""
        places, slow, slow_nodes = self.places, self.ranks.slow, self.nodes.slow
        if places is None or not len(slow) or not (slow.any() or slow_nodes.any()):
            return
        node = np.full(len(slow), -1)
        node[: len(places.node)] = places.node[: len(slow)]
        by_node = np.flatnonzero(slow_nodes)
        blamed = (slow | np.isin(node, by_node)) & self.job.seen[: len(slow)]
        if self._many(blamed):
            return
        named = np.unique(np.concatenate([node[slow & (node >= 0)], by_node]))
        for one in named:
            yield self._claim(int(one), np.flatnonzero(node == one), places)

    def _many(self, blamed: NDArray[np.bool_]) -> bool:
        return bool(blamed.sum() > SHARED * self.job.seen.sum())

    def together(self, *, blamed: bool) -> Together | None:
        """What all share that makes the job slow; None: it is not, somebody is to blame, or nobody can tell.
        It is put into words once: later the steps before it are not kept any more."""
        slow = self.ranks.slow
        slow &= self.job.seen[: len(slow)]
        many = self.places is not None and bool(slow.any()) and self._many(slow)
        if many and np.median(self.ranks.since[slow]) <= (self.first or 0) + LEARNT:
            many = False  # ranks that always did more, of stages of which nobody told
        if blamed or not (many or self.pace.slow):
            self.shared = None
        elif self.shared is None and many and self.places is not None:
            since = np.median(self.ranks.since[slow])
            self.shared = slow_many(self.job, self.places, slow, self.ranks.short_median(), float(since))
        elif self.shared is None:
            self.shared = slower_parts(self.job, self.pace)
        return self.shared

    def _claim(self, node: int, members: NDArray[np.intp], places: Places) -> Claim:
        quiet = self.ranks.noise < _QUIET_NOISE
        height = self.ranks.short_median()[members] if quiet else self.ranks.mean[members]
        height = np.nan_to_num(height, nan=-1.0)
        lead = members[height > 0.5 * height.max()] if height.max() > 0 else members
        gpu = places.gpu[lead[0]]
        cluster, name = self.job.cluster, places.nodes[node]
        if len(lead) == 1 and gpu >= 0:
            where = Component(cluster=cluster, node=name, gpu=int(gpu))
        else:
            where = Component(cluster=cluster, node=name)
        if len(lead) > 1 and self.nodes.slow[node]:
            since, limit = self.nodes.since[node], self.nodes.band[node] + self.nodes.bias()[node]
        else:
            worst = lead[np.argmax(self.ranks.sum[lead])]
            since, limit = self.ranks.since[worst], self.ranks.band[worst] + self.ranks.bias()[worst]
        return Claim(where, lead, int(since), float(limit))

    def well(self, where: Component) -> bool | None:
        """Whether that place is known to be like its peers; None where this job does not tell."""
        places = self.places
        if places is None or where.node not in places.nodes:
            return None
        node = places.nodes.index(where.node)
        on = places.node == node
        members = np.flatnonzero(on if where.gpu is None else on & (places.gpu == where.gpu))
        if not len(members) or members[-1] >= len(self.ranks):
            return None
        if self.ranks.slow[members].any() or self.nodes.slow[node]:
            return False
        calm = bool(self.ranks.clear()[members].all())
        alone = int(on.sum()) < 2 or np.isnan(self.nodes.short_median()[node])
        return True if calm and (alone or bool(self.nodes.clear()[node])) else None


class _Step(NamedTuple):
    """One step of one job: how many like it a day has, and of its ranks (R,) the ratio and the node."""

    watch: Watch
    number: int
    per_day: float
    x: Floats
    node: NDArray[np.int32]


def follow_all(watches: Sequence[Watch], slurm: SlurmSnapshot | None, now: datetime) -> None:
    """Takes in what is new of all of them: first one step of each, then the next."""
    due = [(watch, steps) for watch in watches if (steps := watch.begin(slurm, now))]
    for turn in range(max((len(steps) for _, steps in due), default=0)):
        _take_steps([(watch, steps[turn]) for watch, steps in due if turn < len(steps)])


def _take_steps(steps: Sequence[tuple[Watch, int]]) -> None:
    """One step of each of these jobs."""
    told = [(watch, step, row) for watch, step in steps if (row := watch.job.row(step)) is not None]
    whole_s = medians_of([watch.job.step_s[row] for watch, _, row in told]).tolist()
    ratios = ratios_of([(watch.job, row) for watch, _, row in told])
    taken = []
    for (watch, step, _), step_s, x in zip(told, whole_s, ratios, strict=True):
        watch.done = step
        watch.first = step if watch.first is None else watch.first
        watch.pace.step(step, step_s)
        places = watch.places
        if x is not None and places is not None:
            per_day = 86_400 / min(max(step_s, 0.2), 600.0)
            taken.append(_Step(watch, step, per_day, x, places.node[: len(x)]))
            watch.ranks.grow(len(x))
            watch.nodes.grow(len(places.nodes))
    step_all([Told(one.watch.ranks, one.x, one.per_day, one.number) for one in taken])
    by_node = _by_node(taken)
    step_all(
        [Told(one.watch.nodes, x, one.per_day, one.number) for one, x in zip(taken, by_node, strict=True)]
    )


def _by_node(steps: Sequence[_Step]) -> list[Floats]:
    """(nodes,) of each job: the mean of each node's ranks, less the middle node's; NaN for a node with one
    rank."""
    if not steps:
        return []
    widths = [len(one.watch.nodes) for one in steps]
    begins = np.cumsum([0, *widths])
    lengths = [len(one.x) for one in steps]
    x = np.concatenate([one.x for one in steps])
    node = np.concatenate([one.node for one in steps])
    known = np.isfinite(x) & (node >= 0)
    node = (node + np.repeat(begins[:-1], lengths))[known]
    edge = np.repeat([0.05 + 5 * one.watch.ranks.noise for one in steps], lengths)
    count = np.bincount(node, minlength=begins[-1])
    total = np.bincount(node, np.clip(x, -edge, edge)[known], minlength=begins[-1])
    mean = np.where(count >= 2, total / np.maximum(count, 1), np.nan)
    each = np.split(mean, begins[1:-1])
    return [one - middle for one, middle in zip(each, medians_of(each).tolist(), strict=True)]


#: So many of the nodes may have been slow all through the history and still be seen: what more of them share
#: (the stage of a pipeline, a hardware model) is their nature.
SLOW_FROM_THE_START = 0.1

Floats = NDArray[np.float64]


def logs(values: ArrayLike, name: str) -> Floats:
    """(steps, nodes) log of the times, NaN where unknown or not above 0. ValueError for other shapes."""
    told = np.array(values, dtype=np.float64)
    if told.ndim != 2:
        raise ValueError(f"{name} has shape {told.shape}; (steps, nodes) is needed")
    return np.log(np.where(np.isfinite(told) & (told > 0), told, np.nan))


def nature(history: Floats) -> Floats:
    """(nodes,) by how much each node was above its peers all the time; from `logs`.

    The median of its log ratios, shrunk by how little noisy steps tell (as `Streams.bias`, with the spread of
    these nodes where that is wider), and bounded: by 3 %, or by what more than a tenth of the nodes have.
    """
    x = over_peers(history)
    told = np.isfinite(x).sum(axis=0)
    own = np.array([_median(column) for column in x.T])
    noise = 1.4826 * _median(np.abs(x - own))
    unsure = np.pi / 2 * noise**2 / np.maximum(told, 1)
    spread = (1.4826 * _median(np.abs(own - _median(own)))) ** 2 - _median(unsure)
    weight = max(BIAS_SCALE**2, spread)
    farthest = np.sort(np.abs(own))[::-1]
    many = max(1, int(SLOW_FROM_THE_START * len(own)))
    bound = max(BIAS_MAX, float(farthest[many])) if len(own) > many else BIAS_MAX
    return np.where(told > 0, np.clip(own * weight / (weight + unsure), -bound, bound), 0.0)


def over_peers(x: Floats) -> Floats:
    """Less the median of the step's known nodes; a step without any stays unknown."""
    return x - np.array([_median(row) for row in x])[:, None]


def _median(values: Floats) -> float:
    """Of those known; 0 without any."""
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else 0.0


#: What stands is told again after this.
AGAIN_AFTER = timedelta(minutes=5)
#: Without a step for this long nothing is known to be well.
QUIET_S = 60.0
#: Steps in a day where nobody tells how long one is: of 5 s. Thresholds follow its logarithm.
STEPS_PER_DAY = 17_280


def score(history: ArrayLike, stream: ArrayLike) -> NDArray[np.float64]:
    """(steps, nodes) of `stream`: from 1 on the node is slow by what the detector calls slow.

    `history`, `stream`: (steps, nodes), what a node computed in each step before it waits for the others, in
    any unit, `stream` right after `history`; NaN is unknown. The same mathematics as in production, with one
    series for a node. A score depends on nothing that comes after its step. With more than a quarter of the
    nodes slow at once nobody is blamed, and fewer than four have no peers: then all are below 1. Raises
    ValueError for other shapes.
    """
    before, now = logs(history, "history"), logs(stream, "stream")
    if before.shape[1] != now.shape[1]:
        raise ValueError(f"stream has {now.shape[1]} nodes, history has {before.shape[1]}")
    x = over_peers(np.concatenate([before, now]) - nature(before))
    streams, found = Streams(x.shape[1]), np.zeros(x.shape)
    for number, row in enumerate(x):
        streams.step(row, STEPS_PER_DAY, number)
        near = streams.score()
        shared = streams.slow.sum() > SHARED * np.isfinite(row).sum()
        found[number] = np.minimum(near, np.nextafter(1, 0)) if shared else near
    return found[len(before) :]


class Stragglers(Detector):
    """Slow ranks, and slow jobs with their suspects where they tell whole steps alone. What it knows grows
    with the jobs that `StepTimes` holds. `figures`: what tests measured, more reasons to suspect a node."""

    def __init__(self, figures: FleetFigures | None = None) -> None:
        self._figures = figures
        self._suspects = Suspects()
        self._watches: dict[tuple[str, int], Watch] = {}
        self._told: dict[Pair, datetime] = {}
        self._clear: dict[Pair, datetime] = {}

    def tick(self, look: Look) -> Detections:
        slurm, now = look.slurm, look.now
        live = self._follow(look.steps, slurm, now)
        self._suspects.follow(((watch.job, watch.pace) for watch in self._watches.values()), slurm, now)
        findings: list[Finding] = []
        for watch in live:
            job = watch.job
            claims = list(watch.claims())
            for claim in claims:
                if self._due((STRAGGLER, claim.where), now):
                    findings.append(straggler(job, claim.where, claim.ranks, claim.since, claim.limit, now))
            whole = Component(cluster=job.cluster, job=job.job)
            if (shared := watch.together(blamed=bool(claims))) is not None:
                if self._due((SLOWNESS_SHARED, whole), now):
                    findings.append(shared.finding(job, now))
            elif watch.pace.slow and self._due((JOB_SLOW, whole), now):
                findings.append(self._job_slow(watch, look))
        self._note_clear(live, slurm, now, look.watched)
        return Detections(at=now, findings=tuple(findings), clear_since=dict(self._clear))

    def _job_slow(self, watch: Watch, look: Look) -> Finding:
        found = job_slow(watch.job, watch.pace, look.now)
        if np.isfinite(watch.job.compute).any():
            return found
        faults = dict(look.faults)
        for node, why in (self._figures.suspects if self._figures is not None else {}).items():
            faults[node] = (*why, *faults.get(node, ()))
        return self._suspects.named(found, faults, look.now)

    def forget(self, telemetry: Telemetry, node: str, since: datetime) -> None:
        self._suspects.forget(node)
        for watch in self._watches.values():
            watch.forget(node)
        for told in (self._told, self._clear):
            for pair in [pair for pair in told if pair[1].node == node]:
                del told[pair]

    def _follow(self, steps: StepTimes, slurm: SlurmSnapshot | None, now: datetime) -> list[Watch]:
        """Takes in new steps; the watches of jobs that Slurm shows at work. Of others anybody may tell."""
        kept: dict[tuple[str, int], Watch] = {}
        for job in steps.jobs():
            watch = self._watches.get((job.job, job.restart))
            if watch is None or watch.job is not job or watch.rewound != job.rewound:
                watch = Watch(job, job.rewound)
            kept[job.job, job.restart] = watch
        self._watches = kept
        follow_all([*kept.values()], slurm, now)
        return [watch for watch in kept.values() if _is_live(watch.job, slurm)]

    def _due(self, pair: Pair, now: datetime) -> bool:
        last = self._told.get(pair)
        if last is not None and now - last < AGAIN_AFTER and pair not in self._clear:
            return False
        self._told[pair] = now
        return True

    def _note_clear(
        self, live: list[Watch], slurm: SlurmSnapshot | None, now: datetime, watched: Collection[Pair]
    ) -> None:
        watched = {pair for pair in watched if pair[0] in (STRAGGLER, JOB_SLOW, SLOWNESS_SHARED)}
        well: dict[Pair, datetime] = {}
        for pair in watched | self._told.keys():
            if self._well(pair, live, slurm, now):
                well[pair] = self._clear.get(pair, now)
        self._clear = well
        for pair, last in list(self._told.items()):
            over = pair in well and now - well[pair] > AGAIN_AFTER
            if pair not in watched and (over or now - last > 2 * AGAIN_AFTER):
                del self._told[pair]

    def _well(self, pair: Pair, live: list[Watch], slurm: SlurmSnapshot | None, now: datetime) -> bool | None:
        fault, where = pair
        if fault in (JOB_SLOW, SLOWNESS_SHARED):
            return self._job_well(where.job or "", live, slurm)
        told = [watch.well(where) for watch in live if (now - watch.job.heard_at).total_seconds() <= QUIET_S]
        return False if False in told else (True if True in told else None)

    def _job_well(self, job: str, live: list[Watch], slurm: SlurmSnapshot | None) -> bool | None:
        """A job that is over is slow no more."""
        if slurm is None:
            return None
        shown = slurm.jobs.get(job)
        if shown is None or not shown.active:
            return True
        watch = next((watch for watch in live if watch.job.job == job), None)
        return None if watch is None or not watch.pace.known else not watch.pace.slow and watch.shared is None


def _is_live(job: JobSteps, slurm: SlurmSnapshot | None) -> bool:
    shown = slurm.jobs.get(job.job) if slurm is not None else None
    return shown is not None and shown.active and job.vouched and is_of_life(job, shown)
