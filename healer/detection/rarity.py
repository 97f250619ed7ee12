"""How rare a value is against all that came before, in decades: 3 is one in a thousand."""

import numpy as np
from numpy.typing import NDArray

#: Values that the quantiles of a long past are taken from, evenly spread over it.
SAMPLED = 2048
#: The past is looked at anew after so many samples, or when it has grown by this share: the cost of a long
#: series grows by its logarithm.
FRESH, GROWN = 64, 1 / 16
#: Of fewer independent values nothing is known of their tail.
LEAST = 10

#: So many samples well before a value tell whether it was rare then, too; each for so many decades at most.
LATELY, LATELY_MOST = 256, 6.0

_MIDDLE = 0.3  # decades of the median
Floats = NDArray[np.float64]


def rarity(values: Floats, n: int, width: int, finest: float) -> Floats:
    """(columns, samples - n) decades of each value after the first `n`, against those well before it.

    `values` (columns, samples); high is rare. `width`: samples that one value speaks of, so that neighbours
    are no news of each other. Within what was seen it is -log10 of the share that was as high; beyond the
    highest it goes on along the mean slope of the tail (an exponential tail, as in peaks over threshold),
    where a decade is at least `finest`. The past ends two widths (64 samples at least) before a block of
    samples, so that an event is not its own yardstick.
    """
    found = np.empty((values.shape[0], values.shape[1] - n))
    highest, upto, begin = values[:, :n].max(axis=1), n, n
    while begin < values.shape[1]:
        end = min(values.shape[1], begin + max(FRESH, int(begin * GROWN)))
        past = max(n, begin - _lag(width))
        if past > upto:
            highest = np.maximum(highest, values[:, upto:past].max(axis=1))
            upto = past
        ordered = np.sort(values[:, : past : -(-past // SAMPLED)], axis=1)
        found[:, begin - n : end - n] = _decades(
            values[:, begin:end], ordered, highest, max(past / width, LEAST), finest
        )
        begin = end
    return found


def lately(decades: Floats, width: int) -> Floats:
    """(columns, samples) mean of the decades well before each value: a level that climbs all the time is
    always rare, and no news. Before the first value there were none."""
    total = np.cumsum(np.minimum(decades, LATELY_MOST), axis=1)
    end = _lag(width) + 1
    return (_later(total, end) - _later(total, end + LATELY)) / LATELY


def _later(values: Floats, samples: int) -> Floats:
    found = np.zeros_like(values)
    found[:, samples:] = values[:, : max(0, values.shape[1] - samples)]
    return found


def _lag(width: int) -> int:
    """Samples that an event may last before it is its own yardstick."""
    return max(2 * width, FRESH)


def _decades(x: Floats, ordered: Floats, highest: Floats, independent: float, finest: float) -> Floats:
    """Through median, 90 %, 99 % (where so many are independent) and the highest; then straight on."""
    most = float(np.log10(independent + 1))
    marks = [(_MIDDLE, 0.5), (1.0, 0.9), *([(2.0, 0.99)] if most > 2.1 else [])]
    at = [ordered[:, round(share * (ordered.shape[1] - 1))] for _, share in marks] + [highest]
    decades = [*(decade for decade, _ in marks), most]
    slope = np.maximum((highest - at[0]) / (most - _MIDDLE), np.maximum(at[1] - at[0], finest))
    found = np.zeros_like(x)
    for low, high, below, above in zip(at, at[1:], decades, decades[1:], strict=False):
        inside = (x > low[:, None]) & (x <= high[:, None])
        part = (x - low[:, None]) / np.maximum(high - low, 1e-12)[:, None]
        found = np.where(inside, below + (above - below) * part, found)
    beyond = most + (x - highest[:, None]) / slope[:, None]
    return np.where(x > highest[:, None], beyond, found)
