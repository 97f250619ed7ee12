"""What becomes of the jobs on a bad node: each kind of job, from the line to the end of the run."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from healer.decisions.consent import why_not_restartable
from healer.model import BreakerState, RestartConsent, Run, RunState, SlurmJob, StepEvent
from healer.ports.scheduling import SchedulerRefused
from healer.sim.sim_slurm import SimScheduler
from tests.support.jobs import (
    NODE,
    OPT_IN,
    Lacking,
    Unheard,
    guards,
    job_of,
    last,
    lose,
    owner_notice,
    site_of,
)
from tests.support.loop import LOST, Crash, Site, equip, name
from tests.support.slow import SlowSite

# --- arrays and heterogeneous jobs -----------------------------------------------------------------------


def test_pitfall_12_a_task_that_is_hit_never_touches_its_siblings() -> None:
    site = site_of(4)
    array = site.slurm.add_job(array=6)
    tasks = {job.array_task: job.id for job in site.slurm.snapshot().jobs.values()}
    site.slurm.complete(tasks[3])
    site.clock.advance(1)
    (hit,) = [job for job in site.slurm.jobs_on(NODE)]
    run = lose(site)
    restarts = {task: job_of(site, job).restarts for task, job in tasks.items()}
    assert restarts == {task: int(task == hit.array_task) for task in tasks}
    assert job_of(site, tasks[3]).state == "COMPLETED"
    assert f"{array}_{hit.array_task}" in last(site, run, f"requeue:{hit.id}").text
    assert site.incident.jobs_hit == (hit.id,)


def test_pitfall_10_a_component_that_is_hit_is_requeued_as_its_whole_job_once() -> None:
    site = site_of(6)
    leader = site.slurm.add_job(het=[(name(3),), (NODE,)])
    components = [job.id for job in site.slurm.snapshot().jobs.values()]
    run = lose(site)
    assert [job_of(site, one).restarts for one in components] == [1, 1]
    assert site.incident.jobs_hit == (leader,)
    assert last(site, run, f"requeue:{leader}").event is StepEvent.done
    assert len(site.ledger.tables.requeues) == 1


def lost_gpus(*buses: int) -> list[str]:
    return [LOST.replace("0000:9b:00", f"0000:{bus:02x}:00") for bus in buses]


def test_when_all_gpus_of_a_node_are_gone_all_of_its_jobs_are_hit() -> None:
    """The GPUs' addresses are unknown; it does not matter."""
    site = site_of(4)
    site.slurm.add_job(array=4, gpus=2, required=[NODE])
    tasks = [job.id for job in site.slurm.jobs_on(NODE)]
    assert len(tasks) == 4
    site.run_for(30, *site.say(1, *lost_gpus(*range(0x10, 0x18))))
    assert [job_of(site, task).restarts for task in tasks] == [1, 1, 1, 1]


def test_a_job_that_holds_more_gpus_than_are_well_is_hit_and_no_other() -> None:
    site = site_of(4)
    large = site.slurm.add_job(gpus=6, required=[NODE])
    small = site.slurm.add_job(gpus=2, required=[NODE])
    site.run_for(30, *site.say(1, *lost_gpus(0x10, 0x11, 0x12)))
    assert (job_of(site, large).restarts, job_of(site, small).restarts) == (1, 0)


# --- jobs that had ended before the check ----------------------------------------------------------------


def crashed(
    *, at_s: float = -5, end: Callable[[SimScheduler, str], None] = SimScheduler.fail_job, **job: Any
):
    """A job that ended so many seconds before the line came; (the site, the job)."""
    site = site_of(settings=job.pop("settings", None))
    number = site.slurm.add_job(**({"nodes": 2, "comment": OPT_IN} | job))
    site.clock.advance(10)
    end(site.slurm, number)
    site.clock.advance(-at_s)
    return site, number


def test_a_crash_is_faster_than_its_line_and_an_opted_in_job_is_revived() -> None:
    site, job = crashed()
    run = lose(site)
    shown = job_of(site, job)
    assert (shown.restarts, shown.state) == (1, "RUNNING")
    assert NODE not in shown.nodes
    assert site.incident.jobs_hit == (job,)
    assert last(site, run, f"revive:{job}").event is StepEvent.done
    assert site.log(run.id, f"requeue:{job}") == []
    assert [(one.job, one.restarts) for one in site.ledger.tables.requeues] == [(job, 0)]
    assert f"Job {job} was revived and runs again on" in owner_notice(site, job)


@pytest.mark.parametrize("consent", [RestartConsent(partitions=("train",)), RestartConsent(qos=("normal",))])
def test_a_partition_or_qos_may_agree_for_its_jobs(consent: RestartConsent) -> None:
    site, job = crashed(comment="", settings=guards(consent=consent))
    lose(site)
    assert job_of(site, job).restarts == 1


def test_without_its_owners_word_a_crashed_job_is_left_alone_and_it_is_said() -> None:
    site, job = crashed(comment="")
    run = lose(site)
    assert job_of(site, job).state == "FAILED"
    entry = last(site, run, f"revive:{job}")
    assert entry.event is StepEvent.skipped
    assert OPT_IN in entry.text
    assert site.incident.jobs_hit == (job,)


@pytest.mark.parametrize("end", [SimScheduler.complete, SimScheduler.cancel])
def test_jobs_completed_or_cancelled_by_their_owner_are_not_restarted(end: Callable[..., None]) -> None:
    site, job = crashed(end=end)
    lose(site)
    assert job_of(site, job).restarts == 0
    assert site.incident.jobs_hit == ()


def test_a_job_that_failed_long_before_had_its_own_reason() -> None:
    site, job = crashed(at_s=-130)
    lose(site)
    assert job_of(site, job).state == "FAILED"
    assert site.incident.jobs_hit == ()


def test_a_job_that_crashes_between_the_list_and_its_requeue_is_revived_as_the_same_life() -> None:
    site = site_of()
    job = site.slurm.add_job(nodes=2, comment=OPT_IN)

    def crash(where: str) -> None:
        if where == f"started:requeue:{job}" and job_of(site, job).state == "RUNNING":
            site.slurm.fail_job(job)

    site.on_checkpoint = crash
    run = lose(site)
    assert job_of(site, job).restarts == 1
    assert last(site, run, f"requeue:{job}").data["crashed"]
    assert last(site, run, f"revive:{job}").event is StepEvent.done
    assert len(site.ledger.tables.requeues) == 1


def test_people_and_owner_read_that_a_job_stays_on_the_dead_gpu_when_its_restarts_are_used_up() -> None:
    """It came to the node a moment before the drain, so no picture that the detector has seen shows it."""
    site = site_of(settings=guards(requeues_per_job=0))
    jobs: list[str] = []

    def start(where: str) -> None:
        if where == "started:drain":
            jobs.append(site.slurm.add_job(required=[NODE]))

    site.on_checkpoint = start
    run = lose(site)
    (job,) = jobs
    assert (job_of(site, job).state, last(site, run, f"requeue:{job}").data["guard"]) == (
        "RUNNING",
        "requeue_cap",
    )
    why = f"Not restarted: Job {job} was requeued 0 times in 24 h, limit 0."
    (message,) = [one for one in site.ledger.tables.messages.values() if one.id.endswith(":notify")]
    assert f"Affected jobs: {job}\n{why}" in message.text
    assert why in job_of(site, job).admin_comment


def test_the_third_restart_in_a_day_is_refused_also_when_it_is_a_revival() -> None:
    site, job = crashed(settings=guards(requeues_per_job=0))
    run = lose(site)
    assert last(site, run, f"revive:{job}").data["guard"] == "requeue_cap"
    assert job_of(site, job).state == "FAILED"


def revive_checkpoints() -> list[str]:
    site, _ = crashed()
    lose(site)
    return [one for one in dict.fromkeys(site.checkpoints) if "revive" in one or "owner" in one]


@pytest.mark.parametrize("where", revive_checkpoints())
def test_after_a_crash_at_any_line_a_job_is_revived_once(where: str) -> None:
    site, job = crashed()
    died = []

    def die(at: str) -> None:
        if at == where and not died:
            died.append(at)
            raise Crash(at)

    site.on_checkpoint = die
    with pytest.raises(Crash):
        site.run_for(30, *site.say(1, LOST))
    site.run_for(30)
    assert (job_of(site, job).restarts, job_of(site, job).state) == (1, "RUNNING")
    assert len(site.ledger.tables.requeues) == 1
    assert site.runs[0].state is RunState.waiting


# --- jobs that are left alone, and why -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({"requeue": False}, "Requeue=1, then scontrol requeue"),  # pitfall 9
        ({"no_kill": True}, "--no-kill"),  # pitfall 16
        ({"comment": "healer:keep"}, "the decision is its owner's"),
        ({"comment": "healer:requeue healer:keep"}, "the decision is its owner's"),
    ],
)
def test_pitfalls_9_and_16_and_keep_are_respected_and_the_owner_is_notified(
    job: dict[str, Any], words: str
) -> None:
    site = site_of()
    number = site.slurm.add_job(nodes=2, **job)
    run = lose(site)
    assert job_of(site, number).restarts == 0
    assert last(site, run, f"requeue:{number}").event is StepEvent.skipped
    assert words in owner_notice(site, number)
    assert f"incident {site.incident.short_id}" in owner_notice(site, number)


def test_an_owner_of_an_array_hears_of_one_task() -> None:
    """The id of its last task means the whole array to `scontrol requeue`."""
    task = SlurmJob(id="4700", state="RUNNING", requeue=False, array_job="4700", array_task=3)
    assert "scontrol requeue 4700_3." in (why_not_restartable(task) or "")
    part = SlurmJob(id="4701", state="RUNNING", requeue=False, het_job="4700", het_offset=1)
    assert "scontrol requeue 4700." in (why_not_restartable(part) or "")


def test_pitfall_16_the_owners_own_word_is_stronger_than_no_kill() -> None:
    site = site_of()
    number = site.slurm.add_job(nodes=2, no_kill=True, comment=OPT_IN)
    lose(site)
    assert job_of(site, number).restarts == 1


def test_pitfall_10_interactive_user_is_notified_at_the_terminal() -> None:
    site = site_of()
    number = site.slurm.add_job(batch=False, user="ann")
    run = lose(site)
    (heard,) = site.slurm.heard(number)
    assert heard.startswith("notify healer: Xid 79: GPU fell off the bus on gpu0001.")
    assert "Slurm cannot requeue it" in heard
    assert last(site, run, f"owner:{number}").text.startswith("Notified ann on the job's terminal")


def test_a_copy_that_runs_on_another_cluster_is_never_requeued_here() -> None:
    site = site_of()
    job = site.slurm.add_job(nodes=2)
    shown = site.slurm.snapshot()
    revoked = msgspec.structs.replace(shown.jobs[job], flags=("REVOKED",), siblings=("pod2",))
    assert why_not_restartable(shown.jobs[job]) is None
    assert "pod2" in (why_not_restartable(revoked) or "")


def test_unparsable_request_is_reported_to_the_owner() -> None:
    site = site_of()
    job = site.slurm.add_job(nodes=2, comment="healer:requeu healer:signal=KILL@5")
    lose(site)
    assert "Not understood: healer:requeu, healer:signal=KILL@5" in owner_notice(site, job)


# --- what a restart keeps --------------------------------------------------------------------------------


def test_pitfall_15_hold_set_by_the_owner_survives_the_requeue() -> None:
    site = site_of()
    job = site.slurm.add_job(nodes=2)

    def hold(where: str) -> None:
        shown = job_of(site, job)
        if shown.restarts == 1 and shown.state == "PENDING" and not shown.held_by:
            site.slurm.hold(job)

    site.on_checkpoint = hold
    run = lose(site)
    assert job_of(site, job).held_by == "admin"
    assert "stays held by its admin" in last(site, run, f"requeue:{job}").text


def test_a_begin_time_that_a_person_sets_after_the_requeue_is_kept() -> None:
    site = site_of()
    job = site.slurm.add_job(nodes=2)
    tonight = site.clock.now() + timedelta(hours=8)

    def wait(where: str) -> None:
        shown = job_of(site, job)
        if shown.restarts == 1 and shown.state == "PENDING" and "COMPLETING" not in shown.flags:
            site.slurm.delay(job, tonight)

    site.on_checkpoint = wait
    run = lose(site)
    shown = job_of(site, job)
    assert (shown.state, shown.eligible_at) == ("PENDING", tonight)
    done = last(site, run, f"requeue:{job}")
    assert done.event is StepEvent.done and f"{tonight:%H:%M}" in done.text


def test_pitfall_14_a_chain_is_kept_and_the_job_waits_for_its_turn_in_it() -> None:
    site = site_of(4)
    first = site.slurm.add_job(nodes=1, required=[name(3)], name="chain")
    second = site.slurm.add_job(nodes=1, required=[name(1)], name="chain", dependency="singleton")
    site.slurm.complete(first)
    site.clock.advance(2)
    assert job_of(site, second).state == "RUNNING"
    lose(site)
    shown = job_of(site, second)
    assert (shown.restarts, shown.dependency) == (1, "singleton")


# --- saving work on a signal -----------------------------------------------------------------------------


def signalled(**job: Any) -> tuple[Site, str]:
    site = site_of()
    given: dict[str, Any] = {"comment": "healer:signal=USR1@40"}
    number = site.slurm.add_job(nodes=2, **(given | job))
    site.run_for(10, *site.say(1, LOST))
    assert site.slurm.heard(number) == ["signal USR1"]
    return site, number


def test_pitfall_17_a_job_that_saves_on_a_signal_gets_it_once_and_its_time() -> None:
    site, job = signalled()
    assert job_of(site, job).restarts == 0
    (run,) = site.runs
    assert "Sent USR1 to job" in last(site, run, f"requeue:{job}").text
    site.run_for(20)
    assert job_of(site, job).restarts == 0
    site.run_for(60)
    assert job_of(site, job).restarts == 1
    assert site.slurm.heard(job)[:1] == ["signal USR1"]
    assert site.slurm.heard(job).count("signal USR1") == 1
    assert site.runs[0].state is RunState.waiting
    assert [one for one in site.log(run.id) if one.event is StepEvent.failed] == []


@pytest.mark.parametrize("held_by", ["a pause", "Slurm"])
def test_a_job_that_worked_on_for_hours_after_its_signal_is_asked_to_save_again(held_by: str) -> None:
    """What it saved then is old: a person ends the pause, or lets the stuck run try again."""
    site, job = signalled()
    (run,) = site.runs
    requeue = site.slurm.requeue
    if held_by == "Slurm":
        site.slurm.requeue = refuses  # type: ignore[method-assign]
        site.run_for(120, step_s=5)
        assert site.runs[0].state is RunState.stuck
    else:
        site.pause()
    site.run_for(7200, step_s=900)
    site.slurm.requeue = requeue  # type: ignore[method-assign]
    site.end_pause()
    if held_by == "Slurm":
        site.retry(run.id, f"requeue:{job}")
    site.run_for(20, step_s=5)
    assert job_of(site, job).restarts == 0
    assert site.slurm.heard(job).count("signal USR1") == 2
    site.run_for(60, step_s=5)
    assert job_of(site, job).restarts == 1
    assert site.slurm.heard(job).count("signal USR1") == 2


def refuses(_: str) -> None:
    raise SchedulerRefused("Slurm says: busy", 9)


@pytest.mark.parametrize("grace_s", [40, 0])
def test_pitfall_17_a_signal_whose_answer_never_came_is_not_sent_again(grace_s: int) -> None:
    site = site_of(scheduler=lambda slurm: Unheard(slurm, "signal"))
    job = site.slurm.add_job(nodes=2, comment=f"healer:signal=USR1@{grace_s}")
    site.run_for(100, *site.say(1, LOST))
    assert site.slurm.heard(job).count("signal USR1") == 1
    assert job_of(site, job).restarts == 1
    assert site.runs[0].state is RunState.waiting


def test_pitfall_17_one_that_ends_in_its_time_is_not_started_again() -> None:
    site, job = signalled(ends_on="USR1")
    site.run_for(60)
    shown = job_of(site, job)
    assert (shown.state, shown.restarts) == ("COMPLETED", 0)
    (run,) = site.runs
    assert "ended COMPLETED before" in last(site, run, f"requeue:{job}").text


def test_pitfall_17_sbatch_signal_option_says_how_a_job_saves() -> None:
    _, job = signalled(comment="", submit_line="sbatch --signal=B:USR1@40 train.sh")
    assert job


def test_pitfall_17_for_a_slow_node_no_checkpoint_of_it_is_waited_for() -> None:
    site = SlowSite()
    job = site.agreed(comment="healer:signal=USR1@30")
    site.find("straggler", "gpu-hot", gpu=3, job=job)
    site.pass_time(10)
    assert site.node(1).drain
    assert site.slurm.heard(job) == ["signal USR1"]
    assert job_of(site, job).restarts == 0
    site.pass_time(50)
    assert job_of(site, job).restarts == 1


# --- a job that does not end --------------------------------------------------------------------------------


def test_a_stuck_end_is_freed_by_the_run_and_its_job_starts_after_that() -> None:
    site = site_of()
    job = site.slurm.add_job(nodes=2)
    site.slurm.stick(NODE)
    site.run_for(400, *site.say(1, LOST))
    (run,) = site.runs
    assert "it starts when it has finished completing on" in last(site, run, f"requeue:{job}").text
    assert last(site, run, "free").event is StepEvent.done
    assert last(site, run, f"start:{job}").event is StepEvent.done
    shown = job_of(site, job)
    assert (shown.state, shown.restarts) == ("RUNNING", 1)
    assert run.question is None


def test_an_open_breaker_lets_the_jobs_of_a_node_that_is_out_go_on() -> None:
    site, job = crashed()

    def storm(where: str) -> None:
        breaker = site.ledger.tables.breaker
        if where == "performed:jobs" and breaker is not None:
            site.ledger.tables.breaker = msgspec.structs.replace(
                breaker, state=BreakerState.open, why="storm"
            )

    site.on_checkpoint = storm
    site.run_for(30, *site.say(1, LOST))
    assert job_of(site, job).restarts == 1


# --- who may restart it -------------------------------------------------------------------------------------


def by_hand(site: Site, job: str) -> Run:
    """ann requeues the job; her run after that."""
    run = Run(
        id="r-hand", cluster="pod1", playbook="requeue", state=RunState.running, by="ann",
        reason="hangs", created_at=site.now, job=job, input={"restarts": job_of(site, job).restarts},
    )  # fmt: skip
    with site.ledger.transaction() as tx:
        tx.create_run(run)
    site.run_for(30)
    return site.ledger.tables.runs[run.id]


def test_person_may_restart_a_job_that_slurm_refused_to_requeue() -> None:
    site = site_of()
    job = site.slurm.add_job(nodes=2)
    forbidden = SchedulerRefused("Requested operation is presently disabled", 2037)
    equip(site.driver, scheduler=Lacking(site.slurm, forbidden, "requeue"))
    run = lose(site)
    assert last(site, run, f"requeue:{job}").event is StepEvent.skipped
    assert site.ledger.tables.requeues == [], "nothing was restarted: nothing counts"
    equip(site.driver, scheduler=site.slurm)
    assert by_hand(site, job).state is RunState.done
    assert job_of(site, job).restarts == 1
    assert [(one.job, one.restarts) for one in site.ledger.tables.requeues] == [(job, 0)]


def test_manual_run_names_the_other_run_that_restarts_the_job() -> None:
    site = site_of()
    job = site.slurm.add_job(nodes=2, comment="healer:signal=USR1@300")
    site.run_for(10, *site.say(1, LOST))
    (own,) = site.runs
    run = by_hand(site, job)
    assert last(site, run, "requeue").text == f"Restart 1 of job {job} is granted to run {own.id}"
    assert site.slurm.heard(job) == ["signal USR1"]


# --- a pause ------------------------------------------------------------------------------------------------


def test_in_a_pause_nothing_is_written_into_slurm_not_even_to_an_owner() -> None:
    site = site_of()
    job = site.slurm.add_job(nodes=2, requeue=False)

    def stop(where: str) -> None:
        if where == "performed:jobs":
            site.pause()

    site.on_checkpoint = stop
    site.run_for(60, *site.say(1, LOST))
    (run,) = site.runs
    assert site.node(1).drain
    assert (owner_notice(site, job), site.node(1).extra) == ("", "")
    assert last(site, run, f"owner:{job}").data["guard"] == "pause"
    assert last(site, run, "notify").event is StepEvent.done, "no pause keeps a page back"
    site.on_checkpoint = lambda _: None
    site.end_pause()
    site.run_for(10)
    assert "Requeue=1" in owner_notice(site, job)
    assert site.incident.short_id in site.node(1).extra
    assert site.runs[0].state is RunState.waiting
