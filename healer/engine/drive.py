"""The loop that drives one run: claim, advance, do, read back, log. The process may die at any line.

`started` is committed before an effect. `done` is committed after the effect was read back, together with its
consequences (the released slot, the detector's news). If a run was interrupted in between, the next worker
checks the state first. Entries of read-only steps are committed with the next write.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec
import structlog

from healer.actions import (
    Action,
    Again,
    Context,
    Done,
    Failed,
    Result,
    Silent,
    Skipped,
    StepClaim,
    Toolbox,
    Unread,
    action_of,
)
from healer.actions.ask_node import check_unusable
from healer.actions.checks import lines_since
from healer.actions.drain import write_note
from healer.actions.test_job import waits_for_others
from healer.actions.under_test import hand_over
from healer.decisions import settings_of
from healer.engine.permission import SENDING_VERBS, StepPermission, is_run_paused, remedy_use
from healer.engine.runlog import (
    BEFORE,
    audit_of,
    began_at,
    effect_key,
    entry_of,
    facts_of,
    has_drained,
    has_removed,
    has_reserved,
    is_asked,
    is_proven,
    is_started,
    last_of,
    restarts_of,
    run_changed,
    tested_at,
    would_have_removed,
)
from healer.incidents.certainty import is_proven_unusable
from healer.incidents.second_look import LookAnswer, LookResult
from healer.model import (
    APPROVAL_LASTS,
    REMOVING_VERBS,
    RESTARTING_VERBS,
    RETURNING_VERBS,
    SLOT_GUARDS,
    Command,
    Incident,
    LogEntry,
    Playbook,
    RemedyUse,
    Ruleset,
    Run,
    RunState,
    Step,
    StepEvent,
    Verb,
)
from healer.model.run import has_requeued, highest_remedy, look_result, tests_result
from healer.playbooks.advance import (
    BEGIN,
    GOES_ON,
    UNDO,
    UNUSABLE,
    Ask,
    Do,
    Finish,
    InputInvalid,
    RecordFacts,
    Skip,
    Sleep,
    Undo,
    advance,
)
from healer.ports.lease import NAP, PROOFS
from healer.ports.node_exec import NodeError
from healer.ports.scheduling import NotAvailable, SchedulerError
from healer.ports.transactions import LeaseLost, Ledger, LedgerAway, RunClaim
from healer.text import NO_WORDS, Said, quoted, said_by, say, unstopped

log = structlog.get_logger()

#: How long to wait before checking an unreachable node again.
CHECK_AGAIN = timedelta(minutes=1)
#: Results that a process keeps until they can be recorded; the oldest are dropped.
UNRECORDED_MAX = 1000
#: Waits after which the facts are read again: what was reported meanwhile chooses the remedy too.
_READS_FACTS_AGAIN = frozenset({"told_out", "empty"})

_EVENT = {
    Done: StepEvent.done,
    Skipped: StepEvent.skipped,
    Failed: StepEvent.failed,
    Again: StepEvent.waiting,
    Unread: StepEvent.waiting,
    Silent: StepEvent.waiting,
}


class Unrecorded(NamedTuple):
    """An effect that was read back, and could not be recorded behind the log's first `entries` entries."""

    key: str
    entries: int
    result: Done


class Driver:
    """What a worker needs to drive runs; one per process and cluster."""

    def __init__(
        self,
        ledger: Ledger,
        rules: Callable[[], Ruleset],
        tools: Toolbox,
        checkpoint: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.ledger, self.rules, self.tools = ledger, rules, tools
        #: Called with the name of each critical place in the code; tests kill the process there.
        self.checkpoint = checkpoint
        #: By run, what was read back while the database was away.
        self.unrecorded: dict[str, Unrecorded] = {}

    def drive(self, run: str) -> None:
        """Drives the run as far as possible. Returns when the run waits, has ended, is stuck, or belongs to
        another worker."""
        try:
            with self.ledger.claim(run) as claim:
                if claim is not None:
                    self._drive(claim)
        except (LeaseLost, LedgerAway) as error:
            log.warning("run released", run=run, why=str(error))  # the sweep picks it up again

    def _drive(self, claim: RunClaim) -> None:
        rules, name = self.rules(), claim.run.playbook
        playbook = rules.playbooks.get(name)
        try:
            if playbook is not None:
                _Drive(self, claim, rules, playbook).go()
                return
            question = say("engine.playbook_gone", name=name)
        except (LeaseLost, LedgerAway):
            raise
        except InputInvalid as error:
            question = say("engine.inputs_changed", name=name, why=said_by(error))
        except Exception as error:  # the next worker would end the same way, unheard
            log.exception("run failed inside healer", run=claim.run.id)
            question = say("engine.error_within", kind=type(error).__name__, error=str(error))
        news = _news(claim.run, RunState.stuck, self.tools.now())
        claim.set_state(RunState.stuck, why=question, question=question, command=news)


class _Drive:
    """One run under its claim, with the present rules. `entries`: its log so far."""

    def __init__(self, driver: Driver, claim: RunClaim, rules: Ruleset, playbook: Playbook) -> None:
        self.claim, self.run, self.rules, self.playbook = claim, claim.run, rules, playbook
        self.now, self.checkpoint, self.unrecorded = driver.tools.now, driver.checkpoint, driver.unrecorded
        self.tools = msgspec.structs.replace(
            driver.tools,
            known_commands=rules.commands,
            guards=settings_of(rules, claim.run.cluster),
            scripts=rules.scripts,
            validation=rules.validation,
        )
        self.entries = claim.log()
        #: The incident as just read for the run's facts, so that the step that follows need not read it
        #: again.
        self.seen: Incident | None = None

    def go(self) -> None:
        entries = self.entries
        if not entries and self.run.by != "healer":
            news = _news(self.run, RunState.running, self.now())
            if news is not None:  # the detector already knows runs that healer started itself
                self.claim.send_command(news)
        before = len(entries)
        while True:
            intent = advance(self.playbook, entries, self.now())
            match intent:
                case Do():
                    entries.append(self._do(intent))
                case Skip():
                    entries.append(self._log(intent.key, StepEvent.skipped, intent.why))
                case RecordFacts():
                    entries.append(self._log_facts())
                case Undo():
                    entries.append(self._undo(intent))
                case Sleep() | Ask() if self.run.shadow and (would := _shadow_end(intent)):
                    self._end(RunState.done, would)
                    return
                case Sleep():
                    if has_drained(entries):
                        self._check_claim(intent)
                    waits = intent.until is None or self._waits_drained(intent)
                    if waits or has_drained(entries[before:]):
                        self._write_note("waiting" if waits else "running")
                    self._sleep(intent)
                    return
                case Ask():
                    self._write_note("stuck")
                    news = _news(self.run, RunState.stuck, self.now(), entries)
                    question = intent.question
                    self.claim.set_state(RunState.stuck, why=question, question=question, command=news)
                    return
                case Finish():
                    self._finish(intent)
                    return

    def _sleep(self, intent: Sleep) -> None:
        """A wait with an end keeps the node; while a run waits for a person, that person's own run may take
        the node over."""
        last = last_of(self.entries, intent.key)
        if intent.until is None:
            asked_at = last.at if last is not None and last.data.get("approval") else None
            self.claim.set_state(
                RunState.waiting,
                why=intent.why,
                question=intent.why if asked_at else None,
                approve_until=asked_at + APPROVAL_LASTS if asked_at else None,
                command=_news(self.run, RunState.waiting, self.now(), self.entries),
            )
            return
        held = last is not None and last.event is StepEvent.held
        if self._waits_drained(intent) and not held:
            # The detector wakes it, by its own clock.
            wake_at = self.claim.earlier_now() + (intent.until - self.now())
            self.claim.set_state(RunState.waiting, why=intent.why, wake_at=wake_at)
            return
        question = intent.why if held else None  # shown and paged like any hold by a guard
        wake_at = min(intent.until, self.now() + NAP)
        self.claim.set_state(RunState.running, why=intent.why, wake_at=wake_at, question=question)

    def _waits_drained(self, intent: Sleep) -> bool:
        """A repair waits on its drained node. A person's run may take the node over, and the walk wakes this
        run."""
        step = next((step for step in self.playbook.steps if step.id == intent.key), None)
        wait = step is not None and step.wait is not None
        return wait and self.playbook.repairs and has_drained(self.entries) and not self.run.shadow

    def _write_note(self, state: str) -> None:
        """Writes healer's note for other programs on the drained node."""
        if self.run.node is None or self.run.shadow or not has_drained(self.entries):
            return
        if is_run_paused(self.claim, self.now):
            return
        self._fence()()
        if why := write_note(self.tools.scheduler, self.run, state):
            log.info("drain has no admin comment", node=self.run.node, why=why)

    def _finish(self, intent: Finish) -> None:
        if intent.undone:
            last = last_of(self.entries, UNDO)
            self._end(RunState.undone, intent.why, by=last.data.get("by") if last is not None else None)
            return
        early = any(entry.data.get("ends_run") for entry in self.entries)
        flags = {"early": early, "restarted": has_requeued(self.entries)}
        more = {name: True for name, so in flags.items() if so}
        self._end(RunState.done, intent.why, more | look_result(self.entries))

    def _end(
        self, state: RunState, why: Said, more: Mapping[str, object] | None = None, *, by: str | None = None
    ) -> None:
        """Ends the run. `more`: data for the detector, such as `early` (the run ended before its last step,
        so its incident is as before the run) and the answer of a look at the node. `by`: the person who ended
        the run, if different from who started it."""
        news = _news(self.run, state, self.now())
        if news is not None:
            who = news.by if by is None else by
            news = msgspec.structs.replace(news, by=who, data={**news.data, **(more or {})})
        self.claim.set_state(state, why=why, command=news)

    # --- one step ------------------------------------------------------------------------------------------

    def _do(self, intent: Do) -> LogEntry:
        action, run = action_of(intent.step), self.run
        incident, self.seen = self.seen or self.claim.incident(), None
        ctx = self._context(intent, incident)
        started = is_started(self.entries, intent.key)
        asks, keeps = intent.step.do not in SENDING_VERBS or intent.item is not None, False
        left = self._reason_to_leave(intent, ctx)
        if left is not None:
            return left
        if action.effect and asks and not run.shadow:
            # A step that is done needs no permission. Any other step asks again at each attempt: a pause, the
            # breaker or a person may have intervened since the last one.
            seen, silent = self._seen(intent, ctx) if started else (None, None)
            if seen is not None:
                return seen
            keeps = started and self._guarded(lambda: action.only_keeps(ctx)) is True
            permission = self._permission(intent)
            postponed = (
                None if keeps else self._guarded(lambda: permission.waits_for_checkpoint(self.playbook, ctx))
            )
            if isinstance(postponed, Skipped | Failed):
                return self._record(intent, postponed)
            if not keeps:
                held_back = self._ask_gate(permission, incident, postponed.text if postponed else silent)
                if held_back is not None:
                    return held_back
            if intent.step.do in RETURNING_VERBS:
                # Read the incident again: by now the walk has stored what was reported before the gate
                # granted the step.
                left = self._reason_to_leave(intent, self._context(intent))
                if left is not None:
                    return left
        elif action.effect and not started:
            self._write(intent, StepEvent.started, NO_WORDS)
        self.checkpoint(f"started:{intent.key}")
        if run.shadow and action.effect:
            would = _would_do(intent, intent.item or run.node)
            return self._write(intent, StepEvent.done, would, {"would": str(intent.step.do)})
        # A pause blocks neither messages nor steps that only keep what has begun.
        free = keeps or not asks
        doing = ctx if free else msgspec.structs.replace(ctx, fence=self._fence(intent.item))
        result = self._guarded(lambda: self._perform(action, ctx, doing, intent.key))
        self.checkpoint(f"performed:{intent.key}")
        result = self._in_time(ctx, intent, result)
        if run.shadow and isinstance(result, Again) and result.after_s and would_have_removed(self.entries):
            # A shadow run did not take the node, so the event it waits for never happens.
            result = Done(text=say("engine.would_wait", text=result.text))
        return self._record(intent, result)

    def _keep_unrecorded(self, effect: Unrecorded) -> None:
        self.unrecorded[self.run.id] = effect
        while len(self.unrecorded) > UNRECORDED_MAX:
            self.unrecorded.pop(next(iter(self.unrecorded)), None)

    def _recorded_late(self, intent: Do) -> LogEntry | None:
        """The step's entry, if this process has seen its effect and could not record it. Asked again, Slurm
        perhaps shows what a person made of it since, and the effect would be repeated against them."""
        effect = self.unrecorded.get(self.run.id)
        if effect is None or (effect.key, effect.entries) != (intent.key, len(self.entries)):
            return None
        entry = self._record(intent, effect.result)
        self.unrecorded.pop(self.run.id, None)
        return entry

    def _permission(self, intent: Do) -> StepPermission:
        unchecked = self.tools.checks_claims and not is_proven(self.entries)
        return StepPermission(self.claim, intent, self.entries, self.now, unchecked=unchecked)

    def _ask_gate(
        self, permission: StepPermission, incident: Incident | None, wait: Said | None
    ) -> LogEntry | None:
        """The entry that holds the step back; None if the step may act. If a cap holds a dead node, the
        worker checks the node itself and asks the gate again."""
        held_back, intent = permission.ask(self.rules, incident, wait=wait), permission.intent
        if (
            held_back is None
            or held_back.data.get("guard") not in SLOT_GUARDS
            or not self._check_claim(intent)
        ):
            return held_back
        self.entries.append(held_back)
        return self._permission(intent).ask(self.rules, incident, wait=wait)

    def _check_claim(self, intent: Do | Sleep) -> bool:
        """Checks a node that other parts call certainly unusable, at most once a minute: their word alone
        exempts no node from the caps. Returns True if the node is unusable; the proof is then in the log."""
        last, incident = last_of(self.entries, UNUSABLE), self.claim.incident()
        waits = last is not None and (self.now() - last.at < CHECK_AGAIN or is_proven(self.entries))
        if waits or not self.tools.checks_claims or self.run.shadow or incident is None:
            return False
        if self.run.node != incident.root.node or not is_proven_unusable(incident):
            return False
        step = Do(step=Step(id=UNUSABLE), key=intent.key, item=None, attempt=1, fresh=True)
        repaired_at = self._permission(step).last_repair()
        seen = self._guarded(lambda: check_unusable(self._context(step, incident), self.rules, repaired_at))
        proven = isinstance(seen, LookAnswer) and seen.result is LookResult.agreed
        self.entries.append(self._log(UNUSABLE, StepEvent.done, seen.text, {"proven": proven}))
        if proven:
            self._permission(step).free_caps()
        return proven

    def _seen(self, intent: Do, ctx: Context) -> tuple[LogEntry | None, Said | None]:
        """The outcome of a step that was begun, if it has one; and why the gate must hold it although its
        guards allow it: its time is over while Slurm does not answer, which is no failure of the step."""
        if (late := self._recorded_late(intent)) is not None:
            return late, None
        seen = self._guarded(lambda: _looked(action_of(intent.step), ctx))
        if isinstance(seen, Silent):
            last = last_of(self.entries, intent.key)
            if last is not None and last.event is StepEvent.held:
                # A port or a time in Slurm's words is no news: a long wait is one entry.
                return None, last.text if last.text.key == seen.text.key else seen.text
            if isinstance(self._in_time(ctx, intent, seen), Failed):
                return None, seen.text
        return self._outcome(intent, ctx, seen), None

    def _probed(self, intent: Do, ctx: Context) -> LogEntry | None:
        """The outcome of a step that was begun, by its probe; None if it has none yet."""
        return self._outcome(intent, ctx, self._guarded(lambda: _looked(action_of(intent.step), ctx)))

    def _outcome(self, intent: Do, ctx: Context, seen: Result | None) -> LogEntry | None:
        return self._record(intent, self._in_time(ctx, intent, seen)) if seen is not None else None

    def _reason_to_leave(self, intent: Do, ctx: Context) -> LogEntry | None:
        return self._give_way(intent, ctx) or self._hand_over(intent, ctx) or self._stays_out(intent, ctx)

    def _hand_over(self, intent: Do, ctx: Context) -> LogEntry | None:
        """Ends the run if a person took the node out of service while it was under test."""
        step = intent.step
        ends = step.do in {Verb.drain, *RETURNING_VERBS} or step.check == "node_answers"
        if not ctx.reserved or self.run.shadow:
            return None
        if not ends and not (step.do is Verb.diagnose and waits_for_others(ctx)):
            return None
        theirs = self._guarded(lambda: hand_over(msgspec.structs.replace(ctx, fence=self._fence())))
        return self._record(intent, theirs) if isinstance(theirs, Skipped) else None

    def _give_way(self, intent: Do, ctx: Context) -> LogEntry | None:
        """Ends healer's own run, between two effects, if a worse incident of the node takes over.

        A run that has not taken the node continues until the worse incident may act; then the walk ends it.
        """
        worse = ctx.incident.gives_way_to if ctx.incident is not None else None
        if worse is None or self.run.by != "healer" or not has_removed(self.entries):
            return None
        verb = intent.step.do
        if is_started(self.entries, intent.key):
            if verb in REMOVING_VERBS:
                return None  # read the effect back first
            seen = self._probed(intent, ctx) if verb in RETURNING_VERBS else None
            if seen is not None:  # the node is back already; the other incident will take it out again
                return seen
        text = say("engine.gives_way", node=self.run.node, incident=worse[:8])
        return self._write(intent, StepEvent.skipped, text, {"ends_run": True})

    def _stays_out(self, intent: Do, ctx: Context) -> LogEntry | None:
        """Asks a person if new evidence or a worse incident speaks against returning a node that passed its
        tests."""
        incident = ctx.incident
        if intent.step.do not in RETURNING_VERBS or incident is None or self.run.shadow:
            return None
        lines = lines_since(ctx, ctx.tested_at) if ctx.tested_at is not None else []
        worse = incident.worse if self.run.by == "healer" and has_removed(self.entries) else None
        if not lines and worse is None:
            return None
        if is_started(self.entries, intent.key):
            seen = self._probed(intent, ctx)
            if seen is not None:  # it is back already
                return seen
        if worse is not None:
            text = say("engine.worse_is_open", incident=worse[:8], node=self.run.node)
        else:
            text = say("engine.new_fault_line", text=quoted(lines[-1].text))
        return self._record(intent, Failed(text=text, final=True))

    def _log_facts(self) -> LogEntry:
        """Logs the facts of the run as its first entry; conditions and inputs read them there."""
        self.seen = self.claim.incident()
        data: dict[str, object] = {"knows": facts_of(self.run, self.playbook, self.seen)}
        if agreed := self.run.input.get("restart"):
            data["restart"] = agreed
        return self._log(BEGIN, StepEvent.done, NO_WORDS, data)

    def _undo(self, intent: Undo) -> LogEntry:
        """Undoes one step. A step without an undo is skipped, and listed at the end."""
        step = intent.step
        part = Do(step=step, key=intent.key, item=intent.item, attempt=intent.attempt, fresh=False)
        undo = action_of(step).undo
        title = quoted(step.title or step.id)
        if intent.item:
            title = say("engine.title_of", title=title, item=intent.item)
        if undo is None or step.undo == "keep":
            return self._write(part, StepEvent.skipped, title)
        if self.run.shadow:
            return self._write(part, StepEvent.undone, say("engine.would_undo", title=title))
        if is_run_paused(self.claim, self.now):
            text, data = say("engine.paused_undo"), {"wake_at": self._after(1)}
            return entry_of(self.run, part, self.now(), StepEvent.waiting, text, data)
        key = intent.key.partition(":")[2]
        begun = is_started(self.entries, intent.key)
        ctx = self._context(msgspec.structs.replace(part, key=key))
        # Logging `started` has just proven the claim, so this fence must always check for a pause.
        fence = self._fence(intent.item, always=True)
        ctx = msgspec.structs.replace(ctx, asked=begun, fence=fence)
        if not begun:
            # This entry shows the walk that healer, and not a person, returned the node.
            lifts = {"verb": str(Verb.undrain)} if step.do in REMOVING_VERBS else {}
            self._write(part, StepEvent.started, NO_WORDS, lifts)
        self.checkpoint(f"undoing:{key}")
        result = self._guarded(lambda: undo(ctx))
        self.checkpoint(f"undid:{key}")
        event = StepEvent.undone if isinstance(result, Done | Skipped) else _EVENT[type(result)]
        data = {"verb": f"undo {step.do}"}
        if isinstance(result, Again):
            data["wake_at"] = self._after(result.after_s or 5.0)
        return self._write(part, event, result.text, data | _final_flags(part, result))

    def _perform(self, action: Action, ctx: Context, doing: Context, key: str) -> Result:
        """`doing`: `ctx` with the fence that checks for a pause. A probe uses `ctx`, because it may cancel
        healer's own job even during a pause."""
        result = _looked(action, ctx)
        if result is None:
            result = action.do(doing)
            self.checkpoint(f"done:{key}")
        return result if result is not None else action.verify(ctx)

    def _fence(self, item: str | None = None, *, always: bool = False) -> Callable[[], None]:
        """A fence that also detects a pause set after the gate's grant.

        A pause may arrive while the worker is stopped, or during a long probe. The fence checks for one
        whenever it had to prove the claim again, so not within `FRESH_S` of the gate's answer.
        """

        def fence() -> None:
            for proofs in range(PROOFS):
                if not self.claim.fence() and (proofs or not always):
                    return
                if is_run_paused(self.claim, self.now, item):
                    raise LeaseLost(f"run {self.run.id} was paused before its effect")
            raise LeaseLost(f"run {self.run.id} could not be proven in time")

        return fence

    def _guarded(self, act: Callable[[], object]) -> Any:
        """The result of `act`. A refusal by Slurm becomes a failed attempt; an internal error asks a person
        instead of looping."""
        try:
            return act()
        except (LeaseLost, LedgerAway):
            raise
        except NotAvailable as error:
            return Failed(text=said_by(error), final=True)
        except (SchedulerError, NodeError) as error:
            return Failed(text=said_by(error))
        except Exception as error:
            log.exception("step failed inside healer")
            text = say("engine.error_within", kind=type(error).__name__, error=str(error))
            return Failed(text=text, final=True)

    def _in_time(self, ctx: Context, intent: Do, result: Result) -> Result:
        if not isinstance(result, Again) or result.after_s is None:
            return result
        step, has_effect = intent.step, intent.step.do is not None
        limit_s = step.timeout_s * intent.attempt if has_effect else step.wait_s
        if limit_s is None or _waited_s(ctx, result, self.now()) <= limit_s:
            return result
        # Only now is the ledger's clock read: ours may be ahead.
        waited_s = _waited_s(ctx, result, self.claim.earlier_now())
        if waited_s <= limit_s:
            return result
        if has_effect:
            return Failed(text=say("engine.not_read_back", limit_s=step.timeout_s, text=result.text))
        text = say("engine.has_waited", hours=waited_s / 3600, text=unstopped(result.text))
        return Failed(text=text, final=True)

    def _context(self, intent: Do, incident: Incident | None = None) -> Context:
        """`incident`: the incident as just read; if omitted, it is read now."""
        run, entries = self.run, self.entries
        return Context(
            run=run,
            step=intent.step,
            item=intent.item,
            restarts=restarts_of(run, intent.item, entries),
            incident=incident if incident is not None else self.claim.incident(),
            began_at=began_at(entries, intent.key) or self.now(),
            fence=self.claim.fence,
            tools=self._tools_of_run(),
            claim=self._step_claim(intent),
            key=effect_key(run, entries, intent.key),
            asked=is_asked(entries, intent.key, intent.attempt),
            tested_at=tested_at(self.playbook, entries),
            log=tuple(entries),
            reserved=has_reserved(entries),
        )

    def _tools_of_run(self) -> Toolbox:
        """The tools, with requests to nodes made in the name of this run."""
        nodes = self.tools.nodes
        return (
            self.tools
            if nodes is None
            else msgspec.structs.replace(self.tools, nodes=nodes.of_run(self.run.id))
        )

    def _step_claim(self, intent: Do) -> StepClaim:
        claim, node = self.claim, self.run.node or ""
        return StepClaim(
            queue=claim.queue_message,
            # In shadow nothing was drained, so the incident's list of jobs remains an estimate.
            tell_detector=(lambda _: None) if self.run.shadow else claim.send_command,
            release_slot=lambda why: claim.release_slot(node, why=why),
            earlier_now=claim.earlier_now,
            free_left_slot=lambda: self._permission(intent).free_left_slot(),
            known_bad=claim.known_bad,
            on_probation=claim.on_probation,
            alone=claim.alone,
            permits=claim.permits,
            stays=lambda: self._permission(intent).stays(self.rules),
            may_borrow=lambda nodes, begun: self._permission(intent).borrows(self.rules, nodes, begun=begun),
            references=claim.references,
            reported_gpu=claim.reported_gpu,
            history=lambda since: claim.history(node, since),
        )

    # --- writing -------------------------------------------------------------------------------------------

    def _record(self, intent: Do, result: Result) -> LogEntry:
        data: dict[str, object] = dict(getattr(result, "data", {}))
        verb = intent.step.do
        if verb is not None:
            data["verb"] = str(verb)
        if isinstance(result, Again):
            data["wake_at"] = self._after(result.after_s) if result.after_s is not None else None
        data |= _final_flags(intent, result)
        if isinstance(result, Again) and _says_the_same(last_of(self.entries, intent.key), result, intent):
            # A repeated wait is not logged again.
            return entry_of(self.run, intent, self.now(), StepEvent.waiting, result.text, data)
        if isinstance(result, Skipped) and verb in RESTARTING_VERBS:
            return self._permission(intent).no_restart(result.text, data)
        if verb is Verb.drain and (data.get("final") or isinstance(result, Skipped)):
            self._permission(intent).no_drain(self.tools.scheduler)
        use = None
        if isinstance(result, Done) and intent.step.wait in _READS_FACTS_AGAIN:
            data["knows"] = facts_of(self.run, self.playbook, self.claim.incident())
        if isinstance(result, Done) and verb is Verb.drain and self.run.node is not None:
            use = remedy_use(self.run, self.playbook, self.entries, self.now())
        try:
            return self._write(intent, _EVENT[type(result)], result.text, data, drained=use)
        except LedgerAway:
            if isinstance(result, Done) and verb is not None:
                self._keep_unrecorded(Unrecorded(intent.key, len(self.entries), result))
            raise

    def _write(
        self,
        intent: Do,
        event: StepEvent,
        text: Said,
        data: Mapping[str, object] | None = None,
        *,
        drained: RemedyUse | None = None,
    ) -> LogEntry:
        entry = entry_of(self.run, intent, self.now(), event, text, data)
        if intent.step.do is None and not action_of(intent.step).effect:
            self.claim.keep(entry)
        else:
            self.claim.write(entry, audit=audit_of(self.run, intent, entry), drained=drained)
        return entry

    def _log(
        self, key: str, event: StepEvent, text: Said, data: Mapping[str, object] | None = None
    ) -> LogEntry:
        """Logs an entry of the run itself, or of a step without an effect."""
        part = Do(step=Step(id=key), key=key, item=None, attempt=1, fresh=True)
        entry = entry_of(self.run, part, self.now(), event, text, data)
        self.claim.keep(entry)
        return entry

    def _after(self, seconds: float) -> str:
        return (self.now() + timedelta(seconds=seconds)).isoformat()


def _news(run: Run, state: RunState, now: datetime, entries: Sequence[LogEntry] = ()) -> Command | None:
    """The message to the detector about a run's new state and its test results; None for a shadow run or a
    run without an incident."""
    if run.incident is None or run.shadow or (run.alongside and run.by != "healer"):
        return None  # a person's second look does not change the incident
    return run_changed(run, state, now, **tests_result(entries), **highest_remedy(entries))


def _final_flags(intent: Do, result: Result) -> dict[str, bool]:
    """The log data of a result after which no attempt follows, because it would be pointless or this was the
    last one."""
    ends = isinstance(result, Failed) and (result.final or intent.attempt > intent.step.retries)
    return ({"final": True} | ({GOES_ON: True} if intent.step.may_fail else {})) if ends else {}


def _would_do(intent: Do, what: str | None) -> Said:
    verb = say(f"words.verb_{intent.step.do}")
    return say("engine.would_do", verb=verb, what=what) if what else say("engine.would_act", verb=verb)


def _shadow_end(intent: Sleep | Ask) -> Said | None:
    """Why a shadow run ends: only a person could continue it. None: it waits for a moment, like a real
    run."""
    if isinstance(intent, Ask):
        return say("engine.would_ask", question=intent.question)
    return say("engine.would_stop") if intent.until is None else None


def _looked(action: Action, ctx: Context) -> Result | None:
    """What the probe shows. Each look without an answer is marked until the effect has been requested."""
    result = action.probe(ctx)
    if isinstance(result, Unread) and not ctx.asked:
        return msgspec.structs.replace(result, data=result.data | {BEFORE: True})
    return result


def _says_the_same(last: LogEntry | None, result: Again, intent: Do) -> bool:
    if last is None or last.event is not StepEvent.waiting:
        return False
    then, now = (bool(each.data.get(BEFORE)) for each in (last, result))
    return (last.text, last.attempt, then) == (result.text, intent.attempt, now)


def _waited_s(ctx: Context, result: Again, now: datetime) -> float:
    """How long the step has lasted, since a guard last held it."""
    lines = ctx.lines
    held = max((index for index, entry in enumerate(lines) if entry.event is StepEvent.held), default=None)
    begins = [result.since] if result.since is not None else []
    if held is not None:
        begins.append(lines[held + 1].at if held + 1 < len(lines) else now)
    return min([ctx.waited(now), *(now - begin for begin in begins)]).total_seconds()
