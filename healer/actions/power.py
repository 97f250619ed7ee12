"""Power of a node by its BMC: a power cycle, and a look at the power.

A BMC knows no key and no fence: the same reset twice is two. So a line of the log stands before each reset,
and within one key a second one goes out only where the first surely never came: the BMC was not reached, or
said that it is busy. Whoever takes up a run that died behind such a line only looks, and asks a person where
no boot follows. `On` alone may be said twice: a node that is on stays on.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from healer.actions.base import (
    Action,
    Again,
    Context,
    Done,
    Failed,
    Result,
    Skipped,
    cause,
    is_ours,
    read_free_node,
    reason_of,
)
from healer.model import LogEntry, Power, ResetKind, SlurmNode, StepEvent
from healer.model.node import OFF, ON
from healer.ports.node_exec import BmcError, BmcUnavailable

LOOK_AGAIN_S = 5.0
#: A node that is still off so long after `On` is told once more.
ON_AGAIN = timedelta(minutes=1)


def _no_bmc(ctx: Context) -> str:
    return f"healer knows no BMC of {ctx.node}: HEALER_BMC_URL is not set."


# --- power_cycle ---


def _resets(lines: list[LogEntry]) -> list[LogEntry]:
    """The lines that stand before resets which went out, or may have.

    A line of this very claim with nothing behind it is no reset yet: it is sent next. Where the same claim
    wrote something else behind it (a guard held it, Slurm did not answer, the BMC was busy), none went out.
    """
    places = [index for index, one in enumerate(lines) if "asks" in one.data]
    return [lines[index] for index in places if not _surely_not_sent(lines[index : index + 2])]


def _asked(ctx: Context) -> LogEntry | None:
    """The last of them since a person let the step go on."""
    return next(reversed(_resets(ctx.lines)), None)


def _since(ctx: Context) -> datetime | None:
    """From when on a boot may come: the step's time counts from there."""
    return next((one.at for one in _resets(ctx.lines)), None)


def _surely_not_sent(lines: list[LogEntry]) -> bool:
    """The line that asks, and the one behind it."""
    if len(lines) < 2 or lines[1].epoch != lines[0].epoch:
        return False
    return lines[1].event in {StepEvent.waiting, StepEvent.held} and lines[1].data.get("sent") is not True


def _is_next(ctx: Context, asked: LogEntry) -> bool:
    """Written in this claim, as the last line: no other worker can have sent anything after it."""
    return ctx.lines[-1] is asked and asked.epoch == ctx.run.epoch


def _booted_power(ctx: Context, node: SlurmNode) -> bool:
    """Surely booted since a reset went out, or may have: also one before a person's *Try again*."""
    asked = next(reversed(_resets([one for one in ctx.log if one.step == ctx.part])), None)
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
        return Failed(text=f"{_no_bmc(ctx)} Power-cycle it by hand, then *validate* it.", final=True)
    node = read_free_node(ctx, LOOK_AGAIN_S)
    if not isinstance(node, SlurmNode):
        return node
    if not _booted_power(ctx, node):
        return None
    state = "+".join(node.state)
    if "NOT_RESPONDING" in node.state or "INVALID_REG" in node.state:
        return _wait(ctx, f"{node.name} has booted and is {state}")
    if not node.drain:
        return None  # it is drained again: DOWN alone may end by itself
    power = _power(ctx)
    if not isinstance(power, Power):
        return power
    if power.state != ON:
        return _wait(ctx, f"{node.name} has booted; its power is {power.state or 'unknown'}")
    text = f"{node.name} was power-cycled, has booted and is {state}"
    return Done(text=text, data={"state": list(node.state), "power": power.state})


def _wait(ctx: Context, text: str) -> Again:
    return Again(text=text, after_s=LOOK_AGAIN_S, since=_since(ctx))


def _power(ctx: Context) -> Power | Result:
    assert ctx.tools.bmc is not None  # the probe has looked
    try:
        return ctx.tools.bmc.power(ctx.node)
    except BmcUnavailable as error:
        return Again(text=str(error), after_s=error.after_s or LOOK_AGAIN_S, since=_since(ctx))
    except BmcError as error:
        return Failed(text=str(error), final=True)


def _only_keeps(ctx: Context, booted: Callable[[Context, SlurmNode], bool | None]) -> bool:
    """It has booted, and is only to be drained again."""
    node = read_free_node(ctx, LOOK_AGAIN_S)
    return isinstance(node, SlurmNode) and bool(booted(ctx, node)) and not node.drain


def _do_power(ctx: Context) -> Result | None:
    node = read_free_node(ctx, LOOK_AGAIN_S)
    if not isinstance(node, SlurmNode):
        return node
    if _booted_power(ctx, node):
        return None if node.drain else _drain_again(ctx, node)
    if not node.drain:
        return Failed(text=f"{node.name} is not drained any more", final=True)
    asked = _asked(ctx)
    if asked is not None and _is_next(ctx, asked):
        return _send(ctx, asked)
    power = _power(ctx)
    if not isinstance(power, Power):
        return power
    kind = _next_kind(ctx, asked, power)
    if kind is None:
        return _goes_on(ctx, asked, power) if asked is not None else _cannot(ctx, power)
    data: dict[str, Any] = {"asks": str(kind), "target": power.target, "power": power.state, **boot_of(node)}
    text = f"The BMC of {node.name} is asked for {kind} (its power is {power.state or 'unknown'})"
    return Again(text=text, after_s=0, data=data)


def _next_kind(ctx: Context, asked: LogEntry | None, power: Power) -> ResetKind | None:
    """What is asked for next; None: nothing. A BMC that lists no kinds is asked for the usual one."""
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


def _cannot(ctx: Context, power: Power) -> Failed:
    takes = f"neither PowerCycle nor ForceOff with On ({', '.join(power.kinds)})"
    return Failed(text=f"The BMC of {ctx.node} takes {takes}: power-cycle it by hand.", final=True)


def _send(ctx: Context, asked: LogEntry) -> Result:
    assert ctx.tools.bmc is not None
    kind = ResetKind(asked.data["asks"])
    ctx.fence()
    try:
        task = ctx.tools.bmc.reset(ctx.node, str(asked.data["target"]), kind)
        data: dict[str, Any] = {"sent": True, "task": task}
        text = f"The BMC of {ctx.node} took {kind}"
    except BmcUnavailable as error:
        data = {"sent": error.sent}
        if not error.sent:
            text = f"{error} Nothing was switched; it is asked again."
            return Again(text=text, after_s=error.after_s or LOOK_AGAIN_S, data=data)
        text = f"{error} It may have come through: no second {kind} is sent, a boot is waited for."
    except BmcError as error:
        return Failed(text=str(error), final=True)
    return Again(text=text, after_s=LOOK_AGAIN_S, since=_since(ctx), data=data)


def _goes_on(ctx: Context, asked: LogEntry, power: Power) -> Result:
    """A reset went out, or may have: its boot is waited for."""
    assert ctx.tools.bmc is not None
    task = next((one.data["task"] for one in reversed(ctx.lines) if one.data.get("task")), None)
    if task is not None:
        try:
            if why := ctx.tools.bmc.task_failed(ctx.node, task):
                return Failed(text=f"The BMC of {ctx.node} gave {asked.data['asks']} up: {why}", final=True)
        except BmcError:
            pass  # its boot tells
    since = f"{ctx.node} has not booted since {asked.data['asks']} was asked for"
    return _wait(ctx, f"{since}; its power is {power.state or 'unknown'}")


def _drain_again(ctx: Context, node: SlurmNode) -> Result | None:
    return cause(ctx, lambda: ctx.tools.scheduler.drain(node.name, reason_of(ctx)))


def _verify_power(ctx: Context) -> Result:
    return _probe_power(ctx) or _wait(ctx, f"{ctx.node} has not booted yet")


# --- power_state ---


def power_state(ctx: Context) -> Result:
    """Yes: on. No: off. Without a BMC, or an answer of it within `timeout_s`, it is not known: skipped."""
    if ctx.tools.bmc is None:
        return Skipped(text=_no_bmc(ctx))
    try:
        power = ctx.tools.bmc.power(ctx.node)
    except BmcUnavailable as error:
        if (ctx.tools.now() - ctx.began_at).total_seconds() < ctx.step.timeout_s:
            return Again(text=str(error), after_s=error.after_s or LOOK_AGAIN_S)
        return Skipped(text=f"{error} Its power is unknown.")
    except BmcError as error:
        return Skipped(text=f"{error} Its power is unknown.")
    if power.state not in {ON, OFF}:
        return Skipped(text=f"The BMC of {ctx.node} says {power.state or 'nothing'} of its power")
    return Done(
        text=f"By its BMC the power of {ctx.node} is {power.state}",
        data={"passed": power.state == ON, "power": power.state},
    )


POWER_CYCLE = Action(
    probe=_probe_power,
    do=_do_power,
    verify=_verify_power,
    only_keeps=partial(_only_keeps, booted=_booted_power),
)
POWER_STATE = Action(verify=power_state, effect=False)


_UNDER_WAY = frozenset({"REBOOT_ISSUED", "REBOOT_REQUESTED"})
#: A boot time moves by a second when slurmd registers again; a boot takes longer.
BOOT_MOVES = timedelta(seconds=5)


def boot_of(node: SlurmNode | None) -> dict[str, Any]:
    """What the line that grants a reboot keeps of the node."""
    if node is None:
        return {}
    return {"boot_at": node.boot_at.isoformat() if node.boot_at else None, "boot_id": node.boot_id}


def _booted_reboot(ctx: Context, node: SlurmNode) -> bool | None:
    """Whether it booted since the step was granted; None where that cannot be known.

    Granted in this very attempt, the line does not stand in the log yet: nothing was asked for before.
    """
    granted = next((one for one in ctx.lines if one.event is StepEvent.started), None)
    before = granted.data if granted is not None else boot_of(node)
    if before.get("boot_id") and node.boot_id:
        return before["boot_id"] != node.boot_id
    if before.get("boot_at") is None or node.boot_at is None:
        return None
    return node.boot_at - datetime.fromisoformat(before["boot_at"]) > BOOT_MOVES


def _probe_reboot(ctx: Context) -> Result | None:
    node = read_free_node(ctx, LOOK_AGAIN_S)
    if not isinstance(node, SlurmNode):
        return node
    booted, state = _booted_reboot(ctx, node), "+".join(node.state)
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


def _do_reboot(ctx: Context) -> Result | None:
    node = read_free_node(ctx, LOOK_AGAIN_S)
    if not isinstance(node, SlurmNode):
        return node
    if _booted_reboot(ctx, node):
        return _drain_again(ctx, node)
    if not node.drain:
        return Failed(text=f"{node.name} is not drained any more", final=True)
    reason = node.reason if is_ours(node.reason) else reason_of(ctx)  # ours stays as it is
    return cause(ctx, lambda: ctx.tools.scheduler.reboot(node.name, reason))


def _verify_reboot(ctx: Context) -> Result:
    return _probe_reboot(ctx) or Again(text=f"{ctx.node} does not reboot yet", after_s=LOOK_AGAIN_S)


def _undo(ctx: Context) -> Result:
    node = read_free_node(ctx, LOOK_AGAIN_S)
    if not isinstance(node, SlurmNode):
        return node
    if "REBOOT_REQUESTED" not in node.state:
        return Done(text=f"No reboot of {node.name} waits")
    ctx.fence()
    ctx.tools.scheduler.cancel_reboot(node.name)
    return Done(text=f"The reboot of {node.name} was taken back")


REBOOT = Action(
    probe=_probe_reboot,
    do=_do_reboot,
    verify=_verify_reboot,
    undo=_undo,
    only_keeps=partial(_only_keeps, booted=_booted_reboot),
)
