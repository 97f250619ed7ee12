"""What the simulated Slurm shows again: the same objects while nothing changes, and never an old state."""

from datetime import UTC, datetime

from healer.sim.sim_clock import SimClock
from healer.sim.sim_slurm import SimScheduler

START = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)


def slurm() -> tuple[SimScheduler, SimClock]:
    clock = SimClock(START)
    return SimScheduler("pod1", clock, 8), clock


def test_nothing_changed_is_the_same_object() -> None:
    site, clock = slurm()
    site.add_job(nodes=4)
    clock.advance(1)
    first = site.snapshot()
    clock.advance(1)
    again = site.snapshot()
    assert again.nodes is first.nodes
    assert again.jobs is first.jobs
    assert again.taken_at > first.taken_at


def test_only_what_changed_is_a_new_node() -> None:
    site, _ = slurm()
    before = site.snapshot().nodes
    site.drain("gpu0003", "healer:x")
    after = site.snapshot().nodes
    assert after["gpu0003"].drain
    assert after["gpu0003"].reason == "healer:x"
    assert all(after[name] is before[name] for name in before if name != "gpu0003")
    assert after["gpu0003"] == site.node("gpu0003")


def test_time_alone_changes_it_too() -> None:
    site, clock = slurm()
    job = site.add_job(nodes=2, runtime_s=60)
    assert site.snapshot().jobs[job].state == "RUNNING"
    due = site.next_due()
    assert due is not None
    clock.set(due)
    assert site.snapshot().jobs[job].state == "COMPLETING"
    clock.advance(1)
    assert site.snapshot().nodes["gpu0001"].state == ("IDLE",)


def test_a_node_that_answers_again_keeps_the_drain_that_came_before_slurm_gave_it_up() -> None:
    site, clock = slurm()
    site.silence("gpu0002")
    site.drain("gpu0002", "healer:silent")
    clock.advance(301)
    assert site.node("gpu0002").base == "DOWN"
    site.answer("gpu0002")
    shown = site.node("gpu0002")
    assert (shown.base, shown.drain, shown.reason) == ("IDLE", True, "healer:silent")


def test_node_set_down_by_a_person_stays_down_when_it_answers() -> None:
    site, _ = slurm()
    site.set_node_down("gpu0002", "broken fan", "ann")
    site.answer("gpu0002")
    assert site.node("gpu0002").base == "DOWN"
