"""Context before judgement: what is told of a node while something else goes on there.

Slurm says what goes on. Without a picture of it, or with an old one, there is no context: a fault is judged
as ever, and what takes capacity away waits for a newer picture anyway.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from healer.incidents.aside import with_aside
from healer.incidents.correlate import Correlator
from healer.incidents.goings import PICTURE_LASTS, Going, at_jobs, at_node, table_of
from healer.model import (
    Component,
    ContextKind,
    ContextRule,
    FaultClass,
    Finding,
    Incident,
    Maintenance,
    Ruleset,
    SetAside,
    SlurmNode,
)
from healer.observations import Picture

#: Whether work is planned on a node: by the site's list or by Slurm.
Planned = Callable[[SlurmNode], Maintenance | None]


class Context:
    """What goes on at each node at this moment, worked out once per node."""

    def __init__(self, rules: Ruleset, picture: Picture, now: datetime, planned: Planned) -> None:
        self.picture, self.now, self.planned = picture, now, planned
        self._table = table_of(rules.context)
        shown = picture.slurm
        self._slurm = shown if shown is not None and now - shown.taken_at <= PICTURE_LASTS else None
        self._known: dict[str, tuple[Going, ...]] = {}

    def of(self, node: str) -> tuple[Going, ...]:
        known = self._known.get(node)
        if known is None:
            shown = self._slurm.nodes.get(node) if self._slurm is not None else None
            known = self._known[node] = tuple(self._going(shown)) if shown is not None else ()
        return known

    def rule_for(self, fault: str, where: Component, jobs: Sequence[str]) -> tuple[ContextRule, Going] | None:
        """The first rule that speaks of the fault now, and what goes on."""
        if where.node is None or self._slurm is None:
            return None
        going = self.of(where.node)
        for rule in self._table.of(fault):
            held = self._started(where, jobs) if rule.when is ContextKind.job_start else going
            for one in held:
                fits = one.kind is rule.when
                if fits and (one.since is None or self.now - one.since < rule.lasts):
                    return rule, one
        return None

    def _going(self, node: SlurmNode) -> list[Going]:
        known = self.picture.nodes.get(node.name)
        return at_node(
            node,
            planned=self.planned(node),
            booted_at=known.booted_at if known is not None else None,
            driver=self.picture.new_versions.get(node.name, {}).get("driver"),
        )

    def _started(self, where: Component, jobs: Sequence[str]) -> tuple[Going, ...]:
        """When the first of the jobs that it is about began; nothing if one of them is not known."""
        assert self._slurm is not None
        named = [*jobs, *([where.job] if where.job else [])]
        there = [self._slurm.jobs.get(one) for one in named] or self._slurm.jobs_on(where.node or "")
        started = at_jobs(there)
        return (started,) if started is not None else ()


class Passed(NamedTuple):
    """A finding that is not told now, and why."""

    finding: Finding
    rule: ContextRule
    going: Going


def told_now(context: Context, findings: Sequence[Finding]) -> tuple[list[Finding], list[Passed]]:
    """Parts the findings into those that are told and those that what goes on explains.

    A fatal line of the kernel is told whatever goes on: it comes once, and nobody would say it again.
    """
    told, passed = [], []
    for one in findings:
        found = context.rule_for(one.fault, one.component, one.jobs)
        certain = one.fault_class is FaultClass.fatal and bool(one.evidence[0].line)
        if found is None or found[0].tells or certain:
            told.append(one)
        else:
            passed.append(Passed(one, *found))
    return told, passed


def note_context(
    context: Context, work: Correlator, passed: Sequence[Passed], rules: Ruleset
) -> list[tuple[str, str, str]]:
    """Incidents are no more urgent than what goes on at their node allows, and as urgent as ever when it is
    over; what was passed over is noted beside them. Returns what was passed over for the first time since it
    goes on: node, fault, why."""
    for incident in list(work.by_id.values()):
        if incident.is_open and (changed := _placed(context, incident, rules)) != incident:
            work.put(msgspec.structs.replace(changed, updated=context.now))
    return _note_passed(context, work, passed)


def _placed(context: Context, incident: Incident, rules: Ruleset) -> Incident:
    found = context.rule_for(incident.fault, incident.root, incident.jobs_hit)
    bound = found[0] if found is not None and found[0].tells else None
    if bound is not None and bound.severity is not None:
        if incident.run is not None and not incident.plan:
            return incident  # healer works on it: the run's own steps ask the gate
        cause = bound.cause or incident.cause
        severity = max(incident.severity, bound.severity)
        return msgspec.structs.replace(
            incident, severity=severity, cause=cause, plan=bound.name, p0_since=None
        )
    rule = rules.by_name.get(incident.rule)
    if not incident.plan or rule is None:
        return incident
    return msgspec.structs.replace(incident, severity=rule.severity, cause=rule.cause, plan="")


def _note_passed(context: Context, work: Correlator, passed: Sequence[Passed]) -> list[tuple[str, str, str]]:
    """Once for each fault of a node while it goes on; a condition that stands is found by every walk."""
    known = context.picture.passed_over
    still = {(one.finding.component, one.finding.fault, one.rule.name) for one in passed}
    fresh = []
    for one in passed:
        finding = one.finding
        key = (finding.component, finding.fault, one.rule.name)
        if key in known:
            continue
        node = finding.component.node or ""
        fresh.append((node, finding.fault, f"{finding.headline}: {one.going.text}"))
        beside = next(iter(work.at(node, (), finding.component)), None)
        if beside is not None:
            aside = SetAside(
                at=context.now, what=finding.headline, why=one.going.text, component=finding.component
            )
            work.put(with_aside(work.by_id[beside.id], aside))
    for key in known:
        if key in still or context.rule_for(key[1], key[0], ()) is not None:
            still.add(key)
    context.picture.passed_over = still
    return fresh
