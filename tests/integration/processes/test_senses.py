"""The tick's thread: what it reads, and what it does when the clock is not what it was."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import pytest

from healer.detection.tick import Senses
from healer.model import Column, Detections, Part, Ruleset, SlurmNode, SlurmSnapshot
from healer.model.telemetry import Report, StepBatch
from healer.observations import Picture
from healer.processes import senses_loop as module
from healer.processes.senses_loop import FEW, SensesLoop, SensesParts
from healer.sim.stores import MemoryColumns
from tests.support.loop import shipped

pytestmark = pytest.mark.heavy

CLUSTER, START = "pod1", datetime.fromisoformat("2026-11-20T03:00:00+00:00")
ASKED, HEAT = Column("gpu_recovery_action", Part(gpu=0)), Column("gpu_temp_c", Part(gpu=0))
NONE, RESET = 0.0, 1.0


class Clock:
    def __init__(self) -> None:
        self.at = START

    def now(self) -> datetime:
        return self.at


class Feed:
    """A reader of samples: each call gives the next chunk; `kept` is what a new reader begins with."""

    def __init__(self) -> None:
        self.chunks: list[list[Report]] = []
        self.read = 0
        self.on_read: Callable[[], object] = lambda: None

    def put(self, reports: Sequence[Report]) -> None: ...

    def put_steps(self, batches: Sequence[StepBatch]) -> None: ...

    def new(self) -> tuple[list[Report], list[StepBatch]]:
        self.read += 1
        self.on_read()
        return (self.chunks.pop(0) if self.chunks else []), []


class Site:
    """Two nodes, whose GPU says each 5 s what it asks for."""

    def __init__(self) -> None:
        self.rules, self.book = shipped(), MemoryColumns()
        self.clock, self.feed = Clock(), Feed()
        self.ids = np.array(self.book.ids([ASKED, HEAT]), np.int32)
        self.made: list[Senses] = []
        self.picture = Picture(CLUSTER, watching_since=START)
        self.parts = SensesParts(
            rules=lambda: self.rules,
            prove=lambda: "",
            make=self._make,
            picture=self.picture,
            clock=self.clock,
        )
        self.loop = SensesLoop(self.parts)
        self.rules_seen: list[str] = []

    def _make(self, rules: Ruleset) -> tuple[Senses, Feed]:
        self.made.append(Senses(CLUSTER, rules, self.book))
        return self.made[-1], self.feed

    def report(self, asked: float = NONE, *, node: str = "gpu0", at: datetime | None = None) -> Report:
        at = at or self.clock.at
        return Report(CLUSTER, node, at, at, self.ids, np.array([asked, 50.0]))

    def run(self, seconds: float, asked: float) -> None:
        end = self.clock.at + timedelta(seconds=seconds)
        while self.clock.at < end:
            self.clock.at += timedelta(seconds=5)
            nodes = {name: SlurmNode(name=name, state=("IDLE",), gpus=1) for name in ("gpu0", "gpu1")}
            self.picture.show(SlurmSnapshot(cluster=CLUSTER, taken_at=self.clock.at, nodes=nodes, jobs={}))
            self.feed.chunks.append([self.report(asked)])
            self.loop.once()
            sensed: Detections | None = self.loop.heard()
            self.rules_seen += [one.rule for one in sensed.findings] if sensed else []


def test_clock_set_back_an_hour_blinds_no_node() -> None:
    site = Site()
    site.run(120, NONE)
    site.clock.at -= timedelta(hours=1)
    site.run(120, RESET)
    assert "gpu-recovery-asked" in site.rules_seen
    assert len(site.made) == 2


class Trends:
    """Counts how often what was learnt is written down."""

    written = 0

    def read(self) -> dict[str, bytes]:
        return {}

    def write(self, packed: Mapping[str, bytes], at: datetime) -> None:
        self.written += 1


def test_a_clock_set_back_a_day_stops_no_keeping_of_what_was_learnt() -> None:
    site, trends = Site(), Trends()
    site.loop = SensesLoop(replace(site.parts, trends=trends))
    site.run(60, NONE)
    site.clock.at -= timedelta(days=1)
    site.run(3700, NONE)
    assert trends.written


def test_a_clock_that_is_set_by_some_seconds_costs_nothing() -> None:
    site = Site()
    site.run(120, NONE)
    site.clock.at -= timedelta(seconds=8)
    site.run(120, RESET)
    assert "gpu-recovery-asked" in site.rules_seen
    assert len(site.made) == 1


def test_one_host_with_a_fast_clock_blinds_no_node() -> None:
    site = Site()
    site.run(60, NONE)
    ahead = site.clock.at + timedelta(hours=1)
    site.feed.chunks.append([site.report(node="gpu1", at=ahead), site.report()])
    site.run(120, RESET)
    assert "gpu-recovery-asked" in site.rules_seen
    assert len(site.made) == 1


def test_one_look_reads_on_while_there_is_more() -> None:
    site = Site()
    site.run(5, NONE)
    before = site.feed.read
    site.feed.chunks = [[site.report()] * FEW, [site.report()] * FEW, [site.report()]]
    site.loop.once()
    assert site.feed.read == before + 3


@pytest.mark.parametrize(("setting", "rebuilt"), [("READ_ON_S", True), ("REBUILD_S", False)])
def test_a_flood_holds_up_neither_a_look_nor_a_rebuild(
    monkeypatch: pytest.MonkeyPatch, setting: str, rebuilt: bool
) -> None:
    site = Site()
    if rebuilt:
        site.run(5, NONE)
    monkeypatch.setattr(module, setting, 10.0)
    flood = [site.report(at=START)] * FEW

    def more() -> None:
        site.clock.at += timedelta(seconds=1)
        site.feed.chunks.append(flood)
        assert site.feed.read < 100

    site.feed.on_read = more
    site.loop.once()
    assert site.feed.read < 20
