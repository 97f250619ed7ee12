"""The past of conditions: a column that stays the same counts as one that is put at each tick."""

import random

import numpy as np

from healer.detection.language.expr import SPEAKS_FOR_S, TICK_S
from healer.detection.language.truth_columns import FALSE, TRUE, UNKNOWN, Past, Truth

WINDOW_S = 12 * TICK_S
ROWS = 4


def columns() -> list[Truth]:
    fills = (np.full(ROWS, fill, np.uint8) for fill in (FALSE, UNKNOWN, TRUE))
    return [*fills, np.array([TRUE, FALSE, UNKNOWN, TRUE], np.uint8)]


def test_the_same_column_again_and_again_is_what_each_tick_would_have_put() -> None:
    drawn = random.Random(5)
    kept, thorough, at_s, choice = Past(WINDOW_S), Past(WINDOW_S), 0.0, columns()
    for _ in range(150):
        column, gap_s = (
            drawn.choice(choice),
            drawn.choice((TICK_S, TICK_S, SPEAKS_FOR_S, SPEAKS_FOR_S + TICK_S)),
        )
        for _ in range(drawn.randint(1, 30)):
            at_s += gap_s
            kept.push(at_s, column)
            thorough.push(at_s, column.copy())  # another object: never taken for the same
            assert kept.true.tolist() == thorough.true.tolist()
            assert kept.known.tolist() == thorough.known.tolist()
        if drawn.random() < 0.2:
            rows = np.array([drawn.randrange(ROWS)])
            kept.forget(rows)
            thorough.forget(rows)
