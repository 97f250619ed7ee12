"""Incident -> decision: what would be done, what every guard says, and how urgent that makes it."""

from datetime import datetime
from itertools import takewhile

from healer.decisions.ask import adopts
from healer.decisions.capacity import out_of_service
from healer.decisions.gate import judge
from healer.decisions.guards import recent
from healer.decisions.places import settings_of_node
from healer.decisions.slots import looks_first, stands_beside
from healer.incidents.senses import ended_work, not_looked, senses_of, too_few
from healer.incidents.severity import urgency_of
from healer.model import (
    REMEDY_LADDER,
    REMOVING_VERBS,
    Decision,
    FaultClass,
    GateFacts,
    Guard,
    Incident,
    Outcome,
    Playbook,
    Proposal,
    Remedy,
    Rule,
    Ruleset,
    Run,
    RunState,
    Severity,
    Verb,
)
from healer.model.reasons import is_ours
from healer.model.reserved import our_reservation, reservation_for

#: Verbs that are a remedy, the strongest first.
_REMEDIES = {
    Verb.power_cycle: Remedy.power_cycle,
    Verb.reboot: Remedy.reboot_node,
    Verb.reset_gpu: Remedy.drain_then_reset,
    Verb.restart_service: Remedy.restart_service,
    Verb.diagnose: Remedy.diagnose,
}

#: A run in one of these states still asks the gate; the others are under way or wait for somebody.
_ASKING = frozenset({RunState.proposed, RunState.waiting_approval, RunState.held})


def decide(
    incident: Incident, rule: Rule, facts: GateFacts, rules: Ruleset, now: datetime, active: Run | None
) -> Decision | None:
    """What to do about an incident now. None: nothing to decide (settling, ended, a run is under way).

    `active` is the incident's run that has not ended. The caller starts the run when `outcome` is act, and
    stores a decision only when it says something new: figures move with the clock.
    """
    if not incident.is_open or now < incident.settle_until:
        return None
    if active is not None and active.state not in _ASKING:
        return None
    if rule.playbook is None:
        return _nothing(
            incident, None, f"Rule {rule.name} has no playbook: people are told, nothing is done.", now
        )
    if (active is None or active.approved_by is None) and (why := _not_now(incident, rule, now)):
        return _nothing(incident, rule.playbook, why, now) if active is None else _stays(active, why, now)
    verb, job = _first_step(rules.playbooks.get(rule.playbook), incident)
    node = incident.root.node
    if job is None and (node is None or verb in {Verb.requeue, Verb.revive, Verb.cancel}):
        return _nothing(incident, rule.playbook, f"{incident.title}: it names no node or job to act on.", now)
    shown = facts.snapshot.jobs.get(job) if facts.snapshot is not None and job is not None else None
    if job is not None and shown is None:
        return _nothing(incident, rule.playbook, f"Slurm's picture does not show job {job}.", now)
    other = facts.running.get(node or "")
    beside = stands_beside(rules.playbooks.get(rule.playbook))
    if other is not None and not beside and (active is None or other != active.id):
        return _nothing(incident, rule.playbook, f"Run {other} is at work on {node}: it goes first.", now)
    out = out_by_us(node, facts) if verb is Verb.drain and node else None
    if out and not _is_left_to(incident, facts) and not _leaves_jobs_behind(incident, facts):
        return _nothing(incident, rule.playbook, out, now)
    proposal = Proposal(
        cluster=incident.cluster,
        verb=verb,
        node=node,
        job=shown.leader if shown is not None else None,
        restarts=shown.restarts if shown is not None else None,
        incident=incident.id,
        run=active.id if active else None,
        rule=rule.name,
        playbook=rule.playbook,
        remedy=_carried_out(rules.playbooks.get(rule.playbook))
        or next_remedy(incident, rule, facts, rules, now),
        mode=facts.modes.get(rule.name) or rules.mode_of(rule),
        unusable=incident.unusable,
        fatal=ended_work(incident),
        approved_by=active.approved_by if active else None,
        begins=looks_first(verb, rules.playbooks.get(rule.playbook)),
        adopts=rule.playbook in rules.playbooks and adopts(rules.playbooks[rule.playbook]),
        urgency=urgency_of(incident, facts.snapshot),
    )
    result = judge(proposal, facts, rules, now)
    target = f"job {job}" if job and verb is not Verb.drain else node
    what = f"{rule.playbook} begins on {target}" if proposal.begins else f"{verb} {target}"
    why = f"{what}: every guard allows it." if result.outcome is Outcome.act else result.why
    return Decision(
        at=now,
        cluster=incident.cluster,
        incident=incident.id,
        playbook=rule.playbook,
        outcome=result.outcome,
        why=why,
        proposal=proposal,
        answers=result.answers,
        guard=result.guard,
        run=proposal.run,
        facts=_facts(facts, rules, now),
    )


def _not_now(incident: Incident, rule: Rule, now: datetime) -> str | None:
    """Why nothing begins by itself, although the fault was told: nobody says that it stands now."""
    if why := not_looked(incident, now):
        return f"{why}."
    if incident.clear_since is not None:
        return f"Well again since {incident.clear_since:%H:%M:%S} UTC: nothing is done unless it comes back."
    too_little = rule.senses > 1 and len(senses_of(incident, now)) < rule.senses
    return too_few(incident, rule.senses, now) if too_little and incident.root.node is not None else None


def _stays(run: Run, why: str, now: datetime) -> Decision:
    """A run that waits for leave goes on to wait: no guard was asked."""
    return Decision(
        at=now,
        cluster=run.cluster,
        incident=run.incident,
        playbook=run.playbook,
        outcome=Outcome.held,
        why=why,
        run=run.id,
    )


def _nothing(incident: Incident, playbook: str | None, why: str, now: datetime) -> Decision:
    return Decision(
        at=now,
        cluster=incident.cluster,
        incident=incident.id,
        playbook=playbook,
        outcome=Outcome.nothing,
        why=why,
    )


def _first_step(playbook: Playbook | None, incident: Incident) -> tuple[Verb, str | None]:
    """The verb that the gate is asked about: the playbook's first removing step, else its first act."""
    if playbook is None:
        return Verb.drain, None
    acts = [step.do for step in playbook.steps if step.do is not None]
    verb = next((verb for verb in acts if verb in REMOVING_VERBS), acts[0] if acts else Verb.notify)
    return verb, incident.root.job if playbook.target == "job" else None


def out_by_us(node: str, facts: GateFacts) -> str | None:
    """A drain of ours stands already, or is under way: a second one would change nothing."""
    shown = facts.snapshot.nodes.get(node) if facts.snapshot else None
    if shown and shown.drain and is_ours(shown.reason):
        return f"{node} is out of service already: {shown.reason}."
    if shown and shown.drain:
        return None  # somebody has replaced our reason since: ownership says whose it is
    slot = facts.held.get(node)
    if slot is None:
        return None
    return f"{node} is being taken out already by run {slot.run}."


def _is_left_to(incident: Incident, facts: GateFacts) -> bool:
    """A milder one has given way. Its drain stands, or its tests, and the slot is this incident's."""
    shown = facts.snapshot.nodes.get(incident.root.node or "") if facts.snapshot else None
    if shown is None:
        return False
    kept = our_reservation(facts.snapshot, shown.name)
    if kept is None and not (shown.drain and is_ours(shown.reason)):
        return False
    if f" inc:{incident.short_id}" in shown.reason or (kept and kept.name == reservation_for(incident.id)):
        return False  # taken out for this very incident
    slot = facts.held.get(shown.name)
    return slot is not None and slot.incident == incident.id


def _leaves_jobs_behind(incident: Incident, facts: GateFacts) -> bool:
    """A fatal fault on a node that was drained for something else, where its jobs may end by themselves.

    They hang on the dead GPU now, and whoever drained the node requeues nobody. A run of this incident finds
    the drain, and goes on to the jobs; once it has listed them this is over, so it happens once. The proposal
    does not ride on the other's slot: mode and approval were answered for another rule, or for a person.
    """
    if incident.fault_class is not FaultClass.fatal or incident.jobs_hit_final or facts.snapshot is None:
        return False
    shown = facts.snapshot.nodes.get(incident.root.node or "")
    if shown is None or not (shown.drain and is_ours(shown.reason)):
        return False
    slot = facts.held.get(shown.name)
    if slot is not None and slot.incident == incident.id:
        return False
    alive = {
        job.id
        for job in facts.snapshot.jobs_on(shown.name)
        if job.state in {"RUNNING", "SUSPENDED"} and "COMPLETING" not in job.flags
    }
    return not alive.isdisjoint(incident.jobs_hit)


def _carried_out(playbook: Playbook | None) -> Remedy | None:
    """What the playbook itself tries. It does nothing else the next time: so it does not climb the ladder.

    One that asks for the remedy itself climbs it; and what a person has to approve within the run is theirs.
    """
    steps = playbook.steps if playbook is not None else ()
    if any("verdict.remedy" in (step.when or "") for step in steps):
        return None
    verbs = {step.do for step in takewhile(lambda step: step.wait != "approval", steps)}
    return next((remedy for verb, remedy in _REMEDIES.items() if verb in verbs), None)


def next_remedy(incident: Incident, rule: Rule, facts: GateFacts, rules: Ruleset, now: datetime) -> Remedy:
    """The smallest remedy on the ladder, from the incident's own upwards, not tried on the node of late."""
    wanted = incident.remedy or rule.remedy
    first = next((remedy for remedy in wanted if remedy in REMEDY_LADDER), Remedy.none)
    node = incident.root.node
    if first is Remedy.none or node is None:
        return first
    shown = facts.snapshot.nodes.get(node) if facts.snapshot else None
    span = max(one.repeat for one in settings_of_node(rules, incident.cluster, shown))
    ladder = REMEDY_LADDER[REMEDY_LADDER.index(first) :]
    for remedy in ladder:
        if not recent(
            [use.at for use in facts.remedies if (use.node, use.remedy) == (node, remedy)], now, span
        ):
            return remedy
    return ladder[-1]


def _facts(facts: GateFacts, rules: Ruleset, now: datetime) -> dict[str, object]:
    """What the decision rested on, in figures, for the record."""
    snapshot = facts.snapshot
    if snapshot is None:
        return {"rules": rules.version, "picture_age_s": None}
    fleet = snapshot.gpu_nodes
    return {
        "rules": rules.version,
        "picture_age_s": round((now - snapshot.taken_at).total_seconds(), 3),
        "gpu_nodes": len(fleet),
        "in_service": len(fleet) - len(out_of_service(facts, rules, now)),
        "slots": len(facts.slots),
    }


def severity_of(incident: Incident, decision: Decision | None, facts: GateFacts | None) -> Severity:
    """How urgent it is for a person.

    P0: a fatal fault hits service (the node still takes jobs, or jobs were on it) and healer cannot or may
    not act, whichever guard says so: in shadow mode too nobody acts unless a person does. No P0: planned
    work, and a node that a person holds already (the owner has it). Acted on, the rule's own severity stands,
    P1 at most. Without a decision nothing was held back, so there is no P0 either.
    """
    if incident.plan:
        return incident.severity  # what goes on at the node bounds it
    base = incident.severity if incident.severity is not Severity.P0 else Severity.P1
    if decision is None or decision.outcome not in {Outcome.held, Outcome.refused}:
        return base
    if not (incident.unusable or incident.fault_class is FaultClass.fatal):
        return base
    node = facts.snapshot.nodes.get(incident.root.node or "") if facts and facts.snapshot else None
    in_service = node is None or node.in_service  # an unknown node is not known to be out
    if decision.guard is Guard.maintenance or (decision.guard is Guard.ownership and not in_service):
        return base
    return Severity.P0 if incident.jobs_hit or in_service else base
