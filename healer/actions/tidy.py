"""Tidy: removes what healer left on a node that it does not hold: its note, its reservation for a node that
Slurm does not know, and its slot."""

from healer.actions.base import Action, Context, Done, Failed, Result, Skipped, cause, read_slurm
from healer.actions.drain import our_notes
from healer.actions.under_test import end_tests, reservation
from healer.model import Reservation, SlurmNode
from healer.model.slurm import is_ours
from healer.ports.scheduling import UnknownNode
from healer.text import say


def _read(ctx: Context) -> tuple[SlurmNode | None, Reservation | None]:
    """The node, None if Slurm does not know it, and healer's reservation on it."""

    def read() -> tuple[SlurmNode | None, Reservation | None]:
        kept = reservation(ctx)
        try:
            return ctx.tools.scheduler.node(ctx.node), kept
        except UnknownNode:
            return None, kept

    return read_slurm(read, 1.0)


def _probe(ctx: Context) -> Result | None:
    node, kept = _read(ctx)
    if node is not None and node.held and is_ours(node.reason):
        return Skipped(say("actions.tidy_held", node=node.name))
    if node is not None and kept is not None:
        return Skipped(say("actions.tidy_tested", reservation=kept.name, node=node.name))
    if kept is None and (node is None or not our_notes(node)):
        ctx.claim.free_left_slot()
        return Done(say("actions.tidy_done", node=ctx.node))
    return None


def _do(ctx: Context) -> Result | None:
    node, kept = _read(ctx)
    if node is None:
        return end_tests(ctx) if kept is not None else None
    texts = dict.fromkeys(our_notes(node), "")
    return cause(ctx, lambda: ctx.tools.scheduler.annotate(node.name, **texts)) if texts else None


def _verify(ctx: Context) -> Result:
    return _probe(ctx) or Failed(say("actions.tidy_stays", node=ctx.node))


TIDY = Action(probe=_probe, do=_do, verify=_verify)
