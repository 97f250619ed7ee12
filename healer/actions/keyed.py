"""Work on a node that is begun once under the step's key and looked at until it ends: tests, a reset, logs.

To begin it again under the same key is nothing, so a worker that died behind the begin loses nothing.
"""

from collections.abc import Callable

from healer.actions.base import Again, Context, Failed, Result
from healer.ports.node_exec import NodeError, NodeExec, NodeUnavailable

LOOK_AGAIN_S = 2.0

#: What became of it, by the node's own word. NodeError where it was never begun, or was cut short.
Look = Callable[[Context, NodeExec], Result]


def no_way(ctx: Context, command: str) -> Failed:
    """Handed to a person, with what to type there."""
    text = (
        f"healer has no way to work on {ctx.node} itself: none is configured, so nothing was done there. "
        f"By hand, as root on {ctx.node}: `{command}`."
    )
    return Failed(text=text, final=True)


def probe(ctx: Context, look: Look, by_hand: str, after_s: float = LOOK_AGAIN_S) -> Result | None:
    """What stands already; None: it is to be begun."""
    if ctx.nodes is None:
        return no_way(ctx, by_hand)
    try:
        return look(ctx, ctx.nodes)
    except NodeUnavailable as error:
        # Unknown whether it runs: to begin it again under the same key is nothing.
        return Again(text=f"{ctx.node} did not answer: {error}", after_s=after_s) if ctx.asked else None
    except NodeError:
        return None


def begin(ctx: Context, start: Callable[[NodeExec], None], after_s: float = LOOK_AGAIN_S) -> Result | None:
    assert ctx.nodes is not None  # the probe has looked
    ctx.fence()
    try:
        start(ctx.nodes)
    except NodeUnavailable as error:
        # Unknown whether it began: looked for. Surely not (other work runs there): a little later.
        return None if error.sent else Again(text=str(error), after_s=after_s)
    except NodeError as error:
        return Failed(text=str(error))
    return None


def ended(ctx: Context, look: Look, by_hand: str, after_s: float = LOOK_AGAIN_S) -> Result:
    """How it ended, or that it goes on."""
    if ctx.nodes is None:
        return no_way(ctx, by_hand)
    try:
        return look(ctx, ctx.nodes)
    except NodeUnavailable as error:
        return Again(text=f"{ctx.node} did not answer: {error}", after_s=after_s)
    except NodeError as error:
        return Failed(text=str(error))
