"""Results of steps: a rank whose results differ, and a job whose loss is not a number or jumps.

Silent corruption is never logged. In data-parallel training some results are the same on all ranks (a loss
after its all-reduce, the norm of the gradient): a rank with a different one has computed something wrong.
Which results are shared is learnt from the job itself or from other runs of its program, never assumed: a
trainer may log something else on one rank by design. A loss of each rank's own data differs in every step,
and only means something for a rank that is far from the others. A loss that jumps on all ranks concerns the
job, and says nothing about its nodes.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import msgspec
import numpy as np
from numpy.typing import NDArray

from healer.detection.protocol import Detector, Pair, Reports, TickInput, unreadable, watch_jobs
from healer.detection.step_findings import (
    LOSS_NAN,
    LOSS_SPIKE,
    RESULT_DIFFERS,
    Past,
    Wrong,
    differs,
    no_number,
    spike,
)
from healer.detection.streams import robust
from healer.model import Component, Detections, Finding, SlurmSnapshot
from healer.observations.steps import JobSteps, LifeKey, Places, active_job
from healer.observations.telemetry_windows import Telemetry

#: Steps in which all ranks must report the same before a result counts as shared by all.
ALIKE = 5
#: Ranks that must agree before one of them can be wrong: with two, it cannot be known which.
AGREE = 3
#: If more than this share of the ranks differs, the cause is not a single part.
SHARED = 0.25
#: Steps in a row before anything is reported: one sample is never enough.
TWICE = 2
#: The name under which the shared results of each kind of job are stored; at most this many kinds.
SHARED_RESULTS, KINDS_MOST = "shared-results", 500
#: For results that ranks do not share (each from its own data): this many steps like the others, and then
#: this many in a row at least this many robust standard deviations (at least 2 % of the median each) away.
#: Our own figures.
CALM, FAR, FAR_Z, LEAST_SPREAD = 10, 3, 10.0, 0.02
#: A jump lasts at least this many steps; the loss of one step depends on its data.
JUMP = 3
#: Steps for the trend of a loss: few, because a loss falls fast in the beginning.
TREND = 20
#: A loss has jumped if it is above its trend by this many robust standard deviations and by this share of it.
#: Data that is difficult for a while moves a loss by a few per cent. Our own figures.
JUMP_Z, JUMP_SHARE = 6.0, 0.25

#: Name, user and partition: jobs with the same ones run the same program, as far as Slurm shows.
Kind = tuple[str, str, str]


@dataclass(slots=True)
class _Shared:
    """One result of one pipeline stage: whether all its ranks report the same, and if not, which ones are far
    off.

    `elsewhere`: it was shared in other runs. `apart`: it is not shared in this one.
    """

    alike: int = 0
    elsewhere: bool = False
    apart: bool = False
    #: By rank: steps in which it was like the others.
    calm: dict[int, int] = field(default_factory=dict)
    #: By rank: how many steps in a row it differed from the others, and since when.
    wrong: dict[int, tuple[int, int]] = field(default_factory=dict)
    #: By rank: its result in the last differing step, and that of the others.
    results: dict[int, tuple[float, float]] = field(default_factory=dict)

    def step(self, step: int, ranks: NDArray[np.intp], values: NDArray[np.float64]) -> None:
        """Adds one step: (n,) values of these ranks, all known."""
        if len(values) < AGREE + 1:
            return
        kinds, counts = np.unique(values, return_counts=True)
        most = kinds[np.argmax(counts)]
        others = values != most
        if not others.any():
            self.alike += 1
            self.wrong.clear()
            return
        many = others.sum() > SHARED * len(values) or counts.max() < AGREE
        self.apart |= bool(many)
        if many or not self.is_shared:
            self.alike = 0
            most, others = self._far(ranks, values)
        for rank, value in zip(ranks[others].tolist(), values[others].tolist(), strict=True):
            count, since = self.wrong.get(rank, (0, step))
            self.wrong[rank] = count + 1, since
            self.results[rank] = value, float(most)
        agreeing = set(ranks[~others].tolist())
        self.wrong = {rank: since for rank, since in self.wrong.items() if rank not in agreeing}

    @property
    def is_shared(self) -> bool:
        return self.alike >= ALIKE or (self.elsewhere and not self.apart)

    @property
    def past(self) -> Past:
        if self.alike >= ALIKE:
            return "the_same"
        return "the_same_elsewhere" if self.is_shared else "alike"

    @property
    def enough(self) -> int:
        """The number of steps in a row for which a rank must differ; fewer for results that all ranks share,
        which leave less doubt."""
        return {"the_same": TWICE, "the_same_elsewhere": ALIKE, "alike": FAR}[self.past]

    def _far(self, ranks: NDArray[np.intp], values: NDArray[np.float64]) -> tuple[float, NDArray[np.bool_]]:
        """The median, and (n,) which ranks are far from it that were not before."""
        finite = np.isfinite(values)
        if finite.sum() < AGREE:
            return float("nan"), np.zeros(len(values), bool)
        middle, spread = robust(values[finite])
        away = ~finite
        away[finite] = np.abs(values[finite] - middle) > FAR_Z * max(spread, LEAST_SPREAD * abs(middle))
        for rank in ranks[~away].tolist():
            self.calm[rank] = self.calm.get(rank, 0) + 1
        if away.sum() > SHARED * len(values):
            return middle, np.zeros(len(values), bool)
        return middle, away & np.array([self.calm.get(rank, 0) >= CALM for rank in ranks.tolist()], bool)


@dataclass(slots=True)
class _Trend:
    """The trend of a job's loss, by the median over its ranks."""

    past: list[float] = field(default_factory=list)
    high: int = 0
    since: int = 0
    now: float = 0.0
    nans: int = 0
    nan_since: int = 0

    def step(self, step: int, values: NDArray[np.float64]) -> None:
        """Adds one step: (n,) values, all known; infinite ones count as not a number."""
        finite = values[np.isfinite(values)]
        if len(finite) * 2 <= len(values):
            self.nans, self.nan_since = self.nans + 1, self.nan_since if self.nans else step
            return
        self.nans = 0
        self.now = float(np.median(finite))
        if self._is_high():
            self.high, self.since = self.high + 1, self.since if self.high else step
        else:
            # A high loss is not learnt, or a lasting one would soon be its own trend.
            self.high = 0
            self.past = [*self.past[1 - TREND :], self.now]

    @property
    def usual(self) -> float:
        return float(np.median(self.past)) if self.past else float("nan")

    def _is_high(self) -> bool:
        if len(self.past) < TREND:
            return False
        middle, spread = robust(np.array(self.past))
        return self.now - middle > max(JUMP_Z * spread, JUMP_SHARE * abs(middle))


@dataclass(slots=True, eq=False)
class _Watch:
    """The state followed for one life of a job."""

    job: JobSteps
    rewound: int
    done: int = -1
    shared: dict[tuple[str, int], _Shared] = field(default_factory=dict)
    loss: _Trend = field(default_factory=_Trend)
    places: Places | None = None

    def follow(self, now: datetime, elsewhere: Collection[str]) -> None:
        """`elsewhere`: results that are shared in other runs of its program."""
        job = self.job
        names = job.results.names()
        for step in job.ready(self.done, now):
            row = job.row(step)
            if row is not None:
                for name in names:
                    self._result(
                        name, step, job.results.of(name, row, job.ranks), elsewhere=name in elsewhere
                    )
            self.done = step

    def _result(self, name: str, step: int, results: NDArray[np.float64], *, elsewhere: bool) -> None:
        ranks = np.flatnonzero(~np.isnan(results))
        if not len(ranks):
            return
        if name == "loss":
            self.loss.step(step, results[ranks])
        stages = self.job.stage[ranks]
        for stage in np.unique(stages).tolist():
            members = ranks[stages == stage]
            shared = self.shared.setdefault((name, stage), _Shared())
            shared.elsewhere = elsewhere
            shared.step(step, members, results[members])

    def wrong(self, places: Places) -> Iterator[tuple[Component, list[Wrong]]]:
        """Ranks that differed often enough, by where they run: one rank points to its GPU, several to their
        node."""
        by_node: dict[str, list[Wrong]] = {}
        for (name, _), shared in self.shared.items():
            for rank, (count, since) in shared.wrong.items():
                if count >= shared.enough and rank < len(places.node) and places.node[rank] >= 0:
                    result = Wrong(name, rank, *shared.results[rank], since, shared.past)
                    by_node.setdefault(places.nodes[places.node[rank]], []).append(result)
        for node, ranks in by_node.items():
            gpus = {int(places.gpu[result.rank]) for result in ranks}
            gpu = gpus.pop() if len(gpus) == 1 else -1
            yield Component(cluster=self.job.cluster, node=node, gpu=gpu if gpu >= 0 else None), ranks

    def found(self) -> tuple[set[str], set[str]]:
        """Names of the results that all ranks of this life share, and of those that they do not."""
        apart = {name for (name, _), shared in self.shared.items() if shared.apart}
        alike = {name for (name, _), shared in self.shared.items() if shared.alike >= ALIKE}
        return alike - apart, apart

    def forget(self, node: str) -> None:
        """Discards the node's results; a wrong result of its ranks shows again within a few steps."""
        if self.places is not None and node in self.places.nodes:
            for shared in self.shared.values():
                shared.wrong.clear()

    def judged(self, places: Places) -> set[Pair]:
        """The pairs that this job's results can judge now: the job, and its ranks if a result is shared."""
        whole = Component(cluster=self.job.cluster, job=self.job.job)
        found: set[Pair] = {(LOSS_NAN, whole), (LOSS_SPIKE, whole)} if self.loss.past else set()
        if any(shared.is_shared or shared.calm for shared in self.shared.values()):
            for node, gpu in zip(places.node.tolist(), places.gpu.tolist(), strict=True):
                if node >= 0:
                    where = Component(cluster=self.job.cluster, node=places.nodes[node])
                    found.add((RESULT_DIFFERS, where))
                    if gpu >= 0:
                        found.add((RESULT_DIFFERS, msgspec.structs.replace(where, gpu=gpu)))
        return found


class Divergence(Detector):
    """Follows all jobs. Memory grows with the jobs that `StepTimes` holds."""

    def __init__(self) -> None:
        self._watches: dict[LifeKey, _Watch] = {}
        self._reports = Reports()
        self._clear: dict[Pair, datetime] = {}
        #: Results that the ranks of a kind of job share; the most recently seen kind is last.
        self._kinds: dict[Kind, frozenset[str]] = {}

    def tick(self, given: TickInput) -> Detections:
        slurm, now = given.slurm, given.now
        findings: list[Finding] = []
        lasting: set[Pair] = set()
        judged: set[Pair] = set()
        self._watches = watch_jobs(self._watches, given.steps, _Watch)
        for watch in self._watches.values():
            shown = active_job(slurm, watch.job.job)
            kind = (
                (shown.name, shown.user, shown.partition) if shown is not None and watch.job.vouched else None
            )
            watch.follow(now, self._kinds.get(kind, ()) if kind is not None else ())
            if kind is None:
                continue  # any sender may report such a job
            self._learn(kind, watch)
            for pair, finding in self._claims(watch, slurm, now):
                lasting.add(pair)
                if self._reports.is_due(pair, now):
                    findings.append(finding)
            judged |= watch.judged(watch.job.places(slurm))
        well = {pair for pair in given.watched if pair in judged and pair not in lasting}
        self._clear = {pair: self._clear.get(pair, now) for pair in sorted(well, key=repr)}
        for pair in (judged - lasting) & self._reports.last_at.keys():
            del self._reports.last_at[pair]
        return Detections(at=now, findings=tuple(findings), clear_since=self._clear)

    def pack(self, telemetry: Telemetry) -> dict[str, bytes]:
        kept = [(*kind, sorted(names)) for kind, names in self._kinds.items()]
        return {SHARED_RESULTS: msgspec.json.encode(kept)} if kept else {}

    def load(self, packed: Mapping[str, bytes]) -> list[str]:
        return unreadable(packed, SHARED_RESULTS, self._load)

    def _load(self, packed: bytes) -> None:
        kept = msgspec.json.decode(packed, type=list[tuple[str, str, str, frozenset[str]]])
        self._kinds = {(name, user, partition): names for name, user, partition, names in kept}

    def _learn(self, kind: Kind, watch: _Watch) -> None:
        shared, apart = watch.found()
        if names := (self._kinds.pop(kind, frozenset()) | shared) - apart:
            self._kinds[kind] = names
        while len(self._kinds) > KINDS_MOST:
            del self._kinds[next(iter(self._kinds))]

    def forget(self, telemetry: Telemetry, node: str, since: datetime) -> None:
        self._reports.forget(node)
        for watch in self._watches.values():
            watch.forget(node)

    def _claims(
        self, watch: _Watch, slurm: SlurmSnapshot | None, now: datetime
    ) -> Iterator[tuple[Pair, Finding]]:
        job, loss = watch.job, watch.loss
        watch.places = places = job.places(slurm)
        for where, wrong in watch.wrong(places):
            yield (RESULT_DIFFERS, where), differs(job, where, wrong, now)
        whole = Component(cluster=job.cluster, job=job.job)
        if loss.nans >= TWICE:
            yield (LOSS_NAN, whole), no_number(job, whole, loss.nan_since, now)
        elif loss.high >= JUMP:
            yield (LOSS_SPIKE, whole), spike(job, whole, loss.since, loss.now, loss.usual, now)
