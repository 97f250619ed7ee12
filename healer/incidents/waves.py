"""A wave: one kind of fault on many nodes at once is hardly the nodes' own. Probably it is us, a roll-out or
the fabric; law 3 gives the numbers, and the breaker keeps healer's hands off."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from healer.incidents.sentence import code_of
from healer.incidents.shared import Places
from healer.model import (
    FACTS,
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
    storm_size,
)
from healer.model.detection import ALERT_FAULT
from healer.observations import Picture

#: As the breaker's.
STORM_WINDOW = timedelta(minutes=5)
#: Faults so soon after a driver or a firmware of their nodes changed are the roll-out's.
ROLL_OUT = timedelta(hours=24)
#: A wave goes on while more of it comes within this.
GOES_ON = timedelta(minutes=10)


class Wave(NamedTuple):
    """`members`: the incidents in it that are open, the oldest first; `nodes` all it came to. `root`: what
    they share, the cluster if nothing; `shared` the same in words, `span` the time in which they came."""

    members: tuple[Incident, ...]
    nodes: frozenset[str]
    root: Component
    shared: str
    span: str


def limit_of(rules: Ruleset, picture: Picture) -> int | None:
    """Distinct roots that make a wave; None: the site has switched it off."""
    settings = rules.cluster_guards.get(picture.cluster, rules.guards)
    if settings.breaker_share >= 1.0:
        return None
    nodes = len(picture.slurm.gpu_nodes) if picture.slurm is not None else 0
    return storm_size(settings.breaker_share, nodes)


def may_be_of_wave(incident: Incident, rule: Rule, places: Places) -> bool:
    """Hardware faults, and errors of programs where nobody knows a job. What is only watched, planned or
    another system's alert makes none, nor does a node that was out already."""
    node = places.nodes.get(incident.root.node or "")
    if incident.root.node is None or incident.node_was_out or (node is not None and node.planned):
        return False
    if incident.cause is Cause.maintenance or incident.fault.startswith(ALERT_FAULT):
        return False
    if rule.detection and rule.severity > Severity.P2:
        return False
    if incident.fault_class is FaultClass.application:
        return not incident.jobs_hit
    return incident.fault_class in HARDWARE


def wave_among(
    members: Sequence[Incident], places: Places, picture: Picture, limit: int, now: datetime
) -> Wave | None:
    """The wave that these incidents of one rule make, the oldest first; None: too few."""
    storm = [one for one in members if now - one.opened < STORM_WINDOW]
    if _nodes(storm) >= limit:
        return _wave(storm, places, picture, "in 5 min")
    by_version: dict[tuple[str, str], list[Incident]] = {}
    for one in members:
        for fact, (version, changed_at) in sorted(_new_versions(one.root.node, picture).items()):
            if timedelta(0) <= one.opened - changed_at <= ROLL_OUT:
                by_version.setdefault((fact, version), []).append(one)
    worst = max(by_version.values(), key=_nodes, default=[])
    return _wave(worst, places, picture, "within a day") if _nodes(worst) >= limit else None


def goes_on(wave: Incident, node: str | None, picture: Picture, now: datetime) -> bool:
    """Whether what is told of the node now is of that wave: it is fresh, or the node has the version that all
    of its nodes were given."""
    if now - wave.updated <= GOES_ON:
        return True
    nodes = [*(one.node for one in wave.affected), node]
    given = [
        {(fact, version) for fact, (version, _) in picture.new_versions.get(name or "", {}).items()}
        for name in nodes
    ]
    return now - wave.opened <= ROLL_OUT and bool(set.intersection(*given))


def going_on(known: Incident, members: Sequence[Incident], places: Places, picture: Picture) -> Wave | None:
    """The wave with what came since; None: nothing did."""
    parts = set(known.affected)
    theirs = [one for one in members if one.root in parts or one.opened >= known.opened]
    if all(one.root in parts for one in theirs):
        return None
    return _wave(theirs, places, picture, f"since {known.opened:%H:%M} UTC", known.affected)


def grown(known: Incident, places: Places, picture: Picture) -> Wave:
    """The wave as it is with the nodes that it covers now."""
    return _wave((), places, picture, f"since {known.opened:%H:%M} UTC", known.affected)


def _new_versions(node: str | None, picture: Picture) -> dict[str, tuple[str, datetime]]:
    return picture.new_versions.get(node or "", {})


def _nodes(members: Iterable[Incident]) -> int:
    return len({one.root.node for one in members})


def _wave(
    members: Sequence[Incident], places: Places, picture: Picture, span: str, before: Sequence[Component] = ()
) -> Wave:
    parts = [one for one in (*before, *(one.root for one in members)) if one.node]
    root, words = _shared(parts, places, picture)
    return Wave(tuple(members), frozenset(one.node or "" for one in parts), root, words, span)


def title_of(wave: Wave, rule: Rule) -> str:
    faults = {one.fault for one in wave.members}
    what = code_of(next(iter(faults))) if len(faults) == 1 else ""
    what = what or f"{rule.title[:1].lower()}{rule.title[1:]}"
    shared = f", {wave.shared}" if wave.shared else ""
    return f"{len(wave.nodes)} nodes with {what} {wave.span}{shared}: probably us, a roll-out or the fabric"


def _shared(parts: Sequence[Component], places: Places, picture: Picture) -> tuple[Component, str]:
    """What all of them share and the rest of the fleet does not."""
    names = {one.node or "" for one in parts}
    root = Component(cluster=picture.cluster)
    changed = [
        {(fact, told[0]) for fact, told in _new_versions(name, picture).items()} for name in sorted(names)
    ]
    given = sorted(set.intersection(*changed))
    for kind in PlaceKind:
        found = {places.of(one, kind) for one in parts}
        place = found.pop()
        if not place or found or places.size(kind, place) >= len(places.nodes):
            continue
        # Rows of racks are rolled out one after another: a place that has well nodes too explains less.
        if given and places.size(kind, place) > len(names):
            continue
        return places.root(kind, place), f"all {kind.words} {place}"
    for fact, version in given:
        return root, f"all since their {FACTS[fact]} became {version}"
    drivers = {places.nodes[name].driver for name in names if name in places.nodes}
    told = drivers.pop() if len(drivers) == 1 else ""
    others = any(node.driver not in {"", told} for node in places.nodes.values())
    return root, f"all with driver {told}" if told and others else ""


def is_urgent(wave: Wave) -> bool:
    """Somebody has to look now: hardware of many nodes is told to be broken."""
    return any(one.severity <= Severity.P2 and one.fault_class in HARDWARE for one in wave.members)


def finding_of(wave: Wave, rule: Rule, title: str) -> Finding:
    first = wave.members[0]
    return Finding(
        rule=WAVE_RULE,
        fault=f"{WAVE_FAULT}{rule.name}",
        fault_class=FaultClass.degraded if is_urgent(wave) else FaultClass.informational,
        component=wave.root,
        at=first.evidence[0].at if first.evidence else first.opened,
        arrived_at=max(one.opened for one in wave.members),
        text=title,
        confidence=0.8,
        evidence=first.evidence[:1],
    )


def told_as(wave: Wave, rule: Rule) -> dict[str, Any]:
    """How urgent it is, and who is told. The breaker pages for those that it holds."""
    causes = {one.cause for one in wave.members}
    return {
        "severity": Severity.P1 if is_urgent(wave) else Severity.P2,
        "remedy": (Remedy.none,) if rule.playbook is not None else (Remedy.notify,),
        "cause": causes.pop() if causes == {Cause.application} else Cause.unclear,
    }
