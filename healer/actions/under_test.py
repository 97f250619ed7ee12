"""A node under test: in healer's MAINT reservation, so that its drain can be lifted without user jobs.

Slurm starts no job on a DRAIN or DOWN node, not even in a reservation. So the order is: reserve, read the
reservation back, resume, test inside. Passed: the reservation ends. Failed: drain first, then it ends.
"""

from datetime import timedelta

from healer.actions.base import (
    NOT_YET,
    Action,
    Again,
    Answered,
    Context,
    Done,
    Failed,
    Result,
    Skipped,
    cause,
    held_by,
    holder_of,
    last_drain_reason,
    read_back,
    read_slurm,
    reason_of,
)
from healer.model import Reservation, SlurmNode
from healer.model.slurm import our_reservation_in, reservation_name
from healer.ports.scheduling import SchedulerRefused, SchedulerUnavailable
from healer.text import said_by, say

#: Prefix of the names of healer's test jobs: `healer-test-<short id>`.
TEST_JOBS = "healer-test-"
#: Slurm's error numbers: no such reservation; a job that is unknown or has ended.
_NO_RESERVATION = 2053
JOB_OVER = frozenset({2017, 2021})
LOOK_AGAIN_S = 1.0
#: A job of this reservation may also use a node outside it: the partner in tests of two nodes.
_FLAGS = ("FLEX",)


def reservation(ctx: Context) -> Reservation | None:
    """healer's reservation on the node as Slurm shows it now. Raises SchedulerUnavailable."""
    return our_reservation_in(ctx.tools.scheduler.reserved(), ctx.node)


def end_tests(ctx: Context) -> Result | None:
    """Ends the tests and the reservation on the node, if any. The caller reads it back."""
    try:
        found = reservation(ctx)
        if found is None:
            return None
        jobs = ctx.tools.scheduler.snapshot().jobs
        for job in jobs.values():
            if job.reservation == found.name and job.name.startswith(TEST_JOBS) and job.end_at is None:
                _cancel(ctx, job.id)
        ctx.fence()
        ctx.tools.scheduler.unreserve(found.name)
    except SchedulerRefused as error:
        return None if error.code == _NO_RESERVATION else Failed(said_by(error))
    except SchedulerUnavailable:
        return None
    return None


def hand_over(ctx: Context) -> Skipped | None:
    """Ends the tests on a node that someone else has taken out meanwhile, and with them the run: the node is
    theirs (law 5). None: no one else holds it."""
    node = ctx.tools.scheduler.node(ctx.node)
    holder = holder_of(node, last_drain_reason(ctx.log))
    if holder is None or end_tests(ctx) is not None or reservation(ctx) is not None:
        return None
    ctx.claim.release_slot(say("actions.under_test_holds_it", holder=holder))
    return Skipped(say("actions.under_test_ended", held=held_by(holder, node).text), {"ends_run": True})


def _cancel(ctx: Context, job: str) -> None:
    ctx.fence()
    try:
        ctx.tools.scheduler.cancel(job)
    except SchedulerRefused as error:
        if error.code not in JOB_OVER:
            raise


# --- reserve ---


def _read(ctx: Context) -> tuple[SlurmNode, Reservation | None]:
    node, found = read_slurm(lambda: (ctx.tools.scheduler.node(ctx.node), reservation(ctx)))
    if holder := holder_of(node, last_drain_reason(ctx.log)):
        raise Answered(held_by(holder, node))
    if found is not None and not _as_made(ctx, found):
        raise Answered(Failed(say("actions.reserve_changed", name=found.name), final=True))
    if found is None and not node.held:
        raise Answered(Failed(say("actions.reserve_given_back", node=node.name), final=True))
    return node, found


def _as_made(ctx: Context, found: Reservation) -> bool:
    """The reservation is still as healer made it: without an end, which Slurm turns into a year."""
    lasts = found.until is None or found.until - ctx.tools.now() > timedelta(days=1)
    return found.maintenance and found.nodes == (ctx.node,) and lasts


def _probe(ctx: Context) -> Result | None:
    node, found = _read(ctx)
    reboots = not NOT_YET.isdisjoint(node.state)
    if found is None or (node.held and not reboots):
        return None
    if reboots or not node.may_get_jobs:  # a test wakes a sleeping node
        return Again(say("actions.reserve_state", node=node.name, state="+".join(node.state)), LOOK_AGAIN_S)
    text = say("actions.reserve_done", node=node.name, name=found.name)
    return Done(text, {"reservation": found.name, "state": list(node.state)})


def _free_name(ctx: Context) -> str:
    """The reservation's name: after the incident; or after the run, if another node of the incident (as for a
    switch) is under test."""
    name = reservation_name(ctx.run.incident or ctx.run.id)
    taken = read_slurm(ctx.tools.scheduler.reserved)
    return reservation_name(ctx.run.id) if name in taken else name


def _do(ctx: Context) -> Result | None:
    """Reserves the node, or lifts its drain once the reservation was read back."""
    node, found = _read(ctx)
    if found is not None:
        return cause(ctx, lambda: ctx.tools.scheduler.resume(ctx.node)) if node.held else None
    wanted = Reservation(
        name=_free_name(ctx),
        nodes=(ctx.node,),
        users=tuple(ctx.tools.users()),
        maintenance=True,
        flags=_FLAGS,
    )
    return cause(ctx, lambda: ctx.tools.scheduler.reserve(wanted))


def _undo(ctx: Context) -> Result:
    """Drains the node again, then ends the reservation. It stays until the drain is read back, so that no job
    starts in between."""
    node, found = _read(ctx)
    if found is None:
        return Done(say("actions.reserve_none"))
    if not node.drain:
        ctx.fence()
        try:
            ctx.tools.scheduler.drain(ctx.node, reason_of(ctx))
        except SchedulerRefused as error:
            return Failed(say("actions.reserve_stays", error=said_by(error)), final=error.no_right)
        except SchedulerUnavailable:
            pass  # unknown whether it happened: read it back
        return Again(say("actions.reserve_drains", node=node.name), LOOK_AGAIN_S)
    return end_tests(ctx) or Done(say("actions.reserve_ended"))


RESERVE = Action(
    probe=_probe,
    do=_do,
    verify=read_back(_probe, lambda ctx: say("actions.reserve_runs", node=ctx.node), LOOK_AGAIN_S),
    undo=_undo,
)
