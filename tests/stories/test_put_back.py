"""A job that Slurm itself requeues, because a node went down, starts at once and not after two minutes."""

from datetime import timedelta

import pytest

from healer.decisions.comments import remark_in
from healer.model import Mode, Reservation, Run, RunState, Spares
from tests.support.jobs import guards, job_of
from tests.support.loop import LOST, Site, later, name, rules_in

WORK = "work on the host, ticket 1"


def works(**options: object) -> tuple[Site, str]:
    """A job on gpu0001 and gpu0002 of ten nodes; (the site, the job)."""
    site = Site(10, **options)  # type: ignore[arg-type]
    job = site.slurm.add_job(nodes=2)
    site.run_for(5)
    assert job_of(site, job).nodes == (name(1), name(2))
    return site, job


def taken_down(site: Site, node: int = 1) -> None:
    """A person takes the node away under the job; Slurm requeues it."""
    site.slurm.person_drain(name(node), WORK, "hall")
    site.slurm.set_node_down(name(node), WORK, "hall")


def starts(site: Site) -> list[Run]:
    return [run for run in site.runs if run.playbook == "start-requeued"]


def test_the_job_of_a_node_that_went_down_runs_within_seconds() -> None:
    site, job = works()
    taken_down(site)
    site.run_for(10)
    shown = job_of(site, job)
    assert (shown.state, shown.restarts) == ("RUNNING", 1)
    assert name(1) not in shown.nodes
    (run,) = starts(site)
    assert (run.state, run.mode, run.incident) == (RunState.done, Mode.auto, site.open_incidents[0].id)
    assert site.node(1).reason == WORK


def test_without_healer_the_same_job_waits_for_two_minutes() -> None:
    site, job = works(mode=Mode.shadow)
    taken_down(site)
    site.run_for(110)
    shown = job_of(site, job)
    assert (shown.state, shown.reason) == ("PENDING", "BeginTime")
    (run,) = starts(site)
    assert (run.shadow, run.state) == (True, RunState.done)
    site.run_for(15)
    assert job_of(site, job).state == "RUNNING"


@pytest.mark.parametrize("mode", [Mode.suggest, Mode.approve])
def test_requeued_job_is_not_started_in_suggest_or_approve_mode(mode: Mode) -> None:
    site, _ = works(mode=mode)
    taken_down(site)
    site.run_for(20)
    assert not starts(site)


def test_a_node_that_stops_answering_is_no_different() -> None:
    site, job = works(slurmd_timeout_s=20)
    site.slurm.silence(name(2))
    site.run_for(60)
    shown = job_of(site, job)
    assert (shown.state, shown.restarts) == ("RUNNING", 1)


def test_a_job_that_its_owner_holds_stays_held() -> None:
    site, job = works()
    taken_down(site)
    site.slurm.hold(job)
    site.run_for(150)
    shown = job_of(site, job)
    assert (shown.state, shown.held_by) == ("PENDING", "admin")
    assert not starts(site)


def test_a_begin_time_that_its_owner_sets_after_the_requeue_is_kept() -> None:
    site, job = works(completing_s=0)
    taken_down(site)
    site.look()  # Slurm's own begin time is seen
    site.slurm.delay(job, later(300))
    site.run_for(150)
    shown = job_of(site, job)
    assert (shown.state, shown.eligible_at) == ("PENDING", later(300))
    assert not starts(site)


def test_a_begin_time_that_changes_before_the_run_acts_is_kept() -> None:
    site, job = works(completing_s=0)
    taken_down(site)
    site.clock.advance(1)
    site.walk()
    assert [run.state for run in starts(site)] == [RunState.running]
    site.slurm.delay(job, later(300))
    site.run_for(150)
    assert job_of(site, job).eligible_at == later(300)
    assert [run.state for run in starts(site)] == [RunState.done]


def test_a_begin_time_of_hours_is_not_taken_for_slurms() -> None:
    site, job = works(completing_s=0)
    taken_down(site)
    site.slurm.delay(job, later(3600))  # before the next poll
    site.run_for(60)
    assert job_of(site, job).state == "PENDING"
    assert not starts(site)


def test_a_job_with_a_begin_time_of_its_first_life_is_left_alone() -> None:
    site = Site(10)
    job = site.slurm.add_job(nodes=2)
    site.slurm.requeue(job)
    site.slurm.set_node_down(name(1), WORK, "hall")
    site.run_for(60)  # no poll saw it run
    assert job_of(site, job).state == "PENDING"
    assert not starts(site)


def test_its_owners_own_requeue_with_all_nodes_well_is_left_alone() -> None:
    site, job = works()
    site.slurm.requeue(job)
    site.run_for(60)
    assert (job_of(site, job).state, job_of(site, job).reason) == ("PENDING", "BeginTime")
    assert not starts(site)


def test_a_pause_holds_it() -> None:
    site, job = works()
    site.pause()
    taken_down(site)
    site.run_for(60)
    assert job_of(site, job).state == "PENDING"
    site.end_pause()
    site.run_for(10)
    assert job_of(site, job).state == "RUNNING"


def test_a_spare_takes_the_lost_nodes_place() -> None:
    kept = guards(spares=Spares(reservation="spares"), min_service_share=0.5)
    site = Site(4, rules=rules_in(guards=kept))
    site.slurm.reserve(Reservation(name="spares", nodes=(name(4),), users=("root",)))
    job = site.slurm.add_job(nodes=3)
    site.run_for(5)
    taken_down(site)
    site.run_for(10)
    shown = job_of(site, job)
    assert (shown.state, shown.nodes) == ("RUNNING", (name(2), name(3), name(4)))
    assert site.slurm.snapshot().reservations["spares"].nodes == (name(1),)
    assert not remark_in(shown.admin_comment).off


def test_the_effect_is_asked_for_once() -> None:
    site, job = works()
    taken_down(site)
    site.run_for(300)
    assert job_of(site, job).restarts == 1
    assert [run.state for run in starts(site)] == [RunState.done]
    assert site.now - later() < timedelta(minutes=10)


def test_a_job_that_healer_requeued_is_started_by_that_run() -> None:
    site, job = works()
    site.run_for(4, *site.say(1, LOST))
    assert job_of(site, job).restarts == 1
    taken_down(site)
    site.run_for(30)
    assert (job_of(site, job).state, job_of(site, job).restarts) == ("RUNNING", 1)
    assert not starts(site)
