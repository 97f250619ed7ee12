"""Which features and which scorer find mild faults of nodes that change jobs: the ablation of the model.

    python -m benchmarks.unusual [--seeds 6] [--seed 9001] [--json]

Models are trained and judged as in production: held-out nodes give the threshold, an alarm has to stand for
five minutes. Beside the forest in force: the distance alone, a forest over all features, distance or forest.
Each also at equal false alarms: with the lowest threshold that has at most 0.02 a node-day on as many other
fleets.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
from numpy.typing import NDArray

from benchmarks._scoreboard.baselines import isolation_forest
from benchmarks._scoreboard.events import Tally, alarms, judge
from benchmarks._scoreboard.fleet import CLUSTER, FAULTS, HELD, NODES, START, held
from benchmarks._scoreboard.moving_fleet import LEARN, WATCH, Moving, moving
from benchmarks._scoreboard.table import Board, Row
from healer.detection.features import ALL_NAMES, NAMES, OWN_MARK, OWN_NAMES, SAMPLE_S, whole
from healer.detection.training import fit, healthy_samples, threshold_of
from healer.model.feature_rows import FeatureRow, Floats, Matrix

SEED, CALIBRATION = 9001, 101
BUDGET = 0.02
#: Alarms of a node up to an hour apart are one.
GAP = round(3600 / SAMPLE_S)
#: Of training, each tenth sample is kept as history: one in 5 minutes.
EACH = 10
_OWN = tuple(name + OWN_MARK for name in OWN_NAMES)

#: What a model is given: its features, and where they lie.
FEATURES = {
    "peers": (NAMES, lambda given: given.peers),
    "own past, not smooth": (_OWN, lambda given: given.now),
    "own past": (_OWN, lambda given: given.own),
    "peers and own past": (ALL_NAMES, lambda given: np.concatenate([given.peers, given.own], axis=2)),
}


Scorer = Callable[[Matrix], Floats]


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """One fleet by one model. By scorer: (watch, nodes) scores that held for five minutes, in units of their
    threshold."""

    given: Moving
    by_scorer: dict[str, Floats]


def scored(given: Moving, features: str) -> Scored:
    names, of = FEATURES[features]
    matrix = of(given)
    nodes = tuple(f"gpu{row:04}" for row in range(NODES))

    def row(number: int) -> FeatureRow:
        at = START + timedelta(seconds=SAMPLE_S * number)
        return FeatureRow(CLUSTER, "h100", "busy", at, nodes, names, matrix[number])

    history = [row(number) for number in range(0, LEARN, EACH)]
    samples = healthy_samples(history, len(history), {})
    model, known = fit(samples), samples.fitted.astype(np.float64)
    own = np.concatenate([model.scored(whole(row(LEARN + number)))[1] for number in range(WATCH)])

    def to_threshold(score: Scorer) -> Floats:
        return held_scores(score(own).reshape(WATCH, NODES) / threshold_of(score(samples.held_out)))

    found = {
        "forest in force": to_threshold(model.scorer.score),
        "distance": to_threshold(lambda x: np.expm1(model.scorer.residual.sizes(x)[:, 0])),
        "forest over all features": to_threshold(lambda x: isolation_forest(known, x.astype(np.float64))),
    }
    found["distance or forest"] = np.maximum(found["distance"], found["forest in force"])
    return Scored(given, found)


def held_scores(score: Floats) -> Floats:
    """The least of the last five minutes."""
    padded = np.concatenate([np.full((HELD - 1, score.shape[1]), -np.inf), score])
    return np.lib.stride_tricks.sliding_window_view(padded, HELD, axis=0).min(axis=2)


def tally(given: Moving, on: NDArray[np.bool_]) -> Tally:
    total = Tally()
    for row in range(NODES):
        events = [(given.onset[row], WATCH)] if row in given.onset else []
        total += judge(alarms(on[:, row], GAP), events, days=WATCH * SAMPLE_S / 86_400, early=0)
    return total


def pooled(many: list[Scored], scorer: str, threshold: float) -> Tally:
    return sum((tally(one.given, one.by_scorer[scorer] > threshold) for one in many), Tally())


def budgeted(many: list[Scored], scorer: str) -> float:
    """The lowest threshold with at most `BUDGET` false alarms a node-day."""
    low, high = 0.0, 64.0
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (low, middle) if pooled(many, scorer, middle).false_per_day <= BUDGET else (middle, high)
    return high


def rows(fleets: list[Moving], other: list[Moving]) -> Iterator[Row]:
    drifted = sum((tally(one, held(one.drifted)) for one in fleets), Tally())
    yield _row("drifted, in force", drifted, drifted, np.nan)
    for features in FEATURES:
        scores, calibration = ([scored(one, features) for one in many] for many in (fleets, other))
        for scorer in scores[0].by_scorer:
            threshold = budgeted(calibration, scorer)
            shipped, equal = pooled(scores, scorer, 1.0), pooled(scores, scorer, threshold)
            yield _row(f"{features}: {scorer}", shipped, equal, threshold)


def _row(name: str, shipped: Tally, equal: Tally, threshold: float) -> Row:
    figures = {
        "recall": shipped.recall,
        "precision": shipped.precision,
        "false/n-day": shipped.false_per_day,
        "delay, min": shipped.delay * SAMPLE_S / 60,
        "at": threshold,
        "recall there": equal.recall,
        "false there": equal.false_per_day,
    }
    return Row(name, figures)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    begun = time.process_time()
    fleets, other = (
        [moving(seed) for seed in range(first, first + asked.seeds)] for first in (asked.seed, CALIBRATION)
    )
    days = asked.seeds * NODES * WATCH * SAMPLE_S / 86_400
    board = Board(
        f"Mild faults of nodes that change jobs: {asked.seeds} fleets from seed {asked.seed}",
        f"{2 * len(FAULTS) * asked.seeds} faults in {days:.0f} node-days; 'at': threshold, in units of that "
        f"of training, with at most {BUDGET} false alarms a node-day on fleets from {CALIBRATION}",
        list(rows(fleets, other)),
    )
    print(json.dumps(board.json(), indent=1) if asked.json else board.text())
    if not asked.json:
        print(f"{time.process_time() - begun:.0f} s of CPU")


if __name__ == "__main__":
    main()
