"""An epilog that hangs keeps a node and its job for ever. DOWN frees both where no job loses by it."""

import pytest

from healer.model import RunState, SlurmJob, StepEvent
from tests.support.loop import LOST, Crash, Site, name
from tests.support.under_test import TestSite, Written

NODE = name(1)


def stuck(scheduler: type[Written] = Written, **job: object) -> tuple[TestSite, str]:
    """A GPU is lost under a job, and the epilog of its node hangs."""
    site = TestSite(10, scheduler=scheduler)
    running = site.slurm.add_job(**({"nodes": 2} | job))  # type: ignore[arg-type]
    site.slurm.stick(NODE)
    site.walk(*site.say(1, LOST))
    site.clock.advance(2)
    site.walk()
    return site, running


def restarted(site: Site, job: str) -> bool:
    found = site.slurm.job(job)
    return found is not None and found.state == "RUNNING" and found.restarts == 1


def test_a_stuck_epilog_is_freed_by_down_after_thirty_seconds() -> None:
    site, job = stuck()
    site.run_for(29)
    assert "down" not in site.scheduler.writes
    site.run_for(90)
    assert site.scheduler.writes.count("down") == 1
    assert site.node(1).state == ("DOWN", "DRAIN")
    assert site.node(1).reason.startswith("healer:gpu-lost inc:")
    assert restarted(site, job)
    (run,) = site.runs
    assert run.state is RunState.waiting, run.question
    assert site.audited("node.set_down") == 1


def test_pitfall_13_a_job_that_was_requeued_is_restarted_once_by_it() -> None:
    site, job = stuck()
    site.run_for(120)
    found = site.slurm.job(job)
    assert found is not None and found.restarts == 1
    assert site.scheduler.writes.count("requeue") == 1


def test_an_epilog_that_ends_in_time_takes_nothing() -> None:
    site, job = stuck()
    site.run_for(15)
    site.slurm.stick(NODE, False)
    site.run_for(60)
    assert "down" not in site.scheduler.writes
    assert restarted(site, job)
    assert site.node(1).base != "DOWN"


def test_pitfall_06_a_node_with_a_job_at_work_is_not_set_down() -> None:
    """Beside the stuck one another job runs on: it would be killed or requeued at once."""
    site = TestSite(10)
    hit = site.slurm.add_job(required=[NODE], gpus=4)
    other = site.slurm.add_job(required=[NODE], gpus=4, requeue=False)
    site.slurm.stick(NODE)
    site.walk(*site.say(1, LOST))
    site.run_for(300, step_s=5)
    assert "down" not in site.scheduler.writes
    for job in (hit, other):
        assert site.slurm.job(job) is not None
    found = site.slurm.job(other)
    assert found is not None and found.state == "RUNNING"


def test_a_person_who_drains_the_node_meanwhile_has_it() -> None:
    site, _ = stuck()
    site.on_checkpoint = lambda where: (
        site.slurm.person_drain(NODE, "PSU", "ann") if where == "started:free" else None
    )
    site.run_for(120)
    assert "down" not in site.scheduler.writes
    assert site.node(1).reason == "PSU"


@pytest.mark.parametrize("theirs", ["resumes", "drains"])
def test_a_person_who_is_faster_by_an_instant_has_it(theirs: str) -> None:
    """Between the look and the call: what the call rests on is looked at again."""

    class Late(Written):
        armed = False

        def jobs_on(self, node: str) -> list[SlurmJob]:
            found = self.slurm.jobs_on(node)
            if self.armed:
                self.armed = False
                self.slurm.resume(node)
                if theirs == "drains":
                    self.slurm.person_drain(node, "PSU", "ann")
            return found

    site, _ = stuck(scheduler=Late)

    def arm(where: str) -> None:
        site.scheduler.armed |= where == "started:free"

    site.on_checkpoint = arm
    site.run_for(120)
    assert "down" not in site.scheduler.writes
    assert site.node(1).reason == ("PSU" if theirs == "drains" else "")


@pytest.mark.parametrize("moment", ["performed:leave", "started:free", "done:free", "performed:free"])
def test_a_death_at_any_moment_frees_it_once(moment: str) -> None:
    site, job = stuck()
    died: list[str] = []

    def die(where: str) -> None:
        if where == moment and not died:
            died.append(where)
            raise Crash(where)

    site.on_checkpoint = die
    for _ in range(150):
        site.clock.advance(1)
        try:
            site.drive()
        except Crash:
            site.ledger._claimed.clear()
        site.walk()
    assert died
    assert restarted(site, job)
    assert site.scheduler.writes.count("down") == 1
    (run,) = site.runs
    assert {"leave", "free"} <= {one.step for one in site.log(run.id) if one.event is StepEvent.done}
