"""What is known of silent nodes and outages from one walk to the next."""

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
    """None of these nodes can be silent until then: each was heard since."""

    nodes: Mapping[str, SlurmNode]
    until: datetime

    def holds(self, nodes: Mapping[str, SlurmNode], now: datetime) -> bool:
        return nodes is self.nodes and now <= self.until


class Settled(NamedTuple):
    """Who is silent, and until when that and what follows from it stay so, if all others keep their
    cadence."""

    silent: Set[str]
    until: datetime


class Alone(NamedTuple):
    """`since`: when the node was last heard. `others_back_at`: when those of its place that had been away
    with it were back; None where none had been."""

    since: datetime
    others_back_at: datetime | None


class Unreached(NamedTuple):
    """A node that sends nothing, and that Slurm did not reach either: since when, and until when."""

    since: datetime
    back_at: datetime | None = None


@dataclass
class Silences:
    """Which nodes are silent."""

    #: The result of the last look; None: a node is silent, or a sender is new.
    all_heard: AllHeard | None = None
    #: Outages that the last walk left open.
    outages: tuple[Outage, ...] = ()
    #: Nodes of a place whose network is broken for them, by incidents that the last walk left open.
    broken: frozenset[str] = frozenset()
    #: Nodes that were judged alone.
    alone: dict[str, Alone] = field(default_factory=dict)
    #: Nodes without a sender that Slurm does not reach, or did not reach before; and Slurm's nodes that were
    #: last looked at for them.
    unreached: dict[str, Unreached] = field(default_factory=dict)
    looked_at: Mapping[str, SlurmNode] | None = None
    #: When a heartbeat of the node came last that had arrived long before. It has waited in a spool or the
    #: inbox, as may what its node has sent since; or the clock of the API that took it is behind. Neither is
    #: the node's silence.
    late: dict[str, datetime] = field(default_factory=dict)
