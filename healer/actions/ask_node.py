"""Asks the node itself whether it is so what a relay says of it, in lines or in figures (law 2)."""

from healer.actions.base import Context, Done, Result, read_node, tried
from healer.incidents.second_look import (
    LookAnswer,
    asked_by,
    judge_figures,
    judge_look,
    opening_of,
    unknown_answer,
)
from healer.ports.node_exec import NodeError
from healer.text import said_by, say, to_stored

#: Of the step's time-out, what is left for the way there and back; the least that a call gets.
WAY_S, LEAST_S = 1.5, 1.0


def second_look(ctx: Context) -> Result:
    """Always passes: an answer that does not come is one, too. Asks once."""
    answer = _answer(ctx)
    text = say(f"actions.second_look_says_{answer.result}", node=ctx.node, text=answer.text)
    return Done(text, {"look": to_stored(answer)})


def _answer(ctx: Context) -> LookAnswer:
    claims = asked_by(ctx.incident, ctx.run.id) if ctx.incident is not None else ()
    if ctx.incident is None or not claims:
        return unknown_answer(say("actions.second_look_no_claim"))
    if ctx.tools.nodes is None:
        return unknown_answer(say("actions.second_look_no_way"))
    waited_s = (ctx.tools.now() - ctx.run.created_at).total_seconds()
    limit_s = max(LEAST_S, ctx.step.timeout_s - WAY_S - max(0.0, waited_s))
    claim = claims[0]
    try:
        if not claim.line:
            return judge_figures(ctx.incident.fault, _shown(ctx, limit_s), ctx.tools.now())
        seen = ctx.tools.nodes.second_look(ctx.node, opening_of(claim.line), claim.component.pci, limit_s)
    except NodeError as error:
        return unknown_answer(say("actions.second_look_no_answer", error=said_by(error)))
    return judge_look(claim, seen, ctx.tools.now())


def _shown(ctx: Context, limit_s: float) -> dict[str, bool]:
    """What nvidia-smi on the node shows now. Raises NodeError."""
    assert ctx.tools.nodes is not None
    memory, node = ctx.tools.nodes.memory_state(ctx.node, limit_s), tried(lambda: read_node(ctx))
    if node is None or node.gpus_shared:
        return memory.shown
    return memory.shown | {"missing": memory.gpus < node.gpus}
