"""A drain that is somebody else's: healer waits for its end and never lifts it (law 5)."""

from datetime import timedelta

from healer.actions.base import Action, Again, Context, Done, Result
from healer.model.reasons import is_ours, slurm_kind

LOOK_AGAIN_S = 30.0


def _nothing(_: Context) -> None:
    return None


def lifted(ctx: Context) -> Result:
    """The drain is over, or it is healer's or Slurm's own by now: then the run ends. `input.lasts_s`: so long
    it is waited for before the owner is asked again; without it for good.

    An owner who gives a new reason has answered: the time counts from there. Who took the incident on is not
    asked again.
    """
    # The stored picture does: hundreds of drains, each for weeks, are no reason to ask Slurm all the time.
    shown = ctx.picture()
    if shown is None:
        return Again(text="There is no picture of Slurm yet", after_s=LOOK_AGAIN_S)
    node = shown.nodes.get(ctx.node)
    if node is None:
        return Done(text=f"Slurm no longer knows {ctx.node}", data={"ends_run": True})
    if not node.held:
        return Done(text=f"{node.name} is not held any more", data={"ends_run": True})
    if is_ours(node.reason) or slurm_kind(node.reason):
        return Done(text=f"Nobody else holds {node.name} now: {node.reason}", data={"ends_run": True})
    taken = ctx.incident.acknowledged_by if ctx.incident is not None else None
    if taken is not None:
        return Again(text=f"{taken} has it: nobody is asked again", after_s=LOOK_AGAIN_S)
    lasts_s = ctx.step.input.get("lasts_s")
    text = f"{node.reason_user or 'Somebody'} holds {node.name} ({node.reason or 'no reason given'})"
    if lasts_s is None:
        return Again(text=text, after_s=LOOK_AGAIN_S)
    since = max(ctx.began_at, node.reason_at) if node.reason_at is not None else ctx.began_at
    until = since + timedelta(seconds=int(lasts_s))
    left_s = (until - ctx.now()).total_seconds()
    if left_s <= 0:
        return Done(text=f"{text}, with no answer since {since:%Y-%m-%d %H:%M} UTC")
    return Again(text=text, after_s=min(LOOK_AGAIN_S, left_s))


LIFTED = Action(probe=_nothing, do=_nothing, verify=lifted, effect=False)
