"""The time of a line of a training's log, which has no zone."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from healer.commands.send_step_log import line_time


@pytest.fixture(autouse=True)
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def local(clock: str) -> datetime:
    return datetime.fromisoformat(f"2026-10-25 {clock}")


def utc(hour: int, minute: int = 0, second: int = 0) -> datetime:
    return datetime(2026, 10, 25, hour, minute, second, tzinfo=UTC)


@pytest.mark.parametrize(
    ("near", "expected"),
    [
        (None, utc(0, 30)),
        (utc(0, 30, 1), utc(0, 30)),  # just seen to be written, the first time
        (utc(1, 30, 1), utc(1, 30)),  # the second time
        (utc(0, 35), utc(0, 30)),  # the line before: a little disorder is no hour
        (utc(0, 59), utc(1, 30)),  # lines that are far apart
    ],
)
def test_an_hour_that_comes_twice_is_the_one_that_follows(near: datetime | None, expected: datetime) -> None:
    assert line_time(local("02:30:00"), near) == expected


@pytest.mark.parametrize("near", [None, utc(0), datetime(2026, 12, 1, tzinfo=UTC)])
def test_other_hours_come_once(near: datetime | None) -> None:
    assert line_time(local("01:59:59"), near) == utc(0) - timedelta(seconds=1)
    assert line_time(local("03:00:00"), near) == utc(2)


def test_a_line_that_was_seen_late_is_not_taken_for_one_of_the_hour_to_come() -> None:
    """A training that prints through a buffer: its lines come twenty minutes later."""
    seen = utc(0, 50)
    assert line_time(local("02:30:00"), seen, seen) == utc(0, 30)
    assert line_time(local("02:30:00"), utc(1, 50), utc(1, 50)) == utc(1, 30)
