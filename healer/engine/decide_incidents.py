"""Decides on every open incident under the gate's lock, and starts the resulting runs."""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial

import msgspec

from healer.decisions import (
    ASKING,
    SLOT_VERBS,
    after_grant,
    decide,
    decision_key,
    decision_of,
    holds_slot,
    is_known_bad_in_service,
    is_untouched,
    jobs_put_back,
    judge,
    kept_off,
    new_run,
    proposal_of,
    proposal_to_begin,
    run_state_of,
    runs_alongside,
    severity_of,
)
from healer.decisions.book_mismatch import forgotten_drains
from healer.decisions.node_facts import node_of, planned_window
from healer.decisions.sweeps import with_sweep
from healer.engine.second_looks import begin_looks
from healer.engine.starts import count_begun
from healer.engine.suspect_senders import hold_suspects
from healer.engine.upkeep import (
    Walk,
    begin_releases,
    begin_requeues,
    begin_sweeps,
    settle_vetoes_and_breaker,
    sweeps_due,
    without_run,
)
from healer.incidents import by_urgency, healer_drains, take_findings
from healer.incidents.correlate import (
    fold_into_wave,
    held_by_breaker,
    members_of_wave,
    unfold_from_wave,
    waves_that_act,
)
from healer.incidents.impact import hit_so_far
from healer.incidents.lifecycle import find_withdrawn
from healer.incidents.placers import NewRoot, are_apart, is_worse_while_busy
from healer.model import (
    BreakerState,
    Command,
    Decision,
    FaultClass,
    Finding,
    Guard,
    Incident,
    IncidentState,
    Mode,
    Observation,
    Outcome,
    Remedy,
    Rule,
    Run,
    RunState,
    Severity,
    StepEvent,
    Verb,
)
from healer.model.run import run_id
from healer.telling.news import approval_page, opened_ticket, p0_page
from healer.text import Said, say

#: A P0 that lasts this long pages a person.
PAGE_AFTER = timedelta(seconds=10)


def lock_gate_if_needed(walk: Walk, commands: Sequence[Command], findings: Sequence[Finding]) -> None:
    """Takes the gate's lock if this walk may touch the gate or a run. The gate is locked before any run's
    row, in the same order as for people's commands."""
    wanting = any(_wants_gate(walk, incident) for incident in walk.open_incidents()) or kept_off(
        walk.picture.slurm
    )
    wanting = (
        wanting or sweeps_due(walk) or jobs_put_back(walk.picture.slurm, walk.picture.allocations.put_back)
    )
    if commands or findings or wanting or walk.tx.has_active_runs() or healer_drains(walk.picture):
        walk.facts = walk.tx.lock_gate()
        walk.work.policies.modes = walk.facts.modes


def decide_all(walk: Walk, batch: Sequence[Observation]) -> None:
    """Decides on every open incident. Does nothing if the gate is not locked: then no incident may want an
    action."""
    if walk.facts is None:
        return
    at_work, with_commands = walk.tx.at_work(batch)
    runs = walk.runs = {run.id: run for run in at_work}
    if begun := [run for run in runs.values() if run.state is RunState.running]:
        walk.facts = count_begun(walk.gate, begun, walk.work.by_id.get, walk.rules, walk.now)
    settle_vetoes_and_breaker(walk)
    if _any_relayed(walk):
        hold_suspects(walk)
    unfold_released(walk)
    asked = begin_looks(walk) if _any_relayed(walk) else frozenset[str]()
    walk.started += begin_releases(walk)
    walk.started += begin_sweeps(walk)
    drained, left = healer_drains(walk.picture), list(runs.values())
    take_findings(walk.work, forgotten_drains(drained, walk.gate, left, walk.open_incidents(), walk.now))
    for listed in by_urgency(walk.open_incidents(), walk.picture.slurm):
        incident = walk.work.by_id[listed.id]  # an earlier iteration may have changed it
        rule = walk.rules.by_name.get(incident.rule)
        if (
            rule is None
            or not incident.is_open
            or incident.stopped_by is not None
            or incident.folded  # its parts have been decided on and wait for the breaker
            or incident.id in with_commands
        ):
            continue
        active = runs.get(incident.run or "")
        if active is not None and (why := why_forbidden_now(walk, incident, rule, active)) is not None:
            end_untouched(walk, active, RunState.rejected, why)
            incident, active = walk.work.by_id[incident.id], None
        if active is None and _is_done(walk, incident):
            continue
        if incident.id in asked and (active is None or (active.state in ASKING and not active.approved_by)):
            continue  # the second look at its node has not answered yet
        end_milder_run(walk, incident, rule)
        decision = decide(incident, rule, walk.gate, walk.rules, walk.now, active)
        if decision is not None:
            _apply_decision(walk, incident, rule, decision, active)
        elif active is not None and not active.shadow:
            _set_urgency_by_run(walk, incident, active)
    walk.started += begin_requeues(walk)
    for run in list(runs.values()):
        if run.id in runs:
            start_when_allowed(walk, run)
            validate_cleared(walk, run)
    fold_held(walk)
    ticket_held(walk)


def _any_relayed(walk: Walk) -> bool:
    return any(incident.is_relayed for incident in walk.open_incidents())


def _is_done(walk: Walk, incident: Incident) -> bool:
    """Its playbook is done, and the incident has not been reopened since."""
    run = walk.tx.run(incident.run) if incident.run else None
    return run is not None and run.state is RunState.done and not run.shadow


def _wants_gate(walk: Walk, incident: Incident) -> bool:
    rule = walk.rules.by_name.get(incident.rule)
    acts = rule is not None and (rule.playbook is not None or incident.drained_at is not None)
    return acts or bool(incident.folded) or Remedy.ticket in incident.remedy


def _apply_decision(
    walk: Walk, incident: Incident, rule: Rule, decision: Decision, active: Run | None
) -> None:
    """Stores a new decision and its effects: a run, and the state of the incident."""
    run = _run_for(walk, incident, rule, decision, active)
    new = run is not None and active is None and run.id != incident.run
    if new or active is not None:
        begin_run(walk, run, active, decision)
    decision = msgspec.structs.replace(decision, run=run.id if run else decision.run)
    key = decision_key(decision)
    if key != incident.decision_key:
        walk.tx.add_decision(decision)
        data = {"why": decision.why, "guard": decision.guard, "run": decision.run, "incident": incident.id}
        walk.audit(f"decision.{decision.outcome}", f"incident/{incident.id}", **data)
        if decision.outcome is Outcome.act and rule.playbook is None:
            walk.tx.queue_message(opened_ticket(incident, walk.now))
    acting = run is not None and run.state is RunState.running and not run.shadow
    waits = run is not None and _is_plan(walk, run.playbook)
    changed = msgspec.structs.replace(
        incident,
        run=run.id if run else None,
        run_count=incident.run_count + (1 if new else 0),
        held_by=None if acting else decision.guard,
        decision_key=key,
        state=IncidentState.mitigating if acting and not waits else incident.state,
    )
    if new and incident.run_count:
        changed = msgspec.structs.replace(changed, worse=_opened_meanwhile(walk, changed))
    _set_urgency(walk, incident, changed, decision)


def _opened_meanwhile(walk: Walk, reopened: Incident) -> str | None:
    """A worse incident of the node, from when no run worked on this one."""
    there = walk.work.at(reopened.root.node, (), reopened.root)
    worse = (
        other.id
        for other in there
        if other.id != reopened.id
        and other.is_open
        and is_worse_while_busy(NewRoot(reopened, other, walk.work.policies))
    )
    return next(worse, None)


def _set_urgency_by_run(walk: Walk, incident: Incident, run: Run) -> None:
    """A stuck run makes its incident as urgent as a run that a guard holds; a run that continues does not.
    The guard that held the run before it began holds it no longer."""
    begun = msgspec.structs.replace(incident, held_by=None)
    if run.question is None:
        _set_urgency(walk, incident, begun, None)
        return
    how = "stuck" if run.state is RunState.stuck else "held"
    # The run is stuck, or the worker holds it for a pause, the breaker or a stale snapshot.
    stuck = Decision(
        at=walk.now,
        cluster=incident.cluster,
        incident=incident.id,
        playbook=run.playbook,
        outcome=Outcome.held,
        why=say(f"engine.how_{how}", text=run.question),
        run=run.id,
    )
    _set_urgency(walk, incident, begun, stuck)


def _set_urgency(walk: Walk, before: Incident, incident: Incident, decision: Decision | None) -> None:
    """Sets the incident's urgency from the decision. None: its run continues. `before`: the incident as it
    was before the decision.

    A P0 that lasts pages a person, whatever holds it. What the breaker holds of a storm has the storm's page:
    it becomes part of the wave before it has lasted.
    """
    severity = severity_of(before, decision, walk.gate)
    bad = decision is not None and is_known_bad_in_service(before, decision, walk.gate)
    incident = msgspec.structs.replace(
        incident,
        jobs_hit=hit_so_far(before, walk.gate.snapshot) if bad else before.jobs_hit,
        known_bad_in_service=bad,
        severity=severity,
        p0_since=(before.p0_since or walk.now) if severity is Severity.P0 else None,
    )
    if incident.p0_since is not None and walk.now - incident.p0_since >= PAGE_AFTER:
        walk.tx.queue_message(p0_page(incident, decision.why if decision else say("engine.works_on_it")))
    if incident != before:
        walk.work.put(msgspec.structs.replace(incident, updated=walk.now))


def _run_for(
    walk: Walk, incident: Incident, rule: Rule, decision: Decision, active: Run | None
) -> Run | None:
    """The run that this decision leads to, in its new state; None if there is none."""
    if decision.outcome in {Outcome.nothing, Outcome.refused} or rule.playbook is None:
        if active is not None:
            walk.tx.set_run_state(active.id, RunState.rejected, why=decision.why, at=walk.now)
        return None
    if active is not None and decision.guard is None and decision.outcome is Outcome.held:
        return active
    mode = decision.proposal.mode if decision.proposal else walk.rules.mode_of(rule)
    state, shadow = run_state_of(decision, mode)
    if active is not None and shadow:
        # The rule is in shadow now, so a run that waited for permission must not act.
        walk.tx.set_run_state(active.id, RunState.rejected, why=decision.why, at=walk.now)
        return None
    if active is not None:
        return msgspec.structs.replace(active, state=state)
    alongside = runs_alongside(walk.rules.playbooks.get(rule.playbook))
    return new_run(incident, rule.playbook, decision, mode, alongside=alongside)


# --- runs that hold no node yet: they begin, make way for a worse fault, or keep waiting


def _is_untouched(walk: Walk, run: Run) -> bool:
    running = run.state is RunState.running
    return running and is_untouched(run, walk.rules.playbooks.get(run.playbook), walk.gate)


def end_untouched(walk: Walk, run: Run, state: RunState, why: Said) -> None:
    """Ends a run that has not taken its node; its incident is treated as if it never had the run."""
    walk.tx.set_run_state(run.id, state, why=why, at=walk.now)
    del walk.runs[run.id]
    incident = walk.work.by_id.get(run.incident or "")
    if incident is not None and incident.run == run.id:
        freed = msgspec.structs.replace(incident, run=None, state=IncidentState.open, updated=walk.now)
        walk.work.put(freed)
    about = {"incident": incident.id} if incident is not None else {}
    walk.audit("run.left", f"run/{run.id}", why=why, node=run.node, **about)
    walk.facts = without_run(walk.gate, run)


def why_forbidden_now(walk: Walk, incident: Incident, rule: Rule, run: Run) -> Said | None:
    """Why a run that has taken nothing ends: the rule's present mode allows less than when the run began to
    wait; or planned work has begun on the node, after which the fault must be seen again. A plan waits on."""
    playbook = walk.rules.playbooks.get(run.playbook)
    if run.by != "healer" or playbook is None or not _is_untouched(walk, run):
        return None
    mode = walk.rules.mode_of(rule, walk.gate.modes)
    proposal = msgspec.structs.replace(proposal_to_begin(run, playbook, incident), mode=mode)
    asked = partial(judge, proposal, walk.gate, walk.rules, walk.now)
    if asked({Guard.mode, Guard.approval}).outcome is not Outcome.act:
        return say("engine.mode_changed")
    node = node_of(proposal, walk.gate)
    if incident.state is not IncidentState.mitigating or node is None:
        return None
    window = planned_window(walk.rules, walk.gate.cluster, node, walk.now, walk.gate.snapshot)
    return asked({Guard.maintenance}).why if window is not None else None


def end_milder_run(walk: Walk, incident: Incident, rule: Rule) -> None:
    """Ends a waiting run that blocks the node: a fatal fault waits for no milder run, and no fault waits for
    a plan."""
    other = walk.runs.get(walk.gate.running.get(incident.root.node or "", ""))
    fatal = incident.fault_class is FaultClass.fatal
    if other is None or other.id == incident.run:
        return
    plan, ours = (_is_plan(walk, name) for name in (other.playbook, rule.playbook))
    if not fatal and (ours or not plan or other.by != "healer"):
        return
    theirs = walk.work.by_id.get(other.incident or "")
    milder = theirs is None or theirs.fault_class is not FaultClass.fatal
    if not milder or not _is_untouched(walk, other):
        return
    active = walk.runs.get(incident.run or "")
    decision = decide(incident, rule, without_run(walk.gate, other), walk.rules, walk.now, active)
    if decision is None or decision.outcome is not Outcome.act:
        return
    why = say("engine.leaves_node", node=other.node, incident=incident.short_id)
    end_untouched(walk, other, RunState.done, why)
    apart = theirs is not None and are_apart(NewRoot(theirs, incident, walk.work.policies))
    if fatal and theirs is not None and not (plan and apart):
        walk.work.merge(walk.work.by_id[theirs.id], incident)


def _is_plan(walk: Walk, name: str | None) -> bool:
    playbook = walk.rules.playbooks.get(name or "")
    return playbook is not None and playbook.is_plan


def start_when_allowed(walk: Walk, run: Run) -> None:
    """Starts a person's held run as soon as the guards allow it; pages people about an overdue approval."""
    waits = run.state in {RunState.waiting_approval, RunState.waiting}
    if waits and run.approve_until and run.approve_until < walk.now:
        walk.tx.queue_message(approval_page(run, walk.work.by_id.get(run.incident or "")))
    _wake_if_due(walk, run)
    playbook = walk.rules.playbooks.get(run.playbook)
    if run.state is not RunState.held or run.by == "healer" or playbook is None:
        return
    proposal = proposal_to_begin(run, playbook, walk.work.by_id.get(run.incident or ""))
    verdict = judge(proposal, walk.gate, walk.rules, walk.now)
    at_work = None if run.alongside else walk.gate.running.get(run.node or "")
    other = walk.runs.get(at_work or "")
    taken = at_work is not None and (other is None or not _is_untouched(walk, other))
    if verdict.outcome is Outcome.held or taken:
        why = say("engine.run_works", node=run.node) if taken else verdict.why
        # A different guard is stored, changed figures alone are not.
        if _without_figures(why) != _without_figures(run.question or ""):
            walk.tx.set_run_state(run.id, run.state, why=why, at=walk.now, question=why)
            if not taken:  # pages and buttons go by the guard that holds it now
                walk.tx.add_decision(decision_of(proposal, verdict, walk.now))
        return
    decision = decision_of(proposal, verdict, walk.now)
    walk.tx.add_decision(decision)
    if verdict.outcome is Outcome.refused:
        walk.tx.set_run_state(run.id, RunState.rejected, why=verdict.why, at=walk.now)
        return
    why = say("engine.taken_over", who=run.by, playbook=run.playbook, run=run.id)
    if other is not None:
        end_untouched(walk, other, RunState.done, why)
    for other in walk.runs.values():
        waits = other.state is RunState.waiting and other.id != run.id and not run.alongside
        if waits and other.node == run.node:
            walk.tx.set_run_state(other.id, RunState.done, why=why, at=walk.now)
    begin_run(walk, msgspec.structs.replace(run, state=RunState.running), run, decision)


#: The playbook that tests a drained node and returns it.
VALIDATE = "validate"


def validate_cleared(walk: Walk, waiting: Run) -> None:
    """Tests a node that still waits for a person's repair although its fault is known to be over: the driver
    has withdrawn its request, or a reboot has completed the row remap. A node that passes its tests returns.
    Only evidence since the run began to wait counts, because the run's own tests have judged anything
    earlier.

    An incident that a person has acknowledged is left to that person.
    """
    incident, playbook = walk.work.by_id.get(waiting.incident or ""), walk.rules.playbooks.get(VALIDATE)
    if incident is None or playbook is None or incident.run != waiting.id or not _waits_for_repair(waiting):
        return
    if incident.drained_at is None or incident.acknowledged_by is not None:
        return
    cleared = find_withdrawn(walk.rules, walk.picture, incident)
    if cleared is None or not cleared.proven:
        return
    if any(entry.run == waiting.id and entry.at >= cleared.at for entry in walk.tx.steps_of(incident)):
        return
    run = Run(
        id=run_id(f"{incident.id}|{VALIDATE}|{incident.evidence_count}"),  # once for the evidence so far
        cluster=waiting.cluster,
        playbook=VALIDATE,
        state=RunState.running,
        by=waiting.by,
        reason=cleared.why,
        created_at=walk.now,
        node=waiting.node,
        incident=incident.id,
        rule=waiting.rule,
        mode=waiting.mode,
        input={"reason_text": str(incident.title)},
    )
    if walk.tx.run(run.id) is not None:
        return
    proposal = proposal_to_begin(run, playbook, incident)
    verdict = judge(proposal, walk.gate, walk.rules, walk.now)
    if verdict.outcome is not Outcome.act:
        return
    decision = decision_of(proposal, verdict, walk.now)
    walk.tx.add_decision(decision)
    walk.tx.set_run_state(waiting.id, RunState.done, why=run.reason, at=walk.now)
    del walk.runs[waiting.id]
    begin_run(walk, run, None, decision)
    walk.work.put(msgspec.structs.replace(incident, run=run.id, run_count=incident.run_count + 1))


def _waits_for_repair(run: Run) -> bool:
    """The run waits for a person's repair, not for an approval."""
    healers = run.by == "healer" and not run.shadow and run.node is not None
    return healers and run.state is RunState.waiting and run.wake_at is None and run.approve_until is None


def _wake_if_due(walk: Walk, run: Run) -> None:
    """Continues a run whose wait on a drained node is over, if no other run works there."""
    if run.state is not RunState.waiting or run.wake_at is None or run.wake_at > walk.now or run.node is None:
        return
    if run.node in walk.gate.running:
        return
    walk.tx.set_run_state(run.id, RunState.running, why=run.reason, at=walk.now)
    walk.facts = msgspec.structs.replace(walk.gate, running={**walk.gate.running, run.node: run.id})
    walk.started.append(run.id)


def begin_run(walk: Walk, run: Run | None, active: Run | None, decision: Decision) -> None:
    if run is None:
        return
    if active is None:
        walk.tx.create_run(run)
    elif run.state is not active.state:
        walk.tx.set_run_state(run.id, run.state, why=decision.why, at=walk.now)
    was_running = active is not None and active.state is RunState.running
    if run.state is not RunState.running or was_running:
        return
    walk.started.append(run.id)
    if walk.gate.sweeps is not None and run.playbook in walk.rules.sweeping:
        walk.facts = with_sweep(walk.gate, run)
        return
    if run.shadow or run.alongside or decision.proposal is None or run.node is None:
        return
    walk.facts = msgspec.structs.replace(walk.gate, running={**walk.gate.running, run.node: run.id})
    if decision.proposal.verb not in SLOT_VERBS or decision.proposal.begins:
        return  # it takes the node later or not at all, and is judged at that point
    # The worker grants the slot, at the first step that takes the node.
    walk.facts = after_grant(walk.gate, decision.proposal, run.id, walk.now)


def _without_figures(why: str) -> str:
    return re.sub(r"\d+(\.\d+)?", "", why)


# --- waves and the breaker: held incidents are folded into their wave, and unfolded after a reset


def fold_held(walk: Walk) -> None:
    """Folds incidents that the breaker holds into their wave."""
    if walk.gate.breaker.state is not BreakerState.open:
        return
    for wave in list(waves_that_act(walk.work)):
        held = held_by_breaker(members_of_wave(walk.work, wave))
        why = say("engine.in_wave", incident=wave.short_id)
        held = [member for member in held if walk.withdraw(member, why)]
        if held:
            fold_into_wave(walk.work, wave, held)


def ticket_held(walk: Walk) -> None:
    """Opens tickets for incidents whose run waits for people to act elsewhere: to reset the open breaker,
    which still tickets (law 3), or to return other nodes, as too few are in service."""
    for incident in walk.open_incidents():
        if incident.ticket_precedes_run or Remedy.ticket not in incident.remedy:
            continue
        # Runs of this walk alone are read: one that only suggests stays here as long as the guard holds it.
        name = incident.run or ""
        run = walk.runs.get(name) or (walk.tx.run(name) if incident.held_by is not None else None)
        if run is not None and _waits_for_people(walk, incident, run):
            walk.tx.queue_message(opened_ticket(incident, walk.now))
            walk.work.put(msgspec.structs.replace(incident, ticket_precedes_run=True, updated=walk.now))


def _waits_for_people(walk: Walk, incident: Incident, run: Run) -> bool:
    """Whether the open breaker or the floor holds the run; the floor, which may hold for seconds, for as long
    as a P0 lasts before it pages."""
    begun = run.state is RunState.running
    guard = incident.held_by if run.state is RunState.held and run.mode is Mode.auto else None
    if begun and run.question and not (run.shadow or holds_slot(walk.gate, run)):
        # It began, and the worker's own look at the gate holds its drain.
        guard = judge(proposal_of(run, Verb.drain, incident), walk.gate, walk.rules, walk.now).guard
    if guard is Guard.breaker:
        return walk.gate.breaker.state is BreakerState.open
    if guard is not Guard.floor:
        return False
    since = incident.p0_since or (_held_since(walk, incident, run) if begun else run.created_at)
    return walk.now - since >= PAGE_AFTER


def _held_since(walk: Walk, incident: Incident, run: Run) -> datetime:
    """A plan may have waited for hours before its drain was held."""
    log = walk.tx.steps_of(incident)
    held = (entry.at for entry in log if entry.run == run.id and entry.event is StepEvent.held)
    return max(held, default=walk.now)


def unfold_released(walk: Walk) -> None:
    """After a person's reset: unfolds one incident per wave for the canary while half-open, and all of them
    once closed."""
    if walk.gate.breaker.state is BreakerState.open:
        return
    for wave in [wave for wave in waves_that_act(walk.work) if wave.folded]:
        waits = any(incident.stopped_by is None for incident in members_of_wave(walk.work, wave))
        half_open = walk.gate.breaker.state is BreakerState.half_open
        if half_open and (waits or walk.gate.breaker.canary is not None):
            continue
        merged = walk.tx.merged_into(wave.id)
        members = [member for member in merged if member.root.node in wave.folded]
        members = members[:1] if half_open else members
        walk.known |= {incident.id: incident for incident in members if incident.id not in walk.known}
        unfold_from_wave(walk.work, wave, members)
