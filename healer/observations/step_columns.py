"""What a step's rows tell beside its time: its parts, where ranks stand, results; and who may tell it."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from healer.model import SlurmSnapshot
from healer.model.telemetry import DOING, StepBatch

PARTS = ("compute_s", "comm_s", "data_s")


class StepParts:
    """Arrays are (parts, rows of the job's own ring of steps)."""

    def __init__(self, steps: int) -> None:
        self._sum = np.zeros((len(PARTS), steps))
        self._count = np.zeros((len(PARTS), steps))

    def clear(self, row: int) -> None:
        self._sum[:, row], self._count[:, row] = 0, 0

    def add(self, batch: StepBatch, row: NDArray[np.int64]) -> None:
        """`row` (n,): where the steps of the batch's lines lie."""
        steps = self._sum.shape[1]
        for part, name in enumerate(PARTS):
            values = getattr(batch, name)
            told = np.flatnonzero(np.isfinite(values))
            if len(told):
                self._sum[part] += np.bincount(row[told], values[told], steps)
                self._count[part] += np.bincount(row[told], minlength=steps)

    def mean(self, rows: NDArray[np.intp]) -> NDArray[np.float64]:
        """(3,) the median over these steps of the mean over ranks, NaN where less than half told it."""
        with np.errstate(invalid="ignore", divide="ignore"):
            each = self._sum[:, rows] / self._count[:, rows]
        found = np.full(len(PARTS), np.nan)
        for part, means in enumerate(each):
            known = means[np.isfinite(means)]
            if len(known) and 2 * len(known) >= len(rows):
                found[part] = np.median(known)
        return found


#: Of a rank that told nothing: no index of `DOING`.
UNTOLD = -1
COMPUTE, COLLECTIVE, BETWEEN = (DOING.index(name) for name in ("compute", "collective", "between"))
#: The program itself says that its steps rest.
RESTS = tuple(DOING.index(name) for name in ("checkpoint", "evaluation"))


class InStep:
    """By rank, (R,): the last word of each. `step`: the step that it is in, or that it ended last when it is
    between two; `since_s` when it began that, `told_s` when healer heard of it, s since 1970."""

    def __init__(self) -> None:
        self.step = np.full(0, -1, np.int64)
        self.doing = np.full(0, UNTOLD, np.int8)
        self.since_s = np.zeros(0)
        self.told_s = np.zeros(0)

    def grow(self, capacity: int) -> None:
        more = capacity - len(self.step)
        for name, empty in (("step", -1), ("doing", UNTOLD), ("since_s", np.nan), ("told_s", -np.inf)):
            known = getattr(self, name)
            setattr(self, name, np.concatenate([known, np.full(more, empty, known.dtype)]))

    def put(
        self,
        rank: NDArray[np.int32],
        step: NDArray[np.int64],
        doing: NDArray[np.int8],
        since_s: NDArray[np.float64],
        told_s: float,
    ) -> None:
        """(n,) words in the order in which they were told: of one rank the last counts."""
        self.step[rank], self.doing[rank] = step, doing
        self.since_s[rank], self.told_s[rank] = since_s, told_s

    def forget(self) -> None:
        """The job went back to an earlier step."""
        self.doing[:], self.told_s[:] = UNTOLD, -np.inf


#: Columns of a batch. NaN is not told; a result that was told and is no number is infinite.
RESULTS = ("loss", "grad_norm")


class Results:
    """One ring of steps × ranks for each result; none for a result that the job never told.

    Doubles: results that should be equal are compared to the last bit.
    """

    def __init__(self, steps: int) -> None:
        self._steps, self._capacity = steps, 0
        self._told: dict[str, NDArray[np.float64]] = {}

    def names(self) -> list[str]:
        """Of what was ever told."""
        return list(self._told)

    def of(self, name: str, row: int, ranks: int) -> NDArray[np.float64]:
        """(ranks,) one step's results, NaN where not told."""
        return self._told[name][row, :ranks]

    def grow(self, capacity: int) -> None:
        more = capacity - self._capacity
        self._capacity = capacity
        for name, known in self._told.items():
            empty = np.full((self._steps, more), np.nan)
            self._told[name] = np.concatenate([known, empty], axis=1)

    def clear(self, row: int) -> None:
        for known in self._told.values():
            known[row] = np.nan

    def put(self, batch: StepBatch, row: NDArray[np.int64], rank: NDArray[np.int32]) -> None:
        """The batch's lines are of these rows and ranks. The first word counts."""
        for name in RESULTS:
            values = getattr(batch, name)
            told = ~np.isnan(values)
            if not told.any():
                continue
            if name not in self._told:
                self._told[name] = np.full((self._steps, self._capacity), np.nan)
            known = self._told[name]
            told &= np.isnan(known[row, rank])
            known[row[told], rank[told]] = values[told]


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


def vouched(batch: StepBatch, slurm: SlurmSnapshot | None) -> NDArray[np.bool_] | None:
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


def only(batch: StepBatch, rows: NDArray[np.bool_]) -> StepBatch:
    """These rows of it."""
    if rows.all():
        return batch
    columns = {name: getattr(batch, name)[rows] for name in COLUMNS}
    return replace(batch, **columns, doing=batch.doing[rows] if batch.doing is not None else None)
