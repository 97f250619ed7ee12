"""What Slurm's picture and slurmctld show at this moment that should not last. `slurm_watch` tells it."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import NamedTuple

from healer.detection.silence import is_fleet
from healer.detection.together import together
from healer.model import (
    Component,
    PlaceKind,
    Sense,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
    Trouble,
    WatchSettings,
)
from healer.model.reasons import is_none, slurm_kind
from healer.observations import Picture

#: Names that a sentence holds.
_NAMED = 5

OFFLINE, FLEET_OFFLINE = "node-offline", "fleet-offline"
#: Faults of a place whose nodes do not answer Slurm.
PLACES_OFFLINE = frozenset(f"{kind}-offline" for kind in PlaceKind)
BELOW, COMPLETING = "below-configured", "jobs-completing"
WAITING, HELD = "jobs-waiting:", "jobs-held:"
BACKLOG, ACCOUNTING = "controller-backlog", "accounting-away"


class Condition(NamedTuple):
    """`text` is a sentence without its full stop; `since` where Slurm itself tells when it began."""

    fault: str
    where: Component
    title: str
    text: str
    for_s: float = 0
    since: datetime | None = None
    affected: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    #: What makes it news although it stands already; and who tells of it.
    news: str = ""
    sense: Sense = Sense.slurm


def is_offline(node: SlurmNode) -> bool:
    """Slurm does not reach it, and nobody wanted that: no drain, no reboot, no plan, no person's DOWN."""
    if "NOT_RESPONDING" not in node.state or node.drain or node.planned:
        return False
    if {"REBOOT_ISSUED", "POWERING_UP"}.intersection(node.state) or node.base in {"FUTURE", "UNKNOWN"}:
        return False
    return is_none(node.reason) or slurm_kind(node.reason) == "not-responding"


def conditions(picture: Picture, slurm: SlurmSnapshot, settings: WatchSettings) -> Iterator[Condition]:
    yield from _offline(slurm, settings)
    yield from _below(slurm)
    yield from _waiting(slurm, settings)
    yield from _completing(picture, slurm, settings)
    yield from _held(slurm)
    yield from _controller(picture, settings)


# --- nodes -----------------------------------------------------------------------------------------------


def _offline(slurm: SlurmSnapshot, settings: WatchSettings) -> Iterator[Condition]:
    """One for the fleet or a place where many are away at once, and one for each other node."""
    away = {node.name: node for node in slurm.odd_nodes if is_offline(node)}
    if not away:
        return
    expected = [node for node in slurm.nodes.values() if not node.planned]
    if is_fleet(len(away), len(expected)):
        text = f"{len(away)} of {len(expected)} nodes do not answer Slurm: its network, or a roll-out"
        yield _many(
            FLEET_OFFLINE,
            Component(cluster=slurm.cluster),
            "Most nodes do not answer Slurm",
            text,
            away,
            settings,
        )
        return
    for one in together(away, [node.name for node in expected], slurm.nodes):
        text = f"{len(one.nodes)} of {one.of} nodes {one.kind.words} {one.place} do not answer Slurm"
        theirs = {name: away.pop(name) for name in one.nodes}
        yield _many(f"{one.kind}-offline", one.root(slurm.cluster), text, text, theirs, settings)
    for name, node in sorted(away.items()):
        state = "+".join(node.state)
        yield Condition(
            OFFLINE, Component(cluster=slurm.cluster, node=name), "Node does not answer Slurm",
            f"Slurm does not reach {name} ({state})", _offline_s(node, settings), node.reason_at,
        )  # fmt: skip


def _many(
    fault: str, where: Component, title: str, text: str, away: dict[str, SlurmNode], settings: WatchSettings
) -> Condition:
    for_s = min(_offline_s(node, settings) for node in away.values())
    return Condition(fault, where, title, text, for_s, affected=tuple(sorted(away)))


def _offline_s(node: SlurmNode, settings: WatchSettings) -> float:
    """Slurm has asked long enough before it says DOWN; one missed ping is shown too."""
    return 0 if node.base == "DOWN" else settings.not_responding_s


def _below(slurm: SlurmSnapshot) -> Iterator[Condition]:
    """Nodes that register with less than slurm.conf says. One drained by Slurm for it is told as a drain."""
    for node in slurm.odd_nodes:
        if "INVALID_REG" not in node.state or (node.held and slurm_kind(node.reason) is not None):
            continue
        why = f": {node.reason}" if slurm_kind(node.reason) is not None else ""
        text = f"{node.name} registers with less than Slurm's configuration says{why}"
        yield Condition(
            BELOW, Component(cluster=slurm.cluster, node=node.name), "Node offers less than configured", text
        )


# --- jobs ------------------------------------------------------------------------------------------------


def _waiting(slurm: SlurmSnapshot, settings: WatchSettings) -> Iterator[Condition]:
    """By partition and reason. What a job waits for by its owner's wish does not count."""
    longest = timedelta(hours=settings.queued_h)
    groups: dict[tuple[str, str], list[tuple[datetime, str]]] = defaultdict(list)
    for job in slurm.jobs.values():
        since = _eligible_since(job)
        if since is None or slurm.taken_at - since < longest:
            continue
        if not any(fnmatchcase(job.reason, pattern) for pattern in settings.not_waiting):
            groups[job.partition, job.reason or "no reason given"].append((since, job.id))
    for (partition, reason), waiting in sorted(groups.items()):
        waiting.sort()
        hours = (slurm.taken_at - waiting[0][0]) / timedelta(hours=1)
        title = f"Jobs wait in {partition or 'no partition'} for over {settings.queued_h:g} h: {reason}"
        text = f"{len(waiting)} of them, the longest is {waiting[0][1]} with {hours:.1f} h"
        fault = f"{WAITING}{partition}:{reason}"
        yield Condition(fault, Component(cluster=slurm.cluster), title, text)


def _eligible_since(job: SlurmJob) -> datetime | None:
    """Since when it could run; None where it does not wait, somebody holds it, or Slurm does not tell."""
    if job.state != "PENDING" or job.held_by or "COMPLETING" in job.flags:
        return None
    return max((at for at in (job.submit_at, job.eligible_at) if at is not None), default=None)


def _completing(picture: Picture, slurm: SlurmSnapshot, settings: WatchSettings) -> Iterator[Condition]:
    """By the nodes where jobs do not come to their end: an epilog hangs, a process cannot be killed."""
    longest = timedelta(minutes=settings.completing_min)
    stuck: dict[tuple[str, ...], list[tuple[datetime, str]]] = defaultdict(list)
    for job, since in _completing_since(picture, slurm).items():
        if slurm.taken_at - since >= longest:
            stuck[slurm.jobs[job].nodes].append((since, job))
    for nodes, jobs in sorted(stuck.items()):
        jobs.sort()
        ids = [job for _, job in jobs]
        lone = Component(cluster=slurm.cluster, node=nodes[0])
        where = lone if len(nodes) == 1 else Component(cluster=slurm.cluster, job=ids[0])
        title = f"Job does not complete on {nodes[0] if len(nodes) == 1 else f'{len(nodes)} nodes'}"
        text = f"{_spoken('Job', ids)} cannot complete on {', '.join(nodes[:_NAMED])}{_more(nodes)}"
        yield Condition(COMPLETING, where, title, text, since=jobs[0][0], affected=nodes, jobs=tuple(ids))


def _completing_since(picture: Picture, slurm: SlurmSnapshot) -> dict[str, datetime]:
    """Each job that completes on some node. One that is requeued shows an end that lies ahead, and some show
    none: those count from when they were first seen so."""
    found = {}
    for job in slurm.jobs.values():
        if "COMPLETING" not in job.flags or not job.nodes:
            continue
        told = job.end_at if job.end_at is not None and job.end_at <= slurm.taken_at else None
        found[job.id] = told or picture.completing.get(job.id, slurm.taken_at)
    picture.completing = found
    return found


def _held(slurm: SlurmSnapshot) -> Iterator[Condition]:
    """Jobs that Slurm holds because their launch failed: nobody asked for that, and they wait for ever."""
    held: dict[str, list[str]] = defaultdict(list)
    for job in slurm.jobs.values():
        if job.held_by == "admin" and (
            job.why.startswith("launch failed") or job.reason == "JobHoldMaxRequeue"
        ):
            held[job.partition].append(job.id)
    for partition, ids in sorted(held.items()):
        text = f"Slurm holds {_spoken('job', ids)} after a failed launch until somebody releases it"
        title = f"Jobs held after failed launches in {partition or 'no partition'}"
        where = Component(cluster=slurm.cluster)
        yield Condition(f"{HELD}{partition}", where, title, text, jobs=tuple(ids))


def _spoken(noun: str, ids: Sequence[str]) -> str:
    """`Job 7`, `Jobs 7, 8 and 9`."""
    if len(ids) == 1:
        return f"{noun} {ids[0]}"
    return f"{noun}s {', '.join(ids[:_NAMED])}{_more(ids)}"


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""


# --- slurmctld -------------------------------------------------------------------------------------------


def _controller(picture: Picture, settings: WatchSettings) -> Iterator[Condition]:
    seen = picture.controller
    if seen is None:
        return
    where = Component(cluster=picture.cluster)
    if since := seen.since.get(Trouble.backlog):
        text = f"{seen.threads or 0} requests are in work, and {seen.agent_queue or 0} messages wait to leave"
        yield Condition(BACKLOG, where, "slurmctld is behind with its work", text, settings.backlog_s, since)
    if since := seen.since.get(Trouble.accounting):
        text = f"{seen.dbd_queue} records wait in slurmctld; they are lost once its queue is full"
        yield Condition(ACCOUNTING, where, "slurmdbd does not answer", text, settings.accounting_s, since)
