"""What Slurm's picture says of the whole fleet: worked out once per picture, whoever asks however often.

A storm asks the gate a thousand times over one picture of 1,250 nodes. By the mapping of nodes and not by the
snapshot: an unchanged cluster is a new snapshot every two seconds with the same nodes.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache

import msgspec

from healer.decisions.places import place_of
from healer.model import Ruleset, SlurmNode, SlurmSnapshot


class Fleet(msgspec.Struct, frozen=True):
    """Names of the nodes that caps and the floor count."""

    names: frozenset[str]
    #: Of these, by Slurm alone: where no new jobs may start; and those that are out by plan.
    out: frozenset[str]
    planned: frozenset[str]
    #: partition -> its nodes
    partitions: Mapping[str, frozenset[str]]

    def in_partition(self, name: str) -> frozenset[str]:
        return self.partitions.get(name, frozenset())


def fleet_of(snapshot: SlurmSnapshot) -> Fleet:
    return _fleet(_Nodes(snapshot))


def nodes_at(snapshot: SlurmSnapshot, rules: Ruleset, kind: str) -> Mapping[str, frozenset[str]]:
    """Place -> its nodes, for places of this `kind`: rack, switch or domain."""
    return _at(_Nodes(snapshot), _Places(rules), kind)


class _Nodes:
    """A picture, equal to another one whose nodes are the same mapping."""

    def __init__(self, snapshot: SlurmSnapshot) -> None:
        self.snapshot = snapshot

    def __hash__(self) -> int:
        return id(self.snapshot.nodes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Nodes) and self.snapshot.nodes is other.snapshot.nodes


class _Places:
    """Rules, equal to others whose topology is the same."""

    def __init__(self, rules: Ruleset) -> None:
        self.rules = rules

    def __hash__(self) -> int:
        return id(self.rules.topology)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Places) and self.rules.topology is other.rules.topology


@lru_cache(maxsize=4)
def _fleet(of: _Nodes) -> Fleet:
    fleet = of.snapshot.gpu_nodes
    return Fleet(
        names=frozenset(node.name for node in fleet),
        out=frozenset(node.name for node in fleet if not node.in_service),
        planned=frozenset(node.name for node in fleet if node.planned),
        partitions=_gathered((name, node) for node in fleet for name in node.partitions),
    )


@lru_cache(maxsize=12)
def _at(of: _Nodes, places: _Places, kind: str) -> Mapping[str, frozenset[str]]:
    where = ((getattr(place_of(places.rules, node), kind), node) for node in of.snapshot.gpu_nodes)
    return _gathered((name, node) for name, node in where if name)


def _gathered(pairs: Iterable[tuple[str, SlurmNode]]) -> Mapping[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for name, node in pairs:
        found.setdefault(name, set()).add(node.name)
    return {name: frozenset(there) for name, there in found.items()}
