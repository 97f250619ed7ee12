"""Guards over capacity: the floor of service, and the caps on slots (fleet, hour, rack, switch, partition).

Formulas (n: GPU nodes that Slurm knows, or those of the place):
floor      in service after this >= min(ceil(min_service_share * n), n - 1)
slots      max(1, min(max_nodes, floor(max_share * n)))
hourly     max(1, floor(share_per_hour * n)) granted in the last hour
rack       max(1, floor(rack_share * n of the rack)); switch alike
partition  max(1, min(max_nodes, floor(partition_share * n of the partition)))

Slots that law 2 granted are not counted in any cap, but their nodes are out and so count in the floor.
"""

import math
from collections.abc import Iterable
from datetime import datetime, timedelta
from fractions import Fraction

from healer.decisions.answers import allow, at, hold
from healer.decisions.guards import recent, unknown_node
from healer.decisions.places import (
    active_slot_nodes,
    node_of,
    nodes_in,
    place_of,
    planned_window,
    rides,
    settings_of,
)
from healer.model import (
    Answer,
    AnswerKind,
    GateFacts,
    Guard,
    GuardSettings,
    Proposal,
    Ruleset,
    SlurmNode,
    SlurmSnapshot,
)
from healer.model.reserved import is_our_reservation

HOUR = timedelta(hours=1)


def _part(share: float, nodes: int) -> Fraction:
    """share * nodes as written in decimal: 0.07 * 100 is 7, not 7.000000000000001."""
    return Fraction(str(share)) * nodes


def floor_limit(settings: GuardSettings, nodes: int) -> int:
    """Fewest nodes that must stay in service. One node may always go, so never more than nodes - 1."""
    return max(0, min(math.ceil(_part(settings.min_service_share, nodes)), nodes - 1))


def slots_limit(settings: GuardSettings, nodes: int) -> int:
    return max(1, min(settings.max_nodes, math.floor(_part(settings.max_share, nodes))))


def hourly_limit(settings: GuardSettings, nodes: int) -> int:
    return max(1, math.floor(_part(settings.share_per_hour, nodes)))


def place_limit(share: float, nodes: int) -> int:
    return max(1, math.floor(_part(share, nodes)))


def partition_limit(settings: GuardSettings, nodes: int) -> int:
    return max(1, min(settings.max_nodes, math.floor(_part(settings.partition_share, nodes))))


def out_of_service(
    nodes: Iterable[SlurmNode], facts: GateFacts, rules: Ruleset, now: datetime
) -> frozenset[str]:
    """Nodes that count as gone: out by Slurm's picture, in a reservation of ours for tests, or by a slot that
    the picture does not show yet.

    Planned work counts as in service, so that a maintenance window does not stop the healing beside it.
    """
    gone = {slot.node for slot in facts.slots}
    if facts.snapshot is not None:
        ours = (one for one in facts.snapshot.reservations.values() if is_our_reservation(one))
        gone |= {name for one in ours for name in one.nodes}
    return frozenset(
        node.name
        for node in nodes
        if (not node.in_service or node.name in gone)
        and planned_window(rules, facts.cluster, node, now, facts.snapshot) is None
    )


def floor(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Never below this share of nodes in service, whatever took the others out. Law 2 does not pass it."""
    node = node_of(proposal, facts)
    if facts.snapshot is None or node is None:
        return unknown_node(Guard.floor, proposal, facts)
    settings = settings_of(rules, facts.cluster)
    fleet = facts.snapshot.gpu_nodes
    gone = out_of_service(fleet, facts, rules, now)
    answer = _floor_of("", fleet, gone, node, settings)
    for name in node.partitions:
        # What a partition leaves out is its cluster's: only a floor of its own binds.
        own = rules.guards_in(facts.cluster, name)
        if own.min_service_share != settings.min_service_share:
            there = [one for one in fleet if name in one.partitions]
            theirs = _floor_of(f" of partition {name}", there, gone, node, own)
            answer = theirs if theirs.kind is AnswerKind.hold else answer
    return answer


def _floor_of(
    where: str, nodes: list[SlurmNode], gone: frozenset[str], node: SlurmNode, settings: GuardSettings
) -> Answer:
    standing = sum(one.name not in gone for one in nodes)
    limit = floor_limit(settings, len(nodes))
    figures = f"{standing} of {len(nodes)} nodes{where} in service, the floor is {limit}"
    if node.name in gone:
        return allow(Guard.floor, f"{node.name} is out already: {figures}.", limit=limit, used=standing)
    if all(one.name != node.name for one in nodes):
        return allow(Guard.floor, f"{node.name} has no GPU: {figures}.", limit=limit, used=standing)
    if standing - 1 < limit:
        return hold(Guard.floor, f"{figures}: {node.name} must stay.", limit=limit, used=standing)
    return allow(Guard.floor, f"{figures}; {standing - 1} after this.", limit=limit, used=standing)


def slots(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Nodes out by us at once."""
    if facts.snapshot is None:
        return unknown_node(Guard.slots, proposal, facts)
    limit = slots_limit(settings_of(rules, facts.cluster), len(facts.snapshot.gpu_nodes))
    used = len(active_slot_nodes(facts, but=proposal.node))
    return _cap(Guard.slots, proposal, facts, used=used, limit=limit, what="slots")


def hourly(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Slots granted in the last hour, returned ones too."""
    if facts.snapshot is None:
        return unknown_node(Guard.hourly, proposal, facts)
    limit = hourly_limit(settings_of(rules, facts.cluster), len(facts.snapshot.gpu_nodes))
    granted = recent(list(facts.granted), now, HOUR)
    frees_at = granted[len(granted) - limit] + HOUR if len(granted) >= limit else None
    what = "slots of this hour"
    return _cap(Guard.hourly, proposal, facts, used=len(granted), limit=limit, what=what, frees_at=frees_at)


def rack(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    node = node_of(proposal, facts)
    if facts.snapshot is None or node is None:
        return unknown_node(Guard.rack, proposal, facts)
    name = place_of(rules, node).rack
    if not name:
        # Without a topology there are no racks to keep apart; the other caps bind.
        return allow(Guard.rack, f"No rack is known for {node.name}: this cap does not bind.")
    there = [one for one in facts.snapshot.gpu_nodes if place_of(rules, one).rack == name]
    limit = place_limit(settings_of(rules, facts.cluster).rack_share, len(there))
    return _place(Guard.rack, proposal, facts, name=f"rack {name}", there=there, limit=limit)


def switch(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    node = node_of(proposal, facts)
    if facts.snapshot is None or node is None:
        return unknown_node(Guard.switch, proposal, facts)
    name = place_of(rules, node).switch
    if not name:
        return allow(Guard.switch, f"No switch is known for {node.name}: this cap does not bind.")
    there = [one for one in facts.snapshot.gpu_nodes if place_of(rules, one).switch == name]
    limit = place_limit(settings_of(rules, facts.cluster).rack_share, len(there))
    return _place(Guard.switch, proposal, facts, name=f"switch {name}", there=there, limit=limit)


def _place(
    guard: Guard, proposal: Proposal, facts: GateFacts, *, name: str, there: list[SlurmNode], limit: int
) -> Answer:
    used = len(active_slot_nodes(facts, but=proposal.node) & {one.name for one in there})
    what = f"slots in {name} ({len(there)} nodes)"
    return _cap(guard, proposal, facts, used=used, limit=limit, what=what)


def partition(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Each partition of the node has its own cap; the one nearest to its limit is named."""
    node = node_of(proposal, facts)
    if facts.snapshot is None or node is None:
        return unknown_node(Guard.partition, proposal, facts)
    if not node.partitions:
        return allow(Guard.partition, f"{node.name} is in no partition: this cap does not bind.")
    answers = [_partition(name, facts.snapshot, proposal, facts, rules) for name in node.partitions]
    held = [answer for answer in answers if answer.kind is AnswerKind.hold]
    return min(held or answers, key=lambda answer: (answer.limit or 0) - (answer.used or 0))


def _partition(
    name: str, snapshot: SlurmSnapshot, proposal: Proposal, facts: GateFacts, rules: Ruleset
) -> Answer:
    settings = rules.guards_in(facts.cluster, name)
    there = nodes_in(snapshot, name)
    limit = partition_limit(settings, len(there))
    return _place(Guard.partition, proposal, facts, name=f"partition {name}", there=there, limit=limit)


def _cap(
    guard: Guard,
    proposal: Proposal,
    facts: GateFacts,
    *,
    used: int,
    limit: int,
    what: str,
    frees_at: datetime | None = None,
) -> Answer:
    figures = f"{used} of {limit} {what} used"
    if rides(proposal, facts):
        return allow(guard, f"{proposal.node} has its slot already; {figures}.", limit=limit, used=used)
    if used >= limit:
        when = f", the next is free at {at(frees_at)}" if frees_at else ""
        return hold(guard, f"{figures}{when}.", limit=limit, used=used, frees_at=frees_at)
    return allow(guard, f"{figures}.", limit=limit, used=used)
