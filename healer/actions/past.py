"""The check `history`: what healer keeps of a node, as evidence for a person. It judges nothing."""

from datetime import timedelta

from healer.actions.base import Action, Context, Done, Result
from healer.incidents.past import out_of_service, summed_up

DAYS = 14


def _nothing(_: Context) -> None:
    return None


def history(ctx: Context) -> Result:
    now = ctx.now()
    since = now - timedelta(days=int(ctx.step.input.get("days", DAYS)))
    found = ctx.history(since)
    text = summed_up(found, ctx.node, since, now, but=ctx.run.incident or "")
    data = {
        "evidence": True,
        "incidents": [one.id for one in found.incidents],
        "tickets": len(found.ticketed),
        "out_s": round(out_of_service(found, since, now).total_seconds()),
    }
    return Done(text=text, data=data)


HISTORY = Action(probe=_nothing, do=_nothing, verify=history, effect=False)
