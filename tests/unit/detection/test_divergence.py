"""Ranks whose results differ and losses that jump are found; what training does anyway makes no finding."""

from collections.abc import Callable
from datetime import timedelta

import numpy as np
import pytest

from healer.detection.divergence import Divergence
from healer.model import Component, FaultClass, Finding
from healer.observations.steps import StepTimes
from tests.support.looks import UNMEASURED, look
from tests.support.steps import CLUSTER, START, batch, slurm

RANKS = 32
#: By step: the loss of all ranks, and the norm of the gradient.
StepFields = Callable[[int], dict[str, object]]


class Job:
    """A job on 4 nodes, a step and a tick every 5 s."""

    def __init__(self) -> None:
        self.steps, self.detector, self.number = StepTimes(CLUSTER), Divergence(), 0
        self.clear: dict = {}

    def run(self, count: int, step_fields: StepFields, watched: frozenset = frozenset()) -> list[Finding]:
        found: list[Finding] = []
        for _ in range(count):
            self.number += 1
            now = START + timedelta(seconds=5 * self.number + 1)
            one = batch(self.number, np.full(RANKS, 4.0), **step_fields(self.number))
            self.steps.update([one], slurm(4), now)
            sensed = self.detector.tick(look(now, steps=self.steps, slurm=slurm(4), watched=watched))
            found += sensed.findings
            self.clear = dict(sensed.clear_since)
        return found


def falling(step: int) -> float:
    return 2.0 + 8.0 / (1 + step / 20)


def shared(step: int) -> dict[str, object]:
    return {"loss": falling(step), "grad_norm": 1.5 + 0.1 * np.sin(step)}


def apart(ranks: slice | list[int], by: float = 1e-12) -> StepFields:
    def step_fields(step: int) -> dict[str, object]:
        norm = np.full(RANKS, 1.5 + 0.1 * np.sin(step))
        norm[ranks] += by
        return {"loss": falling(step), "grad_norm": norm}

    return step_fields


def test_a_rank_with_another_gradient_norm_is_named_with_its_gpu() -> None:
    job = Job()
    assert job.run(20, shared) == []
    (one,) = job.run(5, apart([13]))
    assert (one.fault, one.component) == ("result-differs", Component(cluster=CLUSTER, node="gpu0001", gpu=5))
    assert one.fault_class is FaultClass.degraded
    assert "since step 21" in one.text
    assert "gradient norm" in one.text


def test_one_step_proves_nothing() -> None:
    job = Job()
    job.run(20, shared)
    assert job.run(1, apart([13])) == []
    assert job.run(20, shared) == []


def test_several_ranks_of_a_node_mean_the_node() -> None:
    job = Job()
    job.run(20, shared)
    (one,) = job.run(3, apart(slice(8, 12)))
    assert one.component == Component(cluster=CLUSTER, node="gpu0001")
    assert "3 more" in one.text


@pytest.mark.parametrize("ranks", [slice(0, 16), slice(0, 10)])
def test_many_ranks_apart_are_no_nodes_fault(ranks: slice) -> None:
    job = Job()
    job.run(20, shared)
    assert job.run(10, apart(ranks)) == []


def test_a_loss_of_each_ranks_own_data_differs_always() -> None:
    random = np.random.default_rng(5)
    job = Job()
    assert job.run(60, lambda step: {"loss": falling(step) + 0.01 * random.normal(size=RANKS)}) == []


@pytest.mark.parametrize("value", [7.9, np.inf])
def test_a_rank_whose_own_loss_leaves_the_others_far_behind_is_named(value: float) -> None:
    random = np.random.default_rng(5)

    def local(step: int) -> dict[str, object]:
        loss = falling(step) + 0.05 * random.normal(size=RANKS)
        if step > 30:
            loss[13] = value
        return {"loss": loss}

    job = Job()
    assert job.run(32, local) == []
    (one,) = job.run(8, local)
    assert (one.fault, one.component.node, one.component.gpu) == ("result-differs", "gpu0001", 5)
    assert "the median of all ranks" in one.text


def test_two_hard_batches_of_a_rank_are_nothing() -> None:
    random = np.random.default_rng(5)

    def local(step: int) -> dict[str, object]:
        loss = falling(step) + 0.05 * random.normal(size=RANKS)
        loss[13] += 5.0 if step in (31, 32, 40, 41) else 0.0
        return {"loss": loss}

    assert Job().run(60, local) == []


def test_a_rank_that_differs_from_the_first_step_is_not_judged() -> None:
    """A trainer may log another thing on one rank by design."""
    job = Job()
    assert job.run(60, apart([0])) == []


def with_known_results() -> Job:
    """A job whose program has run before."""
    earlier, job = Job(), Job()
    earlier.run(20, shared)
    assert job.detector.load(earlier.detector.pack(UNMEASURED)) == []
    return job


def test_a_rank_that_differs_from_the_first_step_is_named_where_other_runs_agreed() -> None:
    job = with_known_results()
    (one,) = job.run(6, apart([13]))
    assert one.component == Component(cluster=CLUSTER, node="gpu0001", gpu=5)
    assert "in other runs of this program" in one.text


def test_result_that_ranks_do_not_share_in_one_run_is_never_compared() -> None:
    random = np.random.default_rng(5)
    job = with_known_results()
    assert job.run(10, lambda step: {"grad_norm": 1.5 + 0.01 * random.normal(size=RANKS)}) == []
    again = Job()
    again.detector.load(job.detector.pack(UNMEASURED))
    assert again.run(20, apart([13])) == []


def test_unreadable_results_of_other_runs_are_learnt_again() -> None:
    assert Divergence().load({"shared-results": b"{}"}) == ["shared-results"]


def test_it_clears_when_all_ranks_agree_again() -> None:
    job = Job()
    job.run(20, shared)
    (one,) = job.run(3, apart([13]))
    pair = (one.fault, one.component)
    job.run(2, apart([13]), frozenset({pair}))
    assert pair not in job.clear
    job.run(2, shared, frozenset({pair}))
    assert pair in job.clear


def test_returned_node_starts_over() -> None:
    job = Job()
    job.run(20, shared)
    assert len(job.run(3, apart([13]))) == 1
    job.detector.forget(UNMEASURED, "gpu0001", START)
    assert job.run(1, lambda step: {}) == []
    assert len(job.run(2, apart([13]))) == 1


def test_a_loss_that_jumps_names_the_job_and_no_node() -> None:
    random = np.random.default_rng(5)

    def noisy(step: int) -> dict[str, object]:
        return {"loss": falling(step) * (1 + 0.02 * random.normal())}

    job = Job()
    assert job.run(60, noisy) == []
    (one,) = job.run(10, lambda step: {"loss": 6.5})
    assert (one.fault, one.component) == ("loss-spike", Component(cluster=CLUSTER, job="4711"))
    assert one.fault_class is FaultClass.application
    assert "since step 61" in one.text


def test_one_hard_batch_is_no_jump() -> None:
    job = Job()
    job.run(60, shared)
    assert job.run(2, lambda step: {"loss": 6.5}) == []
    assert job.run(20, shared) == []


def test_non_numeric_loss_is_reported_once_it_persists() -> None:
    job = Job()
    job.run(30, shared)
    assert job.run(1, lambda step: {"loss": np.inf}) == []
    (one,) = job.run(4, lambda step: {"loss": np.inf})
    assert one.fault == "loss-nan"
    assert "since step 31" in one.text


def test_a_skipped_step_of_mixed_precision_is_normal() -> None:
    job = Job()
    job.run(20, shared)
    assert job.run(3, lambda step: {"loss": falling(step), "grad_norm": np.inf}) == []
