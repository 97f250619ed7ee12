"""Silence: a sender that kept its own cadence and stopped. Slurm is asked before anyone is blamed.

Nodes that are away together are explained by the place that they share."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import datetime
from hashlib import sha256
from typing import NamedTuple

from healer.detection.protocol import PictureLook
from healer.model import Component, Evidence, FaultClass, Finding, PlaceKind, Sense, SlurmNode
from healer.observations import Picture
from healer.observations.picture import SILENCE_AFTER, AllHeard

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


#: This share of all senders silent at once means that we ourselves do not hear (and at least three).
FLEET_SHARE = 0.5


def findings(walk: PictureLook) -> list[Finding]:
    """One finding per silent node, or one for what they share. Empty until we have listened long enough."""
    picture, now = walk.picture, walk.now
    if picture.slurm is None or now - picture.watching_since <= SILENCE_AFTER:
        return []
    known = picture.slurm.nodes
    if picture.all_heard is not None and picture.all_heard.holds(known, now):
        return []
    senders = {node.name: node for node in picture.senders() if _expected(known.get(node.name))}
    told = ((name, node.silent_since(now, picture.watching_since)) for name, node in senders.items())
    silent = {name: since for name, since in told if since is not None}
    if not silent:
        first = min((node.beats[-1] for node in senders.values()), default=now)
        picture.all_heard = AllHeard(known, first + SILENCE_AFTER)
        return []
    if is_fleet(len(silent), len(senders)) and _slurm_disagrees(picture, silent):
        return [_fleet(picture, silent, len(senders), now)]
    found = []
    for one in together(silent, senders, known):
        found.append(_place(picture, one, {name: silent.pop(name) for name in one.nodes}, now))
    found.extend(_node(picture, name, since, now) for name, since in sorted(silent.items()))
    return found


def is_fleet(silent: int, senders: int) -> bool:
    return silent >= max(3, FLEET_SHARE * senders)


def _expected(node: SlurmNode | None) -> bool:
    """Whether anybody expects the node to speak: known to Slurm and not out by plan."""
    return node is not None and not node.planned


def _slurm_disagrees(picture: Picture, silent: dict[str, datetime]) -> bool:
    """Slurm still hears most of them: then it is our way of hearing that broke."""
    assert picture.slurm is not None
    heard = sum(1 for name in silent if picture.slurm.nodes[name].responding)
    return heard * 2 > len(silent)


def _evidence(cluster: str, node: str, since: datetime, text: str) -> Evidence:
    digest = sha256(f"silence|{cluster}|{node}|{since.isoformat()}".encode()).hexdigest()
    where = Component(cluster=cluster, node=node)
    return Evidence(digest=digest, at=since, component=where, text=text, sense=Sense.silence)


def _node(picture: Picture, name: str, since: datetime, now: datetime) -> Finding:
    assert picture.slurm is not None
    shown = picture.slurm.nodes[name]
    agrees = not shown.responding
    state = "+".join(shown.state)
    text = (
        f"No signal since {since:%H:%M:%S} UTC, and Slurm does not reach it either ({state})"
        if agrees
        else f"Its sender went silent at {since:%H:%M:%S} UTC; Slurm still reaches the node ({state})"
    )
    return Finding(
        rule="",
        fault="node-silent" if agrees else "sender-silent",
        fault_class=FaultClass.fatal if agrees else FaultClass.informational,
        component=Component(cluster=picture.cluster, node=name),
        at=since,
        arrived_at=now,
        text=text,
        confidence=0.95 if agrees else 0.5,
        evidence=(_evidence(picture.cluster, name, since, text),),
        unusable=agrees,
    )


def _place(picture: Picture, what: Together, nodes: dict[str, datetime], now: datetime) -> Finding:
    text = f"{len(nodes)} nodes {what.kind.words} {what.place} went silent together"
    return Finding(
        rule="",
        fault=f"{what.kind}-silent",
        fault_class=FaultClass.degraded,
        component=what.root(picture.cluster),
        at=min(nodes.values()),
        arrived_at=now,
        text=text,
        confidence=0.8,
        evidence=tuple(_evidence(picture.cluster, n, at, f"{n} silent") for n, at in sorted(nodes.items())),
        affected=tuple(Component(cluster=picture.cluster, node=name) for name in sorted(nodes)),
    )


def _fleet(picture: Picture, silent: dict[str, datetime], senders: int, now: datetime) -> Finding:
    since = min(silent.values())
    text = f"{len(silent)} of {senders} senders went silent at once while Slurm still reaches the nodes"
    first = min(silent, key=lambda name: (silent[name], name))
    return Finding(
        rule="",
        fault="fleet-silent",
        fault_class=FaultClass.informational,
        component=Component(cluster=picture.cluster),
        at=since,
        arrived_at=now,
        text=text,
        confidence=0.9,
        evidence=(_evidence(picture.cluster, first, silent[first], text),),
    )
