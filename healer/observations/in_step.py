"""What ranks say of a step that is not over: where each stands. State owned by its job's steps."""

import numpy as np
from numpy.typing import NDArray

from healer.model.samples import DOING

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
