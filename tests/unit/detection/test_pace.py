"""A job that is slower than itself before, from whole step times."""

import math

from healer.detection.streams import BEFORE, BEFORE_LEAST, PACE_STEPS, WARM_UP, Pace


def after_steps(pace: Pace, seconds: list[float]) -> Pace:
    for value in seconds:
        pace.step(pace.steps + 1, value)
    return pace


def test_nothing_is_known_before_enough_steps_came() -> None:
    pace = after_steps(Pace(), [2.0] * (WARM_UP + PACE_STEPS + BEFORE_LEAST - 1))
    assert not pace.is_ready
    assert after_steps(pace, [2.0]).is_ready


def test_five_medians_in_a_row_above_ten_percent_are_slow() -> None:
    pace = after_steps(Pace(), [2.0] * 60)
    assert not after_steps(pace, [2.4] * (PACE_STEPS + 1)).slow
    assert after_steps(pace, [2.4]).slow
    assert (pace.since, pace.before_s, pace.now_s) == (61, 2.0, 2.4)


def test_nine_percent_are_not_slow_and_nor_are_single_long_steps() -> None:
    assert not after_steps(Pace(), [2.0] * 60 + [2.18] * 40).slow
    assert not after_steps(Pace(), ([2.0] * 8 + [9.0, 9.0]) * 20).slow


def test_baseline_is_frozen_while_slow_and_halfway_is_not_recovered() -> None:
    pace = after_steps(Pace(), [2.0] * 60 + [3.0] * (2 * BEFORE))
    assert pace.slow
    assert pace.before_s == 2.0
    assert after_steps(pace, [2.15] * 10).slow
    assert not after_steps(pace, [2.05] * 10).slow


def test_a_job_whose_steps_differ_a_lot_has_to_be_slower_by_more() -> None:
    uneven = [2.0, 2.6] * 40
    assert not after_steps(Pace(), uneven + [2.6] * 20).slow
    assert after_steps(Pace(), uneven + [4.0] * 20).slow


def test_times_that_cannot_be_are_passed_over() -> None:
    pace = after_steps(Pace(), [2.0] * 60 + [0.0, -1.0, math.nan] * 10)
    assert pace.now_s == 2.0
