"""Drain: no new job starts on the node. Done when our reason is read back from Slurm."""

from healer.actions.base import Action, Again, Context, Done, Failed, Result
from healer.actions.reason import drain_reason, holder_of, is_ours
from healer.model import SlurmNode
from healer.ports import SchedulerRefused, SchedulerUnavailable, UnknownNode


def reason_of(ctx: Context) -> str:
    given = ctx.run.input.get("reason_text")
    incident = ctx.incident
    text = str(given) if given else (incident.title if incident else ctx.run.reason)
    return drain_reason(ctx.run.rule or ctx.run.playbook, ctx.run.incident or ctx.run.id, text)


def _read(ctx: Context) -> SlurmNode | Failed | Again:
    try:
        return ctx.scheduler.node(ctx.node)
    except UnknownNode as error:
        return Failed(text=str(error), final=True)
    except SchedulerUnavailable as error:
        return Again(text=f"Slurm did not answer: {error}", after_s=2.0)


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
    if holder := holder_of(node):
        # Read just before: somebody was faster. Their reason is never replaced (law 5).
        return Failed(text=f"{holder} {node.name} with the reason: {node.reason or 'none'}", final=True)
    return None


def probe(ctx: Context) -> Result | None:
    node = _read(ctx)
    return _judge(ctx, node) if isinstance(node, SlurmNode) else node


def do(ctx: Context) -> Result | None:
    ctx.fence()
    try:
        ctx.scheduler.drain(ctx.node, reason_of(ctx))
    except SchedulerRefused as error:
        return Failed(text=str(error))
    except SchedulerUnavailable:
        return None  # unknown whether it happened: verify reads back
    return None


def verify(ctx: Context) -> Result:
    return probe(ctx) or Again(text="The drain does not show in Slurm yet", after_s=1.0)


def undo(ctx: Context) -> Result:
    node = _read(ctx)
    if not isinstance(node, SlurmNode):
        return node
    if not (node.drain and is_ours(node.reason, ctx.run.incident or ctx.run.id)):
        return Done(text="Our drain does not stand any more")
    ctx.fence()
    ctx.scheduler.resume(ctx.node)
    ctx.release_slot("the drain was undone")
    return Done(text="Drain taken back")


ACTION = Action(probe=probe, do=do, verify=verify, undo=undo)
