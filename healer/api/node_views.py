"""Nodes and devices as answers show them: Slurm's state, healer's verdict, why, the newest values. Pure.

JSON names are the field names."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from healer.api.request_fields import NodeFilter
from healer.decisions.node_facts import context_of
from healer.model import (
    Catalogue,
    Column,
    DeviceKind,
    FiringAlert,
    Incident,
    LastContact,
    LemonPart,
    LemonScore,
    NodeContext,
    NodeStatus,
    OwnerKind,
    Part,
    Reference,
    Ruleset,
    Signal,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
    Verdict,
    worst_verdict,
)
from healer.model.slurm import is_ours
from healer.model.telemetry import Report, Unusual
from healer.observations.fault_history import jobs_by_gpu
from healer.ports.answers import FleetRows, NodeRows, Page
from healer.ports.measurements import Devices
from healer.ports.queries import decode_cursor, encode_cursor
from healer.text import Said, quoted, say


class GpuView(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of a node as far as it is known. `verdict` from the open incidents that name it.

    `signals`: name in the catalogue -> newest value; what is older than its signal's `stale_s` is left out.
    """

    index: int
    pci: str | None = None
    uuid: str | None = None
    #: The number on its board.
    serial: str | None = None
    #: The job that Slurm shows on it.
    job: str | None = None
    verdict: Verdict = Verdict.healthy
    incidents: list[str] = []
    model: str = ""
    signals: dict[str, float] = {}
    measured_at: datetime | None = None


class LinkView(msgspec.Struct, frozen=True, kw_only=True):
    """The newest values of one NVLink (`gpu` and `link`) or NIC port (`port`)."""

    gpu: int | None = None
    link: int | None = None
    port: str | None = None
    signals: dict[str, float] = {}


# Wide: it is the JSON of one node, whose names programs hold on to; flat since the first version.
class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """`out_by` is healer, person, program, slurm or planned, None while in service. `owner` is who that is by
    name, and `reason_age_s` how old the reason was when Slurm's picture was taken.

    `status` sums up Slurm's state; `unknown_flags` are flags that healer does not know: it never resumes such
    a node by itself. `switches` go from leaf to root. `may_run_jobs` is Slurm's own word; `why` explains it
    in one sentence. `gpus`, `jobs`, `history`, `signals`, `links`, `heard` and `alerts` are filled for a
    single node only; `measured_at` is when it last reported, None when nothing came in the last 15 minutes.
    `context` is what goes on there now, by which its faults are judged (docs/rules.md, `context.yaml`).
    `inventory` is what the node reported of itself (driver, firmware, settings), `reference` the reference
    node of its kind, `differs` the facts that differ there. `probation_until`: it was returned lately, and a
    fault of the same part is one severity more urgent until then. `lemon_score` is how much it fails again
    and again (docs/detection.md, lemons), `lemon` its parts. `unusual` compares the node with its class by
    each scorer, for a single node only; None without a model.
    """

    cluster: str
    name: str
    verdict: Verdict
    may_run_jobs: bool
    why: Said
    status: NodeStatus = NodeStatus.unknown
    unknown_flags: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    out_by: str | None = None
    owner: str | None = None
    probation_until: datetime | None = None
    context: tuple[NodeContext, ...] = ()
    reason_age_s: float | None = None
    known_bad_in_service: bool = False
    slurm: SlurmNode
    incidents: list[str] = []
    gpus: list[GpuView] = []
    jobs: list[SlurmJob] = []
    history: list[Incident] = []
    lemon_score: float = 0
    lemon: tuple[LemonPart, ...] = ()
    unusual: Unusual | None = None
    taken_at: datetime | None = None
    signals: dict[str, float] = {}
    links: list[LinkView] = []
    measured_at: datetime | None = None
    heard: LastContact | None = None
    alerts: list[FiringAlert] = []
    inventory: dict[str, str] = {}
    reference: Reference | None = None
    differs: dict[str, str] = {}


def node_page(rows: FleetRows, rules: Ruleset, now: datetime, wanted: NodeFilter) -> Page[NodeView]:
    """By cluster and name."""
    start = ("", "") if wanted.cursor is None else decode_cursor(wanted.cursor, tuple[str, str])
    watched = by_node(rows.watched)
    found: list[NodeView] = []
    for cluster, picture in sorted(rows.snapshots.items()):
        changed, lemons = rows.changed.get(cluster, {}), rows.lemons.get(cluster, {})
        for name in sorted(picture.nodes):
            if (cluster, name) <= start or (wanted.q and wanted.q.lower() not in name.lower()):
                continue
            view = node_view(picture, picture.nodes[name], watched.get((cluster, name), []))
            if wanted.verdict and view.verdict not in wanted.verdict:
                continue
            if len(found) == wanted.limit:
                return Page(items=found, next_cursor=encode_cursor(found[-1].cluster, found[-1].name))
            context = context_of(rules, picture, picture.nodes[name], changed.get(name), now)
            found.append(msgspec.structs.replace(view, context=context, **_lemon(lemons.get(name))))
    return Page(items=found)


def one_node(rows: NodeRows, rules: Ruleset, now: datetime) -> NodeView:
    picture, node, watched = rows.snapshot, rows.node, list(rows.watched)
    return msgspec.structs.replace(
        node_view(picture, node, watched),
        gpus=gpu_views(picture, node, watched, rules, rows.gpus),
        jobs=picture.jobs_on(node.name),
        history=list(rows.history),
        **_lemon(rows.lemon),
        unusual=rows.unusual,
        context=context_of(rules, picture, node, rows.inventory, now),
    )


def _lemon(score: LemonScore | None) -> dict[str, Any]:
    return {"lemon_score": score.score, "lemon": score.parts} if score is not None else {}


def by_node(incidents: Iterable[Incident]) -> dict[tuple[str, str], list[Incident]]:
    """(cluster, node) -> the incidents about it."""
    found: dict[tuple[str, str], list[Incident]] = {}
    for incident in incidents:
        for name in {*incident.nodes, incident.root.node} - {None}:
            found.setdefault((incident.cluster, name), []).append(incident)
    return found


def node_view(snapshot: SlurmSnapshot, node: SlurmNode, incidents: Sequence[Incident]) -> NodeView:
    """`incidents` are the open ones about the node, and those it is on probation for."""
    verdict = worst_verdict(incident.nodes.get(node.name, Verdict.healthy) for incident in incidents)
    open_ones = [incident for incident in incidents if incident.is_open]
    probation = (incident.probation_until for incident in incidents)
    out_by, owner = _out_by(node), node.owner
    return NodeView(
        cluster=snapshot.cluster,
        name=node.name,
        verdict=verdict,
        may_run_jobs=_takes_jobs(node),
        why=_why(node, out_by, verdict, open_ones),
        status=node.status,
        unknown_flags=node.unknown_flags,
        switches=node.switches,
        out_by=out_by,
        owner=str(owner) if owner and out_by != "planned" else None,
        reason_age_s=(snapshot.taken_at - node.reason_at).total_seconds() if node.reason_at else None,
        known_bad_in_service=node.in_service
        and any(node.name in incident.bad_nodes for incident in incidents),
        slurm=node,
        probation_until=max((until for until in probation if until is not None), default=None),
        incidents=[incident.id for incident in open_ones],
        taken_at=snapshot.taken_at,
    )


def _takes_jobs(node: SlurmNode) -> bool:
    """In a maintenance reservation Slurm starts only the jobs of that reservation."""
    return node.in_service and not node.planned


def _out_by(node: SlurmNode) -> str | None:
    if _takes_jobs(node):
        return None
    if node.is_out_by_plan_alone and not is_ours(node.reason):
        return "planned"
    return node.owner.kind.value if node.owner else OwnerKind.slurm.value


def _why(node: SlurmNode, out_by: str | None, verdict: Verdict, incidents: list[Incident]) -> Said:
    state, reason = "+".join(node.state) or "UNKNOWN", quoted(node.reason)
    match out_by:
        case None if not incidents:
            return say("api.node_well", state=state)
        case None if verdict is Verdict.healthy:
            return say("api.node_open", state=state, title=incidents[-1].title)
        case None:
            judged = quoted(verdict.value)
            return say("api.node_suspect", state=state, verdict=judged, title=incidents[-1].title)
        case "healer":
            return say("api.node_out_by_healer", state=state, reason=reason)
        case "planned" | "slurm" if reason:
            return say(f"api.node_out_{out_by}_because", state=state, reason=reason)
        case "planned" | "slurm":
            return say(f"api.node_is_out_{out_by}", state=state)
    who = str(node.owner)
    return say("api.node_taken_out", who=who, state=state, reason=reason or say("api.no_reason"))


def gpu_views(
    snapshot: SlurmSnapshot,
    node: SlurmNode,
    incidents: Sequence[Incident],
    rules: Ruleset,
    reported: Mapping[int, Mapping[str, Any]],
) -> list[GpuView]:
    """One row per GPU that Slurm counts or an incident names. `reported`: index -> facts by heartbeats."""
    jobs = jobs_by_gpu(snapshot, node.name)
    by_model = rules.topology.gpu_pci.get(node.gpu_model, ())
    at_gpu: dict[int, list[Incident]] = {}
    for incident in incidents:
        if incident.root.node == node.name and incident.root.gpu is not None and incident.is_open:
            at_gpu.setdefault(incident.root.gpu, []).append(incident)
    views: list[GpuView] = []
    for index in range(max([node.gpus, *(index + 1 for index in (*at_gpu, *reported))])):
        facts, open_ones = reported.get(index, {}), at_gpu.get(index, [])
        views.append(
            GpuView(
                index=index,
                pci=facts.get("pci") or (by_model[index] if index < len(by_model) else None),
                uuid=facts.get("uuid") or None,
                serial=facts.get("serial") or None,
                job=jobs.get(index),
                verdict=worst_verdict(
                    incident.nodes.get(node.name, Verdict.suspect) for incident in open_ones
                ),
                incidents=[incident.id for incident in open_ones],
            )
        )
    return views


#: How far back a node's values and a job's steps are read.
VALUES = timedelta(minutes=15)


def with_signals(
    view: NodeView,
    reports: Sequence[Report],
    columns: Mapping[int, Column],
    catalogue: Catalogue,
    now: datetime,
) -> NodeView:
    """The view with the newest values of the node, its GPUs and links. Stale values are left out."""
    parts: dict[Part, dict[str, float]] = {}
    seen: dict[Part, datetime] = {}
    for at, column, signal, value in _values(reports, columns, catalogue):
        seen[column.part] = at
        if (now - at).total_seconds() <= signal.stale_s:
            parts.setdefault(column.part, {})[column.signal] = value
    gpus = {gpu.index: gpu for gpu in view.gpus}
    for part in seen:
        if part.gpu is not None:
            gpus.setdefault(part.gpu, GpuView(index=part.gpu))
    return msgspec.structs.replace(
        view,
        gpus=[
            msgspec.structs.replace(
                gpu,
                model=view.slurm.gpu_model,
                signals=parts.get(Part(gpu=index), {}),
                measured_at=seen.get(Part(gpu=index)),
            )
            for index, gpu in sorted(gpus.items())
        ],
        signals=parts.get(Part(), {}),
        links=[
            LinkView(gpu=part.gpu, link=part.link, port=part.port, signals=values)
            for part, values in sorted(parts.items(), key=lambda item: _order(item[0]))
            if part.link is not None or part.port is not None
        ],
        measured_at=max(seen.values(), default=None),
    )


def _values(
    reports: Iterable[Report], columns: Mapping[int, Column], catalogue: Catalogue
) -> Iterator[tuple[datetime, Column, Signal, float]]:
    """Each finite value of a signal of the catalogue, oldest first."""
    for report in sorted(reports, key=lambda report: report.at):
        for number, value in zip(report.columns.tolist(), report.values.tolist(), strict=True):
            column = columns.get(number)
            signal = catalogue.signals.get(column.signal) if column else None
            if column is not None and signal is not None and math.isfinite(value):
                yield report.at, column, signal, value


def _order(part: Part) -> tuple[str, int, int]:
    return part.port or "", -1 if part.gpu is None else part.gpu, -1 if part.link is None else part.link


class DevicePartView(msgspec.Struct, frozen=True, kw_only=True):
    """One port, target, sensor, outlet or directory of a device."""

    part: str
    signals: dict[str, float] = {}


class DeviceView(msgspec.Struct, frozen=True, kw_only=True):
    """One device. `kinds`: those of its signals, mostly one. `signals`: name in the catalogue -> newest value
    of the device as a whole; what is older than its signal's `stale_s` is left out. `parts`: how many of its
    parts have a value. `measured_at`: its last report, None for over 15 minutes ago."""

    cluster: str
    device: str
    kinds: tuple[DeviceKind, ...] = ()
    measured_at: datetime | None = None
    signals: dict[str, float] = {}
    parts: int = 0


class DeviceDetail(DeviceView, frozen=True, kw_only=True):
    """The same, with the newest values of each part, by its name."""

    parts: list[DevicePartView] = []  # type: ignore[assignment]


def device_views(cluster: str, found: Devices, catalogue: Catalogue, now: datetime) -> list[DeviceView]:
    """In the order of `found`."""
    views: list[DeviceView] = []
    for name, reports in found.reports.items():
        detail = device_detail(cluster, name, reports, found.columns, catalogue, now)
        fields: dict[str, Any] = {**msgspec.structs.asdict(detail), "parts": len(detail.parts)}
        views.append(DeviceView(**fields))
    return views


def device_detail(
    cluster: str,
    device: str,
    reports: Iterable[Report],
    columns: Mapping[int, Column],
    catalogue: Catalogue,
    now: datetime,
) -> DeviceDetail:
    """From reports in any order; the newest value of each signal counts."""
    parts: dict[str, dict[str, float]] = {}
    kinds: set[DeviceKind] = set()
    measured_at: datetime | None = None
    for at, column, signal, value in _values(reports, columns, catalogue):
        if signal.device is None:
            continue
        measured_at = at
        kinds.add(signal.device)
        if (now - at).total_seconds() <= signal.stale_s:
            parts.setdefault(column.part.port or "", {})[column.signal] = value
    return DeviceDetail(
        cluster=cluster,
        device=device,
        kinds=tuple(sorted(kinds)),
        measured_at=measured_at,
        signals=parts.pop("", {}),
        parts=[DevicePartView(part=name, signals=parts[name]) for name in sorted(parts)],
    )
