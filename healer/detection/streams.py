"""Which of many parallel series runs above its peers: CUSUM with one shared budget of false alarms.

Used for ranks and for nodes of training jobs. A value is the log of a ratio to the peers' median, so 0 is
"like the others" and 0.05 is 5 % slower. Formulas, sources and measured figures: `docs/detection.md`.

A job has few series, and each numpy operation costs microseconds however few there are. So the formulas are
written for the series of many jobs side by side, (jobs, series); jobs do not affect each other.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: float32 stays float32.
Floats = NDArray[Any]


def alike(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Groups of indices of similar lengths: side by side, at most half of the space stays empty."""
    found: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        found.setdefault((length - 1).bit_length() if length else -1, []).append(index)
    return iter(found.values())


def side_by_side(arrays: Sequence[Floats], width: int | None = None) -> Floats:
    """(k, width) one row per array, padded with NaN; `width`: by default that of the longest."""
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
    n = rows.shape[1]
    if not np.isnan(ordered[:, -1]).any():
        return (ordered[:, (n - 1) // 2] + ordered[:, n // 2]) / 2
    count = np.count_nonzero(~np.isnan(rows), axis=1)
    row = np.arange(len(rows))
    return (ordered[row, np.maximum(count - 1, 0) // 2] + ordered[row, count // 2]) / 2


def medians_of(arrays: Sequence[Floats]) -> NDArray[np.float64]:
    """(k,) `medians` of arrays of any lengths."""
    found = np.full(len(arrays), np.nan)
    for part in alike([len(array) for array in arrays]):
        found[part] = medians(side_by_side([arrays[index] for index in part]))
    return found


def robust(values: Floats) -> tuple[float, float]:
    """Median and robust standard deviation (MAD)."""
    middle = float(np.median(values))
    return middle, 1.4826 * float(np.median(np.abs(values - middle)))


#: Steps at the start that are never judged: compilation, caches, first touch of memory.
WARM_UP = 5
#: A smaller difference never matters; this also covers a rack's harmless 1 %.
DEAD_BAND = 0.02
#: How much healthy parts of one kind differ at least (standard deviation).
BIAS_SCALE = 0.01
#: A bias within this many deviations of its kind is natural for a part. From FOREIGN on none of it is, and it
#: counts as slowness although it was always there (Hampel).
NATURAL, FOREIGN = 2.5, 4.0
#: The memory of a bias, in steps.
BIAS_MEMORY = 500
#: Noise is assumed to be at least this: timers and clocks are no better.
NOISE_FLOOR = 0.004
#: CUSUM's allowance in units of the noise, if that is more than the dead band; but at most half of the
#: slowness that is looked for in high noise: 10 %.
ALLOWANCE, ALLOWANCE_MOST = 0.7, 0.045
#: One step counts for at most this many times the noise above the allowance: a single pause of a rank is no
#: trend.
CLIP = 2.5
#: The least threshold, in units of the noise: three steps at the clip, whatever the formula says.
THRESHOLD_LEAST = 6.0
#: False alarms per day for all series of one kind together.
BUDGET_PER_DAY = 0.02
#: The fewest series that can be compared with each other.
LEAST = 4
#: A slow series is far from its peers now: its mean by this many robust deviations of all means, or its last
#: five steps by this many times the noise.
APART, LEAP = 3.5, 4.0
#: How much the spread over the series may exceed the usual one, in units of 1 / sqrt(series), and the overall
#: level at the least. Beyond that all share a cause (storage, a checkpoint): no evidence is added until it is
#: usual again. A new spread becomes usual after half of _SCALES steps, a new level after PAUSE_MOST (half an
#: hour).
JUMP, LEVEL_JUMP, PAUSE_MOST = 2.5, 0.05, 360
#: A slowness must last for more than this many steps, because a shorter one is a hiccup (data loader,
#: clocks): in a job with little noise, and in one whose noise (NOISY) hides how long it lasts. Several nodes
#: that are slow together share a cause (a network, a rack) that is likely to pass: those steps do not count
#: until there are many.
PATIENCE, NOISY, PATIENCE_NOISY, PATIENCE_TOGETHER = 8, 0.01, 36, 60
#: Hiccups last minutes, however long a step is: with long steps fewer suffice, but at least half of them.
HICCUP_S = 180.0
#: This many other nodes, above half of the threshold, that began at most PATIENCE_TOGETHER steps apart.
TOGETHER = 2
#: A job without a hiccup for this many steps (a day) has none.
CALM = 17_280
#: A larger slowness must last nevertheless, because most hiccups are large; a smaller one costs little, and
#: must last as in a noisy job.
LARGE, SMALL = 0.10, 0.03
#: Initial value of `Streams.wander`. It weighs as much as this many steps, with at most this many values.
WANDER, WANDER_STEPS, WANDER_VALUES = 3.0, 32, 1024

#: Steps of the short median, and steps kept per series: a hiccup is shorter.
_SHORT, _KEPT = 5, PATIENCE + 1
_SCALES = 64
#: Steps of the slow running mean and of the fast one.
MEAN_STEPS, _FAST = 64, 16
#: The memory of a series' own roughness and of the job's wandering, in steps; E|x - y| of two normal values.
_ROUGH, _WANDER, _NORMAL_STEP = 200, 256, 1.128
_BELOW_1 = math.nextafter(1.0, 0.0)
#: The fields of each series, followed by its last values, newest last.
_FIELDS = (
    "band", "sum", "since", "mean", "fast", "mean_n", "bias", "bias_sum", "bias_n",
    "before", "rough", "apart", "run", "shared", "peak", "slow",
)  # fmt: skip
_LAST = len(_FIELDS)


class Streams:
    """n series of one job, step by step. A step without a value leaves its series unchanged."""

    def __init__(self, n: int = 0) -> None:
        self.steps = 0
        self.noise = NOISE_FLOOR
        #: Of CUSUM.
        self.threshold = THRESHOLD_LEAST
        #: (fields and last values, n).
        self.state = np.zeros((_LAST + _KEPT, 0))
        #: Spread over the series, and their level, for the last judged steps; for the level, those without a
        #: jump, and for how many steps it has been off.
        self.scales, self.levels = np.full((2, _SCALES), np.nan)
        self.judged = self.paused = 0
        #: Long-run variance over that of one step: 1 if successive steps are independent.
        self.wander, self.wander_steps = WANDER, 0.0
        #: Remaining steps without a hiccup until the job is assumed to have none.
        self.untried = CALM
        #: (n,) the node of each series; None: each is one.
        self.group: NDArray[np.int32] | None = None
        self.grow(n)

    def __len__(self) -> int:
        return self.state.shape[1]

    @property
    def band(self) -> Floats:
        """(n,) how much a series may be above its peers before it counts."""
        return self._of("band")

    @property
    def sum(self) -> Floats:
        """(n,) CUSUM in units of the noise."""
        return self._of("sum")

    @property
    def since(self) -> Floats:
        """(n,) the step after which the sum was always above 0."""
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
        """Resets these series; they start unknown."""
        series = series[series < len(self)]
        self.state[:_LAST, series] = 0
        self.state[_LAST:, series] = np.nan

    def short_median(self) -> Floats:
        """(n,) of the last five steps, NaN where fewer than three are known."""
        return _short_median(self.state[-_SHORT:])

    def bias(self) -> Floats:
        """(n,) how much each series always was above its peers, as far as that is natural."""
        return self._of("bias")

    def clear(self) -> NDArray[np.bool_]:
        """(n,) known to be like its peers; if `slow` is false too, it is unknown or rising."""
        short = self.short_median()
        return ~self.slow & (self.sum < self.threshold / 3) & (short < np.maximum(self.band / 2, self.noise))

    def score(self) -> Floats:
        """(n,) how close each series is to being called slow; at least 1 while it is."""
        short = np.nan_to_num(self.short_median(), nan=0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            near = np.minimum(self.sum / self.threshold, self._of("apart"))
            near = np.nan_to_num(np.minimum(near, short / (self.band / 2)), nan=0.0)
        return np.where(self.slow, np.maximum(near, 1.0), np.clip(near, 0.0, _BELOW_1))

    def step(self, x: Floats, per_day: float, number: int = 0) -> None:
        """One step; for the arguments see `StreamStep`."""
        step_all([StreamStep(self, x, per_day, number)])


def begin_job(streams: Streams) -> None:
    """A new job on the same parts: what is learnt about the parts is kept, current events are reset."""
    streams.steps = 0
    for field in ("sum", "since", "run", "shared", "peak", "slow"):
        streams.state[_FIELDS.index(field)] = 0


class StreamStep(NamedTuple):
    """One step of one job. `x` (n, or fewer): log ratio to the peers, NaN where unknown. `per_day`: steps per
    day. `number`: the step's number. `level`: log of the middle series' time; NaN: unknown."""

    streams: Streams
    x: Floats
    per_day: float
    number: int
    level: float = math.nan


def step_all(steps: Sequence[StreamStep]) -> None:
    """Adds one step of each of these jobs, at most one per job."""
    due = []
    for step in steps:
        step.streams.steps += 1
        if step.streams.steps > WARM_UP and np.count_nonzero(np.isfinite(step.x)) >= LEAST:
            due.append(step)
    for part in alike([len(step.streams) for step in due]):
        _Columns([due[index] for index in part]).step()


# Wide: the arrays of one step, named as in the formulas in `docs/detection.md`.
class _Columns:
    """The series of k jobs side by side. Arrays are (k, n), or (k, 1) for one value per job."""

    def __init__(self, steps: Sequence[StreamStep]) -> None:
        self.steps, streams = steps, [step.streams for step in steps]
        widths = [len(stream) for stream in streams]
        n = max(widths)
        self.state = np.zeros((_LAST + _KEPT, len(steps), n))
        for row, stream in enumerate(streams):
            self.state[:, row, : widths[row]] = stream.state
        self.band, self.sum, self.since, self.mean, self.fast, self.mean_n = self.state[:6]
        self.bias, self.bias_sum, self.bias_n = self.state[6:9]
        self.before, self.rough, self.apart = self.state[9:12]
        self.run, self.shared, self.peak, self.slow = self.state[12:_LAST]
        self.x = side_by_side([step.x for step in steps], n)
        self.known = np.isfinite(self.x)
        self.n = np.count_nonzero(self.known, axis=1)[:, None]
        self.widths = _column(widths)
        #: Padding: not a series of that job.
        self.beyond = np.arange(n) >= self.widths if min(widths) < n else None
        self.threshold = _column([stream.threshold for stream in streams])
        hiccup = _column([HICCUP_S * step.per_day / 86_400 for step in steps])
        self.patience_noisy = np.clip(hiccup, PATIENCE_NOISY / 2, PATIENCE_NOISY)

    def step(self) -> None:
        d = self.x - self.bias
        self.state[_LAST:-1] = self.state[_LAST + 1 :]
        self.state[-1] = d
        self._scale(d)
        unsure = self._allow()
        clipped = np.clip(d, -self.band - CLIP * self.wide, self.band + CLIP * self.wide)
        self._means(clipped)
        self._add_up(clipped, d)
        self._judge(unsure)
        self._learn(d)
        for row, step in enumerate(self.steps):
            step.streams.state[:] = self.state[:, row, : len(step.streams)]

    def _scale(self, d: Floats) -> None:
        """Sets (k, 1) `noise`, the spread of a step's values across the series (MAD): the median of the last
        64 steps, or the value that two of the last five have if it jumped; (k, n) `wide`, larger if a sum of
        steps wanders further than that or the series is rougher than others; and (k, 1) `jumped`, of spread
        or level."""
        mad = 1.4826 * medians(np.abs(d - medians(d)[:, None])) * self.n[:, 0] / (self.n[:, 0] - 0.8)
        streams = [step.streams for step in self.steps]
        for stream, scale in zip(streams, mad.tolist(), strict=True):
            stream.scales[stream.judged % _SCALES] = scale
        usual = np.maximum(NOISE_FLOOR, medians(side_by_side([stream.scales for stream in streams])))[:, None]
        back = np.arange(_SHORT)
        last = np.array([stream.scales[(stream.judged - back) % _SCALES] for stream in streams])
        now = np.sort(np.nan_to_num(last), axis=1)[:, -2:-1]
        jumped = now > usual * (1 + JUMP / np.sqrt(self.n))
        self.noise = np.where(jumped, now, usual)
        self.jumped = jumped | self._level_out(streams)
        for stream, noise in zip(streams, self.noise[:, 0].tolist(), strict=True):
            stream.noise = noise
            stream.judged += 1
        wander = _column([max(1.0, stream.wander) for stream in streams])
        self.wide = self.noise * np.sqrt(wander) * (1 + np.clip(self.rough / _NORMAL_STEP, 0, 2))

    def _level_out(self, streams: Sequence[Streams]) -> NDArray[np.bool_]:
        """(k, 1) all series take longer than usual. A lasting level becomes the usual one."""
        level = _column([step.level for step in self.steps])
        levels = side_by_side([stream.levels for stream in streams])
        usual = medians(levels)[:, None]
        jumped = level > usual + np.maximum(LEVEL_JUMP, 4 * 1.4826 * medians(np.abs(levels - usual))[:, None])
        for stream, step, out in zip(streams, self.steps, jumped[:, 0].tolist(), strict=True):
            # An evaluation or another dip does not restart the pause.
            stream.paused = stream.paused + 1 if out else max(0, stream.paused - 1)
            if stream.paused > PAUSE_MOST:
                stream.levels[:], stream.paused = np.nan, 0
            if not stream.paused:
                stream.levels[stream.judged % _SCALES] = step.level
        return jumped

    def _own_medians(self, values: Floats) -> Floats:
        """(k, 1) over all series of each job, including those without a value in this step."""
        values = values if self.beyond is None else np.where(self.beyond, np.nan, values)
        return medians(values)[:, None]

    def _spread(self, values: Floats) -> Floats:
        """(k, 1) robust deviation over the series with a value in this step."""
        return 1.4826 * medians(np.where(self.known, np.abs(values), np.nan))[:, None]

    def _allow(self) -> Floats:
        """Sets the band; returns (k, n) how much of it is for the uncertainty of the bias."""
        unsure = self.wide / np.sqrt(self.bias_n + (self.wide / BIAS_SCALE) ** 2)
        self.band[:] = np.clip(ALLOWANCE * self.wide, DEAD_BAND, ALLOWANCE_MOST) + unsure
        return unsure

    def _means(self, clipped: Floats) -> None:
        """Running means, how far each is from the others, and how much further they wander than white
        noise."""
        self.mean_n += self.known
        for mean, most in ((self.mean, MEAN_STEPS), (self.fast, _FAST)):
            np.copyto(mean, mean + (clipped - mean) / np.clip(self.mean_n, 1, most), where=self.known)
        # Clipping skewed noise shifts its mean: what all series share is no slowness.
        self.common = medians(np.where(self.known, self.mean, np.nan))[:, None]
        above = self.mean - self.common
        short = np.nan_to_num(_short_median(self.state[-_SHORT:]), nan=0.0)
        far = above / np.maximum(APART * self._spread(above), 1e-6)
        self.apart[:] = np.maximum(far, short / (LEAP * self.wide))
        self._wander()

    def _wander(self) -> None:
        """Measures how much further the two means are apart than in white noise, over all series."""
        steps = np.minimum(self.mean_n.astype(np.intp), len(_WHITE) - 1)
        moved = (self.fast - self.mean) / np.sqrt(_WHITE[steps])
        moved = np.where(self.known & (steps > _WHITE_FROM), moved, np.nan)
        middle = medians(moved)
        spread = 1.4826 * medians(np.abs(moved - middle[:, None]))
        wander = np.minimum((spread / self.noise[:, 0]) ** 2, 30.0)
        values = np.count_nonzero(np.isfinite(moved), axis=1)
        for row, step in enumerate(self.steps):
            if values[row] >= LEAST and not self.jumped[row, 0]:
                _learn_wander(step.streams, float(wander[row]), int(values[row]))

    def _add_up(self, clipped: Floats, d: Floats) -> None:
        """Updates CUSUM, and what it shows about hiccups."""
        moved = (clipped - self.common - self.band) / self.wide
        moved = np.where(self.jumped, np.minimum(moved, 0), moved)
        np.copyto(self.sum, np.clip(self.sum + moved, 0, 1.5 * self.threshold), where=self.known)
        self.run += self.known & (d > self.band)
        height = np.maximum(self.sum / self.threshold, d > LARGE)
        np.copyto(self.peak, np.maximum(self.peak, height), where=self.known & ~self.jumped)
        over = self.sum <= 0
        # Two steps at the clip, or a large one.
        passed = (over & (self.peak > 0.6) & (self.run <= self.patience_noisy)).any(axis=1)
        for step, hiccup in zip(self.steps, passed.tolist(), strict=True):
            step.streams.untried = CALM if hiccup else max(0, step.streams.untried - 1)
        self.run[over] = self.shared[over] = self.peak[over] = 0
        np.copyto(self.since, _column([step.number for step in self.steps]), where=over)

    def _judge(self, unsure: Floats) -> None:
        """The threshold by Siegmund's approximation of CUSUM's run length."""
        k = self._own_medians((self.band - unsure) / self.wide)
        length = self.widths * _column([step.per_day for step in self.steps]) / BUDGET_PER_DAY
        self.threshold = np.maximum(THRESHOLD_LEAST, np.log1p(2 * k * k * length) / (2 * k) - 1.166)
        for row, step in enumerate(self.steps):
            step.streams.threshold = float(self.threshold[row, 0])
        short = _short_median(self.state[-_SHORT:])
        together = self._together()
        self.shared += together
        on = (self.sum > self.threshold) & (self.apart > 1) & (short > self.band / 2)
        if on.any():
            alone = ~together & (self.run - self.shared > self._patience(short))
            on &= alone | (self.run > PATIENCE_TOGETHER)
        off = (self.sum < self.threshold / 3) & (short < self.band)
        self.slow[:] = on | ((self.slow > 0) & ~off)

    def _patience(self, short: Floats) -> Floats:
        """(k, n) steps for which each must be slow before it is called slow."""
        untried = _column([step.streams.untried for step in self.steps]) > 0
        # It was lower within these steps: what came before a hiccup is not part of it.
        higher = (self.state[_LAST:] <= short / 2).any(axis=0)
        lasting = np.where(higher, self.patience_noisy, PATIENCE)
        patience = np.where(untried | (short > LARGE), lasting, 0)
        hidden = (self.noise > NOISY) & (short < LEAP * self.wide)
        return np.where(hidden | (short < SMALL), self.patience_noisy, patience)

    def _together(self) -> NDArray[np.bool_]:
        """(k, n) rising at the same time as several other nodes."""
        together = np.zeros(self.sum.shape, bool)
        rising = self.known & (self.sum > self.threshold / 2)
        for row in np.flatnonzero(np.count_nonzero(rising, axis=1) > TOGETHER).tolist():
            up, group = np.flatnonzero(rising[row]), self.steps[row].streams.group
            began, node = self.since[row, up], up if group is None else group[up]
            near = np.abs(began[:, None] - began) <= PATIENCE_TOGETHER
            others = [len(np.unique(node[near[at] & (node != node[at])])) for at in range(len(up))]
            together[row, up] = np.array(others) >= TOGETHER
        return together

    def _learn(self, d: Floats) -> None:
        # What looks slow is not learnt, or it would soon count as natural.
        calm = self.known & (self.slow == 0) & (self.sum < self.threshold / 4) & ~self.jumped
        full = self.bias_n >= BIAS_MEMORY
        kept = np.where(full, self.bias_sum * (1 - 1 / BIAS_MEMORY), self.bias_sum)
        most = (FOREIGN + 1) * BIAS_SCALE + CLIP * self.wide
        np.copyto(self.bias_sum, kept + np.clip(self.x, -most, most), where=calm)
        self.bias_n += calm & ~full
        self._nature()
        now = np.clip(np.where(self.known, d, 0) / self.noise, -CLIP, CLIP)
        self.rough += (np.abs(now - self.before) - _NORMAL_STEP - self.rough) / _ROUGH
        self.before[:] = now

    def _nature(self) -> None:
        """Sets the bias: a series' mean, shrunk towards its kind if it is not well known, and none of it if
        it is too far from its kind."""
        mean = self.bias_sum / np.maximum(self.bias_n, 1)
        unsure = self.noise**2 / np.maximum(self.bias_n, 1)
        size = np.where(self.bias_n > 0, np.abs(mean), np.nan)
        spread = (1.4826 * self._own_medians(size)) ** 2 - 2 * self._own_medians(unsure)
        kind = np.fmax(BIAS_SCALE**2, spread)
        far = np.abs(mean) / np.sqrt(kind + unsure)
        natural = np.clip((FOREIGN - far) / (FOREIGN - NATURAL), 0, 1)
        # A part that was faster before and is like the others now delays no one.
        self.bias[:] = np.maximum(mean, 0) * kind / (kind + unsure) * natural


def _learn_wander(streams: Streams, wander: float, series: int) -> None:
    """Adds one step's measure of `wander` over so many series; many soon replace `WANDER`."""
    before = streams.wander_steps or min(WANDER_STEPS, WANDER_VALUES / series)
    streams.wander_steps = min(before + 1, _WANDER)
    streams.wander += (wander - streams.wander) / streams.wander_steps


def _white(steps: int) -> Floats:
    """(steps,) variance of the fast mean minus the slow one after so many values of white noise."""
    slow = fast = both = 0.0
    found = np.ones(steps)
    for n in range(1, steps):
        a, b = 1 / min(n, MEAN_STEPS), 1 / min(n, _FAST)
        slow, fast = slow * (1 - a) ** 2 + a * a, fast * (1 - b) ** 2 + b * b
        both = both * (1 - a) * (1 - b) + a * b
        found[n] = slow + fast - 2 * both
    return found


#: Before the first the two means are too similar to compare; the last holds for an infinite series.
_WHITE_FROM, _WHITE = MEAN_STEPS // 2, np.maximum(_white(8 * MEAN_STEPS), 1e-9)


def _column(values: Sequence[float]) -> Floats:
    """(k, 1)"""
    return np.array(values, np.float64)[:, None]


def _short_median(last: Floats) -> Floats:
    """Over the first axis, NaN where fewer than three are known."""
    ordered = np.sort(last, axis=0)  # NaN last
    if np.isfinite(ordered[-1]).all() and np.isfinite(ordered[0]).all():
        return ordered[_SHORT // 2]
    count = np.count_nonzero(np.isfinite(last), axis=0)
    low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, _SHORT - 1)
    middle = [np.take_along_axis(ordered, at[None], axis=0)[0] for at in (low, high)]
    return np.where(count >= 3, (middle[0] + middle[1]) / 2, np.nan)


#: The smallest increase that counts, and how many steps in a row must show it.
SLOWER = 1.10
PACE_STEPS = 5
#: Steps that count as "before", and how many of them must be known.
BEFORE = 100
BEFORE_LEAST = 30
#: The median of five steps of Gaussian noise has this share of one step's deviation.
_SHORT_DEVIATION = 0.54


class Pace:
    """Step times of one job, in order. While the job is slow, "before" is not updated."""

    def __init__(self) -> None:
        self.steps = 0
        self.slow = False
        #: The step at which the slow ones began; the pace before and now, in s per step (NaN unknown).
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
        # Half-way back is not enough.
        self.slow = self._run >= PACE_STEPS or (self.slow and self.now_s > (self.before_s + self.limit_s) / 2)
