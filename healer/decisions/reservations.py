"""Guard `reserved`: what Slurm's reservations promise, and which hot spare takes a lost node's place.

Spares are handed over at a restart; a node that is kept for somebody is not taken away while it is of use to
them.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from healer.decisions.guards import allow, hold, unknown_node
from healer.decisions.node_facts import job_of, matches, node_of, rides, settings_of
from healer.model import (
    RESTARTING_VERBS,
    Answer,
    GateFacts,
    Guard,
    GuardSettings,
    Proposal,
    Reservation,
    Ruleset,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
)
from healer.model.slurm import is_our_reservation

#: Further than any way through a tree of switches: nothing is known of where the two stand.
_FAR = 99


def free_spares(snapshot: SlurmSnapshot, settings: GuardSettings) -> list[SlurmNode]:
    """Nodes of the reservation that could be handed over now: idle, in service, not protected."""
    held = snapshot.reservations.get(settings.spares.reservation) if settings.spares else None
    known = (snapshot.nodes.get(name) for name in (held.nodes if held else ()))
    return [one for one in known if one is not None and _is_free(one, settings)]


def _is_free(node: SlurmNode, settings: GuardSettings) -> bool:
    if node.base != "IDLE" or node.busy or not node.in_service or node.planned:
        return False
    return not any(matches(pattern, node) for pattern in settings.protected)


def choose(lost: SlurmNode, job: SlurmJob | None, spares: Iterable[SlurmNode]) -> SlurmNode | None:
    """The nearest spare that the job could use as it used the lost node: the same leaf switch, else the
    fewest hops, else any. The same GPUs and partition; None where none fits."""
    fitting = [one for one in spares if one.name != lost.name and _fits(one, lost, job)]
    return min(fitting, key=lambda one: (hops(lost, one), one.name), default=None)


def _fits(spare: SlurmNode, lost: SlurmNode, job: SlurmJob | None) -> bool:
    if (spare.gpus, spare.gpu_model) != (lost.gpus, lost.gpu_model):
        return False
    wanted = {job.partition} if job is not None and job.partition else set(lost.partitions)
    return wanted <= set(spare.partitions) and (job is None or spare.name not in job.excluded)


def hops(one: SlurmNode, other: SlurmNode) -> int:
    """Levels up to the first switch that both lie under: 0 is the same leaf."""
    theirs = _path(other)
    return next((level for level, switch in enumerate(_path(one)) if switch in theirs), _FAR)


def _path(node: SlurmNode) -> tuple[str, ...]:
    return node.switches or ((node.switch,) if node.switch else ())


def spared(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """What the site keeps for jobs that lose a node: one spare for one node, as long as there is one.

    It never holds a restart: without a spare the job waits for its turn like any other.
    """
    settings = settings_of(rules, facts.cluster)
    if settings.spares is None:
        return allow(Guard.reserved, "No spares are named in rules/guards.yaml.")
    name, lost = settings.spares.reservation, node_of(proposal, facts)
    if facts.snapshot is None or lost is None:
        return allow(Guard.reserved, "No node is lost with this: no spare is handed over.")
    held = facts.snapshot.reservations.get(name)
    if held is None:
        return allow(Guard.reserved, f"Slurm shows no reservation {name}: there are no spares.")
    free = free_spares(facts.snapshot, settings)
    figures = f"{len(free)} of {len(held.nodes)} spares in {name} are free"
    used = len(held.nodes) - len(free)
    chosen = choose(lost, job_of(proposal, facts), free)
    if lost.name in held.nodes:
        why = f"{lost.name} has a place among the spares: {figures}."
    elif chosen is None:
        why = f"{figures}, none fits {lost.name}: no spare is handed over."
    else:
        why = f"{figures}; {chosen.name} takes the place of {lost.name}."
    return allow(Guard.reserved, why, limit=len(held.nodes), used=used)


#: A reservation that begins later than this leaves time to repair what is faulty, and to bring it back.
BEGINS_WITHIN = timedelta(hours=1)

#: Slurm itself puts another node in the place of one that is taken out.
_REPLACED = frozenset({"REPLACE", "REPLACE_DOWN"})


def reserved(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Of a job the spares, of a node what it is promised for.

    A node whose fault ended its work is no capacity, so no promise keeps it; a slow or ageing one is. A
    person who asks by name, or approved it, answers for that.
    """
    if proposal.verb in RESTARTING_VERBS:
        return spared(proposal, facts, rules, now)
    node = node_of(proposal, facts)
    if facts.snapshot is None or node is None:
        return unknown_node(Guard.reserved, proposal, facts)
    kept = _promised(node, facts, rules, now)
    if kept is None:
        return allow(Guard.reserved, f"No reservation counts on {node.name}.")
    here = [facts.snapshot.nodes[name] for name in kept.nodes if name in facts.snapshot.nodes]
    standing = sum(one.in_service for one in here)
    figures = f"reservation {kept.name} counts on {len(kept.nodes)} nodes, {standing} are in service"
    told: dict[str, Any] = {"limit": len(kept.nodes), "used": standing}
    if rides(proposal, facts) or not node.in_service:
        return allow(Guard.reserved, f"{node.name} is out already: {figures}.", **told)
    if proposal.unusable or proposal.fatal:
        return allow(Guard.reserved, f"{figures}: with this fault {node.name} is of no use to it.", **told)
    if person := proposal.by or proposal.approved_by:
        return allow(Guard.reserved, f"{figures}; {person} takes {node.name} from it.", **told)
    why = f"{figures}: {node.name} stays until it ends, or until a person takes it."
    return hold(Guard.reserved, why, frees_at=kept.until, **told)


def _promised(node: SlurmNode, facts: GateFacts, rules: Ruleset, now: datetime) -> Reservation | None:
    """The reservation that keeps this very node for somebody, now or soon; of several the longest.

    Planned work is none (guard `maintenance`), nor are our own tests, nor the spares.
    """
    spares = settings_of(rules, facts.cluster).spares
    known = facts.snapshot.reservations.values() if facts.snapshot else ()
    standing = [
        one
        for one in known
        if node.name in one.nodes
        and not one.maintenance
        and not is_our_reservation(one)
        and not (spares is not None and one.name == spares.reservation)
        and _REPLACED.isdisjoint(one.flags)
        and is_soon(one, now)
    ]
    last = datetime.max.replace(tzinfo=now.tzinfo)
    return max(standing, key=lambda one: (one.until or last, one.name), default=None)


def is_soon(reservation: Reservation, now: datetime) -> bool:
    """It lasts now, or begins too soon for a repair."""
    since, until = reservation.since, reservation.until
    return (since is None or since <= now + BEGINS_WITHIN) and (until is None or until > now)
