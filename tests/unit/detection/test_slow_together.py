"""Slow as a whole: what all ranks share is reported in figures, and no node is blamed."""

from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import pytest

from healer.detection.stragglers import Stragglers
from healer.model import Component, FaultClass, Finding
from healer.observations.steps import StepTimes
from tests.support.looks import look
from tests.support.steps import CLUSTER, START, batch, slurm

RANKS = 64
WHERE = Component(cluster=CLUSTER, job="4711")
PAIR = ("slowness-shared", WHERE)


class Job:
    """8 nodes, one step of about 5 s and one tick every 5 s."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(3)
        self.steps, self.detector, self.shown = StepTimes(CLUSTER), Stragglers(), slurm(8)
        self.number = 0
        self.found: list[Finding] = []
        self.clear: dict = {}

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=5 * self.number + 1)

    def run(
        self,
        count: int,
        *,
        compute: float = 1,
        comm_s: float = 0.8,
        data_s: float = 0.1,
        slow: int = 0,
        longer: float = 1.10,
        late_data_s: float = 0,
    ) -> None:
        """`compute`: of all ranks; the first `slow` ranks take `longer`, or wait so much more for data."""
        for _ in range(count):
            self.number += 1
            own = 4.0 * compute * (1 + 0.004 * self.random.normal(size=RANKS))
            own[:slow] *= 1.0 if late_data_s else longer
            data = np.full(RANKS, data_s)
            data[:slow] += late_data_s
            whole = float((own + data).max()) + comm_s
            sent = batch(self.number, own, step_s=whole)
            sent = replace(sent, comm_s=whole - own - data, data_s=data)
            self.steps.update([sent], self.shown, self.now)
            sensed = self.detector.tick(
                look(self.now, steps=self.steps, slurm=self.shown, watched={PAIR, ("job-slow", WHERE)})
            )
            self.found += sensed.findings
            self.clear = dict(sensed.clear_since)


@pytest.mark.parametrize(
    ("now", "what", "figures"),
    [
        ({"comm_s": 2.4}, "all ranks wait longer for communication: the network", "comm 0.8"),
        ({"data_s": 1.6}, "all ranks wait longer for data: storage", "data 0.1 to 1.6 s"),
        ({"compute": 1.3}, "all ranks compute longer: clocks, power, cooling", "compute 4 to 5.2 s"),
        (
            {"comm_s": 1.8, "data_s": 1.1},
            "several parts of the step became slower together",
            "data 0.1 to 1.1 s",
        ),
    ],
)
def test_the_part_of_the_step_that_grew_on_all_ranks_is_said(
    now: dict[str, float], what: str, figures: str
) -> None:
    job = Job()
    job.run(60)
    assert job.found == []
    job.run(30, **now)
    (found,) = job.found
    assert (found.fault, found.fault_class, found.component) == (
        "slowness-shared", FaultClass.informational, WHERE
    )  # fmt: skip
    assert what in found.text and figures in found.text and "no rank is slower than the others" in found.text
    assert PAIR not in job.clear
    job.run(40)
    assert PAIR in job.clear


def test_more_than_a_quarter_of_the_ranks_slow_together_are_counted_and_not_blamed() -> None:
    job = Job()
    job.run(60)
    job.run(80, slow=24)
    assert {one.fault for one in job.found} == {"slowness-shared"}
    text = job.found[0].text
    assert "24 of 64 ranks on gpu0000, gpu0001, gpu0002 compute " in text and "longer than the others" in text
    assert "blames none of them" in text


def test_one_slow_node_is_blamed_and_nothing_is_said_of_all() -> None:
    job = Job()
    job.run(60)
    job.run(40, slow=8)
    assert {one.fault for one in job.found} <= {"straggler", "job-slow"}
    assert any(one.fault == "straggler" for one in job.found)


@pytest.mark.parametrize("one", [{"longer": 1.2}, {"late_data_s": 2.0}])
def test_ranks_that_only_wait_for_one_of_them_are_not_slow_together(one: dict[str, float]) -> None:
    job = Job()
    job.run(60)
    job.run(40, slow=1, **one)
    assert job.found
    assert {finding.fault for finding in job.found} <= {"straggler", "job-slow"}


def test_whole_steps_do_not_reveal_a_shared_cause() -> None:
    job = Job()
    for step in range(1, 91):
        job.number = step
        sent = batch(step, None, ranks=RANKS, step_s=5.0 if step <= 60 else 7.0)
        job.steps.update([sent], job.shown, job.now)
        job.found += job.detector.tick(look(job.now, steps=job.steps, slurm=job.shown)).findings
    assert {one.fault for one in job.found} == {"job-slow"}
