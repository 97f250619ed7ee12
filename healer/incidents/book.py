"""The open incidents of one walk: found by index, opened by rule, merged and counted."""

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

import msgspec

from healer.detection.watches import is_offline
from healer.incidents.certainty import MEASURED, add_reports, limit_evidence
from healer.incidents.growth import count_findings, merge_into
from healer.incidents.impact import Hits
from healer.incidents.part_history import rung_of
from healer.incidents.shared import Places
from healer.model import (
    HARDWARE,
    REMEDY_LADDER,
    Cause,
    Component,
    FaultClass,
    Finding,
    Incident,
    Mode,
    Remedy,
    Rule,
    Ruleset,
    Sharing,
    Verdict,
)
from healer.model.faults import JOB_SLOW, NODE_SILENT, Trait, fault_is
from healer.model.slurm import SlurmNode, is_ours
from healer.observations import Picture

#: The longest chain of merged incidents that is followed.
MERGED_MOST = 4
#: The remedy for each request by the driver.
_ASKED = {
    "reset": Remedy.drain_then_reset,
    "drain_and_reset": Remedy.drain_then_reset,
    "reboot": Remedy.reboot_node,
}


class Policies:
    """The rules, with the modes that were set at run time."""

    def __init__(self, rules: Ruleset) -> None:
        self.rules = rules
        self.modes: Mapping[str, Mode] = {}

    def of(self, finding: Finding) -> Rule:
        rule = self.rules.by_name.get(finding.rule)
        rule = rule or self.rules.rule_for(finding.fault, finding.fault_class)
        if rule is None:
            raise LookupError(f"no rule takes the fault {finding.fault} ({finding.fault_class})")
        return rule

    def strength(self, name: str) -> int:
        """What healer does for incidents of the rule: 4: acts; 3: acts at a good moment; 2, 1: the same in
        shadow; 0: nothing."""
        rule = self.rules.by_name.get(name)
        if rule is None or rule.playbook is None:
            return 0
        return (4 if self.acts(rule) else 3) - (2 if self.is_watched(rule) else 0)

    def acts(self, rule: Rule) -> bool:
        """The rule has a playbook that acts immediately, not only at a good moment."""
        playbook = self.rules.playbooks.get(rule.playbook or "")
        return rule.playbook is not None and not (playbook is not None and playbook.is_plan)

    def plans(self, name: str) -> bool:
        """The rule has a playbook that acts only at a good moment."""
        rule = self.rules.by_name.get(name)
        return rule is not None and rule.playbook is not None and not self.acts(rule)

    def treats(self, rule: Rule, remedy: tuple[Remedy, ...]) -> bool:
        """healer acts on each incident of the rule: immediately, or by a plan, which is never given up (law
        10)."""
        return self.acts(rule) or (rule.playbook is not None and rung_of(remedy) is not Remedy.none)

    def may_act(self, rule: str) -> bool:
        return self.strength(rule) == 4

    def is_watched(self, rule: Rule) -> bool:
        return self.rules.mode_of(rule, self.modes) in {Mode.off, Mode.shadow}

    def weaker(self, rule: str, other: str) -> bool:
        """healer may do more under the rule `other`."""
        return self.strength(rule) < self.strength(other)


def remedy_of(rule: Rule, finding: Finding) -> tuple[Remedy, ...]:
    """The remedy that the driver asks for, else the rule's, else the one of the catalogue's row; followed by
    the remedies that accompany it."""
    rungs, others = _split(rule.remedy)
    row = finding.remedy
    asked = _ASKED.get(finding.asked or "")
    if asked is not None:
        restart = fault_is(finding.fault, Trait.contained) and finding.fault_class is FaultClass.degraded
        return (asked, *others, *([Remedy.requeue_job] if restart else ()))
    if not rungs and row is not None:
        rungs, added = _split((row,))
        others = (*added, *(remedy for remedy in others if remedy not in added))
    remedies = (*rungs[:1], *others)
    return tuple(remedy for remedy in remedies if remedy is not Remedy.none) or remedies[:1]


def _split(remedies: tuple[Remedy, ...]) -> tuple[tuple[Remedy, ...], tuple[Remedy, ...]]:
    """The remedies on the ladder, and the others. A requeue of the job counts as one of the others, as it can
    accompany every remedy."""
    rungs = tuple(
        remedy for remedy in remedies if remedy in REMEDY_LADDER and remedy is not Remedy.requeue_job
    )
    return rungs, tuple(remedy for remedy in remedies if remedy not in rungs)


def asks_for_action(rule: Rule, finding: Finding) -> bool:
    """The rule asks for an action: by its remedy or, if it has none, by its playbook."""
    remedy = remedy_of(rule, finding)
    return any(wanted is not Remedy.none for wanted in remedy) or (rule.playbook is not None and not remedy)


_VERDICTS = {
    FaultClass.fatal: Verdict.isolate,
    FaultClass.degraded: Verdict.suspect,
    FaultClass.unknown: Verdict.watch,
}


def verdicts(finding: Finding, *, asks: bool) -> dict[str, Verdict]:
    """Node -> verdict, for each node of the finding. `asks`: the rule has a plan for it, or asks a person."""
    verdict = _VERDICTS.get(finding.fault_class)
    if verdict is Verdict.suspect and not asks:
        verdict = Verdict.watch  # not bad enough to act
    where = finding.component
    # Nodes behind a device or a switch may be affected, but nothing was reported about the nodes themselves.
    behind = where.device is not None or (where.switch is not None and where.node is None)
    affected = () if behind else finding.affected
    named = {where.node} | {part.node for part in affected}
    return {name: verdict for name in sorted(n for n in named if n) if verdict is not None}


def merge_remedies(before: tuple[Remedy, ...], new: tuple[Remedy, ...]) -> tuple[Remedy, ...]:
    """The higher of the two remedies, and everything that accompanies either; `none` only if nothing else
    remains."""
    rungs, others = _split((*before, *new))
    top = max(rungs, key=REMEDY_LADDER.index, default=None)
    others = tuple(dict.fromkeys(others))
    if top is Remedy.none and others:
        return others
    return ((top,) if top else ()) + others


def was_out(node: SlurmNode, finding: Finding) -> bool:
    """Whether the node was already out of service before this fault. If Slurm does not reach a silent node,
    that is the fault itself."""
    is_itself = finding.fault == NODE_SILENT and is_offline(node)
    return node.planned or not (node.in_service or is_itself)


def incident_id(cluster: str, rule: str, root: Component, opening: str) -> str:
    """32 hex characters: a hash of cluster, rule, root and the digest of the opening evidence."""
    identity = msgspec.json.encode([cluster, rule, root, opening], order="sorted")
    return sha256(identity).hexdigest()[:32]


#: The most parts of an incident whose cables are looked up.
_PARTS = 16


class OpenIndex:
    """Ids of incidents, indexed by what they are about. Without the index, each finding of a storm would be
    compared with every incident.

    `link_of`: the cable that a part is an end of, or None. `shares_of`: the places that a fault of this name
    at this part may belong to.
    """

    def __init__(
        self,
        link_of: Callable[[Component], Hashable | None] = lambda _: None,
        shares_of: Callable[[str, Component], Iterable[tuple[Sharing, str]]] = lambda _, __: (),
    ) -> None:
        self._link_of, self._shares_of = link_of, shares_of
        self._order: dict[str, int] = {}
        self._keys: dict[str, frozenset[Hashable]] = {}
        self._ids: defaultdict[Hashable, set[str]] = defaultdict(set)
        self._found: dict[Hashable, list[str]] = {}

    def put(self, incident: Incident) -> None:
        """Adds or replaces the incident."""
        self._order.setdefault(incident.id, len(self._order))
        keys = frozenset(self._of(incident)) if incident.is_open else frozenset()
        before = self._keys.get(incident.id, frozenset())
        if keys == before:
            return
        self._keys[incident.id] = keys
        self._found.clear()
        for key in before - keys:
            self._ids[key].discard(incident.id)
        for key in keys - before:
            self._ids[key].add(incident.id)

    def drop(self, name: str) -> None:
        """Removes the incident as if it had never been opened."""
        for key in self._keys.pop(name, frozenset()):
            self._ids[key].discard(name)
        self._found.clear()

    def find(self, node: str | None, jobs: Collection[str], root: Component | None) -> list[str]:
        """Ids of matching open incidents, in the order of their first `put`: incidents of the node, of
        exactly this root or its cable's other end, and incidents of these jobs that blame no hardware."""
        keys: list[Hashable] = [("soft", job) for job in jobs]
        if node:
            keys.append(("node", node))
        if root is not None:
            keys += self._at(root)
        return self._sorted(tuple(keys))

    def hard(self, node: str | None, jobs: Collection[str]) -> list[str]:
        """Ids of hardware incidents of the node or of any of the jobs."""
        keys: list[Hashable] = [("hard", job) for job in jobs]
        return self._sorted((*keys, ("hard node", node)) if node else tuple(keys))

    def of_rule(self, rule: str) -> list[str]:
        return self._sorted((("rule", rule),))

    def of_fault(self, fault: str) -> list[str]:
        return self._sorted((("fault", fault),))

    def of_share(self, sharing: str, place: str) -> list[str]:
        return self._sorted((("share", sharing, place),))

    def _sorted(self, keys: tuple[Hashable, ...]) -> list[str]:
        """Sorted ids, cached until the index changes: a flood makes the same query 10,000 times."""
        ids = self._found.get(keys)
        if ids is None:
            found: set[str] = set()
            found.update(*(self._ids.get(key, ()) for key in keys))
            ids = self._found[keys] = sorted(found, key=self._order.__getitem__)
        return ids

    def _at(self, where: Component) -> list[Hashable]:
        link = self._link_of(where)
        return [("root", where), *([("link", link)] if link is not None else ())]

    def _of(self, incident: Incident) -> list[Hashable]:
        hard = incident.fault_class in HARDWARE and incident.fault != JOB_SLOW
        node, jobs = incident.root.node, incident.jobs_hit
        keys: list[Hashable] = [("root", incident.root), ("rule", incident.rule), ("fault", incident.fault)]
        keys += [("hard" if hard else "soft", job) for job in jobs]
        if node:
            keys.append(("node", node))
            if hard:
                keys.append(("hard node", node))
        parts = (incident.root, *incident.affected[:_PARTS])
        keys += [("link", link) for part in parts if (link := self._link_of(part)) is not None]
        shares = self._shares_of(incident.fault, incident.root)
        return [*keys, *(("share", sharing.name, place) for sharing, place in shares)]


class Book:
    """The open incidents of a walk. `changed` must be saved; `placed` has the incident of each finding.

    `find` returns any incident by its id, even one that ended long ago, so that its evidence does not open
    another one.
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
        #: Incidents that a fatal fault joined after their jobs were listed; True: the fault made the node
        #: certainly unusable.
        self.wider: dict[str, bool] = {}
        self.index = OpenIndex(rules.topology.of(picture.cluster).link_of, self.places.keys)
        self.hits = Hits(picture)
        #: Incidents opened in this walk; and for opened incidents that were dropped again, the ids of their
        #: replacements.
        self.born: set[str] = set()
        self._into: dict[str, str] = {}
        #: Incidents merged in this walk, in their earlier form, by root.
        self._merged: dict[str, list[Incident]] = {}
        #: Findings that are only counted, by incident; written once, for a flood.
        self._to_count: dict[str, list[Finding]] = {}
        latest = now + timedelta(seconds=rules.settle_s)
        for incident in incidents:
            if incident.settle_until <= latest:
                self._keep(incident)
            else:  # opened by a clock that was ahead: nothing would be decided until then
                self.put(msgspec.structs.replace(incident, settle_until=latest))

    def put(self, incident: Incident) -> None:
        self._keep(incident)
        self.changed[incident.id] = incident

    def _keep(self, incident: Incident) -> None:
        self.index.put(incident)
        self.by_id[incident.id] = incident

    def close_book(self) -> None:
        """Writes the counts, and moves findings of dropped incidents to their replacements."""
        self.write_counts()
        self.placed = [(self._into.get(name, name), finding) for name, finding in self.placed]

    # --- reading --------------------------------------------------------------------------------------------

    def these(self, names: Sequence[str]) -> Iterator[Incident]:
        return (self.by_id[name] for name in tuple(names) if name in self.by_id)

    def at(self, node: str | None, jobs: Collection[str], root: Component | None) -> Iterator[Incident]:
        return self.these(self.index.find(node, jobs, root))

    def earlier(self, name: str) -> Incident | None:
        return self.by_id.get(name) or self.find(name)

    def root_of(self, name: str) -> Incident | None:
        """The incident, or the incident that it was merged into."""
        for _ in range(MERGED_MOST):
            incident = self.earlier(name)
            if incident is None or incident.merged_into is None:
                return incident
            name = incident.merged_into
        return None

    # --- opening --------------------------------------------------------------------------------------------

    def opened(self, finding: Finding) -> Incident:
        rule, where = self.policies.of(finding), finding.component
        shown = self.picture.slurm_node(where.node)
        held = shown is not None and (shown.drain or shown.base == "DOWN")
        foreign = shown if shown and held and shown.reason and not is_ours(shown.reason) else None
        owner = foreign.owner if foreign else None
        # A measured fault that is not fatal needs no settling: it has lasted for its rule's time.
        has_lasted = finding.fault_class is not FaultClass.fatal and finding.evidence[0].sense in MEASURED
        settle_s = 0.0 if has_lasted else self.rules.settle_s
        opened = Incident(
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
            nodes=verdicts(finding, asks=asks_for_action(rule, finding)),
            remedy=remedy_of(rule, finding),
            jobs_hit=self.hits.at_begin(finding, self.now),
            evidence=limit_evidence(finding.evidence),
            evidence_count=len(finding.evidence),
            unusable=finding.unusable,
            node_was_out=shown is not None and was_out(shown, finding),
            owner=(owner.name or "unknown") if owner else None,
            owner_since=foreign.reason_at if foreign else None,
        )
        return msgspec.structs.replace(opened, heard=add_reports(opened, finding))

    def open_over(self, finding: Finding, **fields: Any) -> Incident | None:
        """A new incident that covers others; its id is derived from its root and their first evidence. None
        if it was opened before."""
        opened = msgspec.structs.replace(self.opened(finding), **fields)
        if self.earlier(opened.id) is not None:
            return None
        self.born.add(opened.id)
        self.put(opened)
        self.placed.append((opened.id, finding))
        return opened

    # --- counting -------------------------------------------------------------------------------------------

    def count(self, incident: Incident, finding: Finding) -> None:
        if self.picture.first_count(finding.evidence[0].digest):
            self._to_count.setdefault(incident.id, []).append(finding)

    def write_counts(self) -> None:
        for name, findings in self._to_count.items():
            if counts := self.by_id.get(self._into.get(name, name)):
                self.put(count_findings(counts, findings, self.now))
        self._to_count.clear()

    # --- merging --------------------------------------------------------------------------------------------

    def merge(self, other: Incident, root: Incident) -> None:
        """Merges `other` into its root. An incident that was opened in this walk is dropped without a
        trace."""
        if other.id not in self.born:
            self._merged.setdefault(root.id, []).append(other)
            self.put(merge_into(other, root, self.now))
            return
        self._into[other.id] = root.id
        self.index.drop(other.id)
        for incidents in (self.by_id, self.changed):
            incidents.pop(other.id, None)
        for incident in self._merged.pop(other.id, ()):  # no longer a root
            self.put(incident)
