"""What is left of something long, at its pace of late."""

from datetime import UTC, datetime, timedelta

import pytest

from healer.processes.scheduler import Pace, share_of

START = datetime(2026, 11, 1, tzinfo=UTC)


def test_nothing_is_said_before_the_pace_is_known() -> None:
    pace = Pace()
    assert pace.left_s(0.0, 0.0) is None
    assert pace.left_s(0.01, 1.0) is None
    assert pace.left_s(0.1, 10.0) == 90.0


def test_stalled_progress_has_no_pace() -> None:
    pace = Pace()
    assert [pace.left_s(0.5, float(second)) for second in range(0, 200, 20)] == [None] * 10


def test_the_pace_is_that_of_the_last_minute() -> None:
    pace = Pace()
    for second in range(0, 101, 10):
        pace.left_s(second / 1000, float(second))  # 0.001 a second
    left = [pace.left_s(0.1 + (second - 100) / 200, float(second)) for second in range(110, 201, 10)]
    assert left[-1] == pytest.approx(80.0)  # 0.4 at 0.005 a second


def test_a_share_lies_within_its_span() -> None:
    span = START, START + timedelta(days=10)
    assert [share_of(START + timedelta(days=day), span) for day in (-1, 0, 5, 11)] == [0.0, 0.0, 0.5, 1.0]
    assert share_of(START, (START, START)) == 0.0
