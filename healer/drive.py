"""The loop that drives one run: claim, advance, do, read back, log. It may die at any line.

`started` is committed before an effect, `done` after it was read back; a run that was left anywhere in
between is taken up by the next worker, which looks first.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec
import structlog

from healer.actions import CHECKS, VERBS, Action, Again, Context, Done, Failed, Result, Skipped
from healer.decisions import decision_of, judge, proposal_of, takes_canary
from healer.model import (
    REMOVING_VERBS,
    AuditRecord,
    Command,
    CommandKind,
    Incident,
    LogEntry,
    Outcome,
    Proposal,
    Remedy,
    RemedyUse,
    RequeueUse,
    Ruleset,
    Run,
    RunState,
    StepEvent,
    Verb,
)
from healer.playbooks.advance import Ask, Do, Finish, Sleep, advance, jobs_hit
from healer.ports import (
    AlreadyRequeued,
    Clock,
    GateTx,
    LeaseLost,
    Ledger,
    LedgerAway,
    RunClaim,
    Scheduler,
    SchedulerError,
)

log = structlog.get_logger()

#: A step that a guard holds asks again after this long.
HELD_AGAIN_S = 1.0
_EVENT = {
    Done: StepEvent.done,
    Skipped: StepEvent.skipped,
    Failed: StepEvent.failed,
    Again: StepEvent.waiting,
}
#: They ask once: read back, the node no longer shows what they were granted for.
_RETURNING = frozenset({Verb.resume, Verb.undrain})
_PAST = {Verb.drain: "node.drained", Verb.resume: "node.resumed", Verb.requeue: "job.requeued"}


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
    ) -> None:
        self.ledger, self.scheduler, self.rules = ledger, scheduler, rules
        self.clock = clock
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
                    if claim.run.shadow and intent.step.wait:
                        self._end(claim, RunState.done, "shadow: it would now wait")
                        return
                case Sleep():
                    self._sleep(claim, intent, entries)
                    return
                case Ask():
                    self._ask(claim, intent.question)
                    return
                case Finish():
                    self._end(claim, RunState.done, intent.why)
                    return

    def _sleep(self, claim: RunClaim, intent: Sleep, entries: list[LogEntry]) -> None:
        """A wait for a moment keeps the node; a wait for a person may be taken over by theirs."""
        if intent.until is None:
            tell = self._news(claim.run, RunState.waiting)
            claim.set_state(RunState.waiting, why=intent.why, tell=tell)
            return
        last = next((one for one in reversed(entries) if one.step == intent.key), None)
        held = last is not None and last.event is StepEvent.held
        question = intent.why if held else None  # what a guard holds is shown, and paged like any hold
        claim.set_state(RunState.running, why=intent.why, wake_at=intent.until, question=question)

    def _ask(self, claim: RunClaim, question: str) -> None:
        tell = self._news(claim.run, RunState.stuck)
        claim.set_state(RunState.stuck, why=question, question=question, tell=tell)

    # --- one step ------------------------------------------------------------------------------------------

    def _do(self, claim: RunClaim, rules: Ruleset, intent: Do, entries: list[LogEntry]) -> LogEntry:
        action = (
            VERBS[intent.step.do] if intent.step.do else CHECKS[intent.step.check or intent.step.wait or ""]
        )
        incident = claim.incident()
        ctx = self._context(claim, intent, entries, incident)
        started = _is_started(entries, intent.key)
        asks = intent.step.do in REMOVING_VERBS or (intent.step.do in _RETURNING and not started)
        if action.effect and asks and not claim.run.shadow:
            # What is done already needs no leave; what is still to be done asks for it each time: a pause,
            # the breaker or a person may have come since the last attempt.
            seen = self._guarded(lambda: action.probe(ctx)) if started else None
            if seen is not None:
                return self._record(claim, intent, self._in_time(ctx, intent, seen))
            kept = self._pass_gate(claim, rules, intent, entries, incident)
            if kept is not None:
                return kept
        elif action.effect and not started:
            self._write(claim, intent, StepEvent.started, "")
        self.checkpoint(f"started:{intent.key}")
        if claim.run.shadow and action.effect:
            would = f"shadow: would {intent.step.do} {intent.item or claim.run.node or ''}".strip()
            return self._write(claim, intent, StepEvent.done, would)
        result = self._guarded(lambda: self._perform(action, ctx, intent.key))
        self.checkpoint(f"performed:{intent.key}")
        return self._record(claim, intent, self._in_time(ctx, intent, result))

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
        except SchedulerError as error:
            return Failed(text=str(error))
        except Exception as error:
            log.exception("a step failed within healer")
            return Failed(text=f"an error within healer: {type(error).__name__}: {error}", final=True)

    def _in_time(self, ctx: Context, intent: Do, result: Result) -> Result:
        if not isinstance(result, Again) or result.after_s is None or intent.step.do is None:
            return result
        waited_s = (self.clock.now() - ctx.began_at).total_seconds()
        if waited_s <= intent.step.timeout_s * intent.attempt:
            return result
        return Failed(text=f"not read back within {intent.step.timeout_s:.0f} s: {result.text}")

    def _context(
        self, claim: RunClaim, intent: Do, entries: list[LogEntry], incident: Incident | None
    ) -> Context:
        # What a guard held before, or a person mended, is no part of the time that the step takes.
        latest = _since_retry(entries, intent.key)
        began = [one.at for one in latest if one.event is StepEvent.started]
        run = claim.run
        return Context(
            run=run,
            step=intent.step,
            item=intent.item,
            restarts=_restarts(run, intent.item, entries),
            incident=incident,
            began_at=began[0] if began else self.clock.now(),
            now=self.clock.now,
            scheduler=self.scheduler,
            fence=claim.fence,
            queue=claim.queue_message,
            # In shadow nothing was drained: the incident's list of jobs stays a guess.
            tell_detector=_tell_nobody if run.shadow else claim.tell,
            release_slot=lambda why: claim.release_slot(run.node or "", why=why),
        )

    def _record(self, claim: RunClaim, intent: Do, result: Result) -> LogEntry:
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
    ) -> LogEntry | None:
        """Judges a removing step and logs `started` in one commit; the entry that keeps it back, or None."""
        again = _is_started(entries, intent.key)
        started = any(one.step == intent.key and one.event is StepEvent.started for one in entries)
        now = self.clock.now()
        run, step = claim.run, intent.step
        restarts = _restarts(run, intent.item, entries)
        asked = proposal_of(run, step.do or Verb.drain, incident, job=intent.item, restarts=restarts)
        # The run was granted when it began: this step rides on that.
        proposal = msgspec.structs.replace(asked, ride=True)
        held_by = next((one.data.get("guard") for one in reversed(entries) if one.step == intent.key), None)
        with claim.gate() as tx:
            verdict = judge(proposal, tx.facts, rules, now)
            # That a drain may go was decided, and stored, when its run began.
            decided = again or step.do is not Verb.requeue
            begun = verdict.outcome is Outcome.act and decided and held_by is None
            if not begun and (verdict.guard is None or verdict.guard != held_by):
                tx.add_decision(decision_of(proposal, verdict, now))
            if verdict.outcome is Outcome.act:
                if takes_canary(tx.facts, proposal):
                    tx.save_breaker(msgspec.structs.replace(tx.facts.breaker, canary=run.id))
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
        tx.write(self._entry(claim, intent, StepEvent.started, "", {}))
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
        claim.write(entry, audit=_audit(claim.run, intent, entry), drained=drained)
        return entry

    def _news(self, run: Run, state: RunState) -> Command | None:
        """What the detector is told of a run's new state; nothing for shadow runs."""
        if run.incident is None or run.shadow:
            return None
        return _command(run, self.clock.now(), state)

    def _end(self, claim: RunClaim, state: RunState, why: str) -> None:
        claim.set_state(state, why=why, tell=self._news(claim.run, state))


def _since_retry(entries: list[LogEntry], key: str) -> list[LogEntry]:
    """A step's entries since a person let it go on, theirs first; all of them where nobody did."""
    own = [one for one in entries if one.step == key]
    retries = [index for index, one in enumerate(own) if one.event is StepEvent.retry]
    return own[retries[-1] :] if retries else own


def _is_started(entries: list[LogEntry], key: str) -> bool:
    return any(one.event is StepEvent.started for one in _since_retry(entries, key))


def _tell_nobody(_: Command) -> None:
    return None


def _remedy(run: Run) -> Remedy:
    return Remedy(run.input.get("remedy", Remedy.none))


def _restarts(run: Run, item: str | None, entries: list[LogEntry]) -> int | None:
    if item is not None:
        return jobs_hit(entries).get(item)
    given = run.input.get("restarts")
    return int(given) if given is not None else None


def _audit(run: Run, intent: Do, entry: LogEntry) -> AuditRecord | None:
    """Effects and refusals are audited; looking and waiting stand in the run's log."""
    if intent.step.do is None or entry.event in {StepEvent.started, StepEvent.waiting}:
        return None
    worked = entry.event is StepEvent.done and not run.shadow
    verb = _PAST.get(intent.step.do, f"{intent.step.do}.done") if worked else f"step.{entry.event}"
    subject = f"job/{intent.item or run.job}" if intent.step.do is Verb.requeue else f"node/{run.node}"
    return AuditRecord(
        cluster=run.cluster,
        at=entry.at,
        actor=run.by,
        verb=verb,
        subject=subject,
        data={"run": run.id, "incident": run.incident, "step": entry.step, "text": entry.text, **entry.data},
    )


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
