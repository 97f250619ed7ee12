"""What nodes share: a place that explains the faults of several (`rules/sharing.yaml`), a wave, a silence.

A wave is one kind of fault on many nodes at once. The cause is probably not the nodes but a roll-out, the
fabric or healer. Law 3 gives the numbers, and the breaker holds all actions.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, NamedTuple

from healer.detection.readings import gpu_model
from healer.incidents.certainty import agreed_at
from healer.incidents.incident_verdict import uncapitalised
from healer.model import (
    HARDWARE,
    WAVE_FAULT,
    WAVE_RULE,
    Cause,
    Component,
    FaultClass,
    Finding,
    Incident,
    PlaceKind,
    Remedy,
    Rule,
    Ruleset,
    Severity,
    Sharing,
    SlurmNode,
    storm_size,
)
from healer.model.faults import (
    FLEET_OFFLINE,
    FLEET_SILENT,
    NODE_OFFLINE,
    OUTAGES,
    PLACES_SILENT,
    REBOOTED,
    SERVER_AWAY,
    Trait,
    code_of,
    fault_is,
    fits,
    once,
    silences_behind,
    traits_of,
)
from healer.observations import Picture
from healer.observations.silences import Outage
from healer.text import NO_WORDS, Said, name_some, quoted, say

#: How long after its last report a broken place explains the faults of its nodes.
EXPLAINS_FOR = timedelta(minutes=10)
#: The most names listed in a sentence.
_NAMED = 3


class Places:
    """The places of the cluster's parts, by one walk's picture."""

    def __init__(self, rules: Ruleset, picture: Picture) -> None:
        self._rules, self._picture = rules, picture
        self._topology = rules.topology.of(picture.cluster)
        self._sharings: dict[str, tuple[list[Sharing], list[Sharing]]] = {}
        self._whole_racks: dict[str, bool] = {}

    @property
    def nodes(self) -> Mapping[str, SlurmNode]:
        return self._picture.slurm.nodes if self._picture.slurm is not None else {}

    def of(self, where: Component, kind: PlaceKind) -> str:
        """The name of the place; empty if unknown. A switch that reports about itself is its own place, and a
        rack is in the row of its nodes."""
        if kind is PlaceKind.unplaced:
            return ""
        if where.node is None:
            name = where.switch or where.device or ""
            if kind is PlaceKind.row:
                return self._rows.get(name, "")
            return name if kind is PlaceKind.switch and name in self._switches else ""
        leaf = self._topology.leaf_of(where.node, where.nic) if where.nic else ""
        if kind is PlaceKind.switch and leaf:
            return leaf
        shown = self.nodes.get(where.node)
        place = getattr(shown, kind) if shown is not None else ""
        place = place or getattr(self._topology.place(self._picture.cluster, where.node), kind)
        return place or (self._domain(where.node) if kind is PlaceKind.domain else "")

    @cached_property
    def _rows(self) -> dict[str, str]:
        """Rack -> the row of its nodes."""
        cluster = self._picture.cluster
        spots = (
            (self.of(where, PlaceKind.rack), self.of(where, PlaceKind.row))
            for where in (Component(cluster=cluster, node=node) for node in self.nodes)
        )
        return {rack: row for rack, row in spots if rack and row}

    def _domain(self, node: str) -> str:
        """The NVLink domain as reported by the driver; else the rack, if the rack is built as one domain."""
        state = self._picture.nodes.get(node)
        if state is not None and (domain := state.facts.get("nvlink_domain", "")):
            return domain
        shown = self.nodes.get(node)
        whole = shown is not None and self._is_one_domain(shown)
        return self.of(Component(cluster=self._picture.cluster, node=node), PlaceKind.rack) if whole else ""

    def _is_one_domain(self, node: SlurmNode) -> bool:
        """Whether one NVLink domain spans the whole rack for this node's GPU model."""
        whole_rack = self._whole_racks.get(node.gpu_model)
        if whole_rack is None:
            name = gpu_model(self._rules.gpu_models, node)
            values = next((model.values for model in self._rules.gpu_models if model.name == name), {})
            whole_rack = self._whole_racks[node.gpu_model] = values.get("nvlink_rack", 0) == 1
        return whole_rack

    def root(self, kind: PlaceKind, name: str) -> Component:
        return Component.of_place(self._picture.cluster, kind, name)

    def size(self, kind: PlaceKind, name: str) -> int:
        """The number of nodes at the place."""
        return self._sizes.get((kind, name), 0)

    def keys(self, fault: str, where: Component) -> Iterator[tuple[Sharing, str]]:
        """The places whose fault this fault at `where` may be, or may result from."""
        for sharing in self._of_fault(fault)[0]:
            if place := self.of(where, sharing.place):
                yield sharing, place

    def is_unseen(self, fault: str, where: Component) -> bool:
        """One node's report is enough for this fault of a place, but the place is unknown."""
        alone = [incident for incident in self._of_fault(fault)[0] if incident.at_least == 1]
        return bool(alone) and not any(self.of(where, sharing.place) for sharing in alone)

    def of_itself(self, fault: str) -> Sequence[Sharing]:
        """The sharings in which the place itself has this fault."""
        return self._of_fault(fault)[1]

    def _of_fault(self, fault: str) -> tuple[list[Sharing], list[Sharing]]:
        sharings = self._sharings.get(fault)
        if sharings is None:
            all_ = self._rules.sharings
            sharings = self._sharings[fault] = (
                [sharing for sharing in all_ if fits(fault, (*sharing.faults, *sharing.explains))],
                [sharing for sharing in all_ if fault == sharing.fault or fits(fault, sharing.itself)],
            )
        return sharings

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
        return frozenset({*shown, *self._topology.switches, *self._topology.links} - {""})


def unit(where: Component) -> str:
    """The unit that is counted: a node, or a port of a device."""
    return where.node or f"{where.device or where.switch} {where.part or ''}"


def is_shared(sharing: Sharing, members: Sequence[Incident], size: int) -> bool:
    """Whether enough units have the fault to attribute it to the place."""
    units = len({unit(incident.root) for incident in members if fits(incident.fault, sharing.faults)})
    return units >= sharing.at_least and units >= sharing.share * size


def place_finding(sharing: Sharing, root: Component, place: str, members: Sequence[Incident]) -> Finding:
    """The finding of the place's fault, from its members, oldest first."""
    names = list(dict.fromkeys(unit(incident.root) for incident in members))
    where = say(f"incidents.spot_{sharing.place}", place=place)
    who = say("incidents.nodes_of_it", n=len(names)) if names[1:] else quoted(names[0])
    title = quoted(sharing.title)
    text = say("incidents.told_by", title=title, where=where, who=who, nodes=name_some(names, _NAMED))
    return Finding(
        rule=sharing.name,
        fault=sharing.fault,
        fault_class=FaultClass.degraded,
        component=root,
        at=min(incident.evidence[0].at if incident.evidence else incident.opened for incident in members),
        arrived_at=max(incident.updated for incident in members),
        text=text,
        title=say("incidents.shared_title", title=title, where=where),
        confidence=0.9,
        evidence=tuple(incident.evidence[0] for incident in members if incident.evidence)[:1],
    )


def still_explains(incident: Incident, finding: Finding) -> bool:
    """Whether the place's fault is recent enough to explain this finding."""
    return min(finding.at, finding.arrived_at) - incident.updated <= EXPLAINS_FOR


#: The same as for the breaker.
STORM_WINDOW = timedelta(minutes=5)
#: Faults within this time after a new driver or firmware on their nodes are attributed to the roll-out.
ROLL_OUT = timedelta(hours=24)
#: A wave continues while further faults come within this time.
GOES_ON = timedelta(minutes=10)


class Wave(NamedTuple):
    """`members`: its open incidents, oldest first; `nodes`: all nodes so far. `root`: what they share, or the
    cluster if nothing; `shared`: the same in words; `span`: the time within which they came, in words."""

    members: tuple[Incident, ...]
    nodes: frozenset[str]
    root: Component
    shared: Said
    span: Said


def wave_limit(rules: Ruleset, picture: Picture) -> int | None:
    """The number of distinct roots that make a wave; None: switched off."""
    settings = rules.cluster_guards.get(picture.cluster, rules.guards)
    if settings.breaker_share >= 1.0:
        return None
    nodes = len(picture.slurm.gpu_nodes) if picture.slurm is not None else 0
    return storm_size(settings.breaker_share, nodes)


def may_be_of_wave(incident: Incident, rule: Rule, places: Places) -> bool:
    """Hardware faults, and program errors without a known job. Excluded: watched nodes, nodes in planned
    work, alerts of other systems, and nodes that were already out."""
    node = places.nodes.get(incident.root.node or "")
    if incident.root.node is None or incident.node_was_out or (node is not None and node.planned):
        return False
    if incident.cause is Cause.maintenance or fault_is(incident.fault, Trait.alert):
        return False
    if rule.detection and rule.severity > Severity.P2:
        return False
    if incident.fault_class is FaultClass.application:
        return not incident.jobs_hit
    return incident.fault_class in HARDWARE


def wave_among(
    members: Sequence[Incident],
    places: Places,
    picture: Picture,
    limit: int,
    now: datetime,
    rule: Rule | None = None,
) -> Wave | None:
    """The wave that these incidents of one rule form, oldest first; None: too few."""
    storm = [incident for incident in members if now - agreed_at(incident, rule) < STORM_WINDOW]
    if _node_count(storm) >= limit:
        return _wave(storm, places, picture, say("incidents.in_5_min"))
    by_version: dict[tuple[str, str], list[Incident]] = {}
    for incident in members:
        for fact, (version, changed_at) in sorted(_new_versions(incident.root.node, picture).items()):
            if timedelta(0) <= incident.opened - changed_at <= ROLL_OUT:
                by_version.setdefault((fact, version), []).append(incident)
    worst = max(by_version.values(), key=_node_count, default=[])
    within = say("incidents.within_a_day")
    return _wave(worst, places, picture, within) if _node_count(worst) >= limit else None


def wave_continues(wave: Incident, node: str | None, picture: Picture, now: datetime) -> bool:
    """Whether a finding of the node belongs to the wave now: the wave is recent, or the node has the new
    version that all of its nodes got."""
    if now - wave.updated <= GOES_ON:
        return True
    nodes = [*(part.node for part in wave.affected), node]
    return now - wave.opened <= ROLL_OUT and bool(_common_versions(nodes, picture))


def wave_going_on(
    wave: Incident,
    members: Sequence[Incident],
    places: Places,
    picture: Picture,
    rule: Rule | None = None,
) -> Wave | None:
    """The wave with new members; None if there are none."""
    parts = set(wave.affected)
    theirs = [
        incident for incident in members if incident.root in parts or agreed_at(incident, rule) >= wave.opened
    ]
    if all(incident.root in parts for incident in theirs):
        return None
    return _wave(theirs, places, picture, _since(wave), wave.affected)


def grown_wave(wave: Incident, places: Places, picture: Picture) -> Wave:
    """The wave with all nodes that it covers now."""
    return _wave((), places, picture, _since(wave), wave.affected)


def _since(wave: Incident) -> Said:
    """Since its first node: the wave itself was opened when there were enough, maybe on the next day."""
    first = min((wave.opened, *(evidence.at for evidence in wave.evidence)))
    is_same_day = first.date() == wave.opened.date()
    return say("incidents.since", time=f"{first:%H:%M}" if is_same_day else f"{first:%Y-%m-%d %H:%M}")


def _new_versions(node: str | None, picture: Picture) -> dict[str, tuple[str, datetime]]:
    return picture.new_versions.get(node or "", {})


def _common_versions(nodes: Iterable[str | None], picture: Picture) -> set[tuple[str, str]]:
    """(fact, version) that all of these nodes have got."""
    given = (_new_versions(node, picture).items() for node in nodes)
    return set.intersection(*({(fact, version) for fact, (version, _) in items} for items in given))


def _node_count(members: Iterable[Incident]) -> int:
    return len({incident.root.node for incident in members})


def _wave(
    members: Sequence[Incident],
    places: Places,
    picture: Picture,
    span: Said,
    before: Sequence[Component] = (),
) -> Wave:
    parts = [incident for incident in (*before, *(incident.root for incident in members)) if incident.node]
    root, words = _shared_by(parts, places, picture)
    return Wave(tuple(members), frozenset(part.node or "" for part in parts), root, words, span)


def wave_title(wave: Wave, rule: Rule) -> Said:
    faults = {incident.fault for incident in wave.members}
    code = code_of(next(iter(faults))) if len(faults) == 1 else ""
    what = quoted(code) or uncapitalised(rule.title)
    named = {"n": len(wave.nodes), "what": what, "span": wave.span}
    if wave.shared:
        return say("incidents.wave_shared", shared=wave.shared, **named)
    return say("incidents.wave", **named)


def _shared_by(parts: Sequence[Component], places: Places, picture: Picture) -> tuple[Component, Said]:
    """What all parts share and the rest of the fleet does not."""
    names = {part.node or "" for part in parts}
    root = Component(cluster=picture.cluster)
    given = sorted(_common_versions(names, picture))
    for kind in PlaceKind:
        found = {places.of(part, kind) for part in parts}
        place = found.pop()
        if not place or found or places.size(kind, place) >= len(places.nodes):
            continue
        # Roll-outs go rack by rack: a place that also has healthy nodes explains less than the version.
        if given and places.size(kind, place) > len(names):
            continue
        return places.root(kind, place), say(f"incidents.all_in_{kind}", place=place)
    for fact, version in given:
        return root, say("incidents.all_since", fact=say(f"words.fact_{fact}"), version=version)
    drivers = {places.nodes[name].driver for name in names if name in places.nodes}
    driver = drivers.pop() if len(drivers) == 1 else ""
    others = any(node.driver not in {"", driver} for node in places.nodes.values())
    return root, say("incidents.all_with_driver", driver=driver) if driver and others else NO_WORDS


def is_urgent(wave: Wave) -> bool:
    """The wave is urgent for a person: it reports broken hardware on many nodes."""
    return any(
        incident.severity <= Severity.P2 and incident.fault_class in HARDWARE for incident in wave.members
    )


def drains_title(wave: Wave, fault: str) -> Said:
    """`fault`: Slurm's own drain, the same for all nodes."""
    named = {"n": len(wave.nodes), "kind": fault.partition(":")[2].replace("-", " "), "span": wave.span}
    title = say("incidents.drained_together", **named)
    return say("incidents.drained_together_shared", title=title, shared=wave.shared) if wave.shared else title


def drains_finding(wave: Wave, fault: str, title: Said) -> Finding:
    return _finding_of(wave, fault, FaultClass.informational, title)


def wave_finding(wave: Wave, rule: Rule, title: Said) -> Finding:
    fault_class = FaultClass.degraded if is_urgent(wave) else FaultClass.informational
    return _finding_of(wave, rule.name, fault_class, title)


def _finding_of(wave: Wave, name: str, fault_class: FaultClass, title: Said) -> Finding:
    """`name`: of the rule, or the fault, of its single incidents."""
    first = wave.members[0]
    return Finding(
        rule=WAVE_RULE,
        fault=f"{WAVE_FAULT}{name}",
        fault_class=fault_class,
        component=wave.root,
        at=first.evidence[0].at if first.evidence else first.opened,
        arrived_at=max(incident.opened for incident in wave.members),
        text=title,
        confidence=0.8,
        evidence=first.evidence[:1],
    )


def wave_fields(wave: Wave, *, held: bool) -> dict[str, Any]:
    """Severity, remedy and cause of the wave's incident. The breaker pages for waves that it `held`."""
    causes = {incident.cause for incident in wave.members}
    return {
        "severity": Severity.P1 if is_urgent(wave) else Severity.P2,
        "remedy": (Remedy.none,) if held else (Remedy.notify,),
        "cause": causes.pop() if causes == {Cause.application} else Cause.unclear,
    }


#: Traits of faults that nodes report when their place loses power or network.
_OF_OUTAGE = frozenset({Trait.network, Trait.link_down, Trait.loses_packets, Trait.waits_for_files})


def may_follow_outage(fault: str) -> bool:
    """Whether members of an outage report this fault because of the outage, once or repeatedly."""
    fault = once(fault)
    return fault in {SERVER_AWAY, REBOOTED} or not _OF_OUTAGE.isdisjoint(traits_of(fault))


def reporters_of(root: Component, affected: Iterable[Component]) -> frozenset[str]:
    """The nodes that reported it: the root's own node or, for a device (a file server), the nodes that it
    affects."""
    nodes = (root.node,) if root.node is not None else tuple(part.node for part in affected)
    return frozenset(node for node in nodes if node)


def outage_of(incident: Incident) -> Outage:
    """The outage of a silent place or of the fleet, as in its incident."""
    word = incident.fault.removesuffix("-silent")
    kind = PlaceKind(word) if incident.fault != FLEET_SILENT else None
    nodes = frozenset(part.node for part in incident.affected if part.node)
    return Outage(kind, incident.root.switch or incident.root.device or "", nodes)


def explains_silence(outage: Incident, other: Incident) -> bool:
    """Whether `outage` explains the silence of `other`. A node that is judged alone after its place's outage
    died during it."""
    if other.fault not in silences_behind(outage.fault):
        return False
    if outage.fault in OUTAGES and other.unusable and other.opened > outage.opened:
        return False
    anywhere = other.root.node is None or other.fault == NODE_OFFLINE
    if outage.fault == FLEET_OFFLINE or (outage.fault == FLEET_SILENT and anywhere):
        return True  # it covers every node
    covered = {part.node for part in (*outage.affected, outage.root)} - {None}
    if other.root.node is None:
        theirs = {part.node for part in other.affected}
        if other.fault in PLACES_SILENT:  # the first silent nodes share a PDU, later ones share only a switch
            return len(theirs) < len(covered) and 2 * len(theirs & covered) >= len(theirs)
        # Slurm reports the place whose senders are silent
        return other.root == outage.root or bool(theirs and theirs <= covered)
    return other.root.node in covered
