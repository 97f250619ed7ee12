"""`requeue-from-checkpoint`: a job restarts right after it has saved its work, and not before."""

import pytest

from healer.model import RunState, StepEvent
from tests.support.asked import ask_job, over, saves, state_of
from tests.support.jobs import OPT_IN, job_of, site_of
from tests.support.loop import Crash, Site

PLAYBOOK = "requeue-from-checkpoint"


def asked(comment: str = OPT_IN, **fields: object) -> tuple[Site, str, str]:
    site = site_of(4)
    job = site.slurm.add_job(nodes=2, comment=comment, **fields)  # type: ignore[arg-type]
    site.run_for(5)
    return site, job, ask_job(site, PLAYBOOK, job)


def test_it_waits_for_a_durable_checkpoint_and_sees_the_job_run_again() -> None:
    site, job, run = asked()
    site.run_for(300)
    assert job_of(site, job).restarts == 0
    assert site.log(run)[-1].text == f"job {job}: its next durable checkpoint, or its end"
    saves(site, job, step=100)
    site.run_for(20)
    found = job_of(site, job)
    assert (found.restarts, found.state) == (1, "RUNNING")
    assert state_of(site, run)[0] is RunState.done
    assert over(site, run) == ["moment", "requeue", "runs"]
    assert site.log(run)[-1].text == f"Job {job} runs again (restart 1) on 2 nodes"
    assert site.audited("job.requeued") == 1


def test_an_old_checkpoint_or_one_of_an_earlier_life_is_none() -> None:
    site = site_of(4)
    job = site.slurm.add_job(nodes=2)
    saves(site, job, step=5)
    site.run_for(2)
    run = ask_job(site, PLAYBOOK, job)
    site.run_for(60)
    saves(site, job, step=6, restart=3)
    site.run_for(60)
    assert job_of(site, job).restarts == 0 and over(site, run) == []


def test_a_guard_that_holds_it_past_the_moment_means_the_next_checkpoint() -> None:
    site, job, run = asked()
    site.run_for(3)
    site.pause()
    saves(site, job, step=100)
    site.run_for(120)
    site.end_pause()
    site.run_for(60)
    assert job_of(site, job).restarts == 0, "two minutes of its work would be lost"
    saves(site, job, step=200)
    site.run_for(20)
    assert job_of(site, job).restarts == 1 and state_of(site, run)[0] is RunState.done


def test_a_job_that_saves_on_a_signal_is_sent_that() -> None:
    site, job, run = asked("healer:signal=USR1@30")
    site.run_for(10)
    assert site.slurm.heard(job) == ["signal USR1"] and job_of(site, job).restarts == 0
    site.run_for(60)
    assert job_of(site, job).restarts == 1 and state_of(site, run)[0] is RunState.done


def test_a_job_that_ends_by_itself_needs_nothing() -> None:
    site, job, run = asked()
    site.slurm.complete(job)
    site.run_for(10)
    assert state_of(site, run)[0] is RunState.done and over(site, run) == ["moment"]
    assert "nothing to requeue" in site.log(run)[-1].text


def test_requeue_that_slurm_would_refuse_asks_a_person_at_once() -> None:
    site, job, run = asked(requeue=False)
    site.run_for(5)
    state, question = state_of(site, run)
    assert state is RunState.stuck and "Requeue=0" in question and job_of(site, job).restarts == 0


def test_a_job_that_never_saves_asks_a_person_after_a_day() -> None:
    site, job, run = asked()
    site.run_for(25 * 3600, step_s=600)
    state, question = state_of(site, run)
    assert (
        state is RunState.stuck and "It has been waiting for" in question and job_of(site, job).restarts == 0
    )


def test_a_shadow_run_touches_nothing() -> None:
    site = site_of(4)
    job = site.slurm.add_job(nodes=2, comment="healer:signal=USR1@30")
    site.run_for(5)
    run = ask_job(site, PLAYBOOK, job, shadow=True)
    site.run_for(30)
    assert state_of(site, run)[0] is RunState.done
    assert (job_of(site, job).restarts, site.slurm.heard(job)) == (0, [])
    assert "shadow: would requeue" in site.log(run, "requeue")[-1].text


@pytest.mark.parametrize(
    "where", ["started:moment", "started:requeue", "done:requeue", "performed:requeue", "started:runs"]
)
def test_a_worker_that_dies_restarts_it_once(where: str) -> None:
    site, job, run = asked()
    saved: list[str] = []

    def die(at: str) -> None:
        if at == where and not saved:
            saved.append(at)
            raise Crash(at)

    site.on_checkpoint = die
    site.clock.advance(1)
    saves_at = 3
    for second in range(60):
        if second == saves_at:
            saves(site, job, step=100)
        try:
            site.drive()
        except Crash:
            site.clock.advance(11)
        site.clock.advance(1)
    assert saved == [where]
    assert job_of(site, job).restarts == 1 and state_of(site, run)[0] is RunState.done
    assert [one.step for one in site.log(run) if one.event is StepEvent.failed] == []
