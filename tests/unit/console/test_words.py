from datetime import UTC, datetime, timedelta

import pytest

from healer.console import words

NOW = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0 s"), (0, "0 ms"), (0.0124, "12 ms"), (3.5, "3.50 s"), (12.9, "12 s"), (60, "1 min"),
        (3599, "59 min"),
        (3600, "1 h"), (12_000, "3 h 20 min"), (86_400, "1 d"), (5 * 86_400 + 7_300, "5 d 2 h"),
    ],
)  # fmt: skip
def test_span(seconds: float, text: str) -> None:
    assert words.span(seconds) == text


def test_ago_looks_both_ways() -> None:
    assert words.ago(NOW - timedelta(seconds=250), NOW) == "4 min ago"
    assert words.ago(NOW + timedelta(minutes=19, seconds=2), NOW) == "in 19 min"
    assert words.ago(NOW - timedelta(milliseconds=400), NOW) == "just now"


def test_offset_keeps_milliseconds_for_the_first_minute() -> None:
    assert words.offset(NOW + timedelta(milliseconds=32), NOW) == "+0.032 s"
    assert words.offset(NOW - timedelta(milliseconds=1200), NOW) == "−1.200 s"
    assert words.offset(NOW + timedelta(seconds=75), NOW) == "+1 min 15 s"


def test_times_of_another_zone_are_shown_in_utc() -> None:
    there = NOW.astimezone(tz=None)
    assert words.clock_ms(there) == "03:00:00.000"
    assert words.utc(there) == "2026-11-20 03:00:00 UTC"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1_000, "1.0 kB"), (18_531, "18.5 kB"), (67_108_864, "67.1 MB"),
     (999_600, "1.0 MB"), (250_000_000, "250 MB")],
)  # fmt: skip
def test_sizes_are_for_people(count: int, text: str) -> None:
    assert words.size(count) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [("a fan failed", "A fan failed"), ("gpu0007 is out", "gpu0007 is out"), ("", "")],
)
def test_a_sentence_begins_with_a_capital_and_a_name_as_it_is(text: str, said: str) -> None:
    assert words.sentence(text) == said
