"""Which of many parallel series runs above its peers: short median and CUSUM, one budget of false alarms.

Used for ranks and for nodes of one training job. A value is the log of a ratio to the peers' median, so 0 is
"like the others" and 0.05 is 5 % slower. Formulas, sources and measured figures: `docs/detection.md`.
"""

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

#: Steps at the start that are never judged: compilation, caches, the first touch of memory.
WARM_UP = 5
#: From here on a series' own bias is taken away. Before, the dead band is as wide as a bias may be.
LEARNT = 40
#: A difference below this never matters; it also covers a rack's harmless 1 %.
DEAD_BAND = 0.02
#: What a series may always have been slower, and still be like the others.
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
_BY_SERIES = ("band", "sum", "since", "mean", "_bias_sum", "_bias_n", "_mean_n", "_before", "_product")


class Streams:
    """n series, told step by step. Arrays are (n,); a step without a value leaves its series as it is."""

    def __init__(self, n: int = 0) -> None:
        self.steps = 0
        self.noise = NOISE_FLOOR
        #: What a series may be above its peers before it counts, per series.
        self.band = np.zeros(0)
        #: CUSUM in units of the noise, and its threshold.
        self.sum = np.zeros(0)
        self.threshold = THRESHOLD_LEAST
        #: Slow now; stays until the sum is down again.
        self.slow = np.zeros(0, bool)
        #: The step after which the sum was above 0 all the time.
        self.since = np.zeros(0)
        #: Running mean of the last 64 clipped values.
        self.mean = np.zeros(0)
        self._bias_sum = np.zeros(0)
        self._bias_n = np.zeros(0)
        self._last = np.zeros((_SHORT, 0))
        self._mean_n = np.zeros(0)
        self._unsure = np.zeros(0)
        self._before = np.zeros(0)
        self._product = np.zeros(0)
        self._scales: list[float] = []
        #: The short median is judged from this above the band.
        self._leap = math.inf
        self.grow(n)

    def grow(self, n: int) -> None:
        """Series are numbered from 0; new ones start unknown."""
        more = n - len(self.sum)
        if more <= 0:
            return
        for name in _BY_SERIES:
            setattr(self, name, np.concatenate([getattr(self, name), np.zeros(more)]))
        self.slow = np.concatenate([self.slow, np.zeros(more, bool)])
        self._last = np.concatenate([self._last, np.full((_SHORT, more), np.nan)], axis=1)

    def forget(self, series: NDArray[np.intp]) -> None:
        """What was learnt of these is over; they start unknown."""
        series = series[series < len(self.sum)]
        for name in _BY_SERIES:
            getattr(self, name)[series] = 0
        self.slow[series] = False
        self._last[:, series] = np.nan

    def short_median(self) -> NDArray[np.float64]:
        """(n,) of the last five steps, NaN where fewer than three are known."""
        known = np.isfinite(self._last).sum(axis=0)
        ordered = np.sort(self._last, axis=0)  # NaN last
        low, high = np.maximum(known - 1, 0) // 2, known // 2
        columns = np.arange(ordered.shape[1])
        middle = (ordered[low, columns] + ordered[np.minimum(high, _SHORT - 1), columns]) / 2
        return np.where(known >= 3, middle, np.nan)

    def bias(self) -> NDArray[np.float64]:
        """(n,) what each series always was above its peers: shrunk by how little is known, and bounded."""
        weight = self._bias_n * BIAS_SCALE**2
        mean = self._bias_sum / np.maximum(self._bias_n, 1)
        return np.clip(mean * weight / (weight + self.noise**2), -BIAS_MAX, BIAS_MAX)

    def clear(self) -> NDArray[np.bool_]:
        """(n,) known to be like its peers; with `slow` false too it is neither: unknown, or on its way."""
        short = self.short_median()
        return ~self.slow & (self.sum < self.threshold / 3) & (short < np.maximum(self.band / 2, self.noise))

    def score(self) -> NDArray[np.float64]:
        """(n,) how near each series is to being called slow: 1 and above as long as it is."""
        short = np.nan_to_num(self.short_median(), nan=0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            near = np.maximum(short / (self.band + self._leap), self.sum / self.threshold)
            near = np.nan_to_num(np.minimum(near, short / (self.band / 2)), nan=0.0)
        return np.where(self.slow, np.maximum(near, 1.0), np.clip(near, 0.0, _BELOW_1))

    def step(self, x: NDArray[np.float64], per_day: float, number: int = 0) -> None:
        """One step. `x` (n,): log ratio to the peers, NaN where unknown. `per_day`: steps in a day."""
        self.steps += 1
        known = np.isfinite(x)
        if self.steps <= WARM_UP or int(known.sum()) < LEAST:
            return
        settled = self.steps > LEARNT
        d = x - self.bias() if settled else x
        self._last = np.concatenate([self._last[1:], d[None, :]])
        noise = self._noise(d[known])
        self._allow(noise, settled)
        clipped = np.clip(d, -self.band - CLIP * noise, self.band + CLIP * noise)
        self._mean_n += known
        rate = 1 / np.clip(self._mean_n, 1, _FORGET)
        self.mean = np.where(known, self.mean + (clipped - self.mean) * rate, self.mean)
        # Clipping a skewed noise moves its mean: what all series share is no slowness.
        moved = clipped - float(np.median(self.mean[known])) - self.band
        self.sum = np.where(known, np.clip(self.sum + moved / noise, 0, 1.5 * self.threshold), self.sum)
        self.since = np.where(self.sum > 0, self.since, number)
        self._thresholds(noise, len(x) * per_day)
        self._learn(x, known, noise)

    def _noise(self, d: NDArray[np.float64]) -> float:
        """The scale of one step's values across the series (MAD), as the median of the last 64 steps; more
        where a series' steps resemble the step before, for then a sum wanders further."""
        n = len(d)
        mad = 1.4826 * float(np.median(np.abs(d - np.median(d)))) * n / (n - 0.8)
        self._scales = [*self._scales[1 - _SCALES :], mad]
        plain = max(NOISE_FLOOR, float(np.median(self._scales)))
        self.noise = plain
        alike = float(np.clip(np.median(self._product) / plain**2, 0, 0.8)) if self.steps > LEARNT else 0.0
        return plain * math.sqrt((1 + alike) / (1 - alike))

    def _allow(self, noise: float, settled: bool) -> None:
        unsure = noise / np.sqrt(self._bias_n + (noise / BIAS_SCALE) ** 2)
        if not settled:
            unsure = np.full_like(unsure, BIAS_SCALE)
        self.band = np.maximum(DEAD_BAND if settled else BIAS_MAX, ALLOWANCE * noise + unsure)
        self._unsure = unsure

    def _thresholds(self, noise: float, values_per_day: float) -> None:
        """CUSUM by Siegmund's approximation of its run length; the short median by its exact tail."""
        k = float(np.median(self.band - self._unsure)) / noise
        length = values_per_day / BUDGET_PER_DAY
        self.threshold = max(THRESHOLD_LEAST, math.log1p(2 * k * k * length) / (2 * k) - 1.166)
        tail = (1 / length / 10) ** (1 / 3)
        short = self.short_median()
        self._leap = NormalDist().inv_cdf(1 - tail) * noise
        fast = short > self.band + self._leap
        on = (fast | (self.sum > self.threshold)) & (short > self.band / 2)
        off = (self.sum < self.threshold / 3) & (short < self.band)
        self.slow = on | (self.slow & ~off)

    def _learn(self, x: NDArray[np.float64], known: NDArray[np.bool_], noise: float) -> None:
        # What looks slow is not learnt: else a series slow from its start would be like the others soon.
        calm = known & ~self.slow & (self.sum < self.threshold / 4)
        full = self._bias_n >= BIAS_MEMORY
        kept = np.where(full, self._bias_sum * (1 - 1 / BIAS_MEMORY), self._bias_sum)
        bounded = np.clip(x, -BIAS_MAX - CLIP * noise, BIAS_MAX + CLIP * noise)
        self._bias_sum = np.where(calm, kept + bounded, self._bias_sum)
        self._bias_n += calm & ~full
        now = np.clip(np.where(known, x - self.bias(), 0), -CLIP * self.noise, CLIP * self.noise)
        self._product += (now * self._before - self._product) / _FORGET
        self._before = now
