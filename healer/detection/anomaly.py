"""How unusual each sample of one or many series is, compared with a healthy past: for metrics of any machine.

Scores every feature, the part of it that the other features do not explain, and all features together, in
four ways (level, spread, surprise, stillness). For each it computes how rare the value is against everything
before, and adds up the evidence. Method, sources, figures and limits: `docs/detection.md`. Arrays are
feature-major inside, (columns, samples).
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: A sample with this score or more is an alarm: about one false alarm a week for a feature sampled every
#: minute (`docs/detection.md` has the figures by kind of series).
THRESHOLD = 4.0
#: An alarm lasts until the score falls below this: still unusual, but not enough to begin an alarm.
ENDS_BELOW = 1.0

#: Samples in the windows of level and spread. Each window needs eight times as many to learn from; if even
#: the shortest has too few, the level is the sample itself.
WINDOWS = (8, 64)
LEARN = 8
#: Earlier samples from which the next one is predicted.
LAGS = 16
#: Evidence counts above this many decades of rarity (one sample in 56 reaches that), or above the recent
#: level if that is higher, and up to this many more. So a feature among others must be unusual in two ways.
COUNTS_FROM, COUNTS_MOST = 1.75, 5.0
#: The more columns, the more often one of them is rare by chance: this many decades per decade of columns.
#: More than one, because the ways to score a column overlap and their sum exaggerates.
OF_MANY = 2.0
#: Columns that are processed together: as many as fit into the processor's cache.
AT_ONCE = 4
#: Share of a feature's spread in training below which no difference matters; a decade of rarity is at least
#: this.
FINEST = 0.05
#: A constant feature's spread is taken to be this share of its level.
CONSTANT = 1e-3
#: How many spreads rounding may move a value. A machine at rest moves little, a frozen sensor not at all.
ROUNDING = 1e-9
#: A window is valid if this share of it was measured.
MEASURED = 0.5
#: Quantiles of training that bound the usual range. A column leaves it when a value and this share of the
#: last window are outside, and has returned once a window and this many samples have passed.
USUAL_RANGE, AWAY, RETURNS = (0.01, 0.99), 0.5, 4
#: Minimum and maximum number of samples between a rare step and the step that undoes it.
UNDOES = (6, 600)
#: A larger magnitude is no measurement.
BEYOND = 1e150
#: Larger distances are cut to this, in spreads.
FARTHEST = 1e5
#: How many values, evenly spread over a long past, its quantiles are computed from.
SAMPLED = 2048
#: The past is ranked again after this many samples, or when it has grown by this share, so that the cost of a
#: long series grows with its logarithm.
FRESH, GROWN = 64, 1 / 16
#: With fewer independent values the shape of their tail is unknown.
LEAST = 10
#: The past is cut into this many stretches. The one with the highest value may contain a fault, so its values
#: do not count as usual. Shorter stretches show nothing.
STRETCHES, SHORTEST = 16, 8
#: A feature is predicted from this many others (those most correlated with it), at the same moment and
#: averaged over this many samples. The residual is scored if its spread is less than this share of the
#: feature's.
PEERS, SMOOTHED, EXPLAINED = 8, (4, 16), 0.7
#: This many samples well before a value show whether it was also rare then; each counts for at most this many
#: decades.
LATELY, LATELY_MOST = 256, 6.0
#: `unusual` needs at least this many past samples.
SHORTEST_PAST = 64
#: A sample must be confirmed by one of the three before it, or loses this many decades.
CONFIRMED_WITHIN, UNCONFIRMED = 4, 1.5
_MIDDLE = 0.3  # the median, in decades

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def score(train: ArrayLike, test: ArrayLike) -> Floats:
    """(samples of test,) at least 0, higher is more unusual; `THRESHOLD` and above is an alarm.

    `train` and `test`: (samples, features), equally spaced in time, `test` right after `train`, which is
    assumed healthy. The score of a sample does not depend on later samples. NaN is unknown: no evidence,
    neither of a still value nor of a step. Raises ValueError for other shapes."""
    before, new = _table(train, "train"), _table(test, "test")
    if before.shape[1] != new.shape[1]:
        raise ValueError(f"test has {new.shape[1]} features, train has {before.shape[1]}")
    if not len(before):
        raise ValueError("train has no samples")
    if not len(new):
        return np.zeros(0)
    n = len(before)
    columns, measured = _columns(np.concatenate([before, new]).T, n)
    some = [slice(first, first + AT_ONCE) for first in range(0, len(columns), AT_ONCE)]
    most = np.max([_evidence(columns[part], measured[part], n).max(axis=0) for part in some], axis=0)
    return _with_hysteresis(_debounced(np.maximum(most - OF_MANY * np.log10(len(columns)), 0)))


def _debounced(scores: Floats) -> Floats:
    """The second highest score of the last few samples, or a sample's own score less the cost of being alone:
    a third of the false alarms were one sample long, but hardly any true one."""
    before = np.concatenate([np.zeros(CONFIRMED_WITHIN - 1), scores])
    last = np.sort(np.lib.stride_tricks.sliding_window_view(before, CONFIRMED_WITHIN), axis=1)
    return np.maximum(last[:, -2], scores - UNCONFIRMED)


def _with_hysteresis(scores: Floats) -> Floats:
    """Keeps the score at `THRESHOLD` at least, from where it is reached until it falls below `ENDS_BELOW`: a
    lasting anomaly is one alarm, including its end."""
    at = np.arange(len(scores))
    begun = np.maximum.accumulate(np.where(scores >= THRESHOLD, at, -1))
    ended = np.maximum.accumulate(np.where(scores < ENDS_BELOW, at, -1))
    return np.where(begun > ended, np.maximum(scores, THRESHOLD), scores)


class Unusual(NamedTuple):
    """Samples `first` to `last`, both included, score `THRESHOLD` or more; `highest` is the highest score."""

    first: int
    last: int
    highest: float


def unusual(values: ArrayLike) -> list[Unusual]:
    """Where, in time, the second half of a series is unusual compared with its first half.

    `values`: (samples, features), equally spaced in time. Alarms at most a window apart are merged. Empty if
    the first half has fewer than `SHORTEST_PAST` samples.
    """
    table = _table(values, "values")
    half = len(table) // 2
    if half < SHORTEST_PAST:
        return []
    scores = score(table[:half], table[half:])
    alarms = np.flatnonzero(scores >= THRESHOLD)
    if not len(alarms):
        return []
    cuts = np.flatnonzero(np.diff(alarms) > WINDOWS[0]) + 1
    return [
        Unusual(half + int(run[0]), half + int(run[-1]), float(scores[run].max()))
        for run in np.split(alarms, cuts)
    ]


def _evidence(columns: Floats, measured: Bools, n: int) -> Floats:
    """(columns, samples of test) decades by which a column is rarer than usual, summed over all ways to score
    it."""
    found = np.zeros((len(columns), columns.shape[1] - n))
    # The first step after a gap is left out, because it spans more time than the others.
    counts = measured & np.concatenate([measured[:, :1], measured[:, :-1]], axis=1)
    surprise = _surprise(columns, counts, n)
    since_away = np.minimum(_since_away(columns, n), _since_undone(columns, surprise, n))[:, n:]
    for way in _scorings(columns, measured, surprise, n):
        for side in (way.values, -way.values) if way.both else (way.values,):
            decades = _rarity(side, n, way.width)
            usual = np.maximum(_lately(decades, way.width), COUNTS_FROM)
            evidence = np.clip(decades - usual, 0, COUNTS_MOST)
            if way.steps and side is way.values:
                # The step back ends an event and does not begin another.
                evidence *= (since_away == 0) | (since_away > max(way.width, WINDOWS[0]) + RETURNS)
            found += evidence
    return found


def _since_away(x: Floats, n: int) -> NDArray[np.int64]:
    """(columns, samples) samples since the column last left its usual range."""
    low, high = np.quantile(x[:, :n], USUAL_RANGE, axis=1)
    outside = (x < low[:, None]) | (x > high[:, None])
    is_away = outside & (_mean(outside.astype(np.float64), WINDOWS[0]) >= AWAY)
    at = np.arange(x.shape[1])
    return at - np.maximum.accumulate(np.where(is_away, at, -x.shape[1]), axis=1)


def _since_undone(x: Floats, surprise: Floats, n: int) -> NDArray[np.int64]:
    """(columns, samples) samples since a step undid an earlier one: both are rare and of similar size, and
    the column is back at its earlier level."""
    rare = surprise > _usually_highest(surprise[:, :n])[0][:, None]
    steps = np.diff(x, axis=1, prepend=x[:, :1])
    undone = np.full(x.shape, -x.shape[1])
    for row in range(len(x)):
        times = np.flatnonzero(rare[row])
        for at in times:
            away = times[(times <= at - UNDOES[0]) & (times >= at - UNDOES[1])]
            left = np.abs([x[row, at] - x[row, away - 1], steps[row, at] + steps[row, away]])
            if (left.max(axis=0) < abs(steps[row, at]) / 2).any():
                undone[row, at] = at
    return np.arange(x.shape[1]) + 1 - np.maximum.accumulate(undone, axis=1)


def _table(values: ArrayLike, name: str) -> Floats:
    found = np.array(values, dtype=np.float64)
    if found.ndim == 1:
        found = found[:, None]
    if found.ndim != 2 or not found.shape[1]:
        raise ValueError(f"{name} has shape {found.shape}; (samples, features) is needed")
    # Unknown values, and values that no sensor can measure, whose square would overflow.
    found[~(np.abs(found) < BEYOND)] = np.nan
    return found


# --- columns to score


def _columns(x: Floats, n: int) -> tuple[Floats, Bools]:
    """(columns, samples) in spreads of training around its median, unknown values filled: the measured
    features, and how far all of them together are from their usual mixture; and which values were
    measured."""
    measured = ~np.isnan(x)
    x = _filled(x, n)
    flags = _flags(x[:, :n])
    if flags.all():
        flags[:] = False
    # A flag marks a command or an event, so only a value that no flag has is unusual.
    marks = np.clip(x[flags], 0, 1)
    strange = np.where(flags, np.abs(x - np.clip(x, 0, 1)).max(axis=1), 0) > 0
    x = np.concatenate([x[~flags], np.abs(x[strange] - np.clip(x[strange], 0, 1))])
    x = _in_spreads(x, n)
    of_all = [*([_together(x, n)] if len(x) > 1 else []), *_unexplained(x, marks, n)]
    all_measured = np.repeat(measured.all(axis=0, keepdims=True), len(of_all), axis=0)
    return np.concatenate([x, *of_all]), np.concatenate([measured[~flags], measured[strange], all_measured])


def _in_spreads(x: Floats, n: int) -> Floats:
    """In spreads of training around its median, on a scale that is linear within the usual deviation and
    logarithmic beyond: load and latency may rise tenfold as easily as by a tenth."""
    middle = np.median(x[:, :n], axis=1, keepdims=True)
    x = x - middle
    level = np.maximum(np.abs(x[:, :n]).max(axis=1, keepdims=True), np.abs(middle))
    spread = np.maximum(x[:, :n].std(axis=1, keepdims=True), CONSTANT * level)
    x = np.clip(x / np.where(spread > 0, spread, CONSTANT**2), -FARTHEST, FARTHEST)
    x = np.arcsinh(x / np.maximum(_deviation(x[:, :n]), 4 * FINEST))
    spread = x[:, :n].std(axis=1, keepdims=True)
    return x / np.where(spread > 0, spread, 1.0)


def _deviation(x: Floats) -> Floats:
    """(columns, 1) median absolute deviation from 0, as a standard deviation."""
    return 1.4826 * np.median(np.abs(x), axis=1, keepdims=True)


def _filled(x: Floats, n: int) -> Floats:
    """Replaces an unknown value by the last measured one; before the first, by the median of training."""
    unknown = np.isnan(x)
    if not unknown.any():
        return x
    valid = ~unknown[:, :n]
    first = [
        float(np.median(row[:n][is_valid])) if is_valid.any() else 0.0
        for row, is_valid in zip(x, valid, strict=True)
    ]
    last = np.maximum.accumulate(np.where(unknown, -1, np.arange(x.shape[1])), axis=1)
    return np.where(last >= 0, np.take_along_axis(x, np.maximum(last, 0), axis=1), np.array(first)[:, None])


def _flags(train: Floats) -> NDArray[np.bool_]:
    """0/1 features that were 1 less than half of the time: marks of commands or events."""
    return ((train == 0) | (train == 1)).all(axis=1) & (train.mean(axis=1) < 0.5)


def _together(x: Floats, n: int) -> Floats:
    """(1, samples) root mean square of the principal components in units of their spread in training, with a
    floor for those that hardly move (a robust Mahalanobis distance): shows a broken correlation."""
    _, sizes, directions = np.linalg.svd(x[:, :n].T, full_matrices=False)
    spread = sizes / np.sqrt(n) + FINEST
    distance = np.sqrt((((directions @ x) / spread[:, None]) ** 2).mean(axis=0, keepdims=True))
    return np.minimum(distance / max(float(distance[:, :n].std()), FINEST), FARTHEST)


def _unexplained(x: Floats, marks: Floats, n: int) -> list[Floats]:
    """(1, samples) each: the residual of the features that are explained by the others and by marks of
    commands, in spreads of training. Shows a fault that stays within a feature's range, but not a change that
    all features share or that follows a command."""
    marks = marks - marks[:, :n].mean(axis=1, keepdims=True)
    spread = marks[:, :n].std(axis=1)
    given = np.concatenate([x, marks[spread > 0] / spread[spread > 0, None]])
    if len(given) < 2 or n <= LEARN:
        return []
    # Averages, because the effect of a command lasts; the ramp gives a constant feature some spread.
    alike = np.abs(np.corrcoef(_mean(given, SMOOTHED[0])[:, :n] + 1e-9 * np.arange(n)))
    np.fill_diagonal(alike, -1)
    means = [given, *(_mean(given, window) for window in SMOOTHED if n >= 2 * LEARN * window)]
    found = []
    for at, feature in enumerate(x):
        peers = np.argsort(-alike[at])[: min(PEERS, len(given) - 1)]
        others = np.concatenate([mean[peers] for mean in means])
        if n <= 4 * len(others):
            continue
        left = feature - _predicted(others, feature, n)
        left -= np.median(left[:n])
        usual = feature[None, :n] - np.median(feature[:n])
        if _deviation(left[None, :n]).item() < EXPLAINED * _deviation(usual).item():
            left /= max(float(left[:n].std()), FINEST)
            found.append(np.clip(left[None], -FARTHEST, FARTHEST))
    return found


def _predicted(others: Floats, feature: Floats, n: int) -> Floats:
    """(samples,) by ridge regression on training, repeated three times with less weight for outliers."""
    weights = np.ones(n)
    predicted = np.zeros_like(feature)
    for _ in range(3):
        weighted = others[:, :n] * weights
        gram = weighted @ others[:, :n].T
        ridge = 1e-3 * np.trace(gram) / len(gram) + 1e-9
        predicted = np.linalg.solve(gram + ridge * np.eye(len(gram)), weighted @ feature[:n]) @ others
        left = feature[:n] - predicted[:n]
        left -= np.median(left)
        weights = np.maximum(1, np.abs(left) / (3 * _deviation(left[None]).item() + 3e-3)) ** -2
    return predicted


# --- ways to score a column


class _Scoring(NamedTuple):
    """(columns, samples); `width`: samples covered by one value; `both`: low is as unusual as high; `steps`:
    high where the value has moved."""

    values: Floats
    width: int
    both: bool = False
    steps: bool = False


def _scorings(x: Floats, measured: Bools, surprise: Floats, n: int) -> Iterator[_Scoring]:
    windows = [window for window in WINDOWS if n >= LEARN * window]
    for window in windows or [1]:
        share = _mean(measured.astype(np.float64), window)
        level, square = (_mean(each * measured, window) / np.maximum(share, MEASURED) for each in (x, x * x))
        is_valid = share >= MEASURED
        yield _Scoring(_held(level, is_valid), window, both=True)
        if window > 1:
            spread = np.sqrt(np.maximum(square - level * level, 0))
            yield _Scoring(_held(np.log(spread + FINEST), is_valid), window, both=True, steps=True)
    yield _Scoring(surprise, 1, steps=True)
    for window in windows[:1]:
        yield _Scoring(_mean(surprise, window), window, steps=True)
    yield _Scoring(np.log1p(_unmoved(x, measured)), windows[0] if windows else 1)


def _held(values: Floats, is_valid: Bools) -> Floats:
    """The last valid value where a window is not valid."""
    if is_valid.all():
        return values
    last = np.maximum.accumulate(np.where(is_valid, np.arange(values.shape[1]), 0), axis=1)
    return np.take_along_axis(values, last, axis=1)


def _mean(x: Floats, window: int) -> Floats:
    """Mean of the last `window` samples, a power of two; computed by doubling, which loses no precision over
    a long series."""
    total, wide = x, 1
    while wide < window:
        shifted = np.concatenate([np.repeat(total[:, :1], wide, axis=1), total[:, :-wide]], axis=1)
        total, wide = total + shifted[:, : x.shape[1]], 2 * wide
    return total / window


def _surprise(x: Floats, counts: Bools, n: int) -> Floats:
    """How far each step marked in `counts` is from the one predicted from the steps before (autoregression of
    differences by ridge regression on training, so that it follows a moving level)."""
    steps = np.diff(x, axis=1, prepend=x[:, :1]) * counts
    lags = min(LAGS, n // LEARN)
    if not lags:
        return np.abs(steps)
    before = np.concatenate([np.zeros((len(x), lags)), steps], axis=1)
    seen = np.lib.stride_tricks.sliding_window_view(before[:, : n + lags - 1], lags, axis=1)
    gram = np.matmul(seen.transpose(0, 2, 1), seen)
    ridge = 1e-4 * np.trace(gram, axis1=1, axis2=2) / lags + 1e-9
    wanted = np.matmul(seen.transpose(0, 2, 1), steps[:, :n, None])
    weights = np.linalg.solve(gram + ridge[:, None, None] * np.eye(lags), wanted)[:, :, 0]
    predicted = np.zeros_like(x)
    for lag in range(lags):
        predicted += weights[:, lag, None] * before[:, lag : lag + x.shape[1]]
    return np.abs(steps - predicted) * counts


def _unmoved(x: Floats, measured: Bools) -> Floats:
    """Measured samples since the value last moved."""
    moved = np.abs(np.diff(x, axis=1, prepend=x[:, :1])) > ROUNDING
    at = np.cumsum(measured, axis=1, dtype=np.float64)
    return at - np.maximum.accumulate(np.where(moved, at, 0), axis=1)


# --- rarity


def _rarity(values: Floats, n: int, width: int) -> Floats:
    """(columns, samples - n) decades of each value after the first `n`, against those well before it.

    `values` (columns, samples); high is rare. `width`: samples covered by one value, so that overlapping
    values do not count as independent. Within the usual range it is -log10 of the share of values at least as
    high. Beyond, it continues along the mean slope of the tail (an exponential tail, as in peaks over
    threshold), where a decade is at least `FINEST`. The past ends two widths (at least 64 samples) before a
    block of samples, so that an event is not compared with itself.
    """
    found = np.empty((values.shape[0], values.shape[1] - n))
    begin = n
    while begin < values.shape[1]:
        end = min(values.shape[1], begin + max(FRESH, int(begin * GROWN)))
        past = values[:, : max(n, begin - _lag(width))]
        highest, times = _usually_highest(past)
        ordered = np.sort(past[:, :: -(-past.shape[1] // SAMPLED)], axis=1)
        independent = max(past.shape[1] / width / times, LEAST)
        found[:, begin - n : end - n] = _decades(values[:, begin:end], ordered, highest, independent)
        begin = end
    return found


def _usually_highest(past: Floats) -> tuple[Floats, int]:
    """(columns,) the level reached in at least two stretches of the past, and 2; the highest value, and 1, if
    the past is too short to be cut."""
    each = past.shape[1] // STRETCHES
    if each < SHORTEST:
        return past.max(axis=1), 1
    stretches = past[:, -each * STRETCHES :].reshape(len(past), STRETCHES, each)
    return np.sort(stretches.max(axis=2), axis=1)[:, -2], 2


def _lately(decades: Floats, width: int) -> Floats:
    """(columns, samples) mean of the decades well before each value: a level that keeps climbing is always
    rare, and nothing new. 0 before the first value."""
    total = np.cumsum(np.minimum(decades, LATELY_MOST), axis=1)
    end = _lag(width) + 1
    return (_later(total, end) - _later(total, end + LATELY)) / LATELY


def _later(values: Floats, samples: int) -> Floats:
    found = np.zeros_like(values)
    found[:, samples:] = values[:, : max(0, values.shape[1] - samples)]
    return found


def _lag(width: int) -> int:
    """Samples that an event may last before it would be compared with itself."""
    return max(2 * width, FRESH)


def _decades(x: Floats, ordered: Floats, highest: Floats, independent: float) -> Floats:
    """By interpolation through the median, 90 %, 99 % (if enough values are independent) and the highest;
    beyond, in a straight line."""
    most = float(np.log10(independent + 1))
    marks = [(_MIDDLE, 0.5), (1.0, 0.9), *([(2.0, 0.99)] if most > 2.1 else [])]
    at = [ordered[:, round(share * (ordered.shape[1] - 1))] for _, share in marks]
    highest = np.maximum(highest, at[1])
    at.append(highest)
    decades = [*(decade for decade, _ in marks), most]
    slope = np.maximum((highest - at[0]) / (most - _MIDDLE), np.maximum(at[1] - at[0], FINEST))
    found = np.zeros_like(x)
    for low, high, below, above in zip(at, at[1:], decades, decades[1:], strict=False):
        inside = (x > low[:, None]) & (x <= high[:, None])
        part = (x - low[:, None]) / np.maximum(high - low, 1e-12)[:, None]
        found = np.where(inside, below + (above - below) * part, found)
    beyond = most + (x - highest[:, None]) / slope[:, None]
    return np.where(x > highest[:, None], beyond, found)
