"""Two weeks of points of many parts: counters and levels, gaps, new parts, a restart."""

import numpy as np
import pytest

from healer.model import Component
from healer.observations.trends import GAP_S, POINT_S, POINTS, Saved, Series

HOUR = 3600.0
PARTS = [Component(cluster="c", node="n1", gpu=gpu) for gpu in range(3)]
ROWS = np.arange(3)


def fed(series: Series, readings_by_hour: dict[float, list[float]]) -> Series:
    """Readings by hour."""
    for hour, readings in readings_by_hour.items():
        series.look(np.array(readings), hour * HOUR)
    return series


def known(series: Series, row: int = 0) -> list[float]:
    values = series.series(ROWS[row : row + 1])[:, 0]
    return values[np.isfinite(values)].tolist()


def test_a_counters_point_is_events_a_day() -> None:
    series = fed(Series(counter=True), {0: [100, 5], 3: [103, 5], 5.9: [105.9, 5], 6: [106, 5], 12: [112, 5]})
    assert known(series) == pytest.approx([24, 24])
    assert known(series, 1) == [0, 0]


def test_a_levels_point_is_the_mean_of_its_readings() -> None:
    assert known(fed(Series(counter=False), {0: [10], 1: [20], 5: [np.nan], 6: [99]})) == [15]


def test_part_without_values_has_no_point() -> None:
    series = fed(Series(counter=False), {0: [1], 6: [np.nan], 12: [3], 18: [4]})
    points = series.series(ROWS[:1])[:, 0]
    assert points[-1] == 3 and np.isnan(points[-2]) and points[-3] == 1


def test_restarted_counter_counts_from_zero() -> None:
    """A reboot: 50, then 2, then 8."""
    assert known(fed(Series(counter=True), {0: [50], 1: [2], 5: [8], 6: [8]})) == pytest.approx([24 * 8 / 5])


def test_an_exporter_that_says_0_once_is_no_growth() -> None:
    assert known(fed(Series(counter=True), {0: [5000], 2: [0], 4: [5000], 6: [5000]})) == [0]


def test_growth_over_a_short_silence_counts_and_over_a_long_one_does_not() -> None:
    """30 events while the detector was down for 30 hours are 24 a day."""
    assert known(fed(Series(counter=True), {0: [0], 30: [30], 36: [30]})) == pytest.approx([24])
    late = 1 + GAP_S / HOUR
    assert known(fed(Series(counter=True), {0: [0], late: [1e6], late + 6: [1e6], late + 12: [1e6]})) == [0]


def test_points_older_than_two_weeks_are_gone() -> None:
    series = Series(counter=False)
    for number in range(POINTS + 10):
        series.look(np.array([float(number)]), number * POINT_S)
    assert known(series) == [float(number) for number in range(9, POINTS + 9)]


def test_after_a_long_silence_nothing_of_before_is_left() -> None:
    series = fed(Series(counter=False), {0: [1], 6: [2], 24 * 30: [9], 24 * 30 + 6: [9]})
    assert known(series) == [9]


def test_a_clock_that_went_back_changes_nothing() -> None:
    series = fed(Series(counter=False), {12: [5], 18: [5]})
    before = series.series(ROWS[:1]).copy()
    assert series.look(np.array([99.0]), 6 * HOUR) is False
    np.testing.assert_array_equal(series.series(ROWS[:1]), before)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_clock_that_was_years_ahead_stops_no_series(restarted: bool) -> None:
    series = fed(Series(counter=False), {0: [1], 6: [2], 12: [3], 24 * 3650: [9], 24 * 3650 + 6: [9]})
    if restarted:
        saved, series = Saved(series.pack(PARTS[:1])), Series(counter=False)
        saved.give(series, PARTS[:1], 0)
    fed(series, {18: [4], 24: [5], 30: [6]})
    assert known(series) == [4, 5]


def test_replaced_part_starts_over() -> None:
    series = fed(Series(counter=True), {0: [0, 0], 6: [60, 60]})
    series.forget(np.array([0]))
    fed(series, {12: [7, 120], 18: [7, 180], 24: [7, 240]})
    assert known(series, 1) == pytest.approx([240, 240, 240])
    assert known(series) == [0]


def test_a_restart_keeps_everything_by_part() -> None:
    """Rows come in another order, one part is new, and the counter grew in between."""
    readings_by_hour = {0: [0, 7, 1], 6: [6, 7, 1], 9: [9, 7, 1]}
    before, whole = fed(Series(counter=True), readings_by_hour), fed(Series(counter=True), readings_by_hour)
    saved = Saved(before.pack(PARTS))
    after = Series(counter=True)
    after.look(np.zeros(0), 10 * HOUR)
    order = [PARTS[2], Component(cluster="c", node="n9", gpu=0), PARTS[0]]
    saved.give(after, order[:1], 0)
    saved.give(after, order, 1)
    fed(after, {12: [1, 3, 12], 18: [1, 3, 18]})
    fed(whole, {12: [12, 7, 1], 18: [18, 7, 1]})
    for row, part in ((0, 2), (2, 0)):
        np.testing.assert_allclose(after.series(ROWS)[:, row], whole.series(ROWS)[:, part], equal_nan=True)
    assert known(after, 1) == []
    assert len(saved) == 1


@pytest.mark.parametrize("packed", [b"", b"nonsense", Series(counter=True).pack([])[:-3]])
def test_unreadable_trends_are_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="no series"):
        Saved(packed)
