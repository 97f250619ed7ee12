"""Reset of a GPU, or of all of a node: began once under its key, read back, and told whether it worked."""

from healer.actions.base import Action, Again, Context, Done, Failed, Result
from healer.actions.nodes import LOOK_AGAIN_S, no_way
from healer.ports import NodeError, NodeExec, NodeUnavailable

ALL = "all"


def _which(ctx: Context) -> str:
    """The incident's own GPU by its address; all of them where that is not known, or where the step says so.
    The node is empty, so more than one GPU costs nobody anything."""
    pci = ctx.incident.root.pci if ctx.incident is not None else None
    if ctx.step.input.get("which") == ALL or not pci:
        return ALL
    return pci if "." in pci else f"{pci}.0"


def _probe(ctx: Context) -> Result | None:
    if ctx.nodes is None:
        which = _which(ctx)
        return no_way(ctx, "nvidia-smi --gpu-reset" + ("" if which == ALL else f" -i {which}"))
    try:
        return _result(ctx, ctx.nodes)
    except NodeUnavailable as error:
        # Unknown whether it runs: to begin it again under the same key is nothing.
        return Again(text=f"{ctx.node} did not answer: {error}", after_s=LOOK_AGAIN_S) if ctx.asked else None
    except NodeError:
        return None  # never begun, or cut short: it begins again


def _do(ctx: Context) -> Result | None:
    assert ctx.nodes is not None  # the probe has looked
    ctx.fence()
    try:
        ctx.nodes.start_reset(ctx.node, ctx.key, _which(ctx))
    except NodeUnavailable as error:
        return None if error.sent else Again(text=str(error), after_s=LOOK_AGAIN_S)
    except NodeError as error:
        return Failed(text=str(error))
    return None


def _verify(ctx: Context) -> Result:
    assert ctx.nodes is not None
    try:
        return _result(ctx, ctx.nodes)
    except NodeUnavailable as error:
        return Again(text=f"{ctx.node} did not answer: {error}", after_s=LOOK_AGAIN_S)
    except NodeError as error:
        return Failed(text=str(error))


def _result(ctx: Context, nodes: NodeExec) -> Result:
    told = nodes.reset(ctx.node, ctx.key)
    if told is None:
        return Again(text=f"A GPU of {ctx.node} is being reset", after_s=LOOK_AGAIN_S)
    return Done(text=f"{ctx.node}: {told.text}", data={"passed": told.passed, "failed": list(told.failed)})


RESET_GPU = Action(probe=_probe, do=_do, verify=_verify)
