"""Stragglers: the rank with more compute than its peers, for which all wait; ranks to GPUs to nodes."""

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import ArrayLike, NDArray

from healer.detection.pace import Pace
from healer.detection.slow_together import SLOWNESS_SHARED
from healer.detection.step_arrays import logs, nature, over_peers
from healer.detection.step_findings import JOB_SLOW, STRAGGLER, job_slow, straggler
from healer.detection.straggler_watch import SHARED, Watch, follow_all
from healer.detection.streams import Streams
from healer.model import Component, Finding, Sensed, SlurmJob, SlurmSnapshot
from healer.observations.steps import JobSteps, StepTimes

#: What stands is told again after this.
AGAIN_AFTER = timedelta(minutes=5)
#: Without a step for this long nothing is known to be well.
QUIET_S = 60.0
#: Steps in a day where nobody tells how long one is: of 5 s. Thresholds follow its logarithm.
STEPS_PER_DAY = 17_280

Pair = tuple[str, Component]


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
        self._watches: dict[tuple[str, int], Watch] = {}
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
    return shown is not None and shown.active and job.vouched and _of_this_life(job, shown)


def _of_this_life(job: JobSteps, shown: SlurmJob) -> bool:
    """Until its new life has told a step, a requeued job is known by the old one, whose ranks ran elsewhere.

    Senders that count no lives always tell 0.
    """
    if shown.start_at is None:
        return job.restart == shown.restarts
    return job.restart in (0, shown.restarts) and job.told_at > shown.start_at.timestamp()
