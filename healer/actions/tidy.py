"""Tidy: takes away what healer left in Slurm on a node that it does not hold: its note, and its reservation
of a node that Slurm does not know."""

from healer.actions.base import (
    Action,
    Again,
    Context,
    Done,
    Failed,
    Result,
    Skipped,
    cause,
    is_ours,
    slurm_silent,
)
from healer.actions.drain import our_notes
from healer.actions.under_test import end_tests, reservation
from healer.model import Reservation, SlurmNode
from healer.ports.scheduling import SchedulerUnavailable, UnknownNode
from healer.text import say


def _read(ctx: Context) -> tuple[SlurmNode | None, Reservation | None] | Again:
    try:
        kept = reservation(ctx)
        try:
            return ctx.tools.scheduler.node(ctx.node), kept
        except UnknownNode:
            return None, kept
    except SchedulerUnavailable as error:
        return slurm_silent(error, 1.0)


def _probe(ctx: Context) -> Result | None:
    read = _read(ctx)
    if isinstance(read, Again):
        return read
    node, kept = read
    if node is not None and node.held and is_ours(node.reason):
        return Skipped(text=say("actions.tidy_held", node=node.name))
    if node is not None and kept is not None:
        return Skipped(text=say("actions.tidy_tested", reservation=kept.name, node=node.name))
    if kept is None and (node is None or not our_notes(node)):
        return Done(text=say("actions.tidy_done", node=ctx.node))
    return None


def _do(ctx: Context) -> Result | None:
    read = _read(ctx)
    if isinstance(read, Again):
        return read
    node, kept = read
    if node is None:
        return end_tests(ctx) if kept is not None else None
    texts = dict.fromkeys(our_notes(node), "")
    return cause(ctx, lambda: ctx.tools.scheduler.annotate(node.name, **texts)) if texts else None


def _verify(ctx: Context) -> Result:
    return _probe(ctx) or Failed(text=say("actions.tidy_stays", node=ctx.node))


TIDY = Action(probe=_probe, do=_do, verify=_verify)
