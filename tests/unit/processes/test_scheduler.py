"""The scheduler's duties: Slurm's picture, due runs, and a duty that fails."""

import threading
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from healer.model import (
    Controller,
    Place,
    Ruleset,
    Run,
    RunState,
    SlurmCall,
    SlurmNode,
    SlurmSnapshot,
    Topology,
    Trouble,
)
from healer.observations.slurm_poll import POLL_S
from healer.ports.scheduling import NotAvailable, SchedulerUnavailable
from healer.processes.scheduler import Duty, Poll, run_duties, sweep, watching_sweeps, woken_by
from healer.sim.memory_ledger import MemoryLedger
from healer.sim.sim_clock import SimClock
from healer.sim.sim_slurm import SimScheduler
from tests.support.loop import CLUSTER, START, later, name, rules_in
from tests.support.wait import wait_until


class Kept:
    """`healer.ports.scheduling.Snapshots` in memory, and what failed."""

    def __init__(self) -> None:
        self.snapshot: SlurmSnapshot | None = None
        self.state: Controller | None = None
        self.failures: list[str] = []

    def put(self, snapshot: SlurmSnapshot) -> None:
        self.snapshot = snapshot

    def latest(self, cluster: str) -> SlurmSnapshot | None:
        return self.snapshot

    def failed(self, cluster: str, error: str) -> None:
        self.failures.append(error)

    def put_controller(self, controller: Controller) -> None:
        self.state = controller

    def controller(self, cluster: str) -> Controller | None:
        return self.state

    @property
    def troubles(self) -> dict[Trouble, datetime]:
        assert self.state is not None
        return self.state.since


class Slurm(SimScheduler):
    """A Slurm whose controller can be away, slow or behind, and whose tree counts who reads it."""

    def __init__(self, cluster: str, clock: SimClock, nodes: int) -> None:
        super().__init__(cluster, clock, nodes)
        self.clock = clock
        self.away, self.unable = False, False
        self.figures: dict[str, Any] = {}
        self.tree: dict[str, tuple[str, ...]] = {}
        self.tree_reads, self.figure_reads, self.reads = 0, 0, 0
        self.takes_s = 0.0

    def snapshot(self) -> SlurmSnapshot:
        if self.away:
            raise SchedulerUnavailable("slurmctld does not answer")
        self.reads += 1
        self.clock.advance(self.takes_s)
        return super().snapshot()

    def controller(self) -> Controller:
        self.figure_reads += 1
        if self.unable:
            raise NotAvailable(SlurmCall.controller, "this adapter has no sdiag")
        if self.away:
            raise SchedulerUnavailable("no ping")
        return msgspec.structs.replace(super().controller(), **self.figures)

    def topology(self) -> dict[str, tuple[str, ...]]:
        self.tree_reads += 1
        return dict(self.tree)


class Polled:
    """One poller and its Slurm."""

    def __init__(self, nodes: int = 4, *, cluster: str = CLUSTER, rules: Ruleset | None = None) -> None:
        self.clock, self.kept = SimClock(START), Kept()
        self.slurm = Slurm(cluster, self.clock, nodes)
        self.rules = rules or rules_in()
        self.sweeping, self.rest_s = False, 0.0
        self.begin()

    def begin(self) -> None:
        """A process that starts."""
        poll = Poll(
            self.slurm, self.kept, lambda: self.rules, CLUSTER,
            clock=self.clock, stopwatch=self.stopwatch,
        )  # fmt: skip
        self.poll = watching_sweeps(poll, lambda: self.sweeping, self.stopwatch)

    def stopwatch(self) -> float:
        return (self.clock.now() - START).total_seconds()

    def wait(self, seconds: float) -> float:
        self.clock.advance(seconds)
        return self.poll()

    def rested_s(self) -> float:
        """Rests as the duty does until Slurm has been asked again; the seconds between the two."""
        reads, begun = self.slurm.reads, self.stopwatch()
        while self.slurm.reads == reads:
            self.rest_s = self.wait(self.rest_s)
        return self.stopwatch() - begun - self.slurm.takes_s

    @property
    def nodes(self) -> Mapping[str, SlurmNode]:
        assert self.kept.snapshot is not None
        return self.kept.snapshot.nodes


def test_a_poll_keeps_slurms_picture_with_the_sites_places() -> None:
    places = Topology(places={name(1): Place(rack="r1", switch="leaf1")})
    site = Polled(rules=rules_in(topology=places))
    assert site.poll() == POLL_S
    assert (site.nodes[name(1)].rack, site.nodes[name(2)].rack) == ("r1", "")


def test_while_slurm_is_away_the_old_picture_stays_and_it_is_noted_why() -> None:
    site = Polled()
    site.poll()
    old = site.kept.snapshot
    site.slurm.away = True
    assert site.wait(10) == POLL_S
    assert site.kept.snapshot is old
    assert site.kept.failures == ["slurmctld does not answer"]
    assert site.kept.troubles == {Trouble.away: later(10)}
    site.wait(2)
    assert site.kept.troubles == {Trouble.away: later(10)}
    site.slurm.away = False
    site.wait(2)
    assert site.kept.troubles == {}


def test_the_picture_of_another_cluster_is_not_ours() -> None:
    site = Polled(cluster="pod2")
    site.poll()
    assert site.kept.snapshot is None
    assert "pod2" in site.kept.failures[0]
    assert "HEALER_CLUSTER" in site.kept.failures[0]
    assert site.kept.state is not None
    assert (site.kept.state.cluster, site.kept.troubles) == (CLUSTER, {Trouble.other_cluster: START})


def test_a_backup_that_took_over_and_a_backlog_are_states_since_when_they_began() -> None:
    site = Polled()
    site.slurm.figures = {"role": "backup", "host": "ctl2", "agent_queue": 900, "dbd_queue": 3}
    site.sweeping = True  # no reason to press it more
    site.rest_s = site.poll()
    assert [site.rested_s() for _ in range(4)] == pytest.approx([4, 8, 12, 12])
    assert site.kept.troubles == {Trouble.backup: START, Trouble.backlog: START}
    site.slurm.figures = {"role": "primary"}
    assert site.wait(12) == POLL_S
    assert site.kept.troubles == {}


def test_a_long_rest_ends_early_when_a_sweep_has_begun_meanwhile() -> None:
    site = Polled()
    site.slurm.takes_s = 0.3
    site.rest_s = site.poll()
    assert site.rested_s() == pytest.approx(12)
    site.sweeping = True
    assert [site.rested_s() for _ in range(2)] == pytest.approx([5, 5])
    site.sweeping = False
    assert site.rested_s() == pytest.approx(12)


def test_restarted_poller_knows_when_a_problem_began() -> None:
    site = Polled()
    site.slurm.figures = {"role": "backup"}
    site.poll()
    site.begin()
    site.wait(60)
    assert site.kept.troubles == {Trouble.backup: START}


def test_an_adapter_that_cannot_ask_the_controller_is_no_trouble() -> None:
    site = Polled()
    site.slurm.unable = True
    site.poll()
    assert site.kept.state == Controller(cluster=CLUSTER, at=START, adapter=site.slurm.name)


def test_while_all_is_well_slurmctlds_figures_are_read_every_30_seconds_only() -> None:
    site = Polled()
    site.poll()
    for _ in range(29):
        site.wait(1)
    assert site.slurm.figure_reads == 1
    site.slurm.figures = {"agent_queue": 900}
    site.wait(1)
    assert site.kept.troubles == {Trouble.backlog: later(30)}
    site.wait(4)
    assert site.slurm.figure_reads == 3  # the trouble's end is seen at the next poll
    site.slurm.figures = {}
    site.wait(8)
    site.wait(2)
    assert (site.kept.troubles, site.slurm.figure_reads) == ({}, 4)


def test_slurm_that_goes_away_is_noted_at_the_next_poll() -> None:
    site = Polled()
    site.poll()
    site.slurm.away = True
    site.wait(2)
    assert site.kept.troubles == {Trouble.away: later(2)}


def test_the_tree_is_read_at_the_start_every_ten_minutes_and_when_the_list_of_nodes_changed() -> None:
    site = Polled()
    site.slurm.tree = {name(1): ("leaf1", "spine")}
    site.poll()
    assert site.nodes[name(1)].switches == ("leaf1", "spine")
    for _ in range(5):
        site.wait(2)
    assert site.slurm.tree_reads == 1
    site.slurm.tree = {name(1): ("leaf2", "spine")}
    site.wait(600)
    assert (site.slurm.tree_reads, site.nodes[name(1)].switch) == (2, "leaf2")
    site.slurm.away = True
    site.wait(700)
    site.slurm.away = False
    site.wait(2)
    assert site.slurm.tree_reads == 3


def run(number: int) -> Run:
    return Run(
        id=f"r{number}",
        cluster=CLUSTER,
        playbook="drain",
        state=RunState.running,
        by="ann",
        reason="x",
        created_at=START,
        node=name(number),
    )


@pytest.mark.heavy
def test_the_sweep_pokes_what_is_due_but_not_every_time() -> None:
    clock = SimClock(START)
    ledger = MemoryLedger(CLUSTER, clock)
    with ledger.transaction() as tx:
        tx.create_run(run(1))
        tx.create_run(msgspec.structs.replace(run(2), wake_at=START + timedelta(seconds=60)))
    poked: list[str] = []
    work = sweep(ledger, poked.extend, clock)
    for _ in range(5):
        work()
    assert poked == []  # its creator has sent it
    clock.advance(1)
    for _ in range(5):
        work()
    assert poked == ["r1"]
    clock.advance(59)
    work()
    assert poked == ["r1", "r2"]
    # A poke may be lost: after a second it is sent again.
    wait_until(lambda: work() or poked.count("r1") > 1, 5, what="the second poke")


def test_a_duty_that_fails_is_tried_again_and_hinders_no_other() -> None:
    stopped = threading.Event()
    calls: list[str] = []

    def bad() -> float | None:
        calls.append("bad")
        raise RuntimeError("it broke")

    def good() -> float | None:
        calls.append("good")
        if calls.count("good") >= 20 and calls.count("bad") >= 3:
            stopped.set()
        return None

    duties = [Duty("bad", 0.01, bad), Duty("good", 0.01, good)]
    worker = threading.Thread(target=run_duties, args=(duties, stopped))
    worker.start()
    worker.join(timeout=20)
    assert not worker.is_alive()
    assert calls.count("bad") >= 3


def test_a_duty_is_tried_again_however_often_it_has_failed() -> None:
    """As each does while the database is away for hours."""
    stopped, calls, enough = threading.Event(), list[int](), 1100

    def bad() -> None:
        calls.append(1)
        if len(calls) == enough:
            stopped.set()
        raise ConnectionError("the database is away")

    worker = threading.Thread(target=run_duties, args=([Duty("bad", 0.0, bad)], stopped))
    with capture_logs():
        worker.start()
        stopped.wait(20)
        stopped.set()
        worker.join(timeout=20)
    assert len(calls) == enough


@pytest.mark.parametrize("rest", [0.0, 0.005])
def test_a_duty_says_itself_how_long_it_rests(rest: float) -> None:
    stopped = threading.Event()
    calls: list[int] = []

    def work() -> float | None:
        calls.append(1)
        if len(calls) >= 10:
            stopped.set()
        return rest

    worker = threading.Thread(target=run_duties, args=([Duty("one", 3600, work)], stopped))
    worker.start()
    worker.join(timeout=20)
    assert not worker.is_alive()
    assert len(calls) >= 10


class Site:
    """Duties that are woken, running; `waits` is what the look finds."""

    def __init__(self) -> None:
        self.waits: set[str] = set()
        self.broken = False
        self.looks = 0
        self.done = {"sweep": 0, "seal": 0}
        self._stopped = threading.Event()
        duties = [Duty(name, 0.001, lambda name=name: self._work(name)) for name in self.done]
        self._thread = threading.Thread(target=run_duties, args=(woken_by(self._look, duties), self._stopped))

    def _look(self) -> set[str]:
        self.looks += 1
        if self.broken:
            raise ConnectionError("the database is away")
        return self.waits

    def _work(self, name: str) -> None:
        self.waits = self.waits - {name}
        self.done[name] += 1

    def __enter__(self) -> "Site":
        self._thread.start()
        wait_until(lambda: all(self.done.values()), 15, what="each duty began")
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(timeout=15)
        assert not self._thread.is_alive()


def test_a_duty_that_is_named_is_woken_and_another_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("healer.processes.scheduler.UNWOKEN_S", 3600.0)
    with Site() as site:
        for times in (2, 3):
            site.waits = {"sweep"}
            wait_until(lambda times=times: site.done["sweep"] == times, 15, what="the sweep is woken")
        seen = site.looks
        wait_until(lambda: site.looks >= seen + 2, 15, what="it is looked twice more")
        assert site.done == {"sweep": 3, "seal": 1}


def test_a_look_that_fails_wakes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("healer.processes.scheduler.UNWOKEN_S", 3600.0)
    with Site() as site:
        site.broken = True
        wait_until(lambda: min(site.done.values()) >= 2, 15, what="each looks for itself")


def test_a_duty_looks_for_itself_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("healer.processes.scheduler.UNWOKEN_S", 0.01)
    with Site() as site:
        wait_until(lambda: min(site.done.values()) >= 3, 15, what="they were not named")
