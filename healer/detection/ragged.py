"""Arrays of unequal length side by side: what is reckoned for each of many jobs is reckoned once for all."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: float32 stays float32.
Floats = NDArray[Any]


def alike(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Which of them are about as long as each other: side by side at most half of the room stays empty."""
    found: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        found.setdefault((length - 1).bit_length() if length else -1, []).append(index)
    return iter(found.values())


def side_by_side(arrays: Sequence[Floats], width: int | None = None) -> Floats:
    """(k, width) one row for each, NaN where it has ended; `width`: of the longest, if not told."""
    lengths = [len(one) for one in arrays]
    width = max(lengths, default=0) if width is None else width
    if all(length == width for length in lengths):
        return np.concatenate(arrays).reshape(len(arrays), width) if arrays else np.zeros((0, width))
    found = np.full((len(arrays), width), np.nan, np.result_type(*arrays))
    for row, (one, length) in enumerate(zip(arrays, lengths, strict=True)):
        found[row, :length] = one
    return found


def medians(rows: Floats) -> Floats:
    """(k,) of the known values of each row of (k, n), NaN where there are none."""
    if not rows.size:
        return np.full(len(rows), np.nan)
    ordered = np.sort(rows, axis=1)  # NaN last
    known = np.count_nonzero(~np.isnan(rows), axis=1)
    row = np.arange(len(rows))
    return (ordered[row, np.maximum(known - 1, 0) // 2] + ordered[row, known // 2]) / 2


def medians_of(arrays: Sequence[Floats]) -> NDArray[np.float64]:
    """(k,) `medians` of arrays of whatever lengths."""
    found = np.full(len(arrays), np.nan)
    for part in alike([len(one) for one in arrays]):
        found[part] = medians(side_by_side([arrays[index] for index in part]))
    return found
