"""The plain score of step times: what the detector calls slow, on bare arrays."""

from datetime import timedelta

import numpy as np
import pytest

from healer.detection.stragglers import Stragglers, score, score_all
from healer.detection.streams import PATIENCE
from healer.observations.steps import StepTimes
from tests.support.looks import look
from tests.support.steps import CLUSTER, START, batch, slurm


def times(steps: int, nodes: int = 32, noise: float = 0.004, seed: int = 1) -> np.ndarray:
    return 4.0 * np.exp(noise * np.random.default_rng(seed).normal(size=(steps, nodes)))


def slow(found: np.ndarray) -> list[int]:
    return np.flatnonzero((found >= 1).any(axis=0)).tolist()


def first(found: np.ndarray, node: int) -> int:
    return int(np.argmax(found[:, node] >= 1))


def test_the_slow_node_alone_soon_and_as_long_as_it_is() -> None:
    x = times(600)
    x[300:400, 7] *= 1.05
    found = score(x[:200], x[200:])
    assert slow(found) == [7]
    assert first(found, 7) == 100 + PATIENCE
    assert (found[109:200, 7] >= 1).all()
    assert (found[240:, 7] < 1).all()


def test_noise_of_unequal_work() -> None:
    x = times(1200, noise=0.12)
    x[400:, 7] *= 1.10
    found = score(x[:300], x[300:])
    assert slow(found) == [7]
    assert first(found, 7) - 100 <= 80


def test_few_workers_on_shared_machines() -> None:
    drawn = np.stack([times(400, nodes=8, noise=0.04, seed=seed) for seed in range(30)])
    drawn[:, 300:, 2] *= 1.21
    found = score_all([(x[:200], x[200:]) for x in drawn])
    assert [slow(of_job) for of_job in found] == [[2]] * 30
    after = [first(of_job, 2) - 100 for of_job in found]
    assert np.median(after) <= 15
    assert max(after) <= 50


def test_rank_that_was_always_slow_is_found() -> None:
    x = times(60)
    x[:, 7] *= 2.35
    found = score(x[:20], x[20:])
    assert slow(found) == [7]
    assert (found[20:, 7] >= 1).all()


@pytest.mark.parametrize("steps", [0, 1, 20, 200])
@pytest.mark.parametrize("noise", [0.004, 0.12])
def test_rank_slow_by_a_tenth_from_the_first_step_is_found_with_any_history(steps: int, noise: float) -> None:
    x = times(400, noise=noise, seed=2)
    x[:, 7] *= 1.10
    assert slow(score(x[:steps], x[steps:])) == [7]


def test_stages_of_unequal_length_are_their_nature() -> None:
    x = times(300, noise=0.02)
    x[:, 16:] *= 1.5
    x[200:, 20] *= 1.1
    found = score(x[:100], x[100:])
    assert slow(found) == [20]


def test_one_long_step_and_a_slow_job_are_no_nodes_fault() -> None:
    x = times(400)
    x[150, 3] *= 1.1
    x[200:300] *= 3
    x[250, :] = np.nan
    assert slow(score(x[:100], x[100:])) == []


def test_shared_cause_blames_no_node() -> None:
    x = times(400)
    x[200:, :9] *= 1.2
    assert slow(score(x[:100], x[100:])) == []


def test_a_score_depends_on_nothing_that_comes_after() -> None:
    x = times(300)
    x[150:, 7] *= 1.05
    whole = score(x[:50], x[50:])
    np.testing.assert_array_equal(score(x[:50], x[50:180]), whole[:130])


def test_without_history_it_learns_as_it_goes() -> None:
    x = times(100)
    x[50:, 7] *= 1.1
    assert slow(score(np.zeros((0, 32)), x)) == [7]


@pytest.mark.parametrize("nodes", [0, 1, 2, 3])
def test_too_few_have_no_peers(nodes: int) -> None:
    x = times(50, nodes=nodes)
    x[20:, :1] *= 3
    assert slow(score(x[:10], x[10:])) == []


def test_rank_with_unknown_times_is_not_slow() -> None:
    x = times(200)
    x[100:, 5], x[:, 6], x[120] = np.nan, np.inf, 0.0
    x[150:, 7] *= 1.1
    found = score(x[:50], x[50:])
    assert np.isfinite(found).all()
    assert slow(found) == [7]


def test_a_wrong_shape_is_said() -> None:
    with pytest.raises(ValueError, match=r"history has shape \(3,\)"):
        score(np.ones(3), np.ones((3, 4)))
    with pytest.raises(ValueError, match="stream has 4 nodes, history has 3"):
        score(np.ones((3, 3)), np.ones((3, 4)))


def test_the_detector_calls_the_same_gpu_at_the_same_step() -> None:
    x = times(120, nodes=64, seed=5)
    x[80:, 11] *= 1.04
    steps, detector, called = StepTimes(CLUSTER), Stragglers(), None
    for number, compute in enumerate(x):
        at = START + timedelta(seconds=5 * number + 6)
        steps.update([batch(number + 1, compute)], slurm(8), at)
        if detector.tick(look(at, steps=steps, slurm=slurm(8))).findings and called is None:
            called = number
    assert called is not None
    assert first(score(x[:0], x), 11) == called
