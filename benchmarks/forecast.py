"""How good forecasts are on made-up parts, and what a look costs.

    python -m benchmarks.forecast [--parts 600] [--healthy 3600] [--seed 20261121]

For each kind of growth in `rules/forecasts.yaml`: parts whose value grows towards the limit and that fail on
a known day (exponential, linear, or in steps, with noise): the share foreseen at least two days before.
Healthy parts for two weeks (steady, one bad day, day and night, load that comes and goes, silent for a
while): how many were forecast to fail at any moment. Then the cost of a look and a judgement at 10,000 parts.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from healer.detection.forecasts import likely
from healer.model import ForecastRule
from healer.observations.trends import POINT_S, POINTS, Series
from healer.rulebook.ruleset import load
from healer.settings import load as load_settings
from healer.settings import rules_folder

Array = NDArray[np.float64]
PER_DAY = round(86400 / POINT_S)
DAYS = np.arange(POINTS) / PER_DAY
#: A part that fails does so on the last day; two days before that is the last moment that counts.
SEEN_BEFORE = 2 * PER_DAY


def unit(rule: ForecastRule, share: Array) -> Array:
    """From 0 (healthy) to 1 (at the limit), in the rule's own values."""
    if rule.decades:
        quiet = np.log10(rule.least / 30)
        return 10 ** (quiet + share * (np.log10(rule.limit) - quiet))
    healthy = rule.least + (rule.least - rule.limit) if rule.falls else 0.0
    return healthy + share * (rule.limit - healthy)


def failing(rule: ForecastRule, rng: np.random.Generator) -> Array:
    """(POINTS,): begins to grow 5 to 12 days before the end, and is at its limit there."""
    begins = 14 - rng.uniform(5, 12)
    done = np.clip((DAYS - begins) / (14 - begins), 0, 1)
    shape = rng.choice(3)
    share = (done, done**2, np.floor(done * 8) / 8)[shape]
    return unit(rule, share + rng.normal(0, 0.03, POINTS))


def healthy(rule: ForecastRule, rng: np.random.Generator) -> Array:
    """(POINTS,): one of five ways of being well."""
    level = rng.uniform(0, 0.45)
    noise = rng.normal(0, 0.03, POINTS)
    share = level + noise
    match rng.integers(5):
        case 1:  # one bad day
            at = rng.integers(0, POINTS - PER_DAY)
            share[at : at + PER_DAY] += rng.uniform(0.2, 0.8)
        case 2:  # day and night
            share += 0.1 * np.sin(2 * np.pi * DAYS + rng.uniform(0, 6))
        case 3:  # the load comes and goes, some days at a time
            share += 0.15 * np.repeat(rng.choice([-1, 0, 1], 14), PER_DAY)
        case 4:  # it was silent for a while
            at = rng.integers(0, POINTS - 8)
            share[at : at + rng.integers(2, 8)] = np.nan
    return unit(rule, share)


def foreseen(rule: ForecastRule, series: Array, until: int) -> NDArray[np.bool_]:
    """(k,) whether it was forecast at any point from the sixth day up to `until` points before the end."""
    predicted = np.zeros(series.shape[1], bool)
    for end in range(6 * PER_DAY, POINTS - until + 1):
        seen = np.full_like(series, np.nan)
        seen[POINTS - end :] = series[:end]
        predicted |= np.array([one is not None for one in likely(rule, seen)])
    return predicted


def many(make: Callable[[], Array], count: int) -> Array:
    return np.stack([make() for _ in range(count)], axis=1)


def cost(rule: ForecastRule, rng: np.random.Generator) -> tuple[float, float, int]:
    """Seconds of a look and of judging 10,000 parts of which one in a hundred grows; bytes held."""
    series = Series(counter=False)
    values = np.concatenate(
        [many(lambda: healthy(rule, rng), 9_900), many(lambda: failing(rule, rng), 100)], axis=1
    )
    begun = time.process_time()
    for point in range(POINTS):
        series.look(values[point], point * POINT_S)
    look_s = (time.process_time() - begun) / POINTS
    begun = time.process_time()
    likely(rule, series.series(np.arange(10_000)))
    return look_s, time.process_time() - begun, series.nbytes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", type=int, default=600, help="that fail, over all rules")
    parser.add_argument("--healthy", type=int, default=3600, help="fortnights of healthy ones")
    parser.add_argument("--seed", type=int, default=20261121)
    asked = parser.parse_args()
    rules = load(rules_folder(load_settings({})), prove=False).forecasts
    rng = np.random.default_rng(asked.seed)
    hits = wrong = 0
    for rule in rules:
        bad = foreseen(rule, many(lambda: failing(rule, rng), asked.parts // len(rules)), SEEN_BEFORE)  # noqa: B023
        good = foreseen(rule, many(lambda: healthy(rule, rng), asked.healthy // len(rules)), 0)  # noqa: B023
        hits, wrong = hits + int(bad.sum()), wrong + int(good.sum())
        well = f"{good.sum()} of {len(good)} healthy ones reported"
        print(f"{rule.name:20} {bad.mean():6.1%} foreseen 2 days before, {well}")
    failed, well = (n // len(rules) * len(rules) for n in (asked.parts, asked.healthy))
    print(f"together: {hits / failed:.1%} of {failed} foreseen, {wrong} false of {well} healthy fortnights")
    look_s, judge_s, held = cost(rules[0], rng)
    spent = f"a look {1e3 * look_s:.2f} ms, a judgement {1e3 * judge_s:.0f} ms"
    print(f"10,000 parts: {spent}, {held / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
