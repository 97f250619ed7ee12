"""Finds the node whose own fault has stopped its job: by its kernel or its port, in agreement with the job's
steps."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from healer.detection.hang_evidence import are_measured_since, ports_down
from healer.detection.job_watch import LINK_BEFORE
from healer.detection.protocol import TickInput, new_evidence
from healer.model import Component, FaultClass, Finding, NodeReport, Remedy, Sense
from healer.model.faults import STOPPED_JOB, Trait, fault_is
from healer.text import Said, joined, quoted, say

#: A port that is down for less than this may be a retraining link or a restarting switch.
PORT_STAYS = timedelta(seconds=30)
#: Losses at one place within this time of each other belong to the place; elsewhere in the job, within
#: `LINK_BEFORE`.
PLACE_LOSES = timedelta(minutes=5)
#: How soon the node is reported again: while its place had problems, nothing was done.
BLAMED_AGAIN = timedelta(seconds=5)


class Stop(NamedTuple):
    """A job that makes no step. `key`: its life and its last step. `text`: how long it has made none, and
    what is usual. `reports`: losses that may explain it, out of all that the job's nodes have `lost`.
    `confidence` is 0..1."""

    job: Component
    key: str
    begun: datetime
    text: Said
    reports: Mapping[str, NodeReport]
    lost: Mapping[str, NodeReport]
    confidence: float


def blamed_node(stop: Stop, given: TickInput) -> Finding | None:
    """The only node that has lost something, if that is certain: the kernel reports a file system, a disk or
    memory, and a lost port has been down for a while. None: no node, or several, of the job or of the node's
    places, whichever of them the ranks wait for."""
    if len(stop.reports) != 1:
        return None
    ((node, report),) = stop.reports.items()
    neighbours = {other.name for other in given.slurm.neighbours_of(node)} if given.slurm else set[str]()
    of_place = (
        *ports_down(given.telemetry, neighbours, given.now, stop.begun).values(),
        *reported_losses(given, neighbours).values(),
    )
    of_job = (other for name, other in stop.lost.items() if name != node)
    if _is_among(report, of_place, PLACE_LOSES) or _is_among(report, of_job, LINK_BEFORE):
        return None
    job, where = stop.job.job or "", Component(cluster=stop.job.cluster, node=node)
    identity = f"{STOPPED_JOB}|{where.cluster}|{job}|{stop.key}|{node}"
    # On a shared node only the stopped job is restarted.
    line = report.evidence
    signs = [msgspec.structs.replace(line, job=job)] if line is not None else []
    if not fault_is(report.fault, Trait.may_stop_work):
        port = ports_down(given.telemetry, (node,), given.now, stop.begun).get(node)
        if port is None or given.now - port.at < PORT_STAYS:
            return None
        if not are_measured_since(given.telemetry, neighbours, port.at, given.now):
            return None
        signs.append(new_evidence(identity, where, port.at, port.text, given.now, Sense.metrics))
    text = joined((stop.text, loss_text(node, report)), "semicolon")
    steps = new_evidence(f"{identity}|steps", where, stop.begun, text, given.now, Sense.step_times)
    found = Finding.from_evidence(
        signs[0],
        fault=STOPPED_JOB,
        fault_class=FaultClass.fatal,
        component=where,
        arrived_at=given.now,
        title=say("detection.stopped_job", job=job, loss=_at_most(report.text, 80)),
        text=text,
        confidence=stop.confidence,
        unusable=signs[0].sense is Sense.kernel,
        jobs=(job,),
        remedy=report.remedy if report.remedy not in {None, Remedy.none} else Remedy.ticket,
    )
    return msgspec.structs.replace(found, evidence=(*signs, steps))


def reported_losses(given: TickInput, nodes: Iterable[str]) -> dict[str, NodeReport]:
    return {name: given.node_reports[name] for name in nodes if name in given.node_reports}


def loss_text(node: str, report: NodeReport) -> Said:
    text = _at_most(report.text, 160)
    return say("detection.reported_loss", node=node, time=f"{report.at:%H:%M:%S}", text=text)


def _at_most(text: Said, characters: int) -> Said:
    """The text, or its beginning if it is too long: then it is a kernel's line, not one of healer's
    sentences."""
    return text if len(text) <= characters else quoted(text[:characters])


def _is_among(loss: NodeReport, others: Iterable[NodeReport], within: timedelta) -> bool:
    """Whether another loss came at about the same time."""
    return any(abs(other.at - loss.at) <= within for other in others)
