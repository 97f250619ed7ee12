"""Spares: a node of the site's reservation replaces one that a job has lost. One change swaps the two.

From then on the lost node is in the reservation. So the number of its nodes never changes, nothing must be
given back, and the repaired node is a spare.
"""

from collections.abc import Iterable, Sequence

import msgspec

from healer.actions.base import Again, Context, Done, Failed, Result, first_logged, holder_of, read_slurm
from healer.decisions.sweeps import free_spares, nearest_spare
from healer.model import Reservation, SlurmJob, SlurmNode, SlurmSnapshot, Spares
from healer.ports.scheduling import NotAvailable, SchedulerRefused
from healer.text import Said, said_by, say


def hand_over(ctx: Context, job: SlurmJob, node: str) -> Again | None:
    """Hands over one spare for each lost node, with the first job that is requeued; None: no need.

    A job that lost several nodes at once is requeued by the run of one of them, `node`, which hands over the
    spares for all: the other runs find nothing left to requeue. If that is refused, not supported, or no
    spare is left, the job waits in the queue like any other. Runs take turns: each change names all nodes of
    the reservation, so of two concurrent changes the later would undo the other.
    """
    kept = ctx.tools.guards.spares
    if kept is None or _answered(ctx, node) >= {node, *_places(ctx)}:
        return None
    with ctx.claim.alone(f"spares {kept.reservation}") as is_alone:
        if not is_alone:
            return Again(say("actions.spare_in_turn", name=kept.reservation), 0.25)
        seen = _with_places(ctx.tools.scheduler.snapshot(), ctx.tools.picture())
        name = _next_lost(ctx, seen, kept, node)
        return _hand_over(ctx, seen, kept, job, name) if name is not None else None


def places_of(job: SlurmJob, parts: Iterable[SlurmJob]) -> list[str]:
    """The nodes of the job, which Slurm forgets with its requeue. `parts`: may be components of it."""
    return sorted({node for part in (job, *parts) if part.leader == job.leader for node in part.nodes})


def _places(ctx: Context) -> Sequence[str]:
    """The nodes of the job's last life, as listed before the requeue."""
    listed = first_logged(reversed(ctx.log), "places") or {}
    return listed.get(ctx.item, ())


def _answered(ctx: Context, node: str) -> set[str]:
    """The lost nodes whose spare is settled; an entry of an older release is about `node`."""
    return {entry.data.get("lost", node) for entry in ctx.log if "spare" in entry.data}


def _next_lost(ctx: Context, seen: SlurmSnapshot, kept: Spares, node: str) -> str | None:
    """The run's own node first, then the others that healer or Slurm has taken out meanwhile."""
    left = {node, *_places(ctx)} - _answered(ctx, node)
    if node in left:
        return node
    return next((name for name in sorted(left) if _is_lost_too(ctx, seen, kept, name)), None)


def _is_lost_too(ctx: Context, seen: SlurmSnapshot, kept: Spares, name: str) -> bool:
    shown, held = seen.nodes.get(name), seen.reservations.get(kept.reservation)
    if shown is None or held is None or not shown.held or holder_of(shown) is not None:
        return False
    return name not in held.nodes or _chosen(ctx, name) != ""


def _hand_over(ctx: Context, seen: SlurmSnapshot, kept: Spares, job: SlurmJob, node: str) -> Again:
    lost, held = seen.nodes.get(node), seen.reservations.get(kept.reservation)
    if held is None or lost is None:
        return _no_spare(node, say("actions.spare_no_reservation", name=kept.reservation))
    if lost.name in held.nodes:
        return _read_back(ctx, held, node)
    if lost.in_service:  # a person has resumed it; among the spares it would be the next one
        return _no_spare(node, say("actions.spare_not_lost", node=lost.name))
    chosen = _nearest(ctx, seen, lost, job)
    if chosen is None:
        return _no_spare(node, say("actions.spare_none_left", name=kept.reservation, node=lost.name))
    if _chosen(ctx, node) != chosen.name:
        # Logged before the change, so that it is recognised as ours when it is read back even if Slurm did
        # not answer.
        text = say("actions.spare_chosen", spare=chosen.name, name=kept.reservation, node=lost.name)
        return Again(text, 0, data={"handing": chosen.name, "lost": node})
    nodes = sorted({*held.nodes, lost.name} - {chosen.name})
    ctx.fence()
    try:
        ctx.tools.scheduler.change_reservation(kept.reservation, nodes)
    except (NotAvailable, SchedulerRefused) as error:
        why = said_by(error)
        text = say("actions.spare_not_taken", spare=chosen.name, name=kept.reservation, error=why)
        return _no_spare(node, text)
    return Again(say("actions.spare_leaves", spare=chosen.name, name=kept.reservation, node=lost.name), 0.25)


def logged_of(ctx: Context, node: str | None, name: str) -> str | None:
    """What this run logged last by this name about the lost node. Entries of older releases name none."""
    return first_logged((each for each in reversed(ctx.log) if each.data.get("lost", node) == node), name)


def _chosen(ctx: Context, node: str) -> str:
    """The spare that this run logged last for the node; empty if none."""
    return logged_of(ctx, node, "handing") or ""


def _nearest(ctx: Context, seen: SlurmSnapshot, lost: SlurmNode, job: SlurmJob) -> SlurmNode | None:
    bad = ctx.claim.known_bad()
    spares = (spare for spare in free_spares(seen, ctx.tools.guards) if spare.name not in bad)
    return nearest_spare(lost, seen.whole(job.leader) or job, spares, ctx.claim.on_probation())


def _read_back(ctx: Context, held: Reservation, node: str) -> Again:
    """The lost node is in the reservation: our change is done, or the node was a spare itself."""
    handed = _chosen(ctx, node)
    if not handed or handed in held.nodes:
        return _no_spare(node, say("actions.spare_was_one", node=node, name=held.name))
    text = say("actions.spare_taken", spare=handed, name=held.name, node=node)
    return Again(text, 0, data={"spare": handed, "lost": node, "reservation": held.name})


def _no_spare(node: str, text: Said) -> Again:
    return Again(text, 0, data={"spare": "", "lost": node})


def _with_places(fresh: SlurmSnapshot, stored: SlurmSnapshot | None) -> SlurmSnapshot:
    """The snapshot with switches from the stored snapshot, which includes the site's topology file."""
    if stored is None:
        return fresh
    nodes = {name: _with_switches(node, stored.nodes.get(name)) for name, node in fresh.nodes.items()}
    return msgspec.structs.replace(fresh, nodes=nodes)


def _with_switches(node: SlurmNode, stored: SlurmNode | None) -> SlurmNode:
    if stored is None:
        return node
    return msgspec.structs.replace(node, switch=stored.switch, switches=stored.switches)


# --- the check `spare_ready` ---


def spare_ready(ctx: Context) -> Result:
    """A spare that fits the node and the job on it is free. It is not taken yet: other runs may get it
    first."""
    kept = ctx.tools.guards.spares
    if kept is None:
        return Failed(say("actions.spare_ready_no_rule"), final=True)
    seen, jobs = read_slurm(
        lambda: (
            _with_places(ctx.tools.scheduler.snapshot(), ctx.tools.picture()),
            ctx.tools.scheduler.jobs_on(ctx.node),
        )
    )
    lost, held = seen.nodes.get(ctx.node), seen.reservations.get(kept.reservation)
    if held is None:
        return Failed(say("actions.spare_no_reservation", name=kept.reservation), final=True)
    if lost is None:
        return Failed(say("actions.spare_ready_no_node", node=ctx.node), final=True)
    if lost.name in held.nodes:
        return Failed(say("actions.spare_ready_is_one", node=lost.name, name=held.name), final=True)
    alive = [job for job in jobs if job.active and "COMPLETING" not in job.flags]
    if not alive:
        return Done(say("actions.spare_ready_no_job", node=lost.name), {"ends_run": True})
    chosen = _nearest(ctx, seen, lost, alive[0])
    if chosen is None:
        return Failed(say("actions.spare_ready_none", name=held.name, node=lost.name), final=True)
    text = say("actions.spare_ready", spare=chosen.name, name=held.name, node=lost.name, job=alive[0].title)
    return Done(text, {"free": chosen.name})
