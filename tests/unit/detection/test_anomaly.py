"""The plain score of any machine's metrics: what it finds, what it leaves alone, and what it is given."""

import warnings
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from healer.detection.anomaly import CONFIRMED_WITHIN, ENDS_BELOW, SHORTEST_PAST, THRESHOLD, score

AT = 1500


def daily(n: int, seed: int = 1) -> np.ndarray:
    """A load with a rhythm and noise; a sample every five minutes."""
    noise = np.random.default_rng(seed).normal(size=n)
    return 50 + 20 * np.sin(2 * np.pi * np.arange(n) / 288) + 2 * noise


def split(x: np.ndarray, n: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    return x[:n], x[n:]


def flagged(x: np.ndarray, n: int = 2000) -> np.ndarray:
    return np.flatnonzero(score(*split(x, n)) >= THRESHOLD)


def spike(x: np.ndarray) -> None:
    x[2000 + AT] += 100


def dip(x: np.ndarray) -> None:
    x[2000 + AT : 2000 + AT + 20] -= 45


def shift(x: np.ndarray) -> None:
    x[2000 + AT :] += 60


def restless(x: np.ndarray) -> None:
    x[2000 + AT : 2000 + AT + 40] += np.random.default_rng(7).normal(size=40) * 15


def stuck(x: np.ndarray) -> None:
    x[2000 + AT : 2000 + AT + 120] = x[2000 + AT]


@pytest.mark.parametrize("fault", [spike, dip, shift, restless, stuck])
def test_a_fault_is_found_soon_and_nothing_else(fault) -> None:
    x = daily(5000)
    fault(x)
    at = flagged(x)
    assert len(at)
    assert AT <= at[0] < AT + 60
    assert at[-1] < AT + 700, "what has become usual is usual"


#: False alarms that may come in 10 days of a sample a minute (figures: `docs/detection.md`).
MAY_COME = {
    "white": 4, "rhythm": 2, "counts": 4, "constant": 0, "steps": 0, "heavy tails": 8, "walk": 3,
    "climbing": 2,
}  # fmt: skip


@pytest.mark.parametrize("kind", MAY_COME)
def test_false_alarms_by_kind_of_series(kind: str) -> None:
    random, n = np.random.default_rng(11), 16_400
    x = {
        "white": random.normal(size=n),
        "rhythm": daily(n),
        "heavy tails": random.standard_t(3, n),
        "climbing": np.arange(n) * 0.005 + random.normal(size=n),
        "walk": np.cumsum(random.normal(size=n)),
        "counts": random.poisson(2, n).astype(float),
        "constant": np.full(n, 7.0),
        "steps": np.where(np.arange(n) // 60 % 2, 1.0, -1.0),
    }[kind]
    at = flagged(x)
    events = 0 if not len(at) else 1 + int((np.diff(at) > 10).sum())
    assert events <= MAY_COME[kind]


def test_an_unheard_level_of_a_constant_is_news_once() -> None:
    x = np.full(4000, 7.0)
    x[3000:] = 8.0
    at = flagged(x)
    assert at[0] == 1000
    assert at[-1] < 1500


def related(n: int) -> np.ndarray:
    """Thirty metrics of five causes."""
    random = np.random.default_rng(5)
    causes = random.normal(size=(n, 5))
    for at in range(1, n):
        causes[at] += 0.9 * causes[at - 1]
    return causes @ random.normal(size=(5, 30)) + 0.3 * random.normal(size=(n, 30))


@pytest.mark.heavy
def test_a_broken_relation_is_found_though_each_value_is_usual() -> None:
    x = related(6000)
    before = score(x[:3000], x[3000:])
    assert (before >= THRESHOLD).sum() <= 2
    x[5000:5060, 3] = x[1000:1060, 3]
    found = score(x[:3000], x[3000:])
    np.testing.assert_array_equal(found[:2000], before[:2000])
    assert (found[2000:2060] >= THRESHOLD).any()


@pytest.mark.parametrize("fault", [dip, shift])
def test_a_fault_in_the_past_does_not_hide_the_next(fault) -> None:
    x = daily(5000)
    fault(x)
    x[700:800] += 90 if fault is shift else -90
    at = flagged(x)
    assert at[0] in range(AT, AT + 60)


def test_a_feature_that_no_longer_follows_another_is_found_within_its_range() -> None:
    demand, noise = np.random.default_rng(8).normal(size=(2, 5000))
    latency = demand + 0.2 * noise
    latency[3500:3560] = latency[3356:3416]
    found = score(*split(np.column_stack([demand, latency])))
    assert (found[AT : AT + 60] >= THRESHOLD).any()
    assert (score(*split(latency))[AT : AT + 60] < THRESHOLD).all()


def test_commands_are_context_and_never_news() -> None:
    random = np.random.default_rng(3)
    commands = (random.random((5000, 20)) < 0.02).astype(float)
    commands[:2000, 5] = 0  # never seen in training
    x = np.column_stack([daily(5000), commands])
    np.testing.assert_array_equal(score(*split(x)), score(*split(x[:, :1])))
    x[3500, 5] = 37.0  # no mark any more: a count
    assert score(*split(x))[1500] > THRESHOLD + 10


def test_signal_that_stops_following_its_command_is_an_anomaly() -> None:
    random = np.random.default_rng(6)
    command = (np.arange(5000) // 40 % 3 == 0).astype(float)
    x = np.column_stack([3 * command + 0.2 * random.normal(size=5000), command])
    x[3480:3520, 0] = 0.2 * random.normal(size=40)
    assert command[3480:3520].all()
    found = score(*split(x))
    assert (found[1480:1520] >= THRESHOLD).any()
    assert (found[:1480] < THRESHOLD).all()


def test_marks_alone_are_scored() -> None:
    marks = (np.random.default_rng(3).random((5000, 1)) < 0.02).astype(float)
    marks[3500:3600] = 1
    assert score(*split(marks))[1500:1600].max() >= THRESHOLD


def test_a_score_depends_on_nothing_that_comes_after() -> None:
    x = np.column_stack([daily(4000), related(4000)[:, :3]])
    train, test = x[:1000], x[1000:]
    whole = score(train, test)
    for upto in (1, 63, 64, 65, 500, 2999):
        np.testing.assert_allclose(score(train, test[:upto]), whole[:upto], rtol=1e-6, atol=1e-9)


def test_a_sample_alone_counts_for_less_and_is_seconded_by_the_next_ones() -> None:
    random = np.random.default_rng(12)
    x = random.normal(size=4000)
    alone, twice = x.copy(), x.copy()
    alone[3000] += 6
    twice[3000] += 6
    twice[3002] += 6
    once, more = score(alone[:2000], alone[2000:]), score(twice[:2000], twice[2000:])
    assert more[1002] > once[1000:1004].max()
    assert more[1002:1005].min() > score(x[:2000], x[2000:])[1002:1005].max()


def test_units_do_not_matter() -> None:
    x = related(3000)[:, :4]
    x[2500:2520, 2] += 30
    whole = score(x[:2000], x[2000:])
    other = x * [1e-9, 1e6, 1.0, 1e3] + [0.0, 1e6, 0.0, -5.0]
    np.testing.assert_allclose(score(other[:2000], other[2000:]), whole, rtol=1e-3, atol=1e-3)


def test_an_unknown_value_is_no_news() -> None:
    x = daily(5000)
    x[3400], x[3500:3503] = np.nan, np.inf
    found = score(*split(x))
    assert found[1395:1420].max() < THRESHOLD
    assert found[1495:1520].max() < THRESHOLD
    assert np.isfinite(score(np.full(50, np.nan), np.arange(50.0))).all()


@pytest.mark.parametrize("long", [12, 60, 200])
def test_a_gap_is_neither_a_still_value_nor_a_step(long: int) -> None:
    x = daily(5000)
    x[3500 : 3500 + long] = np.nan
    at = flagged(x)
    assert not len(at[(at >= 1490) & (at < 1500 + long + 100)])


@pytest.mark.parametrize("seed", [1, 2])
def test_a_machine_that_rests_is_less_unusual_than_a_sensor_that_is_frozen(seed: int) -> None:
    def resting(noise: float) -> float:
        random = np.random.default_rng(seed)
        x = daily(4000, seed)
        for begin in range(100, 2000, 300):
            x[begin : begin + 60] = 20 * (1 + noise * random.standard_normal(60))
        x[3000:3160] = 20 * (1 + noise * random.standard_normal(160))
        return float(score(*split(x))[1010:1160].max())

    assert resting(1e-4) < resting(0) - 0.2


@pytest.mark.parametrize("seed", [1, 2, 4])
def test_an_alarm_lasts_while_it_stays_unusual(seed: int) -> None:
    x = daily(5000, seed)
    x[3500:3740] += np.random.default_rng(7 + seed).normal(size=240) * 8
    scores = score(*split(x))
    alarms = np.flatnonzero(scores >= THRESHOLD)
    assert len(alarms)
    between = [scores[a:b].min() for a, b in pairwise(alarms) if b > a + 1]
    assert all(lowest < ENDS_BELOW for lowest in between)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_end_of_an_event_is_no_second_one(seed: int) -> None:
    x = 50 + 2 * np.random.default_rng(seed).normal(size=5000)
    x[3500:4100] += 30  # so long that it has become usual before it ends
    at = flagged(x)
    assert at[0] <= AT + 1
    assert not len(at[(at >= AT + 590) & (at < AT + 700)])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_level_within_the_usual_range_is_one_alarm_though_it_ends_with_a_step(seed: int) -> None:
    noise = np.random.default_rng(seed).normal(size=5000)
    x = 50 + 20 * np.sin(2 * np.pi * np.arange(5000) / 288) + 0.3 * noise
    x[3440:3728] += 9
    at = flagged(x)
    assert len(at)
    assert 1440 <= at[0] < 1445
    assert at[-1] < 1500, "the step back is no event of its own"


def test_the_same_twice() -> None:
    x = related(2000)
    assert (score(x[:900], x[900:]) == score(x[:900], x[900:])).all()


@pytest.mark.parametrize("seed", range(10))
def test_the_shortest_past_is_enough_to_begin(seed: int) -> None:
    x = daily(400, seed)
    x[350] += 300
    found = score(x[:SHORTEST_PAST], x[SHORTEST_PAST:])
    at = 350 - SHORTEST_PAST
    assert found[at] >= THRESHOLD
    assert found.argmax() in range(at, at + CONFIRMED_WITHIN)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 90), st.integers(0, 150), st.integers(1, 4), st.integers(0, 2**32),
    st.sampled_from([1e-300, 1e-9, 1.0, 1e12, 1e300]), st.sampled_from([0.0, 0.2, 1.0]),
)  # fmt: skip
def test_any_input_gets_a_score(
    n: int, m: int, features: int, seed: int, scale: float, unknown: float
) -> None:
    random = np.random.default_rng(seed)
    x = random.choice([-1.0, 0.0, 1.0, 2.5], (n + m, features)) * random.choice([0.0, 1.0, scale], features)
    x[random.random(x.shape) < unknown] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = score(x[:n], x[n:])
    assert found.shape == (m,)
    assert np.isfinite(found).all()
    assert (found >= 0).all()


@pytest.mark.parametrize(
    ("train", "test", "says"),
    [
        (np.zeros((0, 2)), np.zeros((3, 2)), "train has no samples"),
        (np.zeros((5, 2)), np.zeros((3, 1)), "test has 1 features, train has 2"),
        (np.zeros((5, 2, 1)), np.zeros((3, 2)), r"train has shape \(5, 2, 1\)"),
    ],
)
def test_a_wrong_shape_is_said(train: np.ndarray, test: np.ndarray, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        score(train, test)
