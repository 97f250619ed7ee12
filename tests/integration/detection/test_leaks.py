"""Memory leaks: reported for the job with the time left; growth that ends by itself is not reported."""

from collections.abc import Callable
from datetime import datetime, timedelta

import numpy as np
import pytest

from healer.detection.leaks import JOB_LEAK, Leaks
from healer.model import (
    Component,
    FaultClass,
    Finding,
    Part,
    Scope,
    SignalKind,
    SlurmJob,
    SlurmNode,
    Topology,
)
from healer.observations.telemetry_windows import Telemetry
from healer.sim.stores import MemoryColumns
from tests.support.looks import look
from tests.support.measured import CLUSTER, START, Sender, catalogue, shown, signal

pytestmark = pytest.mark.heavy

GIB = 2.0**30
NAMES = ("n1", "n2", "n3", "n4")
JOB = Component(cluster=CLUSTER, job="7")
Shape = Callable[[float, str], float | None]


class Site:
    """Job 7 on four nodes, of 2 TiB each and 80 GiB on each of two GPUs; a report and a look each minute."""

    def __init__(self) -> None:
        host = signal("host_memory_available_bytes", SignalKind.gauge, Scope.node)
        gpu = [signal(f"gpu_memory_{one}_bytes", SignalKind.gauge, Scope.gpu) for one in ("total", "used")]
        self.telemetry = Telemetry(CLUSTER, catalogue(host, *gpu))
        self.book = MemoryColumns()
        self.sender = Sender(self.book)
        self.leaks = Leaks()
        self.at_s = 0.0
        self.restarts = 0
        self.running: tuple[str, ...] = NAMES
        #: Hours, node -> GiB available on the host, and used on its GPU 1; None: not reported.
        self.host: Shape = lambda hour, node: 1500.0
        self.used: Shape = lambda hour, node: 60.0
        self.chance = np.random.default_rng(1)
        self.watched: frozenset = frozenset()
        self.clear: dict = {}

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=self.at_s)

    def run(self, hours: float) -> list[Finding]:
        found: list[Finding] = []
        for _ in range(round(hours * 60)):
            self.at_s += 60
            nodes = [SlurmNode(name=name, state=("ALLOCATED",), gpus=2, gpu_model="h100") for name in NAMES]
            job = SlurmJob(id="7", state="RUNNING", user="ann", nodes=self.running, restarts=self.restarts)
            slurm = shown(*nodes, jobs=(job,), at_s=self.at_s)
            self.telemetry.show(slurm, Topology(), self.now)
            self.telemetry.update([self._report(name) for name in NAMES], self.book)
            sensed = self.leaks.tick(look(self.now, self.telemetry, slurm=slurm, watched=self.watched))
            found += sensed.findings
            self.clear = dict(sensed.clear_since)
        return found

    def _report(self, name: str):
        hour = self.at_s / 3600
        values: dict[tuple[str, Part], float] = {}
        host, used = self.host(hour, name), self.used(hour, name)
        if host is not None:
            noise = 2 * self.chance.normal()
            values["host_memory_available_bytes", Part()] = max(0.0, host + noise) * GIB
        for gpu in range(2):
            values["gpu_memory_total_bytes", Part(gpu=gpu)] = 80 * GIB
            if used is not None:
                values["gpu_memory_used_bytes", Part(gpu=gpu)] = (used if gpu else 50.0) * GIB
        return self.sender.report(name, self.at_s, values)


def test_host_memory_falling_on_all_nodes_is_reported_with_time_left() -> None:
    site = Site()
    site.host = lambda hour, node: 1500 - 120 * hour
    found = site.run(4)
    assert {(one.fault, one.component, one.fault_class) for one in found} == {
        (JOB_LEAK, JOB, FaultClass.application)
    }
    first = found[0]
    assert START + timedelta(hours=2) <= first.at <= START + timedelta(hours=3)
    assert "job 7 (ann) leaks host memory on all its 4 nodes" in first.text
    left_h = 12.5 - (first.at - START) / timedelta(hours=1)
    reported_h = float(first.text.partition("none is left in ")[2].partition(" h")[0])
    assert abs(reported_h - left_h) < 1.0
    assert first.jobs == ("7",)
    assert len({one.evidence[0].digest for one in found}) == 1


def test_gpu_memory_of_one_node_names_that_node() -> None:
    site = Site()
    site.used = lambda hour, node: 60 + 1.5 * hour if node == "n3" else 60.0
    found = site.run(4)
    assert found
    assert "leaks GPU memory on n3 of its 4 nodes" in found[0].text


def test_growth_of_an_allocator_at_the_start_is_no_leak() -> None:
    site = Site()
    site.used = lambda hour, node: 40 + 36 * (1 - np.exp(-2 * hour))
    site.host = lambda hour, node: 1500 - 400 * min(hour, 1.0)
    assert site.run(6) == []


def test_a_jump_a_saw_and_slow_growth_are_no_leak() -> None:
    jump = Site()
    jump.host = lambda hour, node: 1500.0 if hour < 2 else 300.0
    assert jump.run(5) == []
    saw = Site()  # a buffer that fills and is written out each hour
    saw.host = lambda hour, node: 1500 - 600 * (hour % 1.0)
    assert saw.run(6) == []
    slow = Site()  # none is left in four days
    slow.host = lambda hour, node: 1500 - 15 * hour
    assert slow.run(6) == []


def test_unknown_is_nothing_and_a_node_without_a_job_has_no_owner() -> None:
    silent = Site()
    silent.host = lambda hour, node: None
    silent.used = lambda hour, node: None
    assert silent.run(4) == []
    alone = Site()
    alone.running = ("n1", "n2")
    alone.host = lambda hour, node: 1500 - 120 * hour if node in ("n3", "n4") else 1500.0
    assert alone.run(4) == []


def test_requeued_job_starts_a_new_history() -> None:
    site = Site()
    site.host = lambda hour, node: 1500 - 120 * (hour if hour < 1.5 else hour - 1.5)
    assert site.run(1.5) == []
    site.restarts = 1
    assert site.run(1.5) == []  # an hour and a half of this life, and three hours of falling in all
    assert site.run(1.0)


def test_it_is_over_when_the_fall_has_ended() -> None:
    site = Site()
    site.host = lambda hour, node: 1500 - 120 * min(hour, 4.0)
    assert site.run(4)
    site.watched = frozenset({(JOB_LEAK, JOB)})
    assert site.clear == {}
    site.run(5)
    assert list(site.clear) == [(JOB_LEAK, JOB)]
