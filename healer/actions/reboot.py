"""Reboot: the node boots anew and stays out. Done when it came back with a boot of its own.

`nextstate=DOWN`: Slurm's default would lift a drain that stood before (d.8, 7). The boot before stands in the
line that granted the step, so a worker that takes it up knows what to compare with.
"""

from datetime import datetime, timedelta
from typing import Any

from healer.actions.base import Action, Again, Context, Done, Failed, Result
from healer.actions.look import at_free_node
from healer.actions.reason import is_ours, reason_of
from healer.model import SlurmNode, StepEvent
from healer.ports.slurm import SchedulerRefused, SchedulerUnavailable

LOOK_AGAIN_S = 5.0
_UNDER_WAY = frozenset({"REBOOT_ISSUED", "REBOOT_REQUESTED"})
#: A boot time moves by a second when slurmd registers again; a boot takes longer.
BOOT_MOVES = timedelta(seconds=5)


def boot_of(node: SlurmNode | None) -> dict[str, Any]:
    """What the line that grants a reboot keeps of the node."""
    if node is None:
        return {}
    return {"boot_at": node.boot_at.isoformat() if node.boot_at else None, "boot_id": node.boot_id}


def _booted(ctx: Context, node: SlurmNode) -> bool | None:
    """Whether it booted since the step was granted; None where nobody can tell.

    Granted in this very attempt, the line does not stand in the log yet: nothing was asked for before.
    """
    granted = next((one for one in ctx.lines if one.event is StepEvent.started), None)
    before = granted.data if granted is not None else boot_of(node)
    if before.get("boot_id") and node.boot_id:
        return before["boot_id"] != node.boot_id
    if before.get("boot_at") is None or node.boot_at is None:
        return None
    return node.boot_at - datetime.fromisoformat(before["boot_at"]) > BOOT_MOVES


def _probe(ctx: Context) -> Result | None:
    node = at_free_node(ctx, LOOK_AGAIN_S)
    if not isinstance(node, SlurmNode):
        return node
    booted, state = _booted(ctx, node), "+".join(node.state)
    if booted is None:
        return Failed(text=f"Nobody tells when {node.name} booted: a reboot could not be proven", final=True)
    if _UNDER_WAY.intersection(node.state):
        return Again(text=f"{node.name} reboots ({state})", after_s=LOOK_AGAIN_S)
    if not booted:
        if ctx.asked:
            return Failed(text=f"{node.name} did not boot, and Slurm shows no reboot any more ({state})")
        return None
    if "NOT_RESPONDING" in node.state or "INVALID_REG" in node.state:
        return Again(text=f"{node.name} has booted and is {state}", after_s=LOOK_AGAIN_S)
    if not node.drain:
        return None  # DOWN alone may end by itself: it is drained again, whatever a guard says by now
    return Done(text=f"{node.name} has booted and is {state}", data={"state": list(node.state)})


def _only_keeps(ctx: Context) -> bool:
    node = at_free_node(ctx, LOOK_AGAIN_S)
    return isinstance(node, SlurmNode) and bool(_booted(ctx, node)) and not node.drain


def _do(ctx: Context) -> Result | None:
    node = at_free_node(ctx, LOOK_AGAIN_S)
    if not isinstance(node, SlurmNode):
        return node
    if not node.drain and not _booted(ctx, node):
        return Failed(text=f"{node.name} is not drained any more", final=True)
    ctx.fence()
    try:
        if _booted(ctx, node):
            ctx.scheduler.drain(node.name, reason_of(ctx))
        else:
            ctx.scheduler.reboot(node.name, _words(ctx, node))
    except SchedulerRefused as error:
        return Failed(text=str(error))
    except SchedulerUnavailable:
        return None
    return None


def _words(ctx: Context, node: SlurmNode) -> str:
    """What stands there stays, where it is ours already."""
    return node.reason if is_ours(node.reason) else reason_of(ctx)


def _verify(ctx: Context) -> Result:
    return _probe(ctx) or Again(text=f"{ctx.node} does not reboot yet", after_s=LOOK_AGAIN_S)


def _undo(ctx: Context) -> Result:
    node = at_free_node(ctx, LOOK_AGAIN_S)
    if not isinstance(node, SlurmNode):
        return node
    if "REBOOT_REQUESTED" not in node.state:
        return Done(text=f"No reboot of {node.name} waits")
    ctx.fence()
    ctx.scheduler.cancel_reboot(node.name)
    return Done(text=f"The reboot of {node.name} was taken back")


ACTION = Action(probe=_probe, do=_do, verify=_verify, undo=_undo, only_keeps=_only_keeps)
