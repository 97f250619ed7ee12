"""Drain, down, undrain, resume: take a node out of service and back, each read back from Slurm.

No new job starts on a drained node. A run that tested its node inside healer's reservation drains the node
before the reservation ends: otherwise it would accept any job in between.
"""

from contextlib import suppress
from datetime import datetime, timedelta
from functools import cache, partial

import msgspec

from healer.actions import under_test
from healer.actions.base import (
    LOOK_AGAIN_S,
    NOT_YET,
    Action,
    Again,
    Answered,
    Context,
    Done,
    Failed,
    Result,
    Skipped,
    Unread,
    cause,
    first_logged,
    holder_of,
    last_drain_reason,
    read_back,
    read_node,
    read_node_and_jobs,
    read_slurm,
    reason_given,
    reason_of,
    recent_picture,
)
from healer.decisions.consent import STUCK_FOR
from healer.decisions.decide import is_adopting
from healer.model import (
    CommandKind,
    Message,
    Reservation,
    Run,
    Severity,
    SlurmJob,
    SlurmNode,
    StepEvent,
    Verb,
)
from healer.model.gate import permit_for
from healer.model.run import highest_remedy, is_our_note, note_of, tests_result
from healer.model.slurm import is_ours, our_reservation, slurm_kind
from healer.ports.scheduling import NotAvailable, Scheduler, SchedulerError, SchedulerUnavailable
from healer.text import Said, joined, said_by, say

#: Slurm stores the time of a reason in whole seconds.
_ROUNDING = timedelta(seconds=1)


def _judge_drain(ctx: Context, node: SlurmNode) -> Result | None:
    if node.drain and is_ours(node.reason, ctx.run.incident or ctx.run.id):
        return Done(
            say("actions.drain_done", reason=node.reason),
            {"state": list(node.state), "reason": node.reason, "user": node.reason_user},
        )
    if node.drain and is_ours(node.reason):
        return Done(
            say("actions.drain_done_other", reason=node.reason),
            {"state": list(node.state), "reason": node.reason, "user": node.reason_user, "other": True},
        )
    if holder := _other_holder(ctx, node):
        # Another owner drained it just before. Their reason is never replaced (law 5).
        reason = node.reason or say("actions.drain_no_reason")
        why = say("actions.drain_holder", holder=holder, node=node.name, reason=reason)
        return _left_to_them(ctx, why)
    if ctx.step.input.get("adopt") and not node.held:
        return Skipped(say("actions.drain_in_service", node=node.name), {"ends_run": True})
    return None


def _left_to_them(ctx: Context, why: Said) -> Result:
    """As where the gate sees their drain: it needs no question of a run that has requested nothing. The run
    ends once the picture shows it, as the walk would begin another run by an older one."""
    if ctx.run.by != "healer" or ctx.asked or ctx.reserved or last_drain_reason(ctx.log):
        return Failed(why, final=True)
    picture = ctx.tools.picture()
    shown = picture.nodes.get(ctx.node) if picture is not None else None
    if shown is None or _other_holder(ctx, shown) is None:
        return Unread(why, LOOK_AGAIN_S)
    return Skipped(why, {"ends_run": True})


def _other_holder(ctx: Context, node: SlurmNode) -> Said | None:
    """`ann holds`; None if no other owner does. Slurm's own drain has no owner if the step adopts drains, or
    if healer's hook was permitted to cause it."""
    if slurm_kind(node.reason) is not None and (
        is_adopting(ctx.step) or permit_for(node, ctx.claim.permits()) is not None
    ):
        return None
    return holder_of(node)


def _probe_drain(ctx: Context) -> Result | None:
    node = read_node(ctx)
    result = _judge_drain(ctx, node)
    if isinstance(result, Done) and _tested(ctx, result) and under_test.reservation(ctx) is not None:
        return None  # the tests must end first
    slurms = result is None and node.drain and slurm_kind(node.reason) is not None
    if slurms and _taken_over(ctx) is None and permit_for(node, ctx.claim.permits()) is None:
        # Logged before it is replaced, so that an undo can restore it.
        return Again(_held_by_slurm(node.name, node.reason), 0, data={_TAKEN: node.reason})
    if result is None and not node.drain and _is_lifted(ctx):
        return Again(say("actions.drain_lifted", node=node.name), LOOK_AGAIN_S, data={_LIFTED: True})
    return result


_TAKEN, _LIFTED = "taken_over", "lifted"


def _is_lifted(ctx: Context) -> bool:
    """A person has lifted the run's first drain, whose worker died before its record: the last picture shows
    it, or did at an earlier look. The walk finds that too, and ends the run by a veto."""
    if first_logged(ctx.lines, _LIFTED):
        return True
    if last_drain_reason(ctx.log) or all(entry.event is not StepEvent.started for entry in ctx.lines):
        return False
    picture = recent_picture(ctx, ctx.began_at)
    shown = picture.nodes.get(ctx.node) if picture is not None else None
    return shown is not None and shown.drain and is_ours(shown.reason, ctx.run.incident or ctx.run.id)


def _taken_over(ctx: Context) -> str | None:
    """Slurm's own reason that this step's drain replaced, if any."""
    return first_logged((entry for entry in reversed(ctx.log) if entry.step == ctx.part), _TAKEN)


def _held_by_slurm(node: str, reason: str) -> Said:
    return say("actions.drain_holder", holder=say("actions.holds", who="Slurm"), node=node, reason=reason)


def _tested(ctx: Context, drained: Done) -> bool:
    """healer's reservation may be in place: this run's own, or one that another run left, by the snapshot."""
    left = not drained.data.get("other") and our_reservation(ctx.tools.picture(), ctx.node) is not None
    return ctx.reserved or left


def _do_drain(ctx: Context) -> Result | None:
    if ctx.reserved or ctx.asked:  # a node's first drain is sent without another query
        node = read_node(ctx)
        if isinstance(_judge_drain(ctx, node), Done):
            return under_test.end_tests(ctx)
    return cause(ctx, lambda: ctx.tools.scheduler.drain(ctx.node, reason_of(ctx)), needs_right=True)


def _verify_drain(ctx: Context) -> Result:
    tools = msgspec.structs.replace(ctx.tools, picture=cache(ctx.tools.picture))
    ctx = msgspec.structs.replace(ctx, tools=tools)
    result = _probe_drain(ctx)
    if isinstance(result, Done) and (beaten := _overwritten_drain(ctx)) is not None:
        return _restore_reason(ctx, beaten)
    return result or Again(say("actions.drain_not_shown"), 1.0)


# --- a race that was lost ---


def _overwritten_drain(ctx: Context) -> SlurmNode | None:
    """The node with another owner's drain that was set between our check and our drain, by the newest
    snapshot.

    Slurm has no compare-and-set: only a poll within that instant sees their reason (docs/slurm.md, "The
    window that is left").
    """
    picture = ctx.tools.picture()
    shown = picture.nodes.get(ctx.node) if picture is not None else None
    if (
        picture is None
        or shown is None
        or picture.taken_at <= ctx.began_at
        or _other_holder(ctx, shown) is None
    ):
        return None
    began = ctx.began_at - _ROUNDING
    return shown if shown.reason and shown.reason_at is not None and shown.reason_at >= began else None


def _restore_reason(ctx: Context, theirs: SlurmNode) -> Failed:
    """Restores their reason and releases healer's slot: the node is theirs."""
    who = theirs.reason_by or say("actions.somebody")
    ctx.fence()
    try:
        ctx.tools.scheduler.drain(ctx.node, theirs.reason)
        restored = ctx.tools.scheduler.node(ctx.node).reason == theirs.reason
    except (SchedulerError, ValueError):  # a reason of several lines, which healer never writes
        restored = False
    if restored:
        ctx.claim.release_slot(f"{who}'s drain came first")
    text = say(
        "actions.drain_reason_restored" if restored else "actions.drain_reason_lost",
        who=who,
        node=ctx.node,
        reason=theirs.reason,
    )
    ctx.claim.queue(
        Message(
            id=f"{ctx.run.incident or ctx.run.id}:lost-race",
            cluster=ctx.run.cluster,
            title=say("actions.drain_lost_race", who=who, node=ctx.node),
            text=text,
            severity=Severity.P3,
            incident=ctx.run.incident,
        )
    )
    return Failed(text, final=True)


def _drained_before(ctx: Context) -> bool:
    """An earlier step of the run had drained the node: its undo lifts the drain, after the undo of the steps
    in between."""
    done = (entry for entry in ctx.log if entry.event is StepEvent.done)
    first = next((entry.step for entry in done if entry.data.get("verb") == Verb.drain), ctx.part)
    return first != ctx.part


#: Slurm's own reason of a DOWN node. With ReturnToService=1 the node comes back with no other reason (seen on
#: 22.05).
_AWAY = "Not responding"


def _lift_drain(ctx: Context, node: SlurmNode) -> None:
    """Lifts only the drain, because Slurm may have set the node DOWN meanwhile. Such a node would keep
    healer's reason, so it gets Slurm's own first."""
    if node.base == "DOWN" and "NOT_RESPONDING" in node.state:
        with suppress(SchedulerUnavailable):  # the drain is lifted in either case
            ctx.tools.scheduler.drain(node.name, _AWAY)
        ctx.fence()
    ctx.tools.scheduler.undrain(node.name)


#: After these a node is DOWN, with healer's reason.
_TAKES_DOWN = frozenset({Verb.reboot, Verb.power_cycle, Verb.down})


def _undo_down(ctx: Context, node: SlurmNode) -> Result | None:
    """Returns a node that this run's own reboot left DOWN: with no more than its drain lifted it would stay
    so, with healer's reason. None: it is not so, or Slurm or someone else keeps it out as well."""
    taken = any(entry.data.get("verb") in _TAKES_DOWN for entry in ctx.log)
    ours = node.base == "DOWN" and is_ours(node.reason, ctx.run.incident or ctx.run.id)
    if not (taken and ours) or _drained_before(ctx) or _taken_over(ctx) is not None:
        return None
    if holder_of(node, last_drain_reason(ctx.log)):
        return None
    if amiss := NOT_YET.intersection(node.state):
        text = say("actions.lift_state", node=node.name, state="+".join(node.state))
        # A boot ends by itself; what the node lacks does not, and no time limit ends an undo.
        return Failed(text, final=True) if amiss == {"INVALID_REG"} else Again(text, 5.0)
    ctx.fence()
    if "NOT_RESPONDING" in node.state:
        _lift_drain(ctx, node)
    else:
        ctx.tools.scheduler.resume(node.name)
    return _given_back(ctx, node, say("actions.drain_undone"))


def _undo_drain(ctx: Context) -> Result:
    node = read_node(ctx)
    if (up := _undo_down(ctx, node)) is not None:
        return up
    half = ctx.asked and node.base == "DOWN" and node.reason == _AWAY  # a worker died within `_lift_drain`
    if not node.drain or not (half or is_ours(node.reason, ctx.run.incident or ctx.run.id)):
        if node.drain and is_ours(node.reason):  # another incident's drain stays, and so does its slot
            return Done(say("actions.drain_done_other", reason=node.reason))
        # Asked for before: a worker lifted it and died before it released the slot.
        return _given_back(ctx, node, say("actions.drain_gone"), frees=ctx.asked)
    if not half and (holder := holder_of(node, last_drain_reason(ctx.log))):  # they added to our reason
        text = say("actions.lift_holder", holder=holder, node=node.name, reason=node.reason)
        return _given_back(ctx, node, text, frees=False)
    if _drained_before(ctx):
        return Done(say("actions.drain_done", reason=node.reason))
    ctx.fence()
    if (reason := _taken_over(ctx)) is not None:
        ctx.tools.scheduler.drain(ctx.node, reason)  # not only ours: Slurm had drained it before (law 5)
        return _given_back(ctx, node, _held_by_slurm(ctx.node, reason))
    _lift_drain(ctx, node)
    return _given_back(ctx, node, say("actions.drain_undone"))


def _given_back(ctx: Context, node: SlurmNode, text: Said, *, frees: bool = True) -> Done:
    """The drain is not healer's any more, so its note does not stay. The slot does until the node returns,
    if someone else keeps it out."""
    ctx.fence()
    clear_note(ctx.tools.scheduler, node)
    if frees:
        ctx.claim.release_slot("the drain was undone")
    return Done(text)


DRAIN = Action(probe=_probe_drain, do=_do_drain, verify=_verify_drain, undo=_undo_drain)


#: How often to check while jobs still run, in seconds.
RUN_ON_S = 5.0


def _names(jobs: list[SlurmJob]) -> str:
    return ", ".join(sorted(job.title for job in jobs))


def _probe_down(ctx: Context) -> Result | None:
    return _judge_down(ctx, *read_node_and_jobs(ctx))


def _judge_down(ctx: Context, node: SlurmNode, jobs: list[SlurmJob]) -> Result | None:
    if not (node.drain and is_ours(node.reason)) or holder_of(node, last_drain_reason(ctx.log)):
        return Failed(say("actions.down_not_ours", node=node.name), final=True)
    if not jobs:
        if node.base == "DOWN":
            return Done(say("actions.down_done", node=node.name), {"state": list(node.state)})
        return Skipped(say("actions.down_none_stuck", node=node.name))
    alive = [job for job in jobs if "COMPLETING" not in job.flags]
    if alive and ctx.run.by == "healer" and ctx.run.approved_by is None:
        return Failed(say("actions.down_job_runs", jobs=_names(alive), node=node.name), final=True)
    if node.base == "DOWN":
        return Again(say("actions.down_frees", node=node.name, jobs=_names(jobs)), LOOK_AGAIN_S)
    return None


def _do_down(ctx: Context) -> Result | None:
    node, jobs = read_node_and_jobs(ctx)
    if (seen := _judge_down(ctx, node, jobs)) is not None:  # a person may have been faster
        return seen
    # Keeps the present reason: it is healer's, maybe for another incident.
    return cause(ctx, lambda: ctx.tools.scheduler.down(node.name, node.reason))


# --- check: jobs_left ---


def jobs_left(ctx: Context) -> Result:
    """Whether the node's jobs end. No: the same jobs have all been completing for 30 s.

    Waits `input.run_on_s` seconds for jobs that still run; after that nothing counts as stuck. The step's log
    records when the jobs began to complete, so that this survives a worker's death.
    """
    node, jobs = read_node_and_jobs(ctx)
    if not jobs:
        return Done(say("actions.jobs_left_none", node=node.name), {"passed": True})
    alive = [job for job in jobs if "COMPLETING" not in job.flags]
    if alive:
        names = _names(alive)
        if (ctx.tools.now() - ctx.began_at).total_seconds() < float(ctx.step.input.get("run_on_s", 0)):
            return Again(say("actions.jobs_left_running", jobs=names, node=node.name), RUN_ON_S)
        return Done(say("actions.jobs_left_not_stuck", jobs=names, node=node.name), {"passed": True})
    stuck = sorted(jobs, key=lambda job: job.id)
    lives = {job.id: job.restarts for job in stuck}
    since = _completing_since(ctx, lives)
    named = joined(
        (say("actions.jobs_left_life", job=job.title, restarts=job.restarts) for job in stuck), "comma"
    )
    if ctx.tools.now() - since < STUCK_FOR:
        text = say("actions.jobs_left_completing", node=node.name, jobs=named)
        return Again(text, LOOK_AGAIN_S, data={"completing": lives})
    text = say("actions.jobs_left_stuck", node=node.name, since=f"{since:%H:%M:%S}", jobs=named)
    return Done(text, {"passed": False, "stuck_since": since.isoformat()})


def _completing_since(ctx: Context, lives: dict[str, int]) -> datetime:
    """Since when the step's last log entry has these jobs and restart counts as completing; now, if it has
    others."""
    last = ctx.lines[-1] if ctx.lines else None
    same = last is not None and last.event is StepEvent.waiting and last.data.get("completing") == lives
    return last.at if last is not None and same else ctx.tools.now()


DOWN = Action(
    probe=_probe_down,
    do=_do_down,
    verify=read_back(_probe_down, lambda ctx: say("actions.down_not_yet", node=ctx.node), LOOK_AGAIN_S),
)


# --- resume lifts only healer's drain, and ends its reservation; undrain leaves DOWN unchanged


#: The playbooks that a person starts for a repaired node.
REPAIRED = frozenset({"resume", "return-to-service"})


def _returned(ctx: Context, node: SlurmNode, text: Said) -> Done:
    ctx.fence()
    clear_note(ctx.tools.scheduler, node)
    # Both in the transaction of the step's last entry: with its slot released and its incident open, the node
    # would be drained again. Incidents from before the run's tests end with the return; `cleared_at` keeps
    # reports about the node in service.
    ctx.claim.tell_detector(
        ctx.command(
            CommandKind.node_returned,
            node=ctx.node,
            since=(ctx.tested_at or ctx.run.created_at).isoformat(),
            cleared_at=ctx.began_at.isoformat(),
            **tests_result(ctx.log),
            **highest_remedy(ctx.log),
            # A person who returns a node with one of these declares it repaired (wait: repair).
            **({"repaired": True} if ctx.run.playbook in REPAIRED else {}),
        )
    )
    ctx.claim.release_slot("the node returned to service")
    return Done(text)


def _read_held(ctx: Context) -> tuple[SlurmNode, Reservation | None]:
    node, kept = read_slurm(lambda: (ctx.tools.scheduler.node(ctx.node), under_test.reservation(ctx)))
    if holder := holder_of(node, last_drain_reason(ctx.log)):
        text = say("actions.lift_holder", holder=holder, node=node.name, reason=reason_given(node))
        raise Answered(Failed(text, final=True))
    return node, kept


def _probe_lift(ctx: Context, *, resumes: bool) -> Result | None:
    node, kept = _read_held(ctx)
    state = "+".join(node.state)
    if NOT_YET.intersection(node.state):
        return Again(say("actions.lift_state", node=node.name, state=state), 5.0)
    if ctx.run.by == "healer":
        # A person may end any of healer's drains; healer by itself only its drain for this incident.
        if node.drain and not is_ours(node.reason, ctx.run.incident or ctx.run.id):
            return Failed(say("actions.lift_else", node=node.name, reason=node.reason), final=True)
        if node.held and not node.resumable:
            text = say("actions.lift_unknown_flags", node=node.name, flags=", ".join(node.unknown_flags))
            return Failed(text, final=True)
    # Power saving also switches off drained nodes: a sleeping node is in service only when a job comes.
    back = node.may_get_jobs if resumes else not node.drain
    if not back or kept is not None:
        return None
    if node.may_get_jobs:
        return _returned(ctx, node, say("actions.lift_in_service", node=node.name, state=state))
    # Its slot and its incidents stay until it is back in service.
    return Done(say("actions.lift_not_drained", node=node.name, state=state))


def _do_lift(ctx: Context, *, resumes: bool) -> Result | None:
    node, kept = _read_held(ctx)
    if kept is not None and not node.held:
        return under_test.end_tests(ctx)  # read back before the next effect
    lift = (lambda: ctx.tools.scheduler.resume(ctx.node)) if resumes else (lambda: _lift_drain(ctx, node))
    return cause(ctx, lift, needs_right=True)


def _lift_action(*, resumes: bool) -> Action:
    probe = partial(_probe_lift, resumes=resumes)
    return Action(
        probe=probe,
        do=partial(_do_lift, resumes=resumes),
        verify=read_back(probe, lambda _: say("actions.lift_not_yet"), 1.0),
    )


RESUME, UNDRAIN = _lift_action(resumes=True), _lift_action(resumes=False)


# --- the note on a node that healer drained: in the node's `extra`, or in `comment` if Slurm has no `extra`
#
# Written only if the field is empty or holds healer's note. Other programs read it; no step waits for it or
# fails because of it. `healer reconcile` lists notes that could not be removed.


def write_note(scheduler: Scheduler, run: Run, state: str) -> Said | None:
    """Writes the run's state on a node that healer drained. Returns why it could not, or None."""
    try:
        node = scheduler.node(run.node or "")
        text = note_of(run, state, node)
        if not (node.held and is_ours(node.reason)) or text in {node.extra, node.comment}:
            return None
        try:
            if not node.extra or is_our_note(node.extra):
                scheduler.annotate(node.name, extra=text)
        except NotAvailable:
            if not node.comment or is_our_note(node.comment):
                scheduler.annotate(node.name, comment=text)
    except SchedulerError as error:
        return said_by(error)
    return None


def our_notes(node: SlurmNode) -> set[str]:
    """The names of the fields that hold healer's note."""
    return {name for name in ("comment", "extra") if is_our_note(getattr(node, name))}


def clear_note(scheduler: Scheduler, node: SlurmNode) -> Said | None:
    """Removes healer's note. Returns why it could not, or None."""
    try:
        if ours := our_notes(node):
            scheduler.annotate(node.name, **dict.fromkeys(ours, ""))
    except SchedulerError as error:
        return said_by(error)
    return None
