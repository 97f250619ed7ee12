"""Power of a node through its BMC: power cycle, power state; and the reboot through Slurm.

A BMC has no idempotency key and no fence: a repeated reset resets twice. So a log entry precedes each reset,
and within one key a second reset is sent only if the first certainly was not: the BMC was not reached, or was
busy. A worker that takes over a run after such an entry only checks, and asks a person if no boot follows.
Only `On` may be repeated: a node that is on stays on.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from healer.actions.base import (
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
    read_back,
    read_free_node,
    reason_of,
    tried,
)
from healer.model import LogEntry, Power, ResetKind, SlurmNode, StepEvent
from healer.model.node import OFF, ON
from healer.model.slurm import BOOT_MOVES, is_ours
from healer.ports.node_exec import BmcError, BmcUnavailable
from healer.text import Said, quoted, said_by, say

LOOK_AGAIN_S = 5.0
#: A node that is still off this long after `On` gets another `On`.
ON_AGAIN = timedelta(minutes=1)
#: A node that has booted and cannot be used yet.
_NOT_THERE = frozenset({"NOT_RESPONDING", "INVALID_REG"})


# --- power_cycle ---


def _resets(lines: list[LogEntry]) -> list[LogEntry]:
    """The entries of resets that were sent, or may have been.

    This claim's last entry has not been sent yet. If the same claim logged something else after it (a guard
    held it, Slurm did not answer, the BMC was busy), it was not sent.
    """
    places = [index for index, entry in enumerate(lines) if "asks" in entry.data]
    return [lines[index] for index in places if not _surely_not_sent(lines[index : index + 2])]


def _since(ctx: Context) -> datetime | None:
    """When the first reset was sent: the step's time-out counts from there."""
    return next((entry.at for entry in _resets(ctx.lines)), None)


def _surely_not_sent(lines: list[LogEntry]) -> bool:
    """`lines`: the entry of a reset and the one after it, if any."""
    if len(lines) < 2 or lines[1].epoch != lines[0].epoch:
        return False
    return lines[1].event in {StepEvent.waiting, StepEvent.held} and lines[1].data.get("sent") is not True


def _is_next(ctx: Context, asked: LogEntry) -> bool:
    """It is the last entry, written by this claim: no other worker can have sent it."""
    return ctx.lines[-1] is asked and asked.epoch == ctx.run.epoch


def _booted_power(ctx: Context, node: SlurmNode) -> bool:
    """The node certainly booted since a reset was sent or may have been, including resets before a person's
    retry."""
    asked = next(reversed(_resets([entry for entry in ctx.log if entry.step == ctx.part])), None)
    if asked is None:
        return False
    before_id, before_at = asked.data.get("boot_id"), asked.data.get("boot_at")
    if before_id and node.boot_id:
        return before_id != node.boot_id
    if node.boot_at is None:
        return False
    since = datetime.fromisoformat(before_at) + BOOT_MOVES if before_at else asked.at + timedelta(seconds=1)
    return node.boot_at > since


def _probe_power(ctx: Context) -> Result | None:
    if ctx.tools.bmc is None:
        return Failed(say("actions.power_by_hand", node=ctx.node), final=True)
    node = read_free_node(ctx)
    if not _booted_power(ctx, node):
        return None
    state = "+".join(node.state)
    if not _NOT_THERE.isdisjoint(node.state):
        return _wait(ctx, say("actions.power_booted", node=node.name, state=state))
    if not node.drain:
        return None  # drain it again: DOWN alone may end by itself
    power = _power(ctx)
    if power.state != ON:
        return _wait(ctx, say("actions.power_booted_not_on", node=node.name, power=_state(power)))
    text = say("actions.power_cycled", node=node.name, state=state)
    return Done(text, {"state": list(node.state), "power": power.state})


def _wait(ctx: Context, text: Said) -> Again:
    return Again(text, LOOK_AGAIN_S, since=_since(ctx))


def _state(power: Power) -> str:
    return power.state or say("actions.power_state_unknown")


def _power(ctx: Context) -> Power:
    assert ctx.tools.bmc is not None  # the probe has looked
    try:
        return ctx.tools.bmc.power(ctx.node)
    except BmcUnavailable as error:
        after_s = error.after_s or LOOK_AGAIN_S
        raise Answered(Again(said_by(error), after_s, since=_since(ctx))) from None
    except BmcError as error:
        raise Answered(Failed(said_by(error), final=True)) from None


def _only_keeps(ctx: Context, booted: Callable[[Context, SlurmNode], bool | None]) -> bool:
    """The node has booted, and only needs to be drained again."""
    node = tried(lambda: read_free_node(ctx))
    return node is not None and bool(booted(ctx, node)) and not node.drain


def _do_power(ctx: Context) -> Result | None:
    node = read_free_node(ctx)
    if _booted_power(ctx, node):
        return None if node.drain else _drain_again(ctx, node)
    if not node.drain:
        return Failed(say("actions.not_drained", node=node.name), final=True)
    asked = next(reversed(_resets(ctx.lines)), None)
    if asked is not None and _is_next(ctx, asked):
        return _send(ctx, asked)
    power = _power(ctx)
    kind = _next_kind(ctx, asked, power)
    if kind is None:
        if asked is not None:
            return _await_boot(ctx, asked, power)
        text = say("actions.power_no_kind", node=ctx.node, kinds=", ".join(power.kinds))
        return Failed(text, final=True)
    data: dict[str, Any] = {"asks": str(kind), "target": power.target, "power": power.state, **boot_of(node)}
    return Again(say("actions.power_asked", node=node.name, kind=kind, power=_state(power)), 0, data=data)


def _next_kind(ctx: Context, asked: LogEntry | None, power: Power) -> ResetKind | None:
    """The next reset; None: none. A BMC that lists no kinds gets a power cycle."""
    if asked is not None:
        off_first = asked.data["asks"] == ResetKind.force_off
        late = asked.data["asks"] == ResetKind.on and ctx.tools.now() - asked.at >= ON_AGAIN
        return ResetKind.on if power.state == OFF and (off_first or late) else None
    if power.state == OFF:
        return ResetKind.on
    if not power.kinds or ResetKind.power_cycle in power.kinds:
        return ResetKind.power_cycle
    both = {ResetKind.force_off, ResetKind.on} <= set(power.kinds)
    return ResetKind.force_off if both else None


def _send(ctx: Context, asked: LogEntry) -> Result:
    assert ctx.tools.bmc is not None
    kind = ResetKind(asked.data["asks"])
    ctx.fence()
    try:
        task = ctx.tools.bmc.reset(ctx.node, str(asked.data["target"]), kind)
        data: dict[str, Any] = {"sent": True, "task": task}
        text = say("actions.power_taken", node=ctx.node, kind=kind)
    except BmcUnavailable as error:
        data = {"sent": error.sent}
        if not error.sent:
            text = say("actions.power_not_sent", error=said_by(error))
            return Again(text, error.after_s or LOOK_AGAIN_S, data=data)
        text = say("actions.power_maybe_sent", error=said_by(error), kind=kind)
    except BmcError as error:
        return Failed(said_by(error), final=True)
    return Again(text, LOOK_AGAIN_S, since=_since(ctx), data=data)


def _await_boot(ctx: Context, asked: LogEntry, power: Power) -> Result:
    """Waits for the boot after a reset that was sent, or may have been."""
    assert ctx.tools.bmc is not None
    kind, task = str(asked.data["asks"]), first_logged(reversed(ctx.lines), "task")
    if task is not None:
        try:
            if why := ctx.tools.bmc.task_failed(ctx.node, task):
                text = say("actions.power_given_up", node=ctx.node, kind=kind, why=quoted(why))
                return Failed(text, final=True)
        except BmcError:
            pass  # the boot decides
    text = say("actions.power_not_booted_since", node=ctx.node, kind=kind, power=_state(power))
    return _wait(ctx, text)


def _drain_again(ctx: Context, node: SlurmNode, reason: str = "") -> Result | None:
    return cause(ctx, lambda: ctx.tools.scheduler.drain(node.name, reason or reason_of(ctx)))


def _verify_power(ctx: Context) -> Result:
    return _probe_power(ctx) or _wait(ctx, say("actions.power_not_booted", node=ctx.node))


# --- power_state ---


def power_state(ctx: Context) -> Result:
    """Yes: on. No: off. Skipped without a BMC, or without its answer within `timeout_s`."""
    if ctx.tools.bmc is None:
        return Skipped(say("actions.power_no_bmc", node=ctx.node))
    try:
        power = ctx.tools.bmc.power(ctx.node)
    except BmcUnavailable as error:
        if (ctx.tools.now() - ctx.began_at).total_seconds() < ctx.step.timeout_s:
            return Again(said_by(error), error.after_s or LOOK_AGAIN_S)
        return _unread(error)
    except BmcError as error:
        return _unread(error)
    if not power.state:
        return Skipped(say("actions.power_not_said", node=ctx.node))
    if power.state not in {ON, OFF}:
        return Skipped(say("actions.power_odd", node=ctx.node, power=power.state))
    return Done(
        say("actions.power_is", node=ctx.node, power=power.state),
        {"passed": power.state == ON, "power": power.state},
    )


def _unread(error: BmcError) -> Skipped:
    return Skipped(say("actions.power_unread", error=said_by(error)))


POWER_CYCLE = Action(
    probe=_probe_power,
    do=_do_power,
    verify=_verify_power,
    only_keeps=partial(_only_keeps, booted=_booted_power),
)


_UNDER_WAY = frozenset({"REBOOT_ISSUED", "REBOOT_REQUESTED"})
#: Slurm appends "reboot timed out" to the reason of a node that did not boot within ResumeTimeout, 60 s by
#: default. The node is DOWN then, and healer's drain is gone: with ReturnToService=2 it is in service as soon
#: as it registers (seen on 22.05).
_TIMED_OUT = "timed out"


def boot_of(node: SlurmNode | None) -> dict[str, Any]:
    """The node's boot, for the log entry of a granted reboot."""
    if node is None:
        return {}
    return {"boot_at": node.boot_at.isoformat() if node.boot_at else None, "boot_id": node.boot_id}


def _booted_reboot(ctx: Context, node: SlurmNode) -> bool | None:
    """Whether the node booted since the step was granted; None if unknown.

    In the granted attempt there is no entry yet, and nothing was requested before. If the node had not
    registered by then, a later entry has its boot, from before anything was requested.
    """
    noted = (entry.data for entry in ctx.lines if entry.data.get("boot_at") or entry.data.get("boot_id"))
    granted = any(entry.event is StepEvent.started for entry in ctx.lines)
    before = next(noted, {} if granted else boot_of(node))
    if before.get("boot_id") and node.boot_id:
        return before["boot_id"] != node.boot_id
    if before.get("boot_at") is None:
        return None
    if node.boot_at is None:  # not registered since slurmctld was restarted (seen on 22.05)
        return False
    return node.boot_at - datetime.fromisoformat(before["boot_at"]) > BOOT_MOVES


def _given_up(ctx: Context, node: SlurmNode) -> bool:
    """Slurm no longer waits for the boot that this step asked for. The node may boot nevertheless."""
    return ctx.asked and is_ours(node.reason) and _TIMED_OUT in node.reason


def _needs_drain(ctx: Context, node: SlurmNode) -> bool:
    return bool(_booted_reboot(ctx, node)) or _given_up(ctx, node)


def _unregistered(node: SlurmNode, state: str) -> Unread:
    """slurmctld was restarted, and knows the node's boot only once the node has registered: that is logged
    before a reboot is requested."""
    if node.base == "UNKNOWN" or not any(boot_of(node).values()):
        return Unread(say("actions.reboot_unregistered", node=node.name, state=state), LOOK_AGAIN_S)
    return Unread(say("actions.reboot_registered", node=node.name, state=state), 0, data=boot_of(node))


def _probe_reboot(ctx: Context) -> Result | None:
    node = read_free_node(ctx)
    booted, state = _booted_reboot(ctx, node), "+".join(node.state)
    if booted and not _NOT_THERE.isdisjoint(node.state):  # Slurm still shows a reboot of one with fewer GPUs
        return Again(say("actions.power_booted", node=node.name, state=state), LOOK_AGAIN_S)
    if _UNDER_WAY.intersection(node.state):
        return Again(say("actions.reboot_runs", node=node.name, state=state), LOOK_AGAIN_S)
    if node.base == "UNKNOWN" or (booted is None and not ctx.asked):
        return _unregistered(node, state)
    if booted is None:
        return Failed(say("actions.reboot_unprovable", node=node.name), final=True)
    if not booted:
        if not ctx.asked:
            return None
        if not _given_up(ctx, node):
            return Failed(say("actions.reboot_lost", node=node.name, state=state))
        late = Again(say("actions.reboot_late", node=node.name, state=state), LOOK_AGAIN_S)
        return late if node.drain else None
    if not node.drain:
        return None  # DOWN alone may end by itself: drain it again, without asking the guards
    return Done(say("actions.power_booted", node=node.name, state=state), {"state": list(node.state)})


def _do_reboot(ctx: Context) -> Result | None:
    node = read_free_node(ctx)
    if _given_up(ctx, node):
        return _drain_again(ctx, node, node.reason)  # its reason says later that the boot may still come
    if _booted_reboot(ctx, node):
        return _drain_again(ctx, node)
    if not node.drain:
        return Failed(say("actions.not_drained", node=node.name), final=True)
    reason = node.reason if is_ours(node.reason) else reason_of(ctx)  # keep healer's present reason
    return cause(ctx, lambda: ctx.tools.scheduler.reboot(node.name, reason))


def _undo(ctx: Context) -> Result:
    node = read_free_node(ctx)
    if "REBOOT_REQUESTED" not in node.state:
        return Done(say("actions.reboot_none_waits", node=node.name))
    ctx.fence()
    ctx.tools.scheduler.cancel_reboot(node.name)
    return Done(say("actions.reboot_taken_back", node=node.name))


REBOOT = Action(
    probe=_probe_reboot,
    do=_do_reboot,
    verify=read_back(_probe_reboot, lambda ctx: say("actions.reboot_not_yet", node=ctx.node), LOOK_AGAIN_S),
    undo=_undo,
    only_keeps=partial(_only_keeps, booted=_needs_drain),
)
