"""Schedules of deaths: `python benchmarks/deaths.py [--seeds 2000] [--first 0]`; `--seed N`: one's story.

The real engine (walk, gate, ledger in memory, driver, actions) in three workers, two detectors and two beats
of one thread, on a simulated Slurm. From a seed each is killed or stopped at any point around commits and
effects, sessions break, calls time out, messages get lost, clocks leap, people act. After each second and at
the end the invariants of `tests/support/schedules/invariants.py` are looked at; ends with 1 when one broke.
"""

import argparse
import logging
import sys
import time
from pathlib import Path

import structlog

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.schedules.play import Played, play


def main() -> int:
    parser = argparse.ArgumentParser(description="Schedules of deaths, each from a seed.")
    parser.add_argument("--seeds", type=int, default=2000, help="how many schedules")
    parser.add_argument("--first", type=int, default=0, help="the first one's seed")
    parser.add_argument("--seed", type=int, help="play this one and tell its story")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    if options.seed is not None:
        one = play(options.seed)
        print("\n".join(one.story))
        _sum([one])
        return bool(one.breaches)
    began = time.monotonic()
    played = []
    for seed in range(options.first, options.first + options.seeds):
        one = play(seed)
        played.append(one._replace(story=[]))
        for breach in one.breaches:
            print(f"seed {seed}: {breach}", flush=True)
    _sum(played)
    print(f"{time.monotonic() - began:.0f} s")
    return any(one.breaches for one in played)


def _sum(played: list[Played]) -> None:
    bad = [one.seed for one in played if one.breaches]
    print(
        f"{len(played)} schedules: {sum(one.kills for one in played)} kills, "
        f"{sum(one.stops for one in played)} stops, {sum(one.points for one in played)} points, "
        f"{sum(one.runs for one in played)} runs, {sum(one.effects for one in played)} effects; "
        f"{sum(len(one.breaches) for one in played)} breaches" + (f", seeds {bad}" if bad else "")
    )


if __name__ == "__main__":
    sys.exit(main())
