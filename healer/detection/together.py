"""Nodes that are away together: the place that they share explains them."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import NamedTuple

from healer.model import Component, PlaceKind, SlurmNode

#: So many nodes of one place away, and at least half of those expected there, mean the place.
PLACE_NODES = 3


class Together(NamedTuple):
    """`nodes` by name; `of` is how many are expected there."""

    kind: PlaceKind
    place: str
    nodes: list[str]
    of: int

    def root(self, cluster: str) -> Component:
        """A rack, a PDU and a domain go by their names, as their own telemetry does."""
        if self.kind is PlaceKind.switch:
            return Component(cluster=cluster, switch=self.place)
        return Component(cluster=cluster, device=self.place)


def together(
    away: Collection[str], expected: Collection[str], nodes: Mapping[str, SlurmNode]
) -> list[Together]:
    """The places, each node in one at most: the one with the most of them, of these the one that has lost the
    largest share, and of these the switch: a network that is away is commoner than a rack without power."""
    left, found = set(away), []
    while best := _best(left, expected, nodes):
        found.append(best)
        left -= set(best.nodes)
    return found


def _best(away: set[str], expected: Collection[str], nodes: Mapping[str, SlurmNode]) -> Together | None:
    groups: dict[tuple[PlaceKind, str], list[str]] = defaultdict(list)
    for name in sorted(away):
        for kind in PlaceKind:
            if place := getattr(nodes[name], kind):
                groups[kind, place].append(name)
    large = {key for key, names in groups.items() if len(names) >= PLACE_NODES}
    sizes: dict[tuple[PlaceKind, str], int] = defaultdict(int)
    for name in expected if large else ():
        for kind in PlaceKind:
            sizes[kind, getattr(nodes[name], kind)] += 1
    fits = [
        Together(kind, place, groups[kind, place], sizes[kind, place])
        for kind, place in sorted(large)
        if len(groups[kind, place]) * 2 >= sizes[kind, place]
    ]
    return max(fits, key=_likely, default=None)


def _likely(one: Together) -> tuple[int, float, bool, int]:
    share = len(one.nodes) / max(1, one.of)
    return len(one.nodes), share, one.kind is PlaceKind.switch, -list(PlaceKind).index(one.kind)
