"""Drains of ours that nothing speaks for any more: no run, no open incident, and no slot of either.

They are left by a run that was cancelled within its drain, or by an incident that a person resolved while the
drain stood. The node would be out of service, and nobody would know.
"""

from collections.abc import Collection
from datetime import datetime, timedelta
from hashlib import sha256

from healer.model import (
    Component,
    Evidence,
    FaultClass,
    Finding,
    GateFacts,
    Incident,
    Run,
    SlurmNode,
)
from healer.model.reasons import is_ours
from healer.observations import Picture

#: So long a drain may stand before its run or incident must be seen: runs end, commands are on their way.
GRACE = timedelta(seconds=60)


def our_drains(picture: Picture) -> list[SlurmNode]:
    if picture.slurm is None:
        return []
    return [node for node in picture.slurm.nodes.values() if node.drain and is_ours(node.reason)]


def forgotten_drains(
    drains: Collection[SlurmNode],
    facts: GateFacts,
    runs: Collection[Run],
    incidents: Collection[Incident],
    now: datetime,
) -> list[Finding]:
    at_work = {run.id for run in runs}
    known = {one.id for one in incidents}
    spoken_for = {slot.node for slot in facts.slots if slot.run in at_work or slot.incident in known}
    spoken_for |= {run.node for run in runs if not run.shadow}
    spoken_for |= {one.root.node for one in incidents if one.fault != "healer-drain"}
    return [
        _finding(facts.cluster, node, now)
        for node in drains
        if node.name not in spoken_for and node.reason_at is not None and now - node.reason_at > GRACE
    ]


def _finding(cluster: str, node: SlurmNode, now: datetime) -> Finding:
    where = Component(cluster=cluster, node=node.name)
    at = node.reason_at or now
    digest = sha256(f"healer-drain|{cluster}|{node.name}|{node.reason}|{at}".encode()).hexdigest()
    text = f"Drained by healer, and nothing speaks for it any more: {node.reason}"
    return Finding(
        rule="forgotten-drain",
        fault="healer-drain",
        fault_class=FaultClass.informational,
        component=where,
        at=at,
        arrived_at=now,
        text=text,
        confidence=1.0,
        evidence=(Evidence(digest=digest, at=at, component=where, text=node.reason),),
    )
