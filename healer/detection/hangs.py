"""Hangs: a job whose steps stop while Slurm shows it running, and which rank the others wait for.

Silence alone is no hang: its ranks have to report that they are stuck, or its GPUs have to be idle, or one of
its nodes has to have lost a link, a file system, a disk or memory. Where one node alone has, and its own
kernel or port says so, the node is found too: its word and the job's ranks agree.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import msgspec
import numpy as np

from healer.detection.hang_evidence import are_measured_since, at_rest, ports_down
from healer.detection.job_watch import AT_ONCE_S, LINK_BEFORE, LINK_GAPS, JobWatch
from healer.detection.protocol import Detector, Look, Pair, new_evidence, watch_jobs
from healer.detection.standstill import Standstill, missing_text, standstill, suspects_of
from healer.model import (
    Component,
    Detections,
    FaultClass,
    Finding,
    NodeReport,
    Remedy,
    Sense,
    SlurmJob,
)
from healer.model.faults import HANG, STOPPED_JOB, Trait, fault_is
from healer.observations.steps import LifeKey, active_job, is_of_life
from healer.observations.telemetry_windows import Telemetry
from healer.text import Said, joined, quoted, say

#: A port that is down for less may be a link that trains again, or a switch that restarts.
PORT_STAYS = timedelta(seconds=30)
#: Losses of one place within this time of each other are the place's; elsewhere in the job within
#: `LINK_BEFORE`.
PLACE_LOSES = timedelta(minutes=5)
#: The node is reported again so soon: while its place was in trouble, nothing was done.
BLAMED_AGAIN = timedelta(seconds=5)
#: An older snapshot of Slurm shows no job as running.
PICTURE_S = 30.0
#: Without a report by this process, a step that came this recently means that the job goes on.
GOES_ON_S = 30.0
#: Before this a rank that reported fewer steps than others is not missing yet.
HEARD_S = 15.0

#: Whether all GPUs of a job are idle at that moment; None: not known.
AtRest = Callable[[Telemetry, SlurmJob, datetime], bool | None]
#: The nodes of these that have lost what a job may need.
ReportsOf = Callable[[Iterable[str]], Mapping[str, NodeReport]]


@dataclass(frozen=True, slots=True)
class _Hang:
    """`begun`: since when no step was made. `reports`: losses that may be why, of all that the job's nodes
    have `lost`. `confidence` is 0..1."""

    watch: JobWatch
    stand: Standstill
    begun: datetime
    reports: Mapping[str, NodeReport]
    lost: Mapping[str, NodeReport]
    confidence: float
    #: Ranks report that they wait in a collective for others, or for its end.
    waits: bool = False

    def finding(self, look: Look, *, quiet: bool) -> Finding:
        """`quiet`: the job's GPUs agree, a second sense."""
        watch, stand, job, now = self.watch, self.stand, self.watch.job, look.now
        places = job.places(look.slurm)
        suspects = suspects_of(job, stand, places, self.reports)
        losses = (_loss_text(node, report) for node, report in self.reports.items())
        text = joined((self._since_text(now), missing_text(stand, places), *losses), "semicolon")
        named = ",".join(str(rank) for rank in stand.named[:64].tolist()) if stand.speaks else ""
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

    def blamed(self, look: Look) -> Finding | None:
        """The node that alone has lost something, if that is sure: the kernel says so of a file system, a
        disk or memory, and a lost port has been down for a while. None: no node, or several, of the job or of
        the node's places, whichever of them the ranks wait for."""
        stalled_s = (look.now - self.begun).total_seconds()
        if len(self.reports) != 1 or stalled_s <= self.watch.stopped_s():
            return None
        ((node, report),) = self.reports.items()
        neighbours = {other.name for other in look.slurm.neighbours_of(node)} if look.slurm else set[str]()
        of_place = (
            *ports_down(look.telemetry, neighbours, look.now).values(),
            *_reported(look, neighbours).values(),
        )
        of_job = (other for name, other in self.lost.items() if name != node)
        if _is_among(report, of_place, PLACE_LOSES) or _is_among(report, of_job, LINK_BEFORE):
            return None
        job, where = self.watch.job, Component(cluster=self.watch.job.cluster, node=node)
        identity = f"{STOPPED_JOB}|{job.cluster}|{job.job}|{job.restart}|{self.watch.newest}|{node}"
        # On a shared node only the job that stopped is restarted.
        line = report.evidence
        signs = [msgspec.structs.replace(line, job=job.job)] if line is not None else []
        if not fault_is(report.fault, Trait.may_stop_work):
            port = ports_down(look.telemetry, (node,), look.now).get(node)
            if port is None or look.now - port.at < PORT_STAYS:
                return None
            if not are_measured_since(look.telemetry, neighbours, port.at, look.now):
                return None
            signs.append(new_evidence(identity, where, port.at, port.text, look.now, Sense.metrics))
        text = joined((self._since_text(look.now), _loss_text(node, report)), "semicolon")
        steps = new_evidence(f"{identity}|steps", where, self.begun, text, look.now, Sense.step_times)
        found = Finding.from_evidence(
            signs[0],
            fault=STOPPED_JOB,
            fault_class=FaultClass.fatal,
            component=where,
            arrived_at=look.now,
            title=say("detection.stopped_job", job=job.job, loss=_at_most(report.text, 80)),
            text=text,
            confidence=self.confidence,
            unusable=signs[0].sense is Sense.kernel,
            jobs=(job.job,),
            remedy=report.remedy if report.remedy not in {None, Remedy.none} else Remedy.ticket,
        )
        return msgspec.structs.replace(found, evidence=(*signs, steps))


def _loss_text(node: str, report: NodeReport) -> Said:
    text = _at_most(report.text, 160)
    return say("detection.reported_loss", node=node, time=f"{report.at:%H:%M:%S}", text=text)


def _at_most(text: Said, characters: int) -> Said:
    """What is that long is a kernel's line, and no sentence of healer's."""
    return text if len(text) <= characters else quoted(text[:characters])


def _is_among(loss: NodeReport, others: Iterable[NodeReport], within: timedelta) -> bool:
    """Whether another one came at about its time."""
    return any(abs(other.at - loss.at) <= within for other in others)


class Hangs(Detector):
    """Follows all jobs. Its memory grows with the jobs that `StepTimes` holds."""

    def __init__(self, rests: AtRest = at_rest) -> None:
        self._rests = rests
        self._watches: dict[LifeKey, JobWatch] = {}
        self._clear: dict[Pair, datetime] = {}

    def tick(self, look: Look) -> Detections:
        def lost(nodes: Iterable[str]) -> dict[str, NodeReport]:
            return ports_down(look.telemetry, nodes, look.now) | _reported(look, nodes)

        findings = tuple(self._found(look, lost, self._rests))
        pairs = [pair for pair in look.watched if pair[0] == HANG and self._is_over(pair, look)]
        self._clear = {pair: self._clear.get(pair, look.now) for pair in pairs}
        return Detections(at=look.now, findings=findings, clear_since=dict(self._clear))

    def glance(self, look: Look) -> tuple[Finding, ...]:
        """Jobs stuck because of what a node has lost. Other hangs wait for a tick, which looks at the
        GPUs."""

        def lost(nodes: Iterable[str]) -> dict[str, NodeReport]:
            return _reported(look, nodes)

        return tuple(self._found(look, lost, lambda *_: None, for_reports=True))

    def _found(
        self, look: Look, reports_of: ReportsOf, rests: AtRest, *, for_reports: bool = False
    ) -> Iterator[Finding]:
        """Hangs that are due to be reported, and nodes that caused one. `for_reports`: only hangs explained
        by what a node has lost."""
        for watch, shown in self._follow(look):
            moved_at = watch.moved_at or look.now
            begun = max(moved_at, look.listening_since or moved_at)
            if not watch.usual_s > 0 or (look.now - begun).total_seconds() <= AT_ONCE_S:
                continue
            hang = _find_hang(watch, shown, begun, look, reports_of, rests)
            if hang is None or (for_reports and not hang.reports):
                continue
            due = watch.is_due(hang.stand, look.now)
            quiet = hang.waits and watch.look_is_due(look.now)
            if quiet := quiet and rests(look.telemetry, shown, look.now) is True:
                watch.note_quiet(look.now)
            if due or quiet:
                yield hang.finding(look, quiet=quiet)
            again = watch.blamed_at is None or look.now - watch.blamed_at >= BLAMED_AGAIN
            if again and (blamed := hang.blamed(look)) is not None:
                watch.blamed_at = look.now
                yield blamed

    def _follow(self, look: Look) -> list[tuple[JobWatch, SlurmJob]]:
        """Takes in new steps; the watches of jobs that Slurm shows running in the life that reported them."""
        slurm, now = look.slurm, look.now
        is_fresh = slurm is not None and (now - slurm.taken_at).total_seconds() <= PICTURE_S
        before = {watch.job.job: watch for watch in self._watches.values()}
        self._watches = watch_jobs(self._watches, look.steps, JobWatch)
        live: list[tuple[JobWatch, SlurmJob]] = []
        for watch in self._watches.values():
            job = watch.job
            earlier = before.get(job.job)
            if earlier is not None and earlier is not watch and earlier.job.restart < job.restart:
                watch.inherit(earlier)
            watch.follow(now)
            shown = slurm.jobs.get(job.job) if slurm is not None and is_fresh else None
            if shown is None or shown.state != "RUNNING" or "COMPLETING" in shown.flags:
                # Suspended or starting again: steps not made meanwhile were not missed.
                watch.moved_at = now if shown is not None and watch.moved_at is not None else watch.moved_at
            elif job.vouched and is_of_life(job, shown):
                live.append((watch, shown))
        return live

    def _is_over(self, pair: Pair, look: Look) -> bool:
        """The job makes steps again, or has ended."""
        job = pair[1].job or ""
        if look.slurm is not None and active_job(look.slurm, job) is None:
            return True
        watches = [watch for (name, _), watch in self._watches.items() if name == job]
        watch = max(watches, key=lambda watch: watch.job.restart, default=None)
        if watch is None or watch.moved_at is None or watch.reported is not None:
            return False
        return (look.now - watch.moved_at).total_seconds() <= GOES_ON_S


def _find_hang(
    watch: JobWatch, shown: SlurmJob, begun: datetime, look: Look, reports_of: ReportsOf, rests: AtRest
) -> _Hang | None:
    stalled_s = (look.now - begun).total_seconds()
    if stalled_s <= LINK_GAPS * watch.usual_s:
        return None
    lost = reports_of(shown.nodes)
    reports = watch.reports_to_blame(lost, begun, stalled_s)
    if not reports and stalled_s <= watch.sure_s():
        return None
    stand = standstill(watch.job, look.now.timestamp())
    if stand.rests:
        return None
    if reports:
        if stalled_s <= HEARD_S and not stand.speaks:
            stand = replace(stand, missing=np.zeros_like(stand.missing))
        return _Hang(watch, stand, begun, reports, lost, 0.8)
    limit_s = watch.limit_s(stand)
    if limit_s is None or stalled_s <= limit_s:
        return None
    sure = limit_s < watch.unsure_s()
    if not sure:
        idle = rests(look.telemetry, shown, look.now)
        if idle is False or (idle is None and not stand.speaks):
            return None
    # What was lost longer ago, where the job waits for that very node.
    waits_for = {part.node for part in suspects_of(watch.job, stand, watch.job.places(look.slurm), ())}
    reports = {node: report for node, report in lost.items() if node in waits_for}
    return _Hang(watch, stand, begun, reports, lost, 0.9 if sure else 0.7, waits=sure)


def _reported(look: Look, nodes: Iterable[str]) -> dict[str, NodeReport]:
    return {name: look.node_reports[name] for name in nodes if name in look.node_reports}
