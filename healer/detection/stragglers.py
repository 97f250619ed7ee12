"""Stragglers: the rank with more compute than its peers, which all of them wait for; by rank, GPU and node.

The steps of all jobs are processed side by side.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from healer.detection.fleet_figures import FleetFigures
from healer.detection.protocol import AGAIN_AFTER, Detector, Pair, Reports, TickInput, watch_jobs
from healer.detection.step_findings import (
    JOB_SLOW,
    SLOWNESS_SHARED,
    STRAGGLER,
    Ratios,
    Together,
    job_slow,
    ratios_of,
    slow_many,
    slower_parts,
    straggler,
)
from healer.detection.streams import (
    BIAS_SCALE,
    LEAST,
    MEAN_STEPS,
    Pace,
    Streams,
    StreamStep,
    begin_job,
    medians,
    medians_of,
    side_by_side,
    step_all,
)
from healer.detection.suspects import Suspects
from healer.model import Component, Detections, Finding, SlurmSnapshot
from healer.observations.steps import JobSteps, LifeKey, Places, active_job, is_of_life
from healer.observations.telemetry_windows import Telemetry
from healer.observations.trends import means

#: If more than this share of the ranks is slow together they share a cause: no single one is blamed.
SHARED = 0.25
#: Below this noise the short median can separate a node's slow ranks; above it only the longer mean can.
_QUIET_NOISE = 0.03
#: Shorter steps are judged together until they cover about this many seconds. So the shortest slowness that
#: is reported lasts three times as long, whatever a step takes: a burst of short steps ends before anyone
#: looks.
LOOK_S = 5.0
#: Ranks slow since one of the first steps of a job have always done more: unreported stages of a pipeline.
_ALWAYS = 40

Floats = NDArray[np.float64]


@dataclass(slots=True)
class Claim:
    where: Component
    ranks: NDArray[np.intp]
    since: int
    limit: float


class Gathered:
    """Short steps of one job, until they can be judged as one."""

    def __init__(self) -> None:
        self._steps: list[Ratios] = []
        self._seconds = 0.0

    def add(self, ratios: Ratios, step_s: float) -> tuple[Ratios, float] | None:
        """The mean of the gathered steps and their total time in s, once that is enough."""
        step_s = max(step_s, 0.0) if np.isfinite(step_s) else LOOK_S
        self._steps.append(ratios)
        self._seconds += step_s
        if self._seconds + step_s / 2 < LOOK_S:
            return None
        steps, seconds = self._steps, self._seconds
        self._steps, self._seconds = [], 0.0
        if len(steps) == 1:
            return ratios, seconds
        mean = means(side_by_side([step.x for step in steps]))
        return Ratios(mean, float(np.mean([step.level for step in steps]))), seconds


@dataclass(slots=True, eq=False)
class Watch:
    """The state followed for one life of a job."""

    job: JobSteps
    rewound: int
    done: int = -1
    ranks: Streams = field(default_factory=Streams)
    nodes: Streams = field(default_factory=Streams)
    pace: Pace = field(default_factory=Pace)
    gathered: Gathered = field(default_factory=Gathered)
    places: Places | None = None
    #: Rank -> the node where it was last known to run; empty: never known.
    where: NDArray[np.str_] = field(default_factory=lambda: np.zeros(0, "U1"))
    #: How a slowness shared by all was described, while it lasts.
    shared: Together | None = None
    first: int | None = None

    def begin(self, slurm: SlurmSnapshot | None, now: datetime) -> list[int]:
        """Looks up where its ranks run now; returns the steps to process."""
        places = self.job.places(slurm)
        if self.places is not places:
            if self._moved(places):
                self.ranks, self.nodes, self.gathered = Streams(), Streams(), Gathered()
            elif self.places is None or places.nodes[: len(self.places.nodes)] != self.places.nodes:
                self.nodes = Streams()
        self.places = places
        return self.job.ready(self.done, now)

    def _moved(self, places: Places) -> bool:
        """A rank runs on another node than before: what was learnt about it belongs to that node."""
        where = np.array([*places.nodes, ""])[places.node]  # -1 selects the last
        before = np.full(len(where), "", dtype=self.where.dtype)
        before[: len(self.where)] = self.where[: len(where)]
        is_placed = where != ""
        self.where = np.where(is_placed, where, before)
        return bool((is_placed & (before != "") & (before != where)).any())

    def forget(self, node: str) -> None:
        """Discards what was learnt about the node's ranks."""
        if self.places is None or node not in self.places.nodes:
            return
        index = self.places.nodes.index(node)
        self.gathered = Gathered()
        self.ranks.forget(np.flatnonzero(self.places.node == index))
        self.nodes.forget(np.array([index]))

    def claims(self) -> Iterator[Claim]:
        """The slow ranks, GPUs and nodes, unless there are so many that they share a cause."""
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
        members = {index: np.flatnonzero(node == index) for index in named.tolist()}
        always = {index for index, ranks in members.items() if self._always(ranks, index)}
        of_stage = always & self._unreported_stages(node) if always else always
        for index, ranks in members.items():
            if index not in of_stage:
                yield self._claim(index, ranks, places)

    def _unreported_stages(self, node: NDArray[np.intp]) -> set[int]:
        """The nodes above the largest class of nodes, in a class of their own. Levels come from the stored
        steps, because the streams clip what is far above. `node`: (ranks,) the node of each."""
        rows = np.argsort(self.job.number)[-MEAN_STEPS:]
        ratios = ratios_of([(self.job, row) for row in rows[self.job.number[rows] >= 0].tolist()])
        kept = [ratio.x for ratio in ratios if ratio is not None]
        if not kept:
            return set()
        ranks = medians(side_by_side(kept).T)[: len(node)]
        of_nodes = [ranks[node[: len(ranks)] == index] for index in range(len(self.nodes))]
        level = np.nan_to_num(medians_of(of_nodes))
        classes = classes_of(level, self.ranks.noise / np.sqrt(len(kept)))
        usual = max(classes, key=len, default=None)
        if usual is None:
            return set()
        above = (group for group in classes if level[group].min() > level[usual].max())
        return {index for group in above for index in group.tolist()}

    def _always(self, members: NDArray[np.intp], node: int) -> bool:
        """Whether that node, or its slow ranks, are slow since one of the first steps."""
        slow = members[self.ranks.slow[members]]
        return self._is_early(
            self.nodes.since[node] if self.nodes.slow[node] else np.median(self.ranks.since[slow])
        )

    def _is_early(self, since: float) -> bool:
        return bool(since <= (self.first or 0) + _ALWAYS)

    def _many(self, blamed: NDArray[np.bool_]) -> bool:
        return bool(blamed.sum() > SHARED * self.job.seen.sum())

    def together(self, *, blamed: bool) -> Together | None:
        """What makes the whole job slow; None: it is not slow, a node is to blame, or it is unknown.
        Described only once, because the steps before it are not kept for long."""
        slow = self.ranks.slow
        slow &= self.job.seen[: len(slow)]
        many = self.places is not None and bool(slow.any()) and self._many(slow)
        if many and self._is_early(np.median(self.ranks.since[slow])):
            many = False  # ranks that always did more: unreported pipeline stages
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
        height = self.ranks.mean[members]
        if quiet:  # the mean also: a rank that is slow in every other step is well in half of the looks
            height = np.fmax(height, self.ranks.short_median()[members])
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
        """Whether that component is known to be like its peers; None if this job does not show it."""
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
    """One step of one job, or several short ones: how many such steps a day has, its ranks' (R,) ratio and
    node, and the overall level."""

    watch: Watch
    number: int
    per_day: float
    x: Floats
    node: NDArray[np.int32]
    level: float


def follow_all(watches: Sequence[Watch], slurm: SlurmSnapshot | None, now: datetime) -> None:
    """Processes the new steps of all jobs: first one step of each, then the next."""
    due = [(watch, steps) for watch in watches if (steps := watch.begin(slurm, now))]
    for turn in range(max((len(steps) for _, steps in due), default=0)):
        _take_steps([(watch, steps[turn]) for watch, steps in due if turn < len(steps)])


def _take_steps(steps: Sequence[tuple[Watch, int]]) -> None:
    """Processes one step of each of these jobs."""
    kept = [(watch, step, row) for watch, step in steps if (row := watch.job.row(step)) is not None]
    whole_s = medians_of([watch.job.step_s[row] for watch, _, row in kept]).tolist()
    ratios = ratios_of([(watch.job, row) for watch, _, row in kept])
    taken = []
    for (watch, number, _), step_s, ratio in zip(kept, whole_s, ratios, strict=True):
        watch.done = number
        watch.first = number if watch.first is None else watch.first
        watch.pace.step(number, step_s)
        places = watch.places
        look = watch.gathered.add(ratio, step_s) if ratio is not None and places is not None else None
        if look is not None and places is not None:
            (x, level), seconds = look
            per_day = 86_400 / min(max(seconds, 0.2), 600.0)
            taken.append(_Step(watch, number, per_day, x, places.node[: len(x)], level))
            watch.ranks.grow(len(x))
            watch.ranks.group = places.node
            watch.nodes.grow(len(places.nodes))
    step_all([StreamStep(step.watch.ranks, step.x, step.per_day, step.number, step.level) for step in taken])
    by_node = zip(taken, _by_node(taken), strict=True)
    step_all([StreamStep(step.watch.nodes, x, step.per_day, step.number, step.level) for step, x in by_node])


def _by_node(steps: Sequence[_Step]) -> list[Floats]:
    """(nodes,) of each job: the mean of each node's ranks, minus the middle node's; NaN for a node with one
    rank."""
    if not steps:
        return []
    widths = [len(step.watch.nodes) for step in steps]
    begins = np.cumsum([0, *widths])
    lengths = [len(step.x) for step in steps]
    x = np.concatenate([step.x for step in steps])
    node = np.concatenate([step.node for step in steps])
    valid = np.isfinite(x) & (node >= 0)
    node = (node + np.repeat(begins[:-1], lengths))[valid]
    edge = np.repeat([0.05 + 5 * step.watch.ranks.noise for step in steps], lengths)
    count = np.bincount(node, minlength=begins[-1])
    total = np.bincount(node, np.clip(x, -edge, edge)[valid], minlength=begins[-1])
    mean = np.where(count >= 2, total / np.maximum(count, 1), np.nan)
    means = np.split(mean, begins[1:-1])
    return [values - middle for values, middle in zip(means, medians_of(means).tolist(), strict=True)]


#: This many steps of history show a node's class.
CLASS_STEPS = 20


def logs(values: ArrayLike, name: str) -> Floats:
    """(steps, nodes) log of the times, NaN where unknown or not above 0. ValueError for other shapes."""
    found = np.array(values, dtype=np.float64)
    if found.ndim != 2:
        raise ValueError(f"{name} has shape {found.shape}; (steps, nodes) is needed")
    return np.log(np.where(np.isfinite(found) & (found > 0), found, np.nan))


def class_levels(history: Floats) -> Floats:
    """(nodes,) the level of each node's class, such as a pipeline stage or a hardware model; from `logs`.

    A node in no class has the level of the nearest one.
    """
    if len(history) < CLASS_STEPS:
        return np.zeros(history.shape[1])
    x = history - np.nan_to_num(medians(history))[:, None]
    level = np.nan_to_num(medians(x.T))
    steps = max(1.0, float(np.median(np.isfinite(x).sum(axis=0)))) if x.shape[1] else 1.0
    noise = 1.4826 * medians(np.abs(x - level).reshape(1, -1))[0]
    centres = np.array(
        [np.median(level[group]) for group in classes_of(level, noise / np.sqrt(steps))] or [0.0]
    )
    return centres[np.argmin(np.abs(level[:, None] - centres), axis=1)]


def classes_of(level: Floats, error: float) -> list[NDArray[np.intp]]:
    """Groups of at least four nodes, and a tenth of all, with a wider gap between their levels than bias and
    chance would leave; `error` is the standard deviation of a level. A single node is no class."""
    order = np.argsort(level)
    apart = np.diff(level[order]) > 2 * BIAS_SCALE + 4 * error
    groups = np.split(order, np.flatnonzero(apart) + 1)
    return [group for group in groups if len(group) >= max(LEAST, 0.1 * len(level))]


#: Without a step for this long, no part is known to be healthy.
QUIET = timedelta(seconds=60)
#: Assumed number of steps per day (5 s each), if unknown. Thresholds follow its logarithm.
STEPS_PER_DAY = 17_280


def score(history: ArrayLike, stream: ArrayLike) -> NDArray[np.float64]:
    """(steps, nodes) of `stream`: 1 or more means the detector calls the node slow.

    `history`, `stream`: (steps, nodes), a node's compute time in each step before it waits for the others, in
    any unit, `stream` right after `history`; NaN is unknown. The same mathematics as in production, with one
    series per node and steps of about 5 s. A score does not depend on later steps. If more than a quarter of
    the nodes are slow at once none is blamed, and fewer than four nodes have no peers: then all are below 1.
    Raises ValueError for other shapes.
    """
    return score_all([(history, stream)])[0]


def score_all(
    jobs: Sequence[tuple[ArrayLike, ArrayLike]], per_day: float = STEPS_PER_DAY
) -> list[NDArray[np.float64]]:
    """`score` of each job, all side by side, with this many steps a day."""
    runs = [_Run(history, stream) for history, stream in jobs]
    for number in range(max((len(run.x) for run in runs), default=0)):
        live = [run for run in runs if number < len(run.x)]
        for run in live:
            if number == run.begin:
                begin_job(run.streams)
        step_all([StreamStep(run.streams, run.x[number], per_day, number, run.level[number]) for run in live])
        for run in live:
            near = run.streams.score()
            shared = run.streams.slow.sum() > SHARED * np.isfinite(run.x[number]).sum()
            run.found[number] = np.minimum(near, np.nextafter(1, 0)) if shared else near
    return [run.found[run.begin :] for run in runs]


class _Run:
    """History and stream of one job as one series of ratios (steps, nodes), and the results."""

    def __init__(self, history: ArrayLike, stream: ArrayLike) -> None:
        before, now = logs(history, "history"), logs(stream, "stream")
        if before.shape[1] != now.shape[1]:
            raise ValueError(f"stream has {now.shape[1]} nodes, history has {before.shape[1]}")
        times = np.concatenate([before, now]) - class_levels(before)
        self.begin, self.level = len(before), medians(times)
        self.x = times - np.nan_to_num(self.level)[:, None]
        self.level[: self.begin] = np.nan  # perhaps another job, with different steps
        self.streams, self.found = Streams(times.shape[1]), np.zeros(times.shape)


class Stragglers(Detector):
    """Slow ranks; and slow jobs with their suspects, if they report only whole steps. Memory grows with the
    jobs that `StepTimes` holds. `figures`: test results, as further reasons to suspect a node."""

    def __init__(self, figures: FleetFigures | None = None) -> None:
        self._figures = figures
        self._suspects = Suspects()
        self._watches: dict[LifeKey, Watch] = {}
        self._reports = Reports()
        self._clear: dict[Pair, datetime] = {}

    def tick(self, given: TickInput) -> Detections:
        slurm, now = given.slurm, given.now
        self._watches = watch_jobs(self._watches, given.steps, Watch)
        follow_all([*self._watches.values()], slurm, now)
        live = [watch for watch in self._watches.values() if _is_live(watch.job, slurm)]
        self._suspects.follow(((watch.job, watch.pace) for watch in self._watches.values()), slurm, now)
        findings: list[Finding] = []
        for watch in live:
            job = watch.job
            claims = list(watch.claims())
            for claim in claims:
                if self._is_due((STRAGGLER, claim.where), now):
                    findings.append(straggler(job, claim.where, claim.ranks, claim.since, claim.limit, now))
            whole = Component(cluster=job.cluster, job=job.job)
            if (shared := watch.together(blamed=bool(claims))) is not None:
                if self._is_due((SLOWNESS_SHARED, whole), now):
                    findings.append(shared.finding(job, now))
            elif watch.pace.slow and self._is_due((JOB_SLOW, whole), now):
                findings.append(self._job_slow(watch, given))
        self._record_clear(live, given)
        return Detections(at=now, findings=tuple(findings), clear_since=self._clear)

    def _job_slow(self, watch: Watch, given: TickInput) -> Finding:
        found = job_slow(watch.job, watch.pace, given.now)
        if np.isfinite(watch.job.compute).any():
            return found
        faults = dict(given.faults)
        for node, why in (self._figures.suspects if self._figures is not None else {}).items():
            faults[node] = (*why, *faults.get(node, ()))
        return self._suspects.named(found, faults, given.now)

    def forget(self, telemetry: Telemetry, node: str, since: datetime) -> None:
        self._suspects.forget(node)
        for watch in self._watches.values():
            watch.forget(node)
        self._reports.forget(node)
        self._clear = {pair: at for pair, at in self._clear.items() if pair[1].node != node}

    def _is_due(self, pair: Pair, now: datetime) -> bool:
        if pair in self._clear:  # it had ended in between
            self._reports.last_at.pop(pair, None)
        return self._reports.is_due(pair, now)

    def _record_clear(self, live: list[Watch], given: TickInput) -> None:
        now, last_at = given.now, self._reports.last_at
        watched = {pair for pair in given.watched if pair[0] in (STRAGGLER, JOB_SLOW, SLOWNESS_SHARED)}
        over = [pair for pair in watched | last_at.keys() if self._is_over(pair, live, given)]
        self._clear = {pair: self._clear.get(pair, now) for pair in over}
        for pair, last in list(last_at.items()):
            long_over = pair in self._clear and now - self._clear[pair] > AGAIN_AFTER
            if pair not in watched and (long_over or now - last > 2 * AGAIN_AFTER):
                del last_at[pair]

    def _is_over(self, pair: Pair, live: list[Watch], given: TickInput) -> bool:
        fault, where = pair
        if fault in (JOB_SLOW, SLOWNESS_SHARED):
            return self._is_job_well(where.job or "", live, given.slurm)
        states = [watch.well(where) for watch in live if given.now - watch.job.heard_at <= QUIET]
        return False not in states and True in states

    def _is_job_well(self, job: str, live: list[Watch], slurm: SlurmSnapshot | None) -> bool:
        """Whether the job is not slow; a job that has ended is no longer slow."""
        if slurm is None:
            return False
        if active_job(slurm, job) is None:
            return True
        watch = next((watch for watch in live if watch.job.job == job), None)
        return watch is not None and watch.pace.is_ready and not watch.pace.slow and watch.shared is None


def _is_live(job: JobSteps, slurm: SlurmSnapshot | None) -> bool:
    """Slurm shows this life of the job running. Any sender may report other jobs."""
    shown = active_job(slurm, job.job)
    return shown is not None and job.vouched and is_of_life(job, shown)
