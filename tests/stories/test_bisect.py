"""Bisect: the nodes of a job are tested by halves once it has ended; each group gives way to all other
jobs."""

from healer.actions.bisect import LASTS, VOIDS_MAX
from healer.model import Message, RunState, SlurmJob, Submission
from healer.ports.scheduling import SchedulerUnavailable
from healer.processes.worker import leftover_jobs
from tests.support.asked import over
from tests.support.bisecting import Bisecting
from tests.support.loop import LOST, name


def ended(of: int = 8, bad: tuple[int, ...] = (), **fields: object) -> tuple[Bisecting, str]:
    """A person asked for the search, and the job has ended."""
    site = Bisecting(of, bad, **fields)  # type: ignore[arg-type]
    run = site.search()
    site.run_for(5)
    site.slurm.complete(site.job)
    return site, run


def group(site: Bisecting) -> SlurmJob:
    """The one that is tested next."""
    for _ in range(30):
        site.run_for(1)
        if (found := site.running_group()) is not None:
            return found
    raise AssertionError("no group is tested")


def done(site: Bisecting, run: str, within_s: float = 120) -> str:
    site.run_for(within_s, step_s=1 if within_s <= 120 else 20)
    assert site.run_named(run).state is RunState.done, site.run_named(run).question
    return site.says(run)


def test_a_running_job_is_left_alone_and_its_end_is_waited_for() -> None:
    site = Bisecting(8, (3,))
    run = site.search()
    site.run_for(12 * 3600, step_s=600)
    assert site.scheduler.writes == [] and site.groups() == []
    assert "is running: the tests wait for its end" in site.last(run).text
    assert len(site.log(run, "halves")) < 5, "a day is one line"
    site.slurm.complete(site.job)
    done(site, run)


def test_the_slow_node_is_named_and_proposed_for_the_tests_that_decide() -> None:
    site, run = ended(8, (3,))
    text = done(site, run)
    assert f"{name(3)} is slow (gemm_tflop_per_s 560, 80% of 700)" in text
    assert site.verdict(run)["passed"] is False and site.verdict(run)["slow"] == [name(3)]
    (incident,) = site.open_incidents
    assert (incident.fault, incident.root.node, incident.rule) == (
        "node-test:together",
        name(3),
        "sweep-failed",
    )
    assert set(site.scheduler.writes) == {"submit"} and len(site.groups()) == 6
    assert all(one.in_service for one in site.slurm.snapshot().nodes.values()), "evidence drains no node"
    assert (site.ledger.tables.slots, site.reservations()) == ({}, {})


def test_people_read_what_was_found() -> None:
    site, run = ended(8, (3,))
    done(site, run)
    assert over(site, run) == ["begin", "halves", "tell"]
    messages = [one for one in site.ledger.tables.messages.values() if isinstance(one, Message)]
    assert any(f"{name(3)} is slow" in one.text for one in messages)


def test_if_no_node_is_slow_nothing_is_reported() -> None:
    site, run = ended(8)
    assert "none is slow, alone or with others" in done(site, run)
    assert site.verdict(run)["passed"] is True and site.open_incidents == [] and len(site.groups()) == 3


def test_a_group_gives_way_to_a_job_that_waits_and_is_tested_again_after_it() -> None:
    site, run = ended(4, (2,))
    first = group(site)
    theirs = site.slurm.add_job(required=[first.nodes[0]])
    site.run_for(4)
    found = site.slurm.job(theirs)
    assert found is not None and found.state == "RUNNING"
    assert "cancel" in site.scheduler.writes
    site.run_for(60)
    assert site.running_group() is None, "its node is in use"
    site.slurm.complete(theirs)
    assert f"{name(2)} is slow" in done(site, run)


def test_a_pause_ends_a_group_and_nothing_begins_in_it() -> None:
    site, run = ended(8, (2,))
    group(site)
    site.pause()
    site.run_for(60)
    assert site.running_group() is None and site.scheduler.writes[-1] == "cancel"
    site.end_pause()
    assert f"{name(2)} is slow" in done(site, run)


def test_a_node_on_which_a_fault_opens_is_let_go() -> None:
    site, _ = ended(40, (2,))
    first = group(site)
    site.answers = lambda _: ""
    site.run_for(4, *site.say(first.nodes[1], LOST))
    found = site.slurm.job(first.id)
    assert found is not None and found.state == "CANCELLED"
    assert site.slurm.node(first.nodes[1]).drain


def test_nodes_taken_by_others_are_left_out_and_named() -> None:
    site = Bisecting(8, (3,))
    run = site.search()
    site.run_for(5)
    site.slurm.person_drain(name(8), "board work", "bob")
    site.slurm.complete(site.job)
    text = done(site, run, 600)
    assert f"{name(3)} is slow" in text and f"not tested: {name(8)}" in text
    assert all(name(8) not in one.nodes for one in site.groups())
    assert site.slurm.node(name(8)).reason == "board work"


def test_a_job_of_two_nodes_takes_idle_ones_beside_them() -> None:
    site, run = ended(2, (1,), nodes=6)
    assert f"{name(1)} is slow" in done(site, run)
    assert len({node for one in site.groups() for node in one.nodes}) == 4


def test_too_few_idle_nodes_give_no_verdict_and_no_blame() -> None:
    site, run = ended(2, (1,))
    text = done(site, run, LASTS.total_seconds() + 60)
    assert text.startswith("No verdict: 2 idle nodes; a comparison needs 4")
    assert site.verdict(run)["verdict"] == "none" and "passed" not in site.verdict(run)
    assert site.groups() == [] and site.open_incidents == []


def test_tests_that_cannot_be_made_come_to_no_verdict() -> None:
    site, run = ended(8, (1,))

    def untested(job: SlurmJob) -> str:
        site.slurm.remark(job.id, "healer-test/1; pair:untested:1; says pair no srun here")
        site.slurm.fail_job(job.id, "77:0")
        return ""

    site.answers = untested
    assert f"{VOIDS_MAX} groups gave no result" in done(site, run)
    assert len(site.groups()) == VOIDS_MAX and site.open_incidents == []


def test_the_search_is_bounded_in_time() -> None:
    site, run = ended(8, (1,))
    site.answers = lambda _: ""
    text = done(site, run, LASTS.total_seconds() + 120)
    assert text.startswith("No verdict") and site.running_group() is None


def test_the_nodes_may_be_named_where_slurm_forgot_the_job() -> None:
    site = Bisecting(8, (3,))
    site.slurm.complete(site.job)
    site.run_for(400, step_s=100)
    run = site.search(input={"inputs": {"nodes": "gpu[0001-0008]", "depth": "together"}})
    assert f"{name(3)} is slow" in done(site, run)
    again = site.search()
    site.run_for(5)
    assert site.run_named(again).state is RunState.stuck
    assert "name them" in (site.run_named(again).question or "")


def unanswered(site: Bisecting, *, taken: bool) -> None:
    """The next submission is not answered in time; Slurm's result stays unknown."""
    submit = site.slurm.submit

    def once(job: Submission) -> str:
        del site.scheduler.submit
        if taken:
            submit(job)
        raise SchedulerUnavailable("no answer within 7 s")

    site.scheduler.submit = once


def test_a_group_of_which_slurm_did_not_say_whether_it_took_it_gives_way_too() -> None:
    site, run = ended(8, (3,))
    unanswered(site, taken=True)
    first = group(site)
    theirs = site.slurm.add_job(required=[first.nodes[0]])
    site.run_for(4)
    assert [one.state for one in site.groups()] == ["CANCELLED"], "it was not submitted twice"
    site.slurm.complete(theirs)
    assert f"{name(3)} is slow" in done(site, run)


def test_group_that_slurm_never_accepted_is_resubmitted_after_a_minute() -> None:
    site, run = ended(8, (3,))
    unanswered(site, taken=False)
    site.run_for(50)
    assert site.groups() == [] and "Looking for the test job" in site.last(run).text
    assert f"{name(3)} is slow" in done(site, run)


def test_retry_needs_no_node_list_after_slurm_has_forgotten_the_job() -> None:
    site, run = ended(8, (3,))
    site.answers = lambda _: ""
    group(site)
    site.run_for(600, step_s=60)
    assert site.slurm.job(site.job) is None
    site.retry(run, "halves")
    site.answers = site.speed
    assert f"{name(3)} is slow" in done(site, run)


def test_a_job_that_went_on_elsewhere_is_not_waited_for() -> None:
    site = Bisecting(4, (3,), nodes=8)
    run = site.search()
    site.run_for(5)
    site.slurm.requeue(site.job)
    site.clock.advance(1)
    site.slurm.exclude(site.job, [name(one) for one in range(1, 5)])
    assert f"{name(3)} is slow" in done(site, run, 400)
    job = site.slurm.job(site.job)
    assert job is not None and (job.state, job.restarts) == ("RUNNING", 1)


def test_cancelled_its_job_ends_by_the_duty_of_sweeps() -> None:
    site, run = ended(8)
    group(site)
    site.cancel(run)

    class Shown:
        def latest(self, _: str) -> object:
            return site.slurm.snapshot()

    leftover_jobs(site.scheduler, site.ledger, Shown(), lambda: ("root",))()  # type: ignore[arg-type]
    site.run_for(2)
    assert [one.state for one in site.groups()] == ["CANCELLED"]


def test_in_shadow_it_only_says_what_it_would() -> None:
    site = Bisecting(8, (1,))
    run = site.search(shadow=True, by="healer")
    site.slurm.complete(site.job)
    site.run_for(60)
    assert site.scheduler.writes == [] and "shadow: would bisect" in site.log(run, "halves")[-1].text
