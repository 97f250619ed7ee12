"""How soon a slow node can be named at all, if hiccups of sound nodes may be named so seldom.

    python -m benchmarks.hiccups [--jobs 20000] [--seed 1]

An ideal observer of the jobs in `benchmarks/_worlds/step_times.py`, equal work: it knows how often, how long
and how large hiccups of whole nodes are (data loaders, clocks), sees each without noise, and learns from
those of a job how often that job has them. It names a node after so many slow steps, in the calmer half of
the jobs alone: the least that a median delay of so many steps costs. No rule is better (Neyman and Pearson:
least false alarms for half of the slow nodes), for a hiccup and a slowness of one size are the same until one
of them is over.
"""

import argparse
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks._scoreboard.slow_worlds import ONSETS, SOUND_STEPS, STEP_S

Floats = NDArray[np.float64]

#: Of the jobs that have a kind of hiccup at all.
HAVE = 0.7
#: Steps between two looks at what is known of a job.
EVERY = 10
#: Sizes of slowness between which the observer has to name a node, as shares of the step.
SIZES = ((0.0475, 0.0525), (0.03, 0.10), (0.02, 9.0))
WAITS = (3, 4, 5, 6, 7, 8, 9)


class Kind(NamedTuple):
    """Hiccups of one kind: `low` to `high` an hour, `whole` of them on all ranks of a node. `lasts` (n,): so
    many steps or more, from one on."""

    low: float
    high: float
    whole: float
    lasts: Floats


def kinds(random: np.random.Generator) -> tuple[Kind, Kind]:
    """As `_load_data` and `_throttle` draw them."""
    clocks = np.maximum(1, np.round(np.exp(random.uniform(np.log(3), np.log(40), 1_000_000)) / STEP_S))
    least = np.arange(1, max(WAITS) + 1)
    return (
        Kind(0.5, 8, 0.7, np.clip((6 - least) / 5, 0, 1)),
        Kind(0.5, 4, 0.5, (clocks >= least[:, None]).mean(axis=1)),
    )


def sized(low: float, high: float) -> tuple[float, float]:
    """The chance that a hiccup of each kind is as large."""
    clocks = (min(high, 0.25) - max(low, 0.05)) / 0.2
    return float(np.exp(-low / 0.5) - np.exp(-high / 0.5)), max(clocks, 0.0)


def rates(kind: Kind, jobs: int, hours: Floats, random: np.random.Generator) -> tuple[Floats, Floats]:
    """(jobs, hours) an hour: as it is, and as it is expected from the hiccups until then."""
    true = np.where(random.random(jobs) < HAVE, random.uniform(kind.low, kind.high, jobs), 0.0)
    seen = random.poisson(true[:, None] * np.diff(hours, prepend=0.0)).cumsum(axis=1)
    rate = np.linspace(kind.low, kind.high, 60)
    count = np.arange(seen.max() + 1)[:, None]
    expected = np.empty((len(count), len(hours)))
    for at, hour in enumerate(hours):
        likely = HAVE / len(rate) * np.exp(count * np.log(rate * hour) - rate * hour)
        none = np.where(count[:, 0] == 0, 1 - HAVE, 0.0)
        expected[:, at] = (likely * rate).sum(axis=1) / (likely.sum(axis=1) + none)
    return np.repeat(true[:, None], len(hours), axis=1), expected[seen, np.arange(len(hours))]


def calmer_half(hazard: Floats, onset: NDArray[np.bool_]) -> float:
    """Mean of `hazard` (jobs, hours) where it is low enough for one half at `onset`, ties in part."""
    edge = np.median(hazard[:, onset])
    below, on_edge = hazard < edge, hazard == edge
    part = (0.5 - below[:, onset].mean()) / max(on_edge[:, onset].mean(), 1e-9)
    return float((hazard * below).mean() + part * (hazard * on_edge).mean())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    random = np.random.default_rng(given.seed)
    steps = np.arange(EVERY, SOUND_STEPS + 1, EVERY)
    onset = (steps >= ONSETS[0]) & (steps < ONSETS[1])
    both = kinds(random)
    drawn = [rates(kind, given.jobs, steps * STEP_S / 3600, random) for kind in both]
    print(
        "false alarms a job-day of an ideal observer: half of the jobs, if it knows their rates; if it learns"
    )
    print("them; and in all jobs")
    for low, high in SIZES:
        for wait in WAITS:
            factors = [
                24 * kind.whole * kind.lasts[wait - 1] * share
                for kind, share in zip(both, sized(low, high), strict=True)
            ]
            known, learnt = (
                sum(factor * of_kind[index] for factor, of_kind in zip(factors, drawn, strict=True))
                for index in (0, 1)
            )
            print(
                f"{low:.2%} to {high:.2%} slower, after {wait} steps ({wait * STEP_S:g} s): "
                f"{calmer_half(known, onset):.3f}, {calmer_half(learnt, onset):.3f}, {known.mean():.3f}"
            )


if __name__ == "__main__":
    main()
