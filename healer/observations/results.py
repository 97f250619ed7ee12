"""What training steps came to: loss and gradient norm of each rank, as its job told them."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from healer.model.samples import StepBatch

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

    def put(self, batch: "StepBatch", row: NDArray[np.int64], rank: NDArray[np.int32]) -> None:
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
