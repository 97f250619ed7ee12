"""Level shifts: how soon they are found, and how many false ones. CUSUM as `drifted` uses it.

    python -m benchmarks.levels [--nodes 1250] [--days 14]

Made-up points: each of 31 features of each node is noise that resembles the point before by half (deviation
0.3 of the peers' spread: mean of 15 minutes). 60 of the series jump by 1, 1.5, 2 or 3 at some time and stay.
Hours from the jump to the end of the first point above the threshold; CPU time of a point.
"""

import argparse
import time

import numpy as np

from healer.detection.features import OWN_NAMES
from healer.detection.level_shift import POINT_S, Levels

SIZES, OF_EACH = (1.0, 1.5, 2.0, 3.0), 15
ALIKE, SPREAD = 0.5, 0.3
PER_DAY = round(86400 / POINT_S)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--days", type=int, default=14)
    asked = parser.parse_args()
    chance = np.random.default_rng(5)
    features, nodes, points = len(OWN_NAMES), asked.nodes, asked.days * PER_DAY
    many = len(SIZES) * OF_EACH
    size = np.repeat(SIZES, OF_EACH)
    begins = chance.integers(2 * PER_DAY, points - 2 * PER_DAY, many)
    where = chance.integers(0, features, many), chance.choice(nodes, many, replace=False)
    levels = Levels(OWN_NAMES)
    levels.reserve(nodes)
    epoch, near = np.zeros(nodes), np.zeros(nodes, np.bool_)
    first, false, spent_s = np.full(many, -1), np.zeros((features, nodes), np.bool_), 0.0
    noise = np.zeros((features, nodes))
    for point in range(points):
        noise = ALIKE * noise + np.sqrt(1 - ALIKE**2) * SPREAD * chance.normal(size=noise.shape)
        x = noise.copy()
        x[where] += np.where(point >= begins, size, 0.0)
        began = time.process_time()
        above = levels.step(x, point * POINT_S, epoch, near)
        spent_s += time.process_time() - began
        own = above[where] & (point >= begins)
        first = np.where(own & (first < 0), point, first)
        above[where] &= ~own
        false |= above
    for one in SIZES:
        hours = ((first - begins + 1) / 4)[(size == one) & (first >= 0)]
        shown = (
            f"after {np.median(hours):.2f} h, 90 % within {np.quantile(hours, 0.9):.2f} h"
            if len(hours)
            else ""
        )
        print(f"{one:g} of the peers' spread: {len(hours)} of {OF_EACH} reported {shown}")
    print(f"wrong: {int(false.sum())} of {false.size} series in {asked.days} days")
    print(f"{1e3 * spent_s / points:.1f} ms CPU a point, once in 15 min; {levels.nbytes / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
