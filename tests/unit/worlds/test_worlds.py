"""Drawn worlds: the same generator gives the same world, and what is called slow or faultless is so."""

import numpy as np
import pytest

from benchmarks._worlds import metrics, step_times
from benchmarks._worlds.step_times import NOISES, RANKS_PER_NODE, StepWorld, node_mean


def _world(noise: str, seed: int, slow: float | None, **settings: object) -> StepWorld:
    chosen = {"onset": 0, "nodes": 16, "steps": 1200, **settings}
    return step_times.draw(np.random.default_rng(seed), noise, slow=slow, **chosen)  # type: ignore[arg-type]


def _excess(world: StepWorld, first: int = 0) -> np.ndarray:
    """(nodes,): the long mean against the median of the peers of the same step."""
    times = node_mean(world.compute_s)[first:]
    times = times[np.isfinite(times).any(axis=1)]
    return np.nanmean(times / np.nanmedian(times, axis=1, keepdims=True), axis=0) - 1


@pytest.mark.parametrize("noise", NOISES)
def test_a_fault_free_job_holds_no_slow_node(noise: str) -> None:
    for seed, step_s in enumerate(step_times.STEP_LENGTHS_S):
        world = _world(noise, seed, None, step_s=step_s)
        assert world.slow_node is None
        assert not world.slowdown.any()
        assert _excess(world).max() < 0.02


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("shape", step_times.SHAPES)
def test_the_slow_node_is_slow_from_its_onset(noise: str, shape: str) -> None:
    world = _world(noise, 7, 0.15, onset=400, shape=shape)
    assert world.slow_node is not None
    assert world.slowdown[:400].max() == 0
    assert world.slowdown[400:].max() == pytest.approx(0.15)
    assert _excess(world, 400).argmax() == world.slow_node
    assert _excess(world, 400)[world.slow_node] > 0.03


@pytest.mark.parametrize("noise", NOISES)
def test_a_node_slow_from_the_start_was_slow_before(noise: str) -> None:
    worlds = [_world(noise, seed, 0.1, steps=50) for seed in range(12)]
    seen = 0
    for world in worlds:
        past = node_mean(world.history_s)
        past = past[:, np.isfinite(past).any(axis=0)]
        if len(past) < 100 or past.shape[1] < 16:
            continue
        seen += 1
        ratio = np.nanmean(past / np.nanmedian(past, axis=1, keepdims=True), axis=0)
        assert ratio[world.slow_node] > 1.05
    assert seen > 0


def test_shapes_and_an_unknown_noise() -> None:
    world = _world("unequal", 3, None)
    ranks = 16 * RANKS_PER_NODE
    assert world.compute_s.shape == (1200, ranks)
    assert world.history_s.shape[1] == ranks
    assert world.step_wall_s.shape == (1200,)
    assert node_mean(world.compute_s).shape == (1200, 16)
    assert np.nanmin(world.compute_s) > 0
    with pytest.raises(ValueError, match="'loud'"):
        _world("loud", 0, None)


@pytest.mark.parametrize("noise", NOISES)
def test_step_times_follow_the_generator_alone(noise: str) -> None:
    first, second, other = (_world(noise, seed, 0.1) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first.compute_s, second.compute_s)
    assert first.happened == second.happened
    assert not np.array_equal(first.compute_s, other.compute_s, equal_nan=True)


@pytest.mark.parametrize("kind", metrics.KINDS)
def test_metrics_are_labelled_within_the_test_part(kind: str) -> None:
    series = [metrics.draw(np.random.default_rng(seed), kind) for seed in range(24)]
    for drawn in series:
        columns = len(drawn.features)
        assert drawn.train.shape[1] == drawn.test.shape[1] == columns
        assert len(drawn.events) == len(drawn.what)
        ends = [0, *(end for _, end in drawn.events)]
        for (begin, end), before in zip(drawn.events, ends, strict=False):
            assert before <= begin < end <= len(drawn.test)
            assert np.isfinite(drawn.test[begin:end]).all()
        if kind == "short":
            assert 150 <= len(drawn.train) + len(drawn.test) <= 400
    assert 0 < sum(not drawn.events for drawn in series) < 16
    assert 4 < sum(bool(drawn.past) for drawn in series) < 20


@pytest.mark.parametrize("kind", metrics.KINDS)
def test_metrics_follow_the_generator_alone(kind: str) -> None:
    first, second = (metrics.draw(np.random.default_rng(9), kind) for _ in range(2))
    np.testing.assert_array_equal(first.train, second.train)
    np.testing.assert_array_equal(first.test, second.test)
    assert first.events == second.events


def test_an_unknown_kind_of_metrics() -> None:
    with pytest.raises(ValueError, match="'weather'"):
        metrics.draw(np.random.default_rng(0), "weather")
