"""Stretches of steps: pauses end them, reading a report twice changes nothing."""

from datetime import UTC, datetime

import numpy as np
import pytest

from healer.model.goodput import Stretch
from healer.model.telemetry import StepBatch
from healer.observations.step_stretches import MOST_S, stretches

Step = tuple[int, int, float, float]  # number, rank, end, duration


def batch(*steps: Step) -> StepBatch:
    numbers, ranks, ends, spans = (np.array(column) for column in zip(*steps, strict=True))
    none, unset = np.full(len(steps), -1, np.int32), np.full(len(steps), np.nan)
    return StepBatch(
        "c", "1", 0, datetime(2026, 1, 1, tzinfo=UTC), (), ranks, numbers, ends, none, none, none, spans,
        *(unset,) * 6,
    )  # fmt: skip


def steps(first: int, count: int, begin: float, step_s: float = 2.0) -> list[Step]:
    return [(first + at, 0, begin + (at + 1) * step_s, step_s) for at in range(count)]


def plain(found: list[Stretch]) -> list[tuple[float, float, int, int]]:
    return [(each.begin.timestamp(), each.end.timestamp(), each.first, each.last) for each in found]


def test_steps_without_a_pause_are_one_stretch() -> None:
    assert plain(stretches(None, [batch(*steps(1, 20, 100))])) == [(100, 140, 1, 20)]


def test_a_pause_ends_a_stretch() -> None:
    sent = batch(*steps(1, 10, 100), *steps(11, 10, 121))
    assert plain(stretches(None, [sent])) == [(100, 120, 1, 10), (121, 141, 11, 20)]


def test_the_usual_time_between_steps_is_no_pause() -> None:
    sent = batch(*((number, 0, 100 + 3.0 * number, 2.0) for number in range(1, 11)))
    assert plain(stretches(None, [sent])) == [(101, 130, 1, 10)]


def test_a_step_lasts_from_its_first_to_its_last_rank() -> None:
    sent = batch((1, 0, 102, 2.0), (1, 1, 102.5, 2.0), (2, 0, 104.5, 2.0), (2, 1, 104.6, 2.0))
    assert plain(stretches(None, [sent])) == [(100, 104.6, 1, 2)]


def test_a_stretch_goes_on_with_the_next_report_and_reading_twice_changes_nothing() -> None:
    (last,) = stretches(None, [batch(*steps(1, 10, 100))])
    more = batch(*steps(8, 8, 114))
    (grown,) = stretches(last, [more])
    assert plain([grown]) == [(100, 130, 1, 15)]
    assert stretches(grown, [more]) == []


def test_a_log_of_every_tenth_step_covers_the_steps_between() -> None:
    sent = batch(*((number, 0, 100 + 2.0 * number, 2.0) for number in range(10, 60, 10)))
    assert plain(stretches(None, [sent])) == [(118, 200, 10, 50)]


def test_steps_that_are_made_again_are_a_stretch_of_their_own() -> None:
    sent = batch(*steps(1, 10, 100), *steps(6, 10, 300))
    assert plain(stretches(None, [sent])) == [(100, 120, 1, 10), (300, 320, 6, 15)]


def test_steps_without_numbers_are_counted_by_the_lowest_rank() -> None:
    sent = batch(*((-1, rank, 100 + 2.0 * at, 2.0) for at in range(1, 6) for rank in (3, 4)))
    (found,) = stretches(None, [sent])
    assert (found.first, found.steps, found.step_s) == (-1, 5, 2.0)


def test_a_long_stretch_is_cut() -> None:
    found = stretches(None, [batch(*steps(1, 400, 0))])
    assert max((each.end - each.begin).total_seconds() for each in found) <= MOST_S + 2
    assert sum(each.steps for each in found) == 400


@pytest.mark.parametrize("off_s", [-7.0, 3.0])
def test_a_rank_whose_host_has_another_clock_makes_no_step_twice(off_s: float) -> None:
    sent = batch(
        *steps(1, 20, 100), *((number, 1, end + off_s, took) for number, _, end, took in steps(1, 20, 100))
    )
    assert plain(stretches(None, [sent])) == [(100, 140, 1, 20)]


def wavering(first: int, count: int, begin: float, *, ranks: tuple[int, ...] = (0, 1)) -> list[Step]:
    """Steps of 0.2 s; the host of rank 1 is a step behind that of rank 0, now a little less, now more."""
    waver = np.random.default_rng(3).normal(0, 0.01, count)
    made = steps(first, count, begin, 0.2)
    return [
        (number, rank, end + rank * (0.2 + off), took)
        for (number, _, end, took), off in zip(made, waver, strict=True)
        for rank in ranks
    ]


def test_a_rank_that_wavers_about_one_step_behind_makes_no_step_twice() -> None:
    """A host runs ahead of its GPU, or its clock is off, by about a short step."""
    (found,) = stretches(None, [batch(*wavering(1, 200, 100))])
    assert (found.first, found.last) == (1, 200)
    assert plain([found])[0][1] == pytest.approx(140.1, abs=0.2)


def test_its_steps_that_are_made_again_still_are() -> None:
    """Of the first time, not every rank came to send its last steps."""
    died = [*wavering(1, 96, 100), *wavering(97, 4, 119.2, ranks=(0,))]
    found = stretches(None, [batch(*died, *wavering(51, 100, 125))])
    assert [(each.first, each.last) for each in found] == [(1, 100), (51, 150)]
