"""Where a trend leads: the robust slope of a series, whether it is more than noise, and when it reaches a
limit.

Theil-Sen: the slope is the median of the slopes between all pairs of points (Sen 1968); its interval is that
of the same paper. The Mann-Kendall test, corrected for ties, decides whether there is a trend (Kendall 1975).
Both are robust: one outlier moves neither.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from healer.detection.streams import medians
from healer.model import Trend

Array = NDArray[np.float64]

#: Points of the examined windows, which all end with the newest: 3, 7 and 14 days of 6 h each. A part that
#: has begun to fail shows it first in the short one; slow growth shows only in the long one.
WINDOWS = (12, 28, 56)
#: A series is judged from this many known points on, and if this share of the window is known.
LEAST_POINTS, LEAST_SHARE = 10, 0.6
#: Threshold in standard deviations of the Mann-Kendall statistic: each look at independent noise exceeds it
#: with probability 3e-5.
TREND_Z = 4.0
#: Quantile for the slope's interval: 90 %.
RANGE_Z = 1.645
#: A lasting trend has at least this share of its slope in each half.
LASTING = 0.5
#: Columns processed at once: all pairs of a window of this many stay within a few MB.
_TOGETHER = 256


class Outlook(NamedTuple):
    """For k series: `level` now by the trend, `per_day` its slope, and `days` until the limit with their
    range (inf: never; 0: reached). NaN: no trend."""

    level: Array
    per_day: Array
    days: Array
    low: Array
    high: Array

    def at(self, index: int) -> Trend:
        level, per_day, days, low, high = (float(values[index]) for values in self)
        end = high if np.isfinite(high) else None
        return Trend(level=level, per_day=per_day, days=days, low=low, high=end)


def outlook(values: Array, point_days: float, limit: float, *, falls: bool = False) -> Outlook:
    """`values` (points, k): oldest first, NaN unknown, one point per `point_days`. Of the windows that show a
    trend, the one that reaches the limit first counts; the range covers all of them."""
    k = values.shape[1]
    best = Outlook(*(np.full(k, np.nan) for _ in Outlook._fields))
    sign = -1.0 if falls else 1.0
    for first in range(0, k, _TOGETHER):
        part = slice(first, first + _TOGETHER)
        for points in WINDOWS:
            found = _window(sign * values[-points:, part], points, point_days, sign * limit)
            is_found, is_first = np.isfinite(found.days), np.isnan(best.days[part])
            # Windows that disagree give a wider range.
            low = np.fmin(best.low[part], np.where(is_found, found.low, np.nan))
            high = np.fmax(best.high[part], np.where(is_found, found.high, np.nan))
            better = is_found & (is_first | (found.days < best.days[part]))
            for old, new in zip(best, found, strict=True):
                old[part] = np.where(better, new, old[part])
            best.low[part], best.high[part] = low, high
    best.level[:] *= sign
    best.per_day[:] *= sign
    return best


class Slope(NamedTuple):
    """For k series: Mann-Kendall's `z`, Theil-Sen's slope per point with its 90 % interval, and the resulting
    `level` at the newest point. `lasts`: each half has at least the share `LASTING` of that slope, which
    excludes a single step or a rise that has ended."""

    z: Array
    per_point: Array
    low: Array
    high: Array
    level: Array
    lasts: NDArray[np.bool_]


def slope_of(values: Array) -> Slope:
    """`values` (points, k): oldest first, NaN unknown. A few hundred columns at once: all pairs are held."""
    count = np.isfinite(values).sum(axis=0)
    rise, apart = _pairs(values)
    z, spread = _trend(values, rise, count)
    per_point, low, high = _slopes(rise / apart, spread)
    place = np.arange(len(values))[:, np.newaxis]
    # Halves of the known points of each series, because a series may have begun within the window.
    is_known = np.isfinite(values)
    first, last = np.argmax(is_known, axis=0), len(values) - 1 - np.argmax(is_known[::-1], axis=0)
    middle = (first + last) / 2
    lasts = np.ones(values.shape[1], np.bool_)
    with np.errstate(invalid="ignore", divide="ignore"):
        for half in (place <= middle, place >= middle):
            part = np.where(half, values, np.nan)
            part_rise, _ = _pairs(part)
            _, part_spread = _trend(part, part_rise, np.isfinite(part).sum(axis=0))
            lasts &= _slopes(part_rise / apart, part_spread)[0] / per_point >= LASTING
    level = medians((values + per_point * (len(values) - 1 - place)).T)
    return Slope(z, per_point, low, high, level, lasts)


def _pairs(values: Array) -> tuple[Array, Array]:
    """For all pairs of points: (pairs, k) the rise, and (pairs, 1) the number of points between them."""
    first, second = np.triu_indices(len(values), 1)
    return values[second] - values[first], (second - first)[:, np.newaxis].astype(np.float64)


def _window(values: Array, points: int, point_days: float, limit: float) -> Outlook:
    """Rising series of one window; those without a trend are NaN."""
    n = np.isfinite(values).sum(axis=0)
    rise, apart = _pairs(values)
    z, spread = _trend(values, rise, n)
    rising = np.flatnonzero((n >= LEAST_POINTS) & (n >= LEAST_SHARE * points) & (z >= TREND_Z))
    found = Outlook(*(np.full(values.shape[1], np.nan) for _ in Outlook._fields))
    if not len(rising):
        return found
    slope, slope_low, slope_high = _slopes(rise[:, rising] / (apart * point_days), spread[rising])
    age_days = (len(values) - 1 - np.arange(len(values)))[:, np.newaxis] * point_days
    level = medians((values[:, rising] + slope * age_days).T)
    left = np.maximum(limit - level, 0.0)
    ends = (_days_until(left, slope), _days_until(left, slope_high), _days_until(left, slope_low))
    for column, figures in zip(found, (level, slope, *ends), strict=True):
        column[rising] = figures
    return found


def _trend(values: Array, rise: Array, n: NDArray[np.intp]) -> tuple[Array, Array]:
    """Mann-Kendall's z, and the standard deviation of its statistic, corrected for ties."""
    statistic = np.nansum(np.sign(rise), axis=0)
    variance = n * (n - 1) * (2 * n + 5) - _ties(values)
    spread = np.sqrt(np.maximum(variance, 0.0) / 18.0)
    with np.errstate(all="ignore"):
        z = np.where(spread > 0, (statistic - np.sign(statistic)) / spread, 0.0)
    return z, spread


def _ties(values: Array) -> Array:
    """Sum over groups of equal points of t(t-1)(2t+5)."""
    ordered = np.sort(values, axis=0)  # NaN last, equal to nothing
    run = np.ones(values.shape[1])
    total = np.zeros(values.shape[1])
    for row in range(1, len(ordered)):
        same = ordered[row] == ordered[row - 1]
        total += np.where(same, 0.0, _group(run))
        run = np.where(same, run + 1, 1.0)
    return total + _group(run)


def _group(size: Array) -> Array:
    return size * (size - 1) * (2 * size + 5)


def _slopes(slopes: Array, spread: Array) -> tuple[Array, Array, Array]:
    """Median of the slopes of all pairs, and the ends of its interval."""
    ordered = np.sort(slopes, axis=0)
    pairs = np.isfinite(ordered).sum(axis=0)
    reach = RANGE_Z * spread
    columns = np.arange(slopes.shape[1])

    def at(place: Array) -> Array:
        index = np.clip(np.round(place), 0, np.maximum(pairs - 1, 0)).astype(np.intp)
        return ordered[index, columns]

    middle = (at(np.floor((pairs - 1) / 2)) + at(np.ceil((pairs - 1) / 2))) / 2
    return middle, at((pairs - reach) / 2 - 1), at((pairs + reach) / 2)


def _days_until(left: Array, slope: Array) -> Array:
    """Days until `left` is used up; inf if never."""
    return np.where(left <= 0, 0.0, np.where(slope > 0, left / np.where(slope > 0, slope, 1.0), np.inf))
