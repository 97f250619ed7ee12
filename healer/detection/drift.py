"""Nodes that are not what the good node of their kind was: driver, firmware, BIOS, settings.

Compared with a reference that a person took (`healer learn`), or not at all: what most nodes have is no proof
of being right. A fact that a node never told is unknown, and never bad.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from healer.detection.slurm_conditions import Condition
from healer.model import FACTS, Component, Reference, Sense, SlurmSnapshot, differences, kind_of
from healer.model.hostlist import compact
from healer.observations import Picture

#: Goes on with the fact and its value: all nodes with one old driver are one incident.
DRIFT = "drift:"
FABRIC_MANAGER = "fabric-manager-version"
#: A roll-out or a reboot changes several facts of many nodes within minutes: told once it has settled.
SETTLED_S = 120.0
_PLAIN = re.compile(r"[^0-9A-Za-z._+-]+")


def conditions(picture: Picture, slurm: SlurmSnapshot) -> Iterator[Condition]:
    """One for each fact and value that differs, with all nodes that have it; and one for each fabric manager
    whose version is not its driver's."""
    found: dict[tuple[str, str], dict[str, Reference]] = defaultdict(dict)
    if not picture.references and not any(one.facts for one in picture.nodes.values()):
        return  # Slurm alone told of drivers, and there is nothing to compare that with
    for name, node in slurm.nodes.items():
        facts = picture.facts_of(name)
        if not facts:
            continue
        reference = picture.references.get(kind_of(node.gpu_model))
        if reference is not None:
            for fact, value in differences(facts, reference).items():
                found[fact, value][name] = reference
        if one := _fabric_manager(slurm.cluster, name, facts):
            yield one
    for (fact, value), nodes in sorted(found.items()):
        yield _drift(slurm.cluster, fact, value, nodes)


def _drift(cluster: str, fact: str, value: str, nodes: Mapping[str, Reference]) -> Condition:
    names = sorted(nodes)
    listed = compact(names)
    wanted = sorted({f"{one.facts[fact]} ({one.kind}, from {one.node})" for one in nodes.values()})
    text = (
        f"{FACTS[fact]} {value} on {len(names)} node{'s' if len(names) > 1 else ''}: {listed}; "
        f"it should be {' or '.join(wanted)}"
    )
    return Condition(
        fault=f"{DRIFT}{fact}:{_PLAIN.sub('-', value)[:60]}",
        where=Component(cluster=cluster),
        title=f"{FACTS[fact]} {value} instead of {wanted[0]}",
        text=text,
        for_s=SETTLED_S,
        affected=tuple(names),
        news=hashlib.sha256(text.encode()).hexdigest(),
        sense=Sense.metrics,
    )


def _fabric_manager(cluster: str, node: str, facts: Mapping[str, str]) -> Condition | None:
    """NVIDIA asks for exactly the driver's version: with another one the GPUs get no NVLink."""
    manager, driver = facts.get("fabric_manager"), facts.get("driver")
    if manager is None or driver is None or manager == driver:
        return None
    return Condition(
        fault=FABRIC_MANAGER,
        where=Component(cluster=cluster, node=node),
        title="Fabric manager and driver are not of one version",
        text=f"{node}: fabric manager {manager}, driver {driver}; they have to be the same",
        for_s=SETTLED_S,
        news=f"{manager}|{driver}",
        sense=Sense.metrics,
    )
