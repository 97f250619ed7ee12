"""Diagnose: the node's own tests, by `input.depth` or `input.script` a batch job on it, and where the depth
has tests of two nodes a job with a partner. All must pass."""

from collections.abc import Callable

from healer.actions import nodes, pair_job, test_job
from healer.actions.base import Action, Again, Context, Done, Result


def _on_node(ctx: Context) -> bool:
    """The tests on the node itself: those that a job stands for are left out where nothing reaches nodes."""
    return ctx.nodes is not None or test_job.wanted(ctx) is None


def _passed(result: Result | None) -> bool:
    return isinstance(result, Done) and bool(result.data["passed"])


def _look(ctx: Context, on_node: Callable[[Context], Result | None]) -> Result | None:
    told = on_node(ctx) if _on_node(ctx) else None
    if test_job.wanted(ctx) is None or (_on_node(ctx) and not _passed(told)):
        return told
    alone = _alone(ctx)
    if alone is not None:
        return pair_job.look(ctx, alone)
    told = test_job.look(ctx)
    if not isinstance(told, Done) or not _passed(told) or not test_job.pair_of(ctx):
        return told
    # Slurm forgets a job that has ended after some minutes, and a partner may take longer.
    return Again(text=told.text, after_s=0, data={"alone": {"text": told.text, "data": told.data}})


def _alone(ctx: Context) -> Done | None:
    """How it did by itself, noted before a partner is looked for."""
    noted = next((one.data["alone"] for one in ctx.lines if one.data.get("alone")), None)
    return Done(text=noted["text"], data=noted["data"]) if noted is not None else None


def _probe(ctx: Context) -> Result | None:
    return _look(ctx, nodes.diagnosis_probe)


def _do(ctx: Context) -> Result | None:
    if _on_node(ctx) and not _passed(nodes.diagnosis_probe(ctx)):
        return nodes.start_diagnosis(ctx)
    return test_job.submit(ctx) if _alone(ctx) is None else pair_job.submit(ctx)


def _verify(ctx: Context) -> Result:
    return _look(ctx, nodes.diagnosed) or Again(
        text=f"The tests of {ctx.node} begin", after_s=nodes.LOOK_AGAIN_S
    )


DIAGNOSE = Action(probe=_probe, do=_do, verify=_verify)
