"""What is followed of one life of a job to find who is slow in it, and the steps of all jobs side by side."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from healer.detection.pace import Pace
from healer.detection.ragged import medians_of
from healer.detection.slow_together import Together, slow_many, slower_parts
from healer.detection.step_findings import ratios_of
from healer.detection.streams import LEARNT, Streams, Told, step_all
from healer.model import Component, SlurmSnapshot
from healer.observations.steps import JobSteps, Places

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
        _take([(watch, steps[turn]) for watch, steps in due if turn < len(steps)])


def _take(steps: Sequence[tuple[Watch, int]]) -> None:
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
