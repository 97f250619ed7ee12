"""What healer may still take out of service: what is left under each cap, and above the floor."""

from collections.abc import Callable, Mapping

import msgspec

from healer.console import words
from healer.console.reads import Standing
from healer.console.views.standing import Strip
from healer.decisions.capacity import hourly_limit, partition_limit, place_limit
from healer.decisions.fleet import fleet_of, nodes_at

_KINDS = (("rack", "Rack"), ("domain", "NVLink domain"), ("switch", "Leaf switch"))


class Cap(msgspec.Struct, frozen=True, kw_only=True):
    """`left` is how many nodes more; None where each place has its own; `full` names those without any."""

    name: str
    used: int
    limit: str
    left: int | None
    full: str = ""


def caps(standing: Standing, strip: Strip) -> list[Cap]:
    """The tightest of all holds a node back. Surely unusable nodes count in none of them but the floor."""
    if standing.snapshot is None:
        return []
    guards, count = standing.guards, strip.nodes
    serve = strip.in_service + strip.planned
    hour = hourly_limit(guards, count)
    found = [
        _cap("At once", strip.slots_used, strip.slots_limit),
        _cap("In an hour", standing.granted_last_hour, hour),
        Cap(
            name="Floor of service",
            used=serve,
            limit=f"{strip.floor:,} at least",
            left=max(0, serve - strip.floor),
        ),
    ]
    rules, snapshot = standing.rules, standing.snapshot
    counted = frozenset(slot.node for slot in standing.slots if not slot.unusable)
    for kind, title in _KINDS:
        there = nodes_at(snapshot, rules, kind)
        found += _places(title, there, counted, lambda _, size: place_limit(guards.rack_share, size))
    inside = fleet_of(snapshot).partitions
    settings = {name: rules.guards_in(standing.cluster, name) for name in inside}
    found += _places("Partition", inside, counted, lambda name, size: partition_limit(settings[name], size))
    return found


def _cap(name: str, used: int, limit: int) -> Cap:
    return Cap(name=name, used=used, limit=f"{limit:,}", left=max(0, limit - used))


def _places(
    title: str,
    places: Mapping[str, frozenset[str]],
    counted: frozenset[str],
    limit_of: Callable[[str, int], int],
) -> list[Cap]:
    """One row for all places of a kind, with those that are full; a single place is told like a whole."""
    limits = {name: limit_of(name, len(nodes)) for name, nodes in places.items()}
    used = {name: len(nodes & counted) for name, nodes in places.items()}
    if len(places) == 1:
        ((name, limit),) = limits.items()
        return [
            _cap(f"{title.removesuffix('es' if title.endswith('ches') else 's')} {name}", used[name], limit)
        ]
    if not places:
        return []
    full = sorted(name for name in places if used[name] >= limits[name])
    least, most = min(limits.values()), max(limits.values())
    return [
        Cap(
            name=f"{title}{'es' if title.endswith('ch') else 's'} ({len(places):,})",
            used=sum(used.values()),
            limit=f"{least:,} each" if least == most else f"{least:,} to {most:,} each",
            left=None,
            full=words.names(full, 4),
        )
    ]
