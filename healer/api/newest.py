"""What nodes and jobs told last, added to their views: newest values by part, step times by step. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import msgspec
import numpy as np

from healer.model import Catalogue, Column, Part
from healer.model.samples import Report, StepBatch
from healer.observations.step_grid import (
    StepGrid,
    deviation,
    grid,
    median_over_ranks,
    slowest,
)
from healer.ports.api_answers import GpuView, JobStepView, LinkView, NodeView, RankView, StepTimesView

#: How far back a node's values and a job's steps are read.
VALUES = timedelta(minutes=15)
STEPS = timedelta(minutes=30)


def with_signals(
    view: NodeView,
    reports: Sequence[Report],
    columns: Mapping[int, Column],
    catalogue: Catalogue,
    now: datetime,
) -> NodeView:
    """The view with the newest values of the node, its GPUs and links. What is too old is left out."""
    parts: dict[Part, dict[str, float]] = {}
    seen: dict[Part, datetime] = {}
    for report in sorted(reports, key=lambda one: one.at):
        age_s = (now - report.at).total_seconds()
        for number, value in zip(report.columns.tolist(), report.values.tolist(), strict=True):
            column = columns.get(number)
            signal = catalogue.signals.get(column.signal) if column else None
            if column is None or signal is None or not math.isfinite(value):
                continue
            seen[column.part] = report.at
            if age_s <= signal.stale_s:
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


def _order(part: Part) -> tuple[str, int, int]:
    return part.port or "", -1 if part.gpu is None else part.gpu, -1 if part.link is None else part.link


def step_times(batches: Sequence[StepBatch], slurm_nodes: Sequence[str]) -> StepTimesView | None:
    made = grid(batches, slurm_nodes=slurm_nodes)
    if made is None:
        return None
    ranks = slowest(made, deviation(made)) if made.has_compute else []
    return StepTimesView(
        restart=made.restart,
        ranks=len(made.rank),
        whole_only=not made.has_compute,
        steps=_steps(made),
        slowest=[RankView(**asdict(one)) for one in ranks],
    )


def _steps(made: StepGrid) -> list[JobStepView]:
    whole, compute = median_over_ranks(made.step_s), median_over_ranks(made.compute_s)
    told = np.isfinite(made.compute_s)
    most = np.where(told, made.compute_s, -np.inf).argmax(axis=0)
    found = []
    for index, step in enumerate(made.step.tolist()):
        worst = int(most[index]) if told[:, index].any() else None
        at = float(made.at[index])
        found.append(
            JobStepView(
                step=step,
                at=datetime.fromtimestamp(at, UTC) if math.isfinite(at) else None,
                ranks=int(np.isfinite(made.step_s[:, index]).sum()),
                step_s=_known(whole[index]),
                compute_s=_known(compute[index]),
                slowest_compute_s=None if worst is None else _known(made.compute_s[worst, index]),
                slowest_rank=None if worst is None else int(made.rank[worst]),
            )
        )
    return found


def _known(value: float) -> float | None:
    return round(float(value), 6) if math.isfinite(value) else None
