"""How an incident grows: evidence that comes late, what it covers, a root that moves. Pure: each gives the
incident as it is then."""

from collections.abc import Sequence, Set
from datetime import datetime, timedelta

import msgspec

from healer.incidents.aside import with_aside
from healer.incidents.senses import newest
from healer.model import (
    EVIDENCE_FIRST,
    EVIDENCE_KEPT,
    Component,
    Evidence,
    FaultClass,
    Finding,
    Incident,
    IncidentState,
    SetAside,
    Verdict,
)

#: A root explains teardown lines and application faults of its job this long before and after; and for so
#: long an incident that nobody has decided on may find its root elsewhere.
NEAR = timedelta(seconds=30)
#: Parts that an incident lists; what comes later is only counted.
AFFECTED_KEPT = 1000

_VERDICTS = {
    FaultClass.fatal: Verdict.isolate,
    FaultClass.degraded: Verdict.suspect,
    FaultClass.unknown: Verdict.watch,
}


def is_untouched(incident: Incident) -> bool:
    """Nobody has said anything on it, and healer has not tried to do anything: it may become another one."""
    told = incident.acknowledged_by or incident.stopped_by or incident.review or incident.drained_at
    decided = incident.run or incident.run_count or incident.held_by
    return incident.state is IncidentState.open and not told and not decided


def is_near(incident: Incident, finding: Finding) -> bool:
    """Near in time by arrival or by the senders' clocks: those may differ, and old lines come together."""
    told = incident.evidence[0].at if incident.evidence else incident.opened
    return abs(finding.arrived_at - incident.opened) <= NEAR or abs(finding.at - told) <= NEAR


def verdicts(finding: Finding) -> dict[str, Verdict]:
    """Of each node that the finding speaks of."""
    verdict = _VERDICTS.get(finding.fault_class)
    where = finding.component
    # What a device stands before may be hit; nothing was told of those nodes themselves.
    affected = () if where.device is not None else finding.affected
    named = {where.node} | {one.node for one in affected}
    return {name: verdict for name in sorted(n for n in named if n) if verdict is not None}


def kept(evidence: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
    """How it began and the newest: whoever returns the node asks what came last.

    Of a sense that told nothing else its newest stays too: that it agreed must not be forgotten.
    """
    if len(evidence) <= EVIDENCE_KEPT:
        return evidence
    first, last = evidence[:EVIDENCE_FIRST], evidence[EVIDENCE_FIRST - EVIDENCE_KEPT :]
    heard = {(one.sense, one.fatal) for one in (*first, *last)}
    between = evidence[EVIDENCE_FIRST : EVIDENCE_FIRST - EVIDENCE_KEPT]
    lone = {(one.sense, one.fatal): one for one in between if (one.sense, one.fatal) not in heard}
    return (*first, *lone.values(), *last)


def with_parts(incident: Incident, more: Sequence[Component]) -> tuple[Component, ...]:
    """What the incident covers, with these. A job is no part of the cluster: it stands among the jobs hit."""
    room = AFFECTED_KEPT - len(incident.affected)
    if room <= 0:
        return incident.affected
    known = {incident.root, *incident.affected}
    new = [one for one in dict.fromkeys(more) if one not in known and (one.node or not one.job)]
    return (*incident.affected, *new[:room])


def with_evidence_of(root: Incident, others: Sequence[Incident]) -> Incident:
    """What was told of the others speaks for `root`: other senses, maybe. They are parts of it now."""
    known = {one.digest for one in root.evidence}
    more = {one.digest: one for other in others for one in other.evidence if one.digest not in known}
    parts = [part for other in others for part in (other.root, *other.affected)]
    return msgspec.structs.replace(
        root,
        evidence=kept((*root.evidence[:1], *more.values(), *root.evidence[1:])),
        evidence_count=root.evidence_count + sum(other.evidence_count for other in others),
        affected=with_parts(root, parts),
        heard=newest((*root.heard, *(one for other in others for one in other.heard))),
        counted=_sum([root.counted, *(other.counted for other in others)]),
    )


def moved(incident: Incident, anew: Incident) -> Incident:
    """The incident under the root of `anew`, which a finding would else have opened: that explains what was
    told so far. The id stays, and when it opened; its settling time begins anew."""
    own = msgspec.structs.replace(
        anew,
        id=incident.id,
        opened=incident.opened,
        nodes={**incident.nodes, **anew.nodes},
        hit=incident.hit,
        set_aside=incident.set_aside,
    )
    why = f"was told first, and follows from: {anew.title}"
    aside = SetAside(at=incident.opened, what=incident.title, why=why, component=incident.root)
    return with_aside(with_evidence_of(own, [incident]), aside)


def over(incident: Incident, parts: Sequence[Incident], now: datetime) -> Incident:
    """An incident of what they share, with these parts: they need nothing of their own."""
    nodes = {one.root.node: Verdict.watch for one in parts if one.root.node}
    jobs = {job for one in parts for job in one.jobs_hit}
    return msgspec.structs.replace(
        with_evidence_of(incident, parts),
        nodes=dict(sorted((nodes | incident.nodes).items())),
        jobs_hit=tuple(sorted({*incident.jobs_hit, *jobs})),
        updated=now,
    )


def followed(incident: Incident, finding: Finding, jobs: Set[str], now: datetime) -> Incident:
    """A finding about a part of what the incident covers."""
    known = {one.digest for one in incident.evidence}
    fresh = tuple(one for one in finding.evidence if one.digest not in known)
    if not fresh:
        return incident
    node = finding.component.node
    nodes = incident.nodes if node is None else {node: Verdict.watch} | incident.nodes
    return msgspec.structs.replace(
        incident,
        evidence=kept((*incident.evidence, *fresh)),
        evidence_count=incident.evidence_count + len(fresh),
        affected=with_parts(incident, (finding.component,)),
        nodes=dict(sorted(nodes.items())),
        jobs_hit=tuple(sorted({*incident.jobs_hit, *jobs})),
        updated=now,
    )


def ended(incident: Incident, why: str, now: datetime) -> Incident:
    return msgspec.structs.replace(
        incident, state=IncidentState.resolved, closed=now, updated=now, closed_why=why
    )


def merged(incident: Incident, root: Incident, now: datetime) -> Incident:
    why = f"explained by {root.short_id}: {root.title}"
    return msgspec.structs.replace(ended(incident, why, now), merged_into=root.id)


def own_again(incident: Incident, now: datetime) -> Incident:
    """What was merged, as it stood before: it is decided anew."""
    return msgspec.structs.replace(
        incident,
        state=IncidentState.open,
        merged_into=None,
        closed=None,
        closed_why=None,
        decision_key="",
        updated=now,
    )


def counting(incident: Incident, findings: Sequence[Finding], now: datetime) -> Incident:
    """Findings that mean nothing of their own beside the incident: counted by fault."""
    told: dict[str, int] = {}
    for one in findings:
        told[one.fault] = told.get(one.fault, 0) + 1
    return msgspec.structs.replace(
        incident,
        counted=_sum([incident.counted, told]),
        affected=with_parts(incident, [one.component for one in findings]),
        updated=now,
    )


def _sum(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in counts:
        for fault, count in one.items():
            total[fault] = total.get(fault, 0) + count
    return total
