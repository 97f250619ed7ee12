"""Samples on their way from the wire to the picture.

Not in `healer.model` itself: these need numpy, which the command line must not load.
"""

from dataclasses import dataclass
from datetime import datetime

import msgspec
import numpy as np
from numpy.typing import NDArray


class Report(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What one node measured at one moment. `columns` are ids of a `ports.ColumnBook`.

    columns: (n,) int32; values: (n,) float64, NaN where the sender had none. `at` is the sender's clock.
    """

    cluster: str
    node: str
    at: datetime
    arrived_at: datetime
    columns: NDArray[np.int32]
    values: NDArray[np.float64]


#: What a rank does that has ended no step for a while: computes, waits in a collective, is between two steps,
#: or saves or evaluates, as its program says itself.
DOING = ("compute", "collective", "between", "checkpoint", "evaluation")


@dataclass(frozen=True, slots=True, eq=False)
class StepBatch:
    """Step times of one job and one of its lives, as one sender told them.

    Arrays are (n,): `rank` int32, `step` int64, `at` float64 (s since 1970), `node` int32 (index into
    `nodes`, -1 not told), `gpu` int32 (-1), `stage` int32 (-1); float64 with NaN where not told: `step_s`,
    `compute_s`, `comm_s`, `data_s`, `work`, `loss`, `grad_norm` (infinite: told, and no number).

    `doing` (n,) int8, indexes of `DOING`: rows of ranks that stand still, `step_s` is for how long so far.
    None: steps that are over.
    """

    cluster: str
    job: str
    restart: int
    arrived_at: datetime
    nodes: tuple[str, ...]
    rank: NDArray[np.int32]
    step: NDArray[np.int64]
    at: NDArray[np.float64]
    node: NDArray[np.int32]
    gpu: NDArray[np.int32]
    stage: NDArray[np.int32]
    step_s: NDArray[np.float64]
    compute_s: NDArray[np.float64]
    comm_s: NDArray[np.float64]
    data_s: NDArray[np.float64]
    work: NDArray[np.float64]
    loss: NDArray[np.float64]
    grad_norm: NDArray[np.float64]
    doing: NDArray[np.int8] | None = None
