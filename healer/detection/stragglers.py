"""Stragglers: the rank with more compute than its peers, for which all wait; ranks to GPUs to nodes."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import ArrayLike, NDArray

from healer.detection.pace import Pace
from healer.detection.slow_together import SLOWNESS_SHARED, Together, slow_many, slower_parts
from healer.detection.step_arrays import logs, nature, over_peers
from healer.detection.step_findings import JOB_SLOW, STRAGGLER, job_slow, ratios, straggler
from healer.detection.streams import LEARNT, Streams
from healer.model import Component, Finding, Sensed, SlurmJob, SlurmSnapshot
from healer.observations.steps import JobSteps, Places, StepTimes

#: More of the ranks than this slow together share a cause: nobody is blamed.
SHARED = 0.25
#: What stands is told again after this.
AGAIN_AFTER = timedelta(minutes=5)
#: Without a step for this long nothing is known to be well.
QUIET_S = 60.0
#: Steps in a day where nobody tells how long one is: of 5 s. Thresholds follow its logarithm.
STEPS_PER_DAY = 17_280
#: Below this noise the short median tells a node's slow ranks apart, above it only the longer mean can.
_QUIET_NOISE = 0.03

Pair = tuple[str, Component]


@dataclass(slots=True)
class _Claim:
    where: Component
    ranks: NDArray[np.intp]
    since: int
    limit: float


@dataclass(slots=True, eq=False)
class _Watch:
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

    def follow(self, slurm: SlurmSnapshot | None, now: datetime) -> None:
        places = self.job.places(slurm)
        if self.places is not places:
            if self._moved(places):
                self.ranks, self.nodes = Streams(), Streams()
            elif self.places is None or places.nodes[: len(self.places.nodes)] != self.places.nodes:
                self.nodes = Streams()
        self.places = places
        for step in self.job.ready(self.done, now):
            row = self.job.row(step)
            if row is not None:
                self._step(step, row, places)
            self.done = step

    def _moved(self, places: Places) -> bool:
        """A rank runs on another node than before: what was learnt of it speaks of that one."""
        where = np.array([*places.nodes, ""])[places.node]  # -1 is the last
        before = np.full(len(where), "", dtype=self.where.dtype)
        before[: len(self.where)] = self.where[: len(where)]
        known = where != ""
        self.where = np.where(known, where, before)
        return bool((known & (before != "") & (before != where)).any())

    def _step(self, step: int, row: int, places: Places) -> None:
        self.first = step if self.first is None else self.first
        whole = self.job.step_s[row]
        step_s = float(np.median(whole[np.isfinite(whole)]))
        self.pace.step(step, step_s)
        x = ratios(self.job, row)
        if not np.isfinite(x).any():
            return
        per_day = 86_400 / min(max(step_s, 0.2), 600.0)
        self.ranks.grow(len(x))
        self.ranks.step(_padded(x, len(self.ranks.sum)), per_day, step)
        self.nodes.grow(len(places.nodes))
        self.nodes.step(self._by_node(x, places), per_day, step)

    def _by_node(self, x: NDArray[np.float64], places: Places) -> NDArray[np.float64]:
        """(nodes,) mean of each node's ranks, less the middle node's; NaN for a node with one rank."""
        n = len(self.nodes.sum)
        edge = 0.05 + 5 * self.ranks.noise
        known = np.isfinite(x) & (places.node[: len(x)] >= 0)
        node = places.node[: len(x)][known]
        count = np.bincount(node, minlength=n)[:n]
        total = np.bincount(node, np.clip(x[known], -edge, edge), minlength=n)[:n]
        mean = np.where(count >= 2, total / np.maximum(count, 1), np.nan)
        return mean - np.median(mean[np.isfinite(mean)]) if np.isfinite(mean).any() else mean

    def forget(self, node: str) -> None:
        """What was learnt of its ranks is over."""
        if self.places is None or node not in self.places.nodes:
            return
        index = self.places.nodes.index(node)
        self.ranks.forget(np.flatnonzero(self.places.node == index))
        self.nodes.forget(np.array([index]))

    def claims(self) -> Iterator[_Claim]:
        """Who is slow, unless so many are that they share a cause."""
        places, slow = self.places, self.ranks.slow
        if places is None or not len(slow):
            return
        node = _padded(places.node, len(slow), -1).astype(int)
        by_node = np.flatnonzero(self.nodes.slow)
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
        slow = self.ranks.slow & self.job.seen[: len(self.ranks.slow)]
        many = self._many(slow) and self.places is not None
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

    def _claim(self, node: int, members: NDArray[np.intp], places: Places) -> _Claim:
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
        return _Claim(where, lead, int(since), float(limit))

    def well(self, where: Component) -> bool | None:
        """Whether that place is known to be like its peers; None where this job does not tell."""
        places = self.places
        if places is None or where.node not in places.nodes:
            return None
        node = places.nodes.index(where.node)
        on = places.node == node
        members = np.flatnonzero(on if where.gpu is None else on & (places.gpu == where.gpu))
        if not len(members) or members[-1] >= len(self.ranks.sum):
            return None
        if self.ranks.slow[members].any() or self.nodes.slow[node]:
            return False
        calm = bool(self.ranks.clear()[members].all())
        alone = int(on.sum()) < 2 or np.isnan(self.nodes.short_median()[node])
        return True if calm and (alone or bool(self.nodes.clear()[node])) else None


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


class Stragglers:
    """Follows all jobs. One thread owns it; what it knows grows with the jobs that `StepTimes` holds."""

    def __init__(self) -> None:
        self._watches: dict[tuple[str, int], _Watch] = {}
        self._told: dict[Pair, datetime] = {}
        self._clear: dict[Pair, datetime] = {}

    def tick(
        self, steps: StepTimes, slurm: SlurmSnapshot | None, now: datetime, watched: Collection[Pair] = ()
    ) -> Sensed:
        """New findings, and since when those told or `watched` (fault, component) are known to be over."""
        live = self._follow(steps, slurm, now)
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
                findings.append(job_slow(job, watch.pace, now))
        self._note_clear(live, slurm, now, watched)
        return Sensed(at=now, findings=tuple(findings), clear_since=dict(self._clear))

    def paces(self) -> Iterator[tuple[JobSteps, Pace]]:
        """Each job's own pace, as it was followed last."""
        return ((watch.job, watch.pace) for watch in self._watches.values())

    def forget(self, node: str) -> None:
        """The node was repaired, returned or booted: who is slow there is found anew."""
        for watch in self._watches.values():
            watch.forget(node)
        for told in (self._told, self._clear):
            for pair in [pair for pair in told if pair[1].node == node]:
                del told[pair]

    def _follow(self, steps: StepTimes, slurm: SlurmSnapshot | None, now: datetime) -> list[_Watch]:
        """Takes in new steps; the watches of jobs that Slurm shows at work. Of others anybody may tell."""
        kept: dict[tuple[str, int], _Watch] = {}
        live = []
        for job in steps.jobs():
            watch = self._watches.get((job.job, job.restart))
            if watch is None or watch.job is not job or watch.rewound != job.rewound:
                watch = _Watch(job, job.rewound)
            kept[job.job, job.restart] = watch
            watch.follow(slurm, now)
            shown = slurm.jobs.get(job.job) if slurm is not None else None
            if shown is not None and shown.active and job.vouched and _of_this_life(job, shown):
                live.append(watch)
        self._watches = kept
        return live

    def _due(self, pair: Pair, now: datetime) -> bool:
        last = self._told.get(pair)
        if last is not None and now - last < AGAIN_AFTER and pair not in self._clear:
            return False
        self._told[pair] = now
        return True

    def _note_clear(
        self, live: list[_Watch], slurm: SlurmSnapshot | None, now: datetime, watched: Collection[Pair]
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

    def _well(
        self, pair: Pair, live: list[_Watch], slurm: SlurmSnapshot | None, now: datetime
    ) -> bool | None:
        fault, where = pair
        if fault in (JOB_SLOW, SLOWNESS_SHARED):
            return self._job_well(where.job or "", live, slurm)
        told = [watch.well(where) for watch in live if (now - watch.job.heard_at).total_seconds() <= QUIET_S]
        return False if False in told else (True if True in told else None)

    def _job_well(self, job: str, live: list[_Watch], slurm: SlurmSnapshot | None) -> bool | None:
        """A job that is over is slow no more."""
        if slurm is None:
            return None
        shown = slurm.jobs.get(job)
        if shown is None or not shown.active:
            return True
        watch = next((watch for watch in live if watch.job.job == job), None)
        return None if watch is None or not watch.pace.known else not watch.pace.slow and watch.shared is None


def _of_this_life(job: JobSteps, shown: SlurmJob) -> bool:
    """Until its new life has told a step, a requeued job is known by the old one, whose ranks ran elsewhere.

    Senders that count no lives always tell 0.
    """
    if shown.start_at is None:
        return job.restart == shown.restarts
    return job.restart in (0, shown.restarts) and job.told_at > shown.start_at.timestamp()


def _padded(values: NDArray, n: int, empty: float = np.nan) -> NDArray[np.float64]:
    """(n,) the values, then `empty`."""
    found = np.full(n, empty)
    found[: len(values)] = values[:n]
    return found
