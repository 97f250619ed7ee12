"""Drains that are not ours: Slurm's, other programs' and people's. Each is an incident with owner and age."""

from datetime import datetime
from hashlib import sha256

from healer.detection.slurm_conditions import is_offline
from healer.model import Component, Evidence, FaultClass, Finding, OwnerKind, Sense, SlurmNode, SlurmSnapshot
from healer.model.reasons import slurm_kind
from healer.model.reserved import only_ours
from healer.observations import Picture


def findings(picture: Picture, now: datetime) -> list[Finding]:
    """One finding per node that somebody else holds out of service, when the picture changed. Planned work
    is none."""
    if picture.slurm is None or not picture.nodes_changed:
        return []
    return [
        _finding(picture.cluster, node, fault, now)
        for node in picture.slurm.odd_nodes
        if (fault := fault_of(node, picture.slurm)) is not None
    ]


def is_drain(fault: str) -> bool:
    """Whether incidents of this fault are about somebody's hold on a node."""
    return fault == "person-drain" or fault.startswith(("slurm-drain:", "foreign-drain:"))


def fault_of(node: SlurmNode, snapshot: SlurmSnapshot | None) -> str | None:
    """The fault that a hold on the node is told as; None where nobody holds it, we do, or it is planned.

    Our own tests are no plan: whoever drains a node amid them means it. A node that Slurm does not reach is
    told by the watch over such nodes.
    """
    owner = node.owner
    if owner is None or not node.held or is_offline(node):
        return None
    if node.planned and not only_ours(snapshot, node):
        return None
    match owner.kind:
        case OwnerKind.healer:
            return None
        case OwnerKind.slurm:
            return f"slurm-drain:{slurm_kind(node.reason) or 'not-responding'}"
        case OwnerKind.program:
            return f"foreign-drain:{owner.name.lower()}"
        case OwnerKind.person:
            return "person-drain"


def _finding(cluster: str, node: SlurmNode, fault: str, now: datetime) -> Finding:
    at = node.reason_at or now
    if fault.startswith("slurm-drain:"):
        text = f"Slurm itself took it out: {node.reason or 'not responding'}"
    else:
        text = f"Drained by {node.owner}: {node.reason or 'no reason given'}"
    where = Component(cluster=cluster, node=node.name)
    # Not the moment: Slurm moves it when it appends to a reason. A new reason is new evidence.
    identity = f"drain|{cluster}|{node.name}|{node.reason}|{node.reason_at}"
    evidence = Evidence(
        digest=sha256(identity.encode()).hexdigest(),
        at=at,
        component=where,
        text=f"{'+'.join(node.state)}: {node.reason}",
        sense=Sense.slurm,
    )
    return Finding(
        rule="",
        fault=fault,
        fault_class=FaultClass.informational,
        component=where,
        at=at,
        arrived_at=now,
        text=text,
        confidence=1.0,
        evidence=(evidence,),
    )
