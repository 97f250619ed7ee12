"""Windows of 5 s slots: what they keep, and when they forget it."""

import numpy as np
import pytest

from healer.observations.rings import SLOT_S, SLOTS, Rings, slot_of


def rings(*, counters: bool = False, rows: int = 2) -> Rings:
    made = Rings(counters=counters)
    made.add("one")
    made.reserve(rows)
    return made


def put(into: Rings, at_s: float, value: float, *, row: int = 0, signal: int = 0) -> tuple[int, int]:
    into.advance(slot_of(at_s))
    return into.put(np.array([signal]), np.array([row]), np.array([value]), np.array([at_s]))


def of_row(of: Rings, slots: int, end: int, *, row: int = 0) -> list[float | None]:
    found = of.window(0, 2, slots, end)[:, row]
    return [None if np.isnan(one) else float(one) for one in found]


def test_a_slot_keeps_the_last_value_of_a_gauge() -> None:
    made = rings()
    for at_s, value in ((0, 1), (4.9, 2), (5, 3), (15, 4)):
        put(made, at_s, value)
    assert of_row(made, 4, 3) == [2, 3, None, 4]


def test_a_slot_that_comes_round_again_is_empty() -> None:
    made = rings()
    put(made, 0, 7)
    put(made, SLOTS * SLOT_S, 8)
    assert of_row(made, SLOTS, SLOTS) == [None] * (SLOTS - 1) + [8]


def test_the_next_slot_is_emptied_for_all_rows_when_one_writes_into_it() -> None:
    made = rings()
    for slot in range(SLOTS):
        put(made, slot * SLOT_S, slot)
    put(made, SLOTS * SLOT_S, 7, row=1)
    assert of_row(made, 2, SLOTS) == [SLOTS - 1, None]


def test_a_fleet_that_grows_by_one_row_takes_an_eighth_more_room() -> None:
    made = rings(rows=800)
    made.reserve(801)
    assert made.rows == 900


@pytest.mark.parametrize("later", [SLOTS - 1, SLOTS, SLOTS + 1, 1000 * SLOTS])
def test_time_alone_empties_the_ring_and_at_most_the_whole_of_it(later: int) -> None:
    made = rings()
    put(made, 0, 7)
    assert of_row(made, SLOTS, later) == [7 if later < SLOTS else None] + [None] * (SLOTS - 1)


def test_a_window_may_end_in_the_past_and_reach_back_before_the_ring() -> None:
    made = rings()
    put(made, 0, 1)
    put(made, 10 * SLOT_S, 2)
    put(made, (SLOTS + 5) * SLOT_S, 3)
    assert of_row(made, 12, 10) == [None] * 11 + [2]
    assert of_row(made, 3, 2) == [None] * 3
    assert of_row(made, SLOTS, 2 - SLOTS) == [None] * SLOTS


def test_old_values_count_as_late_and_repeated_ones_as_out_of_order() -> None:
    made = rings()
    put(made, SLOTS * SLOT_S, 1)
    assert put(made, 4.9, 2, row=1) == (1, 0)
    assert put(made, 5, 2, row=1) == (0, 0)
    assert put(made, 5, 3, row=1) == (0, 1)
    assert put(made, 4.9, 3, row=1) == (1, 0), "one reason for each"


def test_growth_needs_two_values_and_says_how_long_it_was_watched() -> None:
    made = rings(counters=True)
    put(made, 0, 100)
    grew, seconds = made.growth(0, 2, 12, 0)
    assert np.isnan(grew).all()
    assert list(seconds) == [0, 0]
    put(made, 30, 160)
    grew, seconds = made.growth(0, 2, 12, slot_of(30))
    assert (grew[0], seconds[0]) == (60, 30)


def test_falling_counter_restarts_the_ring() -> None:
    made = rings(counters=True)
    for at_s, value in ((0, 100), (5, 110), (10, 4), (15, 6)):
        put(made, at_s, value)
    assert of_row(made, 4, 3) == [None, 10, None, 2]


@pytest.mark.parametrize(
    ("values", "growth"),
    [
        ((2, 0, 2, 2), 0),  # an exporter said 0 once
        ((2, 0, 0, 3), 0),  # above it by less than the fall
        ((2, 0, 0, 4), 4),  # so much more that it was a reset
        ((5, 2, 5, 2, 2, 5), 0),  # two senders that count apart
        ((5, 2, 5, 3, 5), 0),
        ((100, 0, 40, 60), 60),  # a reset, and on from there
        ((5, 3, 1, 5), 0),
        ((5, 0, 5, 6), 1),  # what grows after it came back
    ],
)
def test_counter_that_falls_and_returns_did_not_grow(values: tuple[float, ...], growth: float) -> None:
    made = rings(counters=True)
    for step, value in enumerate(values):
        put(made, 15 * step, value)
    assert made.growth(0, 2, SLOTS, slot_of(15 * len(values)))[0][0] == growth


def test_two_senders_of_one_counter_of_which_one_is_coarser_make_no_growth() -> None:
    made = rings(counters=True)
    for step in range(20):
        put(made, 15 * step, 523.456789123)  # ns, as DCGM reports it
        if step % 4 == 2:
            put(made, 15 * step + 1, 523.456789)  # µs, as nvidia-smi does
    assert made.growth(0, 2, SLOTS, slot_of(300))[0][0] == 0
    put(made, 300, 525)
    assert made.growth(0, 2, SLOTS, slot_of(300))[0][0] == pytest.approx(525 - 523.456789123, rel=1e-6)


def test_of_two_senders_the_one_that_is_a_little_behind_does_not_spoil_the_growth() -> None:
    made = rings(counters=True)
    for step in range(20):
        put(made, 15 * step, 1000 + 30 * step)
        put(made, 15 * step + 1, 1000 + 30 * step - 9)
    assert made.growth(0, 2, SLOTS, slot_of(300))[0][0] == 19 * 30


@pytest.mark.parametrize(
    ("values", "growth"),
    [((100, 99.5, 99.75), 0), ((100, 98, 98.25), 0.25), ((1000, 991, 993), 0), ((1000, 989, 993), 4)],
)
def test_only_a_fall_by_a_unit_and_by_a_hundredth_is_a_reset(
    values: tuple[float, ...], growth: float
) -> None:
    made = rings(counters=True)
    for step, value in enumerate(values):
        put(made, 15 * step, value)
    assert made.growth(0, 2, 6, slot_of(30))[0][0] == growth


@pytest.mark.parametrize("seed", range(5))
def test_growth_is_the_sum_of_its_slots_in_any_order_of_reads_and_writes(seed: int) -> None:
    made, chance, now_s, rows = rings(counters=True), np.random.default_rng(seed), 0.0, 2
    values = np.zeros(50)
    for _ in range(600):
        now_s += float(chance.choice([0.0, 1.0, 7.0, 60.0, 1000.0], p=[0.3, 0.3, 0.3, 0.09, 0.01]))
        made.advance(slot_of(now_s))
        row = int(chance.integers(rows))
        values[row] += int(chance.integers(5))
        put(made, now_s - float(chance.choice([0, 0, 0, 30, 300])), values[row], row=row)
        if chance.random() < 0.01:
            made.forget(np.array([row]), now_s - 100)
        if chance.random() < 0.02 and rows < 40:
            rows += 3
            made.reserve(rows)
        slots, end = int(chance.integers(1, SLOTS + 1)), slot_of(now_s) - int(chance.integers(3))
        grew, _ = made.growth(0, rows, slots, end)
        window = made.window(0, rows, slots, end)
        expected = np.where(np.isnan(window).all(axis=0), np.nan, np.nansum(window, axis=0))
        np.testing.assert_array_equal(grew, expected)


def test_counter_that_returns_after_the_window_has_grown() -> None:
    made = rings(counters=True)
    for at_s, value in ((0, 2), (10, 0), (500, 0), (911, 2)):
        put(made, at_s, value)
    assert made.growth(0, 2, 1, slot_of(911))[0][0] == 2


def test_forgotten_rows_are_empty_up_to_the_moment_and_the_others_are_not() -> None:
    made = rings()
    for slot in range(4):
        put(made, slot * SLOT_S, slot)
        put(made, slot * SLOT_S, slot, row=1)
    made.forget(np.array([0]), 7.0)
    assert of_row(made, 4, 3) == [None, None, 2, 3]
    assert of_row(made, 4, 3, row=1) == [0, 1, 2, 3]
    assert made.last(0, 2)[0].tolist() == [3, 3]
    made.forget(np.array([0]), 15.0)
    assert np.isnan(made.last(0, 2)[0][0])


def test_forgotten_counter_restarts_and_one_reported_since_continues() -> None:
    made = rings(counters=True)
    for row, last_s in ((0, 10), (1, 20)):
        put(made, 0, 100, row=row)
        put(made, last_s, 110, row=row)
    made.forget(np.array([0, 1]), 15.0)
    for row in (0, 1):
        put(made, 25, 150, row=row)
    grew, _ = made.growth(0, 2, 6, 5)
    assert np.isnan(grew[0])
    assert grew[1] == 40


def test_values_closer_than_float32_resolution_still_differ() -> None:
    made = rings(counters=True)
    put(made, 0, 2.0**40)
    put(made, 5, 2.0**40 + 3)
    assert made.growth(0, 2, 2, 1)[0][0] == 3


def test_gap_of_more_than_fifteen_minutes_restarts_the_ring() -> None:
    for gap_s, expected in ((900, 50), (900.5, None)):
        made = rings(counters=True)
        put(made, 0, 0)
        put(made, gap_s, 50)
        assert of_row(made, 1, slot_of(gap_s)) == [expected]


def test_room_for_more_rows_and_signals_keeps_what_is_there() -> None:
    made = rings(counters=True)
    put(made, 0, 1)
    put(made, 5, 4)
    number = made.add("two")
    made.reserve(50)
    put(made, 10, 9)
    put(made, 10, 5, row=49, signal=number)
    assert of_row(made, 3, 2) == [None, 3, 5]
    last, _ = made.last(number, 50)
    assert last[49] == 5
    assert np.isnan(made.window(number, 50, 3, 2)).all()


def test_a_window_cannot_be_written_to() -> None:
    made = rings()
    put(made, 0, 1)
    with pytest.raises(ValueError, match="read-only"):
        made.window(0, 2, 1, 0)[0, 0] = 9
