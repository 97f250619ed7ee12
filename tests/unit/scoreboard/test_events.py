"""The score board's measure, against examples counted by hand."""

import numpy as np
import pytest

from benchmarks._scoreboard.events import Tally, alarms, judge


def on(text: str) -> np.ndarray:
    return np.array([letter == "x" for letter in text])


def test_alarms_close_to_each_other_are_one() -> None:
    alarms_on = on(".xx..x......x")
    assert alarms(alarms_on, 0) == [(1, 3), (5, 6), (12, 13)]
    assert alarms(alarms_on, 1) == [(1, 3), (5, 6), (12, 13)]
    assert alarms(alarms_on, 2) == [(1, 6), (12, 13)]
    assert alarms(alarms_on, 6) == [(1, 13)]
    assert alarms(on("...."), 3) == []


def test_one_event_found_late_one_missed_one_false_alarm() -> None:
    tally = judge([(12, 15), (40, 41)], [(10, 20), (60, 70)], days=2, early=0)
    assert (tally.events, tally.found, tally.alarms, tally.true_alarms) == (2, 1, 2, 1)
    assert (tally.precision, tally.recall, tally.f1) == (0.5, 0.5, 0.5)
    assert (tally.false_per_day, tally.delay) == (0.5, 2)


def test_two_alarms_in_one_event_find_it_once_at_the_first() -> None:
    tally = judge([(18, 19), (13, 14)], [(10, 20)], days=1, early=0)
    assert (tally.found, tally.true_alarms, tally.delays) == (1, 2, (3,))


def test_one_alarm_over_two_events_finds_both() -> None:
    tally = judge([(10, 40)], [(10, 12), (30, 35)], days=1, early=20)
    assert (tally.found, tally.alarms, tally.true_alarms, tally.delays) == (2, 1, 1, (0, 0))


def test_touching_is_not_overlapping() -> None:
    assert judge([(5, 10), (20, 25)], [(10, 20)], days=1, early=100).found == 0


def test_an_alarm_that_is_always_on_finds_nothing() -> None:
    tally = judge([(0, 1000)], [(500, 600), (800, 820)], days=1, early=60)
    assert (tally.found, tally.true_alarms, tally.f1) == (0, 0, 0.0)


def test_a_little_early_is_found_without_delay() -> None:
    tally = judge([(95, 130)], [(100, 120)], days=1, early=5)
    assert (tally.found, tally.delays) == (1, (0,))
    assert judge([(94, 130)], [(100, 120)], days=1, early=5).found == 0


def test_tallies_are_pooled_not_averaged() -> None:
    many = Tally(events=9, found=9, alarms=9, true_alarms=9, days=1, delays=(1,) * 9)
    bad = Tally(events=1, found=0, alarms=11, true_alarms=0, days=3)
    both = many + bad
    assert (both.recall, both.precision, both.false_per_day) == (0.9, 0.45, 11 / 4)


def test_no_reports_and_nothing_to_find() -> None:
    silent = judge([], [(1, 2)], days=1, early=0)
    assert (silent.precision, silent.recall, silent.f1, silent.delay) == (0.0, 0.0, 0.0, float("inf"))
    assert judge([], [], days=0, early=0).false_per_day == 0.0


def test_random_alarms_are_not_good() -> None:
    random = np.random.default_rng(4)
    alarms_found = alarms(random.random(10_000) < 0.01, 10)
    tally = judge(alarms_found, [(5000, 5100)], days=10_000 / 1440, early=60)
    assert tally.precision < 0.1
    assert tally.f1 == pytest.approx(2 * tally.precision * tally.recall / (tally.precision + tally.recall))
    assert tally.f1 < 0.1
