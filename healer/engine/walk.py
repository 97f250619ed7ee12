"""The one walk: signals -> findings -> incidents -> decisions -> runs.

The same in the detector, the simulator and replay: one batch in, one transaction, a list of runs to advance
out. The caller pokes the workers; what a lost poke leaves behind, the sweep finds.
"""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec

from healer.decisions import (
    SLOT_VERBS,
    after,
    beginning,
    decide,
    decision_key,
    decision_of,
    is_untouched,
    judge,
    kept_off,
    known_bad_in_service,
    new_run,
    run_state_of,
    severity_of,
    stands_beside,
    takes_canary,
)
from healer.decisions.places import planned_window
from healer.decisions.sweeps import sweeping, with_one_more
from healer.detection import detect
from healer.engine.explain import keep_verdict, note_cost, note_merged
from healer.engine.upkeep import Upkeep, healers_record, note_inventories, open_on
from healer.incidents import (
    Correlator,
    apply_command,
    by_urgency,
    clear_since,
    close_what_is_over,
    folding,
    forgotten_drains,
    heard_again,
    is_measured,
    our_drains,
)
from healer.incidents.context import Context, note_context, told_now
from healer.incidents.foretold import settle
from healer.incidents.heals import ended_by, heal_of, noted, nothing_done
from healer.incidents.jobs import hit_so_far
from healer.incidents.ladder import place_and_climb
from healer.incidents.open_faults import open_faults
from healer.incidents.over import note_settled
from healer.incidents.repeats import with_history
from healer.model import (
    ENDED_RUN_STATES,
    AnswerKind,
    BreakerState,
    Command,
    CommandKind,
    Decision,
    FaultClass,
    Finding,
    GateFacts,
    Guard,
    Incident,
    IncidentState,
    Maintenance,
    Observation,
    ObservationKind,
    Outcome,
    Remedy,
    Rule,
    Ruleset,
    Run,
    RunState,
    Sensed,
    Severity,
    Slot,
    SlurmNode,
    TicketStage,
)
from healer.model.permits import permit_for
from healer.observations import Picture
from healer.ports.transactions import Ledger, WalkTx
from healer.telling.messages import approval_page, opened_message, p0_page
from healer.telling.tickets import stage_after, ticket_after

#: How often an incident notes that it is still looked at: each tick would be a write.
LOOK_NOTED_S = 15.0
#: A P0 that lasts this long wakes somebody, unless the breaker's own page already did.
PAGE_AFTER = timedelta(seconds=10)
_WAITS_FOR_LEAVE = frozenset({RunState.proposed, RunState.waiting_approval, RunState.held})


def walk(
    ledger: Ledger,
    rules: Ruleset,
    picture: Picture,
    batch: Sequence[Observation],
    now: datetime,
    sensed: Sensed | None = None,
) -> list[str]:
    """One walk over `batch` and what the last tick found. Returns the runs it set going."""
    if sensed is not None:
        picture.sensed = sensed
    live = picture.update(batch, rules.topology)
    commands = [msgspec.convert(one.data, Command) for one in batch if one.kind is ObservationKind.command]
    for command in commands:
        if command.kind is CommandKind.node_returned:
            picture.clear(str(command.data["node"]), _moment(command, "cleared_at"))
    findings = detect(rules, picture, live, now, commands)
    if sensed is not None:
        findings += sensed.findings
    context = Context(rules, picture, now, partial(planned_on, rules, picture, now))
    findings, passed = told_now(context, findings)
    findings = with_history(rules, picture, batch, live, findings, now)
    with ledger.transaction() as tx:
        pass_ = _Pass(tx, rules, picture, now)
        pass_.lock(commands, findings)
        for command in commands:
            pass_.apply(command)
        pass_.heal()
        pass_.work.take_all(pass_.without_own(findings))
        place_and_climb(rules, picture, pass_.work, pass_.known, now)
        pass_.pass_over(note_context(context, pass_.work, passed, rules))
        pass_.close_what_is_over()
        pass_.decide_all(batch)
        note_merged(pass_.work, pass_.known)
        note_cost(pass_.work, tx, picture, now)
        pass_.save()
        settle(tx, rules, picture, findings, pass_.work.placed, now)
        note_inventories(tx, picture, now)
        tx.consume(batch)
    picture.history.keep()
    picture.nodes_changed = False
    picture.facts_changed.clear()
    picture.told(findings, now)
    settling = [
        one.settle_until for one in pass_.work.by_id.values() if one.is_open and one.settle_until > now
    ]
    picture.settles_at = min(settling, default=None)
    picture.faults = open_faults(pass_.work.by_id.values())
    picture.watched = frozenset(
        (one.fault, one.root) for one in pass_.work.by_id.values() if one.is_open and is_measured(rules, one)
    )
    return pass_.started


def planned_on(rules: Ruleset, picture: Picture, now: datetime, node: SlurmNode) -> Maintenance | None:
    """Work that is planned on the node now, by the site's list or by Slurm."""
    return planned_window(rules, picture.cluster, node, now, picture.slurm)


def _moment(command: Command, name: str) -> datetime:
    """A moment that a run tells with its news; that of the news where it tells none."""
    told = command.data.get(name)
    return datetime.fromisoformat(told) if told else command.at


class _Pass:
    """One transaction of the walk."""

    def __init__(self, tx: WalkTx, rules: Ruleset, picture: Picture, now: datetime) -> None:
        self.tx, self.rules, self.picture, self.now = tx, rules, picture, now
        self.work = Correlator(rules, tx.open_incidents(), picture, now, tx.incident)
        self.known = dict(self.work.by_id)
        self.started: list[str] = []
        #: What the gate knows; None while this walk has no need to ask it.
        self.facts: GateFacts | None = None
        self.upkeep = Upkeep(tx, rules, picture, self.work, now=now)

    def lock(self, commands: Sequence[Command], findings: Sequence[Finding]) -> None:
        """Takes the gate before any run's row, as people's commands do, if this walk may touch either."""
        wanting = any(self._wants_gate(one) for one in self._open()) or kept_off(self.picture.slurm)
        wanting = wanting or self.upkeep.sweeps_due()
        if commands or findings or wanting or self.tx.has_active_runs() or our_drains(self.picture):
            self.facts = self.tx.lock_gate()
            self.work.modes = self.facts.modes

    def apply(self, command: Command) -> None:
        known = self.work.by_id.get(command.incident or "")
        if known is None and command.incident:
            known = self.tx.incident(command.incident)
        meant = [known] if known is not None else []
        if command.kind is CommandKind.node_returned:  # what else was open on the node is over with it
            since = _moment(command, "since")
            others = open_on(self.work, str(command.data["node"]))
            # What opened while the run went on is not what it returned the node from.
            meant += [one for one in others if one.id != command.incident and one.opened <= since]
        for one in meant:
            self._apply_to(one, command)
        if command.kind is CommandKind.split and known is not None:
            self._split(self.work.by_id[known.id], command)

    def _split(self, incident: Incident, command: Command) -> None:
        wanted = set(command.data["incidents"])
        parts = [one for one in self.tx.merged_into(incident.id) if one.id in wanted]
        self.known |= {one.id: one for one in parts if one.id not in self.known}
        folding.split(self.work, incident, parts, command.by)

    def _apply_to(self, known: Incident, command: Command) -> None:
        self.known.setdefault(known.id, known)
        changed = apply_command(known, command)
        if command.kind is CommandKind.resolve and not changed.is_open:
            note_settled(self.picture, known, command.by, command.at)
        run = self.tx.run(known.run) if known.run and changed.run is None else None
        if run is not None and run.state not in ENDED_RUN_STATES and run.id != command.data.get("run"):
            self.tx.set_run_state(run.id, RunState.cancelled, why=changed.closed_why or "", at=self.now)
        self.work.put(changed)

    def without_own(self, findings: Sequence[Finding]) -> Sequence[Finding]:
        """Without drains that Slurm made because a hook of ours was permitted to fail, while a run holds the
        node: its drain step gives them our reason."""
        permits = self.facts.permits if self.facts is not None else ()
        if self.facts is None or not permits or self.picture.slurm is None:
            return findings
        held = {slot.node for slot in self.facts.slots}
        shown = self.picture.slurm.nodes
        own = {name for name in held if name in shown and permit_for(shown[name], permits) is not None}
        return [
            one
            for one in findings
            if not (one.fault.startswith("slurm-drain:") and one.component.node in own)
        ]

    def heal(self) -> None:
        """Before the walk's findings: the same fault after its end is a new one."""
        for incident in self._open():
            if (over := heal_of(self.rules, self.picture, incident)) is None:
                continue
            ends = over.proven and nothing_done(incident)
            if ends and self._withdrawn(incident, over.why):
                self.work.put(ended_by(incident, over, self.now))
            elif (changed := noted(incident, over, self.now)) != incident:
                self.work.put(changed)

    def pass_over(self, passed: Sequence[tuple[str, str, str]]) -> None:
        """What is not told now is kept where people can look for it."""
        for node, fault, why in passed:
            self._audit("finding.passed_over", f"node/{node}", {"fault": fault, "why": why}, None)

    def close_what_is_over(self) -> None:
        for name in list(self.work.by_id):
            incident = self._made_way(self.work.by_id[name])
            if incident.merged_into is not None and incident.run and name in self.work.changed:
                self._withdrawn(incident, incident.closed_why or "")
            measured = is_measured(self.rules, incident)
            if measured and incident.is_open:
                incident = self._note_clear(incident)
            elif (heard := heard_again(incident, self.picture, self.now)) is not incident:
                self.work.put(incident := heard)
            closed = close_what_is_over(incident, self.picture, self.now, measured=measured)
            if closed is not incident and self._withdrawn(incident, closed.closed_why or ""):
                self.work.put(closed)

    def _note_clear(self, incident: Incident) -> Incident:
        """Whoever decides or drives reads in the incident whether its cause still stands."""
        since = clear_since(incident, self.picture)
        changed = msgspec.structs.replace(incident, clear_since=since, ticked_at=self._looked_at(incident))
        if changed != incident:
            self.work.put(changed)
        return changed

    def _looked_at(self, incident: Incident) -> datetime | None:
        """Noted where something may be done about it: only then somebody has to know."""
        rule, noted = self.rules.by_name.get(incident.rule), incident.ticked_at
        if rule is None or rule.playbook is None or self.picture.sensed is None:
            return noted
        at = self.picture.sensed.at
        return at if noted is None or (at - noted).total_seconds() >= LOOK_NOTED_S else noted

    def _made_way(self, incident: Incident) -> Incident:
        """Its run has left the node to a worse incident, or waits for leave: that one explains this.

        To one that healer may not act on nothing is left; the run only does not return the node.
        """
        if incident.worse is None or not incident.is_open:
            return incident
        worse = self.work.by_id.get(incident.worse)
        if worse is None or not worse.is_open:
            self.work.put(msgspec.structs.replace(incident, worse=None, gives_way_to=None))
            return self.work.by_id[incident.id]
        acts = self.work.may_act(worse)
        if self._is_idle(incident) or (acts and self._withdrawn(incident, f"explained by {worse.short_id}")):
            self.work.merge(incident, worse)
            self._hand_over(incident, worse)
        elif incident.gives_way_to != (leaves := worse.id if acts else None):
            self.work.put(msgspec.structs.replace(incident, gives_way_to=leaves))
        return self.work.by_id[incident.id]

    def _hand_over(self, incident: Incident, worse: Incident) -> None:
        """The slot of a drain that stands goes with the node: the worse one's run goes on behind it."""
        if self.facts is None:
            return
        own = [slot for slot in self.facts.slots if slot.incident == incident.id]
        for slot in own:
            self.tx.grant_slot(msgspec.structs.replace(slot, incident=worse.id))
        slots = tuple(
            msgspec.structs.replace(slot, incident=worse.id) if slot in own else slot
            for slot in self.facts.slots
        )
        self.facts = msgspec.structs.replace(self.facts, slots=slots)

    def _is_idle(self, incident: Incident) -> bool:
        run = self.tx.run(incident.run) if incident.run else None
        return run is None or run.shadow or run.state in ENDED_RUN_STATES

    def _withdrawn(self, incident: Incident, why: str) -> bool:
        """Nothing works on the incident any more: a run that only waits for leave goes with its cause."""
        run = self.tx.run(incident.run) if incident.run else None
        if run is None or run.shadow or run.state in ENDED_RUN_STATES:
            return True
        if run.state not in _WAITS_FOR_LEAVE:
            return False
        self.tx.set_run_state(run.id, RunState.rejected, why=why, at=self.now)
        return True

    # --- deciding ---

    def decide_all(self, batch: Sequence[Observation]) -> None:
        """Decides every open incident. Takes the gate's lock only if one of them may want an action."""
        facts = self.facts
        if facts is None:
            return
        runs = {run.id: run for run in self.tx.active_runs()}
        facts = self.upkeep.put_right(facts, runs)
        self._unfold(facts)
        self.started += self.upkeep.release(facts, runs)
        facts, swept = self.upkeep.sweep(self.upkeep.with_sweeps(facts, runs))
        self.started += swept
        self.work.take_all(
            forgotten_drains(our_drains(self.picture), facts, list(runs.values()), self._open(), self.now)
        )
        untold = self.tx.spoken_of(batch)
        for listed in by_urgency(self._open(), self.picture.slurm):
            incident = self.work.by_id[listed.id]  # one before it may have changed it
            rule = self.rules.by_name.get(incident.rule)
            if (
                rule is None
                or not incident.is_open
                or incident.stopped_by is not None
                or incident.folded  # its parts were decided: they wait for the breaker
                or incident.id in untold
            ):
                continue
            active = runs.get(incident.run or "")
            if active is not None and self._asks_anew(incident, rule, active, facts):
                facts = self._leave(active, runs, facts, RunState.rejected, "the rule's mode has changed")
                incident, active = self.work.by_id[incident.id], None
            if active is None and self._is_done(incident):
                continue
            facts = self._make_room(incident, rule, facts, runs)
            decision = decide(incident, rule, facts, self.rules, self.now, active)
            if decision is not None:
                facts = self._carry_out(incident, rule, decision, facts, active)
            elif active is not None and not active.shadow:
                self._under_way(incident, active, facts)
        for run in list(runs.values()):
            if run.id in runs:
                facts = self._people_wait(run, facts, runs)
        self._fold(facts)

    # --- waves ---

    def _fold(self, facts: GateFacts) -> None:
        """What the breaker holds now stands in its wave."""
        if facts.breaker.state is not BreakerState.open:
            return
        for wave in list(folding.waves_that_act(self.work)):
            held = folding.held_by_breaker(folding.of_wave(self.work, wave))
            held = [one for one in held if self._withdrawn(one, f"stands in the wave {wave.short_id}")]
            if held:
                folding.fold(self.work, wave, held)

    def _unfold(self, facts: GateFacts) -> None:
        """After a person's reset: half-open one of a wave, for the canary; closed all of them."""
        if facts.breaker.state is BreakerState.open:
            return
        for wave in [one for one in folding.waves_that_act(self.work) if one.folded]:
            waits = any(one.stopped_by is None for one in folding.of_wave(self.work, wave))
            half_open = facts.breaker.state is BreakerState.half_open
            if half_open and (waits or facts.breaker.canary is not None):
                continue
            merged = self.tx.merged_into(wave.id)
            members = [one for one in merged if one.root.node in wave.folded]
            members = members[:1] if half_open else members
            self.known |= {one.id: one for one in members if one.id not in self.known}
            folding.unfold(self.work, wave, members)

    # --- runs that have taken nothing yet ---

    def _is_untouched(self, run: Run, facts: GateFacts) -> bool:
        running = run.state is RunState.running
        return running and is_untouched(run, self.rules.playbooks.get(run.playbook), facts)

    def _leave(
        self, run: Run, runs: dict[str, Run], facts: GateFacts, state: RunState, why: str
    ) -> GateFacts:
        """Ends a run that has taken nothing; its incident stands as if nobody had worked on it."""
        self.tx.set_run_state(run.id, state, why=why, at=self.now)
        del runs[run.id]
        theirs = self.work.by_id.get(run.incident or "")
        if theirs is not None and theirs.run == run.id:
            freed = msgspec.structs.replace(theirs, run=None, state=IncidentState.open, updated=self.now)
            self.work.put(freed)
        self._audit("run.left", f"run/{run.id}", {"why": why, "node": run.node}, theirs)
        left = {node: name for node, name in facts.running.items() if name != run.id}
        return msgspec.structs.replace(facts, running=left)

    def _asks_anew(self, incident: Incident, rule: Rule, run: Run, facts: GateFacts) -> bool:
        """The rule may do less by itself than when the run began to wait: what it allowed then is over."""
        playbook = self.rules.playbooks.get(run.playbook)
        if run.by != "healer" or playbook is None or not self._is_untouched(run, facts):
            return False
        mode = facts.modes.get(rule.name) or self.rules.mode_of(rule)
        proposal = msgspec.structs.replace(beginning(run, playbook, incident), mode=mode)
        answers = judge(proposal, facts, self.rules, self.now).answers
        kept = {answer.guard for answer in answers if answer.kind is not AnswerKind.allow}
        return not kept.isdisjoint({Guard.mode, Guard.approval})

    def _make_room(self, incident: Incident, rule: Rule, facts: GateFacts, runs: dict[str, Run]) -> GateFacts:
        """A node with a fatal fault is not kept by a run that only waits for a good moment."""
        other = runs.get(facts.running.get(incident.root.node or "", ""))
        if other is None or other.id == incident.run or incident.fault_class is not FaultClass.fatal:
            return facts
        theirs = self.work.by_id.get(other.incident or "")
        milder = theirs is None or theirs.fault_class is not FaultClass.fatal
        if not milder or not self._is_untouched(other, facts):
            return facts
        free = {node: name for node, name in facts.running.items() if name != other.id}
        without = msgspec.structs.replace(facts, running=free)
        active = runs.get(incident.run or "")
        decision = decide(incident, rule, without, self.rules, self.now, active)
        if decision is None or decision.outcome is not Outcome.act:
            return facts
        facts = self._leave(other, runs, facts, RunState.done, f"leaves {other.node} to {incident.short_id}")
        if theirs is not None:
            self.work.merge(self.work.by_id[theirs.id], incident)
        return facts

    def _is_done(self, incident: Incident) -> bool:
        """Its playbook went through to the end, and nothing has reopened it since."""
        run = self.tx.run(incident.run) if incident.run else None
        return run is not None and run.state is RunState.done and not run.shadow

    def _people_wait(self, run: Run, facts: GateFacts, runs: dict[str, Run]) -> GateFacts:
        """A person's run that a guard holds begins when it may; an approval that nobody gave is told of."""
        waits = run.state in {RunState.waiting_approval, RunState.waiting}
        if waits and run.approve_until and run.approve_until < self.now:
            self.tx.queue_message(approval_page(run))
        playbook = self.rules.playbooks.get(run.playbook)
        if run.state is not RunState.held or run.by == "healer" or playbook is None:
            return facts
        incident = self.work.by_id.get(run.incident or "")
        proposal = beginning(run, playbook, incident)
        verdict = judge(proposal, facts, self.rules, self.now)
        other = None if run.beside else runs.get(facts.running.get(run.node or "", ""))
        taken = (
            not run.beside
            and run.node in facts.running
            and (other is None or not self._is_untouched(other, facts))
        )
        if verdict.outcome is Outcome.held or taken:
            why = f"another run works on {run.node}" if taken else verdict.why
            if _words(why) != _words(run.question or ""):  # another guard: its figures alone are no news
                self.tx.set_run_state(run.id, run.state, why=why, at=self.now, question=why)
            return facts
        self.tx.add_decision(decision_of(proposal, verdict, self.now))
        if verdict.outcome is Outcome.refused:
            self.tx.set_run_state(run.id, RunState.rejected, why=verdict.why, at=self.now)
            return facts
        if other is not None:
            why = f"taken over by {run.by} with {run.playbook} ({run.id})"
            facts = self._leave(other, runs, facts, RunState.done, why)
        for other in runs.values():
            waits = other.state is RunState.waiting and other.id != run.id and not run.beside
            if waits and other.node == run.node:
                why = f"taken over by {run.by} with {run.playbook} ({run.id})"
                self.tx.set_run_state(other.id, RunState.done, why=why, at=self.now)
        decision = decision_of(proposal, verdict, self.now)
        return self._set_going(msgspec.structs.replace(run, state=RunState.running), run, decision, facts)

    def _open(self) -> list[Incident]:
        return [one for one in self.work.by_id.values() if one.is_open]

    def _wants_gate(self, incident: Incident) -> bool:
        rule = self.rules.by_name.get(incident.rule)
        acts = rule is not None and (rule.playbook is not None or incident.drained_at is not None)
        return acts or bool(incident.folded)

    def _carry_out(
        self, incident: Incident, rule: Rule, decision: Decision, facts: GateFacts, active: Run | None
    ) -> GateFacts:
        """Stores a decision that is new, and what follows: a run, its slot, how the incident stands."""
        run = self._run_for(incident, rule, decision, active)
        new = run is not None and active is None and run.id != incident.run
        if new or active is not None:
            facts = self._set_going(run, active, decision, facts)
        decision = msgspec.structs.replace(decision, run=run.id if run else decision.run)
        key = decision_key(decision)
        if key != incident.decision_key:
            self.tx.add_decision(decision)
            data = {"why": decision.why, "guard": decision.guard, "run": decision.run}
            self._audit(f"decision.{decision.outcome}", f"incident/{incident.id}", data, incident)
        acting = run is not None and run.state is RunState.running and not run.shadow
        severity = severity_of(incident, decision, facts)
        bad = known_bad_in_service(incident, decision, facts)
        changed = msgspec.structs.replace(
            incident,
            jobs_hit=hit_so_far(incident, facts.snapshot) if bad else incident.jobs_hit,
            run=run.id if run else None,
            run_count=incident.run_count + (1 if new else 0),
            held_by=None if acting else decision.guard,
            decision_key=key,
            state=IncidentState.mitigating if acting else incident.state,
            known_bad_in_service=bad,
            severity=severity,
            p0_since=(incident.p0_since or self.now) if severity is Severity.P0 else None,
        )
        self._page(changed, decision, facts)
        if changed != incident:
            self.work.put(msgspec.structs.replace(changed, updated=self.now))
        return facts

    def _under_way(self, incident: Incident, run: Run, facts: GateFacts) -> None:
        """A run that got stuck is as urgent as one that a guard holds; one that goes on is not."""
        stuck = Decision(
            at=self.now,
            cluster=incident.cluster,
            incident=incident.id,
            playbook=run.playbook,
            outcome=Outcome.held,
            why=f"{'stuck' if run.state is RunState.stuck else 'held'}: {run.question}",
            run=run.id,
        )
        # Stuck, or begun and then held at the worker by a pause, the breaker or an old picture.
        decision = stuck if run.question is not None else None
        severity = severity_of(incident, decision, facts)
        bad = decision is not None and known_bad_in_service(incident, decision, facts)
        changed = msgspec.structs.replace(
            incident,
            jobs_hit=hit_so_far(incident, facts.snapshot) if bad else incident.jobs_hit,
            severity=severity,
            known_bad_in_service=bad,
            p0_since=(incident.p0_since or self.now) if severity is Severity.P0 else None,
        )
        self._page(changed, stuck, facts)
        if changed != incident:
            self.work.put(msgspec.structs.replace(changed, updated=self.now))

    def _run_for(self, incident: Incident, rule: Rule, decision: Decision, active: Run | None) -> Run | None:
        """The run that this decision leads to, in the state it must have; None where there is none."""
        if decision.outcome in {Outcome.nothing, Outcome.refused} or rule.playbook is None:
            if active is not None:
                self.tx.set_run_state(active.id, RunState.rejected, why=decision.why, at=self.now)
            return None
        if active is not None and decision.guard is None and decision.outcome is Outcome.held:
            return active
        mode = decision.proposal.mode if decision.proposal else self.rules.mode_of(rule)
        state, shadow = run_state_of(decision, mode)
        if active is not None and shadow:
            # The rule is only watched now: what waited for leave must not go for real.
            self.tx.set_run_state(active.id, RunState.rejected, why=decision.why, at=self.now)
            return None
        if active is not None:
            return msgspec.structs.replace(active, state=state)
        beside = stands_beside(self.rules.playbooks.get(rule.playbook))
        return new_run(incident, rule.playbook, decision, state, mode, shadow=shadow, beside=beside)

    def _set_going(
        self, run: Run | None, active: Run | None, decision: Decision, facts: GateFacts
    ) -> GateFacts:
        if run is None:
            return facts
        if active is None:
            self.tx.create_run(run)
        elif run.state is not active.state:
            self.tx.set_run_state(run.id, run.state, why=decision.why, at=self.now)
        was_running = active is not None and active.state is RunState.running
        if run.state is not RunState.running or was_running:
            return facts
        self.started.append(run.id)
        if facts.sweeps is not None and run.playbook in sweeping(self.rules):
            return with_one_more(facts, run)
        if run.shadow or run.beside or decision.proposal is None or run.node is None:
            return facts
        facts = msgspec.structs.replace(facts, running={**facts.running, run.node: run.id})
        if decision.proposal.verb not in SLOT_VERBS or decision.proposal.begins:
            return facts  # it takes the node later, or not at all, and is judged then
        slot = Slot(
            cluster=run.cluster,
            node=run.node,
            incident=run.incident,
            run=run.id,
            granted_at=self.now,
            unusable=decision.proposal.unusable,
        )
        self.tx.grant_slot(slot)
        canary = takes_canary(facts, decision.proposal)
        facts = after(facts, decision.proposal, run.id, self.now)
        if canary:
            self.tx.save_breaker(facts.breaker)
        return facts

    # --- telling and saving ---

    def _page(self, incident: Incident, decision: Decision, facts: GateFacts) -> None:
        if incident.p0_since is None or self.now - incident.p0_since < PAGE_AFTER:
            return
        if facts.breaker.state is BreakerState.open:
            return  # one page of the storm is enough
        self.tx.queue_message(p0_page(incident, decision.why))

    def _audit(self, verb: str, subject: str, data: dict[str, Any], incident: Incident | None) -> None:
        told = data | ({"incident": incident.id} if incident is not None else {})
        self.tx.audit(healers_record(self.picture, verb, subject, told, self.now))

    def _tell_ticket(self, before: Incident | None, incident: Incident) -> None:
        stage = stage_after(before, incident)
        if stage is not None and self.tx.has_ticket(incident.id):
            steps = self.tx.steps_of(incident) if stage is TicketStage.closed else []
            self.tx.queue_message(ticket_after(incident, stage, steps, self.now))

    def save(self) -> None:
        self.tx.save_bursts(self.picture.history.changed)
        for incident in self.work.changed.values():
            self.tx.save_incident(incident)
            subject = f"incident/{incident.id}"
            before = self.known.get(incident.id)
            keep_verdict(self.tx, before, incident, self.rules, self.picture, self.now)
            if before is None or (before.rule, before.root) != (incident.rule, incident.root):
                data = {"rule": incident.rule, "title": incident.title, "root": str(incident.root)}
                self._audit(
                    "incident.opened" if before is None else "incident.moved", subject, data, incident
                )
                if Remedy.notify in incident.remedy:
                    self.tx.queue_message(opened_message(incident))
            if not incident.is_open and (before is None or before.is_open):
                self._audit("incident.resolved", subject, {"why": incident.closed_why}, incident)
            self._tell_ticket(before, incident)
        for name, finding in self.work.placed:
            self.tx.add_findings(name, [finding])


def _words(why: str) -> str:
    return re.sub(r"\d+(\.\d+)?", "", why)
