"""Slurm's picture as tables: where nodes stand, which job holds which GPU."""

import re
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from healer.model import Scope, SlurmJob, SlurmNode, SlurmSnapshot, Topology
from healer.observations.axes import GPUS_MAX, Axes

UNKNOWN = -1
#: A MIG profile as the name of a GRES type: such a node counts slices.
_SLICE = re.compile(r"\d+g\.\d+gb", re.IGNORECASE)


class NodeLoad(msgspec.Struct, frozen=True):
    """Of one node. `gpus`: GPU index -> row of its job, -1 where two share it. `told`: the GPUs that are not
    in `gpus` are known to be idle. `allocated` is None where Slurm does not tell how many GPUs are."""

    gpus: dict[int, int]
    told: bool
    allocated: int | None
    job: int = UNKNOWN


def load_of(node: SlurmNode, jobs: Sequence[SlurmJob], rows: Mapping[str, int]) -> NodeLoad:
    """Which GPUs of a node are whose. `jobs` hold the node; one whose GPUs Slurm does not tell holds all of
    them if it is alone there."""
    if not jobs:
        return NodeLoad({}, told=not node.busy, allocated=None if node.busy else 0)
    alone = rows.get(jobs[0].id, UNKNOWN) if len(jobs) == 1 else UNKNOWN
    if len(jobs) == 1 and node.name not in jobs[0].gpus:
        return NodeLoad(dict.fromkeys(range(GPUS_MAX), alone), told=True, allocated=node.gpus, job=alone)
    gpus: dict[int, int] = {}
    for job in jobs:
        for index in job.gpus.get(node.name, ()):
            if 0 <= index < GPUS_MAX:
                gpus[index] = UNKNOWN if index in gpus else rows.get(job.id, UNKNOWN)
    told = all(node.name in job.gpus for job in jobs)
    return NodeLoad(gpus, told=told, allocated=len(gpus) if told else None, job=alone)


def place_nodes(axes: Axes, snapshot: SlurmSnapshot, places: Topology) -> None:
    """Rows for the nodes that Slurm shows, their models, switches and racks; the others are there no more."""
    axes.shown = True
    axes.present[:] = False
    model_of = {model: number for number, model in enumerate(axes.models)}
    for node in snapshot.nodes.values():
        row = axes.node(node.name)
        if row is None:
            continue
        axes.present[row] = True
        if node.gpu_model and node.gpu_model not in model_of:
            model_of[node.gpu_model] = len(axes.models)
            axes.models.append(node.gpu_model)
        axes.model[row] = model_of.get(node.gpu_model, UNKNOWN)
        place = places.places.get(node.name)
        axes.switch[row] = _row_of(axes.switch_row, node.switch or (place.switch if place else ""))
        axes.rack[row] = _row_of(axes.rack_row, node.rack or (place.rack if place else ""))
    axes.changed()


def _row_of(give: Callable[[str], int | None], name: str) -> int:
    row = give(name) if name else None
    return UNKNOWN if row is None else row


def place_jobs(axes: Axes, snapshot: SlurmSnapshot) -> dict[int, NodeLoad]:
    """Who holds what, into the tables; the load by node row."""
    rows: dict[str, int] = {}
    for job in snapshot.jobs.values():
        if job.active and (row := axes.job_row(job.id, snapshot.taken_at)) is not None:
            rows[job.id] = row
    axes.jobs_active(list(rows.values()), snapshot.taken_at)
    axes.job[:] = axes.allocated[:] = UNKNOWN
    axes.gpu_job[:] = axes.gpu_allocated[:] = UNKNOWN
    loads: dict[int, NodeLoad] = {}
    cells: list[int] = []
    held: list[int] = []
    for node in snapshot.nodes.values():
        at = axes.node(node.name)
        if at is None:
            continue
        jobs = snapshot.jobs_on(node.name)
        load = loads[at] = load_of(node, jobs, rows)
        axes.job[at] = load.job
        axes.allocated[at] = bool(jobs) or node.busy
        if load.told:
            axes.gpu_allocated[at] = 0
        cells.extend(at * GPUS_MAX + index for index in load.gpus)
        held.extend(load.gpus.values())
    axes.gpu_job.reshape(-1)[cells] = held
    axes.gpu_allocated.reshape(-1)[cells] = 1
    _measure_jobs(axes, snapshot, rows)
    axes.changed()
    return loads


def _measure_jobs(axes: Axes, snapshot: SlurmSnapshot, rows: Mapping[str, int]) -> None:
    """How large each job is, and the one switch below which all of it runs."""
    axes.job_nodes[:] = axes.job_gpus[:] = 0
    axes.job_switch[:] = UNKNOWN
    for job_id, row in rows.items():
        job = snapshot.jobs[job_id]
        nodes = [node for name in dict.fromkeys(job.nodes) if (node := snapshot.nodes.get(name)) is not None]
        axes.job_nodes[row] = len(nodes)
        axes.job_gpus[row] = sum(
            len(job.gpus[node.name]) if node.name in job.gpus else node.gpus for node in nodes
        )
        switches = {int(axes.switch[at]) for node in nodes if (at := axes.node(node.name)) is not None}
        if len(switches) == 1:
            axes.job_switch[row] = switches.pop()


def derived_signals(
    axes: Axes, snapshot: SlurmSnapshot, loads: Mapping[int, NodeLoad]
) -> tuple[NDArray[np.int32], dict[str, NDArray[np.float64]]]:
    """Rows of Slurm's nodes, and by those rows what its picture gives as signals; NaN: it does not tell, or
    not in whole GPUs.

    `slurm_drained` is 1 for every node that takes no new jobs, for whatever reason.
    """
    components = axes.axis(Scope.node).components()
    nodes = [snapshot.nodes[components[row].node or ""] for row in loads]
    rows = np.fromiter(loads, np.int32, len(loads))
    whole = [not node.gpus_shared and not _SLICE.search(node.gpu_model) for node in nodes]
    gpus = [node.gpus if alone else np.nan for node, alone in zip(nodes, whole, strict=True)]
    held = [np.nan if load.allocated is None else load.allocated for load in loads.values()]
    return rows, {
        "slurm_gpus": np.array(gpus, np.float64),
        "slurm_allocated": axes.allocated[rows].astype(np.float64),
        "slurm_gpus_allocated": np.array(held, np.float64),
        "slurm_drained": np.array([not node.in_service for node in nodes], np.float64),
    }
