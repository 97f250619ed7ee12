"""The fleet at a moment of the past, and the slider that names it."""

from datetime import UTC, datetime, timedelta

import msgspec

from healer.console.views.fleet_view import KIND_OF_HOLDER, NodeKind, NodeRow, by_node, node_row
from healer.model import SlurmNode, SlurmSnapshot
from healer.model.node_states import NodeCondition, NodeState
from healer.ports.answers import PastFleet

#: How far back the slider reaches, and its steps.
REACH, STEP = timedelta(hours=24), timedelta(minutes=5)


class Slider(msgspec.Struct, frozen=True):
    """Times in seconds since 1970: a form without a script sends them."""

    least: int
    most: int
    value: int
    step: int = int(STEP.total_seconds())

    @property
    def text(self) -> str:
        return f"{datetime.fromtimestamp(self.value, UTC):%H:%M} UTC"


def slider(now: datetime, at: datetime | None) -> Slider:
    """At its right end without a moment of the past."""
    step = int(STEP.total_seconds())
    most = int(now.timestamp()) // step * step
    least = most - int(REACH.total_seconds())
    return Slider(least, most, most if at is None else min(max(int(at.timestamp()), least), most))


def moment_in(text: str, now: datetime) -> datetime | None:
    """The moment in an address (`2026-11-20T02:40Z`); None if it names none, or one to come."""
    try:
        at = datetime.fromisoformat(text)
        at = at.replace(tzinfo=at.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return at if at <= now else None


def address_of(seconds: str, now: datetime) -> str:
    """The moment that the slider sent, as an address names it; empty at the right end, which is now."""
    if int(seconds) > (now - STEP).timestamp():
        return ""
    return f"{datetime.fromtimestamp(int(seconds), UTC):%Y-%m-%dT%H:%MZ}"


def past_rows(past: PastFleet, snapshot: SlurmSnapshot | None) -> list[NodeRow]:
    """The nodes of today, in the place that they have today, and those that are gone; none in a gap."""
    if not past.states:
        return []
    today = {node.name: node for node in snapshot.gpu_nodes} if snapshot else {}
    nodes = today | {name: SlurmNode(name=name) for name in past.states if name not in today}
    incidents = by_node(past.incidents)
    return [
        node_row(_shown(node, state), incidents.get(node.name, ()), _kind(state))
        for node in nodes.values()
        for state in (past.states.get(node.name),)
    ]


def _kind(state: NodeState | None) -> NodeKind:
    if state is None:
        return NodeKind.unknown
    match state.condition:
        case NodeCondition.in_service:
            return NodeKind.busy if state.busy else NodeKind.idle
        case NodeCondition.planned:
            return NodeKind.planned
        case _:
            return KIND_OF_HOLDER[state.holder]


def _shown(node: SlurmNode, state: NodeState | None) -> SlurmNode:
    """The node in its place, with nothing else that holds only today."""
    words = () if state is None else (state.condition.value.upper(),)
    return SlurmNode(
        name=node.name, state=words, gpus=node.gpus,
        pod=node.pod, row=node.row, rack=node.rack, switch=node.switch,
    )  # fmt: skip
