"""Resume: the node may run jobs again. Only a drain of ours is ever lifted."""

from healer.actions.base import Action, Again, Context, Done, Failed, Result
from healer.actions.reason import holder_of, is_ours
from healer.model import CommandKind
from healer.ports import SchedulerRefused, SchedulerUnavailable, UnknownNode

_REBOOTING = frozenset({"REBOOT_ISSUED", "REBOOT_REQUESTED", "INVALID_REG"})


def _returned(ctx: Context, text: str) -> Done:
    # In this order: with its slot gone and its incident open the node would be drained once more.
    # What opened while the run went on was none of its business, and what came since it let the node go
    # speaks of a node in service.
    ctx.tell_detector(
        ctx.command(
            CommandKind.node_returned,
            node=ctx.node,
            since=ctx.run.created_at.isoformat(),
            cleared_at=ctx.began_at.isoformat(),
        )
    )
    ctx.release_slot("the node returned to service")
    return Done(text=text)


def probe(ctx: Context) -> Result | None:
    try:
        node = ctx.scheduler.node(ctx.node)
    except UnknownNode as error:
        return Failed(text=str(error), final=True)
    except SchedulerUnavailable as error:
        return Again(text=f"Slurm did not answer: {error}", after_s=2.0)
    if holder := holder_of(node):
        return Failed(
            text=f"{holder} {node.name}: {node.reason or 'no reason given'}. healer lifts only its drains.",
            final=True,
        )
    if _REBOOTING.intersection(node.state):
        return Again(text=f"{node.name} is {'+'.join(node.state)}", after_s=5.0)
    if ctx.run.by == "healer" and node.drain and not is_ours(node.reason, ctx.run.incident or ctx.run.id):
        # A person may end any drain of ours, another incident's too; healer by itself only this one's.
        return Failed(text=f"{node.name} is out for something else: {node.reason}", final=True)
    if node.in_service:
        return _returned(ctx, f"{node.name} is in service ({'+'.join(node.state)})")
    return None


def do(ctx: Context) -> Result | None:
    ctx.fence()
    try:
        ctx.scheduler.resume(ctx.node)
    except SchedulerRefused as error:
        return Failed(text=str(error))
    except SchedulerUnavailable:
        return None
    return None


def verify(ctx: Context) -> Result:
    return probe(ctx) or Again(text="The node is not back in service yet", after_s=1.0)


ACTION = Action(probe=probe, do=do, verify=verify)
