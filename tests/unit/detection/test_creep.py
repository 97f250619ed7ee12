"""Jobs that get slower little by little are reported; phases, evaluations and more work are not."""

from collections.abc import Callable
from datetime import datetime, timedelta

import numpy as np
import pytest

from healer.detection.creep import JOB_CREEP, STRETCHES, Creep, Life
from healer.model import Component, FaultClass, Finding
from healer.observations.steps import StepTimes
from tests.support.looks import look
from tests.support.steps import CLUSTER, START, batch, slurm

JOB = Component(cluster=CLUSTER, job="4711")
#: Hours -> how long a step takes, as a ratio.
Shape = Callable[[float], float]


def life(shape: Shape, hours: float, *, noise: float = 0.01, step_s: float = 30.0) -> Life:
    made, chance, at_s = Life(), np.random.default_rng(1), 0.0
    while at_s < 3600 * hours:
        seconds = step_s * shape(at_s / 3600) * (1 + noise * chance.normal())
        at_s += seconds
        made.step(at_s, seconds)
    return made


def test_two_percent_an_hour_is_reported_after_five_percent() -> None:
    assert life(lambda hour: 1 + 0.02 * hour, 2.2).slower() is None
    found = life(lambda hour: 1 + 0.02 * hour, 4).slower()
    assert found is not None
    assert found.share == pytest.approx(0.08, abs=0.015)
    assert found.per_h == pytest.approx(0.02, abs=0.004)
    assert found.first == pytest.approx(30.0, rel=0.02)


def test_weeks_need_no_more_memory_than_hours_and_are_detected_too() -> None:
    made = life(lambda hour: 1 + 0.0004 * hour, 24 * 14, step_s=60.0)
    assert len(made.medians) <= STRETCHES + 1
    assert made.stretch_s > 10_000
    found = made.slower()
    assert found is not None
    assert found.share == pytest.approx(0.13, abs=0.02)


@pytest.mark.parametrize(
    "shape",
    [
        lambda hour: 1.0,
        lambda hour: 1.0 + 0.2 * (hour > 5),  # a new phase: `job-slow` sees it
        lambda hour: 1.0 + 0.1 * (hour > 3) + 0.1 * (hour > 8),
        lambda hour: 3.0 if hour % 1.0 < 0.1 else 1.0,  # an evaluation each hour
        lambda hour: 1.2 - 0.01 * hour,  # caches that warm up
        lambda hour: 1.0 + 0.03 * hour / 12,  # too little
    ],
)
def test_step_times_without_a_steady_rise_are_no_creep(shape: Shape) -> None:
    assert life(shape, 12).slower() is None


class Job:
    """A job on four nodes, a step each half minute."""

    def __init__(self, *, work: float | None = None) -> None:
        self.steps, self.creep = StepTimes(CLUSTER), Creep()
        self.shown = slurm(2)
        self.work = work
        self.number, self.at_s = 0, 0.0
        self.chance = np.random.default_rng(2)
        self.watched: frozenset = frozenset()
        self.clear: dict = {}

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=self.at_s)

    def run(self, hours: float, shape: Shape, *, growth: Shape = lambda hour: 1.0) -> list[Finding]:
        """`shape`: how long a unit of work takes; `growth`: how much work there is."""
        found: list[Finding] = []
        until_s = self.at_s + 3600 * hours
        while self.at_s < until_s:
            hour = self.at_s / 3600
            work = (self.work or 1.0) * growth(hour)
            step_s = 30 * shape(hour) * growth(hour) * (1 + 0.005 * self.chance.normal())
            self.at_s += step_s
            self.number += 1
            compute = np.full(16, 0.8 * step_s) if self.work else None
            sent = batch(
                self.number, compute, ranks=16, step_s=step_s, at=self.now,
                work=work if self.work else np.nan, placed=self.work is not None,
            )  # fmt: skip
            self.steps.update([sent], self.shown, self.now)
            sensed = self.creep.tick(look(self.now, steps=self.steps, slurm=self.shown, watched=self.watched))
            found += sensed.findings
            self.clear = dict(sensed.clear_since)
        return found


def test_job_without_a_node_is_reported_and_clears_when_fast_again() -> None:
    job = Job()
    found = job.run(5, lambda hour: 1 + 0.03 * hour)
    assert {(one.fault, one.component, one.fault_class) for one in found} == {
        (JOB_CREEP, JOB, FaultClass.application)
    }
    assert "more each hour over" in found[0].text
    assert len({one.evidence[0].digest for one in found}) == 1
    job.watched = frozenset({(JOB_CREEP, JOB)})
    assert job.run(3, lambda hour: 1.0) == [] or job.clear
    assert list(job.clear) == [(JOB_CREEP, JOB)]


def test_more_work_in_a_step_is_no_creeping() -> None:
    assert Job(work=4096.0).run(6, lambda hour: 1.0, growth=lambda hour: 1 + 0.1 * hour) == []
    assert Job(work=4096.0).run(6, lambda hour: 1 + 0.03 * hour)


def test_requeued_job_starts_over() -> None:
    job = Job()
    assert job.run(1.5, lambda hour: 1 + 0.03 * hour) == []
    job.steps = StepTimes(CLUSTER)
    assert job.run(1.5, lambda hour: 1 + 0.03 * hour) == []
