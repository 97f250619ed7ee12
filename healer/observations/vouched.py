"""Which step times Slurm's picture bears out: anybody with a token may tell some of any job."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from healer.model import SlurmSnapshot

if TYPE_CHECKING:
    from healer.model.samples import StepBatch

#: One value for each row of a batch.
COLUMNS = (
    "rank",
    "step",
    "at",
    "node",
    "gpu",
    "stage",
    "step_s",
    "compute_s",
    "comm_s",
    "data_s",
    "work",
    "loss",
    "grad_norm",
)


def vouched(batch: "StepBatch", slurm: SlurmSnapshot | None) -> NDArray[np.bool_] | None:
    """(n,) rows that name no node, or one that the job holds; none of a life that Slurm has not begun.

    None: Slurm does not show the job at work (yet), and tells nothing of it.
    """
    shown = slurm.jobs.get(batch.job) if slurm is not None else None
    if shown is None or not shown.active:
        return None
    if batch.restart > shown.restarts:
        return np.zeros(len(batch.rank), bool)
    held = set(shown.nodes)
    return np.array([*(name in held for name in batch.nodes), True])[batch.node]  # -1 reads the last


def only(batch: "StepBatch", rows: NDArray[np.bool_]) -> "StepBatch":
    """These rows of it."""
    if rows.all():
        return batch
    columns = {name: getattr(batch, name)[rows] for name in COLUMNS}
    return replace(batch, **columns, doing=batch.doing[rows] if batch.doing is not None else None)
