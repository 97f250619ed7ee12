"""A job that does not come to its first step, and the node that alone has lost what it needs."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

import msgspec
import numpy as np
import pytest

from healer.detection.hang_evidence import are_blocked
from healer.detection.hangs import Hangs
from healer.detection.job_starts import STARTS
from healer.model import (
    Component,
    Evidence,
    FaultClass,
    Finding,
    NodeReport,
    Part,
    Scope,
    Sense,
    SignalKind,
    Topology,
)
from healer.observations.steps import StepTimes
from healer.observations.telemetry_windows import Telemetry
from healer.sim.stores import MemoryColumns
from tests.support.looks import look
from tests.support.measured import Sender, catalogue, signal
from tests.support.steps import CLUSTER, START, batch, node_name, slurm

NODES, PER, TICK_S = 4, 8, 5
ALL = [node_name(index) for index in range(NODES)]
BROKEN = ALL[2]
MEASURED = catalogue(
    signal("procs_blocked", SignalKind.gauge, Scope.node), signal("ib_state", SignalKind.gauge, Scope.link)
)
UP, DOWN = 4.0, 1.0


def loss(at: datetime, node: str = BROKEN, kind: str = "disk-lost") -> dict[str, NodeReport]:
    where = Component(cluster=CLUSTER, node=node)
    line = Evidence(digest="d1", at=at, component=where, text="disk", sense=Sense.kernel, line="nvme nvme4")
    return {node: NodeReport(at=at, text="disk", fault=kind, evidence=line)}


class Job:
    """A job on four nodes, looked at every 5 s. `blocked`: processes of a node in state D. `ports`: the state
    of a node's port."""

    def __init__(self) -> None:
        self.at_s, self.step, self.rest = 0.0, 0, True
        self.shown, self.book = slurm(NODES, PER), MemoryColumns()
        self.steps, self.telemetry = StepTimes(CLUSTER), Telemetry(CLUSTER, MEASURED)
        self._sender = Sender(self.book)
        self.detector = Hangs(lambda *_: self.rest)
        self.lost: Mapping[str, NodeReport] = {}
        self.blocked: Mapping[str, int] = {}
        self.ports: Mapping[str, float] = {}
        self.listening_since = START
        self.heard_at: datetime | None = None
        self.found: list[Finding] = []

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=self.at_s)

    def start(self, **more: object) -> None:
        """Slurm begins a life."""
        job = self.shown.jobs["4711"]
        restarts = job.restarts + (job.start_at is not None)
        job = msgspec.structs.replace(job, restarts=restarts, start_at=self.now, **more)
        self.shown = msgspec.structs.replace(self.shown, jobs={"4711": job})

    def wait(self, seconds: float) -> list[Finding]:
        """Time in which no step ends; returns what was found in it."""
        found, until_s = len(self.found), self.at_s + seconds
        while self.at_s < until_s:
            self._tick(steps=False)
        return self.found[found:]

    def work(self, steps: int = 20) -> None:
        for _ in range(steps):
            self._tick(steps=True)

    def life(self, start_s: float) -> None:
        self.start()
        self.wait(start_s)
        self.work()

    def _tick(self, *, steps: bool) -> None:
        self.at_s += TICK_S
        self.step += steps
        self.shown = msgspec.structs.replace(self.shown, taken_at=self.now)
        self.telemetry.show(self.shown, Topology(), self.now)
        reports = [
            self._sender.report(node, self.at_s, {("procs_blocked", Part()): float(count)})
            for node, count in self.blocked.items()
        ]
        reports += [
            self._sender.report(node, self.at_s, {("ib_state", Part(port="mlx5_0")): state})
            for node, state in self.ports.items()
        ]
        reports = [msgspec.structs.replace(report, arrived_at=self.now) for report in reports]
        self.telemetry.update(reports, self.book, self.now)
        done = [batch(self.step, np.full(NODES * PER, 4.0), at=self.now)] if steps else []
        done = [replace(one, restart=self.shown.jobs[one.job].restarts) for one in done]
        self.steps.update(done, self.shown, self.now)
        self.found += self.detector.tick(
            look(
                self.now,
                self.telemetry,
                self.steps,
                slurm=self.shown,
                node_reports=self.lost,
                listening_since=self.listening_since,
                heard_at=self.heard_at or self.now,
            )
        ).findings


def stuck(seconds: float, *, start_s: float = 100, kind: str = "disk-lost") -> tuple[Job, list[Finding]]:
    """The second life does not come to a step; its node loses something after 20 s."""
    job = Job()
    job.life(start_s)
    job.start()
    job.wait(20)
    job.lost = loss(job.now, kind=kind)
    return job, job.wait(seconds)


@pytest.mark.parametrize("kind", ["disk-lost", "fs-read-only", "host-memory-uncorrected", "kernel-oops"])
def test_a_start_that_lasts_half_as_long_again_as_any_before_blames_the_node(kind: str) -> None:
    job, found = stuck(130, kind=kind)
    assert found == []
    found = job.wait(20)
    assert {(one.fault, one.component.node) for one in found} == {("node-stopped-job", BROKEN)}
    assert (found[0].fault_class, found[0].unusable, found[0].jobs) == (FaultClass.fatal, True, ("4711",))
    assert [evidence.sense for evidence in found[0].evidence] == [Sense.kernel, Sense.step_times]
    assert "160 s ago, without a step so far; its earlier starts took about 105 s" in found[0].text


def test_while_it_lasts_the_same_is_said_again_until_steps_come() -> None:
    job, _ = stuck(200)
    again = job.wait(30)
    assert len(again) > 3 and len({one.evidence[1].digest for one in again}) == 1
    job.lost = {}
    job.work(1)
    assert job.wait(30) == []


@pytest.mark.parametrize("measured", [ALL, [BROKEN, ALL[0]]])
def test_processes_that_wait_in_the_kernel_there_alone_are_enough_after_a_minute(measured: list[str]) -> None:
    job = Job()
    job.blocked = dict.fromkeys(measured, 0) | {BROKEN: 8}
    job.life(600)
    job.start()
    job.lost = loss(job.now)
    assert job.wait(60) == []
    assert {one.component.node for one in job.wait(10)} == {BROKEN}
    assert "have been blocked in the kernel (state D) for a minute" in job.found[-1].text


@pytest.mark.parametrize(
    ("blocked", "why"),
    [
        (dict.fromkeys(ALL, 8), "all wait for the file server"),
        ({BROKEN: 8}, "nothing to compare with"),
        (dict.fromkeys(ALL, 0), "nothing waits"),
        ({}, "not measured"),
    ],
)
def test_blocked_processes_everywhere_or_nowhere_do_not_shorten_the_wait(
    blocked: dict[str, int], why: str
) -> None:
    job = Job()
    job.life(600)
    job.blocked = blocked
    job.start()
    job.lost = loss(job.now)
    assert job.wait(300) == [], why


def test_a_start_as_long_as_the_longest_before_is_none() -> None:
    job = Job()
    job.life(600)
    job.life(50)
    job.start()
    job.lost = loss(job.now)
    assert job.wait(600) == []
    job.work()
    assert job.found == []


def test_a_start_in_which_a_node_lost_something_is_no_measure_of_the_next() -> None:
    job, _ = stuck(3000)
    job.work()
    job.lost = {}
    job.start()
    job.lost = loss(job.now)
    assert {one.component.node for one in job.wait(170)} == {BROKEN}


def test_one_long_start_among_many_is_no_measure_either() -> None:
    job = Job()
    for start_s in (100, 3000, 100, 100):
        job.life(start_s)
    job.start()
    job.lost = loss(job.now)
    assert {one.component.node for one in job.wait(170)} == {BROKEN}


@pytest.mark.parametrize(
    ("down", "after_s", "blamed"),
    [
        ([BROKEN], 0, {BROKEN}),
        ([BROKEN], -20, {BROKEN}),  # and its job was started again for another reason
        ([BROKEN, ALL[0]], 0, set()),
        ([], 0, set()),
    ],
)
def test_a_port_that_stays_down_keeps_a_job_from_its_first_step(
    down: list[str], after_s: int, blamed: set[str]
) -> None:
    job = Job()
    job.ports = dict.fromkeys(ALL, UP)
    job.life(100)
    lost = job.ports | dict.fromkeys(down, DOWN)
    if after_s < 0:
        job.ports = lost
        job.wait(-after_s)
    job.found.clear()
    job.start()
    job.ports = lost
    assert job.wait(150) == []
    found = job.wait(30)
    assert {one.component.node for one in found} == blamed
    assert all(one.fault == "node-stopped-job" for one in found)


def test_recovered_port_blames_no_node() -> None:
    job = Job()
    job.ports = dict.fromkeys(ALL, UP)
    job.life(100)
    job.start()
    job.ports = job.ports | {BROKEN: DOWN}
    job.lost = loss(job.now, kind="nic-link-down")
    job.wait(100)
    job.ports = dict.fromkeys(ALL, UP)
    assert job.wait(300) == []


def test_a_job_whose_starts_are_not_known_is_not_judged() -> None:
    """Its first life, or its steps came while healer was down."""
    first = Job()
    first.start()
    first.lost = loss(first.now)
    deaf = Job()
    deaf.start()
    deaf.wait(100)
    deaf.listening_since = deaf.now
    deaf.work()
    deaf.start()
    deaf.lost = loss(deaf.now)
    assert first.wait(900) == deaf.wait(900) == []


def test_two_losses_a_computing_start_and_an_ending_job_blame_no_node() -> None:
    two, _ = stuck(10)
    two.lost = {**two.lost, **loss(two.now, ALL[3])}
    computes, _ = stuck(10)
    computes.rest = False
    completes, _ = stuck(10)
    job = msgspec.structs.replace(completes.shown.jobs["4711"], flags=("COMPLETING",))
    completes.shown = msgspec.structs.replace(completes.shown, jobs={"4711": job})
    assert two.wait(600) == computes.wait(600) == completes.wait(600) == []


def test_while_every_node_is_silent_healer_may_be_cut_off() -> None:
    job, _ = stuck(10)
    job.heard_at = job.now
    assert job.wait(600) == []
    job.heard_at = None
    assert job.wait(5) != []


def test_a_loss_is_remembered_for_the_whole_start_but_not_over_a_repair() -> None:
    """The picture forgets it after ten minutes."""
    found = []
    for repaired in (False, True):
        job, _ = stuck(10, start_s=700)
        job.lost = {}
        if repaired:
            job.detector.forget(job.telemetry, BROKEN, job.now)
        found.append({one.component.node for one in job.wait(1100)})
    assert found == [{BROKEN}, set()]


def test_learnt_start_times_survive_a_restart_of_the_detector() -> None:
    job = Job()
    job.life(100)
    packed = job.detector.pack(job.telemetry)
    job.detector = Hangs(lambda *_: True)
    assert job.detector.load(packed) == [] and job.detector.load({STARTS: b"no JSON"}) == [STARTS]
    assert job.detector.load({STARTS: b'{"4711":105.0}'}) == [], "an earlier version's"
    job.start()
    job.lost = loss(job.now)
    assert {one.component.node for one in job.wait(200)} == {BROKEN}


def test_a_job_that_slurm_does_not_show_is_forgotten_after_a_day_and_not_while_it_waits_to_start() -> None:
    job = Job()
    job.life(100)
    shown, job.shown = job.shown, msgspec.structs.replace(job.shown, jobs={})
    job.wait(30)
    job.shown = shown
    job.start()
    job.lost = loss(job.now)
    assert {one.component.node for one in job.wait(200)} == {BROKEN}
    job.shown = msgspec.structs.replace(job.shown, jobs={})
    job.wait(5)
    assert job.detector.pack(job.telemetry) != {}
    job.at_s += 24 * 3600
    job.wait(5)
    assert job.detector.pack(job.telemetry) == {}


def test_figures_of_a_minute_are_needed() -> None:
    job = Job()
    job.blocked = dict.fromkeys(ALL, 0) | {BROKEN: 3}
    job.start()
    job.wait(10)
    assert not are_blocked(job.telemetry, BROKEN, ALL, job.now)
    job.wait(50)
    assert are_blocked(job.telemetry, BROKEN, ALL, job.now)
    job.blocked = {**job.blocked, BROKEN: 0}
    job.wait(5)
    assert not are_blocked(job.telemetry, BROKEN, ALL, job.now), "one moment without is enough"
