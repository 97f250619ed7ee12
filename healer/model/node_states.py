"""The state of each node as kept in history: in service or not, and who holds it out."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

import msgspec

from healer.model.slurm import (
    NodeStatus,
    OwnerKind,
    SlurmNode,
    SlurmSnapshot,
    is_empty_reason,
    is_only_ours,
    is_our_reservation,
    owner_of,
)

#: Between snapshots further apart than this, the state is unknown. Slurm is read every few seconds.
GAP = timedelta(minutes=5)
#: Changes by jobs are recorded once per this time: the map of the past has the same resolution.
BUSY_STEP = timedelta(minutes=5)
#: They are recorded this long before the step, so that the map of the step shows them.
_BUSY_LEAD = timedelta(seconds=30)


class NodeCondition(StrEnum):
    in_service = "in_service"
    draining = "draining"
    drained = "drained"
    down = "down"
    planned = "planned"


class Holder(StrEnum):
    """Who holds a node out of service; other programs count as people. `none`: it is in service, out by plan,
    or out for no known reason."""

    healer = "healer"
    slurm = "slurm"
    person = "person"
    none = "none"


class NodeState(msgspec.Struct, frozen=True):
    """`busy`: jobs ran on it."""

    condition: NodeCondition
    holder: Holder
    busy: bool


class StateChanges(NamedTuple):
    """Nodes whose state ended, and the new state of those that have one."""

    ended: list[str]
    began: dict[str, NodeState]


_HOLDERS = {
    OwnerKind.healer: Holder.healer,
    OwnerKind.slurm: Holder.slurm,
    OwnerKind.program: Holder.person,
    OwnerKind.person: Holder.person,
}
_IN_SERVICE, _PLANNED = (
    {busy: NodeState(condition, Holder.none, busy) for busy in (False, True)}
    for condition in (NodeCondition.in_service, NodeCondition.planned)
)


def nodes_under_test(snapshot: SlurmSnapshot) -> set[str]:
    """Nodes that only healer's own reservation keeps out. Slurm shows them as planned work, or as usual."""
    ours = filter(is_our_reservation, snapshot.reservations.values())
    names = {name for reservation in ours for name in reservation.nodes if name in snapshot.nodes}
    return {name for name in names if is_only_ours(snapshot, snapshot.nodes[name])}


def holder_of(node: SlurmNode, *, is_ours: bool) -> Holder:
    """Who holds a node that is out of service. `is_ours`: healer does, if no reason names another."""
    if not is_empty_reason(node.reason):
        return _HOLDERS[owner_of(node.reason, node.reason_user).kind]
    if is_ours:
        return Holder.healer
    return Holder.slurm if node.status in (NodeStatus.down, NodeStatus.invalid) else Holder.none


def node_states(snapshot: SlurmSnapshot) -> dict[str, NodeState]:
    """By name: the state of each node that capacity counts."""
    tested = nodes_under_test(snapshot)
    return {node.name: _state(node, is_tested=node.name in tested) for node in snapshot.gpu_nodes}


def _state(node: SlurmNode, *, is_tested: bool) -> NodeState:
    if not is_tested and node.is_out_by_plan_alone:
        return _PLANNED[node.busy]
    if not is_tested and node.in_service:
        return _IN_SERVICE[node.busy]
    return NodeState(_condition(node, is_tested), holder_of(node, is_ours=is_tested), node.busy)


def _condition(node: SlurmNode, is_tested: bool) -> NodeCondition:
    if node.status is NodeStatus.down or not (node.drain or is_tested):
        return NodeCondition.down
    return NodeCondition.draining if node.busy else NodeCondition.drained


def is_gap(before: datetime, now: datetime) -> bool:
    """Whether two snapshots are too far apart to say that a state lasted from one to the other."""
    return now - before > GAP


def is_busy_step(before: datetime, now: datetime) -> bool:
    """Whether a step of `BUSY_STEP` begins between two snapshots."""
    steps = [(at + _BUSY_LEAD).timestamp() // BUSY_STEP.total_seconds() for at in (before, now)]
    return steps[0] != steps[1]


def as_recorded(before: Mapping[str, NodeState], now: Mapping[str, NodeState]) -> dict[str, NodeState]:
    """`now` between two steps: nodes that differ only by their jobs stay as recorded."""
    return {name: _recorded(before.get(name), state) for name, state in now.items()}


def _recorded(before: NodeState | None, now: NodeState) -> NodeState:
    same = before is not None and (before.condition, before.holder) == (now.condition, now.holder)
    return before if before is not None and same else now


def changes(before: Mapping[str, NodeState], now: Mapping[str, NodeState], *, gap: bool) -> StateChanges:
    """The differences. After a gap every state ended, and each node begins one, possibly the same."""
    if gap:
        return StateChanges(list(before), dict(now))
    began = {name: state for name, state in now.items() if before.get(name) != state}
    return StateChanges([name for name in before if name in began or name not in now], began)
