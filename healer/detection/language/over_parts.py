"""Values of parts -> one value per whole: the GPUs of a node, the nodes of a job.

Each function takes the parts' column, the row of the whole for each part (-1: none) and the number of wholes.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from healer.detection.language.truth import FALSE, TRUE, UNKNOWN, Truth

Numbers = NDArray[np.float64]
Rows = NDArray[np.int32]


def _count(mask: NDArray[np.bool_], parent: Rows, wholes: int) -> NDArray[np.int64]:
    return np.bincount(parent[mask & (parent >= 0)], minlength=wholes)


def any_of(parts: Truth, parent: Rows, wholes: int) -> Truth:
    """Kleene: true with one true part, false only if every part is known false; no parts: unknown."""
    found = np.full(wholes, FALSE, np.uint8)
    found[_count(np.ones(len(parts), np.bool_), parent, wholes) == 0] = UNKNOWN
    found[_count(parts == UNKNOWN, parent, wholes) > 0] = UNKNOWN
    found[_count(parts == TRUE, parent, wholes) > 0] = TRUE
    return found


def count_of(parts: Truth, parent: Rows, wholes: int) -> Numbers:
    found = _count(parts == TRUE, parent, wholes).astype(np.float64)
    found[_count(parts != UNKNOWN, parent, wholes) == 0] = np.nan
    return found


def share_of(parts: Truth, parent: Rows, wholes: int) -> Numbers:
    known = _count(parts != UNKNOWN, parent, wholes).astype(np.float64)
    known[known == 0] = np.nan
    return _count(parts == TRUE, parent, wholes).astype(np.float64) / known


def sum_of(parts: Numbers, parent: Rows, wholes: int) -> Numbers:
    known = ~np.isnan(parts) & (parent >= 0)
    found = np.bincount(parent[known], parts[known], minlength=wholes).astype(np.float64)
    found[np.bincount(parent[known], minlength=wholes) == 0] = np.nan
    return found


def max_of(parts: Numbers, parent: Rows, wholes: int) -> Numbers:
    found = np.full(wholes, np.nan)
    known = ~np.isnan(parts) & (parent >= 0)
    np.fmax.at(found, parent[known], parts[known])
    return found


def min_of(parts: Numbers, parent: Rows, wholes: int) -> Numbers:
    return -max_of(-parts, parent, wholes)


def median_of(parts: Numbers, parent: Rows, wholes: int) -> Numbers:
    known = ~np.isnan(parts) & (parent >= 0)
    rows, values = parent[known], parts[known]
    ranked = values[np.lexsort((values, rows))]
    count = np.bincount(rows, minlength=wholes)
    first = np.cumsum(count) - count
    found = np.full(wholes, np.nan)
    some = count > 0
    low = ranked[(first + (count - 1) // 2)[some]]
    found[some] = (low + ranked[(first + count // 2)[some]]) / 2
    return found


OVER_PARTS: dict[str, Callable[[Any, Rows, int], Any]] = {
    "any_of": any_of,
    "count_of": count_of,
    "share_of": share_of,
    "sum_of": sum_of,
    "max_of": max_of,
    "min_of": min_of,
    "median_of": median_of,
}
