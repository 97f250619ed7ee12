"""Caps that are set so that they can never hold anything, or always would: told before anybody relies on
them."""

from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec

from healer.decisions.capacity import (
    floor_limit,
    hourly_limit,
    out_of_service,
    partition_limit,
    place_limit,
    slots_limit,
)
from healer.decisions.fleet import fleet_of
from healer.decisions.places import matches, place_of, settings_of
from healer.decisions.sweeps import limit_of
from healer.model import GateFacts, Guard, GuardSettings, Ruleset, SlurmNode, SlurmSnapshot, storm_size

#: Slurm is asked this often; a picture must be allowed to be older than that.
PICTURE_S = 10.0


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """`always`: with this setting the guard holds everything back; else it holds nothing, ever."""

    guard: Guard
    always: bool
    text: str
    setting: str


def odd_bounds(facts: GateFacts, rules: Ruleset, now: datetime) -> list[Bound]:
    """Empty before the first picture of Slurm, and for clusters of one node: there each cap is one."""
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


def _of_fleet(settings: GuardSettings, fleet: Sequence[SlurmNode]) -> Iterator[Bound]:
    n = len(fleet)
    most, hourly = slots_limit(settings, n), hourly_limit(settings, n)
    if most >= n:
        yield _never(Guard.slots, f"{most} slots for {n} nodes", "max_share, max_nodes")
    elif hourly >= n:
        yield _never(Guard.hourly, f"{hourly} slots an hour for {n} nodes", "share_per_hour")
    storm = storm_size(settings.breaker_share, n)
    if settings.breaker_share < 1.0 and storm > n:
        yield _never(Guard.breaker, f"a storm is {storm} nodes, and there are {n}", "breaker_share")


def _floor(
    settings: GuardSettings, fleet: Sequence[SlurmNode], facts: GateFacts, rules: Ruleset, now: datetime
) -> Iterator[Bound]:
    n, least = len(fleet), floor_limit(settings, len(fleet))
    standing = n - len(out_of_service(facts, rules, now))
    if least <= 0:
        yield _never(Guard.floor, f"0 of {n} nodes have to stay", "min_service_share")
    elif standing <= least and not facts.slots:
        text = f"{standing} of {n} nodes are in service, and {least} have to stay: nothing may be taken out"
        yield Bound(guard=Guard.floor, always=True, text=text, setting="min_service_share")


def _of_places(
    settings: GuardSettings, snapshot: SlurmSnapshot, rules: Ruleset, cluster: str
) -> Iterator[Bound]:
    """Of places with several nodes: the cap of a place with one is one."""
    for guard, kind in ((Guard.rack, "rack"), (Guard.switch, "switch")):
        sizes: dict[str, int] = {}
        for node in snapshot.gpu_nodes:
            name: str = getattr(place_of(rules, node), kind)
            sizes[name] = sizes.get(name, 0) + bool(name)
        several = {name: size for name, size in sizes.items() if size > 1}
        if several and all(place_limit(settings.rack_share, size) >= size for size in several.values()):
            yield _never(guard, f"every node of a {kind} may be out at once", "rack_share")
    for name in sorted({one for node in snapshot.gpu_nodes for one in node.partitions}):
        own, size = rules.guards_in(cluster, name), len(fleet_of(snapshot).in_partition(name))
        if size > 1 and partition_limit(own, size) >= size:
            yield _never(Guard.partition, f"all {size} nodes of {name} may be out at once", "partition_share")


def _of_repeats(settings: GuardSettings, fleet: Sequence[SlurmNode]) -> Iterator[Bound]:
    for guard, setting in ((Guard.requeue_cap, "requeues_per_job"), (Guard.reboot_cap, "reboots_per_node")):
        if getattr(settings, setting) == 0:
            text = f"{setting} is 0: it refuses everything"
            yield Bound(guard=guard, always=True, text=text, setting=setting)
    if settings.stale_s < PICTURE_S:
        text = f"a picture of Slurm is up to {PICTURE_S:g} s old, and the bound is {settings.stale_s:g} s"
        yield Bound(guard=Guard.stale, always=True, text=text, setting="stale_s")
    if settings.repeat_h == 0:
        yield _never(Guard.repeat, "a remedy may be repeated at once", "repeat_h")
    shut = [node for node in fleet if any(matches(pattern, node) for pattern in settings.protected)]
    if len(shut) == len(fleet):
        yield Bound(guard=Guard.protected, always=True, text="every node is protected", setting="protected")


def _of_sweeps(settings: GuardSettings, fleet: Sequence[SlurmNode]) -> Iterator[Bound]:
    most = limit_of(settings, len(fleet))
    if settings.sweep.scheduled and most >= len(fleet):
        text = f"{most} of {len(fleet)} nodes may be in sweep at once"
        yield _never(Guard.sweep, text, "sweep.max_share, sweep.max_nodes")


def _never(guard: Guard, text: str, setting: str) -> Bound:
    return Bound(guard=guard, always=False, text=text, setting=setting)
