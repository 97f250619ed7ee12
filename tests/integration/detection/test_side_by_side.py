"""What is reckoned for many jobs at once is what each gives alone."""

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from healer.detection.streams import Streams, StreamStep, alike, medians, medians_of, side_by_side, step_all

pytestmark = pytest.mark.heavy

VALUES = st.one_of(st.just(float("nan")), st.floats(-1e6, 1e6, width=32))
ARRAYS = st.lists(hnp.arrays(np.float64, st.integers(0, 70), elements=VALUES), min_size=0, max_size=12)


@given(arrays=ARRAYS)
def test_medians_of_many_are_those_of_each(arrays: list[np.ndarray]) -> None:
    known = [one[~np.isnan(one)] for one in arrays]
    expected = [float(np.median(one)) if len(one) else np.nan for one in known]
    np.testing.assert_array_equal(medians_of(arrays), np.array(expected))


@given(lengths=st.lists(st.integers(0, 5000), max_size=40))
def test_those_side_by_side_leave_at_most_half_of_the_room_empty(lengths: list[int]) -> None:
    parts = list(alike(lengths))
    assert sorted(index for part in parts for index in part) == list(range(len(lengths)))
    for part in parts:
        own = [lengths[index] for index in part]
        assert sum(own) * 2 >= max(own) * len(own)


def test_a_row_ends_where_its_array_does() -> None:
    rows = side_by_side([np.array([1.0, 2.0]), np.array([3.0])], 3)
    np.testing.assert_array_equal(rows, [[1, 2, np.nan], [3, np.nan, np.nan]])
    np.testing.assert_array_equal(medians(rows), [1.5, 3])
    assert side_by_side([np.ones(2, np.float32)]).dtype == np.float32


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    sizes=st.lists(st.integers(1, 40), min_size=2, max_size=8),
)
def test_no_job_moves_another_one(seed: int, sizes: list[int]) -> None:
    """Jobs of all sizes, with steps missing from some or all ranks, and some slow ranks."""
    chance = np.random.default_rng(seed)
    together, alone = [Streams(n) for n in sizes], [Streams(n) for n in sizes]
    noise = chance.choice([0.004, 0.03, 0.12], len(sizes))
    for number in range(90):
        steps = []
        for job in np.flatnonzero(chance.random(len(sizes)) < 0.8).tolist():
            if number == 50:
                together[job].grow(sizes[job] + 3)
                alone[job].grow(sizes[job] + 3)
            x = noise[job] * chance.normal(size=len(alone[job]))
            x[0] += 0.5 * (60 < number < 75)
            x[chance.random(len(x)) < 0.1] = np.nan
            alone[job].step(x, 17_280, number)
            steps.append(StreamStep(together[job], x, 17_280, number))
        step_all(steps)
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_array_equal(one.state, other.state)
        assert (one.noise, one.threshold, one.wander, one.untried) == (
            other.noise, other.threshold, other.wander, other.untried
        )  # fmt: skip
        np.testing.assert_array_equal(one.score(), other.score())
