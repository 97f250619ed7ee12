"""Permissions from the gate: for each step of a run before it acts, and for a Slurm hook that asks to fail.

Every answer is one commit: the verdict, what is granted with it (slot, restart, reboot) and the log entry. If
a worker dies before the commit, nothing was asked; after the commit, the step is granted.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from healer.actions import Again, Context, Result, Skipped
from healer.actions.power import boot_of
from healer.actions.waits import far_from_checkpoint
from healer.decisions import (
    SLOT_VERBS,
    JudgeResult,
    adopts,
    decision_of,
    is_paused,
    judge,
    out_by_us,
    permit_of,
    permit_of_local_check,
    proposal_of,
    repairs_of,
    rides_on_slot,
    takes_canary,
    takes_slot_later,
)
from healer.decisions.book_mismatch import left_slot, slots_over
from healer.decisions.node_facts import node_of
from healer.decisions.sweeps import tests_since
from healer.engine.runlog import (
    approver_of,
    audit_of,
    entry_of,
    has_drained,
    has_taken,
    is_started,
    last_of,
    moment_of,
    past_moment,
    restarts_of,
    stuck_since,
)
from healer.incidents.certainty import is_proven_fatal, is_proven_unusable, why_not_looked
from healer.incidents.impact import urgency_of
from healer.incidents.lifecycle import CLEAR_FOR
from healer.model import (
    JOB_VERBS,
    LIFTING_VERBS,
    RESTARTING_VERBS,
    RETURNING_VERBS,
    GateFacts,
    Guard,
    HookRequest,
    Incident,
    LogEntry,
    Mode,
    Outcome,
    Permit,
    Playbook,
    Proposal,
    Remedy,
    RemedyUse,
    RequeueUse,
    Ruleset,
    Run,
    Slot,
    SlurmNode,
    StepEvent,
    Verb,
)
from healer.model.slurm import is_ours
from healer.playbooks.advance import GOES_ON, Do
from healer.ports.clock import Clock
from healer.ports.scheduling import SchedulerError, SlurmReads
from healer.ports.transactions import AlreadyRequeued, GateTx, HookBook, HookStanding, Ledger, RunClaim
from healer.text import NO_WORDS, Said, say

#: How soon a step asks again: one that a guard holds, and one that waits for a job or for the senses.
HELD_AGAIN_S = 1.0
WAITS_AGAIN_S = 5.0
#: Messages to people need no permission; every other effect does, including text written into Slurm.
SENDING_VERBS = frozenset({Verb.ticket, Verb.notify})
#: Each grant of these verbs counts as this remedy.
_RUNGS = {
    Verb.reset_gpu: Remedy.drain_then_reset,
    Verb.reboot: Remedy.reboot_node,
    Verb.power_cycle: Remedy.power_cycle,
}
#: Work on the node itself, and its return. Not DRAIN, which only keeps it out, nor DOWN, which frees it of
#: jobs that cannot end.
_ON_NODE = frozenset({*SLOT_VERBS, *RETURNING_VERBS, Verb.restart_service, Verb.diagnose, Verb.site_command})
_ON_NODE -= {Verb.drain, Verb.down}
#: Guards against repeated remedies: if one of them holds a step with `may_fail`, the step fails and the run
#: escalates.
_REPEAT_GUARDS = frozenset({Guard.repeat, Guard.reboot_cap})

_Now = Callable[[], datetime]


class StepPermission:
    """One attempt at a step, before the gate. `entries`: the run's log so far; `unchecked`: the worker has
    not seen for itself that the node is certainly unusable."""

    def __init__(
        self, claim: RunClaim, intent: Do, entries: list[LogEntry], now: _Now, *, unchecked: bool = False
    ) -> None:
        self.claim, self.run = claim, claim.run
        self.intent, self.verb = intent, intent.step.do
        self.entries, self.now, self.unchecked = entries, now, unchecked

    def ask(self, rules: Ruleset, incident: Incident | None, *, wait: Said | None) -> LogEntry | None:
        """Judges a step and logs `started` in one commit; returns the entry that holds it back, or None.

        The first step that takes the run's node is judged in full here, by the present mode and caps, and
        takes the slot in this commit; no other part grants slots. Later steps ride on that slot. `wait`: why
        the step should wait even if the gate allows it. The gate is asked first, so that a long hold is one
        entry.
        """
        granted, held_back = self.claim.gate(lambda tx: self._judged(tx, rules, incident, wait))
        if granted is not None:
            self.entries.append(granted)
        return held_back

    def _judged(
        self, tx: GateTx, rules: Ruleset, incident: Incident | None, wait: Said | None
    ) -> tuple[LogEntry | None, LogEntry | None]:
        """The entry `started` if it is new, and the entry that holds the step back."""
        already_started = is_started(self.entries, self.intent.key)
        now = self.now()
        run, verb, playbook = self.run, self.verb, rules.playbooks[self.run.playbook]
        last = last_of(self.entries, self.intent.key)
        held_by = last.data.get("guard") if last is not None else None
        if verb is Verb.sweep:
            sweeps = tx.sweeps(rules.sweeping, tests_since(rules, run.cluster, now))
            tx.facts = msgspec.structs.replace(tx.facts, sweeps=sweeps)
        if verb in SLOT_VERBS:
            tx.facts = free_slots(tx, tx.facts, now)
        if why := self._why_left_to_person(tx.facts):
            return None, self._ends_run(tx, why)
        proposal = self._proposal(rules, playbook, tx.facts, incident)
        takes = not proposal.ride and verb in SLOT_VERBS
        waited = takes and takes_slot_later(playbook)
        if takes and (why := _why_nothing_left(run, incident, tx.facts, now, waited=waited)):
            return None, self._ends_run(tx, why)
        verdict = judge(proposal, tx.facts, rules, now)
        theirs = takes and verdict.outcome is Outcome.refused and verdict.guard is Guard.ownership
        turned_away = verb is Verb.sweep and verdict.outcome is not Outcome.act
        if run.by == "healer" and (turned_away or theirs):
            # A sweep gets another turn, and a waiting run would block the others. A node that someone else
            # took out of service while the run waited for a slot is theirs (law 5), and they need no question
            # from healer.
            return None, self._ends_run(tx, verdict.why)
        if waited and incident is not None and run.by == "healer":
            wait = wait or why_not_looked(incident, now)
        if wait is not None and verdict.outcome is Outcome.act:
            return None, self._waits(tx, wait, last)
        late = self._too_late(playbook) if waited else None
        if late is not None and verdict.outcome is Outcome.act:
            tx.write(late)
            return None, late
        # The decision on a drain was stored when its run began, and messages to people need no decision.
        begun_with = not waited and (verb is Verb.drain or verb in RETURNING_VERBS)
        decided = already_started or begun_with or verb in SENDING_VERBS
        begun = verdict.outcome is Outcome.act and decided and held_by is None
        if not begun and (verdict.guard is None or verdict.guard != held_by):
            tx.add_decision(decision_of(proposal, verdict, now))
        if verdict.outcome is not Outcome.act:
            return None, self._hold_back(tx, proposal, verdict, now, held_by)
        if takes_canary(tx.facts, proposal):
            tx.save_breaker(msgspec.structs.replace(tx.facts.breaker, canary=run.id))
        if takes or (verb in SLOT_VERBS and _is_undrained(run, tx.facts)):
            tx.grant_slot(_slot(proposal, run, now))
        return (None, None) if already_started else self._granted(tx, proposal)

    def _why_left_to_person(self, facts: GateFacts) -> Said | None:
        """Why healer's own run ends before it works on its node or returns it: a person's run keeps the node
        out of service and continues there. healer's run has done what it can for the jobs on it."""
        who = facts.kept.get(self.run.node or "")
        if who is None or self.run.by != "healer" or self.run.alongside or self.verb not in _ON_NODE:
            return None
        return say("engine.left_to_person", node=self.run.node, who=who)

    def _ends_run(self, tx: GateTx, why: Said) -> LogEntry:
        entry = self._entry(StepEvent.skipped, why, {"ends_run": True})
        tx.write(entry)
        return entry

    def stays(self, rules: Ruleset) -> Said | None:
        """Why healer's own job, which takes no capacity, must end; None if it may stay. Writes and locks
        nothing."""
        facts = self.claim.facts(rules.sweeping)
        proposal = self._proposal(rules, rules.playbooks[self.run.playbook], facts, None)
        verdict = judge(proposal, facts, rules, self.now())
        return verdict.why if verdict.outcome is not Outcome.act else None

    def borrows(self, rules: Ruleset, nodes: Sequence[str], *, begun: bool) -> dict[str, Said]:
        """Node -> why it may not join a test with others while in service, by the guards of a sweep. Nodes
        that may join are left out. `begun`: the test is running."""
        facts, run, found = self.claim.facts(rules.sweeping), self.run, dict[str, Said]()
        for node in nodes:
            proposal = Proposal(
                cluster=run.cluster, verb=Verb.sweep, node=node, run=run.id, playbook=run.playbook,
                rule=run.rule, granted=begun, borrows=True, suspect=self.verb is Verb.bisect,
            )  # fmt: skip
            verdict = judge(proposal, facts, rules, self.now())
            if verdict.outcome is not Outcome.act:
                found[node] = verdict.why
        return found

    def waits_for_checkpoint(self, playbook: Playbook, ctx: Context) -> Result | None:
        """Why a requeue must wait: a run that waited for a good moment waits again for the checkpoint of each
        job.

        A guard may have held the step for hours while the job kept working. A job that a fatal fault has
        ended is requeued immediately.
        """
        step, incident = self.intent.step, ctx.incident
        moment = moment_of(playbook, step, self.entries) if self.verb is Verb.requeue else None
        if moment is None or (
            incident is not None and (is_proven_unusable(incident) or is_proven_fatal(incident))
        ):
            return None
        waited_for, lasts = moment
        far = far_from_checkpoint(ctx, lasts)
        entries = (entry for entry in self.entries if entry.step == self.intent.key)
        first = next((entry for entry in entries if entry.data.get("waits")), None)
        waited_s = (self.now() - first.at).total_seconds() if first is not None else 0.0
        if isinstance(far, Again) and waited_for.wait_s is not None and waited_s > waited_for.wait_s:
            return Skipped(text=say("engine.no_checkpoint", job=self.intent.item))
        return far

    def no_drain(self, scheduler: SlurmReads) -> None:
        """Releases the slot after a drain that was not made. Queries Slurm before the gate is locked."""
        try:
            shown = scheduler.node(self.run.node or "")
        except SchedulerError:
            shown = None
        self.claim.gate(lambda tx: self._release_undrained(tx, shown))

    def free_caps(self) -> None:
        """Takes the node's slot out of the caps: it was granted before the node was seen to be certainly
        unusable."""

        def free(tx: GateTx) -> None:
            slot = tx.facts.held.get(self.run.node or "")
            if slot is not None and slot.run == self.run.id and not slot.unusable:
                tx.grant_slot(msgspec.structs.replace(slot, unusable=True))

        self.claim.gate(free)

    def last_repair(self) -> datetime | None:
        """When the last reset or boot of the node for another incident was granted, by the worker's own
        rows."""
        facts, node, incident = self.claim.gate(lambda tx: tx.facts), self.run.node or "", self.run.incident
        return max((use.at for use in repairs_of(facts, node) if use.incident != incident), default=None)

    def free_left_slot(self) -> None:
        """Frees the node's slot if the node has been in service for long and no run but this one works
        there."""
        run = self.run

        def free(tx: GateTx) -> None:
            slot = left_slot(tx.facts, run.node or "", run.id)
            if slot is not None:
                tx.release_slot(
                    slot.node, at=self.now(), why=say("engine.by_person", who=run.by, reason=run.reason)
                )

        self.claim.gate(free)

    def no_restart(self, text: Said, data: dict[str, object]) -> LogEntry:
        """Returns a granted restart that was not made: it does not count, and another run may get it."""
        entry = self._entry(StepEvent.skipped, text, data)
        item = self.intent.item
        job, restarts = item or self.run.job, restarts_of(self.run, item, self.entries)
        record = audit_of(self.run, self.intent, entry)

        def give_back(tx: GateTx) -> None:
            if job is not None and restarts is not None:
                tx.drop_requeue(job, restarts)
            tx.write(entry)
            if record is not None:
                tx.audit(record)

        self.claim.gate(give_back)
        return entry

    def _proposal(
        self, rules: Ruleset, playbook: Playbook, facts: GateFacts, incident: Incident | None
    ) -> Proposal:
        run, verb, intent = self.run, self.verb, self.intent
        restarts = restarts_of(run, intent.item, self.entries)
        asked = proposal_of(run, verb or Verb.drain, incident, job=intent.item, restarts=restarts)
        ride = rides_on_slot(run, playbook, facts, begun=has_taken(playbook, self.entries))
        # A second attempt at a reboot is another reboot; a second attempt at a return or a sweep is the same
        # one.
        attempt = None if verb in RETURNING_VERBS or verb is Verb.sweep else intent.attempt
        return msgspec.structs.replace(
            asked,
            remedy=_RUNGS.get(verb, asked.remedy) if verb is not None else asked.remedy,
            ride=ride,
            unchecked=self.unchecked,
            begun_at=run.created_at,
            approved_by=approver_of(playbook, self.entries) or asked.approved_by,
            mode=asked.mode if ride else _present_mode(rules, run),
            adopts=adopts(playbook),
            empties=_takes_capacity(rules, intent),
            stuck_since=stuck_since(self.entries),
            urgency=urgency_of(incident, facts.snapshot) if incident is not None else None,
            granted=is_started(self.entries, intent.key, attempt),
        )

    def _waits(self, tx: GateTx, why: Said, last: LogEntry | None) -> LogEntry:
        wake = (self.now() + timedelta(seconds=WAITS_AGAIN_S)).isoformat()
        entry = self._entry(StepEvent.held, why, {"waits": True, "wake_at": wake})
        if last is None or last.event is not StepEvent.held or last.text != why:
            tx.write(entry)  # a long wait is one entry
        return entry

    def _too_late(self, playbook: Playbook) -> LogEntry | None:
        """The good moment passed while a guard held this step: the run waits for the next one."""
        now = self.now()
        earlier = past_moment(playbook, self.intent.step, self.entries, now)
        if earlier is None:
            return None
        again = Do(step=earlier, key=earlier.id, item=None, attempt=1, fresh=False)
        text = say("engine.moment_passed", step=self.intent.key)
        return entry_of(self.run, again, now, StepEvent.retry, text)

    def _hold_back(
        self, tx: GateTx, proposal: Proposal, verdict: JudgeResult, now: datetime, held_by: str | None
    ) -> LogEntry:
        """The entry for a step that may not act: a held step asks again, a refused one does not. `held_by`:
        the guard that held it last time."""
        data: dict[str, object] = {"guard": str(verdict.guard)}
        if self.intent.step.may_fail and verdict.guard in _REPEAT_GUARDS:
            entry = self._entry(StepEvent.failed, verdict.why, {**data, "final": True, GOES_ON: True})
        elif verdict.outcome is Outcome.held:
            data["wake_at"] = (now + timedelta(seconds=HELD_AGAIN_S)).isoformat()
            entry = self._entry(StepEvent.held, verdict.why, data)
        else:
            # A refused job is left to its owner; a refused drain needs a person.
            event = StepEvent.skipped if self.verb in JOB_VERBS else StepEvent.failed
            restarts = self.verb in RESTARTING_VERBS
            why = say("engine.not_restarted", why=verdict.why) if restarts else verdict.why
            entry = self._entry(event, why, {**data, "final": True})
            self._release_undrained(tx, node_of(proposal, tx.facts))
        if verdict.outcome is not Outcome.held or verdict.guard != held_by:
            tx.write(entry)  # a long pause is one entry
        return entry

    def _release_undrained(self, tx: GateTx, shown: SlurmNode | None) -> None:
        """Releases the slot of a run that could not drain its node; a retry asks for a new one.

        `shown`: the node in Slurm. The slot stays if that is unknown or shows healer's drain.
        """
        run = self.run
        if self.verb is not Verb.drain or has_drained(self.entries) or shown is None:
            return
        slot = tx.facts.held.get(run.node or "")
        is_own = slot is not None and slot.run == run.id and slot.drained_at is None
        if is_own and not (shown.held and is_ours(shown.reason)):
            tx.release_slot(shown.name, at=self.now(), why=say("engine.could_not_drain"))

    def _granted(self, tx: GateTx, proposal: Proposal) -> tuple[LogEntry | None, LogEntry | None]:
        """Logs `started`; skips a job whose restart was granted to another run."""
        now, run, verb = self.now(), self.run, self.verb
        if verb in RESTARTING_VERBS and proposal.job and proposal.restarts is not None:
            use = RequeueUse(job=proposal.job, restarts=proposal.restarts, at=now, incident=run.incident)
            try:
                tx.add_requeue(use)
            except AlreadyRequeued as taken:
                restart = proposal.restarts + 1
                text = say("engine.restart_granted", restart=restart, job=proposal.job, run=taken.run)
                entry = self._entry(StepEvent.skipped, text, {})
                tx.write(entry)
                return None, entry
        # This entry shows the walk that healer, and not a person, returned the node.
        data: dict[str, object] = {"verb": str(verb)} if verb in LIFTING_VERBS else {}
        if verb is not None and verb in _RUNGS:
            shown = tx.facts.slurm_node(run.node)
            data = boot_of(shown) if verb is not Verb.reset_gpu else data
            tx.add_remedy(
                RemedyUse(
                    node=run.node or "", remedy=_RUNGS[verb], rule=run.rule, at=now, incident=run.incident
                )
            )
        started = self._entry(StepEvent.started, NO_WORDS, data)
        tx.write(started)
        return started, None

    def _entry(self, event: StepEvent, text: Said, data: dict[str, object]) -> LogEntry:
        return entry_of(self.run, self.intent, self.now(), event, text, data)


def is_run_paused(claim: RunClaim, now: _Now, job: str | None = None) -> bool:
    """Whether a pause holds all effects of this run, or its effects on this job. Without any pause nothing
    more is read. Does not lock the gate."""
    if not claim.paused():
        return False
    asked = proposal_of(claim.run, Verb.notify, None, job=job)
    return is_paused(asked, claim.facts(()), now())


def remedy_use(run: Run, playbook: Playbook, entries: list[LogEntry], now: datetime) -> RemedyUse:
    """The remedy that begins with the drain. It counts once; a reset or a reboot counts when it is
    granted."""
    later = any(step.do in _RUNGS for step in playbook.steps)
    counted = not later and not has_drained(entries)
    return RemedyUse(
        node=run.node or "",
        remedy=Remedy(run.input.get("remedy", Remedy.none)),
        rule=run.rule,
        at=now,
        incident=run.incident if counted else None,
    )


def _why_nothing_left(
    run: Run, incident: Incident | None, facts: GateFacts, now: datetime, *, waited: bool
) -> Said | None:
    """Why healer's run need not take its node any more; None if it must. `waited`: its playbook first waits
    for a good moment; any other playbook may have begun on a node that is already out of service."""
    if run.by != "healer" or run.node is None:
        return None
    since = incident.clear_since if incident is not None else None
    if since is not None and now - since >= CLEAR_FOR and (waited or run.approved_by is None):
        return say("engine.well_again", node=run.node, time=f"{since:%H:%M:%S}")
    return out_by_us(run.node, facts) if waited else None


def _is_undrained(run: Run, facts: GateFacts) -> bool:
    """The slot is granted, but its drain has not been read back: this attempt may still be the one that takes
    the node."""
    slot = facts.held.get(run.node or "")
    return slot is not None and slot.drained_at is None


def _slot(proposal: Proposal, run: Run, now: datetime) -> Slot:
    return Slot(
        cluster=run.cluster,
        node=run.node or "",
        incident=run.incident,
        run=run.id,
        granted_at=now,
        unusable=proposal.passes_caps,
    )


def _takes_capacity(rules: Ruleset, intent: Do) -> bool:
    """The step is a site command that takes capacity, as declared by the site."""
    command = rules.commands.get(str(intent.step.input.get("command")))
    return intent.step.do is Verb.site_command and command is not None and command.takes_capacity


def _present_mode(rules: Ruleset, run: Run) -> Mode:
    """The rule's present mode; it may have changed since the run began to wait. If the rule is gone or never
    existed, the mode is at most the default mode, because the run's own claim proves nothing."""
    if run.by != "healer":
        return run.mode
    rule = rules.by_name.get(run.rule)
    unknown = min(run.mode, rules.default_mode, key=list(Mode).index)
    return rules.mode_of(rule) if rule is not None else unknown


# --- hooks of Slurm


class HookPermits:
    """Raises Unavailable."""

    def __init__(self, book: HookBook, rules: Callable[[], Ruleset], clock: Clock) -> None:
        self._book, self._rules, self._clock = book, rules, clock
        self.is_held, self.permit_for = book.is_held, book.permit_for
        self.out_of_service = book.out_of_service

    def standings(self, cluster: str) -> Mapping[str, HookStanding]:
        return self._book.standings(cluster, self._clock.now())

    def permit(self, ask: HookRequest) -> Permit | None:
        """The gate's recorded permit for this hook to fail; None if the guards do not allow it now. A
        repeated request gets the same permit, and None once it has expired."""
        now = self._clock.now()
        with self._book.asking(ask.cluster, now) as tx:
            if permit := tx.permit_for(ask):
                return permit if permit.until > now else None
            slot = tx.facts.held.get(ask.node)
            cause = tx.cause(slot) if slot is not None and slot.incident is not None else None
            if cause is None:
                return None
            given = permit_of(ask, *cause, tx.facts, self._rules(), now)
            if isinstance(given, str):
                return None
            tx.add(given)
            return given

    def note_own(self, ask: HookRequest, check: str, at: datetime) -> None:
        """Records that the hook failed at `at` by its own check, without an answer. A repeat changes
        nothing."""
        self._book.note(permit_of_local_check(ask, check, at), self._clock.now())


# --- slots that no longer hold a node: only the worker frees them, as only it grants them (law 1)


class _Releases(Protocol):
    def release_slot(self, node: str, *, at: datetime, why: str) -> None: ...


def free_slots(tx: _Releases, facts: GateFacts, now: datetime) -> GateFacts:
    """Frees such slots under the gate's lock; returns the facts without them."""
    over = slots_over(facts, now)
    for slot, why in over:
        tx.release_slot(slot.node, at=now, why=why)
    return facts.without_slots({slot.node for slot, _ in over})


def free_slots_of(ledger: Ledger, now: datetime) -> None:
    """Frees such slots when no run asks the gate. Locks the gate only if a slot is held."""
    with ledger.transaction() as tx:
        if tx.has_slots():
            free_slots(tx, tx.lock_gate(), now)
