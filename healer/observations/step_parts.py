"""What the steps of a job were made of, over all ranks: the mean seconds of each part."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from healer.model.samples import StepBatch

PARTS = ("compute_s", "comm_s", "data_s")


class StepParts:
    """Rows as in the job's own ring of steps; columns are `PARTS`."""

    def __init__(self, steps: int) -> None:
        self._sum = np.zeros((steps, len(PARTS)))
        self._count = np.zeros((steps, len(PARTS)))

    def clear(self, row: int) -> None:
        self._sum[row], self._count[row] = 0, 0

    def add(self, batch: "StepBatch", index: NDArray[np.intp], row: NDArray[np.int64]) -> None:
        """`index` (n,) rows of the batch, `row` (n,) where their steps lie."""
        for column, name in enumerate(PARTS):
            values = getattr(batch, name)[index]
            known = np.isfinite(values)
            np.add.at(self._sum[:, column], row[known], values[known])
            np.add.at(self._count[:, column], row[known], 1)

    def mean(self, rows: NDArray[np.intp]) -> NDArray[np.float64]:
        """(3,) the median over these steps of the mean over ranks, NaN where less than half told it."""
        with np.errstate(invalid="ignore", divide="ignore"):
            each = self._sum[rows] / self._count[rows]
        found = np.full(len(PARTS), np.nan)
        for column in range(len(PARTS)):
            known = each[np.isfinite(each[:, column]), column]
            if len(known) and 2 * len(known) >= len(rows):
                found[column] = np.median(known)
        return found
