"""Nodes that changed are reported with before and after; jobs, racks, caps and repairs explain what looks
so."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, cast

import numpy as np
import pytest

from healer.detection import level_shift as shifts
from healer.detection.features import NAMES, NodeFeatures
from healer.detection.level_shift import DRIFTED, RELEARN_AFTER_S, Shifts
from healer.model import Component, Finding, Part, Place, Scope, SignalKind, SlurmJob, SlurmNode, Topology
from healer.observations.telemetry_windows import Telemetry
from healer.sim.stores import MemoryColumns
from tests.support.measured import CLUSTER, START, Sender, catalogue, shown, signal

NODES = [f"n{number:02}" for number in range(40)]
HOT, CLOCK, MEMORY = "gpu temperature, hottest", "SM clock, slowest", "device memory used"
Shape = Callable[[float], float]


class FakeFeatures(NodeFeatures):
    """Features as a test says them, in units of the peers' spread."""

    def __init__(self) -> None:
        super().__init__()
        self.now = np.zeros((len(NODES), len(NAMES)), np.float32)

    def matrix(self, now: datetime) -> Any:
        return self.now

    def latest(self, feature: str, row: int) -> tuple[float, float]:
        return 71.0, 63.0


class Site:
    """40 nodes in racks of 8, one job on each pair unless said; a look each 5 minutes (a point has 3)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, packed: bytes = b"") -> None:
        monkeypatch.setattr(shifts, "LOOKS_LEAST", 2)
        monkeypatch.setattr(shifts, "classes", lambda *_: [("h100", self.load)] * len(NODES))
        self.load = "busy"
        limit = signal("power_limit_enforced_w", SignalKind.gauge, Scope.gpu)
        self.telemetry = Telemetry(CLUSTER, catalogue(limit))
        self.book = MemoryColumns()
        self.features, self.shifts = FakeFeatures(), Shifts()
        if packed:
            self.shifts.load(packed)
        self.chance = np.random.default_rng(3)
        self.at_s = 0.0
        self.odd: dict[tuple[str, str], Shape] = {}
        self.watched: frozenset[tuple[str, Component]] = frozenset()
        self.clear: dict = {}
        self.jobs(0)

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=self.at_s)

    def jobs(self, number: int) -> None:
        nodes = [SlurmNode(name=name, state=("ALLOCATED",), gpus=1, gpu_model="h100") for name in NODES]
        jobs = tuple(
            SlurmJob(id=f"{number}-{first}", state="RUNNING", nodes=tuple(NODES[first : first + 2]))
            for first in range(0, len(NODES), 2)
        )
        places = {name: Place(rack=f"r{index // 8}") for index, name in enumerate(NODES)}
        self.telemetry.show(shown(*nodes, jobs=jobs, at_s=self.at_s), Topology(places=places), self.now)

    def limits(self, **odd: float) -> None:
        sender = Sender(self.book)
        values = {name: {("power_limit_enforced_w", Part(gpu=0)): odd.get(name, 700.0)} for name in NODES}
        self.telemetry.update(
            [sender.report(name, self.at_s, cast(Any, one)) for name, one in values.items()], self.book
        )

    def run(self, hours: float, *, limits: dict[str, float] | None = None) -> list[Finding]:
        found: list[Finding] = []
        for _ in range(round(hours * 12)):
            self.at_s += 300
            if limits is not None:
                self.limits(**limits)
            self.features.now = 0.3 * self.chance.normal(size=(len(NODES), len(NAMES))).astype(np.float32)
            for (name, feature), shape in self.odd.items():
                self.features.now[NODES.index(name), NAMES.index(feature)] += shape(self.at_s / 3600)
            sensed = self.shifts.tick(self.telemetry, self.features, self.now, self.watched)
            found += sensed.findings
            self.clear = dict(sensed.clear_since)
        return found


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(monkeypatch)
    assert made.run(12) == []
    return made


def where(name: str) -> Component:
    return Component(cluster=CLUSTER, node=name)


def test_changed_node_is_reported_with_before_after_and_since(site: Site) -> None:
    site.odd["n05", HOT] = lambda _: 4.0
    found = site.run(4)
    assert {one.component for one in found} == {where("n05")}
    first = found[0]
    assert (first.fault, first.contributions[0].feature) == (DRIFTED, HOT)
    assert (first.contributions[0].value, first.contributions[0].peers) == (71.0, 63.0)
    assert abs(first.at - (START + timedelta(hours=12))) <= timedelta(minutes=30)
    assert f"{HOT} +4." in first.text or f"{HOT} +3." in first.text
    assert "before +0.0" in first.text or "before -0.0" in first.text or "before +0.1" in first.text
    assert len({one.evidence[0].digest for one in found}) == 1
    assert site.run(4)[-1].evidence[0].digest == first.evidence[0].digest


def test_slow_drift_is_reported_too_and_clears_when_gone(site: Site) -> None:
    site.odd["n05", CLOCK] = lambda hour: -max(0.0, hour - 12) / 12
    assert {one.component.node for one in site.run(48)} == {"n05"}
    site.watched = frozenset({(DRIFTED, where("n05"))})
    del site.odd["n05", CLOCK]
    site.run(8)
    assert (DRIFTED, where("n05")) in site.clear


def test_signals_that_the_job_decides_are_not_watched(site: Site) -> None:
    site.odd["n05", MEMORY] = lambda _: 8.0
    assert site.run(8) == []


def test_shift_that_came_with_a_job_is_reported_only_if_it_outlives_the_job(site: Site) -> None:
    site.jobs(1)
    site.odd["n05", HOT] = lambda _: 4.0  # the first stage of a pipeline, say
    assert site.run(10) == []
    del site.odd["n05", HOT]
    site.jobs(2)
    assert site.run(10) == []
    site.odd["n06", HOT] = lambda _: 4.0
    site.jobs(3)
    assert site.run(6) == []
    site.jobs(4)
    assert {one.component.node for one in site.run(3)} == {"n06"}


def test_a_whole_rack_that_warms_up_is_no_nodes_fault(site: Site) -> None:
    for name in NODES[8:16]:
        site.odd[name, HOT] = lambda _: 4.0
    assert site.run(8) == []


def test_a_tenth_of_all_nodes_at_once_is_no_nodes_fault(site: Site) -> None:
    for name in NODES[::8]:
        site.odd[name, HOT] = lambda _: 4.0
    assert site.run(8) == []


def test_a_lower_power_limit_explains_power_clock_and_heat_and_nothing_else(site: Site) -> None:
    capped = {"n05": 450.0}
    site.odd["n05", CLOCK] = lambda _: -6.0
    assert site.run(6, limits=capped) == []
    site.odd["n05", "PCIe replays"] = lambda _: 6.0
    assert {one.component.node for one in site.run(6, limits=capped)} == {"n05"}


def test_an_idle_node_is_not_looked_at(site: Site) -> None:
    site.load = "idle"
    site.odd["n05", HOT] = lambda _: 4.0
    assert site.run(12) == []


def test_level_is_relearned_after_a_repair(site: Site) -> None:
    site.odd["n05", HOT] = lambda _: 4.0
    assert site.run(4)
    site.shifts.forget(site.telemetry, "n05")
    assert site.run(12) == []


def test_level_held_for_three_days_becomes_the_baseline(site: Site) -> None:
    site.odd["n05", HOT] = lambda _: 4.0
    assert site.run(RELEARN_AFTER_S / 3600)
    site.watched = frozenset({(DRIFTED, where("n05"))})
    assert site.run(24)[1:] == []
    assert (DRIFTED, where("n05")) in site.clear


def test_a_restart_goes_on_where_it_was(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = site.shifts.pack(site.telemetry)
    later = Site(monkeypatch, packed)
    later.at_s = site.at_s
    assert later.run(1) == []
    later.odd["n05", HOT] = lambda _: 4.0
    assert {one.component.node for one in later.run(4)} == {"n05"}
