"""The loop that drives one run: claim, advance, do, read back, log. It may die at any line.

`started` is committed before an effect, `done` after it was read back; a run that was left anywhere in
between is taken up by the next worker, which looks first.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec
import structlog

from healer.actions import CHECKS, VERBS, WAITS, Action, Again, Context, Done, Failed, Result, Skipped
from healer.actions.checks import told_since
from healer.actions.waits import far_from_checkpoint
from healer.decisions import (
    SLOT_VERBS,
    decision_of,
    holds_slot,
    judge,
    out_by_us,
    proposal_of,
    slot_later,
    takes_canary,
)
from healer.incidents.lifecycle import CLEAR_FOR
from healer.incidents.senses import ended_work, not_looked
from healer.model import (
    REMOVING_VERBS,
    RETURNING_VERBS,
    Command,
    CommandKind,
    GateFacts,
    Incident,
    LogEntry,
    Mode,
    Outcome,
    Playbook,
    Proposal,
    Remedy,
    RemedyUse,
    RequeueUse,
    Ruleset,
    Run,
    RunState,
    Slot,
    Step,
    StepEvent,
    Verb,
)
from healer.playbooks.advance import Ask, Do, Finish, Skip, Sleep, advance
from healer.ports import (
    AlreadyRequeued,
    Checkpoints,
    Clock,
    GateTx,
    LeaseLost,
    Ledger,
    LedgerAway,
    NodeError,
    NodeExec,
    RunClaim,
    Scheduler,
    SchedulerError,
)
from healer.runlog import (
    audit_of,
    began_at,
    effect_key,
    has_removed,
    is_asked,
    is_started,
    last_of,
    moment_of,
    past_moment,
    restarts_of,
    tested_at,
    would_have_removed,
)

log = structlog.get_logger()

#: A step that a guard holds asks again after this long; one that waits for a job or the senses after that.
HELD_AGAIN_S = 1.0
WAITS_AGAIN_S = 5.0
_EVENT = {
    Done: StepEvent.done,
    Skipped: StepEvent.skipped,
    Failed: StepEvent.failed,
    Again: StepEvent.waiting,
}
#: People are told without leave; everything else that is done asks for it.
_TELLING = frozenset({Verb.ticket, Verb.notify})


class Driver:
    """What a worker needs to drive runs. One value per process and cluster."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        scheduler: Scheduler,
        rules: Callable[[], Ruleset],
        clock: Clock,
        checkpoint: Callable[[str], None] = lambda _: None,
        nodes: NodeExec | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self.ledger, self.scheduler, self.rules = ledger, scheduler, rules
        self.clock = clock
        #: None: no way to work on nodes is configured; a step that would asks a person.
        self.nodes = nodes
        #: What jobs can go back to; None: nobody tells, and only their end is waited for.
        self.checkpoints = checkpoints
        #: Called with the name of each line where a crash would matter; tests kill the process there.
        self.checkpoint = checkpoint

    def drive(self, run: str) -> None:
        """Takes the run as far as it goes now. Returns when it waits, ended, got stuck or is another's."""
        try:
            with self.ledger.claim(run) as claim:
                if claim is not None:
                    self._loop(claim)
        except (LeaseLost, LedgerAway) as error:
            log.warning("run left", run=run, why=str(error))  # the sweep brings it back

    def _loop(self, claim: RunClaim) -> None:
        rules = self.rules()
        playbook = rules.playbooks.get(claim.run.playbook)
        if playbook is None:
            self._ask(
                claim, f"The playbook {claim.run.playbook} is no longer in rules/: put it back, or cancel."
            )
            return
        entries = claim.log()
        if not entries and claim.run.by != "healer":
            news = self._news(claim.run, RunState.running)
            if news is not None:  # what healer started itself, the detector knows
                claim.tell(news)
        while True:
            intent = advance(playbook, entries, self.clock.now())
            match intent:
                case Do():
                    entry = self._do(claim, rules, intent, entries)
                    entries.append(entry)
                case Skip():
                    entries.append(self._skip(claim, intent))
                case Sleep() | Ask() if claim.run.shadow and (would := _would(intent)):
                    self._end(claim, RunState.done, would)
                    return
                case Sleep():
                    self._sleep(claim, intent, entries)
                    return
                case Ask():
                    self._ask(claim, intent.question)
                    return
                case Finish():
                    early = any(one.data.get("ends_run") for one in entries)
                    self._end(claim, RunState.done, intent.why, early=early)
                    return

    def _sleep(self, claim: RunClaim, intent: Sleep, entries: list[LogEntry]) -> None:
        """A wait for a moment keeps the node; a wait for a person may be taken over by theirs."""
        if intent.until is None:
            tell = self._news(claim.run, RunState.waiting)
            claim.set_state(RunState.waiting, why=intent.why, tell=tell)
            return
        last = last_of(entries, intent.key)
        held = last is not None and last.event is StepEvent.held
        question = intent.why if held else None  # what a guard holds is shown, and paged like any hold
        claim.set_state(RunState.running, why=intent.why, wake_at=intent.until, question=question)

    def _ask(self, claim: RunClaim, question: str) -> None:
        tell = self._news(claim.run, RunState.stuck)
        claim.set_state(RunState.stuck, why=question, question=question, tell=tell)

    # --- one step ------------------------------------------------------------------------------------------

    def _do(self, claim: RunClaim, rules: Ruleset, intent: Do, entries: list[LogEntry]) -> LogEntry:
        action = _action(intent.step)
        incident = claim.incident()
        ctx = self._context(claim, intent, entries, incident)
        started = is_started(entries, intent.key)
        # A return asks once: read back, the node no longer shows what it was granted for.
        asks = intent.step.do not in _TELLING and not (intent.step.do in RETURNING_VERBS and started)
        left = self._give_way(claim, intent, entries, ctx) or self._stays_out(claim, intent, entries, ctx)
        if left is not None:
            return left
        if action.effect and asks and not claim.run.shadow:
            # What is done already needs no leave; what is still to be done asks for it each time: a pause,
            # the breaker or a person may have come since the last attempt.
            seen = self._guarded(lambda: action.probe(ctx)) if started else None
            if seen is not None:
                return self._record(claim, intent, self._in_time(ctx, intent, seen), entries)
            far = self._far(claim, rules, intent, entries, ctx)
            if isinstance(far, Skipped | Failed):
                return self._record(claim, intent, far, entries)
            kept = self._pass_gate(claim, rules, intent, entries, incident, wait=far.text if far else None)
            if kept is not None:
                return kept
            if intent.step.do in RETURNING_VERBS:
                # What was told before the gate let it go, the walk has stored.
                fresh = self._context(claim, intent, entries)
                left = self._give_way(claim, intent, entries, fresh)
                left = left or self._stays_out(claim, intent, entries, fresh)
                if left is not None:
                    return left
        elif action.effect and not started:
            self._write(claim, intent, StepEvent.started, "")
        self.checkpoint(f"started:{intent.key}")
        if claim.run.shadow and action.effect:
            would = f"shadow: would {intent.step.do} {intent.item or claim.run.node or ''}".strip()
            return self._write(claim, intent, StepEvent.done, would, {"would": str(intent.step.do)})
        result = self._guarded(lambda: self._perform(action, ctx, intent.key))
        self.checkpoint(f"performed:{intent.key}")
        result = self._in_time(ctx, intent, result)
        if claim.run.shadow and isinstance(result, Again) and result.after_s and would_have_removed(entries):
            # Nothing was taken, so what would follow from that never comes.
            result = Done(text=f"shadow: would wait: {result.text}")
        return self._record(claim, intent, result, entries)

    def _give_way(
        self, claim: RunClaim, intent: Do, entries: list[LogEntry], ctx: Context
    ) -> LogEntry | None:
        """Worse is told of the node: healer's own run leaves it to that, between two effects.

        One that has taken nothing yet goes on until the worse one may act: the walk ends it then.
        """
        worse = ctx.incident.gives_way_to if ctx.incident is not None else None
        if worse is None or claim.run.by != "healer" or not has_removed(entries):
            return None
        verb = intent.step.do
        if is_started(entries, intent.key):
            if verb in REMOVING_VERBS:
                return None  # read back first what was begun
            seen = self._guarded(lambda: _action(intent.step).probe(ctx)) if verb in RETURNING_VERBS else None
            if seen is not None:  # the node is back already: the other incident takes it out anew
                return self._record(claim, intent, self._in_time(ctx, intent, seen), entries)
        text = f"leaves {claim.run.node} to incident {worse[:8]}, which is worse"
        return self._write(claim, intent, StepEvent.skipped, text, {"ends_run": True})

    def _stays_out(
        self, claim: RunClaim, intent: Do, entries: list[LogEntry], ctx: Context
    ) -> LogEntry | None:
        """What speaks against giving the node back although its tests passed: then a person is asked."""
        incident = ctx.incident
        if intent.step.do not in RETURNING_VERBS or incident is None or claim.run.shadow:
            return None
        lines = told_since(incident, ctx.tested_at) if ctx.tested_at is not None else []
        worse = incident.worse if claim.run.by == "healer" and has_removed(entries) else None
        if not lines and worse is None:
            return None
        if is_started(entries, intent.key):
            seen = self._guarded(lambda: _action(intent.step).probe(ctx))
            if seen is not None:  # it is back already
                return self._record(claim, intent, self._in_time(ctx, intent, seen), entries)
        text = f"A new fault line came since the tests began: {lines[-1].text}" if lines else ""
        if worse is not None:
            text = (
                f"Incident {worse[:8]} of {claim.run.node} is worse and still open. Resolve it, or resume "
                "the node yourself."
            )
        return self._record(claim, intent, Failed(text=text, final=True), entries)

    def _skip(self, claim: RunClaim, intent: Skip) -> LogEntry:
        step = Do(step=intent.step, key=intent.key, item=None, attempt=1, fresh=True)
        entry = self._entry(claim, step, StepEvent.skipped, intent.why, {})
        claim.write(entry)
        return entry

    def _perform(self, action: Action, ctx: Context, key: str) -> Result:
        result = action.probe(ctx)
        if result is None:
            result = action.do(ctx)
            self.checkpoint(f"done:{key}")
        return result if result is not None else action.verify(ctx)

    def _guarded(self, act: Callable[[], Result | None]) -> Any:
        """Slurm's refusals are failed attempts; an error of our own asks a person instead of looping."""
        try:
            return act()
        except (LeaseLost, LedgerAway):
            raise
        except (SchedulerError, NodeError) as error:
            return Failed(text=str(error))
        except Exception as error:
            log.exception("a step failed within healer")
            return Failed(text=f"an error within healer: {type(error).__name__}: {error}", final=True)

    def _in_time(self, ctx: Context, intent: Do, result: Result) -> Result:
        if not isinstance(result, Again) or result.after_s is None:
            return result
        waited_s = (self.clock.now() - ctx.began_at).total_seconds()
        if intent.step.do is None:
            limit_s = intent.step.wait_s
            if limit_s is None or waited_s <= limit_s:
                return result
            return Failed(text=f"It has waited for {waited_s / 3600:.1f} h: {result.text}.", final=True)
        if waited_s <= intent.step.timeout_s * intent.attempt:
            return result
        return Failed(text=f"not read back within {intent.step.timeout_s:.0f} s: {result.text}")

    def _context(
        self, claim: RunClaim, intent: Do, entries: list[LogEntry], incident: Incident | None = None
    ) -> Context:
        """`incident` as it was just read; else it is read now."""
        run = claim.run
        return Context(
            run=run,
            step=intent.step,
            item=intent.item,
            restarts=restarts_of(run, intent.item, entries),
            incident=incident if incident is not None else claim.incident(),
            began_at=began_at(entries, intent.key) or self.clock.now(),
            now=self.clock.now,
            scheduler=self.scheduler,
            fence=claim.fence,
            queue=claim.queue_message,
            # In shadow nothing was drained: the incident's list of jobs stays a guess.
            tell_detector=_tell_nobody if run.shadow else claim.tell,
            release_slot=lambda why: claim.release_slot(run.node or "", why=why),
            nodes=self.nodes,
            checkpoints=self.checkpoints,
            key=effect_key(run, entries, intent.key),
            asked=is_asked(entries, intent.key, intent.attempt),
            tested_at=tested_at(self.rules().playbooks[run.playbook], entries),
        )

    def _record(self, claim: RunClaim, intent: Do, result: Result, entries: list[LogEntry]) -> LogEntry:
        data: dict[str, object] = dict(getattr(result, "data", {}))
        if intent.step.do is not None:
            data["verb"] = str(intent.step.do)
        if isinstance(result, Again):
            wake = None
            if result.after_s is not None:
                wake = (self.clock.now() + timedelta(seconds=result.after_s)).isoformat()
            data["wake_at"] = wake
        if isinstance(result, Failed) and (result.final or intent.attempt > intent.step.retries):
            data["final"] = True
        last = last_of(entries, intent.key)
        if isinstance(result, Again) and _says_the_same(last, result, intent):
            return self._entry(claim, intent, StepEvent.waiting, result.text, data)  # a day is one line
        drained = isinstance(result, Done) and intent.step.do is Verb.drain and claim.run.node is not None
        use = self._remedy_use(claim.run) if drained else None
        return self._write(claim, intent, _EVENT[type(result)], result.text, data, drained=use)

    def _remedy_use(self, run: Run) -> RemedyUse:
        return RemedyUse(
            node=run.node or "",
            remedy=_remedy(run),
            rule=run.rule,
            at=self.clock.now(),
            incident=run.incident,
        )

    # --- the gate ------------------------------------------------------------------------------------------

    def _pass_gate(
        self,
        claim: RunClaim,
        rules: Ruleset,
        intent: Do,
        entries: list[LogEntry],
        incident: Incident | None,
        *,
        wait: str | None,
    ) -> LogEntry | None:
        """Judges a step and logs `started` in one commit; the entry that keeps it back, or None.

        A run that was granted its slot as it began rides on that. One that waited first is judged whole here,
        by the rule's mode and the caps of now, and takes its slot in this very commit. `wait`: why it is not
        done now although it may; the gate is asked first, so that a long hold is one line.
        """
        again = is_started(entries, intent.key)
        started = any(one.step == intent.key and one.event is StepEvent.started for one in entries)
        now = self.clock.now()
        run, step = claim.run, intent.step
        restarts = restarts_of(run, intent.item, entries)
        asked = proposal_of(run, step.do or Verb.drain, incident, job=intent.item, restarts=restarts)
        playbook = rules.playbooks[run.playbook]
        last = last_of(entries, intent.key)
        held_by = last.data.get("guard") if last is not None else None
        with claim.gate() as tx:
            ride = not slot_later(playbook) or holds_slot(tx.facts, run)
            takes = not ride and step.do in SLOT_VERBS
            mode = asked.mode if ride else _mode(rules, run)
            proposal = msgspec.structs.replace(asked, ride=ride, mode=mode)
            if takes and (why := _no_more(run, incident, tx.facts, now)):
                entry = self._entry(claim, intent, StepEvent.skipped, why, {"ends_run": True})
                tx.write(entry)
                return entry
            verdict = judge(proposal, tx.facts, rules, now)
            if takes and incident is not None and run.by == "healer":
                wait = not_looked(incident, now)
            if wait is not None and verdict.outcome is Outcome.act:
                return self._waits(tx, claim, intent, wait, last)
            late = self._too_late(claim, intent, entries, playbook) if takes else None
            if late is not None and verdict.outcome is Outcome.act:
                tx.write(late)
                return late
            # That a drain may go was decided, and stored, when its run began.
            decided = again or (not takes and (step.do in SLOT_VERBS or step.do in RETURNING_VERBS))
            begun = verdict.outcome is Outcome.act and decided and held_by is None
            if not begun and (verdict.guard is None or verdict.guard != held_by):
                tx.add_decision(decision_of(proposal, verdict, now))
            if verdict.outcome is Outcome.act:
                if takes_canary(tx.facts, proposal):
                    tx.save_breaker(msgspec.structs.replace(tx.facts.breaker, canary=run.id))
                if takes:
                    tx.grant_slot(_slot(proposal, run, now))
                return None if again else self._granted(tx, claim, intent, proposal, ours=started)
            data: dict[str, object] = {"guard": str(verdict.guard)}
            if verdict.outcome is Outcome.held:
                data["wake_at"] = (now + timedelta(seconds=HELD_AGAIN_S)).isoformat()
                entry = self._entry(claim, intent, StepEvent.held, verdict.why, data)
            else:
                # A refused requeue leaves the job to its owner; a refused drain needs a person.
                event = StepEvent.skipped if step.do is Verb.requeue else StepEvent.failed
                entry = self._entry(claim, intent, event, verdict.why, {**data, "final": True})
            if verdict.outcome is not Outcome.held or verdict.guard != held_by:
                tx.write(entry)  # a pause of a weekend is one line of the log
            return entry

    def _far(
        self, claim: RunClaim, rules: Ruleset, intent: Do, entries: list[LogEntry], ctx: Context
    ) -> Result | None:
        """Why a requeue is not due: a run that waited for a good moment waits for each job's own again.

        A guard may have held the step for hours, and the job's work went on. What a fatal fault has ended
        does not go on.
        """
        playbook, incident = rules.playbooks[claim.run.playbook], ctx.incident
        moment = moment_of(playbook, intent.step, entries) if intent.step.do is Verb.requeue else None
        if moment is None or (incident is not None and (incident.unusable or ended_work(incident))):
            return None
        waited_for, lasts = moment
        far = self._guarded(lambda: far_from_checkpoint(ctx, lasts))
        first = next((one for one in entries if one.step == intent.key and one.data.get("waits")), None)
        waited_s = (self.clock.now() - first.at).total_seconds() if first is not None else 0.0
        if isinstance(far, Again) and waited_for.wait_s is not None and waited_s > waited_for.wait_s:
            return Skipped(text=f"Job {intent.item} told of no checkpoint in time: it goes on to its end")
        return far

    def _waits(self, tx: GateTx, claim: RunClaim, intent: Do, why: str, last: LogEntry | None) -> LogEntry:
        wake = (self.clock.now() + timedelta(seconds=WAITS_AGAIN_S)).isoformat()
        entry = self._entry(claim, intent, StepEvent.held, why, {"waits": True, "wake_at": wake})
        if last is None or last.event is not StepEvent.held or last.text != why:
            tx.write(entry)  # a day is one line
        return entry

    def _too_late(
        self, claim: RunClaim, intent: Do, entries: list[LogEntry], playbook: Playbook
    ) -> LogEntry | None:
        """The moment that was waited for has passed while a guard held this step: it is waited for anew."""
        earlier = past_moment(playbook, intent.step, entries, self.clock.now())
        if earlier is None:
            return None
        again = Do(step=earlier, key=earlier.id, item=None, attempt=1, fresh=False)
        text = f"{intent.key} was held until the moment had passed: waits for the next"
        return self._entry(claim, again, StepEvent.retry, text, {})

    def _granted(
        self, tx: GateTx, claim: RunClaim, intent: Do, proposal: Proposal, *, ours: bool
    ) -> LogEntry | None:
        """Logs `started`; a job whose life was requeued before is left to whoever did it.

        `ours`: this run was granted it before, and a person lets it try again.
        """
        now = self.clock.now()
        requeues = intent.step.do is Verb.requeue and not ours
        if requeues and proposal.job and proposal.restarts is not None:
            use = RequeueUse(
                job=proposal.job, restarts=proposal.restarts, at=now, incident=claim.run.incident
            )
            try:
                tx.add_requeue(use)
            except AlreadyRequeued:
                text = f"Job {proposal.job} was requeued already (restart {proposal.restarts + 1})"
                entry = self._entry(claim, intent, StepEvent.skipped, text, {})
                tx.write(entry)
                return entry
        # Whoever sees the node come back knows by this that it is no person's doing.
        returns: dict[str, object] = (
            {"verb": str(intent.step.do)} if intent.step.do in RETURNING_VERBS else {}
        )
        tx.write(self._entry(claim, intent, StepEvent.started, "", returns))
        return None

    # --- writing ---

    def _entry(
        self, claim: RunClaim, intent: Do, event: StepEvent, text: str, data: dict[str, object]
    ) -> LogEntry:
        return LogEntry(
            run=claim.run.id,
            at=self.clock.now(),
            epoch=claim.run.epoch,
            step=intent.key,
            event=event,
            attempt=intent.attempt,
            text=text,
            data=data,
        )

    def _write(
        self,
        claim: RunClaim,
        intent: Do,
        event: StepEvent,
        text: str,
        data: dict[str, object] | None = None,
        *,
        drained: RemedyUse | None = None,
    ) -> LogEntry:
        entry = self._entry(claim, intent, event, text, data or {})
        claim.write(entry, audit=audit_of(claim.run, intent, entry), drained=drained)
        return entry

    def _news(self, run: Run, state: RunState) -> Command | None:
        """What the detector is told of a run's new state; nothing for shadow runs."""
        if run.incident is None or run.shadow:
            return None
        return _command(run, self.clock.now(), state)

    def _end(self, claim: RunClaim, state: RunState, why: str, *, early: bool = False) -> None:
        """`early`: not by its last step; its incident stands as if nobody had worked on it."""
        tell = self._news(claim.run, state)
        if tell is not None and early:
            tell = msgspec.structs.replace(tell, data={**tell.data, "early": True})
        claim.set_state(state, why=why, tell=tell)


def _action(step: Step) -> Action:
    if step.do is not None:
        return VERBS[step.do]
    return CHECKS[step.check] if step.check is not None else WAITS[step.wait or ""]


def _would(intent: Sleep | Ask) -> str | None:
    """Where a shadow run ends: where only a person could go on. For a moment it waits as a real one does."""
    if isinstance(intent, Ask):
        return f"shadow: it would now ask: {intent.question}"
    return "shadow: it would now wait" if intent.until is None else None


def _says_the_same(last: LogEntry | None, result: Again, intent: Do) -> bool:
    if last is None or last.event is not StepEvent.waiting:
        return False
    return (last.text, last.attempt) == (result.text, intent.attempt)


def _no_more(run: Run, incident: Incident | None, facts: GateFacts, now: datetime) -> str | None:
    """Why a run of healer's that has waited has nothing left to take its node for."""
    if run.by != "healer" or run.node is None:
        return None
    since = incident.clear_since if incident is not None else None
    if since is not None and now - since >= CLEAR_FOR:
        return f"{run.node} is well again since {since:%H:%M:%S} UTC: nothing is done"
    return out_by_us(run.node, facts)


def _slot(proposal: Proposal, run: Run, now: datetime) -> Slot:
    return Slot(
        cluster=run.cluster,
        node=run.node or "",
        incident=run.incident,
        run=run.id,
        granted_at=now,
        unusable=proposal.unusable,
    )


def _tell_nobody(_: Command) -> None:
    return None


def _remedy(run: Run) -> Remedy:
    return Remedy(run.input.get("remedy", Remedy.none))


def _mode(rules: Ruleset, run: Run) -> Mode:
    """The rule's mode as it stands now: it was another one, maybe, when the run began to wait."""
    rule = next((one for one in rules.rules if one.name == run.rule), None)
    return rules.mode_of(rule) if rule is not None and run.by == "healer" else run.mode


def _command(run: Run, at: datetime, state: RunState) -> Command:
    return Command(
        kind=CommandKind.run_changed,
        cluster=run.cluster,
        at=at,
        by=run.by,
        incident=run.incident,
        reason=run.reason,
        data={"run": run.id, "playbook": run.playbook, "state": str(state)},
    )
