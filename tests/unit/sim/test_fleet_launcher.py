"""Which nodes the launcher of the simulated job works on, and which it leaves."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from healer.model import SlurmJob
from healer.sim.fleet.launcher import Launcher
from healer.sim.fleet.scenario import JobSpec

START = datetime(2026, 1, 5, tzinfo=UTC)
SPEC = JobSpec(nodes=3, spares=2, checkpoint_s=300, startup_s=100)
NODES = ("n1", "n2", "n3", "n4", "n5")


def job(**fields: Any) -> SlurmJob:
    return SlurmJob(**({"id": "1", "state": "RUNNING", "nodes": NODES} | fields))


@pytest.fixture
def launcher() -> Launcher:
    made = Launcher(SPEC, START)
    made.look(job(), START)
    return made


def test_the_first_nodes_work_and_the_next_takes_the_place_of_one_that_left(launcher: Launcher) -> None:
    held = job()
    assert launcher.workers(held) == {"n1", "n2", "n3"}
    assert launcher.leave(held, ["n2"], START) == ["n2"]
    assert launcher.workers(held) == {"n1", "n3", "n4"}
    assert launcher.meets_at == START + timedelta(seconds=10)


def test_a_spare_that_leaves_stops_no_worker(launcher: Launcher) -> None:
    held = job()
    assert launcher.leave(held, ["n5"], START) == []
    assert (launcher.left, launcher.meets_at) == ({"n5"}, START)
    assert launcher.workers(held) == {"n1", "n2", "n3"}


def test_no_more_nodes_leave_than_there_are_spares(launcher: Launcher) -> None:
    held = job()
    assert launcher.leave(held, ["n2", "n5", "n3"], START) == ["n2"]
    assert launcher.left == {"n2", "n5"}


def test_the_batch_host_stays_and_so_do_nodes_of_others(launcher: Launcher) -> None:
    assert launcher.leave(job(), ["n1", "n9"], START) == []
    assert launcher.left == frozenset()


def test_a_swap_counts_once_slurm_has_taken_the_node_out_of_the_running_job(launcher: Launcher) -> None:
    launcher.leave(job(), ["n2"], START)
    launcher.look(job(), START)
    assert launcher.swaps == 0
    for _ in range(2):
        launcher.look(job(nodes=("n1", "n3", "n4", "n5")), START)
    assert (launcher.swaps, launcher.left) == (1, frozenset())


def test_a_requeue_before_that_is_no_swap_and_the_next_life_has_left_nothing(launcher: Launcher) -> None:
    launcher.leave(job(), ["n2"], START)
    launcher.look(job(state="PENDING", nodes=(), restarts=1), START)
    again = job(restarts=1)
    launcher.look(again, START)
    assert (launcher.swaps, launcher.left) == (0, frozenset())
    assert launcher.workers(again) == {"n1", "n2", "n3"}


def test_idle_time_is_that_of_the_running_job() -> None:
    launcher = Launcher(SPEC, START)
    shown = [job(state="PENDING", nodes=()), job(), job(nodes=NODES[:4]), job(state="PENDING", nodes=())]
    for number, held in enumerate([*shown, shown[0]]):
        launcher.look(held, START + timedelta(seconds=100 * number))
    assert launcher.idle_s == 100 * (2 + 1)


def test_without_spares_all_nodes_work() -> None:
    launcher = Launcher(replace(SPEC, spares=0), START)
    launcher.look(job(), START)
    assert launcher.workers(job()) == set(NODES)
    assert launcher.leave(job(), ["n2"], START) == []
