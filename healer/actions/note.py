"""The note beside our drain: in the node's `extra`, or in `comment` where Slurm has no such field.

Only where the field is empty or ours already. Nobody waits for it and nothing fails by it: it is told to
other programs, and no proof. What could not be taken away `healer reconcile` shows.
"""

from healer.actions.reason import is_ours
from healer.model import Run, SlurmNode
from healer.model.notes import is_our_note, note_of
from healer.ports.slurm import NotAvailable, Scheduler, SchedulerError


def write(scheduler: Scheduler, run: Run, state: str) -> str | None:
    """Says how the run on this node stands, where a drain of ours does. Tells why it could not."""
    try:
        node = scheduler.node(run.node or "")
        text = note_of(run, state, node)
        if not (node.held and is_ours(node.reason)) or text in {node.extra, node.comment}:
            return None
        try:
            if not node.extra or is_our_note(node.extra):
                scheduler.annotate(node.name, extra=text)
        except NotAvailable:
            if not node.comment or is_our_note(node.comment):
                scheduler.annotate(node.name, comment=text)
    except SchedulerError as error:
        return str(error)
    return None


def clear(scheduler: Scheduler, node: SlurmNode) -> str | None:
    """Takes our note away, whichever field holds it. Tells why it could not."""
    ours = {name for name in ("comment", "extra") if is_our_note(getattr(node, name))}
    try:
        if ours:
            scheduler.annotate(node.name, **dict.fromkeys(ours, ""))
    except SchedulerError as error:
        return str(error)
    return None
