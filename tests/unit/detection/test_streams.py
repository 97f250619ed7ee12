"""Short median and CUSUM over many series: bias, noise, thresholds from a budget, and what is unknown."""

import numpy as np
import pytest

from healer.detection.streams import BIAS_MAX, LEARNT, NOISE_FLOOR, THRESHOLD_LEAST, WARM_UP, Streams

DAY = 17_280.0


def run(
    streams: Streams,
    steps: int,
    noise: float,
    shift: np.ndarray | float = 0.0,
    *,
    seed: int = 1,
    clumsy: float = 0.0,
) -> int | None:
    """The first step after which any is slow. `clumsy`: how much of a step's noise is the step's before."""
    random = np.random.default_rng(seed)
    n = len(streams.sum)
    before = np.zeros(n)
    for number in range(1, steps + 1):
        before = clumsy * before + np.sqrt(1 - clumsy**2) * random.normal(size=n)
        streams.step(noise * before + shift, DAY, number)
        if streams.slow.any():
            return number
    return None


def only(index: int, value: float, n: int = 64) -> np.ndarray:
    shift = np.zeros(n)
    shift[index] = value
    return shift


def test_the_first_steps_are_never_judged() -> None:
    assert run(Streams(64), WARM_UP, 0.004, only(3, 2.0)) is None
    assert run(Streams(64), WARM_UP + 3, 0.004, only(3, 2.0)) == WARM_UP + 3


def test_what_a_series_always_was_is_learnt_and_more_than_that_is_not() -> None:
    streams = Streams(64)
    shift = only(3, 0.025)
    assert run(streams, 200, 0.004, shift) is None
    assert streams.bias()[3] == pytest.approx(0.025, abs=0.002)
    assert run(Streams(64), 200, 0.004, only(3, 0.06)) is not None


def test_little_is_learnt_from_noisy_steps() -> None:
    streams = Streams(64)
    assert run(streams, LEARNT, 0.2, only(3, 0.02)) is None
    assert np.abs(streams.bias()).max() < 0.01
    assert (streams.bias() <= BIAS_MAX).all()


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
    apart, alike = Streams(256), Streams(256)
    run(apart, 300, 0.05)
    run(alike, 300, 0.05, clumsy=0.7)
    assert alike.band.mean() > 1.5 * apart.band.mean()


def test_a_series_that_recovers_is_clear_again() -> None:
    streams = Streams(64)
    run(streams, 60, 0.004)
    assert run(streams, 10, 0.004, only(3, 0.1)) == 3
    assert streams.since[3] == 60
    assert not streams.clear()[3]
    for number in range(20):
        streams.step(np.zeros(64), DAY, number)
    assert not streams.slow.any()
    assert streams.clear().all()


def test_what_is_not_told_is_neither_slow_nor_clear() -> None:
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
    assert run(streams, 5, 0.004, only(40, 0.1)) is not None


@pytest.mark.parametrize(("noise", "slow"), [(0.004, 0.05), (0.03, 0.08), (0.12, 0.4)])
def test_every_size_of_noise_has_its_size_of_slowness(noise: float, slow: float) -> None:
    streams = Streams(64)
    assert run(streams, 300, noise) is None
    assert run(streams, 40, noise, only(9, np.log1p(slow)), seed=2) is not None
    assert streams.slow.nonzero()[0].tolist() == [9]
