"""Findings -> incidents: by node, by job, by what they share."""

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from datetime import datetime, timedelta

import msgspec

from healer.detection import rule_for
from healer.detection.slurm_conditions import FLEET_OFFLINE, OFFLINE, SWITCH_OFFLINE
from healer.detection.slurm_watch import each_its_own
from healer.incidents.identity import incident_id
from healer.incidents.jobs import crashed_among, jobs_of
from healer.incidents.open_index import OpenIndex
from healer.incidents.rank import marked, rank_of, rank_told
from healer.incidents.senses import MEASURED, heard_with, newest
from healer.model import (
    EVIDENCE_FIRST,
    EVIDENCE_KEPT,
    REMEDY_LADDER,
    Component,
    Evidence,
    FaultClass,
    Finding,
    Incident,
    IncidentState,
    Mode,
    Remedy,
    Rule,
    Ruleset,
    Severity,
    Verdict,
)
from healer.model.reasons import is_ours
from healer.observations import Picture

#: A root explains teardown lines and application faults of its job this long before and after.
JOB_WINDOW = timedelta(seconds=30)

#: Parts that an incident lists; what comes later is only counted.
AFFECTED_KEPT = 1000
#: What nodes share, or what is worse news of a node, and which faults of its nodes it explains.
_SILENCE = frozenset({"sender-silent", "node-silent"})
_EXPLAINED_BY = {
    "switch-silent": _SILENCE,
    "fleet-silent": _SILENCE,
    "node-silent": frozenset({OFFLINE, "sender-silent"}),
    SWITCH_OFFLINE: frozenset({OFFLINE}),
    FLEET_OFFLINE: frozenset({OFFLINE, SWITCH_OFFLINE}),
}
#: They are about every node, whichever they name.
_WHOLE_FLEET = frozenset({"fleet-silent", FLEET_OFFLINE})
#: A job that is slow as a whole: told of no node, and explained by any node of its that is known to be bad.
_JOB_SLOW = "job-slow"
#: So many pieces of one sense stand beside an incident that they did not open.
BESIDE_KEPT = 10
#: What a model thinks unusual is evidence beside a fault, and no fault of its own.
_UNUSUAL = "unusual-node"
_HARDWARE = frozenset({FaultClass.fatal, FaultClass.degraded})


class Correlator:
    """One pass: the open incidents, changed by each finding in turn. `changed` holds what must be saved.

    `find` gives any incident by its id, also one that is over for long: its evidence opens nothing again.
    """

    def __init__(
        self,
        rules: Ruleset,
        incidents: Sequence[Incident],
        picture: Picture,
        now: datetime,
        find: Callable[[str], Incident | None] = lambda _: None,
    ) -> None:
        self.rules, self.picture, self.now, self.find = rules, picture, now, find
        self.by_id: dict[str, Incident] = {}
        self._index = OpenIndex()
        #: Modes of rules that were set while running.
        self.modes: Mapping[str, Mode] = {}
        #: Who is hit where, by this pass's one picture of Slurm.
        self._hit: dict[tuple[Component, bool], frozenset[str]] = {}
        for one in incidents:
            self._keep(one)
        self.changed: dict[str, Incident] = {}
        self.placed: list[tuple[str, Finding]] = []

    def take_all(self, findings: Sequence[Finding]) -> None:
        """Puts each finding where it belongs. Roots first, so that what they explain finds them."""
        for finding in sorted(findings, key=lambda one: (one.beside, -rank_told(one), one.teardown)):
            self.take(marked(finding))

    def put(self, incident: Incident) -> None:
        self._keep(incident)
        self.changed[incident.id] = incident

    def _keep(self, incident: Incident) -> None:
        self._index.put(self.by_id.get(incident.id), incident)
        self.by_id[incident.id] = incident

    def take(self, finding: Finding) -> None:
        if finding.beside:
            self._stand_beside(finding)
            return
        if finding.teardown or finding.fault_class is FaultClass.application:
            if root := self._root_in_job(finding):
                self._count(root, finding)
                return
            if finding.teardown:
                self.picture.teardowns.append(finding)
                return
        if finding.fault == _JOB_SLOW and (root := self._bad_node_of(finding)):
            self._count(root, finding)
            return
        if known := self._same_cause(finding):
            self._join(known, finding)
            return
        self._open(finding)

    # --- finding its incident ---------------------------------------------------------------------------

    def _open_incidents(self) -> list[Incident]:
        return [one for one in self.by_id.values() if one.is_open]

    def _at(self, node: str | None, jobs: Collection[str], root: Component | None = None) -> list[Incident]:
        """The open incidents of this node, of these jobs or of exactly this place, the oldest first."""
        return [self.by_id[name] for name in self._index.find(node, jobs, root)]

    def _root_in_job(self, finding: Finding) -> Incident | None:
        """An open hardware incident in a job that the finding is about, near in time."""
        for one in self._at(finding.component.node, self._jobs(finding)):
            if one.fault_class in _HARDWARE and _near(one, finding):
                return one
        return None

    def _bad_node_of(self, finding: Finding) -> Incident | None:
        """An open hardware incident of one of the slow job's nodes."""
        hit = self._at(None, self._named(finding))
        return next((one for one in hit if one.fault_class in _HARDWARE and one.root.node), None)

    def _jobs(self, finding: Finding) -> Set[str]:
        if finding.jobs:
            return set(finding.jobs)
        # A line of the kernel speaks of one GPU, also where its address is lost.
        key = finding.component, bool(finding.evidence[0].line)
        known = self._hit.get(key)
        if known is None:
            hit, certain = jobs_of(self.picture.slurm, finding.component, one_gpu=key[1])
            known = self._hit[key] = frozenset(job.leader for job in hit) if certain else frozenset()
        return known

    def _same_cause(self, finding: Finding) -> Incident | None:
        where = finding.component
        jobs = self._jobs(finding) if finding.fault_class is FaultClass.application else ()
        for one in self._at(where.node, jobs, where):
            if one.stopped_by is not None and finding.unusable and not one.unusable:
                continue  # a person's word was about a node that still worked
            if one.fault == finding.fault and one.rule == finding.rule and one.root == where:
                return one
            same_node = where.node is not None and one.root.node == where.node
            if finding.fault == _UNUSUAL and one.fault_class in _HARDWARE and same_node:
                return one
            hardware = finding.fault_class in _HARDWARE and one.fault_class in _HARDWARE
            if hardware and same_node:
                # Worse news about the node is a new incident under the rule that may act on it; it takes
                # the milder one in. Anything else belongs to what is already known of the node.
                alike = one.fault_class is finding.fault_class
                ours, theirs = self._rule(finding), self.rules.by_name.get(one.rule)
                weaker = alike and self._weaker(theirs, ours)
                milder = rank_told(finding) <= rank_of(one) or (alike and self._weaker(ours, theirs))
                if milder and not (weaker and self._is_free(one)):
                    return one
            elif one.rule == finding.rule and not each_its_own(finding.fault):
                return one
        return None

    # --- changing incidents --------------------------------------------------------------------------------

    def _count(self, incident: Incident, finding: Finding) -> None:
        if not self.picture.first_count(finding.evidence[0].digest):
            return
        counted = dict(incident.counted)
        counted[finding.fault] = counted.get(finding.fault, 0) + 1
        affected = _with(incident.affected, (finding.component,), incident.root)
        self.put(msgspec.structs.replace(incident, counted=counted, affected=affected, updated=self.now))

    def _stand_beside(self, finding: Finding) -> None:
        """Evidence for whoever reads the incident at its place: of hardware, or else the oldest."""
        there = self._at(finding.component.node, (), finding.component)
        incident = next((one for one in there if one.fault_class in _HARDWARE), there[0] if there else None)
        if incident is None or len(incident.evidence) >= EVIDENCE_KEPT:
            return
        # A flood of alerts must not push out what the incident is about.
        sense = finding.evidence[0].sense
        alike = [one for one in incident.evidence if one.sense is sense]
        if len(alike) >= BESIDE_KEPT:
            return
        known = {one.digest for one in incident.evidence} | {one.text for one in alike}
        fresh = tuple(one for one in finding.evidence if not {one.digest, one.text} & known)
        if fresh:
            count = incident.evidence_count + len(fresh)
            evidence = (*incident.evidence, *fresh)
            self.put(msgspec.structs.replace(incident, evidence=evidence, evidence_count=count))

    def _join(self, incident: Incident, finding: Finding) -> None:
        known = {one.digest for one in incident.evidence}
        fresh = tuple(one for one in finding.evidence if one.digest not in known)
        heard = heard_with(incident, finding)
        if not fresh:
            if heard != incident.heard:  # it still stands: that is news, although it is no new evidence
                self.put(msgspec.structs.replace(incident, heard=heard))
            return
        rule = self._rule(finding)
        remedy = _higher(incident.remedy, self._remedy(rule, finding))
        self.put(
            msgspec.structs.replace(
                incident,
                evidence=_kept((*incident.evidence, *fresh)),
                evidence_count=incident.evidence_count + len(fresh),
                heard=heard,
                affected=_with(incident.affected, (*finding.affected, finding.component), incident.root),
                unusable=incident.unusable or finding.unusable,
                remedy=remedy,
                severity=self._severity(incident, rule),
                jobs_hit=self._more_jobs(incident, finding),
                updated=self.now,
            )
        )
        self.placed.append((incident.id, finding))
        self._cover(self.by_id[incident.id])

    def _severity(self, incident: Incident, rule: Rule) -> Severity:
        """Worse news of the same thing makes it as urgent as that; what is only watched does not."""
        mode = self.modes.get(rule.name) or self.rules.mode_of(rule)
        if mode in {Mode.off, Mode.shadow}:
            return incident.severity
        return min(incident.severity, rule.severity)

    def _weaker(self, one: Rule | None, other: Rule | None) -> bool:
        """Nothing is ever done for `one`, and more may be for `other`: no playbook, only watched, acts."""
        strength = self._strength(one)
        return strength < 2 and strength < self._strength(other)

    def may_act(self, incident: Incident) -> bool:
        """Its rule has a playbook, and is not only watched."""
        return self._strength(self.rules.by_name.get(incident.rule)) == 2

    def _strength(self, rule: Rule | None) -> int:
        if rule is None or rule.playbook is None:
            return 0
        mode = self.modes.get(rule.name) or self.rules.mode_of(rule)
        return 1 if mode in {Mode.off, Mode.shadow} else 2

    def _is_free(self, incident: Incident) -> bool:
        """Nothing works on it: what its rule left behind is a shadow's run, or one that waits for leave."""
        return incident.state is IncidentState.open

    def _more_jobs(self, incident: Incident, finding: Finding) -> tuple[str, ...]:
        if incident.jobs_hit_final or finding.fault_class not in _HARDWARE:
            return incident.jobs_hit
        if incident.fault_class is FaultClass.fatal and finding.evidence[0].sense in MEASURED:
            return incident.jobs_hit  # it makes a fault of one GPU no wider
        return tuple(sorted({*incident.jobs_hit, *self._jobs(finding)}))

    def _open(self, finding: Finding) -> None:
        rule = self._rule(finding)
        where = finding.component
        shown = self.picture.slurm.nodes.get(where.node or "") if self.picture.slurm else None
        out = shown is not None and not shown.in_service
        held = shown is not None and (shown.drain or shown.base == "DOWN")
        foreign = shown if shown and held and shown.reason and not is_ours(shown.reason) else None
        owner = foreign.owner if foreign else None
        settle_s = self.rules.settle_s if finding.fault_class is FaultClass.fatal else 0.0
        incident = Incident(
            id=incident_id(self.picture.cluster, rule.name, where, finding.evidence[0].digest),
            cluster=self.picture.cluster,
            rule=rule.name,
            fault=finding.fault,
            fault_class=finding.fault_class,
            title=finding.headline,
            root=where,
            opened=self.now,
            updated=self.now,
            settle_until=self.now + timedelta(seconds=settle_s),
            severity=rule.severity,
            cause=rule.cause,
            affected=finding.affected,
            nodes=_verdicts(finding),
            remedy=self._remedy(rule, finding),
            jobs_hit=self._jobs_at_begin(finding),
            evidence=_kept(finding.evidence),
            evidence_count=len(finding.evidence),
            unusable=finding.unusable,
            node_was_out=out,
            owner=(owner.name or "unknown") if owner else None,
            owner_since=foreign.reason_at if foreign else None,
        )
        known = self._told_before(incident.id)
        if known is not None and not self._explained_no_more(known, finding):
            return
        incident = msgspec.structs.replace(incident, heard=heard_with(incident, finding))
        self.put(incident)
        self.placed.append((incident.id, finding))
        if finding.fault_class in _HARDWARE:
            self._absorb(incident)
        self._cover(incident)

    def _jobs_at_begin(self, finding: Finding) -> tuple[str, ...]:
        """With those that the fault ended before it was told."""
        hit, where = set(self._jobs(finding) or self._named(finding)), finding.component
        if finding.fault_class is FaultClass.fatal and self.picture.slurm is not None and where.node:
            failed = self.picture.slurm.failed_on(where.node)
            hit |= {job.leader for job in crashed_among(failed, where, (finding.evidence[0].at, self.now))}
        return tuple(sorted(hit))

    def _told_before(self, name: str) -> Incident | None:
        return self.by_id.get(name) or self.find(name)

    def _explained_no_more(self, known: Incident, finding: Finding) -> bool:
        """What still stands (a silence, a drain) opens again once what it was merged into is over."""
        if known.merged_into is None or finding.fault_class is not FaultClass.informational:
            return False
        explained_by = self._told_before(known.merged_into)
        return explained_by is None or not explained_by.is_open

    def _named(self, finding: Finding) -> set[str]:
        return set(finding.jobs) | ({finding.component.job} if finding.component.job else set())

    def _absorb(self, root: Incident) -> None:
        """What the new root explains: waiting teardowns of its job, milder incidents of node or job."""
        kept = []
        for waiting in self.picture.teardowns:
            if self.now - waiting.arrived_at > JOB_WINDOW:
                continue
            if self._explains(root, self._jobs(waiting), waiting.component.node):
                self._count(self.by_id[root.id], waiting)
            else:
                kept.append(waiting)
        self.picture.teardowns.clear()
        self.picture.teardowns.extend(kept)
        for other in self._at(root.root.node, root.jobs_hit):
            if other.id == root.id:
                continue
            same_node = other.root.node is not None and other.root.node == root.root.node
            watched = other.fault_class is root.fault_class is FaultClass.degraded and same_node
            weaker = watched and self._weaker(self.rules.by_name.get(other.rule), self._rule_of(root))
            if (weaker and self._is_free(other)) or (other.fault == _UNUSUAL and same_node):
                self._merge(other, root)
                self._take_evidence(other, root)
                continue
            less = same_node and rank_of(other) < rank_of(root)
            if other.run is not None:
                if less:
                    self.put(msgspec.structs.replace(other, worse=root.id))
                continue
            if other.fault == _JOB_SLOW and other.root.job in root.jobs_hit:
                self._merge(other, root)
                continue
            milder = other.fault_class in _HARDWARE and less
            sympathetic = (
                other.fault_class is FaultClass.application
                and root.opened - other.opened <= JOB_WINDOW
                and self._explains(root, set(other.jobs_hit), other.root.node)
            )
            if (milder and root.fault_class is FaultClass.fatal) or sympathetic:
                self._merge(other, root)

    def _cover(self, shared: Incident) -> None:
        """Nodes fall silent one by one: those told before their number showed what they share are merged."""
        if shared.fault == OFFLINE:  # told of a node that an open incident explains already
            for other in self._at(shared.root.node, (), shared.root):
                if OFFLINE in _EXPLAINED_BY.get(other.fault, ()):
                    self._merge(shared, other)
            return
        explained = _EXPLAINED_BY.get(shared.fault, frozenset())
        if not explained:
            return
        nodes = {one.node for one in (*shared.affected, shared.root)}
        for other in self._open_incidents():
            covered = shared.fault in _WHOLE_FLEET or other.root.node in nodes
            if other.fault in explained and covered and other.run is None:
                self._merge(other, shared)

    def _merge(self, other: Incident, root: Incident) -> None:
        self.put(
            msgspec.structs.replace(
                other,
                state=IncidentState.resolved,
                merged_into=root.id,
                closed=self.now,
                updated=self.now,
                closed_why=f"explained by {root.short_id}: {root.title}",
            )
        )

    def merge(self, other: Incident, root: Incident) -> None:
        """What the walk itself finds to be explained: a run that gave way to worse."""
        self._merge(other, root)

    def _rule_of(self, incident: Incident) -> Rule:
        rule = self.rules.by_name.get(incident.rule)
        if rule is None:
            raise LookupError(f"there is no rule {incident.rule}")
        return rule

    def _take_evidence(self, other: Incident, root: Incident) -> None:
        """What was told of the weaker one speaks for the new one: another sense, maybe."""
        root = self.by_id[root.id]
        known = {one.digest for one in root.evidence}
        more = tuple(one for one in other.evidence if one.digest not in known)
        self.put(
            msgspec.structs.replace(
                root,
                evidence=_kept((*root.evidence[:1], *more, *root.evidence[1:])),
                evidence_count=root.evidence_count + other.evidence_count,
                affected=_with(root.affected, (other.root, *other.affected), root.root),
                heard=newest((*root.heard, *other.heard)),
            )
        )

    def _explains(self, root: Incident, jobs: Set[str], node: str | None) -> bool:
        return not jobs.isdisjoint(root.jobs_hit) or (node is not None and node == root.root.node)

    def _rule(self, finding: Finding) -> Rule:
        rule = self.rules.by_name.get(finding.rule)
        rule = rule or rule_for(self.rules, finding.fault, finding.fault_class)
        if rule is None:
            raise LookupError(f"no rule takes the fault {finding.fault} ({finding.fault_class})")
        return rule

    def _remedy(self, rule: Rule, finding: Finding) -> tuple[Remedy, ...]:
        """The driver's own ask first, then the rule's, else the catalogue's remedy for the code."""
        asked = {
            "reset": Remedy.drain_then_reset,
            "drain_and_reset": Remedy.drain_then_reset,
            "reboot": Remedy.reboot_node,
        }.get(finding.asked or "")
        beside = tuple(one for one in rule.remedy if one not in REMEDY_LADDER)
        if asked is not None:
            return (asked, *beside)
        ladder = tuple(one for one in rule.remedy if one in REMEDY_LADDER)
        kind, _, code = finding.fault.partition("-")
        catalogue = self.rules.xids if kind == "xid" else self.rules.sxids if kind == "sxid" else {}
        entry = catalogue.get(int(code)) if code.isdigit() else None
        if entry is not None and entry.remedy is not Remedy.none and not ladder:
            ladder = (entry.remedy,)
        return (*ladder, *beside)


def _verdicts(finding: Finding) -> dict[str, Verdict]:
    where = finding.component
    verdict = {
        FaultClass.fatal: Verdict.isolate,
        FaultClass.degraded: Verdict.suspect,
        FaultClass.unknown: Verdict.watch,
    }.get(finding.fault_class)
    # What a device stands before may be hit; nothing was told of those nodes themselves.
    affected = () if where.device is not None else finding.affected
    named = {where.node} | {one.node for one in affected}
    return {name: verdict for name in sorted(n for n in named if n) if verdict is not None}


def _kept(evidence: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
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


def _near(incident: Incident, finding: Finding) -> bool:
    """Near in time by arrival or by the senders' clocks: those may differ, and old lines come together."""
    told = incident.evidence[0].at if incident.evidence else incident.opened
    return abs(finding.arrived_at - incident.opened) <= JOB_WINDOW or abs(finding.at - told) <= JOB_WINDOW


def _with(
    affected: tuple[Component, ...], more: Sequence[Component], root: Component
) -> tuple[Component, ...]:
    new = [one for one in dict.fromkeys(more) if one != root and one not in affected]
    return (*affected, *new)[:AFFECTED_KEPT]


def _higher(known: tuple[Remedy, ...], new: tuple[Remedy, ...]) -> tuple[Remedy, ...]:
    """The higher rung of the two ladders, and all that stands beside it."""
    rungs = [one for one in (*known, *new) if one in REMEDY_LADDER]
    top = max(rungs, key=REMEDY_LADDER.index, default=None)
    beside = tuple(dict.fromkeys(one for one in (*known, *new) if one not in REMEDY_LADDER))
    return ((top,) if top else ()) + beside
