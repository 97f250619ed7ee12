"""Slurm's picture with the places of its nodes: from the site's topology file, and switches from Slurm."""

from collections.abc import Mapping

import msgspec

from healer.model import BLOCK, Place, SlurmNode, SlurmSnapshot, Topology

#: Node -> its switches, leaf first; or the block of topology/block, marked as one.
Switches = Mapping[str, tuple[str, ...]]


class Placing:
    """Puts places on pictures. While nothing has changed, the same mapping of nodes comes out again."""

    def __init__(self) -> None:
        self._last: tuple[Mapping[str, SlurmNode], Topology, Switches, Mapping[str, SlurmNode]] | None = None

    def placed(self, snapshot: SlurmSnapshot, topology: Topology, switches: Switches) -> SlurmSnapshot:
        last = self._last
        same = last and last[0] is snapshot.nodes and last[1] is topology and last[2] is switches
        if last and same:
            return msgspec.structs.replace(snapshot, nodes=last[3])
        found = with_places(snapshot, topology, switches)
        self._last = (snapshot.nodes, topology, switches, found.nodes)
        return found


def with_places(snapshot: SlurmSnapshot, topology: Topology, switches: Switches) -> SlurmSnapshot:
    """Where the picture itself says nothing: what the file says, and else what Slurm's own tree says."""
    if not topology.places and not switches:
        return snapshot
    nodes = {
        name: placed(node, topology.place(snapshot.cluster, name), switches.get(name, ()))
        for name, node in snapshot.nodes.items()
    }
    return msgspec.structs.replace(snapshot, nodes=nodes)


def placed(node: SlurmNode, place: Place, above: tuple[str, ...] = ()) -> SlurmNode:
    """A block of Slurm's is what the site says that it is: nodes that share one NVLink domain."""
    blocks = tuple(name.removeprefix(BLOCK) for name in above if name.startswith(BLOCK))
    above = tuple(name for name in above if not name.startswith(BLOCK))
    leaf = node.switch or place.switch or (above[0] if above else "")
    if place == Place() and not leaf and not blocks:
        return node
    return msgspec.structs.replace(
        node,
        rack=node.rack or place.rack,
        switch=leaf,
        pod=node.pod or place.pod,
        domain=node.domain or place.domain or (blocks[0] if blocks else ""),
        pdu=node.pdu or place.pdu,
        row=node.row or place.row,
        # Of a leaf that Slurm does not put above the node its tree says nothing.
        switches=above[above.index(leaf) :] if leaf in above else (leaf,) if leaf else (),
    )
