"""Which of many parallel series runs above its peers: short median and CUSUM, one budget of false alarms.

Used for ranks and for nodes of training jobs. A value is the log of a ratio to the peers' median, so 0 is
"like the others" and 0.05 is 5 % slower. Formulas, sources and measured figures: `docs/detection.md`.

A job has few series, and numpy asks microseconds for each step of a formula however few there are. So the
formulas are written for the series of many jobs side by side, (jobs, series), and jobs share nothing there.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from statistics import NormalDist, median
from typing import Any, NamedTuple

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
    """(k, width) one row for each, padded with NaN; `width`: that of the longest, if not given."""
    lengths = [len(array) for array in arrays]
    width = max(lengths, default=0) if width is None else width
    if all(length == width for length in lengths):
        return np.concatenate(arrays).reshape(len(arrays), width) if arrays else np.zeros((0, width))
    found = np.full((len(arrays), width), np.nan, np.result_type(*arrays))
    for row, (array, length) in enumerate(zip(arrays, lengths, strict=True)):
        found[row, :length] = array
    return found


def medians(rows: Floats) -> Floats:
    """(k,) of the finite values of each row of (k, n), NaN where there are none."""
    if not rows.size:
        return np.full(len(rows), np.nan)
    ordered = np.sort(rows, axis=1)  # NaN last
    count = np.count_nonzero(~np.isnan(rows), axis=1)
    row = np.arange(len(rows))
    return (ordered[row, np.maximum(count - 1, 0) // 2] + ordered[row, count // 2]) / 2


def medians_of(arrays: Sequence[Floats]) -> NDArray[np.float64]:
    """(k,) `medians` of arrays of any lengths."""
    found = np.full(len(arrays), np.nan)
    for part in alike([len(array) for array in arrays]):
        found[part] = medians(side_by_side([arrays[index] for index in part]))
    return found


#: Steps at the start that are never judged: compilation, caches, the first touch of memory.
WARM_UP = 5
#: From here on a series' own bias is taken off. Before, the dead band is as wide as a bias may be.
LEARNT = 40
#: A difference below this never matters; it also covers a rack's harmless 1 %.
DEAD_BAND = 0.02
#: By how much a series may always have been slower, and still be like the others.
BIAS_MAX = 0.03
#: How far sound parts of one kind differ (standard deviation); shrinks what is learnt from noisy steps.
BIAS_SCALE = 0.01
#: Steps that a bias remembers.
BIAS_MEMORY = 500
#: Noise is taken for at least this: timers and clocks are no better.
NOISE_FLOOR = 0.004
#: CUSUM's allowance in units of the noise, where that is more than the dead band: half of what is looked for
#: (10 % at a noise of 12 %, less what a bias may hide).
ALLOWANCE = 0.37
#: One step counts for at most so many times the noise above the allowance: a pause of one rank is no trend.
CLIP = 2.5
#: The least threshold, in units of the noise: three steps at the clip, whatever the formula says.
THRESHOLD_LEAST = 6.0
#: False alarms per day for all series of one kind together.
BUDGET_PER_DAY = 0.02
#: Series that compare with each other at the least.
LEAST = 4

_SHORT = 5
_SCALES = 64
_FORGET = 64
_BELOW_1 = math.nextafter(1.0, 0.0)
#: What is kept of each series; after these come its last values, the newest last.
_FIELDS = ("band", "sum", "since", "mean", "bias_sum", "bias_n", "mean_n", "before", "product", "slow")
_LAST = len(_FIELDS)


class Streams:
    """n series of one job, step by step. A step without a value leaves its series as it is."""

    def __init__(self, n: int = 0) -> None:
        self.steps = 0
        self.noise = NOISE_FLOOR
        #: Of CUSUM; the short median is judged from `leap` above the band.
        self.threshold, self.leap = THRESHOLD_LEAST, math.inf
        #: (fields and last values, n), and the noise of the last steps that were judged.
        self.state = np.zeros((_LAST + _SHORT, 0))
        self.scales, self.judged = np.full(_SCALES, np.nan), 0
        self.grow(n)

    def __len__(self) -> int:
        return self.state.shape[1]

    @property
    def band(self) -> Floats:
        """(n,) what a series may be above its peers before it counts."""
        return self._of("band")

    @property
    def sum(self) -> Floats:
        """(n,) CUSUM in units of the noise."""
        return self._of("sum")

    @property
    def since(self) -> Floats:
        """(n,) the step after which the sum was above 0 all the time."""
        return self._of("since")

    @property
    def mean(self) -> Floats:
        """(n,) running mean of the last 64 clipped values."""
        return self._of("mean")

    @property
    def slow(self) -> NDArray[np.bool_]:
        """(n,) slow now; stays until the sum is down again."""
        return self._of("slow") > 0

    def _of(self, field: str) -> Floats:
        return self.state[_FIELDS.index(field)]

    def grow(self, n: int) -> None:
        """Series are numbered from 0; new ones start unknown."""
        more = n - len(self)
        if more > 0:
            new = np.zeros((len(self.state), more))
            new[_LAST:] = np.nan
            self.state = np.concatenate([self.state, new], axis=1)

    def forget(self, series: NDArray[np.intp]) -> None:
        """What was learnt of these no longer counts; they start unknown."""
        series = series[series < len(self)]
        self.state[:_LAST, series] = 0
        self.state[_LAST:, series] = np.nan

    def short_median(self) -> Floats:
        """(n,) of the last five steps, NaN where fewer than three are known."""
        return _short_median(self.state[_LAST:])

    def bias(self) -> Floats:
        """(n,) what each series always was above its peers: shrunk where little is known, and bounded."""
        return _bias(self._of("bias_sum"), self._of("bias_n"), self.noise)

    def clear(self) -> NDArray[np.bool_]:
        """(n,) known to be like its peers; where `slow` is false too: unknown, or on its way."""
        short = self.short_median()
        return ~self.slow & (self.sum < self.threshold / 3) & (short < np.maximum(self.band / 2, self.noise))

    def score(self) -> Floats:
        """(n,) how near each series is to being called slow: 1 and above as long as it is."""
        short = np.nan_to_num(self.short_median(), nan=0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            near = np.maximum(short / (self.band + self.leap), self.sum / self.threshold)
            near = np.nan_to_num(np.minimum(near, short / (self.band / 2)), nan=0.0)
        return np.where(self.slow, np.maximum(near, 1.0), np.clip(near, 0.0, _BELOW_1))

    def step(self, x: Floats, per_day: float, number: int = 0) -> None:
        """One step; for the arguments see `StreamStep`."""
        step_all([StreamStep(self, x, per_day, number)])


class StreamStep(NamedTuple):
    """One step of one job. `x` (n, or fewer): log ratio to the peers, NaN where unknown. `per_day`: steps in
    a day. `number`: of the step."""

    streams: Streams
    x: Floats
    per_day: float
    number: int


def step_all(steps: Sequence[StreamStep]) -> None:
    """One step of each of these jobs, at most one of a job."""
    due = []
    for step in steps:
        step.streams.steps += 1
        if step.streams.steps > WARM_UP and np.count_nonzero(np.isfinite(step.x)) >= LEAST:
            due.append(step)
    for part in alike([len(step.streams) for step in due]):
        _Columns([due[index] for index in part]).step()


# Wide: the names of one step's arrays, as the formulas in `docs/detection.md` name them.
class _Columns:
    """The series of k jobs side by side. Arrays are (k, n), and (k, 1) where a job has one value."""

    def __init__(self, steps: Sequence[StreamStep]) -> None:
        self.steps, streams = steps, [step.streams for step in steps]
        widths = [len(stream) for stream in streams]
        n = max(widths)
        self.state = np.zeros((_LAST + _SHORT, len(steps), n))
        for row, stream in enumerate(streams):
            self.state[:, row, : widths[row]] = stream.state
        fields = self.state[:_LAST]
        self.band, self.sum, self.since, self.mean, self.bias_sum, self.bias_n = fields[:6]
        self.mean_n, self.before, self.product, self.slow = fields[6:]
        self.x = side_by_side([step.x for step in steps], n)
        self.known = np.isfinite(self.x)
        self.widths = _column(widths)
        #: Padding: no series of that job.
        self.beyond = np.arange(n) >= self.widths if min(widths) < n else None
        self.settled = _column([stream.steps for stream in streams]) > LEARNT
        self.threshold = _column([stream.threshold for stream in streams])
        #: Of one step, across the series.
        self.noise = _column([stream.noise for stream in streams])

    def step(self) -> None:
        bias = _bias(self.bias_sum, self.bias_n, self.noise)
        d = np.where(self.settled, self.x - bias, self.x)
        self.state[_LAST:-1] = self.state[_LAST + 1 :]
        self.state[-1] = d
        wide = self._noise(d)
        unsure = self._allow(wide)
        clipped = np.clip(d, -self.band - CLIP * wide, self.band + CLIP * wide)
        self.mean_n += self.known
        rate = 1 / np.clip(self.mean_n, 1, _FORGET)
        np.copyto(self.mean, self.mean + (clipped - self.mean) * rate, where=self.known)
        # Clipping a skewed noise moves its mean: what all series share is no slowness.
        common = medians(np.where(self.known, self.mean, np.nan))[:, None]
        moved = clipped - common - self.band
        np.copyto(self.sum, np.clip(self.sum + moved / wide, 0, 1.5 * self.threshold), where=self.known)
        number = _column([step.number for step in self.steps])
        np.copyto(self.since, number, where=self.sum <= 0)
        self._judge(wide, unsure)
        self._learn(wide)
        for row, step in enumerate(self.steps):
            step.streams.state[:] = self.state[:, row, : len(step.streams)]

    def _noise(self, d: Floats) -> Floats:
        """The scale of one step's values across the series (MAD), as the median of the last 64 steps; more
        where a series' steps resemble the step before, for then a sum wanders further."""
        n = np.count_nonzero(self.known, axis=1)
        mad = 1.4826 * medians(np.abs(d - medians(d)[:, None])) * n / (n - 0.8)
        for step, scale in zip(self.steps, mad.tolist(), strict=True):
            step.streams.scales[step.streams.judged % _SCALES] = scale
            step.streams.judged += 1
        scales = side_by_side([step.streams.scales for step in self.steps])
        self.noise = np.maximum(NOISE_FLOOR, medians(scales))[:, None]
        for step, noise in zip(self.steps, self.noise[:, 0].tolist(), strict=True):
            step.streams.noise = noise
        alike = np.clip(self._own_medians(self.product) / self.noise**2, 0, 0.8)
        alike = np.where(self.settled, alike, 0.0)
        return self.noise * np.sqrt((1 + alike) / (1 - alike))

    def _own_medians(self, values: Floats) -> Floats:
        """(k, 1) over all series of each job, also those without a value in this step."""
        values = values if self.beyond is None else np.where(self.beyond, np.nan, values)
        return medians(values)[:, None]

    def _allow(self, noise: Floats) -> Floats:
        """Sets the band; (k, n) how much of it is for what is not known of the bias."""
        unsure = noise / np.sqrt(self.bias_n + (noise / BIAS_SCALE) ** 2)
        unsure = np.where(self.settled, unsure, BIAS_SCALE)
        self.band[:] = np.maximum(np.where(self.settled, DEAD_BAND, BIAS_MAX), ALLOWANCE * noise + unsure)
        return unsure

    def _judge(self, noise: Floats, unsure: Floats) -> None:
        """CUSUM by Siegmund's approximation of its run length; the short median by its exact tail."""
        k = self._own_medians(self.band - unsure) / noise
        length = self.widths * _column([step.per_day for step in self.steps]) / BUDGET_PER_DAY
        self.threshold = np.maximum(THRESHOLD_LEAST, np.log1p(2 * k * k * length) / (2 * k) - 1.166)
        tail = (1 / length / 10) ** (1 / 3)
        normal = NormalDist()
        leap = _column([normal.inv_cdf(1 - share) for share in tail[:, 0].tolist()]) * noise
        for row, step in enumerate(self.steps):
            step.streams.threshold, step.streams.leap = float(self.threshold[row, 0]), float(leap[row, 0])
        short = _short_median(self.state[_LAST:])
        on = ((short > self.band + leap) | (self.sum > self.threshold)) & (short > self.band / 2)
        off = (self.sum < self.threshold / 3) & (short < self.band)
        self.slow[:] = on | ((self.slow > 0) & ~off)

    def _learn(self, noise: Floats) -> None:
        # What looks slow is not learnt: else a series slow from its start would be like the others soon.
        calm = self.known & (self.slow == 0) & (self.sum < self.threshold / 4)
        full = self.bias_n >= BIAS_MEMORY
        kept = np.where(full, self.bias_sum * (1 - 1 / BIAS_MEMORY), self.bias_sum)
        most = BIAS_MAX + CLIP * noise
        np.copyto(self.bias_sum, kept + np.clip(self.x, -most, most), where=calm)
        self.bias_n += calm & ~full
        bias = _bias(self.bias_sum, self.bias_n, self.noise)
        most = CLIP * self.noise
        now = np.clip(np.where(self.known, self.x - bias, 0), -most, most)
        self.product += (now * self.before - self.product) / _FORGET
        self.before[:] = now


def _column(values: Sequence[float]) -> Floats:
    """(k, 1)"""
    return np.array(values, np.float64)[:, None]


def _bias(total: Floats, n: Floats, noise: Floats | float) -> Floats:
    weight = n * BIAS_SCALE**2
    return np.clip(total / np.maximum(n, 1) * weight / (weight + noise**2), -BIAS_MAX, BIAS_MAX)


def _short_median(last: Floats) -> Floats:
    """Over the first axis, NaN where fewer than three are known."""
    count = np.count_nonzero(np.isfinite(last), axis=0)
    ordered = np.sort(last, axis=0)  # NaN last
    if (count == _SHORT).all():
        return ordered[_SHORT // 2]
    low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, _SHORT - 1)
    middle = [np.take_along_axis(ordered, at[None], axis=0)[0] for at in (low, high)]
    return np.where(count >= 3, (middle[0] + middle[1]) / 2, np.nan)


#: So much more than before counts at the least, and so many steps in a row have to say so.
SLOWER = 1.10
PACE_STEPS = 5
#: Steps that "before" means, and how many of them have to be known.
BEFORE = 100
BEFORE_LEAST = 30
#: The median of five steps of Gaussian noise has this share of one step's deviation.
_SHORT_DEVIATION = 0.54


class Pace:
    """Step times of one job, in order. While it is slow, "before" is not updated."""

    def __init__(self) -> None:
        self.steps = 0
        self.slow = False
        #: The step at which the slow ones began; the pace before and now, s per step (NaN unknown).
        self.since = -1
        self.before_s = float("nan")
        self.now_s = float("nan")
        self.limit_s = float("nan")
        self._before: deque[float] = deque(maxlen=BEFORE)
        self._last: deque[tuple[int, float]] = deque(maxlen=PACE_STEPS)
        self._run = 0

    @property
    def is_ready(self) -> bool:
        """Whether there are enough steps to judge."""
        return len(self._before) >= BEFORE_LEAST and len(self._last) == PACE_STEPS

    def step(self, number: int, step_s: float) -> None:
        self.steps += 1
        if self.steps <= WARM_UP or not step_s > 0:
            return
        if len(self._last) == PACE_STEPS and not self.slow and self._run == 0:
            self._before.append(self._last[0][1])
        self._last.append((number, step_s))
        if self.is_ready:
            self._judge()

    def _judge(self) -> None:
        self.before_s = median(self._before)
        self.now_s = median(value for _, value in self._last)
        spread_s = 1.4826 * median(abs(value - self.before_s) for value in self._before)
        self.limit_s = max(SLOWER * self.before_s, self.before_s + 5 * _SHORT_DEVIATION * spread_s)
        if self.now_s >= self.limit_s:
            if self._run == 0:
                self.since = next(number for number, value in self._last if value >= self.limit_s)
            self._run += 1
        else:
            self._run = 0
        # Half-way back is not back.
        self.slow = self._run >= PACE_STEPS or (self.slow and self.now_s > (self.before_s + self.limit_s) / 2)
