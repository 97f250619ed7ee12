"""The loop that drives one run: claim, advance, do, read back, log. It may die at any line.

`started` is committed before an effect, `done` after it was read back, together with what follows from it
(the slot given back, what the detector is told); a run that was left anywhere in between is taken up by the
next worker, which looks first. What a step only looked at is committed with whatever comes next.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import msgspec
import structlog

from healer.actions import CHECKS, VERBS, WAITS, Action, Again, Context, Done, Failed, Result, Skipped, note
from healer.actions.beside import beside
from healer.actions.checks import told_since
from healer.decisions import settings_of
from healer.engine.permission import TELLING, Leave, paused, remedy_use
from healer.engine.runlog import (
    audit_of,
    began_at,
    effect_key,
    entry_of,
    facts_of,
    has_drained,
    has_removed,
    has_reserved,
    is_asked,
    is_started,
    last_of,
    restarts_of,
    tested_at,
    would_have_removed,
)
from healer.model import (
    APPROVAL_LASTS,
    REMOVING_VERBS,
    RESTARTING_VERBS,
    RETURNING_VERBS,
    Command,
    CommandKind,
    Incident,
    LogEntry,
    Playbook,
    RemedyUse,
    Ruleset,
    Run,
    RunState,
    SlurmSnapshot,
    Step,
    StepEvent,
    Verb,
)
from healer.model.run import restarted, tests_of, tried_of
from healer.playbooks.advance import BEGIN, UNDO, Ask, Do, Finish, Know, Skip, Sleep, Undo, advance
from healer.ports.bmc import Bmc
from healer.ports.clock import Clock
from healer.ports.evidence_book import EvidenceBook
from healer.ports.lease import PROOFS
from healer.ports.measurements import Readings
from healer.ports.node_exec import NodeError, NodeExec
from healer.ports.site_commands import SiteCommands
from healer.ports.slurm import NotAvailable, Scheduler, SchedulerError
from healer.ports.transactions import Checkpoints, LeaseLost, Ledger, LedgerAway, RunClaim

log = structlog.get_logger()

_EVENT = {
    Done: StepEvent.done,
    Skipped: StepEvent.skipped,
    Failed: StepEvent.failed,
    Again: StepEvent.waiting,
}


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
        bmc: Bmc | None = None,
        checkpoints: Checkpoints | None = None,
        evidence: EvidenceBook | None = None,
        commands: SiteCommands | None = None,
        readings: Readings | None = None,
        picture: Callable[[], SlurmSnapshot | None] = lambda: None,
        users: Callable[[], Sequence[str]] = lambda: ("root",),
    ) -> None:
        self.ledger, self.scheduler, self.rules = ledger, scheduler, rules
        self.clock = clock
        #: None: no way to work on nodes is configured; a step that would asks a person.
        self.nodes = nodes
        #: None: no BMC is known; a power cycle asks a person.
        self.bmc = bmc
        #: What jobs can go back to; None: nobody tells, and only their end is waited for.
        self.checkpoints = checkpoints
        #: Where collected files are kept.
        self.evidence = evidence
        #: What starts the site's own commands; None: nothing does.
        self.commands = commands
        #: What was measured of late.
        self.readings = readings
        #: Slurm's newest stored picture, and as whom healer comes to Slurm: its reservations let those in.
        self.picture, self.users = picture, users
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
        before = len(entries)
        while True:
            intent = advance(playbook, entries, self.clock.now())
            match intent:
                case Do():
                    entry = self._do(claim, rules, intent, entries)
                    entries.append(entry)
                case Skip():
                    entries.append(self._skip(claim, intent))
                case Know():
                    entries.append(self._know(claim, playbook))
                case Undo():
                    entries.append(self._undo(claim, intent, entries))
                case Sleep() | Ask() if claim.run.shadow and (would := _would(intent)):
                    self._end(claim, RunState.done, would)
                    return
                case Sleep():
                    if intent.until is None or has_drained(entries[before:]):
                        self._note(claim, entries, "running" if intent.until else "waiting")
                    self._sleep(claim, intent, entries)
                    return
                case Ask():
                    self._note(claim, entries, "stuck")
                    self._ask(claim, intent.question, entries)
                    return
                case Finish():
                    early = any(one.data.get("ends_run") for one in entries)
                    if intent.undone:
                        by = _data(entries, UNDO).get("by")
                        self._end(claim, RunState.undone, intent.why, by=by)
                    else:
                        self._end(claim, RunState.done, intent.why, entries, early=early)
                    return

    def _sleep(self, claim: RunClaim, intent: Sleep, entries: list[LogEntry]) -> None:
        """A wait for a moment keeps the node; a wait for a person may be taken over by theirs."""
        last = last_of(entries, intent.key)
        if intent.until is None:
            tell = self._news(claim.run, RunState.waiting, entries)
            asked_at = last.at if last is not None and last.data.get("approval") else None
            claim.set_state(
                RunState.waiting,
                why=intent.why,
                question=intent.why if asked_at else None,
                approve_until=asked_at + APPROVAL_LASTS if asked_at else None,
                tell=tell,
            )
            return
        held = last is not None and last.event is StepEvent.held
        question = intent.why if held else None  # what a guard holds is shown, and paged like any hold
        claim.set_state(RunState.running, why=intent.why, wake_at=intent.until, question=question)

    def _ask(self, claim: RunClaim, question: str, entries: Sequence[LogEntry] = ()) -> None:
        tell = self._news(claim.run, RunState.stuck, entries)
        claim.set_state(RunState.stuck, why=question, question=question, tell=tell)

    def _note(self, claim: RunClaim, entries: list[LogEntry], state: str) -> None:
        """For other programs, beside our drain, when there is time for it."""
        if claim.run.node is None or claim.run.shadow or not has_drained(entries):
            return
        if paused(claim, self.clock):
            return
        self._fence(claim)()
        if why := note.write(self.scheduler, claim.run, state):
            log.info("no note beside the drain", node=claim.run.node, why=why)

    # --- one step ------------------------------------------------------------------------------------------

    def _do(self, claim: RunClaim, rules: Ruleset, intent: Do, entries: list[LogEntry]) -> LogEntry:
        action = _action(intent.step)
        incident = claim.incident()
        ctx = self._context(claim, intent, entries, incident)
        started = is_started(entries, intent.key)
        asks, keeps = intent.step.do not in TELLING or intent.item is not None, False
        left = self._leaves(claim, intent, entries, ctx)
        if left is not None:
            return left
        if action.effect and asks and not claim.run.shadow:
            # What is done already needs no leave; what is still to be done asks for it each time: a pause,
            # the breaker or a person may have come since the last attempt.
            seen = self._seen(claim, intent, entries, ctx) if started else None
            if seen is not None:
                return seen
            keeps = started and self._guarded(lambda: action.only_keeps(ctx)) is True
            leave = Leave(claim, intent, entries, self.clock)
            playbook = rules.playbooks[claim.run.playbook]
            far = None if keeps else self._guarded(lambda: leave.far(playbook, ctx))
            if isinstance(far, Skipped | Failed):
                return self._record(claim, intent, far, entries)
            if not keeps:
                kept = leave.ask(rules, incident, wait=far.text if far else None)
                if kept is not None:
                    return kept
            if intent.step.do in RETURNING_VERBS:
                # What was told before the gate let it go, the walk has stored.
                left = self._leaves(claim, intent, entries, self._context(claim, intent, entries))
                if left is not None:
                    return left
        elif action.effect and not started:
            self._write(claim, intent, StepEvent.started, "")
        self.checkpoint(f"started:{intent.key}")
        if claim.run.shadow and action.effect:
            would = f"shadow: would {intent.step.do} {intent.item or claim.run.node or ''}".strip()
            return self._write(claim, intent, StepEvent.done, would, {"would": str(intent.step.do)})
        # A pause forbids neither to tell people nor to keep what is begun.
        free = keeps or not asks
        doing = ctx if free else msgspec.structs.replace(ctx, fence=self._fence(claim, intent.item))
        result = self._guarded(lambda: self._perform(action, ctx, doing, intent.key))
        self.checkpoint(f"performed:{intent.key}")
        result = self._in_time(ctx, intent, result)
        if claim.run.shadow and isinstance(result, Again) and result.after_s and would_have_removed(entries):
            # Nothing was taken, so what would follow from that never comes.
            result = Done(text=f"shadow: would wait: {result.text}")
        return self._record(claim, intent, result, entries)

    def _seen(self, claim: RunClaim, intent: Do, entries: list[LogEntry], ctx: Context) -> LogEntry | None:
        """What became of a step that was begun, where there is something to be seen."""
        seen = self._guarded(lambda: _action(intent.step).probe(ctx))
        if seen is None:
            return None
        return self._record(claim, intent, self._in_time(ctx, intent, seen), entries)

    def _leaves(self, claim: RunClaim, intent: Do, entries: list[LogEntry], ctx: Context) -> LogEntry | None:
        return self._give_way(claim, intent, entries, ctx) or self._stays_out(claim, intent, entries, ctx)

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
            seen = self._seen(claim, intent, entries, ctx) if verb in RETURNING_VERBS else None
            if seen is not None:  # the node is back already: the other incident takes it out anew
                return seen
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
            seen = self._seen(claim, intent, entries, ctx)
            if seen is not None:  # it is back already
                return seen
        text = f"A new fault line came since the tests began: {lines[-1].text}" if lines else ""
        if worse is not None:
            text = (
                f"Incident {worse[:8]} of {claim.run.node} is worse and still open. Resolve it, or resume "
                "the node yourself."
            )
        return self._record(claim, intent, Failed(text=text, final=True), entries)

    def _skip(self, claim: RunClaim, intent: Skip) -> LogEntry:
        step = Do(step=intent.step, key=intent.key, item=None, attempt=1, fresh=True)
        entry = entry_of(claim.run, step, self.clock.now(), StepEvent.skipped, intent.why)
        claim.keep(entry)
        return entry

    def _know(self, claim: RunClaim, playbook: Playbook) -> LogEntry:
        """What conditions and inputs of this run rest on, once and for all: its first line."""
        step = Do(step=Step(id=BEGIN), key=BEGIN, item=None, attempt=1, fresh=True)
        told = facts_of(claim.run, playbook, claim.incident())
        data: dict[str, object] = {"knows": told}
        if agreed := claim.run.input.get("restart"):
            data["restart"] = agreed
        entry = entry_of(claim.run, step, self.clock.now(), StepEvent.done, "", data)
        claim.keep(entry)
        return entry

    def _undo(self, claim: RunClaim, intent: Undo, entries: list[LogEntry]) -> LogEntry:
        """Takes one step back. What nothing takes back stays, and is said."""
        step = intent.step
        part = Do(step=step, key=intent.key, item=intent.item, attempt=intent.attempt, fresh=False)
        undo = _action(step).undo
        title = (step.title or step.id) + (f" ({intent.item})" if intent.item else "")
        if undo is None or step.undo == "keep":
            return self._write(claim, part, StepEvent.skipped, title)
        if claim.run.shadow:
            return self._write(claim, part, StepEvent.undone, f"shadow: would take back {title}")
        if paused(claim, self.clock):
            wake = (self.clock.now() + timedelta(seconds=1)).isoformat()
            text = "a pause: nothing is taken back now"
            return entry_of(claim.run, part, self.clock.now(), StepEvent.waiting, text, {"wake_at": wake})
        own = intent.key.partition(":")[2]
        begun = is_started(entries, intent.key)
        ctx = self._context(claim, msgspec.structs.replace(part, key=own), entries)
        # The line that it began proves the claim anew: so it looks for a pause however fresh that is.
        fence = self._fence(claim, intent.item, always=True)
        ctx = msgspec.structs.replace(ctx, asked=begun, fence=fence)
        if not begun:
            # Whoever sees the node come back knows by this that it is no person's doing.
            lifts = {"verb": str(Verb.undrain)} if step.do in REMOVING_VERBS else {}
            self._write(claim, part, StepEvent.started, "", dict(lifts))
        self.checkpoint(f"undoing:{own}")
        result = self._guarded(lambda: undo(ctx))
        self.checkpoint(f"undid:{own}")
        event = StepEvent.undone if isinstance(result, Done | Skipped) else _EVENT[type(result)]
        data: dict[str, object] = {"verb": f"undo {step.do}"}
        if isinstance(result, Again):
            data["wake_at"] = (self.clock.now() + timedelta(seconds=result.after_s or 5.0)).isoformat()
        if isinstance(result, Failed) and (result.final or intent.attempt > step.retries):
            data["final"] = True
        return self._write(claim, part, event, result.text, data)

    def _perform(self, action: Action, ctx: Context, doing: Context, key: str) -> Result:
        """`doing`: as `ctx`, for what a pause forbids. A probe may give way, which none does."""
        result = action.probe(ctx)
        if result is None:
            result = action.do(doing)
            self.checkpoint(f"done:{key}")
        return result if result is not None else action.verify(ctx)

    def _fence(self, claim: RunClaim, item: str | None = None, *, always: bool = False) -> Callable[[], None]:
        """A fence that also sees a pause which came since the gate let this step go.

        A worker that was stopped between the two, or a probe that took long, may find one. It is looked for
        where the claim had to be proven anew: within `FRESH_S` of the gate's answer none is asked.
        """

        def fence() -> None:
            for proofs in range(PROOFS):
                if not claim.fence() and (proofs or not always):
                    return
                if paused(claim, self.clock, item):
                    raise LeaseLost(f"run {claim.run.id} was paused before its effect")
            raise LeaseLost(f"run {claim.run.id} could not be proven in time")

        return fence

    def _guarded(self, act: Callable[[], object]) -> Any:
        """Slurm's refusals are failed attempts; an error of our own asks a person instead of looping."""
        try:
            return act()
        except (LeaseLost, LedgerAway):
            raise
        except NotAvailable as error:
            return Failed(text=str(error), final=True)
        except (SchedulerError, NodeError) as error:
            return Failed(text=str(error))
        except Exception as error:
            log.exception("a step failed within healer")
            return Failed(text=f"an error within healer: {type(error).__name__}: {error}", final=True)

    def _in_time(self, ctx: Context, intent: Do, result: Result) -> Result:
        if not isinstance(result, Again) or result.after_s is None:
            return result
        began = ctx.began_at if result.since is None else max(ctx.began_at, result.since)
        waited_s = (self.clock.now() - began).total_seconds()
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
        run, rules = claim.run, self.rules()
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
            bmc=self.bmc,
            checkpoints=self.checkpoints,
            evidence=self.evidence,
            commands=self.commands,
            known_commands=rules.commands,
            readings=self.readings,
            key=effect_key(run, entries, intent.key),
            asked=is_asked(entries, intent.key, intent.attempt),
            tested_at=tested_at(rules.playbooks[run.playbook], entries),
            log=tuple(entries),
            guards=settings_of(rules, run.cluster),
            known_bad=claim.known_bad,
            permits=claim.permits,
            reserved=has_reserved(entries),
            stays=lambda: Leave(claim, intent, entries, self.clock).stays(rules),
            may_borrow=lambda nodes, begun: Leave(claim, intent, entries, self.clock).borrows(
                rules, nodes, begun=begun
            ),
            picture=self.picture,
            users=self.users,
            scripts=rules.scripts,
            validation=rules.validation,
            references=claim.references,
            history=lambda since: claim.history(run.node or "", since),
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
            # A day is one line.
            return entry_of(claim.run, intent, self.clock.now(), StepEvent.waiting, result.text, data)
        if isinstance(result, Skipped) and intent.step.do in RESTARTING_VERBS:
            return Leave(claim, intent, entries, self.clock).no_restart(result.text, data)
        if data.get("final") and intent.step.do is Verb.drain:
            Leave(claim, intent, entries, self.clock).no_drain(self.scheduler)
        drained = isinstance(result, Done) and intent.step.do is Verb.drain and claim.run.node is not None
        use = None
        if drained:
            playbook = self.rules().playbooks[claim.run.playbook]
            use = remedy_use(claim.run, playbook, entries, self.clock.now())
        return self._write(claim, intent, _EVENT[type(result)], result.text, data, drained=use)

    # --- writing -------------------------------------------------------------------------------------------

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
        entry = entry_of(claim.run, intent, self.clock.now(), event, text, data)
        if intent.step.do is None and not _action(intent.step).effect:
            claim.keep(entry)
        else:
            claim.write(entry, audit=audit_of(claim.run, intent, entry), drained=drained)
        return entry

    def _news(self, run: Run, state: RunState, entries: Sequence[LogEntry] = ()) -> Command | None:
        """What the detector is told of a run's new state, and of its tests; nothing for shadow runs."""
        if run.incident is None or run.shadow or (run.beside and run.by != "healer"):
            return None  # a person who looks changes nothing of the incident
        return Command(
            kind=CommandKind.run_changed,
            cluster=run.cluster,
            at=self.clock.now(),
            by=run.by,
            incident=run.incident,
            reason=run.reason,
            data={"run": run.id, "playbook": run.playbook, "state": str(state)}
            | tests_of(entries)
            | tried_of(entries),
        )

    def _end(
        self,
        claim: RunClaim,
        state: RunState,
        why: str,
        entries: Sequence[LogEntry] = (),
        *,
        early: bool = False,
        by: str | None = None,
    ) -> None:
        """`early`: not by its last step; its incident stands as if nobody had worked on it. `by`: who ended
        it, where that is not who asked for it."""
        tell = self._news(claim.run, state)
        if tell is not None:
            more = {name: True for name, so in (("early", early), ("restarted", restarted(entries))) if so}
            who = tell.by if by is None else by
            tell = msgspec.structs.replace(tell, by=who, data={**tell.data, **more})
        claim.set_state(state, why=why, tell=tell)


def _data(entries: Sequence[LogEntry], key: str) -> dict[str, Any]:
    last = last_of(entries, key)
    return last.data if last is not None else {}


def _action(step: Step) -> Action:
    if step.do is not None:
        return beside(VERBS[step.do], step)
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


def _tell_nobody(_: Command) -> None:
    return None
