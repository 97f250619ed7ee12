"""Guards over capacity: the floor of service, and the caps on slots (fleet, hour, rack, switch, partition).

Formulas (n: GPU nodes that Slurm knows, or those of the place):
floor      in service after this >= min(ceil(min_service_share * n), n - 1)
slots      max(1, min(max_nodes, floor(max_share * n)))
hourly     max(1, floor(share_per_hour * n)) granted in the last hour
rack       max(1, floor(rack_share * n of the rack)); NVLink domain and switch alike
partition  max(1, min(max_nodes, floor(partition_share * n of the partition)))

Slots that law 2 granted are not counted in any cap, but their nodes are out and so count in the floor.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from healer.decisions.node_facts import (
    allow,
    fleet_of,
    hold,
    matches,
    may_be_planned,
    node_of,
    nodes_at,
    place_of,
    planned_window,
    rides,
    settings_of,
    unknown_node,
)
from healer.decisions.sweeps import sweep_limit
from healer.model import (
    Answer,
    AnswerKind,
    GateFacts,
    Guard,
    GuardSettings,
    Limit,
    Proposal,
    Ruleset,
    SlurmNode,
    SlurmSnapshot,
    Urgency,
    Waiting,
    storm_size,
)
from healer.model.slurm import is_our_reservation
from healer.text import Said, at, say, unstopped

HOUR = timedelta(hours=1)


@lru_cache(maxsize=256)
def _part(share: float, nodes: int) -> Fraction:
    """share * nodes, exact for decimal shares: 0.07 * 100 is 7, not 7.000000000000001."""
    return Fraction(str(share)) * nodes


def floor_limit(settings: GuardSettings, nodes: int) -> int:
    """The fewest nodes that must stay in service. One node may always go, so never more than nodes - 1."""
    return max(0, min(math.ceil(_part(settings.min_service_share, nodes)), nodes - 1))


def slots_limit(settings: GuardSettings, nodes: int) -> int:
    return max(1, min(settings.max_nodes, math.floor(_part(settings.max_share, nodes))))


def hourly_limit(settings: GuardSettings, nodes: int) -> int:
    return max(1, math.floor(_part(settings.share_per_hour, nodes)))


def place_limit(share: float, nodes: int) -> int:
    return max(1, math.floor(_part(share, nodes)))


def partition_limit(settings: GuardSettings, nodes: int) -> int:
    return max(1, min(settings.max_nodes, math.floor(_part(settings.partition_share, nodes))))


def out_of_service(facts: GateFacts, rules: Ruleset, now: datetime) -> frozenset[str]:
    """Nodes of the fleet that count as out of service: out in the Slurm snapshot, in healer's reservation for
    tests, or holding a slot that the snapshot does not show yet. Empty before the first snapshot.

    Planned work counts as in service, so that a maintenance window does not stop repairs elsewhere.
    """
    snapshot = facts.snapshot
    if snapshot is None:
        return frozenset()
    fleet = fleet_of(snapshot)
    ours = (reservation for reservation in snapshot.reservations.values() if is_our_reservation(reservation))
    taken = set(facts.held).union(*(reservation.nodes for reservation in ours))
    gone = fleet.out | (fleet.names & taken)
    # If the site lists no planned work, only what Slurm itself shows as planned counts.
    perhaps = gone if may_be_planned(rules, facts.cluster) else gone & fleet.planned
    return gone - {
        name
        for name in perhaps
        if planned_window(rules, facts.cluster, snapshot.nodes[name], now, snapshot) is not None
    }


def floor(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Guard `floor`: this share of nodes stays in service, whatever took the others out. Law 2 gives no
    exemption from it."""
    node = node_of(proposal, facts)
    if facts.snapshot is None or node is None:
        return unknown_node(Guard.floor, proposal, facts)
    settings = settings_of(rules, facts.cluster)
    fleet = fleet_of(facts.snapshot)
    gone = out_of_service(facts, rules, now)
    kept = _kept_by_partition(node, facts, rules, gone)
    answer = kept or _floor_of(None, fleet.names, gone, node, settings)
    return _hold_for_more_urgent(answer, proposal, facts, rules, gone)


def _kept_by_partition(
    node: SlurmNode | None, facts: GateFacts, rules: Ruleset, gone: frozenset[str]
) -> Answer | None:
    """The hold by a partition of the node with a floor of its own; None if no such floor holds it. A
    partition inherits its cluster's settings: the same floor is not a separate limit."""
    if facts.snapshot is None or node is None:
        return None
    settings = settings_of(rules, facts.cluster)
    for name in node.partitions:
        of_partition = rules.guards_in(facts.cluster, name)
        if of_partition.min_service_share != settings.min_service_share:
            there = fleet_of(facts.snapshot).in_partition(name)
            theirs = _floor_of(name, there, gone, node, of_partition)
            if theirs.kind is AnswerKind.hold:
                return theirs
    return None


def _hold_for_more_urgent(
    answer: Answer, proposal: Proposal, facts: GateFacts, rules: Ruleset, gone: frozenset[str]
) -> Answer:
    """The answer; or a hold, if more urgent waiting runs need the capacity. A run whose own partition keeps
    its node needs none of it."""
    if facts.snapshot is None or not facts.waiting or answer.kind is AnswerKind.hold:
        return answer
    standing, shown = fleet_of(facts.snapshot).names - gone, facts.snapshot.nodes
    if proposal.node not in standing:
        return answer
    before = [
        waiting
        for waiting in more_urgent(Guard.floor, proposal, facts, standing)
        if _kept_by_partition(shown.get(waiting.node or ""), facts, rules, gone) is None
    ]
    if not before or (answer.used or 0) - 1 - len(before) >= (answer.limit or 0):
        return answer
    why = say("decisions.first_for_floor", floor=answer.why, first=_first_text(before))
    return hold(Guard.floor, why, limit=answer.limit, used=answer.used)


def _floor_of(
    partition: str | None,
    nodes: frozenset[str],
    gone: frozenset[str],
    node: SlurmNode,
    settings: GuardSettings,
) -> Answer:
    standing = len(nodes) - len(nodes & gone)
    limit = floor_limit(settings, len(nodes))
    if node.name in gone:
        kind = "out"
    elif node.name not in nodes:
        kind = "no_gpu"
    else:
        kind = "must_stay" if standing - 1 < limit else "after"
    why = say(
        f"decisions.floor_{kind}" if partition is None else f"decisions.part_floor_{kind}",
        node=node.name,
        partition=partition,
        standing=standing,
        nodes=len(nodes),
        limit=limit,
        left=standing - 1,
    )
    return (hold if kind == "must_stay" else allow)(Guard.floor, why, limit=limit, used=standing)


def slots(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Guard `slots`: the number of nodes that healer has out at once."""
    if facts.snapshot is None:
        return unknown_node(Guard.slots, proposal, facts)
    limit = slots_limit(settings_of(rules, facts.cluster), len(fleet_of(facts.snapshot).names))
    used = len(facts.counted) - (proposal.node in facts.counted)
    return _ask(_Cap(Guard.slots, "fleet", used, limit), proposal, facts)


def hourly(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Guard `hourly`: slots granted in the last hour, including returned ones."""
    if facts.snapshot is None:
        return unknown_node(Guard.hourly, proposal, facts)
    limit = hourly_limit(settings_of(rules, facts.cluster), len(fleet_of(facts.snapshot).names))
    granted = facts.granted_since(facts.earlier(now) - HOUR)
    frees_at = granted[len(granted) - limit] + HOUR if len(granted) >= limit else None
    cap = _Cap(Guard.hourly, "hour", len(granted), limit, frees_at=frees_at)
    return _ask(cap, proposal, facts)


def rack(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Guard `rack`: rack and NVLink domain (an NVL72 is a rack, and its jobs cannot get the missing part
    elsewhere). The answer names the one nearer to its limit."""
    answers = [
        answer
        for kind in ("rack", "domain")
        if (answer := _place_of_node(Guard.rack, kind, proposal, facts, rules))
    ]
    if not answers:
        # Without a topology, racks are unknown; the other caps apply.
        return allow(Guard.rack, say("decisions.no_rack", node=proposal.node))
    return _nearest(answers)


def switch(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    answer = _place_of_node(Guard.switch, "switch", proposal, facts, rules)
    return answer or allow(Guard.switch, say("decisions.no_switch", node=proposal.node))


def _place_of_node(
    guard: Guard, kind: str, proposal: Proposal, facts: GateFacts, rules: Ruleset
) -> Answer | None:
    """The answer for the node's place of this `kind`; None if the place is unknown."""
    node = node_of(proposal, facts)
    if facts.snapshot is None or node is None:
        return unknown_node(guard, proposal, facts)
    name: str = getattr(place_of(rules, facts.cluster, node), kind)
    if not name:
        return None
    there = nodes_at(facts.snapshot, rules, kind).get(name, frozenset())
    limit = place_limit(settings_of(rules, facts.cluster).rack_share, len(there))
    cap = _Cap(guard, kind, _used_in(there, proposal, facts), limit, there, name)
    return _ask(cap, proposal, facts)


def _nearest(answers: list[Answer]) -> Answer:
    """The cap nearest to its limit; caps that hold come first."""
    held = [answer for answer in answers if answer.kind is AnswerKind.hold]
    return min(held or answers, key=lambda answer: (answer.limit or 0) - (answer.used or 0))


def _used_in(there: frozenset[str], proposal: Proposal, facts: GateFacts) -> int:
    """Slots in use at these nodes, without the proposal's own."""
    counted = facts.counted & there
    return len(counted) - (proposal.node in counted)


def partition(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Guard `partition`: each partition of the node has its own cap. The answer names the one nearest to its
    limit."""
    node = node_of(proposal, facts)
    if facts.snapshot is None or node is None:
        return unknown_node(Guard.partition, proposal, facts)
    if not node.partitions:
        return allow(Guard.partition, say("decisions.no_partition", node=node.name))
    return _nearest([_partition(name, facts.snapshot, proposal, facts, rules) for name in node.partitions])


def _partition(
    name: str, snapshot: SlurmSnapshot, proposal: Proposal, facts: GateFacts, rules: Ruleset
) -> Answer:
    settings = rules.guards_in(facts.cluster, name)
    there = fleet_of(snapshot).in_partition(name)
    limit = partition_limit(settings, len(there))
    cap = _Cap(Guard.partition, "partition", _used_in(there, proposal, facts), limit, there, name)
    return _ask(cap, proposal, facts)


class _Cap(NamedTuple):
    """`kind`: fleet, hour, rack, domain, switch or partition, with the place's `name`; `where`: the nodes
    that share this capacity; None: all."""

    guard: Guard
    kind: str
    used: int
    limit: int
    where: Collection[str] | None = None
    name: str = ""
    frees_at: datetime | None = None


def _ask(cap: _Cap, proposal: Proposal, facts: GateFacts) -> Answer:
    guard, kind, used, limit, where, name, frees_at = cap
    figures: dict[str, Any] = {"used": used, "limit": limit, "name": name, "nodes": len(where or ())}
    if rides(proposal, facts):
        why = say(f"decisions.own_{kind}", node=proposal.node, **figures)
        return allow(guard, why, limit=limit, used=used)
    why = say(f"decisions.used_{kind}", **figures)
    if used >= limit:
        if frees_at:
            why = say("decisions.cap_frees_at", cap=unstopped(why), when=at(frees_at))
        return hold(guard, why, limit=limit, used=used, frees_at=frees_at)
    before = more_urgent(guard, proposal, facts, where)
    if before and used + len(before) >= limit:
        why = say("decisions.cap_first", cap=unstopped(why), first=_first_text(before))
        return hold(guard, why, limit=limit, used=used)
    return allow(guard, why, limit=limit, used=used)


def more_urgent(
    guard: Guard, proposal: Proposal, facts: GateFacts, where: Collection[str] | None
) -> list[Waiting]:
    """Runs that wait for this guard's capacity and go first, by severity, size of the hit job, and age.

    A run whose node was taken out meanwhile no longer waits. A proposal by a person or without an incident
    yields to no other; nor does one for a certainly unusable node, which needs none of this capacity.
    """
    if proposal.urgency is None or proposal.by is not None or proposal.passes_caps:
        return []
    taken = {*facts.held, proposal.node}
    return [
        waiting
        for waiting in facts.waiting
        if waiting.guard is guard
        and waiting.run != proposal.run
        and waiting.node not in taken
        and (where is None or waiting.node in where)
        and _urgency(waiting, facts).order < proposal.urgency.order
    ]


def _urgency(waiting: Waiting, facts: GateFacts) -> Urgency:
    shown = facts.snapshot.jobs if facts.snapshot is not None else {}
    sizes = [len(shown[job].nodes) for job in waiting.jobs if job in shown]
    return Urgency(
        severity=waiting.severity, size=max([1 if waiting.jobs else 0, *sizes]), since=waiting.since
    )


def _first_text(before: list[Waiting]) -> Said:
    first, more = before[0], len(before) - 1
    if not more:
        return say("decisions.one_first", severity=first.severity, node=first.node)
    return say("decisions.more_first", severity=first.severity, node=first.node, more=more)


def limits(facts: GateFacts, rules: Ruleset, now: datetime) -> list[Limit]:
    """Every cap with its figures: the fleet's first, then each place and partition with a slot in use.

    Empty before the first Slurm snapshot.
    """
    if facts.snapshot is None:
        return []
    settings = settings_of(rules, facts.cluster)
    fleet = facts.snapshot.gpu_nodes
    count = len(fleet)
    ours = facts.counted
    standing = count - len(out_of_service(facts, rules, now))
    granted = facts.granted_since(facts.earlier(now) - HOUR)
    figures = (
        (Guard.slots, len(ours), slots_limit(settings, count)),
        (Guard.hourly, len(granted), hourly_limit(settings, count)),
        (Guard.floor, standing, floor_limit(settings, count)),
    )
    found = [Limit(guard=guard, name="", used=used, limit=most, nodes=count) for guard, used, most in figures]
    members: dict[tuple[Guard, str], set[str]] = {}
    for node in fleet:
        place = place_of(rules, facts.cluster, node)
        domain = f"NVLink domain {place.domain}" if place.domain else ""
        where = [(Guard.rack, place.rack), (Guard.rack, domain), (Guard.switch, place.switch)]
        where += [(Guard.partition, name) for name in node.partitions]
        for guard, name in where:
            if name:
                members.setdefault((guard, name), set()).add(node.name)
    for (guard, name), there in sorted(members.items()):
        if used := len(there & ours):
            if guard is Guard.partition:
                limit = partition_limit(rules.guards_in(facts.cluster, name), len(there))
            else:
                limit = place_limit(settings.rack_share, len(there))
            found.append(Limit(guard=guard, name=name, used=used, limit=limit, nodes=len(there)))
    return found


# --- limits that, with their settings, hold nothing or everything


#: Slurm is polled this often, in seconds; the maximum age of a snapshot must be longer.
PICTURE_S = 10.0


class IneffectiveLimit(msgspec.Struct, frozen=True, kw_only=True):
    """`always`: with this setting the guard always holds; otherwise it never does."""

    guard: Guard
    always: bool
    text: Said
    setting: str


def ineffective_limits(facts: GateFacts, rules: Ruleset, now: datetime) -> list[IneffectiveLimit]:
    """Limits that always or never hold. Empty before the first Slurm snapshot, and for a cluster of one node,
    where each cap is one."""
    snapshot = facts.snapshot
    if snapshot is None or len(snapshot.gpu_nodes) < 2:
        return []
    settings = settings_of(rules, facts.cluster)
    fleet = snapshot.gpu_nodes
    return [
        *_of_fleet(settings, fleet),
        *_floor(settings, fleet, facts, rules, now),
        *_of_places(settings, snapshot, rules, facts.cluster),
        *_of_repeats(settings, fleet),
        *_of_sweeps(settings, fleet),
    ]


def _of_fleet(settings: GuardSettings, fleet: Sequence[SlurmNode]) -> Iterator[IneffectiveLimit]:
    n = len(fleet)
    most, hourly = slots_limit(settings, n), hourly_limit(settings, n)
    if most >= n:
        yield _never(Guard.slots, say("decisions.loose_slots", most=most, nodes=n), "max_share, max_nodes")
    elif hourly >= n:
        yield _never(Guard.hourly, say("decisions.loose_hourly", most=hourly, nodes=n), "share_per_hour")
    storm = storm_size(settings.breaker_share, n)
    if settings.breaker_share < 1.0 and storm > n:
        yield _never(Guard.breaker, say("decisions.loose_storm", storm=storm, nodes=n), "breaker_share")


def _floor(
    settings: GuardSettings, fleet: Sequence[SlurmNode], facts: GateFacts, rules: Ruleset, now: datetime
) -> Iterator[IneffectiveLimit]:
    n, least = len(fleet), floor_limit(settings, len(fleet))
    standing = n - len(out_of_service(facts, rules, now))
    if least <= 0:
        yield _never(Guard.floor, say("decisions.loose_floor", nodes=n), "min_service_share")
    elif standing <= least and not facts.slots:
        text = say("decisions.tight_floor", standing=standing, nodes=n, least=least)
        yield IneffectiveLimit(guard=Guard.floor, always=True, text=text, setting="min_service_share")


def _of_places(
    settings: GuardSettings, snapshot: SlurmSnapshot, rules: Ruleset, cluster: str
) -> Iterator[IneffectiveLimit]:
    """Ineffective limits of places with several nodes; a place with one node has a cap of one."""
    for guard, kind in ((Guard.rack, "rack"), (Guard.switch, "switch")):
        sizes: dict[str, int] = {}
        for node in snapshot.gpu_nodes:
            name: str = getattr(place_of(rules, cluster, node), kind)
            sizes[name] = sizes.get(name, 0) + bool(name)
        several = {name: size for name, size in sizes.items() if size > 1}
        if several and all(place_limit(settings.rack_share, size) >= size for size in several.values()):
            yield _never(guard, say(f"decisions.loose_place_{kind}"), "rack_share")
    for name in sorted({partition for node in snapshot.gpu_nodes for partition in node.partitions}):
        of_partition, size = rules.guards_in(cluster, name), len(fleet_of(snapshot).in_partition(name))
        if size > 1 and partition_limit(of_partition, size) >= size:
            text = say("decisions.loose_partition", nodes=size, name=name)
            yield _never(Guard.partition, text, "partition_share")


def _of_repeats(settings: GuardSettings, fleet: Sequence[SlurmNode]) -> Iterator[IneffectiveLimit]:
    for guard, setting in ((Guard.requeue_cap, "requeues_per_job"), (Guard.reboot_cap, "reboots_per_node")):
        if getattr(settings, setting) == 0:
            text = say("decisions.refuses_all", setting=setting)
            yield IneffectiveLimit(guard=guard, always=True, text=text, setting=setting)
    if settings.stale_s < PICTURE_S:
        text = say("decisions.tight_picture", age_s=PICTURE_S, limit_s=settings.stale_s)
        yield IneffectiveLimit(guard=Guard.stale, always=True, text=text, setting="stale_s")
    if settings.repeat_h == 0:
        yield _never(Guard.repeat, say("decisions.loose_repeat"), "repeat_h")
    shut = [node for node in fleet if any(matches(pattern, node) for pattern in settings.protected)]
    if len(shut) == len(fleet):
        yield IneffectiveLimit(
            guard=Guard.protected, always=True, text=say("decisions.tight_protected"), setting="protected"
        )


def _of_sweeps(settings: GuardSettings, fleet: Sequence[SlurmNode]) -> Iterator[IneffectiveLimit]:
    most = sweep_limit(settings, len(fleet))
    if settings.sweep.scheduled and most >= len(fleet):
        text = say("decisions.loose_sweep", most=most, nodes=len(fleet))
        yield _never(Guard.sweep, text, "sweep.max_share, sweep.max_nodes")


def _never(guard: Guard, text: Said, setting: str) -> IneffectiveLimit:
    return IneffectiveLimit(guard=guard, always=False, text=text, setting=setting)
