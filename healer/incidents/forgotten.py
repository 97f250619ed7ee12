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
    Sense,
    SlurmNode,
    SlurmSnapshot,
)
from healer.model.reasons import is_ours
from healer.model.reserved import is_our_reservation, our_reservation
from healer.observations import Picture

#: So long a drain may stand before its run or incident must be seen: runs end, commands are on their way.
GRACE = timedelta(seconds=60)


def our_drains(picture: Picture) -> list[SlurmNode]:
    """Nodes that healer keeps out: by its words, DOWN ones too, or by its reservation for tests."""
    slurm = picture.slurm
    if slurm is None:
        return []
    ours = (one for one in slurm.reservations.values() if is_our_reservation(one))
    reserved = {name for one in ours for name in one.nodes}
    held = {node.name for node in slurm.held_nodes if is_ours(node.reason)}
    out = held | reserved
    return [node for name, node in slurm.nodes.items() if name in out] if out else []


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
    told = ((node, *_word(facts.snapshot, node)) for node in drains if node.name not in spoken_for)
    return [
        _finding(facts.cluster, node, word, since, now)
        for node, word, since in told
        if since is not None and now - since > GRACE
    ]


def _word(snapshot: SlurmSnapshot | None, node: SlurmNode) -> tuple[str, datetime | None]:
    """What keeps it out, and since when."""
    kept = our_reservation(snapshot, node.name)
    if kept is None or (node.held and is_ours(node.reason)):
        return f"Drained by healer, and nothing speaks for it any more: {node.reason}", node.reason_at
    return f"In healer's reservation {kept.name} for tests, and nobody tests it any more", kept.since


def _finding(cluster: str, node: SlurmNode, text: str, at: datetime, now: datetime) -> Finding:
    where = Component(cluster=cluster, node=node.name)
    digest = sha256(f"healer-drain|{cluster}|{node.name}|{text}|{at}".encode()).hexdigest()
    return Finding(
        rule="forgotten-drain",
        fault="healer-drain",
        fault_class=FaultClass.informational,
        component=where,
        at=at,
        arrived_at=now,
        text=text,
        confidence=1.0,
        evidence=(Evidence(digest=digest, at=at, component=where, text=text, sense=Sense.slurm),),
    )
