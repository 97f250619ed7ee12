"""A node as answers show it: Slurm's word, healer's verdict, and one sentence why. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from healer.model import Incident, OwnerKind, Ruleset, SlurmNode, SlurmSnapshot, Verdict
from healer.model.reasons import is_ours
from healer.observations.gpus import jobs_by_gpu
from healer.ports.api_answers import GpuView, NodeView

_ORDER = list(Verdict)


def by_node(incidents: Iterable[Incident]) -> dict[tuple[str, str], list[Incident]]:
    """(cluster, node) -> the incidents that speak of it."""
    found: dict[tuple[str, str], list[Incident]] = {}
    for one in incidents:
        names = set(one.nodes) | ({one.root.node} if one.root.node else set())
        for name in names:
            found.setdefault((one.cluster, name), []).append(one)
    return found


def node_view(snapshot: SlurmSnapshot, node: SlurmNode, incidents: Sequence[Incident]) -> NodeView:
    """`incidents` are the open ones about the node, and those it is on probation for."""
    verdict = max(
        (one.nodes.get(node.name, Verdict.healthy) for one in incidents),
        key=_ORDER.index,
        default=Verdict.healthy,
    )
    out_by, owner = _out_by(node), node.owner
    return NodeView(
        cluster=snapshot.cluster,
        name=node.name,
        verdict=verdict,
        may_run_jobs=node.in_service,
        why=_why(node, out_by, verdict, [one for one in incidents if one.is_open]),
        status=node.status,
        unknown_flags=node.unknown_flags,
        switches=node.switches,
        out_by=out_by,
        owner=str(owner) if owner and out_by != "planned" else None,
        reason_age_s=(snapshot.taken_at - node.reason_at).total_seconds() if node.reason_at else None,
        known_bad_in_service=node.in_service and any(node.name in one.bad_nodes for one in incidents),
        slurm=node,
        probation_until=max(
            (one.probation_until for one in incidents if one.probation_until is not None), default=None
        ),
        incidents=[one.id for one in incidents if one.is_open],
        taken_at=snapshot.taken_at,
    )


def _out_by(node: SlurmNode) -> str | None:
    if node.in_service:
        return None
    if node.planned and not is_ours(node.reason):
        return "planned"
    return node.owner.kind.value if node.owner else OwnerKind.slurm.value


def _why(node: SlurmNode, out_by: str | None, verdict: Verdict, incidents: list[Incident]) -> str:
    state = "+".join(node.state) or "UNKNOWN"
    match out_by:
        case None if not incidents:
            return f"Slurm shows it {state}, and nothing is known against it."
        case None:
            return f"Slurm shows it {state}; healer's verdict is {verdict.value}: {incidents[-1].title}"
        case "healer":
            return f"healer took it out ({state}): {node.reason}"
        case "planned":
            return f"It is out by plan ({state})" + (f": {node.reason}" if node.reason else ".")
        case "slurm":
            return f"Slurm took it out ({state})" + (f": {node.reason}" if node.reason else ".")
    who = str(node.owner)
    return f"{who[:1].upper()}{who[1:]} took it out ({state}): {node.reason or 'no reason given'}"


def gpu_views(
    snapshot: SlurmSnapshot,
    node: SlurmNode,
    incidents: Sequence[Incident],
    rules: Ruleset,
    told: Mapping[int, Mapping[str, Any]],
) -> list[GpuView]:
    """One row per GPU that Slurm counts or an incident names. `told`: index -> what heartbeats said."""
    jobs = jobs_by_gpu(snapshot, node.name)
    by_model = rules.topology.gpu_pci.get(node.gpu_model, ())
    named: dict[int, list[Incident]] = {}
    for one in incidents:
        if one.root.node == node.name and one.root.gpu is not None and one.is_open:
            named.setdefault(one.root.gpu, []).append(one)
    count = max([node.gpus, *(index + 1 for index in named), *(index + 1 for index in told)], default=0)
    return [
        GpuView(
            index=index,
            pci=told.get(index, {}).get("pci") or (by_model[index] if index < len(by_model) else None),
            uuid=told.get(index, {}).get("uuid") or None,
            serial=told.get(index, {}).get("serial") or None,
            job=jobs.get(index),
            verdict=max(
                (one.nodes.get(node.name, Verdict.suspect) for one in named.get(index, ())),
                key=_ORDER.index,
                default=Verdict.healthy,
            ),
            incidents=[one.id for one in named.get(index, ())],
        )
        for index in range(count)
    ]
