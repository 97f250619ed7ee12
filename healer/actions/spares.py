"""A spare takes the place of a lost node: one change of the site's reservation, which swaps the two.

The lost node is drained and in the reservation from then on, so the number of its nodes never changes,
nothing has to be given back, and no record of ours can be lost: repaired and returned, it is a spare itself.
"""

import msgspec

from healer.actions.base import Action, Again, Context, Done, Failed, Result
from healer.actions.look import look
from healer.decisions.spares import choose, free_spares
from healer.model import Reservation, SlurmJob, SlurmNode, SlurmSnapshot
from healer.ports.slurm import NotAvailable, SchedulerRefused


def hand_over(ctx: Context, job: SlurmJob) -> Again | None:
    """One spare for the node that this run took out, with the first job that is put back; None: no need.

    Refused, not available or none left: that is said, and the job waits for its turn like any other.
    """
    kept = ctx.guards.spares
    # Only a run that took a node out has lost one; whoever requeues a single job has not.
    if kept is None or ctx.item is None or any("spare" in one.data for one in ctx.log):
        return None
    seen = _with_places(ctx.scheduler.snapshot(), ctx.picture())
    lost, held = seen.nodes.get(ctx.node), seen.reservations.get(kept.reservation)
    if held is None or lost is None:
        return _none(f"No spare: Slurm shows no reservation {kept.reservation}")
    if lost.name in held.nodes:
        return _read_back(ctx, held)
    bad = ctx.known_bad()
    chosen = choose(lost, job, (one for one in free_spares(seen, ctx.guards) if one.name not in bad))
    if chosen is None:
        return _none(f"No spare is left in {kept.reservation} that fits {lost.name}")
    if _chosen(ctx) != chosen.name:
        # Noted before Slurm is asked: a change whose answer never came is known as ours when it is read back.
        text = f"{chosen.name} of the reservation {kept.reservation} is to take the place of {lost.name}"
        return Again(text=text, after_s=0, data={"handing": chosen.name})
    nodes = sorted({*held.nodes, lost.name} - {chosen.name})
    ctx.fence()
    try:
        ctx.scheduler.change_reservation(kept.reservation, nodes)
    except (NotAvailable, SchedulerRefused) as error:
        return _none(f"No spare: {chosen.name} could not be taken out of {kept.reservation} ({error})")
    text = f"{chosen.name} leaves the reservation {kept.reservation} for {lost.name}"
    return Again(text=text, after_s=0.25)


def _chosen(ctx: Context) -> str:
    """The spare that this run noted last; empty where it noted none."""
    return next((one.data["handing"] for one in reversed(ctx.log) if one.data.get("handing")), "")


def _read_back(ctx: Context, held: Reservation) -> Again:
    """The lost node is among the spares: our change is done, or it was one of them before."""
    handed = _chosen(ctx)
    if not handed or handed in held.nodes:
        return _none(f"{ctx.node} was a spare of {held.name} itself: there is no node to make up for")
    text = f"{handed} of the reservation {held.name} takes the place of {ctx.node}"
    return Again(text=text, after_s=0, data={"spare": handed, "reservation": held.name})


def _none(text: str) -> Again:
    return Again(text=text, after_s=0, data={"spare": ""})


def _with_places(fresh: SlurmSnapshot, known: SlurmSnapshot | None) -> SlurmSnapshot:
    """Where nodes stand is in the stored picture: the site's topology file is part of it."""
    if known is None:
        return fresh
    nodes = {name: _placed(node, known.nodes.get(name)) for name, node in fresh.nodes.items()}
    return msgspec.structs.replace(fresh, nodes=nodes)


def _placed(node: SlurmNode, known: SlurmNode | None) -> SlurmNode:
    if known is None:
        return node
    return msgspec.structs.replace(node, switch=known.switch, switches=known.switches)


# --- the check `spare_ready` ---


def spare_ready(ctx: Context) -> Result:
    """A spare is free that fits the node for the job on it. None is taken yet: others may be first."""
    kept = ctx.guards.spares
    if kept is None:
        return Failed(text="No spares are named in rules/guards.yaml", final=True)
    read = look(
        lambda: (_with_places(ctx.scheduler.snapshot(), ctx.picture()), ctx.scheduler.jobs_on(ctx.node))
    )
    if not isinstance(read, tuple):
        return read
    seen, jobs = read
    lost, held = seen.nodes.get(ctx.node), seen.reservations.get(kept.reservation)
    if held is None or lost is None:
        what = f"no reservation {kept.reservation}" if held is None else f"no node {ctx.node}"
        return Failed(text=f"No spare: Slurm shows {what}", final=True)
    if lost.name in held.nodes:
        return Failed(text=f"{lost.name} is a spare of {held.name} itself", final=True)
    alive = [job for job in jobs if job.active and "COMPLETING" not in job.flags]
    if not alive:
        text = f"No job runs on {lost.name}: there is nothing to move to a spare"
        return Done(text=text, data={"ends_run": True})
    bad = ctx.known_bad()
    chosen = choose(lost, alive[0], (one for one in free_spares(seen, ctx.guards) if one.name not in bad))
    if chosen is None:
        return Failed(text=f"No spare is free in {held.name} that fits {lost.name}", final=True)
    text = f"{chosen.name} of the reservation {held.name} is free for {lost.name} (job {alive[0].title})"
    return Done(text=text, data={"free": chosen.name})


def _nothing(_: Context) -> None:
    return None


SPARE_READY = Action(probe=_nothing, do=_nothing, verify=spare_ready, effect=False)
