"""What the steps of a job were made of, over all ranks: the mean seconds of each part."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from healer.model.samples import StepBatch

PARTS = ("compute_s", "comm_s", "data_s")


class StepParts:
    """Arrays are (parts, rows of the job's own ring of steps)."""

    def __init__(self, steps: int) -> None:
        self._sum = np.zeros((len(PARTS), steps))
        self._count = np.zeros((len(PARTS), steps))

    def clear(self, row: int) -> None:
        self._sum[:, row], self._count[:, row] = 0, 0

    def add(self, batch: "StepBatch", row: NDArray[np.int64]) -> None:
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
