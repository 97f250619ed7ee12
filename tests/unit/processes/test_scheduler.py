"""The scheduler's duties: Slurm's picture, due runs, and a duty that fails."""

import threading
from datetime import timedelta

import msgspec
import pytest

from healer.model import Place, Run, RunState, SlurmSnapshot, Topology
from healer.ports import SchedulerUnavailable
from healer.processes.scheduler import POLL_S, Duty, poll_slurm, run_duties, sweep
from healer.sim.clock import SimClock
from healer.sim.ledger import MemoryLedger
from healer.sim.slurm_core import SimScheduler
from tests.support.loop import CLUSTER, START, name, rules_in
from tests.support.wait import wait_until


class Kept:
    """`healer.ports.Snapshots` in memory, and what failed."""

    def __init__(self) -> None:
        self.snapshot: SlurmSnapshot | None = None
        self.failures: list[str] = []

    def put(self, snapshot: SlurmSnapshot) -> None:
        self.snapshot = snapshot

    def latest(self, cluster: str) -> SlurmSnapshot | None:
        return self.snapshot


class Away(SimScheduler):
    def snapshot(self) -> SlurmSnapshot:
        raise SchedulerUnavailable("slurmctld does not answer")


def site() -> tuple[SimClock, Kept]:
    return SimClock(START), Kept()


def test_a_poll_keeps_slurms_picture_with_the_sites_places() -> None:
    clock, kept = site()
    places = Topology(places={name(1): Place(rack="r1", switch="leaf1")})
    rules = rules_in(topology=places)
    slurm = SimScheduler(CLUSTER, clock, 4)
    rest = poll_slurm(slurm, kept, lambda: rules, kept.failures.append, CLUSTER)()
    assert kept.snapshot is not None
    assert (kept.snapshot.nodes[name(1)].rack, kept.snapshot.nodes[name(2)].rack) == ("r1", "")
    assert rest is not None
    assert rest >= POLL_S


@pytest.mark.parametrize(("took_s", "rest_s"), [(0.01, POLL_S), (0.5, 5.0), (3.0, 10.0), (25.0, 10.0)])
def test_a_slow_slurm_is_asked_less_often_but_before_its_picture_is_stale(
    took_s: float, rest_s: float
) -> None:
    clock, kept = site()
    times = iter((100.0, 100.0 + took_s))
    slurm = SimScheduler(CLUSTER, clock, 4)
    poll = poll_slurm(slurm, kept, rules_in, kept.failures.append, CLUSTER, lambda: next(times))
    assert poll() == pytest.approx(rest_s)


def test_while_slurm_is_away_the_old_picture_stays_and_it_is_noted_why() -> None:
    clock, kept = site()
    old = SlurmSnapshot(cluster=CLUSTER, taken_at=START - timedelta(seconds=60))
    kept.put(old)
    poll_slurm(Away(CLUSTER, clock, 4), kept, rules_in, kept.failures.append, CLUSTER)()
    assert kept.snapshot is old
    assert kept.failures == ["slurmctld does not answer"]


def test_the_picture_of_another_cluster_is_not_ours() -> None:
    clock, kept = site()
    poll_slurm(SimScheduler("pod2", clock, 4), kept, rules_in, kept.failures.append, CLUSTER)()
    assert kept.snapshot is None
    assert "pod2" in kept.failures[0]
    assert "HEALER_CLUSTER" in kept.failures[0]


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
    assert poked == ["r1"]
    clock.advance(60)
    work()
    assert poked == ["r1", "r2"]
    # A poke may be lost: after a second it is told again.
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
