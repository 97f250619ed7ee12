"""What counts of finite length prove: two-sided 90 % bounds, so that each side alone holds with 95 %."""

import math
from collections.abc import Sequence

import numpy as np

#: Normal quantile of 95 %.
_Z = 1.6449
_TAIL = 0.05


def share(found: int, of: int) -> tuple[float, float]:
    """Wilson's bounds of a probability, from `found` of `of` tries; (0, 1) without a try."""
    if not of:
        return 0.0, 1.0
    p, z2 = found / of, _Z * _Z / of
    middle = p + z2 / 2
    half = _Z * math.sqrt(p * (1 - p) / of + z2 / (4 * of))
    return max(0.0, (middle - half) / (1 + z2)), min(1.0, (middle + half) / (1 + z2))


def rate(count: int, days: float) -> tuple[float, float]:
    """Exact bounds of a Poisson rate a day; without a day nothing is proved."""
    if days <= 0:
        return 0.0, math.inf
    low = _mean(count - 1, 1 - _TAIL) if count else 0.0
    return low / days, _mean(count, _TAIL) / days


def median(values: Sequence[float]) -> tuple[float, float]:
    """Bounds of the median by order statistics: no form of the distribution is assumed, infinite values may
    be among them. NaN without any."""
    if not values:
        return math.nan, math.nan
    ordered, n = np.sort(np.array(values)), len(values)
    below, chance = -1, 0.0
    while (chance := chance + math.comb(n, below + 1) / 2**n) <= _TAIL:
        below += 1
    below = max(below, 0)
    return float(ordered[below]), float(ordered[n - 1 - below])


def _mean(most: int, chance: float) -> float:
    """The Poisson mean at which at most `most` come with this chance."""
    low, high = 0.0, 10.0 * (most + 2)
    for _ in range(80):
        mean = (low + high) / 2
        few = sum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(most + 1))
        low, high = (mean, high) if few > chance else (low, mean)
    return high
