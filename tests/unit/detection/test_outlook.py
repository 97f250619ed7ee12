"""Where a trend leads: found where there is one, silent on noise, and about right in time."""

import numpy as np
import pytest

from healer.detection.outlook import outlook

DAYS = np.arange(56) * 0.25


def of(values: np.ndarray, limit: float, **more: bool):
    return outlook(values[:, np.newaxis], 0.25, limit, **more)


def test_a_straight_line_meets_its_limit_when_it_should() -> None:
    seen = of(2 * DAYS, 2 * DAYS[-1] + 6).at(0)
    assert (seen.per_day, seen.level) == pytest.approx((2, 2 * DAYS[-1]))
    assert seen.days == pytest.approx(3) and seen.low == pytest.approx(3) and seen.high == pytest.approx(3)


def test_falling_values_are_the_same_upside_down() -> None:
    up, down = of(2 * DAYS, 40.0).at(0), of(-2 * DAYS, -40.0, falls=True).at(0)
    assert (down.level, down.per_day) == (-up.level, -up.per_day)
    assert (down.days, down.low, down.high) == (up.days, up.low, up.high)


def test_growth_that_began_three_days_ago_counts_from_then() -> None:
    """By all two weeks the slope would be near nothing."""
    values = np.maximum(0.0, (DAYS - DAYS[-1] + 3) * 4)
    assert of(values, 24.0).at(0).days == pytest.approx(3, abs=0.3)


def test_the_range_holds_the_truth_in_noise() -> None:
    rng = np.random.default_rng(7)
    values = (DAYS[:, np.newaxis] + rng.normal(0, 1.0, (56, 400)))[:, :]
    seen = outlook(values, 0.25, DAYS[-1] + 5)
    has_value = np.isfinite(seen.days)
    assert has_value.mean() > 0.95
    assert np.mean((seen.low <= 5) & (seen.high >= 5)) > 0.8


@pytest.mark.parametrize("kind", ["white", "counts", "constant", "spike"])
def test_series_without_a_trend_give_no_forecast(kind: str) -> None:
    rng = np.random.default_rng(11)
    values = {
        "white": rng.normal(0, 1, (56, 3000)),
        "counts": rng.poisson(0.3, (56, 3000)).astype(float),
        "constant": np.full((56, 3), 4.0),
        "spike": np.where(np.arange(56)[:, np.newaxis] == 40, 1e6, rng.normal(0, 1, (56, 100))),
    }[kind]
    assert not np.isfinite(outlook(values, 0.25, 3.0).days).any()


def test_few_known_points_are_no_trend() -> None:
    values = np.full(56, np.nan)
    values[-9:] = np.arange(9)
    assert np.isnan(of(values, 12.0).days[0])
    values[-12:] = np.arange(12)
    values[-8:-3] = np.nan  # 7 of 12
    assert np.isnan(of(values, 15.0).days[0])


def test_at_its_limit_is_now() -> None:
    assert of(2 * DAYS, 5.0).at(0).days == 0


def test_a_wild_point_moves_neither_slope_nor_verdict() -> None:
    values = 2 * DAYS
    values[50] = 1e9
    assert of(values, 2 * DAYS[-1] + 6).at(0).days == pytest.approx(3, abs=0.05)
