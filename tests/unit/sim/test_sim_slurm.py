"""What the simulated Slurm does as its clock passes."""

from datetime import UTC, datetime, timedelta

import pytest

from healer.model import Reservation, SlurmNode, Submission
from healer.sim.sim_clock import SimClock
from healer.sim.sim_slurm import SimScheduler, sim_nodes
from healer.sim.slurm_world import SlurmTimes

START = datetime(2026, 11, 20, 9, 0, tzinfo=UTC)


@pytest.fixture
def clock() -> SimClock:
    return SimClock(START)


@pytest.fixture
def slurm(clock: SimClock) -> SimScheduler:
    return SimScheduler("pod1", clock, 4)


def state(slurm: SimScheduler, job: str) -> str:
    found = slurm.job(job)
    return found.state if found else "forgotten"


def test_a_requeued_job_waits_121_s(slurm: SimScheduler, clock: SimClock) -> None:
    job = slurm.add_job()
    slurm.requeue(job)
    assert state(slurm, job) == "COMPLETING"
    clock.advance(1)
    assert state(slurm, job) == "PENDING"
    clock.advance(119)
    assert state(slurm, job) == "PENDING"
    clock.advance(1)
    assert state(slurm, job) == "RUNNING"


def test_start_now_has_no_effect_while_the_job_completes(slurm: SimScheduler, clock: SimClock) -> None:
    job = slurm.add_job()
    slurm.requeue(job)
    slurm.start_now(job)
    clock.advance(10)
    assert state(slurm, job) == "PENDING"
    slurm.start_now(job)
    clock.advance(2)
    assert state(slurm, job) == "RUNNING"


def test_a_job_ends_by_itself_and_is_forgotten_later(slurm: SimScheduler, clock: SimClock) -> None:
    job = slurm.add_job(runtime_s=60)
    clock.advance(59)
    assert state(slurm, job) == "RUNNING"
    clock.advance(2)
    assert state(slurm, job) == "COMPLETED"
    clock.advance(300)
    assert state(slurm, job) == "forgotten"


def test_a_silent_node_is_down_after_slurmd_timeout_and_its_job_moves(
    slurm: SimScheduler, clock: SimClock
) -> None:
    job = slurm.add_job(nodes=2)
    slurm.silence("gpu0001")
    assert slurm.node("gpu0001").state == ("ALLOCATED", "NOT_RESPONDING")
    clock.advance(300)
    down = slurm.node("gpu0001")
    assert (down.state, down.reason) == (("DOWN", "NOT_RESPONDING"), "Not responding")
    clock.advance(122)
    moved = slurm.job(job)
    assert moved is not None and (moved.restarts, "gpu0001" in moved.nodes) == (1, False)
    slurm.answer("gpu0001")
    assert slurm.node("gpu0001").in_service


def test_slurm_itself_replaces_no_persons_reason(slurm: SimScheduler, clock: SimClock) -> None:
    slurm.person_drain("gpu0001", "alice: PSU", "alice")
    slurm.silence("gpu0001")
    clock.advance(300)
    node = slurm.node("gpu0001")
    assert (node.base, node.drain, node.reason, node.reason_user) == ("DOWN", True, "alice: PSU", "alice")


def test_unplanned_reboot(slurm: SimScheduler, clock: SimClock) -> None:
    before = slurm.node("gpu0001").boot_at
    clock.advance(5)
    slurm.boot("gpu0001")
    node = slurm.node("gpu0001")
    assert before is not None and node.boot_at == START + timedelta(seconds=5) > before
    assert (node.base, node.reason) == ("DOWN", "Node unexpectedly rebooted")


def test_jobs_share_a_node_until_its_gpus_are_gone(slurm: SimScheduler) -> None:
    for node in ("gpu0002", "gpu0003", "gpu0004"):
        slurm.drain(node, "healer:x")
    first, second, third = (slurm.add_job(gpus=4) for _ in range(3))
    assert [state(slurm, job) for job in (first, second, third)] == ["RUNNING", "RUNNING", "PENDING"]
    assert slurm.node("gpu0001").base == "ALLOCATED"
    slurm.cancel(first)
    assert slurm.node("gpu0001").state == ("MIXED", "COMPLETING")


def test_a_maintenance_reservation_keeps_all_but_its_own_jobs_out(
    slurm: SimScheduler, clock: SimClock
) -> None:
    other = slurm.add_job(required=["gpu0001"])
    slurm.reserve(Reservation(name="test", nodes=("gpu0001",), users=("root",), maintenance=True))
    assert slurm.node("gpu0001").planned
    assert state(slurm, other) == "RUNNING"
    slurm.cancel(other)
    waiting = slurm.add_job(required=["gpu0001"])
    test = slurm.submit(
        Submission(name="t", script="#!/bin/sh", nodes=("gpu0001",), time_limit_s=60, reservation="test")
    )
    clock.advance(1)
    assert (state(slurm, test), state(slurm, waiting)) == ("RUNNING", "PENDING")
    slurm.unreserve("test")
    assert slurm.node("gpu0001").state == ("ALLOCATED",)
    slurm.complete(test)
    clock.advance(1)
    assert state(slurm, waiting) == "RUNNING"


def test_its_nodes_keep_rack_switch_and_driver(clock: SimClock) -> None:
    nodes = [SlurmNode(name="n1", gpus=4, rack="r1", switch="leaf-1", driver="580.65", partitions=("train",))]
    node = SimScheduler("pod1", clock, nodes).node("n1")
    assert (node.gpus, node.rack, node.switch, node.driver) == (4, "r1", "leaf-1", "580.65")


def test_the_same_orders_at_the_same_times_give_the_same_cluster() -> None:
    def play() -> object:
        clock = SimClock(START)
        slurm = SimScheduler("pod1", clock, sim_nodes(8))
        for count in (1, 3, 2):
            slurm.add_job(nodes=count, runtime_s=50)
            clock.advance(7)
        slurm.set_node_down("gpu0002")
        clock.advance(200)
        return slurm.snapshot()

    assert play() == play()


def test_the_clock_never_goes_back(clock: SimClock) -> None:
    with pytest.raises(ValueError, match="back"):
        clock.advance(-1)
    with pytest.raises(ValueError, match="back"):
        clock.set(START - timedelta(seconds=1))
    with pytest.raises(ValueError, match="aware"):
        SimClock(datetime(2026, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize("in_order", [False, True])
def test_a_job_that_waits_for_nodes_keeps_later_ones_waiting_only_in_order(
    clock: SimClock, in_order: bool
) -> None:
    slurm = SimScheduler("pod1", clock, 4, times=SlurmTimes(in_order=in_order))
    slurm.add_job(nodes=2)
    large, later = slurm.add_job(nodes=3), slurm.add_job()
    assert (state(slurm, large), state(slurm, later)) == ("PENDING", "PENDING" if in_order else "RUNNING")
    if in_order:
        found = slurm.job(later)
        assert found is not None and found.reason == "Priority"
