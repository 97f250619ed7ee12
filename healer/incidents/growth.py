"""How findings make an incident grow. Pure: each function returns the changed incident.

Two senses that fail independently are worth more than one.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence, Set
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from healer.model import (
    EVIDENCE_FIRST,
    EVIDENCE_KEPT,
    HARDWARE,
    Component,
    Evidence,
    FaultClass,
    Finding,
    Incident,
    IncidentState,
    RuledOut,
    Sense,
    SenseReport,
    Verdict,
)
from healer.model.faults import Trait, fault_is
from healer.text import Said, capital, joined, say

#: Senses that conclude from others: only the first of them counts, where no other sense reports.
CONCLUDED = (Sense.alert, Sense.history)
#: Senses that compare measurements, or conclude from them; the others report events.
MEASURED = frozenset({Sense.metrics, Sense.step_times, Sense.forest, Sense.alert})
#: Older reports do not count for now. A lasting condition is reported again every 5 min.
AGREE_WITHIN = timedelta(minutes=15)
#: How long a report of a node's own check counts for agreement with another sense.
CHECK_LASTS = timedelta(days=1)
#: A tick over the fleet that is older says nothing about now.
LOOK_LASTS = timedelta(seconds=60)
#: The most reports that an incident keeps: one per sense and GPU, or node as a whole.
_HEARD_KEPT = 64


def independent_senses(senses: Collection[Sense]) -> tuple[Sense, ...]:
    """The senses that count: those that fail independently, in the order of `Sense`."""
    direct = tuple(sense for sense in Sense if sense in senses and sense not in CONCLUDED)
    return direct or tuple(sense for sense in CONCLUDED if sense in senses)[:1]


def add_reports(incident: Incident, finding: Finding) -> tuple[SenseReport, ...]:
    """The last report of each sense with this finding's; only reports about the root's own node count."""
    of_node = (evidence for evidence in finding.evidence if evidence.component.node == incident.root.node)
    more = [
        SenseReport(sense=evidence.sense, at=finding.arrived_at, part=named_part(evidence.component))
        for evidence in of_node
        if evidence.sense is not Sense.hook or finding.arrived_at - evidence.at <= CHECK_LASTS
    ]
    return newest_reports((*incident.heard, *more))


def newest_reports(heard: Iterable[SenseReport]) -> tuple[SenseReport, ...]:
    """The last report of each sense about each part."""
    last: dict[tuple[Sense, str], SenseReport] = {}
    for report in heard:
        earlier = last.get((report.sense, report.part))
        if earlier is None or report.at > earlier.at:
            last[report.sense, report.part] = report
    kept = sorted(last.values(), key=lambda report: (report.at, report.sense, report.part))
    return tuple(kept[-_HEARD_KEPT:])


def named_part(where: Component) -> str:
    return str(where.gpu) if where.gpu is not None else where.pci or ""


def senses_of(incident: Incident, now: datetime) -> tuple[Sense, ...]:
    """The senses that recently reported the same part of the root's own node, in the order of `Sense`.

    Those that name a GPU have to name the same one; one that names none agrees with any. An alert counts only
    where no other sense reports: healer mostly reads the metric or line itself, and the same figure twice is
    no second sense. The same holds for healer's own history.
    """
    fresh = _counted(_fresh(incident, now))
    found: set[Sense] = set()
    for part in sorted({report.part for report in fresh}):
        agreed = {report.sense for report in fresh if report.part in ("", part)}
        found = max(found, agreed, key=len)
    return tuple(sense for sense in Sense if sense in found)


def _fresh(incident: Incident, now: datetime) -> list[SenseReport]:
    if incident.root.node is None:
        return []
    return [report for report in incident.heard if now - report.at <= AGREE_WITHIN]


def _counted(heard: list[SenseReport]) -> list[SenseReport]:
    counted = independent_senses({report.sense for report in heard})
    return [report for report in heard if report.sense in counted]


def confirm_after_work(incident: Incident, finding: Finding, told_at: datetime, now: datetime) -> Incident:
    """The incident as seen again if the finding, of time `told_at` by our clock, shows that the fault
    outlived the planned work under which it arose. An event is new then; a measured level was there
    before."""
    if incident.waits_since is None or not is_proof(incident, finding) or told_at <= incident.waits_since:
        return incident
    news = finding.evidence[0].sense not in MEASURED
    out = incident.node_was_out and not news
    return msgspec.structs.replace(incident, waits_since=None, seen_again=now, node_was_out=out)


def is_proof(incident: Incident, finding: Finding) -> bool:
    """Whether the finding is of the same fault, or of a worse one, at the same part."""
    same = finding.fault == incident.fault or rank_of_finding(finding) >= rank_of(incident)
    parts = {named_part(incident.root), named_part(finding.component)} - {""}
    return same and len(parts) < 2


def last_heard(incident: Incident) -> datetime:
    return max((report.at for report in incident.heard), default=incident.opened)


def senses_text(senses: tuple[Sense, ...]) -> Said:
    """`metrics and step times`"""
    return joined((say(f"incidents.sense_{sense}") for sense in senses), "and")


def why_too_few_senses(incident: Incident, needed: int, now: datetime) -> Said:
    """Why nothing is done yet."""
    fresh = {report.sense for report in _counted(_fresh(incident, now))}
    reporting = tuple(sense for sense in Sense if sense in fresh)
    node, senses = incident.root.node, senses_text(reporting)
    agree = say("incidents.second_sense") if needed == 2 else say("incidents.more_senses", n=needed)
    if not reporting:
        return say("incidents.no_sense", node=node, agree=agree)
    if len(reporting) < needed:
        return say("incidents.few_senses", senses=senses, node=node, agree=agree)
    return say("incidents.other_gpus", senses=capital(senses), node=node, agree=agree)


def has_ended_work(incident: Incident) -> bool:
    """A fatal fault was reported, which has ended the work on its GPU. A measurement is only a level."""
    return any(evidence.fatal for evidence in incident.evidence)


def why_not_looked(incident: Incident, now: datetime) -> Said | None:
    """Why it is unknown whether the cause is still present; None for faults that are not measured."""
    if incident.ticked_at is None or now - incident.ticked_at <= LOOK_LASTS:
        return None
    return say("incidents.looked_last", time=f"{incident.ticked_at:%H:%M:%S}")


_RANK = {
    FaultClass.informational: 0,
    FaultClass.unknown: 1,
    FaultClass.application: 1,
    FaultClass.degraded: 2,
    FaultClass.fatal: 4,
}
#: Rank of a measured fatal level: below a reported fatal fault, which has ended work.
_MEASURED_FATAL = 3


def mark_claims(finding: Finding) -> Finding:
    """The finding with its evidence marked by what it claims: fatal, if a fatal fault was reported, which has
    ended the work on the GPU; and that its component surely cannot work."""
    fatal = finding.fault_class is FaultClass.fatal and finding.evidence[0].sense not in MEASURED
    if not (fatal or finding.unusable):
        return finding
    claims = tuple(
        msgspec.structs.replace(evidence, fatal=fatal, unusable=finding.unusable)
        for evidence in finding.evidence
    )
    return msgspec.structs.replace(finding, evidence=claims)


def rank_of_finding(finding: Finding) -> int:
    measured = finding.fault_class is FaultClass.fatal and finding.evidence[0].sense in MEASURED
    return _MEASURED_FATAL if measured else _RANK[finding.fault_class]


def rank_of(incident: Incident) -> int:
    opened_by = incident.evidence[0].sense if incident.evidence else None
    measured = opened_by in MEASURED and not has_ended_work(incident)
    fatal = incident.fault_class is FaultClass.fatal
    return _MEASURED_FATAL if fatal and measured else _RANK[incident.fault_class]


#: The most ruled-out entries of an incident; a person reads the first few.
SET_ASIDE_KEPT = 20


def add_ruled_out(incident: Incident, new: RuledOut) -> Incident:
    """The incident with `new` added; a repeat (by `what`) is only counted.

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


#: A root explains teardown lines and application faults of its job this long before and after. For this long
#: an incident that no person has decided on may also find its root elsewhere.
NEAR = timedelta(seconds=30)
#: Peers lose packets of a broken link for so long.
PACKETS_LOST_FOR = timedelta(seconds=60)
#: What a sender gave no time for is dated by its arrival, and may be this much older (our figure).
DATED_LATE = timedelta(minutes=2)
#: The most parts that an incident lists; later ones are only counted.
AFFECTED_KEPT = 1000

_VERDICTS = {
    FaultClass.fatal: Verdict.isolate,
    FaultClass.degraded: Verdict.suspect,
    FaultClass.unknown: Verdict.watch,
}


def is_untouched(incident: Incident) -> bool:
    """No person and no run has acted on it: it may become another incident."""
    return is_idle(incident) and not (incident.run or incident.run_count)


def is_idle(incident: Incident) -> bool:
    """No person has acted on it, and nothing is done: at most a plan waits for its moment."""
    touched = incident.acknowledged_by or incident.stopped_by or incident.review or incident.drained_at
    return incident.state is IncidentState.open and not touched and not incident.held_by


def is_near(incident: Incident, finding: Finding) -> bool:
    """Near in time by arrival or by the senders' clocks: those may differ, and old lines arrive together."""
    reported_at = incident.evidence[0].at if incident.evidence else incident.opened
    return abs(finding.arrived_at - incident.opened) <= NEAR or abs(finding.at - reported_at) <= NEAR


class Moment(NamedTuple):
    """An event by its sender's clock, and its arrival."""

    at: datetime
    arrived_at: datetime

    @property
    def dated(self) -> bool:
        """Its sender gave its time; else it is dated by its arrival."""
        return self.at != self.arrived_at


def moment_of_evidence(evidence: Evidence) -> Moment:
    return Moment(evidence.at, evidence.arrived_at or evidence.at)


def apart(root: Moment, effect: Moment) -> timedelta:
    """How far the two events surely are from each other, where one of them may have no time of its own."""
    first, last = sorted((root, effect))
    unsure = first.dated and not last.dated
    return max(last.at - first.at - (DATED_LATE if unsure else timedelta(0)), timedelta(0))


def lasts_for(root: str, effect: str) -> timedelta:
    """For how long such an effect of such a root is seen."""
    lost = fault_is(effect, Trait.loses_packets) and fault_is(root, Trait.breaks_links)
    return PACKETS_LOST_FOR if lost else NEAR


def is_effect_of(incident: Incident, finding: Finding) -> bool:
    """Whether the finding's event is near one of the incident's own faults by the senders' clocks."""
    effect = Moment(finding.at, finding.arrived_at)
    roots = (*incident.evidence[:1], *(evidence for evidence in incident.evidence[1:] if evidence.fatal))
    within = lasts_for(incident.fault, finding.fault)
    return any(apart(moment_of_evidence(root), effect) <= within for root in roots)


def verdicts(finding: Finding, *, asks: bool) -> dict[str, Verdict]:
    """Node -> verdict, for each node of the finding. `asks`: its rule has a plan for it, or a person is
    asked."""
    verdict = _VERDICTS.get(finding.fault_class)
    if verdict is Verdict.suspect and not asks:
        verdict = Verdict.watch  # not bad enough to act
    where = finding.component
    # Nodes behind a device may be affected, but nothing was reported about them.
    affected = () if where.device is not None else finding.affected
    named = {where.node} | {part.node for part in affected}
    return {name: verdict for name in sorted(n for n in named if n) if verdict is not None}


def limit_evidence(evidence: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
    """The first and the newest evidence, as the return of the node depends on the last.

    The newest of a sense without other evidence stays too, so that its agreement is kept; a relay's text
    never takes the place of the node's own word.
    """
    if len(evidence) <= EVIDENCE_KEPT:
        return evidence
    first, last = evidence[:EVIDENCE_FIRST], evidence[EVIDENCE_FIRST - EVIDENCE_KEPT :]
    heard = {_claim_of(item) for item in (*first, *last)}
    between = evidence[EVIDENCE_FIRST : EVIDENCE_FIRST - EVIDENCE_KEPT]
    lone = {_claim_of(item): item for item in between if _claim_of(item) not in heard}
    return (*first, *lone.values(), *last)


def _claim_of(item: Evidence) -> tuple[Sense, bool, bool, bool]:
    return item.sense, item.fatal, item.unusable, bool(item.relayed_by)


def add_parts(incident: Incident, more: Sequence[Component]) -> tuple[Component, ...]:
    """The parts of the incident with these added. Jobs are no parts: they are in `jobs_hit`."""
    room = AFFECTED_KEPT - len(incident.affected)
    if room <= 0:
        return incident.affected
    listed = {incident.root, *incident.affected}
    new = [part for part in dict.fromkeys(more) if part not in listed and (part.node or not part.job)]
    return (*incident.affected, *new[:room])


def add_evidence_of(root: Incident, others: Sequence[Incident]) -> Incident:
    """The root with evidence, senses and parts of the others, which are parts of it now."""
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
    """The incident under the root of `new`, which a finding would else have opened and which explains it. It
    keeps its id and opening time; its settling time starts again."""
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


def follow_finding(incident: Incident, finding: Finding, jobs: Set[str], now: datetime) -> Incident:
    """The incident with a finding about a part that it covers."""
    digests = {evidence.digest for evidence in incident.evidence}
    fresh = tuple(evidence for evidence in finding.evidence if evidence.digest not in digests)
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
    """A merged incident as it was before, to be decided again."""
    return msgspec.structs.replace(
        incident,
        state=IncidentState.open,
        merged_into=None,
        closed=None,
        closed_why=None,
        decision_key="",
        updated=now,
    )


def count_findings(incident: Incident, findings: Sequence[Finding], now: datetime) -> Incident:
    """The incident with findings that mean nothing by themselves, counted by fault."""
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


#: Failing links of one NVSwitch that make it a fault of the switch.
SWITCH_LINKS = 2
#: GPUs of one node with the same fault that make it a fault of the node: its board, power or driver.
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
