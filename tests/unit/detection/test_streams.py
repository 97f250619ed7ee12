"""Short median and CUSUM over many series: bias, noise, thresholds from a budget, and what is unknown."""

import numpy as np
import pytest

from healer.detection.streams import (
    CALM,
    NOISE_FLOOR,
    PATIENCE,
    PATIENCE_NOISY,
    PATIENCE_TOGETHER,
    PAUSE_MOST,
    THRESHOLD_LEAST,
    WARM_UP,
    Streams,
    StreamStep,
    step_all,
)

DAY = 17_280.0


def run(
    streams: Streams,
    steps: int,
    noise: float,
    shift: np.ndarray | float = 0.0,
    *,
    seed: int = 1,
    clumsy: float = 0.0,
    per_day: float = DAY,
) -> int | None:
    """The first step after which any is slow. `clumsy`: how much of a step's noise is the step's before."""
    random = np.random.default_rng(seed)
    n = len(streams.sum)
    before = np.zeros(n)
    for number in range(1, steps + 1):
        before = clumsy * before + np.sqrt(1 - clumsy**2) * random.normal(size=n)
        streams.step(noise * before + shift, per_day, number)
        if streams.slow.any():
            return number
    return None


def only(index: int, value: float, n: int = 64) -> np.ndarray:
    shift = np.zeros(n)
    shift[index] = value
    return shift


def test_the_first_steps_are_never_judged() -> None:
    assert run(Streams(64), WARM_UP, 0.004, only(3, 2.0)) is None
    found = WARM_UP + PATIENCE + 1
    assert run(Streams(64), found, 0.004, only(3, 2.0)) == found


def test_small_constant_shift_is_learnt_and_a_large_one_is_reported() -> None:
    streams = Streams(64)
    shift = only(3, 0.025)
    assert run(streams, 200, 0.004, shift) is None
    assert streams.bias()[3] == pytest.approx(0.025, abs=0.002)
    assert run(Streams(64), 200, 0.004, only(3, 0.06)) is not None


def test_little_is_learnt_from_noisy_steps() -> None:
    streams = Streams(64)
    assert run(streams, 40, 0.2, only(3, 0.02)) is None
    assert np.abs(streams.bias()).max() < 0.01


def test_the_noise_is_that_of_most_and_has_a_floor() -> None:
    streams = Streams(64)
    run(streams, 60, 0.05, only(3, 0.5))
    assert streams.noise == pytest.approx(0.05, rel=0.1)
    quiet = Streams(64)
    run(quiet, 60, 0.0001)
    assert quiet.noise == NOISE_FLOOR


def test_more_series_and_more_noise_need_more_evidence() -> None:
    quiet, few, many = Streams(16), Streams(16), Streams(4096)
    for streams, noise in ((quiet, 0.004), (few, 0.05), (many, 0.05)):
        run(streams, 60, noise)
    assert quiet.threshold == THRESHOLD_LEAST < few.threshold < many.threshold
    assert quiet.band.max() < few.band.min()


def test_steps_that_resemble_each_other_count_for_less() -> None:
    apart, alike = Streams(64), Streams(64)
    run(apart, 400, 0.05)
    run(alike, 400, 0.05, clumsy=0.3)
    assert alike.wander > 1.3 > apart.wander
    assert alike.band.mean() > apart.band.mean()


def test_no_node_is_blamed_while_all_are_slow_and_scattered() -> None:
    """Storage: level and spread of all jump for minutes, and for each node in its own way."""
    random = np.random.default_rng(3)
    streams, own = Streams(32), 0.03 * random.normal(size=32)
    for number in range(400):
        slow = 200 <= number < 320
        x = (0.06 if slow else 0.004) * random.normal(size=32) + own * slow
        step_all([StreamStep(streams, x, DAY, number, 1.7 if slow else 1.4)])
        assert not streams.slow.any(), number


@pytest.mark.parametrize("evaluations", [False, True])
def test_a_level_that_stays_is_the_usual_one(evaluations: bool) -> None:
    """Also where each 200 steps one, of an evaluation, is shorter."""
    random, streams = np.random.default_rng(4), Streams(32)
    found = []
    for number in range(PAUSE_MOST + 200):
        x = 0.004 * random.normal(size=32) + only(3, 0.1, 32) * (number >= 120)
        level = 1.0 if evaluations and number % 200 == 0 else 1.7 if number >= 100 else 1.4
        step_all([StreamStep(streams, x, DAY, number, level)])
        found.append(streams.slow[3])
    assert found.index(True) == pytest.approx(100 + PAUSE_MOST + PATIENCE, abs=20)
    assert all(found[found.index(True) :])


def trusted(n: int = 64) -> Streams:
    """Of a job that had no hiccup for a day, as far as that counts."""
    streams = Streams(n)
    streams.untried = 120
    assert run(streams, 120 + WARM_UP, 0.002) is None
    assert streams.untried == 0
    return streams


def test_a_job_waits_longer_than_hiccups_last_until_it_had_none_for_a_day() -> None:
    streams = trusted(32)

    def steps(count: int, value: float) -> list[bool]:
        random = np.random.default_rng(5)
        found = []
        for _ in range(count):
            streams.step(0.004 * random.normal(size=32) + only(3, value, 32), DAY, streams.steps)
            found.append(bool(streams.slow.any()))
        return found

    assert steps(5, 0.06) == [False, False, True, True, True]
    assert not steps(30, 0)[-1]
    assert CALM - 60 < streams.untried <= CALM
    assert not any(steps(PATIENCE, 0.06)), "as long as a hiccup"
    steps(30, 0)
    assert steps(PATIENCE + 2, 0.06).index(True) == PATIENCE


def test_a_job_that_was_not_watched_for_long_has_to_show_it_for_longer() -> None:
    streams = Streams(64)
    assert run(streams, 300, 0.004) is None
    assert streams.untried == CALM - 300 + WARM_UP
    assert run(streams, 20, 0.004, only(3, 0.06)) == PATIENCE + 1


def test_earlier_slowness_does_not_count_towards_a_hiccup() -> None:
    """The network slows four nodes for a while; after its recovery one of them has a hiccup."""
    streams, four = Streams(64), only(3, 0.045) + only(9, 0.045) + only(20, 0.045) + only(33, 0.045)
    assert run(streams, 60, 0.004) is None
    assert run(streams, 12, 0.004, four) is None
    assert run(streams, PATIENCE - 3, 0.004, only(3, 0.2), seed=2) is None
    assert run(streams, 20, 0.004, only(3, 0.2), seed=3) is not None


def test_a_hiccup_in_noise_that_was_high_before_is_no_slowness() -> None:
    streams = Streams(32)
    assert run(streams, 200, 0.03) is None
    assert run(streams, 14, 0.03, only(3, 0.07, 32)) is None
    assert run(streams, 5, 0.03, only(3, 0.4, 32)) is None
    assert run(streams, 20, 0.03) is None


@pytest.mark.parametrize(("share", "found"), [(0.025, PATIENCE_NOISY + 1), (0.06, 3), (0.5, PATIENCE + 1)])
def test_small_slowness_can_wait_and_large_slowness_may_pass(share: float, found: int) -> None:
    assert run(trusted(), 60, 0.002, only(3, share)) == found


@pytest.mark.parametrize(
    ("step_s", "steps"), [(5, PATIENCE_NOISY), (7, 26), (10, PATIENCE_NOISY / 2), (60, PATIENCE_NOISY / 2)]
)
def test_a_slowness_hidden_by_noise_lasts_three_minutes_or_half_as_many_steps(
    step_s: float, steps: float
) -> None:
    """The noise is that of ranks with unequal work; the slowness is plain by its height, so it could be found
    sooner."""
    streams = Streams(64)
    assert run(streams, 400, 0.05, per_day=86_400 / step_s) is None
    assert run(streams, 100, 0.05, only(3, 0.15), per_day=86_400 / step_s) == pytest.approx(steps + 1, abs=2)


def test_three_nodes_that_become_slow_together_share_a_cause() -> None:
    shift = only(3, 0.06) + only(9, 0.06) + only(20, 0.06)
    for group, found in ((None, PATIENCE_TOGETHER + 1), (np.arange(64) // 32, 3)):
        streams = trusted()
        streams.group = group
        assert run(streams, 80, 0.004, shift) == found


def test_a_series_that_was_fast_and_is_like_the_others_now_is_well() -> None:
    streams = Streams(64)
    run(streams, 300, 0.004, only(3, -0.03))
    assert run(streams, 300, 0.004) is None


def test_large_constant_distance_is_slow_and_a_small_one_is_not() -> None:
    streams = Streams(32)
    assert run(streams, 200, 0.004, only(3, 0.02, 32)) is None
    assert run(Streams(32), 20, 0.004, only(3, 0.10, 32)) is not None


def test_a_series_that_recovers_is_clear_again() -> None:
    streams = Streams(64)
    run(streams, 130, 0.004)
    assert run(streams, 10, 0.004, only(3, 0.07)) == PATIENCE + 1
    assert not streams.clear()[3]
    for number in range(20):
        streams.step(np.zeros(64), DAY, number)
    assert not streams.slow.any()
    assert streams.clear().all()


def test_missing_values_are_neither_slow_nor_clear() -> None:
    streams = Streams(64)
    shift = only(3, np.nan)
    run(streams, 60, 0.004, shift)
    assert not streams.slow[3]
    assert not streams.clear()[3]
    assert streams.clear()[4]


def test_fewer_than_four_known_say_nothing() -> None:
    x = np.full(64, np.nan)
    x[:3] = (0.0, 0.0, 5.0)
    streams = Streams(64)
    for number in range(50):
        streams.step(x, DAY, number)
    assert not streams.slow.any()
    assert streams.sum.max() == 0


def test_series_that_come_later_are_learnt_from_then_on() -> None:
    streams = Streams(32)
    run(streams, 60, 0.004)
    streams.grow(64)
    assert run(streams, 100, 0.004) is None
    assert run(streams, PATIENCE + 1, 0.004, only(40, 0.07)) is not None


@pytest.mark.parametrize(("noise", "slow"), [(0.004, 0.05), (0.03, 0.08), (0.12, 0.4)])
def test_every_size_of_noise_has_its_size_of_slowness(noise: float, slow: float) -> None:
    streams = Streams(64)
    assert run(streams, 300, noise) is None
    assert run(streams, 40, noise, only(9, np.log1p(slow)), seed=2) is not None
    assert streams.slow.nonzero()[0].tolist() == [9]


def test_the_more_series_the_sooner_it_is_known_that_noise_does_not_wander() -> None:
    many, few, wandering = Streams(256), Streams(8), Streams(256)
    run(many, 80, 0.12)
    run(few, 80, 0.12)
    run(wandering, 80, 0.12, clumsy=0.9)
    assert many.wander < 1.3
    assert few.wander > 1.5
    assert wandering.wander > 5
