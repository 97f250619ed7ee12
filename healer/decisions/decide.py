"""Incident -> decision: what would be done, every guard's answer, and the resulting severity. Then the run:
what it asks of the gate, and when it takes its node's slot.

The slot is taken when the first removing step starts (law 1): only the worker grants it, under the gate's
lock. So a verdict when a run begins is advice, and that step is judged again in full.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from hashlib import sha256
from itertools import takewhile

import msgspec

from healer.decisions.capacity import out_of_service
from healer.decisions.guards import SLOT_VERBS, JudgeResult, judge, repeat_span, tries_of, within_span
from healer.incidents.certainty import (
    is_proven_fatal,
    is_proven_unusable,
    lacks_senses,
    unproven_senders,
    why_not_looked,
    why_too_few_senses,
)
from healer.incidents.impact import urgency_of
from healer.incidents.part_history import rung_of
from healer.incidents.second_look import is_denied
from healer.model import (
    APPROVAL_LASTS,
    JOB_VERBS,
    REMEDY_LADDER,
    REMOVING_VERBS,
    RESTARTING_VERBS,
    Decision,
    FaultClass,
    GateFacts,
    Guard,
    Incident,
    IncidentState,
    Mode,
    Outcome,
    OwnerKind,
    Playbook,
    Proposal,
    Remedy,
    Rule,
    Ruleset,
    Run,
    RunState,
    Severity,
    Step,
    Verb,
)
from healer.model.rules import HUMAN_WORK
from healer.model.run import run_id
from healer.model.slurm import is_ours, is_out_for, our_reservation
from healer.text import NO_WORDS, Said, say

#: Verbs that are a remedy, strongest first.
_REMEDIES = {
    Verb.power_cycle: Remedy.power_cycle,
    Verb.reboot: Remedy.reboot_node,
    Verb.reset_gpu: Remedy.drain_then_reset,
    Verb.restart_service: Remedy.restart_service,
    Verb.diagnose: Remedy.diagnose,
}
#: A remedy that may wait is planned this long after the incident opened, as the incident may turn out to be
#: part of another.
PLANS_AFTER = timedelta(minutes=3)
#: In these states a run still asks the gate; in the others it is under way, or waits for a person.
ASKING = frozenset({RunState.proposed, RunState.waiting_approval, RunState.held})


def decide(
    incident: Incident, rule: Rule, facts: GateFacts, rules: Ruleset, now: datetime, active: Run | None
) -> Decision | None:
    """What to do about an incident now. None: nothing to decide (it is settling or has ended, or a run is
    under way).

    `active` is the incident's run that has not ended. The caller starts the run if `outcome` is act, and
    stores a decision only if its `decision_key` is new.
    """
    if not incident.is_open or now < incident.settle_until:
        return None
    if active is not None and active.state not in ASKING:
        return None
    if rule.playbook is None:
        return _without_playbook(incident, rule, facts, rules, now)
    if (active is None or active.approved_by is None) and (why := _why_not_now(incident, rule, now)):
        return (
            _decide_nothing(incident, rule.playbook, why, now)
            if active is None
            else _keep_waiting(active, why, now)
        )
    playbook = rules.playbooks.get(rule.playbook)
    plans = playbook is not None and playbook.is_plan
    if active is None and plans and now - incident.opened < PLANS_AFTER:
        return None
    if why := (
        _why_unexplained(incident, rule, playbook, facts, rules, active)
        or _why_nothing_planned(incident, rule, playbook)
        or _why_not_asked(incident, playbook, facts, active)
    ):
        return _decide_nothing(incident, rule.playbook, why, now)
    proposal = _proposal(incident, rule, facts, rules, now, active)
    result = judge(proposal, facts, rules, now)
    if result.outcome is Outcome.act and proposal.approved_by is None and _is_under_work(incident, rules):
        return None  # the gate's snapshot is newer: the next walk records the end of the work
    why = _what_begins(incident, rule, proposal) if result.outcome is Outcome.act else result.why
    decision = decision_of(proposal, result, now)
    return msgspec.structs.replace(decision, why=why, facts=_facts(facts, rules, now))


def _without_playbook(
    incident: Incident, rule: Rule, facts: GateFacts, rules: Ruleset, now: datetime
) -> Decision:
    """The decision for a rule without a playbook: nothing, or the ticket that the incident asks for once it
    lasts and the rule may act alone."""
    wants = Remedy.ticket in incident.remedy and not incident.plan
    mode = rules.mode_of(rule, facts.modes)
    if not wants or mode is not Mode.auto or now - incident.opened < PLANS_AFTER:
        return _decide_nothing(incident, None, say("decisions.no_playbook", rule=rule.name), now)
    if why := _why_not_now(incident, rule, now):
        return _decide_nothing(incident, None, why, now)
    files = _decide_nothing(incident, None, say("decisions.files_ticket", rule=rule.name), now)
    return msgspec.structs.replace(files, outcome=Outcome.act)


def _what_begins(incident: Incident, rule: Rule, proposal: Proposal) -> Said:
    of_job = proposal.job is not None and proposal.verb is not Verb.drain
    where = "job" if of_job else "node"
    target = {where: incident.root.job if of_job else proposal.node}
    if proposal.begins:
        return say(f"decisions.begins_on_{where}", playbook=rule.playbook, **target)
    return say(f"decisions.acts_on_{where}", verb=say(f"words.verb_{proposal.verb}"), **target)


def _is_under_work(incident: Incident, rules: Ruleset) -> bool:
    """Whether, by the Slurm snapshot used to judge the incident, its node was under planned work: the fault
    belongs to the work until it is seen afterwards."""
    work = {entry.name for entry in rules.context if entry.when in HUMAN_WORK}
    return incident.plan in work and incident.waits_since is None and incident.seen_again is None


def _why_not_asked(
    incident: Incident, playbook: Playbook | None, facts: GateFacts, active: Run | None
) -> Said | None:
    """Why the gate has nothing to judge: no target, a run that goes first, or healer's own drain in place."""
    verb, job, node = _verb_of(playbook), _job_of(incident, playbook), incident.root.node
    if job is None and (node is None or verb in {Verb.requeue, Verb.revive, Verb.cancel}):
        return say("decisions.names_no_target", title=incident.title)
    if job is not None and (facts.snapshot is None or job not in facts.snapshot.jobs):
        return say("decisions.job_not_shown", job=job)
    other = facts.running.get(node or "")
    if other is not None and not runs_alongside(playbook) and (active is None or other != active.id):
        return say("decisions.goes_first", run=other, node=node)
    out = out_by_us(node, facts) if verb is Verb.drain and node else None
    if out and not _is_left_to(incident, facts) and not _leaves_jobs_behind(incident, facts):
        return out
    return None


def _why_unexplained(
    incident: Incident,
    rule: Rule,
    playbook: Playbook | None,
    facts: GateFacts,
    rules: Ruleset,
    active: Run | None,
) -> Said | None:
    """Law 4: unknown is never bad, also for a rule that takes every code. A person may say otherwise, by a
    rule that names the code or by approval, and is asked in the modes in which nothing happens without them.
    """
    if incident.fault_class is not FaultClass.unknown or playbook is None or takes_nothing(playbook):
        return None
    if incident.fault in rule.faults:  # the site knows what this code means
        return None
    is_approved = active is not None and active.approved_by is not None
    if is_approved or rules.mode_of(rule, facts.modes) in {Mode.suggest, Mode.approve}:
        return None
    return say("decisions.meaning_unknown", fault=incident.fault)


def _why_nothing_planned(incident: Incident, rule: Rule, playbook: Playbook | None) -> Said | None:
    """Why the playbook has nothing to wait for: the incident has neither a remedy nor a ticket."""
    if playbook is None or not playbook.is_plan:
        return None
    wanted = incident.remedy or rule.remedy
    if rung_of(wanted) is not Remedy.none or Remedy.ticket in wanted:
        return None
    return say("decisions.no_remedy_known", title=incident.title)


def _verb_of(playbook: Playbook | None) -> Verb:
    return first_verb(playbook) if playbook is not None else Verb.drain


def _job_of(incident: Incident, playbook: Playbook | None) -> str | None:
    return incident.root.job if playbook is not None and playbook.target == "job" else None


def _proposal(
    incident: Incident, rule: Rule, facts: GateFacts, rules: Ruleset, now: datetime, active: Run | None
) -> Proposal:
    """The proposal for the gate: may the run of the rule's playbook begin or continue."""
    playbook = rules.playbooks.get(rule.playbook or "")
    verb, job = _verb_of(playbook), _job_of(incident, playbook)
    shown = facts.snapshot.jobs.get(job) if facts.snapshot is not None and job is not None else None
    return Proposal(
        cluster=incident.cluster,
        verb=verb,
        node=incident.root.node,
        job=shown.leader if shown is not None else None,
        restarts=shown.restarts if shown is not None else None,
        incident=incident.id,
        run=active.id if active else None,
        rule=rule.name,
        playbook=rule.playbook or "",
        remedy=_remedy_of(playbook) or next_remedy(incident, rule, facts, rules, now),
        mode=rules.mode_of(rule, facts.modes),
        unusable=is_proven_unusable(incident),
        fatal=is_proven_fatal(incident),
        doubt=incident.doubt,
        one_word=bool(unproven_senders(incident)),
        approved_by=active.approved_by if active else None,
        begins=begins_before_acting(verb, playbook),
        adopts=playbook is not None and adopts(playbook),
        urgency=urgency_of(incident, facts.snapshot),
    )


def _why_not_now(incident: Incident, rule: Rule, now: datetime) -> Said | None:
    """Why nothing begins by itself although a fault was reported: it is not confirmed to be present now."""
    if (over := incident.waits_since) is not None:
        what = "work" if incident.plan else "boot"
        return say(f"decisions.waits_after_{what}", time=f"{over:%H:%M:%S}")
    if why := why_not_looked(incident, now):
        return say("decisions.sentence", text=why)
    if incident.clear_since is not None:
        return say("decisions.well_again", time=f"{incident.clear_since:%H:%M:%S}")
    if incident.root.node is not None and lacks_senses(incident, rule, now):
        return why_too_few_senses(incident, rule.senses, now)
    return None


def _keep_waiting(run: Run, why: Said, now: datetime) -> Decision:
    """The decision that keeps a run waiting for permission; no guard was asked."""
    return Decision(
        at=now,
        cluster=run.cluster,
        incident=run.incident,
        playbook=run.playbook,
        outcome=Outcome.held,
        why=why,
        run=run.id,
    )


def _decide_nothing(incident: Incident, playbook: str | None, why: Said, now: datetime) -> Decision:
    return Decision(
        at=now,
        cluster=incident.cluster,
        incident=incident.id,
        playbook=playbook,
        outcome=Outcome.nothing,
        why=why,
    )


def out_by_us(node: str, facts: GateFacts) -> Said | None:
    """Why a second drain would change nothing: healer's own is in place or under way. None if neither."""
    shown = facts.slurm_node(node)
    if shown and shown.drain and is_ours(shown.reason):
        return say("decisions.out_already", node=node, reason=shown.reason)
    if shown and shown.drain:
        return None  # healer's reason has since been replaced: guard `ownership` decides whose drain it is
    slot = facts.held.get(node)
    if slot is None:
        return None
    return say("decisions.being_taken_out", node=node, run=slot.run)


def _is_left_to(incident: Incident, facts: GateFacts) -> bool:
    """A milder incident gave way: its drain or test reservation is in place, and the slot belongs to this
    incident. A person's run yields to no incident. A reopened incident continues from its own drain."""
    shown = facts.slurm_node(incident.root.node)
    if shown is None or shown.name in facts.kept:
        return False
    kept = our_reservation(facts.snapshot, shown.name)
    if kept is None and not (shown.drain and is_ours(shown.reason)):
        return False
    reopened = incident.run is None and incident.run_count > 0
    if not reopened and is_out_for(facts.snapshot, shown, incident.id):
        return False  # taken out for this incident itself
    slot = facts.held.get(shown.name)
    return slot is not None and slot.incident == incident.id


def _leaves_jobs_behind(incident: Incident, facts: GateFacts) -> bool:
    """A fatal fault on a node that was drained for another reason, where running jobs now hang on a dead GPU.

    The first drain requeues no job. A run of this incident finds the drain in place and goes on to the jobs;
    once it has listed them this is over, so it happens once. The proposal does not ride on the other run's
    slot, because its mode and approval were those of another rule or of a person.
    """
    if incident.fault_class is not FaultClass.fatal or incident.jobs_hit_final or facts.snapshot is None:
        return False
    shown = facts.slurm_node(incident.root.node)
    if shown is None or not (shown.drain and is_ours(shown.reason)):
        return False
    slot = facts.held.get(shown.name)
    if slot is not None and slot.incident == incident.id and shown.name not in facts.kept:
        return False
    alive = {
        job.id
        for job in facts.snapshot.jobs_on(shown.name)
        if job.state in {"RUNNING", "SUSPENDED"} and "COMPLETING" not in job.flags
    }
    return not alive.isdisjoint(incident.jobs_hit)


def _remedy_of(playbook: Playbook | None) -> Remedy | None:
    """The fixed remedy that the playbook tries; None if it takes the incident's remedy and climbs the ladder.

    Steps after an approval do not count: they are a person's choice.
    """
    if playbook is None or playbook.repairs:
        return None
    steps = playbook.steps
    verbs = {step.do for step in takewhile(lambda step: step.wait != "approval", steps)}
    return next((remedy for verb, remedy in _REMEDIES.items() if verb in verbs), None)


def next_remedy(incident: Incident, rule: Rule, facts: GateFacts, rules: Ruleset, now: datetime) -> Remedy:
    """The lowest remedy on the ladder, from the incident's own upwards, that was not recently tried on the
    node."""
    first, node = rung_of(incident.remedy or rule.remedy), incident.root.node
    if first is Remedy.none or node is None:
        return first
    span = repeat_span(facts, rules, node)
    ladder = REMEDY_LADDER[REMEDY_LADDER.index(first) :]
    for remedy in ladder:
        if not within_span([use.at for use in tries_of(facts, node, remedy)], facts.earlier(now), span):
            return remedy
    return ladder[-1]


def _facts(facts: GateFacts, rules: Ruleset, now: datetime) -> dict[str, object]:
    """The figures behind the decision, for the record."""
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
    """How urgent the incident is for a person.

    P0: a fatal fault hits service (the node takes jobs, or keeps jobs from their work) and healer cannot or
    may not act, whichever guard holds it, shadow mode included. Never P0: planned work, a node that a person
    drained, a fault that is over or that the node itself denies, and an incident without a decision, where
    nothing was held. Anything else has its rule's severity, P1 at most.
    """
    if incident.plan:
        return incident.severity  # set by planned work on the node
    base = incident.severity if incident.severity is not Severity.P0 else Severity.P1
    if incident.clear_since is not None and incident.state is IncidentState.open:
        return base  # healthy again, and no run of healer is under way
    if decision is None or decision.outcome not in {Outcome.held, Outcome.refused}:
        return base
    if not (incident.unusable or incident.fault_class is FaultClass.fatal) or is_denied(incident):
        return base
    node = facts.slurm_node(incident.root.node) if facts is not None else None
    in_service = node is None or node.in_service  # an unknown node is not known to be out of service
    if decision.guard is Guard.maintenance or (decision.guard is Guard.ownership and not in_service):
        return base
    if node is not None and node.owner is not None and node.owner.kind in _OTHERS:
        return base  # a person took it over from a run, which got stuck because of that
    return Severity.P0 if in_service or _hits_jobs(incident, facts) else base


def _hits_jobs(incident: Incident, facts: GateFacts | None) -> bool:
    """A job that it hit is not yet running elsewhere, as far as Slurm shows. If no run has listed the jobs,
    none has been restarted."""
    if not incident.jobs_hit_final or facts is None or facts.snapshot is None:
        return bool(incident.jobs_hit)
    slurm, hit, node = facts.snapshot, incident.jobs_hit, incident.root.node or ""
    shown = [slurm.jobs[name] for name in hit if name in slurm.jobs]
    components = (job for job in slurm.jobs_on(node) if job.leader in hit)
    return any(job.state == "PENDING" or node in job.nodes for job in (*shown, *components))


#: Owners other than healer and Slurm: they know that they keep the node out.
_OTHERS = frozenset({OwnerKind.person, OwnerKind.program})


# --- runs ---------------------------------------------------------------------------------------------------


#: Verbs that take no capacity, so they never conflict with another run on the node. A site command that takes
#: capacity follows a drain.
_TAKES_NOTHING = frozenset(
    {None, Verb.collect, Verb.sweep, Verb.bisect, Verb.site_command, Verb.ticket, Verb.notify}
)
#: Checks that finish immediately, and may end the run.
_BRIEF = frozenset({"still_silent"})


def takes_slot_later(playbook: Playbook | None) -> bool:
    """The playbook takes a slot, but only after other steps than brief checks."""
    steps = playbook.steps if playbook is not None else ()
    taking = next((index for index, step in enumerate(steps) if step.do in SLOT_VERBS), None)
    return taking is not None and any(step.check not in _BRIEF for step in steps[:taking])


def begins_before_acting(verb: Verb, playbook: Playbook | None) -> bool:
    """The run begins before its first removing step is due; that step asks every guard at that time."""
    if verb in SLOT_VERBS:
        return takes_slot_later(playbook)
    on_job = playbook is not None and playbook.target == "job" and verb in RESTARTING_VERBS
    return on_job and playbook is not None and playbook.steps[0].do is None


def runs_alongside(playbook: Playbook | None) -> bool:
    """The playbook takes nothing, so its run may work in parallel to another run on the node."""
    return playbook is not None and playbook.target == "node" and takes_nothing(playbook)


def takes_nothing(playbook: Playbook) -> bool:
    """No step takes a node out of service or work from a job."""
    return all(step.do in _TAKES_NOTHING for step in playbook.steps)


def holds_slot(facts: GateFacts, run: Run) -> bool:
    """The node's slot was granted to this run itself."""
    slot = facts.held.get(run.node or "")
    return slot is not None and slot.run == run.id


def rides_on_slot(run: Run, playbook: Playbook, facts: GateFacts, *, begun: bool) -> bool:
    """What this run takes is already granted. A slot that was given back must be requested again.

    `begun`: a step of the run that needs the slot was granted before; it may continue with a slot that
    another run left on the node.
    """
    if holds_slot(facts, run) or not any(step.do in SLOT_VERBS for step in playbook.steps):
        return True
    return begun and run.node in facts.held


def is_untouched(run: Run, playbook: Playbook | None, facts: GateFacts) -> bool:
    """The run waits and has not taken anything, so it may be ended without an effect.

    Certain only under the gate's lock, under which slots are granted.
    """
    if run.shadow or playbook is None or holds_slot(facts, run):
        return False
    if not takes_slot_later(playbook) and not _is_held_back(run, facts):
        return False
    removing = next((step for step in playbook.steps if step.do in REMOVING_VERBS), None)
    return removing is not None and removing.do in SLOT_VERBS


def _is_held_back(run: Run, facts: GateFacts) -> bool:
    """A guard holds the run at its first removing step, and it rides on no other run's slot."""
    return run.state is RunState.running and run.question is not None and run.node not in facts.held


def first_verb(playbook: Playbook) -> Verb:
    """The verb that the gate judges when a run is to begin: the first removing verb, else the first verb."""
    acts = [step.do for step in playbook.steps if step.do is not None]
    return next((verb for verb in acts if verb in REMOVING_VERBS), acts[0] if acts else Verb.notify)


def is_adopting(step: Step) -> bool:
    """The step takes over a node that Slurm itself drained or set DOWN, either only that or besides
    draining."""
    return step.do is Verb.drain and bool(step.input.get("adopt") or step.input.get("also_adopt"))


def adopts(playbook: Playbook) -> bool:
    """One of the playbook's steps takes over what Slurm itself took out."""
    return any(is_adopting(step) for step in playbook.steps)


def proposal_of(
    run: Run, verb: Verb, incident: Incident | None, *, job: str | None = None, restarts: int | None = None
) -> Proposal:
    """The proposal for a verb of this run. `job`: one of the jobs of a step; else the run's own."""
    agreed_restarts = run.input.get("restart", {}).get(job)
    agreed = agreed_restarts is not None and restarts in (None, agreed_restarts)
    # A run that names the incident of another node is not exempt from the caps for its own node. Clusters may
    # use equal node names.
    about = (
        incident is not None and incident.cluster == run.cluster and run.node in (None, incident.root.node)
    )
    return Proposal(
        cluster=run.cluster,
        verb=verb,
        node=run.node,
        job=job or (run.job if verb in JOB_VERBS else None),
        incident=run.incident,
        run=run.id,
        rule=run.rule,
        playbook=run.playbook,
        remedy=Remedy(run.input.get("remedy") or Remedy.none),
        mode=run.mode,
        unusable=incident is not None and about and is_proven_unusable(incident),
        fatal=incident is not None and about and is_proven_fatal(incident),
        doubt=incident.doubt if incident is not None else NO_WORDS,
        one_word=incident is not None and bool(unproven_senders(incident)),
        by=None if run.by == "healer" else run.by,
        approved_by=run.approved_by,
        agreed_by=run.input["restart_by"][job] if agreed else None,
        restarts=restarts if restarts is not None else run.input.get("restarts"),
    )


def with_restarts(run: Run, jobs: Mapping[str, int], by: str) -> Run:
    """The run with `by`'s consent to restart these jobs. `jobs`: job -> its restart count."""
    if not jobs:
        return run
    given = dict(run.input)
    given["restart"] = {**run.input.get("restart", {}), **jobs}
    given["restart_by"] = {**run.input.get("restart_by", {}), **dict.fromkeys(jobs, by)}
    return msgspec.structs.replace(run, input=given)


def restart_proposal(run: Run, job: str, incident: Incident | None) -> Proposal:
    """The proposal for a job whose restart a person consented to with the run."""
    return proposal_of(run, Verb.requeue, incident, job=job, restarts=run.input["restart"][job])


def refused_restart(
    run: Run, incident: Incident | None, facts: GateFacts, rules: Ruleset, now: datetime
) -> JudgeResult | None:
    """The first of the agreed restarts that the gate refuses now; None if it refuses none."""
    verdicts = (
        judge(restart_proposal(run, job, incident), facts, rules, now) for job in run.input.get("restart", {})
    )
    return next((verdict for verdict in verdicts if verdict.outcome is Outcome.refused), None)


def proposal_to_begin(run: Run, playbook: Playbook, incident: Incident | None) -> Proposal:
    """The proposal before the run begins."""
    verb = first_verb(playbook)
    begins = begins_before_acting(verb, playbook) and (verb not in RESTARTING_VERBS or run.by == "healer")
    return msgspec.structs.replace(proposal_of(run, verb, incident), begins=begins, adopts=adopts(playbook))


def new_run(incident: Incident, playbook: str, decision: Decision, mode: Mode, *, alongside: bool) -> Run:
    """healer's own run for an incident. Its id is derived from the incident's, so that a repeat gives the
    same run."""
    state, shadow = run_state_of(decision, mode)
    # An incident has one shadow run.
    count = "shadow" if shadow else incident.run_count
    waits = state is RunState.waiting_approval
    proposal = decision.proposal
    remedy = proposal.remedy if proposal else Remedy.none
    given: dict[str, object] = {"reason_text": str(incident.title), "remedy": str(remedy)}
    if proposal is not None and proposal.job is not None:
        given["restarts"] = proposal.restarts
    return Run(
        id=run_id(f"{incident.id}|{playbook}|{count}"),
        cluster=incident.cluster,
        playbook=playbook,
        state=state,
        by="healer",
        reason=incident.title,
        created_at=decision.at,
        node=incident.root.node,
        job=proposal.job if proposal else None,
        incident=incident.id,
        rule=incident.rule,
        mode=mode,
        shadow=shadow,
        alongside=alongside,
        approve_until=decision.at + APPROVAL_LASTS if waits else None,
        # Guard `repeat` counts this remedy, so that the next run climbs the ladder.
        input=given,
    )


def decision_of(proposal: Proposal, verdict: JudgeResult, now: datetime) -> Decision:
    return Decision(
        at=now,
        cluster=proposal.cluster,
        incident=proposal.incident,
        playbook=proposal.playbook,
        outcome=verdict.outcome,
        why=verdict.why,
        proposal=proposal,
        answers=verdict.answers,
        guard=verdict.guard,
        run=proposal.run,
    )


def run_state_of(decision: Decision, mode: Mode) -> tuple[RunState, bool]:
    """The run's state, by the guard that held it, and whether it is a shadow run."""
    if decision.outcome is Outcome.act:
        return RunState.running, False
    if decision.guard is Guard.mode and mode is Mode.shadow:
        return RunState.running, True
    if decision.guard is Guard.mode and mode is Mode.suggest:
        return RunState.proposed, False
    if decision.guard is Guard.approval:
        return RunState.waiting_approval, False
    return RunState.held, False


def decision_key(decision: Decision) -> str:
    """Equal for decisions with the same meaning: figures that change with the clock do not count."""
    parts: list[str] = [decision.outcome, str(decision.guard), str(decision.run)]
    parts += [f"{answer.guard}={answer.kind}" for answer in decision.answers]
    if decision.outcome is Outcome.nothing:
        parts.append(decision.why)
    return sha256("|".join(parts).encode()).hexdigest()[:16]


def is_known_bad_in_service(incident: Incident, decision: Decision, facts: GateFacts) -> bool:
    """Law 2: the node is certainly unusable, but healer may not take it out of service."""
    node = facts.slurm_node(incident.root.node)
    kept = decision.outcome in {Outcome.held, Outcome.refused}
    return is_proven_unusable(incident) and kept and node is not None and node.in_service
