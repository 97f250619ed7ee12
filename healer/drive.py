"""The loop that drives one run: claim, advance, do, read back, log. It may die at any line.

`started` is committed before an effect, `done` after it was read back; a run that was left anywhere in
between is taken up by the next worker, which looks first.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec
import structlog

from healer.actions import CHECKS, VERBS, Action, Again, Context, Done, Failed, Result, Skipped
from healer.decisions import decision_of, judge, proposal_of
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
        with self.ledger.claim(run) as claim:
            if claim is None:
                return
            try:
                self._loop(claim)
            except LeaseLost:
                log.warning("lease lost", run=run)

    def _loop(self, claim: RunClaim) -> None:
        rules = self.rules()
        playbook = rules.playbooks[claim.run.playbook]
        entries = claim.log()
        if not entries and claim.run.by != "healer":
            self._tell_state(claim, RunState.running)  # what healer started itself, the detector knows
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
                    # A wait for a moment keeps the node; a wait for a person may be taken over by theirs.
                    if intent.until is not None:
                        claim.set_state(RunState.running, why=intent.why, wake_at=intent.until)
                    else:
                        claim.set_state(RunState.waiting, why=intent.why)
                        self._tell_state(claim, RunState.waiting)
                    return
                case Ask():
                    claim.set_state(RunState.stuck, why=intent.question, question=intent.question)
                    self._tell_state(claim, RunState.stuck)
                    return
                case Finish():
                    self._end(claim, RunState.done, intent.why)
                    return

    # --- one step ------------------------------------------------------------------------------------------

    def _do(self, claim: RunClaim, rules: Ruleset, intent: Do, entries: list[LogEntry]) -> LogEntry:
        action = (
            VERBS[intent.step.do] if intent.step.do else CHECKS[intent.step.check or intent.step.wait or ""]
        )
        incident = claim.incident()
        if action.effect and intent.step.do in REMOVING_VERBS and not claim.run.shadow:
            refused = self._pass_gate(claim, rules, intent, entries, incident)
            if refused is not None:
                return refused
        elif action.effect and not _is_started(entries, intent.key):
            self._write(claim, intent, StepEvent.started, "")
        self.checkpoint(f"started:{intent.key}")
        if claim.run.shadow and action.effect:
            would = f"shadow: would {intent.step.do} {intent.item or claim.run.node or ''}".strip()
            return self._write(claim, intent, StepEvent.done, would)
        result = self._perform(claim, action, intent, entries, incident)
        self.checkpoint(f"performed:{intent.key}")
        return self._record(claim, intent, result, incident)

    def _perform(
        self,
        claim: RunClaim,
        action: Action,
        intent: Do,
        entries: list[LogEntry],
        incident: Incident | None,
    ) -> Result:
        ctx = self._context(claim, intent, entries, incident)
        try:
            result = action.probe(ctx)
            if result is None:
                result = action.do(ctx)
                self.checkpoint(f"done:{intent.key}")
            if result is None:
                result = action.verify(ctx)
        except LeaseLost:
            raise
        except SchedulerError as error:
            return Failed(text=str(error))
        if isinstance(result, Again) and result.after_s is not None and action.effect:
            waited_s = (self.clock.now() - ctx.began_at).total_seconds()
            if waited_s > intent.step.timeout_s * intent.attempt:
                return Failed(text=f"not read back within {intent.step.timeout_s:.0f} s: {result.text}")
        return result

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

    def _record(self, claim: RunClaim, intent: Do, result: Result, incident: Incident | None) -> LogEntry:
        data: dict[str, object] = dict(getattr(result, "data", {}))
        if intent.step.do is not None:
            data["verb"] = str(intent.step.do)
        if isinstance(result, Again):
            wake = None
            if result.after_s is not None:
                wake = (self.clock.now() + timedelta(seconds=result.after_s)).isoformat()
            data["wake_at"] = wake
        if isinstance(result, Failed) and result.final:
            data["final"] = True
        entry = self._write(claim, intent, _EVENT[type(result)], result.text, data)
        if isinstance(result, Done) and intent.step.do is Verb.drain and claim.run.node:
            claim.drained(claim.run.node, self._remedy_use(claim.run) if incident else None)
        return entry

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
        """Judges a removing step and logs `started` in one commit; the entry that keeps it back, or None.

        A step that was started before has passed already: what it asked for stands in the log.
        """
        if _is_started(entries, intent.key):
            return None
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
            begun = verdict.outcome is Outcome.act and step.do is Verb.drain and held_by is None
            if not begun and (verdict.guard is None or verdict.guard != held_by):
                tx.add_decision(decision_of(proposal, verdict, now))
            if verdict.outcome is Outcome.act:
                return self._granted(tx, claim, intent, proposal, ours=started)
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
    ) -> LogEntry:
        entry = self._entry(claim, intent, event, text, data or {})
        claim.write(entry, audit=_audit(claim.run, intent, entry))
        return entry

    def _tell_state(self, claim: RunClaim, state: RunState) -> None:
        if claim.run.incident is None or claim.run.shadow:
            return
        claim.tell(_command(claim.run, self.clock.now(), state))

    def _end(self, claim: RunClaim, state: RunState, why: str) -> None:
        claim.set_state(state, why=why)
        self._tell_state(claim, state)


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
