"""Metrics of the machines around a training job, with labelled anomalies and everything benign that
resembles them.

An event is labelled only where it can be seen: what was changed must differ from what would have been there
by a clear part of the series' range and by several times its noise. About half of the series hold anomalies
in their training part as well, which are not labelled, as in reality; some series hold no event at all.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

KINDS = ("host", "storage", "fabric", "service", "telemetry", "short")
DAY_S = 86_400


# Wide: one drawn series; the last fields are for looking at results, never for a detector.
@dataclass(frozen=True)
class MetricSeries:
    """`train` and `test` are (samples, features), NaN where no sample came, `sample_s` apart and in one
    piece.

    `events` are (first, one past the last) samples of `test`, apart from each other and in order; `what`
    names each. `past` are unlabelled anomalies in `train`, `benign` harmless happenings, both in samples
    from the start of `train`.
    """

    train: Floats
    test: Floats
    events: list[tuple[int, int]]
    sample_s: float
    features: tuple[str, ...]
    what: list[str]
    past: list[tuple[str, int, int]]
    benign: list[tuple[str, int, int]]


@dataclass
class _Feature:
    """A column before anomalies. `rhythm` is its period in samples, 0 without; `free` says that its level
    changes by itself, so that only what leaves its range is an anomaly; `spiky` that spikes are its nature;
    `leader` is the column that it follows.
    """

    name: str
    values: Floats
    low: float = -np.inf
    high: float = np.inf
    rhythm: int = 0
    free: bool = False
    spiky: bool = False
    leader: int | None = None
    quantum: float = 0.0

    def __post_init__(self) -> None:
        low, high = np.quantile(self.values, [0.002, 0.998])
        edges = (self.values.min(), self.values.max()) if self.spiky else (low, high)
        self.range = (float(edges[0]), float(edges[1]))
        self.span = max(float(high - low), 4 * self.quantum, 1e-9)
        jumps = np.diff(self.values)
        self.noise = float(np.median(np.abs(jumps - np.median(jumps)))) * 1.05 + 1e-12


@dataclass
class _Plot:
    """A series while it is being drawn."""

    random: np.random.Generator
    samples: int
    train: int
    sample_s: float
    columns: list[_Feature] = field(default_factory=list)
    benign: list[tuple[str, int, int]] = field(default_factory=list)

    def samples_of(self, seconds: float) -> int:
        return max(1, round(seconds / self.sample_s))

    @property
    def time_s(self) -> Floats:
        return np.arange(self.samples, dtype=np.float64) * self.sample_s

    def note(self, what: str, begin: int, end: int) -> None:
        self.benign.append((what, int(begin), int(min(end, self.samples))))


def draw(random: np.random.Generator, kind: str) -> MetricSeries:
    """One series of a kind of `KINDS`; raises ValueError for another."""
    plot = _kind(random, kind)
    past = _anomalies(plot, 0, plot.train, int(random.integers(1, 5))) if random.random() < 0.5 else []
    length = plot.samples - plot.train
    wanted = 0 if random.random() < 0.2 else int(random.integers(1, 3 if length < 400 else 7))
    found = _anomalies(plot, plot.train, plot.samples, wanted)
    values = np.column_stack([_recorded(column, column.values) for column in plot.columns])
    _gaps(plot, values, found)
    events = [(begin - plot.train, end - plot.train) for _, begin, end in found]
    names = tuple(column.name for column in plot.columns)
    what = [name for name, _, _ in found]
    return MetricSeries(
        values[: plot.train],
        values[plot.train :],
        events,
        plot.sample_s,
        names,
        what,
        past,
        sorted(plot.benign),
    )


def _kind(random: np.random.Generator, kind: str) -> _Plot:
    drawn: dict[str, tuple[Callable[[_Plot], None], list[float], tuple[int, int], tuple[int, int]]] = {
        "host": (_host, [15, 30, 60], (1500, 6000), (1500, 6000)),
        "storage": (_storage, [60, 120, 300], (2500, 9000), (1500, 6000)),
        "fabric": (_fabric, [10, 30, 60], (1500, 5000), (1500, 5000)),
        "service": (_service, [60, 120, 300], (2500, 8000), (1500, 6000)),
        "telemetry": (_telemetry, [1, 60], (500, 3000), (1500, 7000)),
        "short": (_service, [300, 900, 3600], (90, 220), (60, 180)),
    }
    if kind not in drawn:
        raise ValueError(f"{kind!r} is none of {KINDS}")
    make, periods_s, train, test = drawn[kind]
    if kind == "short":
        make = (_host, _storage, _service, _fabric)[int(random.integers(4))]
    before = int(random.integers(*train))
    plot = _Plot(random, before + int(random.integers(*test)), before, float(random.choice(periods_s)))
    make(plot)
    return plot


# Parts of signals


def _ar(random: np.random.Generator, samples: int, tau: float) -> Floats:
    """Autocorrelated noise of unit variance with a memory of `tau` samples."""
    keep = float(np.exp(-1 / max(tau, 1e-3)))
    drawn = random.standard_normal(samples)
    drawn[1:] *= np.sqrt(1 - keep**2)
    out = np.empty(samples)
    level = 0.0
    for index, value in enumerate(drawn):
        level = keep * level + value
        out[index] = level
    return out


def _follow(values: Floats, tau: float) -> Floats:
    """The values with a lag, as a load average follows what runs."""
    keep = float(np.exp(-1 / max(tau, 1e-3)))
    out = np.empty_like(values)
    level = values[0]
    for index, value in enumerate(values):
        level = keep * level + (1 - keep) * value
        out[index] = level
    return out


def _rhythm(plot: _Plot) -> Floats:
    """0 to 1: the day's course with a quieter weekend, holidays and days that differ."""
    random = plot.random
    day = (plot.time_s + random.uniform(0, 7 * DAY_S)) / DAY_S
    hour = day % 1
    peak, width = random.uniform(0.4, 0.65), random.uniform(0.12, 0.22)
    course = np.exp(-0.5 * ((hour - peak) / width) ** 2)
    if random.random() < 0.4:
        course += random.uniform(0.3, 0.8) * np.exp(-0.5 * ((hour - peak - 0.3) / 0.08) ** 2)
    number = np.floor(day).astype(int)
    size = random.normal(1, 0.05, number.max() + 1)[number]
    quiet = random.uniform(0.3, 1.0)
    size = np.where(number % 7 >= 5, quiet * size, size)
    if random.random() < 0.2 and number.max() - number.min() > 4:
        holiday = int(random.integers(number.min() + 1, number.max()))
        size = np.where(number == holiday, min(quiet, 0.6), size)
        at = np.flatnonzero(number == holiday)
        plot.note("holiday", at[0], at[-1] + 1)
    # A day begins and ends at night; smoothing hides the seam.
    return course / course.max() * _follow(size, plot.samples_of(1800))


def _jobs(plot: _Plot) -> tuple[Floats, NDArray[np.int64]]:
    """Share of the machine in use (0 when idle) and the number of the job that runs or ran last."""
    random = plot.random
    use, number = np.zeros(plot.samples), np.zeros(plot.samples, dtype=np.int64)
    typical = plot.samples * random.uniform(0.03, 0.2)
    at, count = 0, 0
    while at < plot.samples:
        length = max(5, int(random.lognormal(np.log(typical), 0.7)))
        idle = int(random.exponential(0.15 * typical)) if random.random() < 0.7 else 1
        count += 1
        use[at : at + length] = random.uniform(0.55, 0.95)
        number[at : at + length + idle] = count
        plot.note("job ends", at + length, at + length + idle)
        at += length + idle
    return use, number


def _every(plot: _Plot, period: float, width: int) -> Floats:
    """1 during `width` samples once in a period that keeps its time within a few percent, else 0."""
    on = np.zeros(plot.samples)
    at = plot.random.uniform(0, period)
    while at < plot.samples:
        on[int(at) : int(at) + width] = 1
        at += period * plot.random.normal(1, 0.02)
    return on


def _growth(plot: _Plot, most: float) -> Floats:
    """Slow growth over the whole series, 1 at its start; often none."""
    rise = plot.random.uniform(0, most) if plot.random.random() < 0.4 else 0.0
    return 1 + rise * np.arange(plot.samples) / plot.samples


# The kinds


def _host(plot: _Plot) -> None:
    random, n = plot.random, plot.samples
    use, number = _jobs(plot)
    running = use > 0
    saving = _every(plot, max(8, plot.samples_of(random.uniform(600, 3600))), plot.samples_of(45)) * running
    cpu = 2 + 95 * use + running * random.uniform(1, 4) * _ar(random, n, 5) - 12 * saving
    cpu += np.abs(random.standard_normal(n)) * 0.8
    load = random.choice([64, 128, 192]) * _follow(np.clip(cpu, 0, 100) / 100, 60 / plot.sample_s)
    load += 0.8 * np.abs(_ar(random, n, 3))
    total = float(random.choice([512, 1024, 2048]))
    share = random.uniform(0.25, 0.55, number.max() + 1)[number] * running
    began = np.maximum.accumulate(np.where(np.diff(number, prepend=0) > 0, np.arange(n), 0))
    age = (np.arange(n) - began) / max(1, plot.samples_of(7200))
    memory = total * (0.05 + _follow(share, 120 / plot.sample_s) + running * 0.08 * (1 - np.exp(-age)))
    memory += total * 0.002 * _ar(random, n, 10)
    latency = 0.6 * np.exp(0.25 * _ar(random, n, 3)) * (1 + saving * random.uniform(4, 15, n))
    latency += (random.random(n) < 0.002) * random.exponential(5, n)
    plot.columns += [
        _Feature("cpu_percent", np.clip(cpu, 0, 100), 0, 100, free=True),
        _Feature("load1", np.maximum(load, 0), 0, free=True, leader=0, quantum=0.01),
        _Feature("memory_used_gib", np.clip(memory, 0, total), 0.03 * total, total, free=True),
        _Feature("disk_latency_ms", latency, 0.1, spiky=True, quantum=0.01),
    ]


def _storage(plot: _Plot) -> None:
    random, n = plot.random, plot.samples
    day = plot.samples_of(DAY_S)
    base = random.uniform(0.1, 0.5)
    demand = (base + _rhythm(plot)) * _growth(plot, 0.25) / 1.4
    demand *= np.exp(random.uniform(0.05, 0.2) * _ar(random, n, max(2, 1200 / plot.sample_s)))
    if random.random() < 0.5:
        backup = _every(plot, day, max(1, day // 16))
        demand += 0.35 * backup
    burst = _every(plot, max(10, plot.samples_of(random.uniform(3600, 20000))), plot.samples_of(300))
    demand += random.uniform(0, 0.25) * burst  # a large job saves
    demand = np.clip(demand, 0.01, None)
    peak = random.uniform(4, 40)
    throughput = (
        peak * np.minimum(demand, 1.15) * np.exp(random.uniform(0.02, 0.08) * random.standard_normal(n))
    )
    busy = np.clip(demand / 1.6, 0, 0.93)
    queue = 20 * busy / (1 - busy) * np.exp(0.15 * random.standard_normal(n))
    latency = random.uniform(0.5, 3) * (1 + 0.15 * queue / 5) * np.exp(0.08 * random.standard_normal(n))
    rhythm = day if day * 2 < plot.train else 0
    plot.columns += [
        _Feature("throughput_gb_s", throughput, 0, rhythm=rhythm),
        _Feature(
            "latency_ms",
            latency,
            0.3 * latency.min(),
            rhythm=rhythm,
            leader=0,
            quantum=random.choice([0.0, 0.1]),
        ),
        _Feature("queue", np.round(queue), 0, rhythm=rhythm, leader=0, quantum=1.0),
    ]
    if random.random() < 0.5:
        used = 55 + 12 * np.cumsum(throughput) / throughput.sum()
        for at in random.integers(n, size=random.poisson(1.5)):  # users clean up
            used[at:] -= random.uniform(0.5, 4)
            plot.note("clean-up", at, at + 1)
        plot.columns.append(_Feature("used_percent", used, 0, 100, free=True, quantum=0.1))


def _fabric(plot: _Plot) -> None:
    random, n = plot.random, plot.samples
    use, number = _jobs(plot)
    size = random.uniform(40, 180, number.max() + 1)[number]
    saving = _every(plot, max(8, plot.samples_of(random.uniform(900, 3600))), plot.samples_of(60)) * (use > 0)
    sent = (0.2 + size * use) * np.exp(0.08 * _ar(random, n, 2)) * (1 - 0.7 * saving)
    received = (
        sent * random.uniform(0.9, 1.1) * np.exp(random.uniform(0.01, 0.06) * random.standard_normal(n))
    )
    wait = (0.02 * sent + 0.5) * np.exp(0.7 * _ar(random, n, 4) + 0.2 * random.standard_normal(n))
    for at in random.integers(n, size=random.poisson(n / 600)):  # incast for a few samples
        end = at + int(random.integers(1, 5))
        wait[at:end] *= random.uniform(2, 6)
    errors = random.poisson(random.choice([0.0, 0.003, 0.05]), n).astype(float)
    for at in random.integers(n, size=random.poisson(2)):  # the counters begin at zero again
        sent[at] = received[at] = wait[at] = errors[at] = 0.0
        plot.note("counter reset", at, at + 1)
    plot.columns += [
        _Feature("sent_gb_s", sent, 0, free=True),
        _Feature("received_gb_s", received, 0, free=True, leader=0),
        _Feature("wait_rate", wait, 0, free=True, spiky=True),
        _Feature("symbol_errors_s", errors, 0, spiky=True, quantum=1.0),
    ]


def _service(plot: _Plot) -> None:
    random, n = plot.random, plot.samples
    day = plot.samples_of(DAY_S)
    mean = np.exp(random.uniform(np.log(5), np.log(2000))) * (random.uniform(0.1, 0.6) + _rhythm(plot))
    mean *= _growth(plot, 0.3) * np.exp(
        random.uniform(0.02, 0.1) * _ar(random, n, max(1, 1800 / plot.sample_s))
    )
    for at in random.integers(n, size=random.poisson(4)):  # many people at once
        length = plot.samples_of(random.uniform(300, 5400))
        shape = np.hanning(length + 2)[1:-1][: len(mean[at : at + length])]
        mean[at : at + length] *= 1 + random.uniform(0.2, 0.6) * shape
        plot.note("burst", at, at + length)
    requests = random.poisson(mean * plot.sample_s) / plot.sample_s
    busy = mean / np.quantile(mean, 0.999)
    latency = random.uniform(20, 300) * (1 + random.uniform(0.1, 1.0) * busy**3)
    latency *= np.exp(random.uniform(0.03, 0.12) * _ar(random, n, 2))
    failed = random.uniform(0.0002, 0.004) * np.ones(n)
    for at in random.integers(
        n, size=random.poisson(3 + n / 1500)
    ):  # a deployment: a blip, then slightly different
        latency[at : at + int(random.integers(1, 4))] *= random.uniform(1.1, 1.6)
        failed[at : at + int(random.integers(1, 4))] *= random.uniform(2, 6)
        latency[at:] *= random.normal(1, 0.02)
        plot.note("deployment", at, at + 3)
    errors = random.poisson(failed * mean * plot.sample_s) / plot.sample_s
    rhythm = day if day * 2 < plot.train else 0
    plot.columns += [
        _Feature("requests_s", requests, 0, rhythm=rhythm),
        _Feature("latency_p99_ms", latency, 0.3 * latency.min(), quantum=random.choice([0.0, 1.0])),
        _Feature("errors_s", errors, 0, spiky=True),
    ]
    if random.random() < 0.5:
        cpu = 5 + 65 * busy * np.exp(0.03 * random.standard_normal(n))
        plot.columns.append(_Feature("cpu_percent", np.clip(cpu, 0, 100), 0, 100, rhythm=rhythm, leader=0))


def _telemetry(plot: _Plot) -> None:
    """A channel of a spacecraft, -1 to 1, and the commands that reach its instrument."""
    random, n = plot.random, plot.samples
    flags = []
    for _ in range(int(random.integers(2, 7))):
        period = random.uniform(60, 600)
        width = int(random.choice([1, 3, period / 4]))
        regular = _every(plot, period, max(1, width))
        seldom = (random.random(n) < 1 / period).astype(float)
        flags.append(regular if random.random() < 0.6 else seldom)
    orbit = float(random.uniform(60, 400))
    phase = 2 * np.pi * np.arange(n) / orbit
    form = random.choice(["orbit", "modes", "flat", "wander"])
    rhythm, free, leader = 0, False, None
    if form == "orbit":
        channel = 0.6 * np.sin(phase) + random.uniform(0, 0.3) * np.sin(2 * phase + random.uniform(0, 6))
        channel = np.clip(channel, -random.uniform(0.3, 1), random.uniform(0.3, 1)) + 0.1 * flags[0]
        rhythm = round(orbit)
    elif form == "modes":
        mode = np.cumsum(np.diff(flags[0], prepend=0) > 0) % int(random.integers(2, 4))
        channel = _follow(np.array([-0.5, 0.3, 0.7])[mode], random.uniform(0.5, 6))
        leader = 1  # the first command
    elif form == "flat":
        channel = random.uniform(-0.5, 0.5) + 0.15 * _follow(flags[0], 3)
    else:
        channel, free = 0.3 * _ar(random, n, random.uniform(50, 300)) + 0.1 * flags[0], True
    channel += random.choice([0.002, 0.01, 0.05]) * random.standard_normal(n)
    quantum = float(random.choice([0.0, 0.01, 0.05]))
    plot.columns.append(
        _Feature("channel", channel, rhythm=rhythm, free=free, leader=leader, quantum=quantum)
    )
    plot.columns += [_Feature(f"command_{number}", flag) for number, flag in enumerate(flags)]


# Anomalies


@dataclass(frozen=True)
class _Hit:
    """Where an anomaly is tried: samples `begin` to `end` of a column."""

    plot: _Plot
    column: _Feature
    begin: int
    end: int

    @property
    def values(self) -> Floats:
        return self.column.values[self.begin : self.end]

    def outward(self, least: float, most: float, *, beyond: bool) -> float:
        """A signed size, `least` to `most` of the column's range; with `beyond` it leaves the range."""
        random, column = self.plot.random, self.column
        size = random.uniform(least, most) * column.span + 6 * column.noise
        up = column.spiky or random.random() < 0.5
        if beyond:
            edge = column.range[1] - self.values.mean() if up else self.values.mean() - column.range[0]
            size += max(0.0, float(edge))
        return size if up else -size


def _spike(hit: _Hit) -> Floats:
    shape = hit.plot.random.uniform(0.6, 1, len(hit.values))
    return hit.values + hit.outward(0.4, 1.5, beyond=hit.column.free or hit.column.spiky) * shape


def _shift(hit: _Hit) -> Floats:
    """Another level with the same noise, or all values larger by a factor; some recover slowly."""
    random, values = hit.plot.random, hit.values
    size = hit.outward(0.35, 0.9, beyond=hit.column.free)
    shape = np.linspace(1, random.uniform(0.4, 1), len(values)) if random.random() < 0.3 else 1.0
    if hit.column.low >= 0 and values.min() > 0.2 * values.mean() and random.random() < 0.5:
        return values * (1 + size * shape / values.mean())
    return values + size * shape


def _ramp(hit: _Hit) -> Floats:
    course = np.linspace(0, 1, len(hit.values)) ** hit.plot.random.uniform(0.7, 1.5)
    return hit.values + hit.outward(0.5, 1.2, beyond=hit.column.free) * course


def _vary(hit: _Hit) -> Floats:
    """Noise many times the usual."""
    column = hit.column
    size = max(
        hit.plot.random.uniform(5, 10) * column.noise, hit.plot.random.uniform(0.05, 0.25) * column.span
    )
    return hit.values + size * hit.plot.random.standard_normal(len(hit.values))


def _freeze(hit: _Hit) -> Floats:
    return np.full(len(hit.values), hit.values[0])


def _lose_rhythm(hit: _Hit) -> Floats | None:
    if not hit.column.rhythm:
        return None
    return hit.values.mean() + hit.column.noise * hit.plot.random.standard_normal(len(hit.values))


def _misplace(hit: _Hit) -> Floats | None:
    """What is normal half a period away, or in another part of the series."""
    period = hit.column.rhythm
    if not period:
        return None
    source = hit.begin - period // 2
    return hit.column.values[source : source + len(hit.values)].copy() if source >= 0 else None


def _part(hit: _Hit) -> Floats | None:
    """The column ceases to follow its leader: it shows another time's values, within its usual range."""
    if hit.column.leader is None:
        return None
    length = len(hit.values)
    source = int(hit.plot.random.integers(0, hit.plot.samples - length))
    return hit.column.values[source : source + length].copy()


#: Each anomaly with its shortest and longest share of the part that it lies in, and its fewest samples.
ANOMALIES: dict[str, tuple[Callable[[_Hit], Floats | None], float, float, int]] = {
    "spike": (_spike, 0.0, 0.002, 1),
    "level shift": (_shift, 0.01, 0.1, 8),
    "variance": (_vary, 0.015, 0.08, 15),
    "frozen": (_freeze, 0.02, 0.08, 20),
    "ramp": (_ramp, 0.03, 0.12, 15),
    "lost rhythm": (_lose_rhythm, 0.0, 0.0, 15),
    "context": (_misplace, 0.0, 0.0, 6),
    "relation": (_part, 0.02, 0.08, 12),
}


def _anomalies(plot: _Plot, begin: int, end: int, wanted: int) -> list[tuple[str, int, int]]:
    """Puts up to `wanted` visible anomalies between two samples, apart from each other; what and where."""
    random = plot.random
    found: list[tuple[str, int, int]] = []
    gap = max(5, (end - begin) // 40)
    what = ""
    for attempt in range(wanted * 60):
        if len(found) == wanted:
            break
        if not what or attempt % 12 == 0:
            what = str(random.choice(list(ANOMALIES)))  # the rare ones get several tries as well
        column = _pick(plot)
        length = _length(random, what, column, end - begin)
        if length + 2 * gap >= end - begin:
            continue
        first = int(random.integers(begin + gap, end - gap - length))
        if any(first < after + gap and before < first + length + gap for _, before, after in found):
            continue
        if not _put(what, _Hit(plot, column, first, first + length)):
            continue
        found.append((what, first, first + length))
        if what in ("spike", "level shift") and random.random() < 0.4:  # other columns feel it too
            for other in plot.columns:
                if other is not column and not other.name.startswith("command") and random.random() < 0.5:
                    _put(what, _Hit(plot, other, first, first + length))
        what = ""
    return sorted(found, key=lambda event: event[1])


def _pick(plot: _Plot) -> _Feature:
    able = [column for column in plot.columns if not column.name.startswith("command")]
    return able[int(plot.random.integers(len(able)))]


def _length(random: np.random.Generator, what: str, column: _Feature, room: int) -> int:
    _, shortest, longest, fewest = ANOMALIES[what]
    if what == "lost rhythm":
        return max(fewest, round(column.rhythm * random.uniform(0.8, 2)))
    if what == "context":
        return max(fewest, round(column.rhythm * random.uniform(0.1, 0.35)))
    return max(
        fewest + int(random.integers(4)) * (fewest == 1), round(room * random.uniform(shortest, longest))
    )


def _put(what: str, hit: _Hit) -> bool:
    """Writes the anomaly into the column if it can be seen there; says whether."""
    changed = ANOMALIES[what][0](hit)
    if changed is None or len(changed) != len(hit.values):
        return False
    column = hit.column
    changed = np.clip(changed, column.low, column.high)
    if not _is_visible(what, column, _recorded(column, hit.values), _recorded(column, changed)):
        return False
    column.values[hit.begin : hit.end] = changed
    return True


def _is_visible(what: str, column: _Feature, old: Floats, new: Floats) -> bool:
    """Whether someone who looks at the plot would call it."""
    away = np.abs(new - old)
    if what == "frozen":
        moving = float(np.mean(np.abs(np.diff(old)) > 1e-9))
        return moving > 0.5 and float(np.median(np.abs(old - np.median(old)))) > 0.02 * column.span
    if what == "variance":
        usual = max(float(np.diff(old).std()), column.noise)
        return float(np.diff(new).std()) > max(4 * usual, 0.06 * column.span)
    if what in ("spike", "level shift", "ramp") and (column.free or (column.spiky and what == "spike")):
        past_edge = max(float(new.max()) - column.range[1], column.range[0] - float(new.min()))
        if past_edge < 0.2 * column.span:
            return False
    if what == "spike":
        return float(away.max()) > max(0.3 * column.span, 6 * column.noise)
    if what == "ramp":
        return float(away.max()) > max(0.35 * column.span, 6 * column.noise)
    spread = float(old.std()) if what == "level shift" else 0.0
    return float(np.median(away)) > max(0.25 * column.span, 4 * column.noise, 1.5 * spread)


# What the recorder does


def _recorded(column: _Feature, values: Floats) -> Floats:
    return np.round(values / column.quantum) * column.quantum if column.quantum else values


def _gaps(plot: _Plot, values: Floats, events: list[tuple[str, int, int]]) -> None:
    """Samples that never came, in place: single ones and whole stretches, never over a labelled event."""
    random, n = plot.random, plot.samples
    blank = np.zeros(values.shape, dtype=bool)
    if random.random() < 0.4:
        blank |= random.random(values.shape) < random.choice([0.001, 0.01])
    for at in random.integers(n, size=random.poisson(0.7)):
        end = at + int(random.integers(3, max(4, n // 60)))
        blank[at:end] = True
        plot.note("gap", at, end)
    for _, begin, end in events:
        blank[begin:end] = False
    values[blank] = np.nan
