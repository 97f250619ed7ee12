"""What nodes share: one place that explains the faults of several nodes (`rules/sharing.yaml`)."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache

from healer.detection.generations import gpu_model
from healer.model import (
    Component,
    FaultClass,
    Finding,
    Incident,
    PlaceKind,
    Ruleset,
    Sharing,
    SlurmNode,
)
from healer.observations import Picture

#: For so long after its last news a place that is broken explains the faults of its nodes.
EXPLAINS_FOR = timedelta(minutes=10)
#: Names that a sentence holds.
_NAMED = 3


@lru_cache(maxsize=16384)
def _is_of(fault: str, globs: tuple[str, ...]) -> bool:
    """Each walk asks it of each open incident, and the answers are few."""
    return any(fnmatchcase(fault, glob) for glob in globs)


class Places:
    """Where parts of the cluster stand, by one pass's picture."""

    def __init__(self, rules: Ruleset, picture: Picture) -> None:
        self._rules, self._picture = rules, picture
        self._sharings: dict[str, tuple[list[Sharing], list[Sharing]]] = {}
        self._whole_racks: dict[str, bool] = {}

    @property
    def nodes(self) -> Mapping[str, SlurmNode]:
        return self._picture.slurm.nodes if self._picture.slurm is not None else {}

    def of(self, where: Component, kind: PlaceKind) -> str:
        """The name of the place; empty where nobody tells it. A switch that tells of itself is at itself, a
        rack in the row of its nodes."""
        if where.node is None:
            own = where.switch or where.device or ""
            if kind is PlaceKind.row:
                return self._rows.get(own, "")
            return own if kind is PlaceKind.switch and own in self._switches else ""
        leaf = self._rules.topology.leaf_of(where.node, where.nic) if where.nic else ""
        if kind is PlaceKind.switch and leaf:
            return leaf
        shown = self.nodes.get(where.node)
        known = getattr(shown, kind) if shown is not None else ""
        known = known or getattr(self._rules.topology.place(self._picture.cluster, where.node), kind)
        return known or (self._domain(where.node) if kind is PlaceKind.domain else "")

    @cached_property
    def _rows(self) -> dict[str, str]:
        """By rack: the row of its nodes."""
        cluster = self._picture.cluster
        spots = (
            (self.of(where, PlaceKind.rack), self.of(where, PlaceKind.row))
            for where in (Component(cluster=cluster, node=node) for node in self.nodes)
        )
        return {rack: row for rack, row in spots if rack and row}

    def _domain(self, node: str) -> str:
        """The NVLink domain as the driver itself tells it; else, of a rack that is built as one, the rack."""
        if told := self._told(node):
            return told
        shown = self.nodes.get(node)
        whole = shown is not None and self._is_one_domain(shown)
        return self.of(Component(cluster=self._picture.cluster, node=node), PlaceKind.rack) if whole else ""

    def _is_one_domain(self, node: SlurmNode) -> bool:
        """Whether one NVLink domain joins the whole rack of this node's GPU model."""
        known = self._whole_racks.get(node.gpu_model)
        if known is None:
            name = gpu_model(self._rules.gpu_models, node)
            values = next((one.values for one in self._rules.gpu_models if one.name == name), {})
            known = self._whole_racks[node.gpu_model] = values.get("nvlink_rack", 0) == 1
        return known

    def _told(self, node: str) -> str:
        """The NVLink domain as the driver itself tells it."""
        known = self._picture.nodes.get(node)
        return known.facts.get("nvlink_domain", "") if known is not None else ""

    def root(self, kind: PlaceKind, name: str) -> Component:
        """A rack, a PDU and a domain go by their names, as their own telemetry does."""
        cluster = self._picture.cluster
        if kind is PlaceKind.switch:
            return Component(cluster=cluster, switch=name)
        return Component(cluster=cluster, device=name)

    def size(self, kind: PlaceKind, name: str) -> int:
        """Nodes that stand there."""
        return self._sizes.get((kind, name), 0)

    def keys(self, fault: str, where: Component) -> Iterator[tuple[Sharing, str]]:
        """The places whose fault this one at `where` may be."""
        for sharing in self._of_fault(fault)[0]:
            if place := self.of(where, sharing.place):
                yield sharing, place

    def is_unseen(self, fault: str, where: Component) -> bool:
        """One node's word is enough for this fault to be a place's, and nobody tells the place."""
        alone = [one for one in self._of_fault(fault)[0] if one.at_least == 1]
        return bool(alone) and not any(self.of(where, one.place) for one in alone)

    def of_itself(self, fault: str) -> Sequence[Sharing]:
        """Those that a fault of the place itself stands for."""
        return self._of_fault(fault)[1]

    def _of_fault(self, fault: str) -> tuple[list[Sharing], list[Sharing]]:
        known = self._sharings.get(fault)
        if known is None:
            all_ = self._rules.sharings
            known = self._sharings[fault] = (
                [one for one in all_ if _is_of(fault, one.faults)],
                [one for one in all_ if fault == one.fault or _is_of(fault, one.itself)],
            )
        return known

    @cached_property
    def _sizes(self) -> dict[tuple[PlaceKind, str], int]:
        found: dict[tuple[PlaceKind, str], int] = {}
        for name in self.nodes:
            for kind in PlaceKind:
                if place := self.of(Component(cluster=self._picture.cluster, node=name), kind):
                    found[kind, place] = found.get((kind, place), 0) + 1
        return found

    @cached_property
    def _switches(self) -> frozenset[str]:
        shown = {node.switch for node in self.nodes.values()}
        topology = self._rules.topology
        return frozenset({*shown, *topology.switches, *topology.links} - {""})


def unit(where: Component) -> str:
    """What counts as one: a node, or a port of a device."""
    return where.node or f"{where.device or where.switch} {where.part or ''}"


def is_shared(sharing: Sharing, members: Sequence[Incident], size: int) -> bool:
    """Whether so many have it that it is the place's."""
    units = len({unit(one.root) for one in members})
    return units >= sharing.at_least and units >= sharing.share * size


def finding_of(sharing: Sharing, root: Component, place: str, members: Sequence[Incident]) -> Finding:
    """The claim that the place has the fault, from its members, the oldest first."""
    names = list(dict.fromkeys(unit(one.root) for one in members))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    place_words = f"{sharing.place.replace('domain', 'NVLink domain')} {place}"
    some = f"{len(names)} nodes of it" if len(names) > 1 else names[0]
    text = f"{sharing.title}: {place_words}, told by {some} ({', '.join(names[:_NAMED])}{more})"
    return Finding(
        rule=sharing.name,
        fault=sharing.fault,
        fault_class=FaultClass.degraded,
        component=root,
        at=min(one.evidence[0].at if one.evidence else one.opened for one in members),
        arrived_at=max(one.updated for one in members),
        text=text,
        title=f"{sharing.title} ({place_words})",
        confidence=0.9,
        evidence=tuple(one.evidence[0] for one in members if one.evidence)[:1],
    )


def explains(incident: Incident, finding: Finding) -> bool:
    """What a place explained an hour ago says nothing of what breaks now."""
    return min(finding.at, finding.arrived_at) - incident.updated <= EXPLAINS_FOR
