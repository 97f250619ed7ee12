"""Resume: the node may run jobs again. Only a drain of ours is ever lifted, and our reservation ends with it.

Undrain lifts the drain alone: a node that Slurm itself set DOWN stays so.
"""

from collections.abc import Callable
from functools import partial

from healer.actions import note, under_test
from healer.actions.base import Action, Again, Context, Done, Failed, Result
from healer.actions.look import look
from healer.actions.reason import holder_of, is_ours, own_words
from healer.model import CommandKind, Reservation, SlurmNode
from healer.model.run import tests_of, tried_of
from healer.ports.slurm import Scheduler, SchedulerRefused, SchedulerUnavailable

#: Slurm refuses a return of a node that has not registered as configured, and one amid a reboot would lose it
#: half way (d.8, 4 and 5).
_NOT_YET = frozenset({"REBOOT_ISSUED", "REBOOT_REQUESTED", "INVALID_REG"})
#: The playbooks by which a person says that a node is repaired.
REPAIRED = frozenset({"resume", "return-to-service"})
_Lift = Callable[[Scheduler, str], None]


def _resume(scheduler: Scheduler, node: str) -> None:
    scheduler.resume(node)


def _undrain(scheduler: Scheduler, node: str) -> None:
    scheduler.undrain(node)


def _returned(ctx: Context, node: SlurmNode, text: str) -> Done:
    ctx.fence()
    note.clear(ctx.scheduler, node)
    # Both with the step's last line, or not at all: with its slot gone and its incident open the node would
    # be drained once more, and whoever hears that it is back finds in the log how. What opened while the run
    # went on was none of its business, and what came since it let the node go speaks of a node in service.
    ctx.tell_detector(
        ctx.command(
            CommandKind.node_returned,
            node=ctx.node,
            since=ctx.run.created_at.isoformat(),
            cleared_at=ctx.began_at.isoformat(),
            **tests_of(ctx.log),
            **tried_of(ctx.log),
            # Who gives a node back with this one says that it is repaired (wait: repair).
            **({"repaired": True} if ctx.run.playbook in REPAIRED else {}),
        )
    )
    ctx.release_slot("the node returned to service")
    return Done(text=text)


def _read(ctx: Context) -> tuple[SlurmNode, Reservation | None] | Failed | Again:
    read = look(lambda: (ctx.scheduler.node(ctx.node), under_test.reservation(ctx)))
    if not isinstance(read, tuple):
        return read
    node, kept = read
    if holder := holder_of(node, own_words(ctx.log)):
        return Failed(
            text=f"{holder} {node.name}: {node.reason or 'no reason given'}. healer lifts only its drains.",
            final=True,
        )
    return node, kept


def _probe(ctx: Context, *, lift: _Lift) -> Result | None:
    read = _read(ctx)
    if not isinstance(read, tuple):
        return read
    node, kept = read
    state = "+".join(node.state)
    if _NOT_YET.intersection(node.state):
        return Again(text=f"{node.name} is {state}", after_s=5.0)
    if ctx.run.by == "healer":
        # A person may end any drain of ours, another incident's too; healer by itself only this one's.
        if node.drain and not is_ours(node.reason, ctx.run.incident or ctx.run.id):
            return Failed(text=f"{node.name} is out for something else: {node.reason}", final=True)
        if node.held and not node.resumable:
            unknown = ", ".join(node.unknown_flags)
            return Failed(text=f"{node.name} shows {unknown}, which healer does not know", final=True)
    back = not node.drain if lift is _undrain else node.in_service
    if not back or kept is not None:
        return None
    if node.in_service:
        return _returned(ctx, node, f"{node.name} is in service ({state})")
    # Its slot and its incidents stay until it is back.
    return Done(text=f"{node.name} is no longer drained, and not in service ({state})")


def _do(ctx: Context, *, lift: _Lift) -> Result | None:
    read = _read(ctx)
    if not isinstance(read, tuple):
        return read
    node, kept = read
    if kept is not None and not node.held:
        return under_test.end(ctx)  # read back before anything else: one effect at a time
    ctx.fence()
    try:
        lift(ctx.scheduler, ctx.node)
    except SchedulerRefused as error:
        return Failed(text=str(error), final=error.no_right)
    except SchedulerUnavailable:
        return None
    return None


def _verify(ctx: Context, *, lift: _Lift) -> Result:
    again = Again(text="The node is not back in service yet", after_s=1.0)
    return _probe(ctx, lift=lift) or again


def _action(lift: _Lift) -> Action:
    return Action(
        probe=partial(_probe, lift=lift), do=partial(_do, lift=lift), verify=partial(_verify, lift=lift)
    )


RESUME = _action(_resume)
UNDRAIN = _action(_undrain)
