"""What was found of the fabric: cables -> switches, their levels, and the leaf of each node.

Pure. `rules/topology-found.yaml` holds it in the words of topology.yaml; what a site wrote there wins.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import yaml

from healer.model import Peer, Place, Switch, Topology
from healer.model.vocabulary import UserError
from healer.text import Said, joined, name_some, quoted, say

#: The file in the folder of the rules.
FOUND = "topology-found.yaml"
#: Limit per input. 10,000 GPUs have some 10,000 cables to nodes, and as many between switches.
BYTES_MAX = 256 * 2**20
CABLES_MAX = 500_000
LINE_MAX = 16_384
#: Changes that are shown one by one.
_SHOWN = 40

HEAD = """\
# Found by `healer topology import`; it rewrites this file. topology.yaml, which people write, wins.
"""


class Unreadable(UserError):
    """The input is not what it should be; the text names the line."""


class Cable(NamedTuple):
    """From a port of a switch to a node or another switch."""

    switch: str
    port: str
    peer: str
    peer_port: str
    is_switch: bool


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """`guids` by switch, if known; `skipped`: reasons why something was not a node's cable, and how often."""

    cables: tuple[Cable, ...] = ()
    guids: dict[str, str] = {}
    skipped: dict[Said, int] = {}


def natural(text: str) -> list[tuple[int, str]]:
    """So that port 10 comes behind port 9."""
    parts = re.split(r"(\d{1,18})", text)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts if part]


def topology_of(found: Found) -> Topology:
    """Switches with what is above them, cables by switch and port, and the leaf of each node.

    A node with several rails has several leaves: its place is that of the first rail, its cables are those of
    all. A switch to which nodes are cabled is a leaf; the others lie above what they are reached from.
    """
    links: dict[str, dict[str, Peer]] = {}
    neighbours: dict[str, set[str]] = {}
    rails: dict[str, tuple[Any, str]] = {}
    for cable in sorted(found.cables, key=lambda cable: (natural(cable.switch), natural(cable.port))):
        links.setdefault(cable.switch, {})[cable.port] = Peer(cable.peer, cable.peer_port)
        neighbours.setdefault(cable.switch, set())
        if cable.is_switch:
            neighbours[cable.switch].add(cable.peer)
            neighbours.setdefault(cable.peer, set()).add(cable.switch)
            continue
        rail = (natural(cable.peer_port), natural(cable.switch), natural(cable.port))
        if cable.peer not in rails or rail < rails[cable.peer][0]:
            rails[cable.peer] = rail, cable.switch
    leaves = {cable.switch for cable in found.cables if not cable.is_switch}
    level = _levels(leaves, neighbours)
    switches = {}
    for name in sorted(neighbours.keys() | found.guids.keys(), key=natural):
        above = [other for other in neighbours.get(name, ()) if level.get(other, 0) > level.get(name, 0)]
        switches[name] = Switch(guid=found.guids.get(name, ""), above=tuple(sorted(above, key=natural)))
    places = {node: Place(switch=rails[node][1]) for node in sorted(rails, key=natural)}
    return Topology(places=places, switches=switches, links=links)


def _levels(leaves: Iterable[str], neighbours: Mapping[str, set[str]]) -> dict[str, int]:
    """How many switches lie between each one and the nearest leaf."""
    level = dict.fromkeys(leaves, 0)
    edge = sorted(level)
    while edge:
        reached = sorted({other for name in edge for other in neighbours.get(name, ())} - level.keys())
        level |= {name: level[edge[0]] + 1 for name in reached}
        edge = reached
    return level


def merged(old: Topology, new: Topology) -> Topology:
    """Both; if they describe the same node, switch or port, the new one counts."""
    links = {name: dict(ports) for name, ports in old.links.items()}
    for name, ports in new.links.items():
        links.setdefault(name, {}).update(ports)
    switches = dict(old.switches)
    for name, switch in new.switches.items():
        before = switches.get(name, Switch())
        above = tuple(sorted({*before.above, *switch.above}, key=natural))
        switches[name] = Switch(guid=switch.guid or before.guid, above=above)
    return Topology(places=old.places | new.places, switches=switches, links=links)


def by_hand_first(hand: Topology, found: Topology) -> Topology:
    """The effective topology: the site's own, and the found one where that is silent."""
    places = dict(hand.places)
    for node, place in found.places.items():
        place_by_hand = places.get(node, Place())
        places[node] = msgspec.structs.replace(place_by_hand, switch=place_by_hand.switch or place.switch)
    switches = dict(found.switches)
    for name, switch in hand.switches.items():
        other = found.switches.get(name, Switch())
        switches[name] = Switch(guid=switch.guid or other.guid, above=switch.above or other.above)
    links = {name: found.links.get(name, {}) | hand.links.get(name, {}) for name in found.links | hand.links}
    return msgspec.structs.replace(hand, places=places, switches=switches, links=links)


def as_yaml(topology: Topology) -> str:
    """The file, the same text for the same topology."""
    leaves: dict[str, list[str]] = {}
    for node in sorted(topology.places, key=natural):
        leaves.setdefault(topology.places[node].switch, []).append(node)
    switches = {}
    for name in sorted(topology.switches, key=natural):
        switch = topology.switches[name]
        fields = {"guid": switch.guid, "above": list(switch.above)}
        switches[name] = {field: value for field, value in fields.items() if value}
    links = {
        name: {port: f"{peer.name}/{peer.port}" if peer.port else peer.name for port, peer in ports}
        for name in sorted(topology.links, key=natural)
        if (ports := sorted(topology.links[name].items(), key=lambda item: natural(item[0])))
    }
    places = {",".join(leaves[leaf]): {"switch": leaf} for leaf in sorted(leaves, key=natural)}
    body = {"places": places, "switches": switches, "links": links}
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return HEAD + yaml.dump(body, Dumper=dumper, sort_keys=False, allow_unicode=True, width=1_000_000)


def changes(before: Topology, after: Topology) -> list[Said]:
    """What differs, one line each, in the order of the names; long lists are cut."""
    differences: list[Said] = []
    for what, old, new in (
        (say("topology.node"), _nodes(before), _nodes(after)),
        (say("topology.switch"), _switches(before), _switches(after)),
        (say("topology.cable"), _cables(before), _cables(after)),
    ):
        lines = []
        for name in sorted(old.keys() | new.keys(), key=natural):
            if name not in old:
                lines.append(say("topology.new", what=what, name=name, now=new[name]))
            elif name not in new:
                lines.append(say("topology.gone", what=what, name=name, was=old[name]))
            elif old[name] != new[name]:
                line = say("topology.changed", what=what, name=name, was=old[name], now=new[name])
                lines.append(line)
        differences += lines[:_SHOWN]
        if len(lines) > _SHOWN:
            differences.append(say("topology.more_changes", n=len(lines) - _SHOWN))
    return differences


def _nodes(topology: Topology) -> dict[str, Said]:
    return {
        node: say("topology.leaf", switch=place.switch)
        for node, place in topology.places.items()
        if place.switch
    }


def _switches(topology: Topology) -> dict[str, Said]:
    return {name: _switch(switch) for name, switch in topology.switches.items()}


def _switch(switch: Switch) -> Said:
    below = say("topology.below", above=joined(switch.above, "comma")) if switch.above else ""
    parts = [part for part in (switch.guid, below) if part]
    return joined(parts, "space") if parts else say("topology.no_guid")


def _cables(topology: Topology) -> dict[str, Said]:
    return {
        f"{name} {port}": quoted(f"{peer.name} {peer.port}".strip())
        for name, ports in topology.links.items()
        for port, peer in ports.items()
    }


def differences_to_slurm(topology: Topology, slurm: Mapping[str, tuple[str, ...]]) -> list[Said]:
    """Where Slurm's own tree says something else: a line for each leaf that differs, and what it lacks.

    A node with several rails agrees with Slurm if any of its leaves is Slurm's.
    """
    leaves: dict[str, set[str]] = {}
    for switch, ports in topology.links.items():
        for peer in ports.values():
            if peer.name not in topology.switches:
                leaves.setdefault(peer.name, set()).add(switch)
    other: dict[tuple[str, str], list[str]] = {}
    for node, above in sorted(slurm.items(), key=lambda item: natural(item[0])):
        ours = leaves.get(node)
        if ours and above and above[0] not in ours:
            other.setdefault((", ".join(sorted(ours, key=natural)), above[0]), []).append(node)
    lines = [
        say("topology.other_leaf", nodes=name_some(nodes, 6), ours=ours, theirs=theirs)
        for (ours, theirs), nodes in other.items()
    ]
    if nodes := leaves.keys() - slurm.keys():
        lines.append(say("topology.not_in_tree", nodes=name_some(sorted(nodes, key=natural), 6)))
    if nodes := slurm.keys() - leaves.keys():
        lines.append(say("topology.no_cable", nodes=name_some(sorted(nodes, key=natural), 6)))
    return lines
