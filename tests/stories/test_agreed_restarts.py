"""A person who starts a test under a running job may agree to the job's restart with it: for this very job
and life, by the gate, and for no other job."""

import msgspec
import pytest

from healer.decisions import restart_proposal, with_restarts
from healer.model import RequeueUse, RunState, StepEvent
from tests.support.asked import over
from tests.support.loop import name
from tests.support.under_test import TestSite


def under_jobs(*comments: str) -> tuple[TestSite, list[str]]:
    """Jobs of half a node's GPUs each, at work on node 1."""
    site = TestSite()
    jobs = [site.slurm.add_job(gpus=4, comment=comment, user="bob") for comment in comments]
    site.run_for(1)
    return site, jobs


def ask(site: TestSite, *agreed: str, playbook: str = "validate", restarts: int = 0) -> str:
    """A person starts it and names these jobs, as the API writes that down."""
    run = site.ask(playbook, 1, go=False)
    known = site.ledger.tables.runs[run]
    site.ledger.tables.runs[run] = with_restarts(known, dict.fromkeys(agreed, restarts), "ann")
    site.walk()
    return run


def test_a_job_that_was_named_is_restarted_elsewhere_and_the_node_is_tested() -> None:
    site, (job,) = under_jobs("")
    run = ask(site, job)
    site.run_for(20)
    known = site.slurm.snapshot().jobs[job]
    assert (known.restarts, name(1) in known.nodes) == (1, False)
    assert site.running_test(), "the node is empty"
    assert site.scheduler.writes[:2] == ["drain", "requeue"]
    assert f"owner:{job}" in over(site, run)
    assert site.audited("job.requeued") == 1


def test_job_not_on_the_list_is_waited_for() -> None:
    site, (mine, other) = under_jobs("", "healer:requeue")
    run = ask(site, mine)
    site.run_for(60)
    jobs = site.slurm.snapshot().jobs
    assert (jobs[mine].restarts, jobs[other].restarts, jobs[other].state) == (1, 0, "RUNNING")
    assert site.log(run)[-1].step == "empty"


@pytest.mark.parametrize("playbook", ["reboot-validate", "return-to-service"])
def test_other_playbooks_that_wait_for_an_empty_node_take_the_word_too(playbook: str) -> None:
    site, (job,) = under_jobs("")
    ask(site, job, playbook=playbook)
    site.run_for(20)
    assert site.slurm.snapshot().jobs[job].restarts == 1


def test_another_life_of_the_job_was_not_meant() -> None:
    site, (job,) = under_jobs("")
    run = ask(site, job, restarts=3)
    site.run_for(20)
    assert site.slurm.snapshot().jobs[job].restarts == 0
    assert not [one for one in site.log(run) if one.step.startswith("requeue:")]


def test_job_restarted_meanwhile_is_left_alone() -> None:
    """In a playbook that does not list the node's jobs."""
    site, (job,) = under_jobs("")
    run = site.ask("restart-service", 1, go=False)
    known = site.ledger.tables.runs[run]
    changed = known.input | {"inputs": {"service": "nvidia-persistenced"}}
    known = msgspec.structs.replace(known, input=changed)
    site.ledger.tables.runs[run] = with_restarts(known, {job: 0}, "ann")
    site.slurm.requeue(job)
    site.walk()
    site.run_for(20)
    *_, last = site.log(run, f"requeue:{job}")
    assert last.event is StepEvent.skipped and "this run of the job needs a new one" in last.text
    assert site.slurm.snapshot().jobs[job].restarts == 1
    assert site.audited("job.requeued") == 0


def test_the_cap_of_requeues_binds_this_too() -> None:
    site, (job,) = under_jobs("")
    site.ledger.tables.requeues += [
        RequeueUse(job=job, restarts=life, at=site.now, incident=None) for life in (7, 8)
    ]
    run = ask(site, job)
    site.run_for(20)
    assert site.slurm.snapshot().jobs[job].restarts == 0
    (last,) = site.log(run, f"requeue:{job}")
    assert (last.event, last.data["guard"]) == (StepEvent.skipped, "requeue_cap")


def proposed(comment: str) -> tuple[TestSite, str, str]:
    """healer's own run, let go by a person who names the job."""
    site, (job,) = under_jobs(comment)
    run = site.ask("validate", 1, by="healer", go=False)
    known = site.ledger.tables.runs[run]
    known = msgspec.structs.replace(known, approved_by="ann", state=RunState.running)
    site.ledger.tables.runs[run] = with_restarts(known, {job: 0}, "ann")
    return site, job, run


def test_an_approval_that_names_the_job_is_consent() -> None:
    site, job, run = proposed("")
    site.run_for(20)
    assert site.slurm.snapshot().jobs[job].restarts == 1
    (asked,) = (
        one.proposal for one in site.ledger.tables.decisions if one.proposal and one.proposal.job == job
    )
    assert (asked.agreed_by, asked.run) == ("ann", run)


def test_each_job_keeps_who_agreed_to_its_restart() -> None:
    site, (job,) = under_jobs("")
    run = site.ask("validate", 1, go=False)
    both = with_restarts(with_restarts(site.ledger.tables.runs[run], {job: 0}, "ann"), {"4711": 1}, "bob")
    assert restart_proposal(both, job, None).agreed_by == "ann"
    assert restart_proposal(both, "4711", None).agreed_by == "bob"


def test_keep_of_the_owner_overrides_an_approval() -> None:
    site, job, run = proposed("healer:keep")
    site.run_for(20)
    assert site.slurm.snapshot().jobs[job].restarts == 0
    assert [one.event for one in site.log(run, f"requeue:{job}")] == [StepEvent.skipped]
    assert site.run_named(run).state is RunState.running, "it waits for the job's end"
