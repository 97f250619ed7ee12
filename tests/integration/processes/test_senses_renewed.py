"""The tick's thread: what it logs when it fails, and that a returned node is judged from scratch."""

import threading
from collections.abc import Sequence
from datetime import timedelta

import msgspec
import pytest

from healer.detection.tick import Senses
from healer.model import Finding, Loss, LossReason, Part, Ruleset
from healer.model.telemetry import Report, StepBatch
from healer.observations import Picture
from healer.ports.measurements import Samples
from healer.processes import senses_loop as module
from healer.processes.senses_loop import Drops, SensesLoop, SensesParts
from healer.sim.sim_clock import SimClock
from healer.sim.stores import MemoryColumns
from tests.support.loop import shipped
from tests.support.measured import CLUSTER, START, Sender, node, shown

pytestmark = pytest.mark.heavy

NODE = "gpu0001"


class Store:
    """Samples of 15 minutes, read from the beginning by each new reader; may be away."""

    def __init__(self) -> None:
        self.kept: list[Report] = []
        self.away = False
        self._read = 0

    def again(self) -> Samples:
        self._read = 0
        return self

    def new(self) -> tuple[list[Report], list[StepBatch]]:
        if self.away:
            raise ConnectionError("the database is away")
        new, self._read = self.kept[self._read :], len(self.kept)
        return new, []

    def put(self, reports: Sequence[Report]) -> None:
        self.kept.extend(reports)

    def put_steps(self, batches: Sequence[StepBatch]) -> None:
        raise NotImplementedError


class Site:
    """One node whose GPU 3 may have a row that could not be replaced; a look every 5 s."""

    def __init__(self) -> None:
        rules = shipped()
        only = tuple(one for one in rules.detection if one.name == "gpu-row-remap-failed")
        self.rules: Ruleset = msgspec.structs.replace(rules, detection=only)
        self.clock, self.store = SimClock(START), Store()
        self.picture = Picture(CLUSTER, watching_since=START)
        self.picture.show(shown(node(NODE)))
        self.book = MemoryColumns()
        self.sender = Sender(self.book)
        self.why = ""
        self.lost: list[Loss] = []
        self.loop = self.fresh()

    def fresh(self) -> SensesLoop:
        """A detector that has just started."""
        return SensesLoop(
            SensesParts(
                rules=lambda: self.rules,
                prove=lambda: self.why,
                make=lambda rules: (Senses(CLUSTER, rules, self.book), self.store.again()),
                picture=self.picture,
                clock=self.clock,
                drops=Drops(self, CLUSTER),
            )
        )

    def add(self, counts: Sequence[Loss]) -> None:
        self.lost += counts

    def losses(self, clusters: Sequence[str] | None, limit: int) -> list[Loss]:
        return self.lost

    def look(self, seconds: int, value: float | None = 1.0) -> list[Finding]:
        """Every 15 s a sample."""
        found: list[Finding] = []
        for _ in range(0, seconds, 5):
            self.clock.advance(5)
            at_s = int((self.clock.now() - START).total_seconds())
            if value is not None and at_s % 15 == 0:
                self.store.put([self.sender.report(NODE, at_s, {("row_remap_failed", Part(gpu=3)): value})])
            self.loop.once()
            sensed = self.loop.heard()
            found += sensed.findings if sensed is not None else ()
        return found


@pytest.mark.parametrize("restarted", [False, True])
def test_old_fault_is_not_reported_for_a_returned_node(restarted: bool) -> None:
    site = Site()
    (first,) = site.look(60)
    site.picture.clear(NODE, site.clock.now())
    if restarted:
        site.loop = site.fresh()
    assert site.look(120, None) == []
    assert site.look(300, 0.0) == []
    assert first.component.node == NODE


@pytest.mark.parametrize("restarted", [False, True])
def test_fault_still_present_after_return_is_a_new_fact(restarted: bool) -> None:
    site = Site()
    (first,) = site.look(60)
    site.picture.clear(NODE, site.clock.now())
    if restarted:
        site.loop = site.fresh()
    assert site.look(30) == []
    (again,) = site.look(60)
    assert again.component == first.component
    assert again.evidence[0].digest != first.evidence[0].digest


def test_a_restart_after_a_return_loses_nothing() -> None:
    # The store still has the samples from before the return: the new detector passes over them, and its
    # health page must not say that a sender is late.
    site = Site()
    site.look(60)
    site.picture.clear(NODE, site.clock.now())
    site.look(60)
    site.loop = site.fresh()
    site.look(180)
    assert site.lost == []
    site.store.put([site.sender.report(NODE, -3600, {("row_remap_failed", Part(gpu=3)): 1.0})])
    site.look(120)
    assert [(one.reason, one.count) for one in site.lost] == [(LossReason.late, 1)]


def test_new_boot_also_resets_and_the_same_boot_does_not() -> None:
    site = Site()
    at = site.clock.now()
    site.picture.node(NODE).heard_boot("old", at, at)
    assert len(site.look(60)) == 1
    site.picture.node(NODE).heard_boot("old", site.clock.now(), site.clock.now())
    assert site.look(60) == []  # reported already
    site.picture.node(NODE).heard_boot("new", site.clock.now(), site.clock.now())
    assert len(site.look(90)) == 1


def test_rules_that_are_not_proven_are_a_problem_until_others_are() -> None:
    site = Site()
    assert site.loop.problem == ""
    site.why = "rules/cases/own.yaml:3: hot: nothing fired"
    site.loop = site.fresh()
    assert site.look(60) == []
    assert "hot: nothing fired" in site.loop.problem
    site.why = ""
    site.rules = msgspec.structs.replace(site.rules, version="another")
    site.look(60)
    assert site.loop.problem == ""


def test_a_tick_that_fails_again_and_again_is_a_problem_until_one_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site()
    stopped = threading.Event()
    problems: list[str] = []
    once = site.loop.once

    def stepped() -> None:
        """The database is away for three rounds."""
        problems.append(site.loop.problem)
        site.clock.advance(5)
        site.store.away = len(problems) <= 3
        if len(problems) == 6:
            stopped.set()
        once()

    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    monkeypatch.setattr(module, "READ_S", 0.0)
    monkeypatch.setattr(site.loop, "once", stepped)
    site.loop.run(stopped)
    assert [bool(one) for one in problems] == [False, False, True, True, False, False]
    assert "the database is away" in problems[2]
    assert site.loop.problem == ""


def test_a_node_that_came_back_long_ago_costs_nothing_that_is_known_now() -> None:
    site = Site()
    site.picture.clear(NODE, START - timedelta(days=1))
    assert len(site.look(60)) == 1
