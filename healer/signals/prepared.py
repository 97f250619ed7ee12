"""Reports of scrapes that come again: what their slots mean, worked out once."""

from datetime import datetime
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from healer.model.samples import Report
from healer.signals.gpu_names import Where
from healer.signals.measured import Measured
from healer.signals.values import clean
from healer.signals.wire import Known


class Refusal(NamedTuple):
    """Samples of one name that are not kept, and why."""

    name: str
    why: str
    samples: int
    example: dict[str, str]


class Prepared(NamedTuple):
    """What slots in this order are, if all that are kept are of one node and each is a column of its own.

    `order`: places of the samples that are kept, by column; `columns`: (n,) int32; `scale`: (n,) float64,
    None where all are 1."""

    where: Where
    order: NDArray[np.intp]
    columns: NDArray[np.int32]
    scale: NDArray[np.float64] | None
    refused: tuple[Refusal, ...]

    def report(self, values: NDArray[np.float64], known: Known, now: datetime, out: Measured) -> bool:
        """Adds the report. False, and nothing done, when one of the values is not known, or the node."""
        kept = clean(values[self.order])
        if np.count_nonzero(np.isnan(kept)) or not known(*self.where):
            return False
        if self.scale is not None:
            kept *= self.scale
        for one in self.refused:
            out.unplaced(one.name, one.why, one.samples, one.example)
        out.samples += len(kept)
        out.reports.append(Report(*self.where, now, now, self.columns, kept))
        return True
