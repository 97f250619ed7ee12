"""What step reports contain besides the time: its parts, where ranks run, results; and who may report it."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from healer.model import SlurmSnapshot
from healer.model.telemetry import DOING, PARTS, RESULTS, StepBatch


class StepParts:
    """What a step takes of all ranks: their mean compute and data, and the shortest communication, because
    the rank that comes last waits for no other. Arrays are (parts, rows of the job's own ring of steps)."""

    def __init__(self, steps: int) -> None:
        self._sum = np.zeros((len(PARTS), steps))
        self._count = np.zeros((len(PARTS), steps))
        self._least_comm = np.full(steps, np.inf)

    def clear(self, row: int) -> None:
        self._sum[:, row], self._count[:, row], self._least_comm[row] = 0, 0, np.inf

    def add(self, batch: StepBatch, row: NDArray[np.int64]) -> None:
        """`row` (n,): the rows of the steps in the batch's lines."""
        steps = self._sum.shape[1]
        for part, name in enumerate(PARTS):
            values = getattr(batch, name)
            valid = np.flatnonzero(np.isfinite(values))
            if len(valid):
                self._sum[part] += np.bincount(row[valid], values[valid], steps)
                self._count[part] += np.bincount(row[valid], minlength=steps)
        np.fmin.at(self._least_comm, row, batch.comm_s)

    def of_all(self, rows: NDArray[np.intp]) -> NDArray[np.float64]:
        """(3,) the medians over these steps in s, NaN if fewer than half of the steps reported the part."""
        with np.errstate(invalid="ignore", divide="ignore"):
            each = self._sum[:, rows] / self._count[:, rows]
        each[PARTS.index("comm_s")] = self._least_comm[rows]
        found = np.full(len(PARTS), np.nan)
        for part, steps in enumerate(each):
            finite = steps[np.isfinite(steps)]
            if len(finite) and 2 * len(finite) >= len(rows):
                found[part] = np.median(finite)
        return found


#: A rank that reported nothing: no index of `DOING`.
UNREPORTED = -1
COMPUTE, COLLECTIVE, BETWEEN = (DOING.index(name) for name in ("compute", "collective", "between"))
#: The job itself reports that it makes no steps.
RESTS = tuple(DOING.index(name) for name in ("checkpoint", "evaluation"))


class InStep:
    """By rank, (R,): the latest report of each. `step`: the one that it is in, or that it ended last if it is
    between two; `since_s`: when that began; `reported_s`: when healer received it, s since 1970."""

    def __init__(self) -> None:
        self.step = np.full(0, -1, np.int64)
        self.doing = np.full(0, UNREPORTED, np.int8)
        self.since_s = np.zeros(0)
        self.reported_s = np.zeros(0)

    def grow(self, capacity: int) -> None:
        more = capacity - len(self.step)
        empty = {"step": -1, "doing": UNREPORTED, "since_s": np.nan, "reported_s": -np.inf}
        for name, fill in empty.items():
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old, np.full(more, fill, old.dtype)]))

    def put(
        self,
        rank: NDArray[np.int32],
        step: NDArray[np.int64],
        doing: NDArray[np.int8],
        since_s: NDArray[np.float64],
        reported_s: float,
    ) -> None:
        """(n,) reports in order of arrival: the last one of each rank counts."""
        self.step[rank], self.doing[rank] = step, doing
        self.since_s[rank], self.reported_s[rank] = since_s, reported_s

    def forget(self) -> None:
        """The job went back to an earlier step."""
        self.doing[:], self.reported_s[:] = UNREPORTED, -np.inf


class Results:
    """One ring of steps × ranks per result; none for a result that the job never reported.

    Doubles, because results that should be equal are compared to the last bit.
    """

    def __init__(self, steps: int) -> None:
        self._steps, self._capacity = steps, 0
        self._rings: dict[str, NDArray[np.float64]] = {}

    def names(self) -> list[str]:
        """The names of all results ever reported."""
        return list(self._rings)

    def of(self, name: str, row: int, ranks: int) -> NDArray[np.float64]:
        """(ranks,) one step's results, NaN if not reported."""
        return self._rings[name][row, :ranks]

    def grow(self, capacity: int) -> None:
        more = capacity - self._capacity
        self._capacity = capacity
        for name, ring in self._rings.items():
            empty = np.full((self._steps, more), np.nan)
            self._rings[name] = np.concatenate([ring, empty], axis=1)

    def clear(self, row: int) -> None:
        for ring in self._rings.values():
            ring[row] = np.nan

    def put(self, batch: StepBatch, row: NDArray[np.int64], rank: NDArray[np.int32]) -> None:
        """The batch's lines belong to these rows and ranks. The first report counts."""
        for name in RESULTS:
            values = getattr(batch, name)
            given = ~np.isnan(values)
            if not given.any():
                continue
            if name not in self._rings:
                self._rings[name] = np.full((self._steps, self._capacity), np.nan)
            ring = self._rings[name]
            given &= np.isnan(ring[row, rank])
            ring[row[given], rank[given]] = values[given]


#: One value for each row of a batch.
COLUMNS = ("rank", "step", "at", "node", "gpu", "stage", "step_s", *PARTS, "work", *RESULTS)


def vouched(batch: StepBatch, slurm: SlurmSnapshot | None) -> NDArray[np.bool_] | None:
    """(n,) rows that name no node, or one that the job holds; none for a life that Slurm has not begun.

    None: Slurm does not show the job as active, so nothing can be checked.
    """
    shown = slurm.whole(batch.job) if slurm is not None else None
    if shown is None or not shown.active:
        return None
    if batch.restart > shown.restarts:
        return np.zeros(len(batch.rank), bool)
    held = set(shown.nodes)
    return np.array([*(name in held for name in batch.nodes), True])[batch.node]  # -1 reads the last


def only(batch: StepBatch, rows: NDArray[np.bool_]) -> StepBatch:
    """The batch with only these rows."""
    if rows.all():
        return batch
    columns = {name: getattr(batch, name)[rows] for name in COLUMNS}
    return replace(batch, **columns, doing=batch.doing[rows] if batch.doing is not None else None)
