"""Hangs: a job whose steps stop while Slurm shows it running, and the rank that the others wait for.

Silence alone is no hang: its ranks must report that they are stuck, or its GPUs must be idle, or one of its
nodes must have lost a link, a file system, a disk or memory. If a single node has, according to its own
kernel or port, that node is blamed too: its report and the job's ranks agree. A job that has not made its
first step is judged by its earlier starts (`job_starts`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

import msgspec
import numpy as np

from healer.detection.blame import BLAMED_AGAIN, Stop, blamed_node, loss_text, reported_losses
from healer.detection.hang_evidence import AtRest, at_rest, ports_down
from healer.detection.job_starts import STARTS, Starts
from healer.detection.job_watch import AT_ONCE_S, LINK_GAPS, STOPPED, SURE, UNSURE, YOUNG_S, JobWatch
from healer.detection.protocol import Detector, Pair, TickInput, new_evidence, unreadable, watch_jobs
from healer.detection.standstill import Standstill, missing_text, standstill, suspects_of
from healer.model import (
    Component,
    Detections,
    FaultClass,
    Finding,
    NodeReport,
    Sense,
    SlurmJob,
    SlurmSnapshot,
)
from healer.model.faults import HANG
from healer.observations.steps import LifeKey, active_job, is_of_life
from healer.observations.telemetry_windows import Telemetry
from healer.text import Said, joined, say

#: An older Slurm snapshot does not show that a job is running.
PICTURE_S = 30.0
#: If this process has no report, a step that came this recently means that the job continues.
GOES_ON_S = 30.0
#: Before this time, a rank that reported fewer steps than others does not count as missing.
HEARD_S = 15.0

#: Those of the given nodes that have lost something a job may need.
ReportsOf = Callable[[Iterable[str]], Mapping[str, NodeReport]]


@dataclass(frozen=True, slots=True)
class _Hang:
    """`begun`: since when no step was made. `reports`: losses that may explain it, out of all that the job's
    nodes have `lost`. `confidence` is 0..1."""

    watch: JobWatch
    stand: Standstill
    begun: datetime
    reports: Mapping[str, NodeReport]
    lost: Mapping[str, NodeReport]
    confidence: float
    #: Ranks report that they wait in a collective for others, or for its end.
    waits: bool = False

    def finding(self, given: TickInput, *, quiet: bool) -> Finding:
        """`quiet`: the job's GPUs agree, as a second sense."""
        watch, stand, job, now = self.watch, self.stand, self.watch.job, given.now
        places = job.places(given.slurm)
        suspects = suspects_of(job, stand, places, self.reports)
        losses = (loss_text(node, report) for node, report in self.reports.items())
        text = joined((self._since_text(now), missing_text(stand, places), *losses), "semicolon")
        named = ",".join(str(rank) for rank in stand.named[:64].tolist()) if stand.is_reported else ""
        identity = (
            f"{HANG}|{job.cluster}|{job.job}|{job.restart}|{watch.newest}|{named}|{sorted(self.reports)}"
        )
        where = Component(cluster=job.cluster, job=job.job)
        evidence = new_evidence(identity, where, min(self.begun, now), text, now, Sense.step_times)
        title = say("detection.hang", job=job.job)
        if len(suspects) == 1:
            title = say("detection.hang_waits_for", job=job.job, where=str(suspects[0]))
        found = Finding.from_evidence(
            evidence,
            fault=HANG,
            fault_class=FaultClass.informational,
            title=title,
            confidence=self.confidence,
            affected=suspects,
        )
        if not quiet:
            return found
        words = say("detection.gpus_quiet", job=job.job)
        sign = new_evidence(f"{identity}|quiet|{now.isoformat()}", where, now, words, now, Sense.metrics)
        return msgspec.structs.replace(found, evidence=(*found.evidence, sign))

    def _since_text(self, now: datetime) -> Said:
        watch = self.watch
        return say(
            "detection.no_step_since",
            job=watch.job.job,
            time=f"{self.begun:%H:%M:%S}",
            stalled=(now - self.begun).total_seconds(),
            step=watch.newest,
            usual=watch.usual_s,
        )

    def blamed(self, given: TickInput) -> Finding | None:
        """The node that stopped the job, if that is certain."""
        if (given.now - self.begun).total_seconds() <= self.watch.after_s(STOPPED):
            return None
        life = self.watch.job
        stop = Stop(
            job=Component(cluster=life.cluster, job=life.job),
            key=f"{life.restart}|{self.watch.newest}",
            begun=self.begun,
            text=self._since_text(given.now),
            reports=self.reports,
            lost=self.lost,
            confidence=self.confidence,
        )
        return blamed_node(stop, given)


class Hangs(Detector):
    """Follows all jobs. Memory grows with the jobs that `StepTimes` holds."""

    def __init__(self, rests: AtRest = at_rest) -> None:
        self._rests = rests
        self._starts = Starts(rests)
        self._watches: dict[LifeKey, JobWatch] = {}
        self._clear: dict[Pair, datetime] = {}

    def tick(self, given: TickInput) -> Detections:
        def lost(nodes: Iterable[str]) -> dict[str, NodeReport]:
            return ports_down(given.telemetry, nodes, given.now) | reported_losses(given, nodes)

        findings = (*self._found(given, lost, self._rests), *self._stuck_starts(given))
        pairs = [pair for pair in given.watched if pair[0] == HANG and self._is_over(pair, given)]
        self._clear = {pair: self._clear.get(pair, given.now) for pair in pairs}
        return Detections(at=given.now, findings=findings, clear_since=self._clear)

    def tick_early(self, given: TickInput) -> tuple[Finding, ...]:
        """Jobs that are stuck because of what a node has lost. Other hangs wait for a tick, which examines
        the GPUs."""

        def lost(nodes: Iterable[str]) -> dict[str, NodeReport]:
            return reported_losses(given, nodes)

        return tuple(self._found(given, lost, lambda *_: None, for_reports=True))

    def forget(self, telemetry: Telemetry, node: str, since: datetime) -> None:
        self._starts.forget(node, since)

    def pack(self, telemetry: Telemetry) -> dict[str, bytes]:
        return self._starts.pack()

    def load(self, packed: Mapping[str, bytes]) -> list[str]:
        return unreadable(packed, STARTS, self._starts.load)

    def _stuck_starts(self, given: TickInput) -> Iterator[Finding]:
        slurm = given.slurm
        if slurm is not None and _is_fresh(slurm, given.now):
            yield from self._starts.stuck(given, slurm)

    def _found(
        self, given: TickInput, reports_of: ReportsOf, rests: AtRest, *, for_reports: bool = False
    ) -> Iterator[Finding]:
        """Hangs that are due to be reported, and nodes that caused one. `for_reports`: only hangs explained
        by a loss on a node."""
        for watch, shown in self._follow(given):
            moved_at = watch.moved_at or given.now
            begun = max(moved_at, given.listening_since or moved_at)
            least_s = YOUNG_S if watch.is_young else AT_ONCE_S
            if not watch.usual_s > 0 or (given.now - begun).total_seconds() <= least_s:
                continue
            hang = _find_hang(watch, shown, begun, given, reports_of, rests)
            if hang is None or (for_reports and not hang.reports):
                continue
            due = watch.is_due(hang.stand, given.now)
            quiet = hang.waits and watch.look_is_due(given.now)
            if quiet := quiet and rests(given.telemetry, shown, given.now) is True:
                watch.note_quiet(given.now)
            if due or quiet:
                yield hang.finding(given, quiet=quiet)
            again = watch.blamed_at is None or given.now - watch.blamed_at >= BLAMED_AGAIN
            if again and (blamed := hang.blamed(given)) is not None:
                watch.blamed_at = given.now
                yield blamed

    def _follow(self, given: TickInput) -> list[tuple[JobWatch, SlurmJob]]:
        """Processes new steps; returns the watches of jobs that Slurm shows running in the life that reported
        them."""
        slurm, now = given.slurm, given.now
        before = {watch.job.job: watch for watch in self._watches.values()}
        self._watches = watch_jobs(self._watches, given.steps, JobWatch)
        live: list[tuple[JobWatch, SlurmJob]] = []
        for watch in self._watches.values():
            job = watch.job
            earlier = before.get(job.job)
            if earlier is not None and earlier is not watch and earlier.job.restart < job.restart:
                watch.inherit(earlier)
            watch.follow(now)
            shown = slurm.whole(job.job) if slurm is not None and _is_fresh(slurm, now) else None
            if shown is None or shown.state != "RUNNING" or "COMPLETING" in shown.flags:
                # Suspended or restarting: steps not made meanwhile do not count as missing.
                watch.moved_at = now if shown is not None and watch.moved_at is not None else watch.moved_at
            elif job.vouched and is_of_life(job, shown):
                self._starts.note(job, shown, given.listening_since)
                live.append((watch, shown))
        return live

    def _is_over(self, pair: Pair, given: TickInput) -> bool:
        """The job makes steps again, or has ended."""
        job = pair[1].job or ""
        if given.slurm is not None and active_job(given.slurm, job) is None:
            return True
        watches = [watch for (name, _), watch in self._watches.items() if name == job]
        watch = max(watches, key=lambda watch: watch.job.restart, default=None)
        if watch is None or watch.moved_at is None or watch.reported is not None:
            return False
        return (given.now - watch.moved_at).total_seconds() <= GOES_ON_S


def _is_fresh(slurm: SlurmSnapshot, now: datetime) -> bool:
    return (now - slurm.taken_at).total_seconds() <= PICTURE_S


def _find_hang(
    watch: JobWatch, shown: SlurmJob, begun: datetime, given: TickInput, reports_of: ReportsOf, rests: AtRest
) -> _Hang | None:
    stalled_s = (given.now - begun).total_seconds()
    if stalled_s <= LINK_GAPS * watch.usual_s:
        return None
    lost = reports_of(shown.nodes)
    reports = watch.reports_to_blame(lost, begun, stalled_s)
    if not reports and (watch.is_young or stalled_s <= watch.after_s(SURE)):
        return None
    stand = standstill(watch.job, given.now.timestamp())
    if stand.rests:
        return None
    if reports:
        if stalled_s <= HEARD_S and not stand.is_reported:
            stand = replace(stand, missing=np.zeros_like(stand.missing))
        return _Hang(watch, stand, begun, reports, lost, 0.8)
    limit_s = watch.limit_s(stand)
    if limit_s is None or stalled_s <= limit_s:
        return None
    sure = limit_s < watch.after_s(UNSURE)
    if not sure:
        idle = rests(given.telemetry, shown, given.now)
        if idle is False or (idle is None and not stand.is_reported):
            return None
    # Older losses count if the job waits for that very node.
    waits_for = {part.node for part in suspects_of(watch.job, stand, watch.job.places(given.slurm), ())}
    reports = {node: report for node, report in lost.items() if node in waits_for}
    return _Hang(watch, stand, begun, reports, lost, 0.9 if sure else 0.7, waits=sure)
