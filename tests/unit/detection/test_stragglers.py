"""Slow ranks, GPUs, nodes and jobs are found; what only looks like one makes no finding."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import msgspec
import numpy as np
import pytest

from healer.detection.stragglers import Stragglers
from healer.model import Component, FaultClass, Finding, Sense, SlurmNode, SlurmSnapshot
from healer.observations.steps import StepTimes
from tests.support.looks import UNMEASURED, look
from tests.support.steps import CLUSTER, START, batch, slurm

RANKS = 64
Shape = Callable[[int, np.ndarray], object]


@dataclass
class Job:
    """A job on 8 nodes, one step and one tick every 5 s, from a seed."""

    shown: SlurmSnapshot | None = field(default_factory=lambda: slurm(8))
    noise: float = 0.004
    restart: int = 0
    watched: frozenset = frozenset()
    more: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(7)
        self.steps, self.detector = StepTimes(CLUSTER), Stragglers()
        self.number = 0
        self.found: list[Finding] = []
        self.clear: dict = {}

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=5 * self.number + 1)

    def run(self, count: int, shape: Shape = lambda step, x: x) -> list[Finding]:
        """`shape(step, compute)` may change compute in place, or return the whole step's time too."""
        before = len(self.found)
        for _ in range(count):
            self.number += 1
            compute = 4.0 * (1 + self.noise * self.random.normal(size=RANKS))
            whole = shape(self.number, compute)
            sent = batch(
                self.number,
                compute,
                restart=self.restart,
                step_s=whole if isinstance(whole, float) else 5.0,
                **self.more,
            )
            self.steps.update([sent], self.shown, self.now)
            self.tick()
        return self.found[before:]

    def tick(self, later_s: float = 0) -> None:
        at = self.now + timedelta(seconds=later_s)
        sensed = self.detector.tick(look(at, steps=self.steps, slurm=self.shown, watched=self.watched))
        self.found += sensed.findings
        self.clear = dict(sensed.clear_since)


def slower(ranks: object, share: float) -> Shape:
    def shape(_: int, compute: np.ndarray) -> None:
        compute[ranks] *= 1 + share

    return shape


def on(node: str, gpu: int | None = None) -> Component:
    return Component(cluster=CLUSTER, node=node, gpu=gpu)


def test_a_node_five_percent_slower_is_found_once_it_lasts_longer_than_a_hiccup() -> None:
    job = Job()
    assert job.run(130) == []
    (found, *rest) = job.run(10, slower(slice(8, 16), 0.05))
    assert rest == []
    assert found.component == on("gpu0001")
    assert (found.fault, found.fault_class, found.unusable) == ("straggler", FaultClass.degraded, False)
    assert found.jobs == ("4711",)
    assert found.evidence[0].sense is Sense.step_times
    assert "ranks 8, 9, 10, 11 and 4 more on gpu0001: 5% more compute than its peers" in found.text


def test_one_slow_rank_is_one_gpu() -> None:
    job = Job(more={"work": 512.0, "stage": 0})
    job.run(130)
    (found, *_) = job.run(10, slower(13, 0.18))
    assert found.component == on("gpu0001", 5)
    assert found.text.startswith(
        "rank 13 on gpu0001 GPU 5: 18% more compute per unit of work than its stage for 9 steps, since step"
    )


def test_a_node_slow_from_the_start_is_found_and_not_learnt_away() -> None:
    job = Job()
    found = job.run(20, slower(slice(8, 16), 0.05))
    assert [one.component for one in found] == [on("gpu0001")]
    job.run(200, slower(slice(8, 16), 0.05))
    assert ("straggler", on("gpu0001")) not in job.clear


def test_unequal_work_takes_longer_and_is_found_too() -> None:
    job = Job(noise=0.12)
    assert job.run(130) == []
    found = job.run(80, slower(slice(8, 16), 0.10))
    assert {one.component for one in found} == {on("gpu0001")}


def test_the_chart_shows_the_node_above_its_peers_and_the_threshold() -> None:
    job = Job()
    job.run(130)
    (found, *_) = job.run(12, slower(slice(8, 16), 0.20))
    (chart,) = found.charts
    lines = {line.role: line.values for line in chart.lines}
    assert chart.x == "step"
    assert chart.times[-1] == 130 + int(found.text.split(" steps,")[0].split()[-1])
    assert lines["own"][-1] == pytest.approx(1.2, abs=0.02)
    assert lines["low"][-1] < 1.0 < lines["high"][-1] < lines["threshold"][-1] < lines["own"][-1]  # type: ignore[operator]


def test_persisting_straggler_is_repeated_with_the_same_evidence_after_five_minutes() -> None:
    job = Job()
    job.run(130)
    found = job.run(130, slower(slice(8, 16), 0.20))
    assert len(found) == 3
    assert len({one.evidence[0].digest for one in found}) == 1


def test_end_of_straggling_is_reported_with_its_start() -> None:
    job = Job()
    job.run(130)
    job.run(10, slower(slice(8, 16), 0.20))
    pair = ("straggler", on("gpu0001"))
    assert pair not in job.clear
    job.run(20)
    since = job.clear[pair]
    assert job.now - timedelta(seconds=100) < since < job.now - timedelta(seconds=30)
    job.run(5)
    assert job.clear[pair] == since


def test_a_watched_node_is_cleared_by_a_job_that_runs_well_on_it() -> None:
    job = Job(watched=frozenset({("straggler", on("gpu0002")), ("straggler", on("gpu0099"))}))
    job.run(30)
    assert list(job.clear) == [("straggler", on("gpu0002"))]


def test_when_no_step_comes_nothing_is_known_to_be_well() -> None:
    job = Job(watched=frozenset({("straggler", on("gpu0002"))}))
    job.run(30)
    job.tick(later_s=120)
    assert job.clear == {}


def test_returned_node_is_judged_again_and_its_job_is_unaffected() -> None:
    job = Job()
    job.run(130)
    slow = slower(slice(8, 16), 0.20)
    (first,) = job.run(20, slow)
    job.detector.forget(UNMEASURED, "gpu0001", job.now)
    job.tick()
    assert len(job.found) == 1
    assert ("straggler", on("gpu0001")) not in job.clear
    (again, *_) = job.run(20, slow)
    assert again.component == first.component
    assert again.evidence[0].digest != first.evidence[0].digest


def test_a_node_that_came_back_well_is_slow_no_more() -> None:
    job = Job()
    job.run(130)
    job.run(20, slower(slice(8, 16), 0.20))
    job.detector.forget(UNMEASURED, "gpu0001", job.now)
    assert job.run(30) == []
    assert not job.detector._watches["4711", 0].nodes.slow.any()


# --- what is no straggler ---


def test_a_few_seconds_of_short_steps_are_no_incident_and_a_minute_is_one() -> None:
    job = Job()
    spans = []
    for count in (10, 150):
        steps, detector = StepTimes(CLUSTER), Stragglers()
        found = 0
        for number in range(1, 600):
            at = START + timedelta(seconds=0.4 * number)
            compute = 0.3 * (1 + 0.004 * job.random.normal(size=RANKS))
            compute[8:16] *= 1.25 if 300 <= number < 300 + count else 1
            steps.update([batch(number, compute, at=at, step_s=0.4)], job.shown, at)
            sensed = detector.tick(look(at, steps=steps, slurm=job.shown))
            found += len(sensed.findings)
        spans.append((found, ("straggler", on("gpu0001")) in sensed.clear_since))
    assert spans == [(0, False), (1, True)]


def spikes(step: int, compute: np.ndarray) -> object:
    """Every 20 steps a checkpoint, which takes all ranks and the whole step longer."""
    if step % 20 == 0:
        compute += 3.0
        return 12.0
    return 5.0


def collections(step: int, compute: np.ndarray) -> None:
    """Unsynchronised garbage collection: 0.1-0.4 s on one rank, each at its own time."""
    if step % 3 == 0:
        compute[step * 7 % RANKS] += 0.1 + 0.1 * (step % 4)


def warm_up(step: int, compute: np.ndarray) -> None:
    if step <= 5:
        compute *= 3
        compute[40:48] *= 1.5


def all_together(step: int, compute: np.ndarray) -> None:
    if step > 60:
        compute *= 1.3


def half(step: int, compute: np.ndarray) -> None:
    if step > 60:
        compute[:28] *= 1.3


@pytest.mark.parametrize(
    "shape",
    [spikes, collections, warm_up, slower(slice(0, 32), 0.01), all_together, slower(slice(0, 28), 0.3)],
    ids=["checkpoints", "garbage collection", "warm-up", "a rack's one percent", "all slow", "half do more"],
)
def test_benign_look_alikes_make_no_finding(shape: Shape) -> None:
    assert Job().run(150, shape) == []


def test_half_of_the_ranks_slow_blames_no_node() -> None:
    assert {one.fault for one in Job().run(150, half)} == {"slowness-shared"}


def test_a_longer_last_stage_is_no_straggler_and_a_slow_rank_within_it_is() -> None:
    job = Job(more={"stage": np.repeat([0, 1, 2, 3], 16)})
    assert job.run(130, slower(slice(48, 64), 0.25)) == []

    def both(_: int, compute: np.ndarray) -> None:
        compute[48:64] *= 1.25
        compute[50] *= 1.10

    assert [one.component for one in job.run(15, both)] == [on("gpu0006", 2)]


def wide() -> Job:
    """32 nodes of two ranks each, without stages."""
    return Job(shown=slurm(32, per=2), more={"per": 2})


@pytest.mark.parametrize("share", [0.05, 0.1, 0.25])
def test_a_stage_that_its_job_does_not_report_is_no_straggler(share: float) -> None:
    assert wide().run(200, slower(slice(56, 64), share)) == []


def test_nodes_that_become_slow_and_a_single_one_from_the_start_are_no_stage() -> None:
    job = wide()
    job.run(130)
    found = job.run(120, slower(slice(56, 64), 0.1))
    assert {one.component.node for one in found} == {f"gpu00{number}" for number in (28, 29, 30, 31)}
    assert [one.component for one in wide().run(60, slower(slice(62, 64), 0.1))] == [on("gpu0031")]


def test_nodes_that_are_slow_from_the_start_each_by_its_own_are_no_stage() -> None:
    def shape(_: int, compute: np.ndarray) -> None:
        for node, share in ((1, 0.05), (9, 0.1), (20, 0.15), (25, 0.22), (30, 0.3)):
            compute[2 * node : 2 * node + 2] *= 1 + share

    assert len({one.component.node for one in wide().run(120, shape)}) == 5


def test_beside_an_unreported_stage_a_slow_node_is_found() -> None:
    def shape(step: int, compute: np.ndarray) -> None:
        compute[56:64] *= 1.1
        compute[6:8] *= 1.1 if step > 130 else 1

    assert {one.component.node for one in wide().run(300, shape)} == {"gpu0003"}


def test_a_rank_that_is_slow_in_every_other_step_is_the_gpu_that_is_named() -> None:
    job = Job(noise=0.01)
    found = job.run(400, lambda step, compute: slower(0, 0.1)(step, compute) if step % 2 == 0 else None)
    assert {one.component for one in found} == {on("gpu0000", 0)}


def test_nodes_that_are_slow_by_different_amounts_are_no_stage() -> None:
    def each(_: int, compute: np.ndarray) -> None:
        compute[56:] *= 1 + np.repeat([0.1, 0.3, 0.6, 1.0], 2)

    assert {one.component.node for one in wide().run(130, each)} == {
        "gpu0028",
        "gpu0029",
        "gpu0030",
        "gpu0031",
    }


def test_a_node_of_a_stage_that_becomes_slower_than_the_others_is_found() -> None:
    job = wide()
    job.run(130, slower(slice(52, 64), 0.1))

    def both(_: int, compute: np.ndarray) -> None:
        compute[52:64] *= 1.1
        compute[52:54] *= 1.15

    assert {one.component.node for one in job.run(60, both)} == {"gpu0026"}


def test_ranks_that_do_more_work_are_no_stragglers() -> None:
    work = np.where(np.arange(RANKS) % 5 == 0, 600.0, 512.0)
    job = Job(more={"work": work})
    assert job.run(80, lambda _, compute: np.multiply(compute, work / 512, out=compute)) == []


def test_without_slurm_or_after_the_job_no_node_is_blamed() -> None:
    for shown in (None, slurm(8, state="COMPLETED")):
        assert Job(shown=shown).run(80, slower(slice(8, 16), 0.3)) == []


def test_job_not_shown_by_slurm_blames_no_node() -> None:
    assert Job(shown=slurm(8, job="1")).run(80, slower(slice(8, 16), 0.3)) == []


def test_an_invented_life_hides_no_slow_node() -> None:
    job = Job()
    job.run(130)
    forged = batch(10, np.full(RANKS, 4.0), restart=2**31 - 1)
    job.steps.update([forged], job.shown, job.now)
    assert {one.component for one in job.run(10, slower(slice(8, 16), 0.2))} == {on("gpu0001")}


def test_a_node_cannot_make_another_slow() -> None:
    job = Job()
    job.run(130)

    def forged(step: int, compute: np.ndarray) -> None:
        slow = np.where(np.arange(RANKS) // 8 == 3, 4.8, np.nan)
        sent = batch(step, slow, at=job.now - timedelta(seconds=3))
        sent = replace(sent, nodes=("gpu0000",), node=np.zeros(8, np.int32))
        job.steps.update([sent], job.shown, job.now)

    assert job.run(60, forged) == []


def test_a_node_that_the_job_does_not_hold_is_not_blamed() -> None:
    job = Job(shown=slurm(7))
    assert job.run(80, slower(slice(56, 64), 0.3)) == []


def test_job_that_went_back_is_relearned() -> None:
    job = Job()
    job.run(60, slower(slice(8, 16), 0.2))
    job.steps.update([batch(5, np.full(RANKS, 4.0), at=job.now + timedelta(seconds=60))], job.shown, job.now)
    job.found.clear()
    job.tick()
    assert job.found == []
    assert not job.detector._watches["4711", 0].ranks.slow.any()


# --- whole step times alone ---


def whole(seconds: float) -> Shape:
    def shape(_: int, compute: np.ndarray) -> float:
        compute[:] = np.nan
        return seconds

    return shape


def only_steps(count: int, job: Job, seconds: Callable[[int], float]) -> list[Finding]:
    before = len(job.found)
    for _ in range(count):
        job.number += 1
        sent = batch(job.number, None, ranks=2, step_s=seconds(job.number))
        job.steps.update([sent], job.shown, job.now)
        job.tick()
    return job.found[before:]


def test_step_times_alone_name_the_job_and_no_node() -> None:
    job = Job()
    assert only_steps(60, job, lambda _: 2.0) == []
    (found, *rest) = only_steps(12, job, lambda _: 2.4)
    assert rest == []
    assert found.component == Component(cluster=CLUSTER, job="4711")
    assert (found.fault, found.fault_class) == ("job-slow", FaultClass.informational)
    assert found.text == (
        "job 4711: 2.4 s per step since step 61, 20% more than its own 2 s before; "
        "step times alone do not show which node"
    )
    pair = ("job-slow", found.component)
    assert pair not in job.clear
    only_steps(8, job, lambda _: 2.0)
    assert pair in job.clear


def test_checkpoints_and_small_changes_do_not_make_a_job_slow() -> None:
    job = Job()
    assert only_steps(200, job, lambda step: 30.0 if step % 25 < 2 else 2.0 + 0.15 * (step > 100)) == []


def test_a_slow_job_that_is_over_is_slow_no_more() -> None:
    job = Job()
    only_steps(60, job, lambda _: 2.0)
    (found,) = only_steps(12, job, lambda _: 3.0)
    job.shown = slurm(8, state="COMPLETED")
    job.tick()
    assert ("job-slow", found.component) in job.clear


def moved(job: Job, **fields: object) -> SlurmSnapshot:
    """The job was requeued and runs on eight other nodes."""
    names = [f"other{index}" for index in range(8)]
    life = msgspec.structs.replace(
        slurm(8).jobs["4711"],
        nodes=tuple(names),
        gpus={name: tuple(range(8)) for name in names},
        restarts=1,
        **fields,
    )
    nodes = {name: SlurmNode(name=name, state=("ALLOCATED",), gpus=8) for name in names}
    return msgspec.structs.replace(slurm(8), nodes=nodes, jobs={"4711": life})


@pytest.mark.parametrize("started", [True, False])
def test_a_requeued_job_blames_no_node_of_its_new_life_for_the_old_one(started: bool) -> None:
    job = Job()
    job.run(130)
    assert job.run(10, slower(13, 0.18))
    before = len(job.found)
    job.shown = moved(job, start_at=job.now + timedelta(seconds=30) if started else None)
    job.tick(60)
    job.tick(400)
    assert job.found[before:] == []


def test_baseline_of_a_rank_does_not_move_to_another_node() -> None:
    """The sender reports neither restarts nor nodes: only Slurm shows the place of its ranks."""
    job = Job(more={"placed": False})
    job.run(130)
    assert job.run(10, slower(13, 0.18))
    before = len(job.found)
    job.shown = moved(job, start_at=job.now)
    job.run(130)
    assert job.found[before:] == []
    assert {one.component for one in job.run(10, slower(13, 0.18))} == {on("other1", 5)}
