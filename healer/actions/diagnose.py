"""Diagnose: the node's own tests, and by `input.depth` or `input.script` a batch job on it. All must pass."""

from collections.abc import Callable

from healer.actions import nodes, test_job
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
    return test_job.look(ctx)


def _probe(ctx: Context) -> Result | None:
    return _look(ctx, nodes.diagnosis_probe)


def _do(ctx: Context) -> Result | None:
    if _on_node(ctx) and not _passed(nodes.diagnosis_probe(ctx)):
        return nodes.start_diagnosis(ctx)
    return test_job.submit(ctx)


def _verify(ctx: Context) -> Result:
    return _look(ctx, nodes.diagnosed) or Again(
        text=f"The tests of {ctx.node} begin", after_s=nodes.LOOK_AGAIN_S
    )


DIAGNOSE = Action(probe=_probe, do=_do, verify=_verify)
