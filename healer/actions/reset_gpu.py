"""Reset of a GPU, or of all of a node: began once under its key, read back, and told whether it worked."""

from healer.actions import keyed
from healer.actions.base import Action, Again, Context, Done, Result
from healer.actions.keyed import LOOK_AGAIN_S
from healer.ports.node_exec import NodeExec

ALL = "all"


def _which(ctx: Context) -> str:
    """The incident's own GPU by its address; all of them where that is not known, or where the step says so.
    The node is empty, so more than one GPU costs nobody anything."""
    pci = ctx.incident.root.pci if ctx.incident is not None else None
    if ctx.step.input.get("which") == ALL or not pci:
        return ALL
    return pci if "." in pci else f"{pci}.0"


def _by_hand(ctx: Context) -> str:
    which = _which(ctx)
    return "nvidia-smi --gpu-reset" + ("" if which == ALL else f" -i {which}")


def _probe(ctx: Context) -> Result | None:
    return keyed.probe(ctx, _result, _by_hand(ctx))


def _do(ctx: Context) -> Result | None:
    return keyed.begin(ctx, lambda nodes: nodes.start_reset(ctx.node, ctx.key, _which(ctx)))


def _verify(ctx: Context) -> Result:
    return keyed.ended(ctx, _result, _by_hand(ctx))


def _result(ctx: Context, nodes: NodeExec) -> Result:
    told = nodes.reset(ctx.node, ctx.key)
    if told is None:
        return Again(text=f"A GPU of {ctx.node} is being reset", after_s=LOOK_AGAIN_S)
    return Done(text=f"{ctx.node}: {told.text}", data={"passed": told.passed, "failed": list(told.failed)})


RESET_GPU = Action(probe=_probe, do=_do, verify=_verify)
