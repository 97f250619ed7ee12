"""A job stalled by a link that went down is reported between two ticks; one that keeps stepping is not.

Simulated time: 4 nodes of 4 ranks, steps of 1 s, each rank sends what it has every 5 s at a moment of its
own, as the client does; healer reads every second.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import msgspec
import numpy as np
import pytest

from healer.detection.tick import Senses
from healer.model import Component, Finding, NodeReport, Ruleset
from healer.model.telemetry import Report, StepBatch
from healer.observations import Picture
from healer.processes.senses_loop import SensesLoop, SensesParts
from healer.sim.stores import MemoryColumns
from tests.support.loop import shipped
from tests.support.steps import CLUSTER, START, batch, node_name, slurm

pytestmark = pytest.mark.heavy

NODES, PER, SENDS_S = 4, 4, 5.0
RANKS = NODES * PER


class Job:
    """Steps whose ends are known by number; `sent`: by rank, the last one that it has sent."""

    def __init__(self, seed: int) -> None:
        self.chance = np.random.default_rng(seed)
        self.ends_s = [0.0]
        self.sent = np.zeros(RANKS, int)
        self.due_s = self.chance.uniform(0, SENDS_S, RANKS)
        self.hangs_from_s = float("inf")

    def step(self, step_s: float) -> None:
        self.ends_s.append(self.ends_s[-1] + step_s)

    def sends(self, now_s: float) -> list[StepBatch]:
        """What the ranks send that are due by now."""
        while self.ends_s[-1] + 1 <= min(now_s, self.hangs_from_s):
            self.step(float(self.chance.uniform(0.9, 1.1)))
        ended = int(np.searchsorted(self.ends_s, min(now_s, self.hangs_from_s), side="right")) - 1
        batches = []
        for rank in np.flatnonzero(self.due_s <= now_s).tolist():
            self.due_s[rank] += SENDS_S
            own = np.full(RANKS, np.nan)
            own[rank] = 0.8
            for number in range(self.sent[rank] + 1, ended + 1):
                at = START + timedelta(seconds=self.ends_s[number])
                batches.append(batch(number, own, at=at, step_s=1.0, per=PER))
            self.sent[rank] = ended
        return [replace(one, arrived_at=START + timedelta(seconds=now_s)) for one in batches]


class Site:
    def __init__(self, job: Job) -> None:
        self.job, self.at_s = job, 0.0
        self.picture = Picture(CLUSTER, watching_since=START)
        self.findings_seen: list[Finding] = []
        self._coming: list[StepBatch] = []
        self.loop = SensesLoop(
            SensesParts(rules=shipped, prove=lambda: "", make=self._make, picture=self.picture, clock=self)
        )

    def _make(self, rules: Ruleset) -> "tuple[Senses, Site]":
        return Senses(CLUSTER, rules, MemoryColumns()), self

    def now(self) -> datetime:
        return START + timedelta(seconds=self.at_s)

    def put(self, reports: Sequence[Report]) -> None: ...

    def put_steps(self, batches: Sequence[StepBatch]) -> None: ...

    def new(self) -> tuple[list[Report], list[StepBatch]]:
        coming, self._coming = self._coming, []
        return [], coming

    def run(self, seconds: float) -> None:
        until_s = self.at_s + seconds
        while self.at_s < until_s:
            self.at_s += 1
            self.picture.show(msgspec.structs.replace(slurm(NODES, PER), taken_at=self.now()))
            self._coming += self.job.sends(self.at_s)
            self.loop.once()
            sensed = self.loop.heard()
            self.findings_seen += sensed.findings if sensed is not None else ()

    def lose_link(self, node: int, at_s: float) -> None:
        at = START + timedelta(seconds=at_s)
        self.picture.node_reports[node_name(node)] = NodeReport(at=at, text="mlx5_0: Link down")


@pytest.mark.parametrize("seed", range(5))
def test_link_loss_is_reported_within_five_seconds(seed: int) -> None:
    """Whatever part of a step and of a second is over when the link goes."""
    job = Job(seed)
    site = Site(job)
    site.run(90)
    lost_s = 90 + float(job.chance.uniform(0, 1))
    job.hangs_from_s = lost_s
    site.lose_link(2, lost_s)
    site.run(20)
    (found,) = site.findings_seen
    assert found.fault == "hang" and found.jobs == ("4711",)
    assert found.affected == (Component(cluster=CLUSTER, node=node_name(2)),)
    assert (found.arrived_at - START).total_seconds() - lost_s <= 5


def test_a_link_that_flaps_while_the_job_steps_says_nothing() -> None:
    site = Site(Job(7))
    site.run(60)
    for _ in range(40):
        site.lose_link(1, site.at_s)
        site.run(7)
    assert site.findings_seen == []


def test_a_job_that_stepped_on_after_its_link_flapped_may_pause_as_before() -> None:
    """Half a minute later it stalls for 4 s: that is no longer due to the link."""
    site = Site(Job(8))
    site.run(60)
    site.lose_link(1, site.at_s)
    site.run(30)
    site.job.step(4.0)
    site.run(30)
    assert site.findings_seen == []


def test_a_link_that_flaps_in_a_pause_did_not_begin_it() -> None:
    site = Site(Job(8))
    site.run(60)
    site.job.step(9.0)
    site.run(5)
    site.lose_link(1, site.at_s)
    site.run(30)
    assert site.findings_seen == []


def test_lost_link_between_two_ticks_keeps_findings_cleared() -> None:
    """The walk uses the newest list of cleared findings; a look at one job must not shorten it."""
    job = Job(9)
    site = Site(job)
    other = ("hang", Component(cluster=CLUSTER, job="1"))
    site.picture.watched = frozenset({other})
    site.run(91)
    job.hangs_from_s = 91
    site.lose_link(2, 91)
    heard = []
    for _ in range(5):
        site.at_s += 1
        site.loop.once()
        heard.append(site.loop.heard())
    (found,) = [one for one in heard if one is not None and one.findings]
    assert other in found.clear_since
