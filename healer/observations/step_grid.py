"""Step times of a job as matrices, and how far each rank was from its peers.

Pure numpy over what senders reported. All ranks of a synchronous job share the step's whole time, so only the
compute time before the collective, per unit of work, shows the slow rank. For display to people.
"""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from healer.model.telemetry import StepBatch
from healer.observations.steps import REWIND

#: The number of steps kept.
STEPS_KEPT = 200
RANKS_AT_MOST = 16_384
#: A rank's figures are medians of its last steps, this many.
RECENT_STEPS = 20
#: A step this far above its stage counts as slow.
SLOW = 0.05
#: So many of the slowest ranks are named.
SLOWEST = 10

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepGrid:
    """The latest life of a job. Matrices are (ranks, steps), NaN without data.

    `node` is an index into `nodes`, -1 unknown; `gpu` and `stage` likewise; `at` is s since 1970 per step.
    """

    restart: int
    nodes: tuple[str, ...]
    rank: NDArray[np.int64]
    node: NDArray[np.int64]
    gpu: NDArray[np.int64]
    stage: NDArray[np.int64]
    step: NDArray[np.int64]
    at: Matrix
    step_s: Matrix
    compute_s: Matrix
    work: Matrix
    #: The job did not report where its ranks run: they were laid over Slurm's nodes in order.
    placed_by_order: bool = False

    @property
    def has_compute(self) -> bool:
        return bool(np.isfinite(self.compute_s).any())


def grid(batches: Iterable[StepBatch], *, slurm_nodes: Sequence[str] = ()) -> StepGrid | None:
    """The last `STEPS_KEPT` steps of the latest life; None without data. If a line is repeated, the later one
    counts."""
    batches = [batch for batch in batches if batch.doing is None and len(batch.rank)]
    if not batches:
        return None
    restart = max(batch.restart for batch in batches)
    batches = [batch for batch in batches if batch.restart == restart]
    names: dict[str, int] = {}
    node = np.concatenate([_global(batch, names) for batch in batches])

    def column(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(batch, name) for batch in batches])

    rank, step = column("rank"), column("step")
    last = _of_last_pass(step, column("at"))
    steps = np.unique(step[last])[-STEPS_KEPT:]
    ranks = np.unique(rank[last & (step >= steps[0])])[:RANKS_AT_MOST]
    keep = last & (step >= steps[0]) & (rank <= ranks[-1])
    rows, columns = np.searchsorted(ranks, rank[keep]), np.searchsorted(steps, step[keep])

    def matrix(name: str) -> Matrix:
        found = np.full((len(ranks), len(steps)), np.nan)
        found[rows, columns] = column(name)[keep]
        return found

    def per_rank(values: NDArray[Any]) -> NDArray[np.int64]:
        found = np.full(len(ranks), -1, np.int64)
        given = values[keep] >= 0
        found[rows[given]] = values[keep][given]
        return found

    made = StepGrid(
        restart=restart,
        nodes=tuple(names),
        rank=ranks.astype(np.int64),
        node=per_rank(node),
        gpu=per_rank(column("gpu")),
        stage=per_rank(column("stage")),
        step=steps.astype(np.int64),
        at=_median(matrix("at"), axis=0),
        step_s=matrix("step_s"),
        compute_s=matrix("compute_s"),
        work=matrix("work"),
    )
    return _placed(made, slurm_nodes)


def _of_last_pass(step: NDArray[Any], at: Matrix) -> NDArray[np.bool_]:
    """(n,) rows since the job last went back: from a checkpoint on it repeats its steps, maybe on fewer
    nodes, and later steps are from before. Each step is dated by the time by which most ranks had made it."""
    numbers, count = np.unique(step, return_counts=True)
    made_at = at[np.lexsort((at, step))][np.cumsum(count) - 1 - count // 4]
    lower = np.searchsorted(numbers, numbers - REWIND) - 1
    reached = np.fmax.accumulate(made_at)[lower]
    before = made_at[(lower >= 0) & (made_at < reached)]
    return ~(at <= before.max()) if len(before) else np.ones(len(step), bool)


def _global(batch: StepBatch, names: dict[str, int]) -> NDArray[np.int64]:
    """The batch's node indices as indices into all names."""
    numbers = np.array([names.setdefault(name, len(names)) for name in batch.nodes] + [-1], np.int64)
    return numbers[batch.node]


def _placed(made: StepGrid, slurm_nodes: Sequence[str]) -> StepGrid:
    """Ranks without a node are laid over Slurm's nodes in order, if the counts fit."""
    count, ranks = len(slurm_nodes), len(made.rank)
    if made.nodes or not count or ranks % count or not np.array_equal(made.rank, np.arange(ranks)):
        return made
    each = ranks // count
    return replace(
        made,
        nodes=tuple(slurm_nodes),
        node=made.rank // each,
        gpu=np.where(made.gpu >= 0, made.gpu, made.rank % each),
        placed_by_order=True,
    )


def median_over_ranks(values: Matrix) -> Matrix:
    """(steps,) from (ranks, steps)."""
    return _median(values, axis=0)


def _median(values: Matrix, axis: int | None = None) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a row without data is NaN, as it should be
        return np.nanmedian(values, axis=axis)


def deviation(made: StepGrid) -> Matrix:
    """(ranks, steps): compute per work over the median of the same stage at that step, minus 1.

    Without compute times: the whole step over the median of all steps, minus 1. Work counts only in steps in
    which every rank of the stage that reported compute also reported work.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        if not made.has_compute:
            return made.step_s / _median(made.step_s) - 1
        found = np.full(made.compute_s.shape, np.nan)
        for stage in np.unique(made.stage):
            rows = made.stage == stage
            compute, work = made.compute_s[rows], made.work[rows]
            full = ((work > 0) | ~np.isfinite(compute)).all(axis=0)
            each = np.where(full, compute / work, compute)
            found[rows] = each / _median(each, axis=0) - 1
        found[~np.isfinite(found)] = np.nan
        return found


class RankPace(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's recent pace: shares above its stage (0.18: 18 % more), None if nothing was reported."""

    rank: int
    node: str | None
    gpu: int | None
    stage: int | None
    slower: float
    last: float | None
    compute_s: float | None
    slow_steps: int


def lately(away: Matrix) -> NDArray[np.float64]:
    """(ranks,): how far each was above its stage in the last steps; NaN with fewer than three steps."""
    recent = away[:, -RECENT_STEPS:]
    middle = _median(recent, axis=1)
    middle[np.isfinite(recent).sum(axis=1) < 3] = np.nan
    return middle


def slowest(made: StepGrid, away: Matrix) -> list[RankPace]:
    """The ranks that were recently furthest above their stage, worst first; only those with three steps or
    more."""
    middle = lately(away)
    order = [int(row) for row in np.argsort(-np.nan_to_num(middle, nan=-np.inf), kind="stable")[:SLOWEST]]
    compute = _median(made.compute_s[:, -RECENT_STEPS:], axis=1)
    return [
        RankPace(
            rank=int(made.rank[row]),
            node=made.nodes[made.node[row]] if made.node[row] >= 0 else None,
            gpu=int(made.gpu[row]) if made.gpu[row] >= 0 else None,
            stage=int(made.stage[row]) if made.stage[row] >= 0 else None,
            slower=float(middle[row]),
            last=_last(away[row]),
            compute_s=float(compute[row]) if math.isfinite(compute[row]) else None,
            slow_steps=int((away[row] > SLOW).sum()),
        )
        for row in order
        if math.isfinite(middle[row])
    ]


def _last(values: Matrix) -> float | None:
    values = values[np.isfinite(values)]
    return float(values[-1]) if len(values) else None
