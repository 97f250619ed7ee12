"""Two of four nodes have no peers that agree: what other jobs of the kind needed tells them apart."""

from dataclasses import replace
from datetime import datetime, timedelta

import msgspec
import numpy as np
import pytest

from healer.detection.baseline import Baseline
from healer.model import Component, Finding, SlurmJob, SlurmNode, SlurmSnapshot
from healer.observations.steps import StepTimes
from tests.support.looks import UNMEASURED, look
from tests.support.steps import CLUSTER, START, batch, node_name

PER, NODES = 8, 16
NAMES = [node_name(index) for index in range(NODES)]


class Fleet:
    """Jobs of four nodes each, 5 s a step; `factor` by node, 1 is sound."""

    def __init__(self, model: str = "h100") -> None:
        self.random = np.random.default_rng(5)
        self.steps, self.detector = StepTimes(CLUSTER), Baseline()
        self.factor = np.ones(NODES)
        self.nodes = {
            one: SlurmNode(name=one, state=("ALLOCATED",), gpus=PER, gpu_model=model) for one in NAMES
        }
        self.number = 0
        #: So many steps were lost to a restart from a checkpoint.
        self.lost = 0
        self.found: list[Finding] = []
        self.clear: dict = {}
        self.watched: frozenset = frozenset()

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=5 * self.number + 1)

    def run(self, count: int, **jobs: dict) -> None:
        """`jobs`: by id without its `j`, the first node, and fields of the job; `work` and `times` too."""
        shown = {}
        for name, about in jobs.items():
            held = tuple(NAMES[about["first"] : about["first"] + 4])
            fields = {key: about[key] for key in ("name", "user") if key in about}
            job = {"name": "llm", "user": "anna", "partition": "train"} | fields
            shown[name[1:]] = SlurmJob(id=name[1:], state="RUNNING", nodes=held, **job)
        for _ in range(count):
            self.number += 1
            slurm = SlurmSnapshot(cluster=CLUSTER, taken_at=self.now, nodes=self.nodes, jobs=shown)
            batches = [self._batch(name[1:], about) for name, about in jobs.items()]
            self.steps.update(batches, slurm, self.now)
            sensed = self.detector.tick(look(self.now, steps=self.steps, slurm=slurm, watched=self.watched))
            self.found += sensed.findings
            self.clear = dict(sensed.clear_since)

    def _batch(self, job: str, about: dict):
        first = about["first"]
        own = self.factor[first : first + 4].repeat(PER) * about.get("times", 1.0)
        compute = 4.0 * own * (1 + 0.004 * self.random.normal(size=4 * PER))
        work = about.get("work", 8192.0)
        at = START + timedelta(seconds=5 * self.number)
        sent = batch(self.number - self.lost, compute, job=job, work=work, at=at)
        return replace(sent, nodes=tuple(NAMES[first : first + 4]))


def nodes_of(fleet: Fleet) -> list[str | None]:
    return sorted({one.component.node for one in fleet.found})


def test_two_of_four_nodes_slow_from_the_start_are_found_by_other_jobs_times() -> None:
    fleet = Fleet()
    fleet.factor[4:6] = 1.1
    fleet.run(60, j1={"first": 0}, j2={"first": 8})
    assert fleet.found == []
    fleet.run(40, j1={"first": 0}, j2={"first": 8}, j3={"first": 4})
    assert nodes_of(fleet) == [NAMES[4], NAMES[5]]
    assert fleet.found[0].fault == "slower-than-elsewhere"
    assert "10% more compute per unit of work in job 3 than 8 other nodes" in fleet.found[0].text
    fleet.watched = frozenset({("slower-than-elsewhere", Component(cluster=CLUSTER, node=NAMES[4]))})
    fleet.run(5, j3={"first": 4})
    assert not fleet.clear
    fleet.factor[4:6] = 1.0
    fleet.run(60, j3={"first": 4})
    assert fleet.clear.keys() == fleet.watched


def test_a_job_that_went_back_to_a_checkpoint_is_looked_at_without_delay() -> None:
    fleet, jobs = Fleet(), {"j1": {"first": 0}, "j2": {"first": 8}, "j3": {"first": 4}}
    fleet.run(200, **jobs)
    fleet.factor[4:6], fleet.lost = 1.1, 150
    fleet.run(60, **jobs)
    assert nodes_of(fleet) == [NAMES[4], NAMES[5]]


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"name": "other"}, "another program"),
        ({"user": "ben"}, "another user's, who may have another program of that name"),
        ({"times": 1.5}, "its steps are other ones: no node works as those elsewhere"),
        ({"work": np.nan}, "it does not tell its work"),
    ],
)
def test_jobs_of_different_work_are_not_compared(about: dict, why: str) -> None:
    fleet = Fleet()
    fleet.factor[4:6] = 1.1
    fleet.run(60, j1={"first": 0}, j2={"first": 8})
    fleet.run(60, j1={"first": 0}, j2={"first": 8}, j3={"first": 4} | about)
    assert fleet.found == [], why


def test_an_unknown_model_few_nodes_and_small_differences_say_nothing() -> None:
    unknown = Fleet(model="")
    unknown.factor[4:6] = 1.1
    unknown.run(60, j1={"first": 0}, j2={"first": 8}, j3={"first": 4})
    small = Fleet()
    small.factor[4:6] = 1.03
    small.run(100, j1={"first": 0}, j2={"first": 8}, j3={"first": 4})
    alone = Fleet()
    alone.factor[4:6] = 1.1
    alone.run(100, j3={"first": 4})
    assert [*unknown.found, *small.found, *alone.found] == []


def test_repaired_node_is_learned_again() -> None:
    fleet = Fleet()
    fleet.factor[4:6] = 1.1
    fleet.run(60, j1={"first": 0}, j2={"first": 8}, j3={"first": 4})
    fleet.detector.forget(UNMEASURED, NAMES[4], fleet.now)
    fleet.factor[4] = 1.0
    before = len(fleet.found)
    fleet.run(100, j1={"first": 0}, j2={"first": 8}, j3={"first": 4})
    assert {one.component.node for one in fleet.found[before:]} == {NAMES[5]}
    assert msgspec.structs.asdict(fleet.found[0])["evidence"][0].sense == "step_times"
