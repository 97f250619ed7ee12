"""Drains that are not ours: Slurm's own and people's. Both become incidents with an owner and an age."""

from datetime import datetime
from hashlib import sha256

from healer.model import Component, Evidence, FaultClass, Finding, SlurmNode
from healer.model.reasons import is_ours, slurm_kind
from healer.observations import Picture


def findings(picture: Picture, now: datetime) -> list[Finding]:
    """One finding per node that somebody else holds out of service, when the picture changed. Planned work
    is none."""
    if picture.slurm is None or not picture.nodes_changed:
        return []
    found = []
    for node in picture.slurm.nodes.values():
        if node.held and not node.planned and not is_ours(node.reason):
            found.append(_finding(picture.cluster, node, now))
    return found


def _finding(cluster: str, node: SlurmNode, now: datetime) -> Finding:
    kind = slurm_kind(node.reason) or ("not-responding" if not node.reason and not node.drain else None)
    at = node.reason_at or now
    if kind is None:
        fault, text = "person-drain", f"Drained by {node.reason_user or 'a person'}: {node.reason}"
    else:
        fault, text = f"slurm-drain:{kind}", f"Slurm itself took it out: {node.reason or 'not responding'}"
    where = Component(cluster=cluster, node=node.name)
    # Not the moment: Slurm moves it when it appends to a reason. A new reason is new evidence.
    identity = f"drain|{cluster}|{node.name}|{node.reason}|{node.reason_at}"
    evidence = Evidence(
        digest=sha256(identity.encode()).hexdigest(),
        at=at,
        component=where,
        text=f"{'+'.join(node.state)}: {node.reason}",
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
