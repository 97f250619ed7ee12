"""Series that left where they lay are found, small or large, and what only looks so is not."""

import numpy as np
import pytest

from healer.detection.level_shift import LEARN, POINT_S, Levels, SavedLevels, threshold

ROWS = ("a", "b")
COLUMNS = 50


def flagged(
    levels: Levels, points: int, shape=lambda point: 0.0, *, noise: float = 0.3, seed: int = 1, first: int = 0
):
    """(points, rows, columns) what was beyond the threshold; `shape` is added to row 0, column 7."""
    chance = np.random.default_rng(seed)
    levels.reserve(COLUMNS)
    zeros = np.zeros(COLUMNS)
    found = []
    for point in range(points):
        x = noise * chance.normal(size=(len(ROWS), COLUMNS))
        x[0, 7] += shape(point)
        found.append(levels.step(x, (first + point + 1) * POINT_S, zeros, zeros.astype(bool)))
    return np.array(found)


def onset(above: np.ndarray) -> int:
    """Points until the one in question is beyond, and nothing else ever is."""
    others = above.copy()
    others[:, 0, 7] = False
    assert not others.any()
    return int(np.argmax(above[:, 0, 7])) if above[:, 0, 7].any() else -1


def test_steady_level_is_not_flagged_in_four_weeks() -> None:
    assert not flagged(Levels(ROWS), 28 * 96).any()
    # The budget of 0.02 a day is 0.6 in four weeks, of noise that the band hardly covers.
    wild = flagged(Levels(ROWS), 28 * 96, noise=1.5, seed=3)
    assert int(np.asarray(wild.any(axis=0)).sum()) <= 2


@pytest.mark.parametrize(
    ("size", "sign", "within_h"), [(1.5, 1, 5.0), (3.0, 1, 3.0), (3.0, -1, 3.0), (9.0, 1, 2.0)]
)
def test_a_jump_is_found_within_hours_to_both_sides(size: float, sign: int, within_h: float) -> None:
    levels = Levels(ROWS)
    assert onset(flagged(levels, 200)) == -1
    points = onset(flagged(levels, 60, lambda _: sign * size, seed=2, first=200))
    assert 0 <= points <= within_h * 4
    # Since when: within two points of the truth.
    assert abs(float(levels.since[0, 7]) - 200 * POINT_S) <= 2 * POINT_S
    assert abs(float(levels.level[0, 7])) < 0.3
    assert float(levels.newest[0, 7]) == pytest.approx(sign * size, abs=1.0)


def test_a_drift_of_one_unit_a_day_is_found_in_two_days() -> None:
    levels = Levels(ROWS)
    flagged(levels, 200)
    assert 0 < onset(flagged(levels, 400, lambda point: point / 96, seed=2)) <= 2 * 96


def test_one_wild_point_is_no_change() -> None:
    levels = Levels(ROWS)
    flagged(levels, 200)
    assert onset(flagged(levels, 96, lambda point: 10.0 * (point % 24 == 5), seed=2)) == -1


def test_levels_ignore_unknown_values_and_learn_new_series_first() -> None:
    levels = Levels(ROWS)
    levels.reserve(COLUMNS)
    nothing = np.full((len(ROWS), COLUMNS), np.nan)
    for point in range(100):
        assert not levels.step(nothing, point * POINT_S, np.zeros(COLUMNS), np.zeros(COLUMNS, bool)).any()
    assert not levels.points.any()
    assert onset(flagged(levels, LEARN, lambda _: 5.0)) == -1  # it always lay there
    assert onset(flagged(levels, 96, lambda _: 5.0, seed=4)) == -1


def test_back_is_below_the_threshold_again_and_three_days_are_the_new_level() -> None:
    levels = Levels(ROWS)
    flagged(levels, 100)
    assert flagged(levels, 30, lambda _: 4.0, seed=2, first=100)[-1, 0, 7]
    back = flagged(levels, 30, seed=3, first=130)
    assert not back[-1, 0, 7]
    assert float(levels.sums[0, 7]) < threshold(100) / 3
    flagged(levels, 30, lambda _: 4.0, seed=5, first=160)
    levels.relearn(190 * POINT_S, 3 * 86400.0)
    assert float(levels.sums[0, 7]) > 0
    levels.relearn((190 + 4 * 96) * POINT_S, 3 * 86400.0)
    assert float(levels.sums[0, 7]) == 0
    assert onset(flagged(levels, 96, lambda _: 4.0, seed=6, first=190 + 4 * 96)) == -1


def test_kept_over_a_restart_by_name_and_nothing_else_is_taken() -> None:
    levels = Levels(ROWS)
    flagged(levels, 60)
    packed = levels.pack([f"n{column}" for column in range(COLUMNS)])
    again = Levels(ROWS)
    again.reserve(3)
    SavedLevels(packed, ROWS).give(again, ["new", "n7", "n8"], 0)
    assert again.level[:, 1].tolist() == levels.level[:, 7].tolist()
    assert not again.points[:, 0].any()
    for wrong in (b"", b"x", packed[:-9]):
        with pytest.raises(ValueError, match="no levels"):
            SavedLevels(wrong, ROWS)
    with pytest.raises(ValueError, match="other features"):
        SavedLevels(packed, ("a", "c"))


def test_more_series_have_a_higher_threshold() -> None:
    assert 6.0 <= threshold(1) < threshold(1000) < threshold(40_000) < 25
