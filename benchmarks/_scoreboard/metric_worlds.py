"""`anomaly.score` on metrics drawn by someone who had not read it (`benchmarks/_worlds/metrics.py`)."""

import numpy as np

from benchmarks._scoreboard.baselines import ALL
from benchmarks._scoreboard.events import Tally
from benchmarks._scoreboard.smap import DAY_S, Channel, Floats, in_hindsight, tally
from benchmarks._scoreboard.table import Row
from benchmarks._worlds.metrics import KINDS, draw
from healer.detection import anomaly

#: Series drawn again from the series, for the bounds of F1.
DRAWS, BOUNDS = 500, (0.05, 0.95)


def board(seed: int, each: int) -> list[Row]:
    """`each`: series of each kind."""
    drawn = [
        draw(np.random.default_rng([seed, kind, number]), name)
        for kind, name in enumerate(KINDS)
        for number in range(each)
    ]
    given = [
        Channel(str(number), one.train, one.test, tuple(one.events), DAY_S / one.sample_s)
        for number, one in enumerate(drawn)
    ]
    scores = [anomaly.score(one.train, one.test) for one in given]
    tallies = [tally([one], [score], anomaly.THRESHOLD) for one, score in zip(given, scores, strict=True)]
    is_dirty = [bool(one.past) for one in drawn]
    rows = [_row("healer, its own threshold", anomaly.THRESHOLD, tallies, seed)]
    for name, wanted in (("  past without anomalies", False), ("  past with anomalies", True)):
        part = [one for one, dirty in zip(tallies, is_dirty, strict=True) if dirty is wanted]
        rows.append(_row(name, anomaly.THRESHOLD, part, seed))
    for name, scorer in ALL.items():
        found = [scorer(*_filled(one)) for one in given]
        level, _ = in_hindsight(given, found)
        tallies = [tally([one], [score], level) for one, score in zip(given, found, strict=True)]
        rows.append(_row(f"{name}; best in hindsight", level, tallies, seed))
    return rows


def _filled(one: Channel) -> tuple[Floats, Floats]:
    """Without gaps, for methods that know none: the median of training."""
    middle = np.nan_to_num(np.nanmedian(one.train, axis=0))
    return np.where(np.isnan(one.train), middle, one.train), np.where(np.isnan(one.test), middle, one.test)


def _row(name: str, threshold: float, tallies: list[Tally], seed: int) -> Row:
    random = np.random.default_rng(seed)
    again = [
        sum((tallies[at] for at in random.integers(0, len(tallies), len(tallies))), Tally()).f1
        for _ in range(DRAWS)
    ]
    row = Row.of(name, threshold, sum(tallies, Tally()))
    low, high = np.quantile(again, BOUNDS)
    return Row(name, {**row.figures, "F1 from": float(low), "F1 to": float(high)})
