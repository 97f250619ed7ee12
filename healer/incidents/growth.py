"""How findings extend an incident. Pure: each function returns the changed incident."""

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from healer.incidents.certainty import MEASURED, is_proof, limit_evidence, newest_reports
from healer.model import (
    HARDWARE,
    Component,
    Evidence,
    FaultClass,
    Finding,
    Incident,
    IncidentState,
    RuledOut,
    Verdict,
)
from healer.model.faults import Trait, fault_is
from healer.text import Said, say


def confirm_after_work(
    incident: Incident, finding: Finding, found_at: datetime, now: datetime, *, of_boot: bool
) -> Incident:
    """The incident, marked as seen again if the finding, dated `found_at` by our clock, shows that the fault
    outlived the planned work under which it arose, or the boot after which it waits. An event is new in that
    case; a measured level may date from before.

    `of_boot`: the fault was reported in the present boot. Such a line is often the boot's first, and written
    before anything else showed the boot."""
    if incident.waits_since is None or not is_proof(incident, finding):
        return incident
    if found_at <= incident.waits_since and (incident.plan or not of_boot):
        return incident
    news = finding.evidence[0].sense not in MEASURED
    out = incident.node_was_out and not news
    return msgspec.structs.replace(incident, waits_since=None, seen_again=now, node_was_out=out)


#: The most ruled-out entries of an incident; a person reads only the first few.
SET_ASIDE_KEPT = 20


def add_ruled_out(incident: Incident, new: RuledOut) -> Incident:
    """The incident with `new` added; a repeat (same `what`) only increases the count.

    An entry for several components names none of them.
    """
    entries = {entry.what: entry for entry in incident.set_aside}
    before = entries.get(new.what)
    if before is None:
        if len(entries) >= SET_ASIDE_KEPT:
            return incident
        return msgspec.structs.replace(incident, set_aside=(*incident.set_aside, new))
    entries[new.what] = msgspec.structs.replace(
        before,
        count=before.count + new.count,
        component=before.component if before.component == new.component else None,
    )
    return msgspec.structs.replace(incident, set_aside=tuple(entries.values()))


#: A root explains teardown lines and application faults of its job this long before and after. For the same
#: time, an incident that no person has decided on may still find its root elsewhere.
NEAR = timedelta(seconds=30)
#: How long peers lose packets of a broken link.
PACKETS_LOST_FOR = timedelta(seconds=60)
#: An event without a sender's time is dated by its arrival, and may be this much older (our estimate).
DATED_LATE = timedelta(minutes=2)
#: The most parts that an incident lists; further ones are only counted.
AFFECTED_KEPT = 1000


def is_untouched(incident: Incident) -> bool:
    """No person and no run has acted on it, so it may become part of another incident."""
    return is_idle(incident) and not (incident.run or incident.run_count)


def is_idle(incident: Incident) -> bool:
    """No person has acted on it, and no run acts: at most a plan waits for its moment."""
    touched = incident.acknowledged_by or incident.stopped_by or incident.review or incident.drained_at
    return incident.state is IncidentState.open and not touched and not incident.held_by


def is_near(incident: Incident, finding: Finding) -> bool:
    """Near in time by arrival or by the senders' clocks: the clocks may differ, and old lines arrive
    together."""
    reported_at = incident.evidence[0].at if incident.evidence else incident.opened
    return abs(finding.arrived_at - incident.opened) <= NEAR or abs(finding.at - reported_at) <= NEAR


class Moment(NamedTuple):
    """An event by its sender's clock, and its arrival."""

    at: datetime
    arrived_at: datetime

    @property
    def dated(self) -> bool:
        """The sender gave a time; otherwise the event is dated by its arrival."""
        return self.at != self.arrived_at


def moment_of_evidence(evidence: Evidence) -> Moment:
    return Moment(evidence.at, evidence.arrived_at or evidence.at)


def apart(root: Moment, effect: Moment) -> timedelta:
    """The least time between the two events, allowing for one without a time of its own."""
    first, last = sorted((root, effect))
    unsure = first.dated and not last.dated
    return max(last.at - first.at - (DATED_LATE if unsure else timedelta(0)), timedelta(0))


def lasts_for(root: str, effect: str) -> timedelta:
    """How long after such a root such an effect is seen."""
    lost = fault_is(effect, Trait.loses_packets) and fault_is(root, Trait.breaks_links)
    return PACKETS_LOST_FOR if lost else NEAR


def is_effect_of(incident: Incident, finding: Finding) -> bool:
    """Whether the finding's event is near one of the incident's own faults by the senders' clocks."""
    effect = Moment(finding.at, finding.arrived_at)
    roots = (*incident.evidence[:1], *(evidence for evidence in incident.evidence[1:] if evidence.fatal))
    within = lasts_for(incident.fault, finding.fault)
    return any(apart(moment_of_evidence(root), effect) <= within for root in roots)


def add_parts(incident: Incident, more: Sequence[Component]) -> tuple[Component, ...]:
    """The incident's parts, with these added. Jobs are not parts: they are in `jobs_hit`."""
    room = AFFECTED_KEPT - len(incident.affected)
    if room <= 0:
        return incident.affected
    listed = {incident.root, *incident.affected}
    new = [part for part in dict.fromkeys(more) if part not in listed and (part.node or not part.job)]
    return (*incident.affected, *new[:room])


def add_evidence_of(root: Incident, others: Sequence[Incident]) -> Incident:
    """The root with evidence, senses and parts of the others, which are its parts now."""
    digests = {evidence.digest for evidence in root.evidence}
    more = {
        evidence.digest: evidence
        for other in others
        for evidence in other.evidence
        if evidence.digest not in digests
    }
    parts = [part for other in others for part in (other.root, *other.affected)]
    return msgspec.structs.replace(
        root,
        evidence=limit_evidence((*root.evidence[:1], *more.values(), *root.evidence[1:])),
        evidence_count=root.evidence_count + sum(other.evidence_count for other in others),
        affected=add_parts(root, parts),
        heard=newest_reports((*root.heard, *(report for other in others for report in other.heard))),
        counted=_sum([root.counted, *(other.counted for other in others)]),
    )


def move_root(incident: Incident, new: Incident) -> Incident:
    """The incident, moved under the root of `new`, which explains it and which a finding would otherwise have
    opened. It keeps its id and opening time; its settling time restarts."""
    moved = msgspec.structs.replace(
        new,
        id=incident.id,
        opened=incident.opened,
        nodes={**incident.nodes, **new.nodes},
        hit=incident.hit,
        set_aside=incident.set_aside,
    )
    why = say("incidents.told_first", title=new.title)
    ruled_out = RuledOut(at=incident.opened, what=incident.title, why=why, component=incident.root)
    return add_ruled_out(add_evidence_of(moved, [incident]), ruled_out)


def jobs_of_all(*hit: Iterable[str]) -> tuple[str, ...]:
    """The jobs of these lists, each once."""
    return tuple(sorted({job for jobs in hit for job in jobs}))


def cover_parts(incident: Incident, parts: Sequence[Incident], now: datetime) -> Incident:
    """The incident of a shared place with these parts, which need no incidents of their own."""
    nodes = {part.root.node: Verdict.watch for part in parts if part.root.node}
    return msgspec.structs.replace(
        add_evidence_of(incident, parts),
        nodes=dict(sorted((nodes | incident.nodes).items())),
        jobs_hit=jobs_of_all(incident.jobs_hit, *(part.jobs_hit for part in parts)),
        updated=now,
    )


def fresh_evidence(incident: Incident, finding: Finding) -> tuple[Evidence, ...]:
    """The finding's evidence that the incident does not have yet."""
    digests = {evidence.digest for evidence in incident.evidence}
    return tuple(evidence for evidence in finding.evidence if evidence.digest not in digests)


def follow_finding(incident: Incident, finding: Finding, jobs: Set[str], now: datetime) -> Incident:
    """The incident with a finding about a part that it covers."""
    fresh = fresh_evidence(incident, finding)
    if not fresh:
        return incident
    node = finding.component.node
    nodes = incident.nodes if node is None else {node: Verdict.watch} | incident.nodes
    return msgspec.structs.replace(
        incident,
        evidence=limit_evidence((*incident.evidence, *fresh)),
        evidence_count=incident.evidence_count + len(fresh),
        affected=add_parts(incident, (finding.component,)),
        nodes=dict(sorted(nodes.items())),
        jobs_hit=jobs_of_all(incident.jobs_hit, jobs),
        updated=now,
    )


def end_incident(incident: Incident, why: Said, now: datetime) -> Incident:
    return msgspec.structs.replace(
        incident, state=IncidentState.resolved, closed=now, updated=now, closed_why=why
    )


def merge_into(incident: Incident, root: Incident, now: datetime) -> Incident:
    why = say("incidents.explained", incident=root.short_id, title=root.title)
    return msgspec.structs.replace(end_incident(incident, why, now), merged_into=root.id)


def reopen_merged(incident: Incident, now: datetime) -> Incident:
    """A merged incident restored to its earlier form, so that it is decided and watched again."""
    return msgspec.structs.replace(
        incident,
        state=IncidentState.open,
        merged_into=None,
        closed=None,
        closed_why=None,
        decision_key="",
        acknowledged_by=None,
        reopened_at=now,
        updated=now,
    )


def count_findings(incident: Incident, findings: Sequence[Finding], now: datetime) -> Incident:
    """The incident with these findings, which mean nothing by themselves, counted by fault."""
    return msgspec.structs.replace(
        incident,
        counted=_sum([incident.counted, Counter(finding.fault for finding in findings)]),
        affected=add_parts(incident, [finding.component for finding in findings]),
        updated=now,
    )


def _sum(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for count in counts:
        total.update(count)
    return dict(total)


#: This many failing links of one NVSwitch make it a fault of the switch.
SWITCH_LINKS = 2
#: This many GPUs of one node with the same fault make it a fault of the node: its board, power or driver.
NODE_GPUS = 4


def widen_root(incident: Incident, finding: Finding) -> Incident:
    """The incident with a root that explains all of its evidence; the finding has just joined."""
    if not is_untouched(incident):
        return incident
    root = _job(incident, finding) or _nvswitch(incident, finding) or _node(incident, finding)
    if root is None or root == incident.root:
        return incident
    before = incident.root
    affected = tuple(part for part in incident.affected if part != root)
    moved = msgspec.structs.replace(incident, root=root, affected=affected)
    return msgspec.structs.replace(moved, affected=add_parts(moved, (before,)))


def _job(incident: Incident, finding: Finding) -> Component | None:
    """The job, if its processes fail on several nodes or GPUs: then it is the job's fault."""
    if incident.fault_class is not FaultClass.application or len(incident.jobs_hit) != 1:
        return None
    root, where = incident.root, finding.component
    if root.node is None or where.node is None:
        return None
    if where.node == root.node and None in (root.pci, where.pci):
        return None
    if (where.node, where.pci) == (root.node, root.pci):
        return None
    return Component(cluster=incident.cluster, job=incident.jobs_hit[0])


def _node(incident: Incident, finding: Finding) -> Component | None:
    """The node, if many of its GPUs have the same kernel line."""
    where, root = finding.component, incident.root
    same = finding.fault == incident.fault and where.node is not None and where.node == root.node
    if not same or incident.fault_class not in HARDWARE or root.pci is None or root.switch is not None:
        return None
    components = (evidence.component for evidence in incident.evidence if evidence.line)
    if (
        len({component.pci for component in components if component.node == root.node and component.pci})
        < NODE_GPUS
    ):
        return None
    return Component(cluster=incident.cluster, node=root.node)


def _nvswitch(incident: Incident, finding: Finding) -> Component | None:
    """The NVSwitch, if several of its links fail."""
    where = finding.component
    if where.switch is None or where.node is None or where.node != incident.root.node:
        return None
    components = (evidence.component for evidence in incident.evidence)
    links = {
        component.link
        for component in components
        if component.switch == where.switch and component.link is not None
    }
    if len(links) < SWITCH_LINKS:
        return None
    return Component(cluster=where.cluster, node=where.node, pci=where.pci, switch=where.switch)
