"""Conditions in the Slurm snapshot and in the nodes' configuration that should not last: each becomes an
incident.

They drain no node. `rules/watches.yaml` sets how long a condition must last, and how long it must be gone
before its incident ends.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import reduce
from hashlib import sha256
from typing import NamedTuple

from healer.detection.protocol import WalkInput, new_evidence
from healer.detection.silence import is_fleet, together
from healer.model import (
    Component,
    FaultClass,
    Finding,
    Reference,
    Sense,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
    Trouble,
    WatchSettings,
    differences,
    node_kind,
)
from healer.model.detection import is_due
from healer.model.faults import FLEET_OFFLINE, NODE_OFFLINE
from healer.model.hostlist import compact
from healer.model.slurm import is_empty_reason, is_only_ours, slurm_kind
from healer.observations import Picture, Standing
from healer.text import Said, joined, name_some, quoted, say

#: The most names in a sentence.
_NAMED = 5

BELOW, COMPLETING = "below-configured", "jobs-completing"
REBOOTS = "planned-reboots"
WAITING, HELD = "jobs-waiting:", "jobs-held:"
BACKLOG, ACCOUNTING = "controller-backlog", "accounting-away"


class Condition(NamedTuple):
    """`text` is a sentence without its full stop; `since` is set if Slurm itself reports when it began."""

    fault: str
    where: Component
    title: Said
    text: Said
    for_s: float = 0
    since: datetime | None = None
    affected: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    #: If it changes, the same condition is reported as new evidence.
    news: str = ""
    sense: Sense = Sense.slurm


def is_offline(node: SlurmNode) -> bool:
    """Slurm does not reach the node, and not intentionally: no drain, no reboot, no plan, no person's
    DOWN. It no longer pings a node that it has switched off as well."""
    if node.drain or ("NOT_RESPONDING" not in node.state and not node.is_left_off):
        return False
    if node.is_out_by_plan_alone:
        return False
    if node.starting or node.base in {"FUTURE", "UNKNOWN"}:
        return False
    return is_empty_reason(node.reason) or slurm_kind(node.reason) == "not-responding"


def conditions(picture: Picture, slurm: SlurmSnapshot, settings: WatchSettings) -> Iterator[Condition]:
    yield from _offline(slurm, settings)
    yield from _below(slurm)
    yield from _rebooted(picture, slurm)
    yield from _waiting(slurm, settings)
    yield from _completing(picture, slurm, settings)
    yield from _held(slurm)
    yield from _controller(picture, settings)
    yield from config_drifts(picture, slurm)


# --- nodes -----------------------------------------------------------------------------------------------


def _offline(slurm: SlurmSnapshot, settings: WatchSettings) -> Iterator[Condition]:
    """One condition for the fleet or a place with many unreachable nodes at once, and one for each other
    node."""
    away = {node.name: node for node in slurm.odd_nodes if is_offline(node)}
    if not away:
        return
    # Nodes that are on fail among those that are on. Those left off add up for weeks, while others sleep and
    # wake: they count among all that may be used.
    on = [node.name for node in slurm.nodes.values() if not node.planned]
    usable = [node.name for node in slurm.nodes.values() if "MAINTENANCE" not in node.state]
    ways = ((set(away), usable), ({name for name in away if not away[name].is_left_off}, on))
    for names, among in ways:
        if is_fleet(len(names), len(among)):
            text = say("detection.fleet_offline_text", n=len(names), of=len(among))
            where, title = Component(cluster=slurm.cluster), say("detection.fleet_offline")
            yield _many(FLEET_OFFLINE, where, title, text, away, settings)
            return
    for names, among in ways:
        for place in together(names & away.keys(), among, slurm.nodes):
            text = say("detection.place_offline", n=len(place.nodes), of=place.of, place=place.words)
            theirs = {name: away.pop(name) for name in place.nodes}
            yield _many(f"{place.kind}-offline", place.root(slurm.cluster), text, text, theirs, settings)
    for name, node in sorted(away.items()):
        state = "+".join(node.state)
        yield Condition(
            NODE_OFFLINE, Component(cluster=slurm.cluster, node=name), say("detection.node_offline"),
            say("detection.node_offline_text", node=name, state=state), _offline_s(node, settings),
            node.reason_at,
        )  # fmt: skip


def _many(
    fault: str, where: Component, title: Said, text: Said, away: dict[str, SlurmNode], settings: WatchSettings
) -> Condition:
    for_s = min(_offline_s(node, settings) for node in away.values())
    return Condition(fault, where, title, text, for_s, affected=tuple(sorted(away)))


def _offline_s(node: SlurmNode, settings: WatchSettings) -> float:
    """How long it must last: 0 once Slurm says DOWN, because it has tried long enough. A single missed ping
    shows too, and must last."""
    return 0 if node.base == "DOWN" else settings.not_responding_s


def _below(slurm: SlurmSnapshot) -> Iterator[Condition]:
    """Nodes that register with less than slurm.conf says. A node that Slurm drained for it is reported as a
    drain."""
    for node in slurm.odd_nodes:
        if "INVALID_REG" not in node.state or (node.held and slurm_kind(node.reason) is not None):
            continue
        text = say("detection.below_text", node=node.name)
        if slurm_kind(node.reason) is not None:
            text = say("detection.told", head=text, text=quoted(node.reason))
        yield Condition(BELOW, Component(cluster=slurm.cluster, node=node.name), say("detection.below"), text)


#: A boot this soon after planned work or a driver update is part of that change.
CHANGE = timedelta(hours=1)


def is_planned_reboot(picture: Picture, node: SlurmNode) -> bool:
    """Slurm holds the node for a reboot that a person requested from Slurm, or that came with a person's
    change."""
    if not node.held or (node.planned and not is_only_ours(picture.slurm, node)):
        return False
    if "REBOOT_ISSUED" in node.state and not node.drain and not is_empty_reason(node.reason):
        return True  # DOWN while it boots, with the reason of the person who requested it
    kind = slurm_kind(node.reason)
    if kind == "reboot":
        return "timed out" not in node.reason
    given = picture.new_versions.get(node.name, {}).get("driver")
    changed = [at for at in (picture.changes.work_ended.get(node.name), given and given[1]) if at is not None]
    held_at = node.reason_at or min(changed, default=None)
    return kind == "rebooted" and held_at is not None and any(held_at - at <= CHANGE for at in changed)


def _rebooted(picture: Picture, slurm: SlurmSnapshot) -> Iterator[Condition]:
    """One condition for all such nodes."""
    held = [node.name for node in slurm.odd_nodes if is_planned_reboot(picture, node)]
    if held:
        listed = compact(held)
        text, title = say("detection.rebooted_text", nodes=listed), say("detection.rebooted")
        yield Condition(
            REBOOTS, Component(cluster=slurm.cluster), title, text, affected=tuple(held), news=listed
        )


# --- jobs ------------------------------------------------------------------------------------------------


def _waiting(slurm: SlurmSnapshot, settings: WatchSettings) -> Iterator[Condition]:
    """By partition and reason. A reason that the owner chose does not count."""
    longest = timedelta(hours=settings.queued_h)
    groups: dict[tuple[str, str], list[tuple[datetime, str]]] = defaultdict(list)
    for job in slurm.jobs.values():
        since = _eligible_since(job)
        if since is None or slurm.taken_at - since < longest:
            continue
        if not any(fnmatchcase(job.reason, pattern) for pattern in settings.not_waiting):
            groups[job.partition, job.reason or say("detection.no_reason")].append((since, job.id))
    for (partition, reason), waiting in sorted(groups.items()):
        waiting.sort()
        hours = (slurm.taken_at - waiting[0][0]) / timedelta(hours=1)
        title = say(
            "detection.jobs_wait",
            partition=partition or say("detection.no_partition"),
            hours=settings.queued_h,
            reason=quoted(reason),
        )
        text = say("detection.jobs_wait_text", n=len(waiting), job=waiting[0][1], hours=hours)
        fault = f"{WAITING}{partition}:{reason}"
        yield Condition(fault, Component(cluster=slurm.cluster), title, text)


def _eligible_since(job: SlurmJob) -> datetime | None:
    """Since when it could run; None if it does not wait, is held by a person, or Slurm does not report it."""
    if job.state != "PENDING" or job.held_by or "COMPLETING" in job.flags:
        return None
    return max((at for at in (job.submit_at, job.eligible_at) if at is not None), default=None)


def _completing(picture: Picture, slurm: SlurmSnapshot, settings: WatchSettings) -> Iterator[Condition]:
    """By the nodes where jobs do not finish: an epilog hangs, or a process cannot be killed."""
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
        if len(nodes) == 1:
            title = say("detection.completing_on", node=nodes[0])
        else:
            title = say("detection.completing_on_many", n=len(nodes))
        named = name_some(ids, _NAMED), name_some(nodes, _NAMED)
        text = say("detection.completing_text", count=len(ids), jobs=named[0], nodes=named[1])
        yield Condition(COMPLETING, where, title, text, since=jobs[0][0], affected=nodes, jobs=tuple(ids))


def _completing_since(picture: Picture, slurm: SlurmSnapshot) -> dict[str, datetime]:
    """Each job that is completing on some node. A requeued one shows an end in the future, and some show
    none: those count from when they were first seen completing."""
    found = {}
    for job in slurm.jobs.values():
        if "COMPLETING" in job.flags and job.nodes:
            ended = job.end_at if job.end_at is not None and job.end_at <= slurm.taken_at else None
            found[job.id] = ended or picture.completing.get(job.id, slurm.taken_at)
    picture.completing = found
    return found


def _held(slurm: SlurmSnapshot) -> Iterator[Condition]:
    """Jobs that Slurm holds because their launch failed: no one wanted that, and they would wait forever."""
    held: dict[str, list[str]] = defaultdict(list)
    for job in slurm.jobs.values():
        if job.held_by == "admin" and (
            job.why.startswith("launch failed") or job.reason == "JobHoldMaxRequeue"
        ):
            held[job.partition].append(job.id)
    for partition, ids in sorted(held.items()):
        text = say("detection.held_text", count=len(ids), jobs=name_some(ids, _NAMED))
        title = say("detection.held", partition=partition or say("detection.no_partition"))
        where = Component(cluster=slurm.cluster)
        yield Condition(f"{HELD}{partition}", where, title, text, jobs=tuple(ids))


# --- slurmctld -------------------------------------------------------------------------------------------


def _controller(picture: Picture, settings: WatchSettings) -> Iterator[Condition]:
    seen = picture.controller
    if seen is None:
        return
    where = Component(cluster=picture.cluster)
    if since := seen.since.get(Trouble.backlog):
        text = say("detection.backlog_text", requests=seen.threads or 0, messages=seen.agent_queue or 0)
        yield Condition(BACKLOG, where, say("detection.backlog"), text, settings.backlog_s, since)
    if since := seen.since.get(Trouble.accounting):
        text = say("detection.accounting_text", records=seen.dbd_queue)
        yield Condition(ACCOUNTING, where, say("detection.accounting"), text, settings.accounting_s, since)


#: Prefix; the fact and its value follow: all nodes with one old driver are one incident.
DRIFT = "drift:"
FABRIC_MANAGER = "fabric-manager-version"
#: A roll-out or a reboot changes several facts of many nodes within minutes: reported once that has settled.
SETTLED_S = 120.0
_PLAIN = re.compile(r"[^0-9A-Za-z._+-]+")


def config_drifts(picture: Picture, slurm: SlurmSnapshot) -> Iterator[Condition]:
    """One condition per fact and value that differs, with all nodes that have it; and one per fabric manager
    whose version differs from its driver's."""
    found: dict[tuple[str, str], dict[str, Reference]] = defaultdict(dict)
    if not picture.references and not any(node.facts for node in picture.nodes.values()):
        return  # only the Slurm snapshot has drivers, and there is no reference to compare them with
    for name, node in slurm.nodes.items():
        facts = picture.facts_of(name)
        if not facts:
            continue
        reference = picture.references.get(node_kind(node.gpu_model))
        if reference is not None:
            for fact, value in differences(facts, reference).items():
                found[fact, value][name] = reference
        if mismatch := _fabric_manager(slurm.cluster, name, facts):
            yield mismatch
    for (fact, value), nodes in sorted(found.items()):
        yield _config_drift(slurm.cluster, fact, value, nodes)


def _config_drift(cluster: str, fact: str, value: str, nodes: Mapping[str, Reference]) -> Condition:
    names = sorted(nodes)
    wanted = sorted({_wanted(fact, reference) for reference in nodes.values()})
    name = say(f"detection.fact_{fact}")
    text = say(
        "detection.drift_text",
        count=len(names),
        fact=name,
        value=value,
        nodes=compact(names),
        wanted=reduce(lambda first, other: joined((first, other), "or"), wanted),
    )
    return Condition(
        fault=f"{DRIFT}{fact}:{_PLAIN.sub('-', value)[:60]}",
        where=Component(cluster=cluster),
        title=say("detection.drift", fact=name, value=value, wanted=wanted[0]),
        text=text,
        for_s=SETTLED_S,
        affected=tuple(names),
        news=sha256(text.encode()).hexdigest(),
        sense=Sense.metrics,
    )


def _wanted(fact: str, reference: Reference) -> Said:
    return say(
        "detection.drift_wanted", value=reference.facts[fact], kind=reference.kind, node=reference.node
    )


def _fabric_manager(cluster: str, node: str, facts: Mapping[str, str]) -> Condition | None:
    """NVIDIA requires exactly the driver's version: with any other the GPUs get no NVLink."""
    manager, driver = facts.get("fabric_manager"), facts.get("driver")
    if manager is None or driver is None or manager == driver:
        return None
    return Condition(
        fault=FABRIC_MANAGER,
        where=Component(cluster=cluster, node=node),
        title=say("detection.fabric_manager"),
        text=say("detection.fabric_manager_text", node=node, manager=manager, driver=driver),
        for_s=SETTLED_S,
        news=f"{manager}|{driver}",
        sense=Sense.metrics,
    )


#: The Slurm snapshot is checked when its nodes changed, and otherwise this often.
LOOK = timedelta(seconds=5)
#: A lasting condition is reported again: an incident that another one explained opens once that is over.
AGAIN = timedelta(minutes=1)

_OF_CONTROLLER = frozenset({BACKLOG, ACCOUNTING})


def watch_findings(walk: WalkInput) -> list[Finding]:
    """Conditions that have lasted long enough and are due to be reported. Records in the picture since when
    each one lasts."""
    picture, settings, now = walk.picture, walk.rules.watches, walk.now
    if picture.slurm is None or not (picture.nodes_changed or is_due(picture.looked_at, LOOK, now)):
        return []
    picture.looked_at = now
    found = []
    for condition in conditions(picture, picture.slurm, settings):
        standing = picture.standing.setdefault(
            (condition.fault, condition.where), Standing(condition.since or picture.slurm.taken_at)
        )
        standing.seen_at, standing.for_s = now, condition.for_s
        if (now - standing.since).total_seconds() < condition.for_s:
            continue
        if is_due(standing.reported_at, AGAIN, now):
            found.append(_condition_finding(condition, standing.since, now))
    _forget(picture, timedelta(seconds=settings.clear_s), now)
    return found


def _forget(picture: Picture, clear: timedelta, now: datetime) -> None:
    """Drops what this look found gone for `clear`, or, while it is not reported yet, for as long as it has to
    last: short episodes add up to no long one."""
    for (fault, where), standing in list(picture.standing.items()):
        patience = clear if standing.reported_at else max(timedelta(seconds=standing.for_s), 2 * LOOK)
        if fault in _OF_CONTROLLER and picture.controller is None:
            standing.seen_at = now  # unknown whether it has ended
        elif standing.seen_at is None or now - standing.seen_at >= min(clear, patience):
            del picture.standing[fault, where]


def _condition_finding(condition: Condition, since: datetime, now: datetime) -> Finding:
    where = condition.where
    identity = f"watch|{condition.fault}|{where}|{since.isoformat()}|{condition.news}"
    evidence = new_evidence(identity, where, since, condition.text, now, condition.sense)
    return Finding.from_evidence(
        evidence,
        rule="",
        fault=condition.fault,
        fault_class=FaultClass.informational,
        title=condition.title,
        confidence=1.0,
        jobs=condition.jobs,
        affected=tuple(
            Component(cluster=where.cluster, node=name) for name in condition.affected if name != where.node
        ),
    )
