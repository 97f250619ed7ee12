"""Compute times of the ranks of a training job: what real jobs do, with at most one slow node in it.

A fault-free world holds no node that is persistently slower than its peers by 2 % or more: permanent biases
stay within `SOUND`, and what hits single nodes for a moment (data loader, clocks, pauses) is paid from a
budget per node. The sizes come from published studies: noise against peers 0.3 to 0.45 % (equal work) and 9
to 14 % (sequences of varying length), garbage collection 0.1 to 0.4 s on single ranks, checkpoints,
evaluations, storage slow for all.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NOISES = ("equal", "unequal", "trace")
SHAPES = ("constant", "ramping", "intermittent")
#: Lengths of steps worth drawing, in seconds.
STEP_LENGTHS_S = (0.4, 1.5, 5.0, 20.0)
RANKS_PER_NODE = 8
#: Largest permanent deviation of a sound node from its class.
SOUND = 0.009
#: What moments may cost a sound node, as a share of the world's whole time.
MOMENTS = 0.004


# Wide: one drawn world; the last fields are for looking at results, never for a detector.
@dataclass(frozen=True)
class StepWorld:
    """`compute_s` is (steps, ranks) in seconds before the collective, NaN where no report came.

    `work` is (steps, ranks) in units of the mean share of a rank, or None where the job does not report it.
    `history_s` is (steps, ranks) of an earlier job on the same nodes, possibly of another step length,
    possibly empty or without some nodes. `step_wall_s` is (steps,). `slowdown` is (steps,), the slow node's
    true extra share. `happened` names benign events with their first and one past their last step.
    """

    compute_s: Floats
    work: Floats | None
    slow_node: int | None
    onset: int
    racks: NDArray[np.int64]
    history_s: Floats
    step_wall_s: Floats
    slowdown: Floats
    happened: list[tuple[str, int, int]]


def draw(
    random: np.random.Generator,
    noise: str,
    *,
    slow: float | None,
    onset: int,
    nodes: int = 32,
    steps: int = 1440,
    step_s: float = 5.0,
    shape: str = "constant",
) -> StepWorld:
    """A job of `nodes` nodes with 8 ranks each whose steps take about `step_s`.

    `slow` is the extra share of the slow node's compute (0.05 is 5 %), None in a fault-free world. It begins
    at step `onset`; 0 means from the first step and, unless it is ramping, in the history as well. Raises
    ValueError for an unknown `noise` or `shape`.
    """
    if noise not in NOISES or shape not in SHAPES:
        raise ValueError(f"noise {noise!r} or shape {shape!r} is none of {NOISES}, {SHAPES}")
    racks = np.arange(nodes) // int(random.choice([4, 8, 16]))
    bias = _bias(random, racks)
    slow_node = None if slow is None else int(random.integers(nodes))
    slowdown = np.zeros(steps) if slow is None else _slowdown(random, shape, slow, onset, steps, step_s)
    job = _Job(random, noise, bias, steps, step_s)
    _live(job)
    if slow_node is not None:
        # The ranks of a slow node do not suffer alike; together they lose `slow`.
        uneven = random.dirichlet(np.full(RANKS_PER_NODE, 30.0)) * RANKS_PER_NODE
        job.factor[:, job.of(slow_node)] *= 1 + slowdown[:, None] * uneven
    past_slow = slow if slow is not None and onset == 0 and shape != "ramping" else 0.0
    history_s = _history(random, noise, bias, slow_node, past_slow)
    compute_s = job.compute_s()
    wall_s = compute_s.max(axis=1) + job.base_s * random.uniform(0.05, 0.3)
    _lose_reports(random, compute_s, step_s)
    return StepWorld(
        compute_s, job.work, slow_node, onset, racks, history_s, wall_s, slowdown, sorted(job.happened)
    )


def node_mean(values: Floats) -> Floats:
    """(steps, ranks) as (steps, nodes): the mean over the node's ranks that reported, NaN where none did."""
    by_node = values.reshape(len(values), values.shape[1] // RANKS_PER_NODE, RANKS_PER_NODE)
    seen = np.isfinite(by_node)
    count = seen.sum(axis=2)
    total = np.where(seen, by_node, 0.0).sum(axis=2)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


@dataclass
class _Job:
    """The job while it is being drawn. `factor` and `extra_s` are (steps, ranks)."""

    random: np.random.Generator
    noise: str
    bias: Floats
    steps: int
    step_s: float
    happened: list[tuple[str, int, int]] = field(default_factory=list)
    work: Floats | None = None

    def __post_init__(self) -> None:
        self.nodes = len(self.bias) // RANKS_PER_NODE
        self.factor = np.ones((self.steps, 1)) * (1 + self.bias)
        self.extra_s = np.zeros_like(self.factor)
        # What is left of a step's length when the slowest rank and the collective have had theirs.
        self.base_s = self.step_s * {"equal": 0.85, "unequal": 0.65, "trace": 0.7}[self.noise]
        self.budget = np.full(self.nodes, MOMENTS * self.steps)

    def of(self, node: int) -> slice:
        """The columns of a node's ranks."""
        return slice(node * RANKS_PER_NODE, (node + 1) * RANKS_PER_NODE)

    def compute_s(self) -> Floats:
        """(steps, ranks), rounded as the job's clock does."""
        tick_s = (
            self.random.choice([0.0, 0.0, 1e-4, 1e-3]) if self.step_s < 2 else self.random.choice([0.0, 1e-3])
        )
        exact = self.base_s * self.factor + self.extra_s
        return exact if tick_s == 0 else np.round(exact / tick_s) * tick_s

    def moments(self, rate_h: float) -> NDArray[np.int64]:
        """First steps of events that come `rate_h` times in an hour of the whole job."""
        hours = self.steps * self.step_s / 3600
        return np.sort(self.random.integers(self.steps, size=self.random.poisson(rate_h * hours)))

    def note(self, what: str, begin: int, end: int) -> None:
        self.happened.append((what, int(begin), int(min(end, self.steps))))

    def span(self, shortest_s: float, longest_s: float) -> int:
        """A number of steps, at least one, between two durations."""
        seconds = np.exp(self.random.uniform(np.log(shortest_s), np.log(longest_s)))
        return max(1, round(seconds / self.step_s))

    def pay(self, node: int, share: float) -> float:
        """What a node may lose now of `share`, in step lengths; the budget falls by it."""
        paid = float(min(share, self.budget[node]))
        self.budget[node] -= paid
        return paid


def _live(job: _Job) -> None:
    """Everything that happens in a job, each with its own chance."""
    {"equal": _equal_work, "unequal": _unequal_work, "trace": _trace}[job.noise](job)
    happenings: list[tuple[float, Callable[[_Job], None]]] = [
        (0.8, _warm_up),
        (0.9, _checkpoints),
        (0.5, _evaluations),
        (0.8, _collect_garbage),
        (0.7, _storage),
        (0.7, _load_data),
        (0.7, _throttle),
        (0.5, _warm_rack),
        (0.3, _congest),
    ]
    for chance, happen in happenings:
        if job.random.random() < chance:
            happen(job)


def _bias(random: np.random.Generator, racks: NDArray[np.int64]) -> Floats:
    """(ranks,): what nodes, racks and ranks always are. A sound node stays within `SOUND` of the median."""
    nodes = len(racks)
    of_rack = random.normal(0, random.uniform(0, 0.003), racks.max() + 1)
    of_node = random.standard_t(4, nodes) * random.uniform(0.001, 0.003)
    total = of_rack[racks] + of_node
    total = np.clip(total - np.median(total), -SOUND, SOUND)
    place = random.normal(
        0, random.uniform(0, 0.004), RANKS_PER_NODE
    )  # far from the CPU's memory, above a hot card
    of_rank = random.normal(0, random.uniform(0.001, 0.004), (nodes, RANKS_PER_NODE))
    of_rank -= of_rank.mean(axis=1, keepdims=True)
    return (total[:, None] + place - place.mean() + of_rank).ravel()


def _slowdown(
    random: np.random.Generator, shape: str, slow: float, onset: int, steps: int, step_s: float
) -> Floats:
    """(steps,): the extra share of the slow node."""
    since = np.arange(steps) - onset
    if shape == "ramping":
        length = max(1.0, min(random.uniform(300, 2400) / step_s, (steps - onset) / 2))
        return np.asarray(slow * np.clip(since / length, 0, 1), dtype=np.float64)
    begun = np.where(since >= 0, slow, 0.0)
    if shape == "constant":
        return begun
    working = np.zeros(steps)
    at = onset
    while at < steps:  # seconds to minutes slow, then as long well again; slow about half the time
        bad, good = (max(2, round(random.uniform(30, 300) / step_s)) for _ in range(2))
        working[at : at + bad] = 1
        at += bad + good
    return begun * working


def _history(
    random: np.random.Generator, noise: str, bias: Floats, slow_node: int | None, slow: float
) -> Floats:
    """(steps, ranks) of an earlier job on the same nodes; often short or absent, as after maintenance."""
    steps = int(random.choice([0, 1, 20, 300], p=[0.25, 0.1, 0.25, 0.4]))
    job = _Job(random, noise, bias, steps, float(random.choice(STEP_LENGTHS_S)))
    if steps > 1:
        _live(job)
    if slow_node is not None:
        job.factor[:, job.of(slow_node)] *= 1 + slow
    times_s = job.compute_s()
    for node in np.flatnonzero(random.random(job.nodes) < random.choice([0.0, 0.0, 0.2])).tolist():
        times_s[:, job.of(node)] = np.nan  # new in this allocation
    return times_s


def _ar(random: np.random.Generator, shape: tuple[int, int], tau: float) -> Floats:
    """(steps, series) of autocorrelated noise with unit variance and a memory of `tau` steps."""
    keep = np.exp(-1 / max(tau, 1e-3))
    out = random.standard_normal(shape)
    gain = np.sqrt(1 - keep**2)
    for step in range(1, len(out)):
        out[step] = keep * out[step - 1] + gain * out[step]
    return out


def _regimes(job: _Job, changes: float, spread: float) -> Floats:
    """(steps, 1): a level, 1 on average, that jumps at some moments and keeps its value between them."""
    cuts = np.sort(job.random.integers(1, max(job.steps, 2), size=job.random.poisson(changes)))
    levels = np.exp(job.random.normal(0, spread, len(cuts) + 1))
    for cut in cuts:
        job.note("regime", cut, cut + 1)
    return levels[np.searchsorted(cuts, np.arange(job.steps), side="right")][:, None]


def _equal_work(job: _Job) -> None:
    random = job.random
    sigma = random.uniform(0.003, 0.005) * _regimes(job, 0.5, 0.35)
    rest = random.standard_normal(job.factor.shape) * random.uniform(0.8, 1.3, job.factor.shape[1])
    common = random.uniform(0, 0.004) * _ar(random, (job.steps, 1), random.uniform(1, 50))
    job.factor *= 1 + np.clip(sigma * rest, -0.05, 0.05) + common
    job.factor *= _regimes(job, 0.3, 0.04)  # the whole job: other batch, recompilation


def _unequal_work(job: _Job) -> None:
    """Sequences of varying length; ranks that split one model share their batch."""
    random = job.random
    shared = int(random.choice([1, 1, 2, 4, 8]))
    groups = job.factor.shape[1] // shared
    sigma = random.uniform(0.09, 0.14) * np.clip(_regimes(job, 1.0, 0.35), 0.4, 1.5)
    skew = random.uniform(0.2, 1.0)  # 0: symmetric; 1: a long tail, as where cost is the square of length
    bell = random.standard_normal((job.steps, groups))
    tailed = random.gamma(2.0, 1.0, (job.steps, groups)) / np.sqrt(2.0) - np.sqrt(2.0)
    tailed = np.sqrt(1 - skew**2) * bell + skew * tailed
    cost = np.repeat(np.clip(1 + sigma * tailed, 0.3, 3.0), shared, axis=1)
    cost *= _regimes(job, 1.0, 0.12)  # another mix of lengths
    rest = random.uniform(0.004, 0.02) * random.standard_normal(job.factor.shape)
    job.factor *= cost * (1 + rest)
    if random.random() < 0.5:
        # Reported is the number of tokens or an estimate of operations: near the cost, seldom equal.
        blur = random.choice([0.0, 0.2, 0.6]) * sigma
        fixed = random.choice([0.0, 0.25])
        counted = 1 + (cost - 1) / (1 - fixed) + blur * np.repeat(bell, shared, axis=1)
        job.work = np.clip(counted, 0.05, None)


def _trace(job: _Job) -> None:
    random = job.random
    size = job.factor.shape
    # Busy spells: for minutes all ranks are slower and more uneven.
    busy = np.zeros((job.steps, 1))
    for begin in job.moments(random.uniform(0.3, 3)):
        end = begin + job.span(60, 1200)
        busy[begin:end] = 1
        job.note("busy", begin, end)
    sigma = random.uniform(0.02, 0.045) * random.uniform(0.6, 1.6, job.nodes).repeat(RANKS_PER_NODE)
    tails = np.clip(random.standard_t(random.uniform(2.5, 5), size) / 1.4, -4, 12)
    of_node = _ar(random, (job.steps, job.nodes), random.uniform(3, 40) * 5 / max(job.step_s, 1))
    of_node -= of_node.mean(axis=0)  # persistent is the bias alone
    common = 0.03 * _ar(random, (job.steps, 1), 60) + 0.03 * _ar(random, (job.steps, 1), 2)
    rough = sigma * (1 + busy * random.uniform(0.5, 2))
    slack = random.uniform(0.004, 0.015) * of_node.repeat(RANKS_PER_NODE, axis=1)
    job.factor *= np.exp(
        np.clip(rough * tails + slack, -0.3, 0.8) + common + busy * random.uniform(0.02, 0.15)
    )
    job.factor *= _regimes(job, 1.5, 0.08)
    pauses = random.random(size) < random.uniform(0.0005, 0.006)
    job.extra_s += pauses * random.exponential(0.15 * job.base_s, size)


def _warm_up(job: _Job) -> None:
    """Compilation, autotuning, cold caches: the first steps are long and uneven."""
    random = job.random
    length = min(job.steps, int(random.integers(2, 60)))
    fading = np.exp(-np.arange(length) / (length / 4))[:, None]
    rank_part = _level(random.lognormal(0, 0.3, job.factor.shape[1]), job) * random.lognormal(
        0, 0.2, (length, 1)
    )
    job.factor[:length] *= 1 + fading * random.uniform(0.1, 1.0) * rank_part
    job.extra_s[0] += random.uniform(1, 30) * _level(random.uniform(0.6, 1.4, job.factor.shape[1]), job)
    job.note("warm-up", 0, length)


def _checkpoints(job: _Job) -> None:
    """All ranks write, some more than others; a background copy slows all ranks for a few steps."""
    random = job.random
    every = max(20, job.span(300, 3600))
    lasting_s = random.uniform(0.3, 15)
    writers = random.lognormal(0, random.uniform(0.02, 0.3), job.factor.shape[1])
    background = random.random() < 0.4
    for step in range(int(random.integers(every)), job.steps, every):
        jitter = random.lognormal(0, 0.15, job.factor.shape[1])
        after = step + job.span(2, 40) if background else step + 1
        if background:
            shape = (len(job.factor[step:after]), job.factor.shape[1])
            job.factor[step:after] *= 1 + random.uniform(0.02, 0.08) * random.lognormal(0, 0.4, shape)
        job.extra_s[step] += (0.1 if background else 1.0) * lasting_s * _level(writers, job) * jitter
        job.note("checkpoint", step, after)


def _level(weights: Floats, job: _Job) -> Floats:
    """The weights with the means of the nodes made equal: what recurs must not make a node slow."""
    by_node = weights.reshape(job.nodes, RANKS_PER_NODE)
    return (by_node / by_node.mean(axis=1, keepdims=True)).ravel()


def _evaluations(job: _Job) -> None:
    random = job.random
    every = max(50, job.span(900, 5400))
    length, level = (
        int(random.integers(1, 15)),
        random.choice([random.uniform(0.4, 0.8), random.uniform(1.2, 3)]),
    )
    for step in range(int(random.integers(every)), job.steps, every):
        shape = (len(job.factor[step : step + length]), job.factor.shape[1])
        job.factor[step : step + length] *= level * random.lognormal(0, 0.03, shape)
        job.note("evaluation", step, step + length)


def _collect_garbage(job: _Job) -> None:
    """Each rank pauses for 0.1 to 0.4 s in its own rhythm, or now and then."""
    random = job.random
    ranks = job.factor.shape[1]
    every = max(random.uniform(100, 1500), 120 / job.step_s)
    regular = random.random() < 0.5
    phase = random.uniform(0, every, ranks)
    counter = np.floor((np.arange(job.steps + 1)[:, None] + phase) / every)
    paused = np.diff(counter, axis=0) > 0 if regular else random.random((job.steps, ranks)) < 1 / every
    job.extra_s += paused * random.uniform(0.1, 0.4, (job.steps, ranks))


def _storage(job: _Job) -> None:
    """All ranks are slow for minutes: level and spread of all ranks jump, at any time; for seconds on some
    more.
    """
    random = job.random
    starts = job.moments(random.uniform(0.2, 1.5))
    for begin in starts if len(starts) else random.integers(job.steps, size=1):
        length = len(job.factor[begin : begin + job.span(45, 900)])
        size = np.exp(random.uniform(np.log(0.04), np.log(0.8)))
        memory = random.uniform(5, 40) / job.step_s
        by_node = np.exp(random.uniform(0.1, 0.5) * _ar(random, (length, job.nodes), memory))
        by_node /= by_node.mean(axis=0)  # in turn: over the whole event no node is behind
        by_rank = random.lognormal(0, random.uniform(0.1, 0.7), (length, job.factor.shape[1]))
        waves = np.exp(0.2 * _ar(random, (length, 1), 20 / job.step_s))
        rise = np.ones((length, 1))
        if random.random() < 0.4:  # it ends, or begins, slowly
            rise = (
                np.linspace(1, 0.1, length)[:, None]
                if random.random() < 0.6
                else np.linspace(0.1, 1, length)[:, None]
            )
        job.factor[begin : begin + length] *= (
            1 + size * rise * waves * by_node.repeat(RANKS_PER_NODE, axis=1) * by_rank
        )
        job.note("storage", begin, begin + length)


def _congest(job: _Job) -> None:
    """Input over a busy network: a third of the nodes is slower for a while, different ones each time."""
    random = job.random
    for begin in job.moments(1.0):
        length = min(job.span(20, 120), max(1, int(0.02 * job.steps)))
        hit = np.flatnonzero(random.random(job.nodes) < 0.3).tolist()
        size = random.uniform(0.02, 0.12)
        for node in hit:
            share = job.pay(node, size * length) / length
            job.factor[begin : begin + length, job.of(node)] *= 1 + share
        job.note("congestion", begin, begin + length)


def _load_data(job: _Job) -> None:
    """A data loader of one node hiccups for 1 to 5 steps."""
    random = job.random
    for begin in job.moments(random.uniform(0.5, 8)):
        node, length = int(random.integers(job.nodes)), int(random.integers(1, 6))
        share = job.pay(node, random.exponential(0.5) * length) / length
        ranks = job.of(node)
        if random.random() < 0.3:  # one rank's loader: its node's mean moves an eighth
            first = ranks.start + int(random.integers(RANKS_PER_NODE))
            ranks, share = slice(first, first + 1), share * 3
        job.factor[begin : begin + length, ranks] *= 1 + share
        job.note(f"data loader of node {node}", begin, begin + length)


def _throttle(job: _Job) -> None:
    """Clocks fall for seconds, on a whole node or on one GPU."""
    random = job.random
    for begin in job.moments(random.uniform(0.5, 4)):
        node, length = int(random.integers(job.nodes)), job.span(3, 40)
        share = job.pay(node, random.uniform(0.05, 0.25) * length) / length
        ranks = job.of(node)
        if random.random() < 0.5:
            first = ranks.start + int(random.integers(RANKS_PER_NODE))
            ranks = slice(first, first + 1)
        job.factor[begin : begin + length, ranks] *= 1 + share
        job.note(f"clocks of node {node}", begin, begin + length)


def _warm_rack(job: _Job) -> None:
    """Rooms and racks get warmer and cooler by tenths of a percent over many minutes."""
    random = job.random
    size = random.uniform(0.0005, 0.0025)
    drift = np.sin(
        2 * np.pi * (np.arange(job.steps) * job.step_s / random.uniform(1800, 14400) + random.random())
    )
    sharing = random.uniform(-1, 1, job.nodes).repeat(RANKS_PER_NODE)
    job.factor *= 1 + size * drift[:, None] * sharing


def _lose_reports(random: np.random.Generator, times_s: Floats, step_s: float) -> None:
    """Blanks, in place: single reports, an agent that restarts, whole steps, a rank that never reports."""
    steps, ranks = times_s.shape
    times_s[random.random((steps, ranks)) < random.choice([0.0, 0.0005, 0.01])] = np.nan
    for begin in random.integers(steps, size=random.poisson(0.5)):
        node = int(random.integers(ranks // RANKS_PER_NODE))
        end = begin + max(3, round(random.uniform(15, 180) / step_s))
        times_s[begin:end, node * RANKS_PER_NODE : (node + 1) * RANKS_PER_NODE] = np.nan
    if random.random() < 0.3:
        times_s[random.random(steps) < 0.003] = np.nan
    if random.random() < 0.1:
        times_s[:, random.integers(ranks)] = np.nan
