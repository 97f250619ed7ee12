"""Hot spares: which node of the site's reservation takes the place of one that is lost."""

from collections.abc import Iterable
from datetime import datetime

from healer.decisions.answers import allow
from healer.decisions.places import job_of, matches, node_of, settings_of
from healer.model import (
    Answer,
    GateFacts,
    Guard,
    GuardSettings,
    Proposal,
    Ruleset,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
)

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
