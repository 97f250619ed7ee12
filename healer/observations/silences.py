"""What is known about silent nodes and outages from one walk to the next."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from healer.model import PlaceKind, SlurmNode


class Outage(NamedTuple):
    """An open incident of a place, or of the fleet, whose nodes are silent: those reported so far."""

    #: None: the whole fleet.
    kind: PlaceKind | None
    place: str
    nodes: frozenset[str]


class AllHeard(NamedTuple):
    """None of these nodes can be silent until then: each has been heard since."""

    nodes: Mapping[str, SlurmNode]
    until: datetime

    def holds(self, nodes: Mapping[str, SlurmNode], now: datetime) -> bool:
        return nodes is self.nodes and now <= self.until


class Settled(NamedTuple):
    """The silent nodes, and until when that and its consequences stay the same, if all others keep sending
    regularly."""

    silent: Set[str]
    until: datetime


class Alone(NamedTuple):
    """`since`: when the node was last heard. `others_back_at`: when the nodes of its place that had been
    silent with it were back; None if there were none."""

    since: datetime
    others_back_at: datetime | None


class Unreached(NamedTuple):
    """A node that sends nothing and that Slurm did not reach either: since when, and until when."""

    since: datetime
    back_at: datetime | None = None


@dataclass
class Silences:
    """Which nodes are silent."""

    #: The result of the last evaluation; None: a node is silent, or a sender is new.
    all_heard: AllHeard | None = None
    #: Outages that were open after the last walk.
    outages: tuple[Outage, ...] = ()
    #: Nodes of a place whose network is broken for them, by incidents that were open after the last walk.
    broken: frozenset[str] = frozenset()
    #: Nodes that were judged alone.
    alone: dict[str, Alone] = field(default_factory=dict)
    #: Nodes without a sender that Slurm does not reach, or did not reach before; and Slurm's nodes that were
    #: last checked for them.
    unreached: dict[str, Unreached] = field(default_factory=dict)
    looked_at: Mapping[str, SlurmNode] | None = None
    #: When the node's last delayed heartbeat came. It has waited in a spool or the inbox, as may what its
    #: node has sent since; or the clock of the API that received it is behind. Neither is the node's silence.
    late: dict[str, datetime] = field(default_factory=dict)
