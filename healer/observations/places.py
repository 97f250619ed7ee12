"""Slurm's picture with the places that the site's topology file gives."""

import msgspec

from healer.model import Place, SlurmNode, SlurmSnapshot, Topology


def with_places(snapshot: SlurmSnapshot, topology: Topology) -> SlurmSnapshot:
    """Rack, switch and pod from the topology file where the picture itself has none."""
    if not topology.places:
        return snapshot
    nodes = {name: _placed(node, topology.places.get(name)) for name, node in snapshot.nodes.items()}
    return msgspec.structs.replace(snapshot, nodes=nodes)


def _placed(node: SlurmNode, place: Place | None) -> SlurmNode:
    if place is None:
        return node
    return msgspec.structs.replace(
        node,
        rack=node.rack or place.rack,
        switch=node.switch or place.switch,
        pod=node.pod or place.pod,
    )
