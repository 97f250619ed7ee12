"""The nodes of the fleet as the map and the table show them."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

import msgspec

from healer.console import words
from healer.model import NodeStatus, OwnerKind, Severity, SlurmNode, Verdict
from healer.model.node_states import Holder, holder_of, nodes_under_test
from healer.ports.answers import OpenIncident, Standing
from healer.text import Said, joined, quoted, say

#: The mildest first.
VERDICT_RANK = {verdict: rank for rank, verdict in enumerate(Verdict)}


class NodeKind(StrEnum):
    """The state of a node to the person on call. The order is that of the table, worst first."""

    bad_in_service = "bad_in_service"
    out_healer = "out_healer"
    out_slurm = "out_slurm"
    out_person = "out_person"
    unknown = "unknown"
    planned = "planned"
    busy = "busy"
    idle = "idle"


class KindSigns(NamedTuple):
    """A kind in words; as a letter in its cell, so that colour is never the only sign; as a colour of
    console.css."""

    words: str
    letter: str
    paint: str


KINDS = {
    NodeKind.bad_in_service: KindSigns(say("console.fleet_known_bad_service"), "!", "c-bad"),
    NodeKind.out_healer: KindSigns(say("console.fleet_out_by_healer"), "H", "c-healer"),
    NodeKind.out_slurm: KindSigns(say("console.fleet_out_by_slurm"), "S", "c-slurm"),
    NodeKind.out_person: KindSigns(say("console.fleet_out_by_person"), "P", "c-person"),
    NodeKind.unknown: KindSigns("unknown", "?", "c-unknown"),
    NodeKind.planned: KindSigns(say("console.fleet_planned_work"), "M", "c-planned"),
    NodeKind.busy: KindSigns(say("console.fleet_service_busy"), "", "c-busy"),
    NodeKind.idle: KindSigns(say("console.fleet_service_idle"), "", "c-idle"),
}

KIND_OF_HOLDER = {
    Holder.healer: NodeKind.out_healer,
    Holder.slurm: NodeKind.out_slurm,
    Holder.person: NodeKind.out_person,
    Holder.none: NodeKind.unknown,
}

#: Kinds whose own name says too little.
_EXPLAINED = frozenset({
    NodeStatus.invalid, NodeStatus.maintenance, NodeStatus.power_saving, NodeStatus.powering_up,
    NodeStatus.rebooting, NodeStatus.reboot_pending, NodeStatus.planned,
})  # fmt: skip


class Hold(StrEnum):
    """How healer holds a node out: by a slot, or by its own reservation for tests."""

    slot = "slot"
    tests = "tests"


_RANK = {kind: index for index, kind in enumerate(NodeKind)}


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One node as the map and the table show it. `places` are pod, row, rack and leaf as far as known."""

    name: str
    kind: NodeKind
    verdict: Verdict
    slurm: SlurmNode
    bad_gpus: tuple[int, ...]
    incidents: tuple[OpenIncident, ...]
    hold: Hold | None = None

    @property
    def word(self) -> str:
        owner = self.slurm.owner
        if self.kind is NodeKind.out_person and owner and owner.kind is OwnerKind.program:
            return say("console.fleet_out_by", name=owner.name)
        return KINDS[self.kind].words

    def shown(self, now: datetime) -> Said:
        """Slurm's state in words: `drained by ann 3 h ago, not responding`."""
        node, status = self.slurm, self.slurm.status
        parts: list[str] = [say(f"console.status_{status}") if status in _EXPLAINED else quoted(status.value)]
        if node.held and not node.planned and node.owner is not None:
            parts.append(say("console.fleet_by", owner=str(node.owner)))
            if node.reason_at is not None:
                parts.append(joined(["", words.ago(node.reason_at, now)], "space"))
        if "NOT_RESPONDING" in node.state and status is not NodeStatus.silent:
            parts.append(say("console.fleet_not_responding"))
        if node.unknown_flags:
            flags = ", ".join(node.unknown_flags)
            parts.append(say("console.fleet_with_which_healer_does_not", unknown_flags=flags))
        return joined(parts, "nothing")

    @property
    def state(self) -> str:
        return "+".join(self.slurm.state) or "UNKNOWN"

    @property
    def letter(self) -> str:
        return KINDS[self.kind].letter

    @property
    def places(self) -> tuple[str, ...]:
        node = self.slurm
        return tuple(part for part in (node.pod, node.row, node.rack, node.switch) if part)

    @property
    def where(self) -> str:
        return " · ".join(self.places)

    @property
    def in_service(self) -> bool:
        return self.kind in (NodeKind.busy, NodeKind.idle, NodeKind.bad_in_service)

    @property
    def worst(self) -> Severity | None:
        return min((incident.severity for incident in self.incidents), default=None)


_NO_ROWS: Mapping[str, NodeRow] = {}


def holds(standing: Standing) -> dict[str, Hold]:
    """How healer holds each node."""
    found = {slot.node: Hold.slot for slot in standing.slots}
    if standing.snapshot is not None:
        found |= dict.fromkeys(nodes_under_test(standing.snapshot), Hold.tests)
    return found


def kind_of(node: SlurmNode, *, hold: Hold | None, known_bad: bool) -> NodeKind:
    """The kind of a node, as the floor's guard counts it. healer's own drain is also recognised by its reason
    (`healer:`)."""
    if node.is_out_by_plan_alone and hold is not Hold.tests:
        return NodeKind.planned
    if not node.in_service or hold is Hold.tests:
        return KIND_OF_HOLDER[holder_of(node, is_ours=hold is not None)]
    if known_bad:
        return NodeKind.bad_in_service
    return NodeKind.busy if node.busy else NodeKind.idle


def node_rows(standing: Standing, before: Mapping[str, NodeRow] = _NO_ROWS) -> list[NodeRow]:
    """All GPU nodes, in Slurm's order. Empty before the first snapshot.

    `before`: earlier rows; the row of an unchanged node is reused.
    """
    if standing.snapshot is None:
        return []
    held = holds(standing)
    incidents_of = by_node(standing.open_incidents)
    rows: list[NodeRow] = []
    for node in standing.snapshot.gpu_nodes:
        incidents = incidents_of.get(node.name, ())
        hold, row = held.get(node.name), before.get(node.name)
        same = row is not None and row.hold is hold and row.incidents == incidents
        if row is None or not same or row.slurm != node:
            bad = any(node.name in incident.bad_nodes for incident in incidents)
            row = node_row(node, incidents, kind_of(node, hold=hold, known_bad=bad), hold)
        rows.append(row)
    return rows


def by_node(incidents: Iterable[OpenIncident]) -> dict[str, tuple[OpenIncident, ...]]:
    """The incidents of each node that has any, most severe first."""
    found: dict[str, list[OpenIncident]] = {}
    for incident in incidents:
        for name in incident.nodes or ([incident.root.node] if incident.root.node else []):
            found.setdefault(name, []).append(incident)
    return {name: tuple(sorted(its, key=lambda incident: incident.severity)) for name, its in found.items()}


def node_row(
    node: SlurmNode, incidents: tuple[OpenIncident, ...], kind: NodeKind, hold: Hold | None = None
) -> NodeRow:
    verdicts = [incident.nodes.get(node.name, Verdict.healthy) for incident in incidents]
    bad_gpus = {
        incident.root.gpu
        for incident in incidents
        if incident.root.node == node.name and incident.root.gpu is not None
    }
    return NodeRow(
        name=node.name,
        kind=kind,
        verdict=max(verdicts, key=VERDICT_RANK.__getitem__, default=Verdict.healthy),
        slurm=node,
        bad_gpus=tuple(sorted(bad_gpus)),
        incidents=incidents,
        hold=hold,
    )


def by_trouble(rows: Iterable[NodeRow]) -> list[NodeRow]:
    """Worst first; nodes of one kind by verdict, then in Slurm's order."""
    return sorted(rows, key=lambda row: (_RANK[row.kind], -VERDICT_RANK[row.verdict]))


def matches(row: NodeRow, text: str, place: str = "", translate: Callable[[str], str] = str) -> bool:
    """Whether each word of the search box occurs in the node's name, place, state, reason or kind, and it is
    in this place. `translate`: to the page's language."""
    if place and place not in row.places:
        return False
    if not text:
        return True
    node = row.slurm
    parts = (row.name, row.where, row.state, node.reason, row.word, translate(row.word), row.verdict)
    haystack = " ".join((*parts, node.driver, node.gpu_model)).lower()
    return all(word in haystack for word in text.lower().split())


def legend(rows: list[NodeRow]) -> list[tuple[NodeKind, str, str, int]]:
    """Kind, letter, words and number of nodes, for every kind that occurs and the two that always may."""
    found = Counter(row.kind for row in rows)
    always = (NodeKind.busy, NodeKind.idle)
    return [
        (kind, KINDS[kind].letter, KINDS[kind].words, found[kind])
        for kind in NodeKind
        if found[kind] or kind in always
    ]
