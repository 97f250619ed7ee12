"""Drain: no new job starts on the node. Done when our reason is read back from Slurm.

A run that tested its node inside a reservation of ours drains it before that reservation ends: in between the
node would take anybody's jobs.
"""

from datetime import timedelta
from functools import cache

import msgspec

from healer.actions import under_test
from healer.actions.base import Action, Again, Context, Done, Failed, Result, Skipped
from healer.actions.look import at_node
from healer.actions.reason import holder_of, is_ours, reason_of
from healer.model import Message, Severity, SlurmNode
from healer.model.permits import permit_for
from healer.model.reasons import slurm_kind
from healer.model.reserved import our_reservation
from healer.ports.slurm import SchedulerError, SchedulerRefused, SchedulerUnavailable

#: Slurm keeps whole seconds of a reason's time.
_ROUNDING = timedelta(seconds=1)


def _judge(ctx: Context, node: SlurmNode) -> Result | None:
    if node.drain and is_ours(node.reason, ctx.run.incident or ctx.run.id):
        return Done(
            text=f"Drained: {node.reason}",
            data={"state": list(node.state), "reason": node.reason, "user": node.reason_user},
        )
    if node.drain and is_ours(node.reason):
        return Done(
            text=f"Drained already by healer for another incident: {node.reason}",
            data={"state": list(node.state), "reason": node.reason, "user": node.reason_user, "other": True},
        )
    if holder := _other(ctx, node):
        # Read just before: somebody was faster. Their reason is never replaced (law 5).
        return Failed(text=f"{holder} {node.name} with the reason: {node.reason or 'none'}", final=True)
    if adopts(ctx) and not node.held:
        return Skipped(
            text=f"{node.name} is in service: there is nothing to take over", data={"ends_run": True}
        )
    return None


def adopts(ctx: Context) -> bool:
    """The step takes over what Slurm itself drained or set down."""
    return bool(ctx.step.input.get("adopt"))


def _other(ctx: Context, node: SlurmNode) -> str | None:
    """`ann holds`. Slurm's own drain is nobody's where the step takes such a one over, or where a hook of
    ours was permitted to cause it."""
    if slurm_kind(node.reason) is not None and (adopts(ctx) or permit_for(node, ctx.permits()) is not None):
        return None
    return holder_of(node)


def probe(ctx: Context) -> Result | None:
    node = at_node(ctx)
    if not isinstance(node, SlurmNode):
        return node
    result = _judge(ctx, node)
    if isinstance(result, Done) and _tested(ctx, result) and under_test.reservation(ctx) is not None:
        return None  # the tests are still to be ended
    return result


def _tested(ctx: Context, drained: Done) -> bool:
    """A reservation of ours may stand: this run's, or one that another run left behind, by the picture."""
    left = not drained.data.get("other") and our_reservation(ctx.picture(), ctx.node) is not None
    return ctx.reserved or left


def do(ctx: Context) -> Result | None:
    if ctx.reserved or ctx.asked:  # the first drain of a node goes out without another look
        node = at_node(ctx)
        if not isinstance(node, SlurmNode):
            return node
        if isinstance(_judge(ctx, node), Done):
            return under_test.end(ctx)
    ctx.fence()
    try:
        ctx.scheduler.drain(ctx.node, reason_of(ctx))
    except SchedulerRefused as error:
        return Failed(text=str(error), final=error.no_right)
    except SchedulerUnavailable:
        return None  # unknown whether it happened: verify reads back
    return None


def verify(ctx: Context) -> Result:
    ctx = msgspec.structs.replace(ctx, picture=cache(ctx.picture))
    result = probe(ctx)
    if isinstance(result, Done) and (beaten := _beaten(ctx)) is not None:
        return _put_back(ctx, beaten)
    return result or Again(text="The drain does not show in Slurm yet", after_s=1.0)


# --- a race that was lost ---


def _beaten(ctx: Context) -> SlurmNode | None:
    """The node as somebody else had drained it between our look and our drain, by the newest picture.

    Slurm has no compare-and-set: what stood there for an instant is seen by a poll that fell into it, and by
    nothing else (docs/slurm.md, "The window that is left").
    """
    picture = ctx.picture()
    shown = picture.nodes.get(ctx.node) if picture is not None else None
    if picture is None or shown is None or picture.taken_at <= ctx.began_at or _other(ctx, shown) is None:
        return None
    began = ctx.began_at - _ROUNDING
    return shown if shown.reason and shown.reason_at is not None and shown.reason_at >= began else None


def _put_back(ctx: Context, theirs: SlurmNode) -> Failed:
    """Their words stand again; the node is theirs, and no slot of ours."""
    who = theirs.reason_user or "Somebody"
    text = f"{who}'s drain of {ctx.node} came first ({theirs.reason})"
    ctx.fence()
    try:
        ctx.scheduler.drain(ctx.node, theirs.reason)
        stands = ctx.scheduler.node(ctx.node).reason == theirs.reason
    except SchedulerError:
        stands = False
    if stands:
        text = f"{text}, and ours had replaced it: their words stand again."
        ctx.release_slot(f"{who}'s drain came first")
    else:
        text = f"{text}, ours has replaced it, and their words could not be put back: do it by hand."
    ctx.queue(
        Message(
            id=f"{ctx.run.incident or ctx.run.id}:lost-race",
            cluster=ctx.run.cluster,
            title=f"{who} and healer drained {ctx.node} at the same moment",
            text=text,
            severity=Severity.P3,
            incident=ctx.run.incident,
        )
    )
    return Failed(text=text, final=True)


def undo(ctx: Context) -> Result:
    node = at_node(ctx)
    if not isinstance(node, SlurmNode):
        return node
    if not (node.drain and is_ours(node.reason, ctx.run.incident or ctx.run.id)):
        if ctx.asked:  # lifted by a worker that died before it freed the slot: no person's doing
            ctx.release_slot("the drain was undone")
        return Done(text="Our drain does not stand any more")
    ctx.fence()
    ctx.scheduler.undrain(ctx.node)  # and nothing else: Slurm may have set it DOWN meanwhile
    ctx.release_slot("the drain was undone")
    return Done(text="Drain taken back")


ACTION = Action(probe=probe, do=do, verify=verify, undo=undo)
