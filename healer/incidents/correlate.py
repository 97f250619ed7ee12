"""Findings -> incidents: by node, by job, by cable, by what they share."""

from collections.abc import Iterator, Sequence, Set
from datetime import timedelta

import msgspec

from healer.incidents import growth
from healer.incidents.book import Book
from healer.incidents.cover import covered_by, covers
from healer.incidents.folding import folded_into
from healer.incidents.gather import end_waves, follow, gather, members_of, note_waves, take_in, wave_of
from healer.incidents.growth import NEAR, is_near, is_untouched, kept, verdicts
from healer.incidents.noting import SERVER_AWAY
from healer.incidents.rank import marked, rank_told
from healer.incidents.remedies import higher, remedy_of
from healer.incidents.roots import other_root
from healer.incidents.same import HANG, JOB_SLOW, Both, Pair, is_explained, is_same
from healer.incidents.senses import heard_with
from healer.incidents.shared import explains
from healer.model import (
    EVIDENCE_KEPT,
    HARDWARE,
    Component,
    FaultClass,
    Finding,
    Incident,
    Rule,
    Severity,
)

#: Names of faults that are codes of a driver.
CODES = ("xid-", "sxid-")
#: Processes that wait in the kernel: beside a file server that is away, for that.
WAITING = frozenset({"task-hung", "host-blocked"})
#: So many pieces of one sense stand beside an incident that they did not open.
BESIDE_KEPT = 10


class Correlator(Book):
    """One pass: the open incidents, changed by each finding in turn."""

    def take_all(self, findings: Sequence[Finding]) -> None:
        """Puts each finding where it belongs. Roots first, so that what they explain finds them."""
        before = dict(self.changed)
        for finding in sorted(findings, key=_roots_first):
            self.take(marked(finding))
        self.write_counts()
        touched = [one for name, one in self.changed.items() if before.get(name) is not one and one.is_open]
        gather(self, touched)
        note_waves(self, touched)
        end_waves(self)
        self.close_book()

    def take(self, finding: Finding) -> None:
        if finding.beside:
            self._stand_beside(finding)
        elif root := self._explained_by(finding):
            self.count(root, finding)
        elif finding.teardown:
            self.picture.teardowns.append(finding)
        elif known := self._same_cause(finding):
            self._join(known, finding)
        elif over := self._broken_place(finding):
            follow(self, over, finding)
        elif known := self._asked_together(finding):
            self._join(known, finding)
            nodes = verdicts(finding) | self.by_id[known.id].nodes
            self.put(msgspec.structs.replace(self.by_id[known.id], nodes=nodes))
        else:
            self._open(finding)

    # --- finding its incident ------------------------------------------------------------------------------

    def _explained_by(self, finding: Finding) -> Incident | None:
        """The incident beside which the finding means nothing: it is only counted there."""
        if finding.fault in {JOB_SLOW, HANG}:
            jobs = self.hits.named(finding)
            hard = (one for one in self.these(self.index.hard(None, jobs)) if self._is_under(one, jobs))
            return next(
                (one for one in hard if finding.fault != HANG or one.fault_class is FaultClass.fatal), None
            )
        if finding.fault in WAITING:
            away = self.these(self.index.of_fault(SERVER_AWAY))
            return next((one for one in away if is_client(one, finding.component.node)), None)
        if not (finding.teardown or finding.follows or finding.fault_class is FaultClass.application):
            return None
        node, jobs = finding.component.node, self.hits.jobs(finding)
        hard = self.these(self.index.hard(node, jobs))
        root = next((one for one in hard if is_near(one, finding)), None)
        if root is None and finding.teardown:
            soft = self.these(self.index.find(None, jobs, None))
            is_error = (one for one in soft if one.fault_class is FaultClass.application)
            root = next((one for one in is_error if is_near(one, finding)), None)
        return root

    def _is_under(self, incident: Incident, jobs: Set[str]) -> bool:
        """None of the jobs works elsewhere. One that was restarted on other nodes has left that fault behind,
        though the incident that names it may be open for days."""
        node, slurm = incident.root.node, self.picture.slurm
        shown = [slurm.jobs[name] for name in sorted(jobs) if name in slurm.jobs] if slurm is not None else []
        return node is not None and not any(job.nodes and node not in job.nodes for job in shown)

    def _same_cause(self, finding: Finding) -> Incident | None:
        where = finding.component
        # Nobody knows the code: people are asked once, not once per node.
        if finding.fault_class is FaultClass.unknown and finding.fault.startswith(CODES):
            asked = self.these(self.index.of_fault(finding.fault))
            if known := next((one for one in asked if one.fault_class is FaultClass.unknown), None):
                return known
        jobs = self.hits.jobs(finding) if finding.fault_class is FaultClass.application else ()
        there = self.at(where.node, jobs, where)
        return next((one for one in there if is_same(Pair(one, finding, self.policies))), None)

    def _broken_place(self, finding: Finding) -> Incident | None:
        """An open incident of a place or a wave that the finding is a part of. One that is surely unusable is
        told of itself (law 2)."""
        if (wave := folded_into(self, finding)) is not None:
            return wave
        if finding.unusable:
            return None
        for sharing, place in self.places.keys(finding.fault, finding.component):
            told_of = Component(cluster=self.picture.cluster, device=place)
            for root in dict.fromkeys((self.places.root(sharing.place, place), told_of)):
                for one in self.at(None, (), root):
                    if sharing in self.places.of_itself(one.fault) and explains(one, finding):
                        return one
        rule = self.policies.of(finding)
        about_jobs = finding.fault_class is FaultClass.application and self.hits.jobs(finding)
        return (
            None if rule.playbook is not None or about_jobs else wave_of(self, rule, finding.component.node)
        )

    def _asked_together(self, finding: Finding) -> Incident | None:
        """Nodes of one job ask within the settling time for what belongs to a place (the IMEX domain) that
        nobody tells: it is one thing. What healer works on, or was told of a known place, stays its own."""
        if finding.unusable or not self.places.is_unseen(finding.fault, finding.component):
            return None
        jobs = frozenset(self.hits.jobs(finding))
        just_now = self.now - timedelta(seconds=self.rules.settle_s)
        for one in self.these(self.index.of_fault(finding.fault)):
            together = one.opened >= just_now and not jobs.isdisjoint(one.jobs_hit)
            if together and is_untouched(one) and self.places.is_unseen(one.fault, one.root):
                return one
        return None

    # --- changing incidents --------------------------------------------------------------------------------

    def _stand_beside(self, finding: Finding) -> None:
        """Evidence for whoever reads the incident at its place: of hardware, or else the oldest."""
        there = list(self.at(finding.component.node, (), finding.component))
        incident = next((one for one in there if one.fault_class in HARDWARE), there[0] if there else None)
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
        rule = self.policies.of(finding)
        unknown = finding.fault_class is incident.fault_class is FaultClass.unknown
        joined = msgspec.structs.replace(
            incident,
            evidence=kept((*incident.evidence, *fresh)),
            evidence_count=incident.evidence_count + len(fresh),
            heard=heard,
            affected=growth.with_parts(incident, (*finding.affected, finding.component)),
            unusable=incident.unusable or finding.unusable,
            remedy=higher(incident.remedy, remedy_of(rule, finding)),
            nodes=verdicts(finding) | incident.nodes if unknown else incident.nodes,
            severity=self._severity(incident, rule),
            jobs_hit=self.hits.with_more(incident, finding),
            updated=self.now,
        )
        self.put(other_root(joined, finding))
        self.placed.append((incident.id, finding))
        self._cover(self.by_id[incident.id])

    def _severity(self, incident: Incident, rule: Rule) -> Severity:
        """Worse news of the same thing makes it as urgent as that; what is only watched does not."""
        return incident.severity if self.policies.is_watched(rule) else min(incident.severity, rule.severity)

    def _open(self, finding: Finding) -> None:
        anew = self.opened(finding)
        if self._is_known(anew, finding):
            return
        before = next(self._moving(anew, finding), None)
        if before is None:
            self.born.add(anew.id)
        else:
            anew = growth.moved(before, anew)
        self.put(anew)
        self.placed.append((anew.id, finding))
        if finding.fault_class in HARDWARE:
            self.absorb(anew)
        elif finding.fault_class is FaultClass.application:
            self.absorb_teardowns(anew)
        self._cover(self.by_id[anew.id])

    def _is_known(self, anew: Incident, finding: Finding) -> bool:
        """Its evidence was told before. What still stands (a silence, a drain) opens again once what it was
        merged into is over."""
        known = self.told_before(anew.id)
        if known is None or known.merged_into is None or finding.fault_class is not FaultClass.informational:
            return known is not None
        explained_by = self.told_before(known.merged_into)
        return explained_by is not None and explained_by.is_open

    def _moving(self, anew: Incident, finding: Finding) -> Iterator[Incident]:
        """Incidents that have just opened, that nobody has decided on, and whose root the finding names."""
        if finding.fault_class in HARDWARE:
            for other in self.at(anew.root.node, anew.jobs_hit, anew.root):
                both = Both(other, anew, self.policies)
                if self.now - other.opened <= NEAR and is_untouched(other) and is_explained(both):
                    yield other

    def _cover(self, one: Incident) -> None:
        """Nodes fall silent one by one: those told before their number showed what they share are merged."""
        over = next((other for other in self.at(one.root.node, (), one.root) if covers(other, one)), None)
        if over is not None:  # told of a node that an open incident explains already
            self.merge(one, over)
            return
        for fault in sorted(covered_by(one.fault)):
            for other in self.these(self.index.of_fault(fault)):
                if other.run is None and covers(one, other):
                    self.merge(other, one)
        place = one.root.device or one.root.switch
        for sharing in self.places.of_itself(one.fault) if place else ():
            take_in(self, self.by_id[one.id], members_of(self, sharing, place or ""))


def is_client(away: Incident, node: str | None) -> bool:
    """Whether the node is among those that told of the server."""
    return node is not None and any(one.node == node for one in away.affected)


def _roots_first(finding: Finding) -> tuple[bool, int, bool, bool]:
    """What the driver asks for comes of a fault that its own line names better."""
    return finding.beside, -rank_told(finding), finding.teardown, finding.fault.startswith("driver-asks")
