"""The one gate: every guard that concerns a proposal answers, in this order, and all answers are kept."""

from collections.abc import Callable
from datetime import datetime

import msgspec

from healer.decisions import capacity, consent, guards
from healer.decisions.sweeps import reserved, sweep
from healer.model import (
    NODE_REMOVING,
    RESTARTING_VERBS,
    RETURNING_VERBS,
    SLOT_GUARDS,
    Answer,
    AnswerKind,
    BreakerState,
    GateFacts,
    Guard,
    Outcome,
    Proposal,
    RequeueUse,
    Ruleset,
    Slot,
    Verb,
)

GuardFunction = Callable[[Proposal, GateFacts, Ruleset, datetime], Answer]

#: In the order of their word: what a person said, what is known, whose the node is, what was done before,
#: what capacity is left, and last how far the rule may go by itself. So `mode` and `approval` are named only
#: when nothing else stands in the way.
GUARDS: tuple[tuple[Guard, GuardFunction], ...] = (
    (Guard.pause, guards.pause),
    (Guard.stale, guards.stale),
    (Guard.ownership, guards.ownership),
    (Guard.protected, guards.protected),
    (Guard.maintenance, guards.maintenance),
    (Guard.consent, consent.consent),
    (Guard.breaker, guards.breaker),
    (Guard.cooldown, guards.cooldown),
    (Guard.repeat, guards.repeat),
    (Guard.reboot_cap, guards.reboot_cap),
    (Guard.requeue_cap, guards.requeue_cap),
    (Guard.floor, capacity.floor),
    (Guard.slots, capacity.slots),
    (Guard.hourly, capacity.hourly),
    (Guard.rack, capacity.rack),
    (Guard.switch, capacity.switch),
    (Guard.partition, capacity.partition),
    (Guard.reserved, reserved),
    (Guard.sweep, sweep),
    (Guard.mode, consent.mode),
    (Guard.approval, consent.approval),
)

_ALL = frozenset(Guard)
#: A node is taken out of service, or what runs on it is stopped.
_NODE_OUT = _ALL - {Guard.requeue_cap, Guard.sweep}
#: Work is taken from a job; the node's slot is another question.
_JOB = frozenset(
    {
        Guard.pause, Guard.stale, Guard.protected, Guard.consent, Guard.breaker, Guard.cooldown,
        Guard.requeue_cap, Guard.reserved, Guard.mode, Guard.approval,
    }
)  # fmt: skip
#: A node is given back: no breaker, no cap, no mode stands in the way (law 3).
_BACK = frozenset({Guard.pause, Guard.stale, Guard.ownership})
#: What takes a node asks for room when it takes it; a run that only begins has taken nothing yet.
_ROOM = SLOT_GUARDS | {Guard.floor, Guard.reserved}
_CONSENT = frozenset({Guard.consent})
#: A return asks this once: half done, the node no longer shows what it was granted for.
_ONCE = frozenset({Guard.ownership})
#: Something is done on a node or to a pending job that takes nothing away.
_TOUCH = frozenset(
    {
        Guard.pause, Guard.stale, Guard.ownership, Guard.protected, Guard.maintenance, Guard.repeat,
        Guard.mode, Guard.approval,
    }
)  # fmt: skip
#: What would end or slow the work of jobs on the node: it must be drained and empty.
_TOUCH_EMPTY = _TOUCH | {Guard.consent}
#: A job of our own on an idle node, which gives way to everybody's. That it goes by itself is a setting of
#: its own, and no rule has to earn it.
_SWEEP = frozenset(
    {
        Guard.pause, Guard.stale, Guard.ownership, Guard.protected, Guard.maintenance, Guard.breaker,
        Guard.cooldown, Guard.sweep,
    }
)  # fmt: skip
#: That nodes of a job are tested by halves once it has ended. Each node is asked about as one of a sweep.
_BISECT = frozenset({Guard.pause, Guard.stale, Guard.breaker, Guard.cooldown, Guard.mode, Guard.approval})
#: Something is read on a node.
_LOOK = frozenset({Guard.pause, Guard.protected, Guard.mode, Guard.approval})
_TOUCH_JOB = frozenset({Guard.pause, Guard.stale, Guard.mode, Guard.approval})
#: People are told: never paused, never broken.
_TELL = frozenset({Guard.mode, Guard.approval})
#: A job's owner is told in Slurm itself: a pause stops that, and nothing else does.
_TELL_IN_SLURM = frozenset({Guard.pause})

ASKED: dict[Verb, frozenset[Guard]] = {
    Verb.drain: _NODE_OUT,
    Verb.down: _NODE_OUT,
    Verb.reserve: _NODE_OUT,
    Verb.reset_gpu: _NODE_OUT,
    Verb.reboot: _NODE_OUT,
    Verb.power_cycle: _NODE_OUT,
    Verb.requeue: _JOB,
    Verb.revive: _JOB,
    Verb.cancel: _JOB - {Guard.requeue_cap, Guard.reserved},
    Verb.resume: _BACK,
    Verb.undrain: _BACK,
    Verb.restart_service: _TOUCH_EMPTY,
    Verb.diagnose: _TOUCH_EMPTY,
    Verb.reroute: _TOUCH,
    Verb.site_command: _TOUCH_EMPTY,
    Verb.collect: _LOOK,
    Verb.sweep: _SWEEP,
    Verb.bisect: _BISECT,
    Verb.release: _TOUCH_JOB,
    Verb.exclude: _TOUCH_JOB,
    Verb.ticket: _TELL,
    Verb.notify: _TELL,
}


#: Verbs that need the node's slot.
SLOT_VERBS = frozenset(verb for verb, asked in ASKED.items() if Guard.slots in asked)


class JudgeResult(msgspec.Struct, frozen=True, kw_only=True):
    """`outcome` is act, held or refused; `guard` the one that kept it back, `why` its sentence."""

    outcome: Outcome
    answers: tuple[Answer, ...]
    guard: Guard | None = None
    why: str = ""

    @property
    def answer(self) -> Answer | None:
        """The answer of the guard that kept it back."""
        return next((one for one in self.answers if one.guard is self.guard), None)


def judge(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> JudgeResult:
    """Any refusal refuses, else any hold holds, else act; the first of its kind is named."""
    in_slurm = proposal.verb is Verb.notify and proposal.job is not None
    asked = _TELL_IN_SLURM if in_slurm else ASKED[proposal.verb] - (_ROOM if proposal.begins else frozenset())
    if proposal.begins and proposal.verb in RESTARTING_VERBS:
        asked -= _CONSENT  # it only looks so far, and a person may agree for the job before its restart
    if proposal.granted and proposal.verb in RETURNING_VERBS:
        asked -= _ONCE
    answers = tuple(
        _unless_unusable(function(proposal, facts, rules, now), proposal)
        for guard, function in GUARDS
        if guard in asked
    )
    for kind, outcome in ((AnswerKind.refuse, Outcome.refused), (AnswerKind.hold, Outcome.held)):
        for answer in answers:
            if answer.kind is kind:
                return JudgeResult(outcome=outcome, answers=answers, guard=answer.guard, why=answer.why)
    return JudgeResult(outcome=Outcome.act, answers=answers, why="Every guard allows it.")


def _unless_unusable(answer: Answer, proposal: Proposal) -> Answer:
    """Law 2: a surely unusable node passes the slot caps and those alone; their figures stay."""
    if not proposal.unusable or answer.guard not in SLOT_GUARDS or answer.kind is AnswerKind.allow:
        return answer
    # Without a picture there is no figure to pass over: that stays held, as in `stale`.
    if answer.limit is None:
        return answer
    return msgspec.structs.replace(
        answer,
        kind=AnswerKind.allow,
        why=f"surely unusable, so this cap does not bind: {answer.why}",
        frees_at=None,
    )


def after(facts: GateFacts, proposal: Proposal, run: str, now: datetime) -> GateFacts:
    """The facts once this proposal was granted: so that the next one of the same transaction sees it."""
    changed: dict[str, object] = {}
    if proposal.verb in SLOT_VERBS and proposal.node:
        changed["running"] = {**facts.running, proposal.node: run}
        if not proposal.begins and proposal.node not in facts.held:
            slot = Slot(
                cluster=proposal.cluster,
                node=proposal.node,
                incident=proposal.incident,
                run=run,
                granted_at=now,
                unusable=proposal.unusable,
            )
            changed["slots"] = (*facts.slots, slot)
            if not proposal.unusable:
                changed["granted"] = (*facts.granted, now)
    if proposal.verb in RESTARTING_VERBS and proposal.job:
        use = RequeueUse(
            job=proposal.job, restarts=proposal.restarts or 0, at=now, incident=proposal.incident
        )
        if all((one.job, one.restarts) != (use.job, use.restarts) for one in facts.requeues):
            changed["requeues"] = (*facts.requeues, use)
    if takes_canary(facts, proposal):
        changed["breaker"] = msgspec.structs.replace(facts.breaker, canary=run)
    return msgspec.structs.replace(facts, **changed)


def takes_canary(facts: GateFacts, proposal: Proposal) -> bool:
    """Granted now, this run becomes the half-open breaker's canary: store the breaker of `after`."""
    return (
        facts.breaker.state is BreakerState.half_open
        and facts.breaker.canary is None
        and proposal.by is None
        and not proposal.begins
        and proposal.verb in NODE_REMOVING
    )
