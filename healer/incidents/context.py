"""Context: findings about a node while planned work, a reboot or another activity goes on there.

Slurm reports the activity. Without a recent Slurm snapshot there is no context: faults are judged as usual,
and anything that takes capacity waits for a fresh snapshot anyway.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

import msgspec

from healer.incidents.book import Book
from healer.incidents.growth import add_ruled_out
from healer.incidents.lifecycle import entry_of_plan, is_planned
from healer.model import (
    Component,
    ContextKind,
    ContextRule,
    FaultClass,
    Finding,
    Incident,
    IncidentState,
    Maintenance,
    RuledOut,
    Ruleset,
    SlurmJob,
    SlurmNode,
)
from healer.model.faults import fits
from healer.model.rules import HUMAN_WORK
from healer.model.slurm import SWITCHED_OFF, is_empty_reason, is_ours, slurm_kind
from healer.observations import Picture
from healer.text import NO_WORDS, Said, quoted, say

#: An older Slurm snapshot says nothing about present activity.
PICTURE_LASTS = timedelta(minutes=5)
#: Limit of the cache: hooks and drains may bring any number of fault names.
_FAULTS_KEPT = 10_000


class Activity(NamedTuple):
    """An activity on a node. `since`: when it began; `until`: its end, if known in advance."""

    kind: ContextKind
    text: Said
    since: datetime | None = None
    until: datetime | None = None


class ContextTable:
    """The entries of `rules/context.yaml` for a fault, cached by fault."""

    def __init__(self, rules: tuple[ContextRule, ...]) -> None:
        self.rules = rules
        self._known: dict[str, tuple[ContextRule, ...]] = {}

    def of(self, fault: str) -> tuple[ContextRule, ...]:
        rules = self._known.get(fault)
        if rules is None:
            if len(self._known) >= _FAULTS_KEPT:
                self._known.clear()
            fitting = (rule for rule in self.rules if fits(fault, rule.faults) and not fits(fault, rule.but))
            rules = self._known[fault] = tuple(fitting)
        return rules

    def lasts(self, kind: ContextKind) -> timedelta:
        """How long an activity of this kind, which has only a start, explains anything; 0: it explains
        nothing."""
        return max((rule.lasts for rule in self.rules if rule.when is kind), default=timedelta(0))


@lru_cache(maxsize=4)
def table_of(rules: tuple[ContextRule, ...]) -> ContextTable:
    """One table per set of rules, kept as long as the rules are in use."""
    return ContextTable(rules)


def at_node(
    node: SlurmNode,
    *,
    planned: Maintenance | None,
    worked_until: datetime | None = None,
    booted_at: datetime | None,
    driver: tuple[str, datetime] | None,
) -> list[Activity]:
    """The activities on a node other than its jobs. `planned`: the work planned now; `worked_until`: the end
    of the last planned work; `booted_at`: as reported by the node (Slurm reports it too); `driver`: its new
    version, and since when."""
    found = []
    state = "+".join(node.state)
    if SWITCHED_OFF.intersection(node.state):
        found.append(Activity(ContextKind.power_saving, say("incidents.saves_power", state=state)))
    elif planned is not None:
        text = say("incidents.planned_work", why=quoted(planned.why))
        found.append(Activity(ContextKind.maintenance, text, until=planned.until))
    elif worked_until is not None:
        text = say("incidents.work_ended", time=f"{worked_until:%H:%M:%S}")
        found.append(Activity(ContextKind.worked_on, text, worked_until))
    if node.starting:
        found.append(Activity(ContextKind.rebooting, say("incidents.starting", state=state)))
    booted = [at for at in (node.boot_at, booted_at) if at is not None]
    if booted:
        at = max(booted)
        found.append(Activity(ContextKind.booted, say("incidents.booted", time=f"{at:%H:%M:%S}"), at))
    if driver is not None:
        version, since = driver
        text = say("incidents.new_driver", version=version, time=f"{since:%H:%M:%S}")
        found.append(Activity(ContextKind.new_driver, text, since))
    if node.drain and not (is_ours(node.reason) or is_empty_reason(node.reason) or slurm_kind(node.reason)):
        who = quoted(node.reason_by) or say("incidents.somebody")
        text = say("incidents.drained_by", who=who, reason=quoted(node.reason))
        found.append(Activity(ContextKind.drained, text))
    return found


def at_jobs(jobs: Sequence[SlurmJob | None]) -> Activity | None:
    """When the first of these jobs began; None without jobs, or if one of them is unknown."""
    began = [job.start_at for job in jobs if job is not None and job.start_at is not None]
    if not jobs or len(began) != len(jobs):
        return None
    at = min(began)
    return Activity(ContextKind.job_start, say("incidents.job_began", time=f"{at:%H:%M:%S}"), at)


#: The planned work on a node, by the site's list or by Slurm.
Planned = Callable[[SlurmNode], Maintenance | None]


class Context:
    """The activity at each node at this moment, computed once per node."""

    def __init__(self, rules: Ruleset, picture: Picture, now: datetime, planned: Planned) -> None:
        self.picture, self.now, self.planned = picture, now, planned
        self._table = table_of(rules.context)
        shown = picture.slurm
        self._slurm = shown if shown is not None and now - shown.taken_at <= PICTURE_LASTS else None
        self._known: dict[str, tuple[Activity, ...]] = {}

    def of(self, node: str) -> tuple[Activity, ...]:
        activities = self._known.get(node)
        if activities is None:
            shown = self._slurm.nodes.get(node) if self._slurm is not None else None
            activities = self._known[node] = tuple(self._activities(shown)) if shown is not None else ()
        return activities

    def drained_before(self, incident: Incident) -> bool:
        """Whether the drain on its node is older than the fault, though Slurm was read after it."""
        name = incident.root.node or ""
        shown = self._slurm.nodes.get(name) if self._slurm is not None else None
        if shown is None or not shown.drain or shown.reason_at is None:
            return False
        node = self.picture.node(name)
        begun = (node.moment(seen.at, seen.arrived_at or self.now) for seen in incident.evidence)
        return shown.reason_at <= min(begun, default=self.now)

    def rules_of(self, fault: str) -> tuple[ContextRule, ...]:
        return self._table.of(fault)

    def ended(self, incident: Incident) -> datetime:
        """When the work on the incident's node ended: as recorded, else now."""
        noted = self.picture.changes.work_ended.get(incident.root.node or "")
        return noted if noted is not None and noted >= incident.opened else self.now

    def rule_for(
        self, fault: str, where: Component, jobs: Sequence[str]
    ) -> tuple[ContextRule, Activity] | None:
        """The first rule that applies to the fault now, and the activity."""
        if where.node is None or self._slurm is None:
            return None
        present = self.of(where.node)
        for rule in self._table.of(fault):
            held = self._job_start(where, jobs) if rule.when is ContextKind.job_start else present
            for activity in held:
                if activity.kind is rule.when and (
                    activity.since is None or self.now - activity.since < rule.lasts
                ):
                    return rule, activity
        return None

    def _activities(self, node: SlurmNode) -> list[Activity]:
        state = self.picture.nodes.get(node.name)
        return at_node(
            node,
            planned=self.planned(node),
            worked_until=self.picture.changes.work_ended.get(node.name),
            booted_at=state.booted_at if state is not None else None,
            driver=self.picture.new_versions.get(node.name, {}).get("driver"),
        )

    def _job_start(self, where: Component, jobs: Sequence[str]) -> tuple[Activity, ...]:
        """The start of the first of its jobs, as an activity; empty if one of them is unknown."""
        assert self._slurm is not None
        named = [*jobs, *([where.job] if where.job else [])]
        there = [self._slurm.jobs.get(job) for job in named] or self._slurm.jobs_on(where.node or "")
        started = at_jobs(there)
        return (started,) if started is not None else ()


class PassedOver(NamedTuple):
    """A finding that is explained by activity on its node, and that activity."""

    finding: Finding
    rule: ContextRule
    going: Activity

    @property
    def key(self) -> tuple[Component, str, str]:
        return self.finding.component, self.finding.fault, self.rule.name


def split_by_context(context: Context, findings: Sequence[Finding]) -> tuple[list[Finding], list[PassedOver]]:
    """Splits the findings into those to report and those that activity on the node explains.

    A fatal kernel line is always reported, because it comes only once.
    """
    reported, passed = [], []
    for finding in findings:
        found = context.rule_for(finding.fault, finding.component, finding.jobs)
        certain = finding.fault_class is FaultClass.fatal and bool(finding.evidence[0].line)
        if found is None or found[0].is_reported or certain:
            reported.append(finding)
        else:
            passed.append(PassedOver(finding, *found))
    return reported, passed


def apply_context(
    context: Context, work: Book, passed: Sequence[PassedOver], rules: Ruleset
) -> list[tuple[str, str, Said]]:
    """Bounds the severity of incidents by the activity on their node, and restores it afterwards; adds
    explained findings to them as ruled out. Returns those explained for the first time: (node, fault,
    why)."""
    _bound_incidents(context, work, rules, list(work.by_id.values()))
    return _record_passed(context, work, passed)


def end_planned_work(context: Context, work: Book, rules: Ruleset) -> None:
    """Marks incidents whose planned work has ended as waiting for proof, before the walk's findings are
    placed: findings after the work confirm faults that arose under it."""
    _bound_incidents(context, work, rules, [incident for incident in work.by_id.values() if incident.plan])


def _bound_incidents(context: Context, work: Book, rules: Ruleset, incidents: Sequence[Incident]) -> None:
    """Bounds each open incident by the activity on its node, and updates it once the activity is over."""
    for incident in incidents:
        if incident.is_open and (changed := _bounded(context, incident, rules)) != incident:
            work.put(msgspec.structs.replace(changed, updated=context.now))


def _bounded(context: Context, incident: Incident, rules: Ruleset) -> Incident:
    found = context.rule_for(incident.fault, incident.root, incident.jobs_hit)
    bound = found[0] if found is not None and found[0].is_reported else None
    fresh = incident.opened == context.now and not incident.plan
    late = _rule_for_late_lines(context, incident) if bound is None and fresh else None
    bound = bound or late
    if bound is not None and bound.severity is not None:
        if incident.state is not IncidentState.open and not incident.plan:
            return incident  # healer works on it, and the run's own steps ask the gate
        return msgspec.structs.replace(
            incident,
            severity=max(incident.severity, bound.severity),
            cause=bound.cause or incident.cause,
            plan=quoted(bound.name),
            waits_since=context.now if late is not None else None,
            seen_again=None,
            node_was_out=incident.node_was_out
            or (fresh and bound.when is ContextKind.maintenance)
            or (bound.when is ContextKind.drained and context.drained_before(incident)),
            p0_since=None,
        )
    rule = rules.by_name.get(incident.rule)
    if not incident.plan or rule is None:
        return incident
    ended = entry_of_plan(rules, incident)
    if ended is not None and ended.when in HUMAN_WORK and not _outlasts(incident):
        over = incident.waits_since or context.ended(incident)
        # Evidence from before the work is not caused by the work.
        cause = incident.cause if incident.node_was_out else rule.cause
        return msgspec.structs.replace(incident, waits_since=over, cause=cause)
    return msgspec.structs.replace(
        incident, severity=rule.severity, cause=rule.cause, plan=NO_WORDS, waits_since=None
    )


def _outlasts(incident: Incident) -> bool:
    """Nothing need be seen again after the work: it has been, or a remedy was planned before the work, and
    only proof ends that (law 10), not a line that is not repeated."""
    return incident.seen_again is not None or (is_planned(incident) and not incident.node_was_out)


def _rule_for_late_lines(context: Context, incident: Incident) -> ContextRule | None:
    """The entry for planned work, for lines that were written before its end but arrived afterwards."""
    ended, lines = context.picture.changes.work_ended.get(incident.root.node or ""), incident.evidence
    if ended is None or not all(line.line for line in lines):
        return None
    node = context.picture.node(incident.root.node or "")
    if any(node.moment(line.at, line.arrived_at or context.now) > ended for line in lines):
        return None
    rules = context.rules_of(incident.fault)
    return next((rule for rule in rules if rule.when is ContextKind.maintenance and rule.is_reported), None)


def _record_passed(context: Context, work: Book, passed: Sequence[PassedOver]) -> list[tuple[str, str, Said]]:
    """Records each explained fault of a node once per activity, although every walk finds a lasting condition
    again."""
    passed_over = context.picture.passed_over
    still = {entry.key for entry in passed}
    fresh = []
    for entry in passed:
        finding = entry.finding
        if entry.key in passed_over:
            continue
        node = finding.component.node or ""
        why = say("incidents.passed_over", what=finding.headline, why=entry.going.text)
        fresh.append((node, finding.fault, why))
        incident = next(iter(work.at(node, (), finding.component)), None)
        if incident is not None:
            ruled_out = RuledOut(
                at=context.now, what=finding.headline, why=entry.going.text, component=finding.component
            )
            work.put(add_ruled_out(work.by_id[incident.id], ruled_out))
    for key in passed_over:
        if key in still or context.rule_for(key[1], key[0], ()) is not None:
            still.add(key)
    context.picture.passed_over = still
    return fresh
