"""The incidents of one pass: what is open, found fast, and how it is put, merged and counted."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from healer.incidents import growth
from healer.incidents.growth import NEAR, kept, verdicts
from healer.incidents.identity import incident_id
from healer.incidents.jobs import Hits
from healer.incidents.open_index import OpenIndex
from healer.incidents.remedies import Policies, remedy_of
from healer.incidents.same import Both, are_apart, is_explained, is_weaker, packets_lost, worse_while_busy
from healer.incidents.senses import heard_with
from healer.incidents.shared import Places
from healer.model import Cause, Component, FaultClass, Finding, Incident, Mode, Ruleset
from healer.model.reasons import is_ours
from healer.observations import Picture


class Book:
    """The open incidents, changed in turn. `changed` must be saved, `placed` says which finding is where.

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
        self.policies = Policies(rules)
        self.places = Places(rules, picture)
        self.by_id: dict[str, Incident] = {}
        self.changed: dict[str, Incident] = {}
        self.placed: list[tuple[str, Finding]] = []
        self.index = OpenIndex(rules.topology.link_of, self.places.keys)
        self.hits = Hits(picture)
        #: Opened in this pass, so that nobody knows them yet; and what those became that were not kept.
        self.born: set[str] = set()
        self._into: dict[str, str] = {}
        #: What was merged in this pass, as it was before, by its root.
        self._merged: dict[str, list[Incident]] = {}
        #: What is only counted, by incident: written once for a flood.
        self._to_count: dict[str, list[Finding]] = {}
        for one in incidents:
            self._keep(one)

    @property
    def modes(self) -> Mapping[str, Mode]:
        """Modes of rules that were set while running."""
        return self.policies.modes

    @modes.setter
    def modes(self, modes: Mapping[str, Mode]) -> None:
        self.policies.modes = modes

    def may_act(self, incident: Incident) -> bool:
        """Its rule has a playbook, and is not only watched."""
        return self.policies.strength(incident.rule) == 2

    def put(self, incident: Incident) -> None:
        self._keep(incident)
        self.changed[incident.id] = incident

    def _keep(self, incident: Incident) -> None:
        self.index.put(incident)
        self.by_id[incident.id] = incident

    def close_book(self) -> None:
        """After each batch: what was placed on an incident that was not kept is where that went."""
        self.write_counts()
        self.placed = [(self._into.get(name, name), finding) for name, finding in self.placed]

    # --- reading --------------------------------------------------------------------------------------------

    def these(self, names: Sequence[str]) -> Iterator[Incident]:
        return (self.by_id[name] for name in tuple(names) if name in self.by_id)

    def at(self, node: str | None, jobs: Collection[str], root: Component | None) -> Iterator[Incident]:
        return self.these(self.index.find(node, jobs, root))

    def told_before(self, name: str) -> Incident | None:
        return self.by_id.get(name) or self.find(name)

    # --- opening --------------------------------------------------------------------------------------------

    def opened(self, finding: Finding) -> Incident:
        rule, where = self.policies.of(finding), finding.component
        shown = self.picture.slurm.nodes.get(where.node or "") if self.picture.slurm else None
        held = shown is not None and (shown.drain or shown.base == "DOWN")
        foreign = shown if shown and held and shown.reason and not is_ours(shown.reason) else None
        owner = foreign.owner if foreign else None
        settle_s = self.rules.settle_s if finding.fault_class is FaultClass.fatal else 0.0
        anew = Incident(
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
            cause=rule.cause if rule.cause is not Cause.unclear else finding.cause or rule.cause,
            affected=finding.affected,
            nodes=verdicts(finding),
            remedy=remedy_of(rule, finding),
            jobs_hit=self.hits.at_begin(finding, self.now),
            evidence=kept(finding.evidence),
            evidence_count=len(finding.evidence),
            unusable=finding.unusable,
            node_was_out=shown is not None and not shown.in_service,
            owner=(owner.name or "unknown") if owner else None,
            owner_since=foreign.reason_at if foreign else None,
        )
        return msgspec.structs.replace(anew, heard=heard_with(anew, finding))

    def open_over(self, finding: Finding, **fields: Any) -> Incident | None:
        """A new incident over others; its id is that of its root and of their first evidence. None: it was
        told before, and is over."""
        anew = msgspec.structs.replace(self.opened(finding), **fields)
        if self.told_before(anew.id) is not None:
            return None
        self.born.add(anew.id)
        self.put(anew)
        self.placed.append((anew.id, finding))
        return anew

    # --- counting -------------------------------------------------------------------------------------------

    def count(self, incident: Incident, finding: Finding) -> None:
        if self.picture.first_count(finding.evidence[0].digest):
            self._to_count.setdefault(incident.id, []).append(finding)

    def write_counts(self) -> None:
        for name, findings in self._to_count.items():
            if counts := self.by_id.get(self._into.get(name, name)):
                self.put(growth.counting(counts, findings, self.now))
        self._to_count.clear()

    # --- what a new root explains --------------------------------------------------------------------------

    def absorb(self, root: Incident) -> None:
        """Waiting teardowns of its job, milder incidents of node or job."""
        self.absorb_teardowns(root)
        for other in self.at(root.root.node, root.jobs_hit, root.root):
            both = Both(other, root, self.policies)
            if other.id == root.id or not other.is_open:
                continue
            if worse_while_busy(both) and are_apart(both):
                self.put(msgspec.structs.replace(other, worse=root.id))
            elif are_apart(both):
                continue
            elif is_weaker(both):
                self.merge(other, root)
                self.put(growth.with_evidence_of(self.by_id[root.id], [other]))
            elif worse_while_busy(both):
                self.put(msgspec.structs.replace(other, worse=root.id))
            elif other.run is None and is_explained(both):
                self.merge(other, root)

        for other in self.these(self.index.hard(None, root.jobs_hit)):
            if other.id != root.id and packets_lost(Both(other, root, self.policies)):
                self.merge(other, root)

    def absorb_teardowns(self, root: Incident) -> None:
        """Those that waited for their root."""
        node = root.root.node
        waiting = [one for one in self.picture.teardowns if self.now - one.arrived_at <= NEAR]
        self.picture.teardowns.clear()
        for one in waiting:
            same_node = node is not None and node == one.component.node
            if same_node or not self.hits.jobs(one).isdisjoint(root.jobs_hit):
                self.count(root, one)
            else:
                self.picture.teardowns.append(one)

    # --- merging --------------------------------------------------------------------------------------------

    def merge(self, other: Incident, root: Incident) -> None:
        """The root explains it. One that opened in this pass was never told of: it goes without a trace."""
        if other.id not in self.born:
            self._merged.setdefault(root.id, []).append(other)
            self.put(growth.merged(other, root, self.now))
            return
        self._into[other.id] = root.id
        self.index.drop(other.id)
        for known in (self.by_id, self.changed):
            known.pop(other.id, None)
        for one in self._merged.pop(other.id, ()):  # it is no root any more
            self.put(one)
