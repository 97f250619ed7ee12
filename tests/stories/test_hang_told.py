"""A hang that healer finds itself: one incident of the job, and the playbook `hang`, as far as it may."""

from datetime import timedelta

import msgspec
import pytest

from healer.model import Mode, RunState, Severity
from tests.support.asked import approve_step, state_of
from tests.support.jobs import job_of
from tests.support.loop import LOST, name, rules_in
from tests.support.recorders import QUIET, STACKS, on_node, up_to
from tests.support.slow import SlowSite

MEMBERS = 4


def site_in(mode: Mode | None = None) -> SlowSite:
    """With the rule as it ships, or in this mode."""
    rules = rules_in(Mode.auto)
    if mode is None:
        return SlowSite(6, rules=rules)
    own = tuple(msgspec.structs.replace(one, mode=mode) if one.name == "hang" else one for one in rules.rules)
    return SlowSite(6, rules=msgspec.structs.replace(rules, rules=own))


def hung(site: SlowSite, comment: str = "", *, proven: bool = True) -> str:
    """A hung job on two nodes, with what its nodes show of it."""
    job = site.slurm.add_job(nodes=2, comment=comment, required=[name(1), name(2)])
    site.run_for(1200, step_s=60)
    at = site.now - timedelta(seconds=30)
    for index in range(2):
        ranks = (2 * index, 2 * index + 1) if proven else ()
        dumps = {rank: up_to(7, members=MEMBERS, waits=rank != 3, at=at, stalled_s=600) for rank in ranks}
        site.nodes.put_job(name(index + 1), job, on_node(dumps, at, gpu=QUIET), STACKS)
    site.find("hang", node=None, job=job)
    return job


def goes_on(site: SlowSite, seconds: float) -> None:
    """The tick goes on to see it stand."""
    for _ in range(int(seconds / 5)):
        site.tick()
        site.run_for(5)


def test_as_shipped_the_playbook_is_proposed_and_nothing_is_done() -> None:
    site = site_in()
    job = hung(site, "healer:requeue")
    goes_on(site, 60)
    incident = site.incident
    assert (incident.rule, incident.severity, incident.root.job, incident.root.node) == (
        "hang", Severity.P2, job, None
    )  # fmt: skip
    (run,) = site.runs
    assert (run.playbook, run.job, run.node, run.state) == ("hang", job, None, RunState.proposed)
    assert run.input["restarts"] == 0 and site.log(run.id) == [] and job_of(site, job).restarts == 0
    (message,) = site.ledger.tables.messages.values()
    assert "healer takes no action" not in message.text, "a run waits for whoever reads it"


def test_the_message_goes_by_the_mode_that_was_set_while_running() -> None:
    site = site_in()
    site.ledger.tables.modes["hang"] = Mode.shadow
    hung(site, "healer:requeue")
    goes_on(site, 60)
    (message,) = site.ledger.tables.messages.values()
    assert "healer takes no action" in message.text


def test_a_person_lets_it_go_and_by_that_agrees_to_the_restart() -> None:
    """The job's owner said nothing: the approval of the run is about this very job."""
    site = site_in()
    job = hung(site)
    goes_on(site, 10)
    (run,) = site.runs
    site.approve(run.id, by="bob")
    goes_on(site, 120)
    assert state_of(site, run.id)[0] is RunState.done and job_of(site, job).restarts == 1
    assert site.open_incidents == [], "the restart ended it; another hang of the job is another one"


def test_auto_mode_looks_reports_and_restarts_a_job_that_agreed() -> None:
    site = site_in(Mode.auto)
    job = hung(site, "healer:requeue")
    goes_on(site, 120)
    (run,) = site.runs
    assert run.by == "healer" and state_of(site, run.id)[0] is RunState.done
    assert job_of(site, job).restarts == 1


def test_alone_it_looks_and_leaves_a_job_that_did_not_agree() -> None:
    site = site_in(Mode.auto)
    job = hung(site)
    goes_on(site, 120)
    (run,) = site.runs
    assert "it hangs" in site.log(run.id, "proof")[-1].text
    assert (
        "has not consented: its comment must contain healer:requeue" in site.log(run.id, "requeue")[-1].text
    )
    assert state_of(site, run.id)[0] is RunState.done and job_of(site, job).restarts == 0


def test_an_approval_at_its_step_is_consent_too() -> None:
    site = site_in(Mode.auto)
    job = hung(site, proven=False)
    goes_on(site, 120)
    (run,) = site.runs
    assert state_of(site, run.id)[0] is RunState.waiting
    approve_step(site, run.id, "approve", by="bob")
    goes_on(site, 30)
    assert job_of(site, job).restarts == 1


def test_keep_of_the_owner_overrides_an_approval() -> None:
    site = site_in()
    job = hung(site, "healer:keep")
    goes_on(site, 10)
    (run,) = site.runs
    site.approve(run.id, by="bob")
    goes_on(site, 120)
    assert "healer:keep: the decision is its owner's" in site.log(run.id, "requeue")[-1].text
    assert job_of(site, job).restarts == 0


def test_a_job_that_goes_on_withdraws_the_proposal() -> None:
    site = site_in()
    job = hung(site)
    goes_on(site, 10)
    site.clear("hang", node=None, job=job)
    goes_on(site, 330)
    (run,) = site.runs
    assert run.state is RunState.rejected and site.open_incidents == []


@pytest.mark.parametrize("first", ["hang", "gpu"])
def test_dead_gpu_explains_the_hang_of_its_job_in_any_order(first: str) -> None:
    site = site_in()
    job = site.slurm.add_job(nodes=2, required=[name(1), name(2)])
    site.run_for(600, step_s=60)
    if first == "hang":
        site.find("hang", node=None, job=job)
        site.run_for(5)
        site.run_for(30, *site.say(2, LOST))
    else:
        site.run_for(30, *site.say(2, LOST))
        site.find("hang", node=None, job=job)
    assert [one.rule for one in site.open_incidents] == ["gpu-lost"]
    assert [run.state for run in site.runs if run.playbook == "hang"] in ([], [RunState.rejected])


def test_a_job_that_left_the_dead_gpu_behind_may_hang_for_another_reason() -> None:
    """The incident of the GPU stays open until its repair, and names the job."""
    site = site_in()
    job = site.slurm.add_job(nodes=2)
    site.run_for(60)
    site.run_for(300, *site.say(2, LOST))
    known = job_of(site, job)
    assert known.restarts == 1 and name(2) not in known.nodes
    site.find("hang", node=None, job=job)
    assert sorted(one.rule for one in site.open_incidents) == ["gpu-lost", "hang"]
    assert [run.job for run in site.runs if run.playbook == "hang"] == [job]


def test_degraded_fault_does_not_take_over_the_hang_of_its_job() -> None:
    site = site_in()
    job = hung(site)
    site.find("gpu-hot", node=2, gpu=3)
    assert sorted(one.rule for one in site.open_incidents) == ["gpu-hot", "hang"]
    assert [run.job for run in site.runs if run.playbook == "hang"] == [job]


def test_a_job_that_slurm_does_not_show_is_not_worked_on() -> None:
    site = site_in()
    site.find("hang", node=None, job="999")
    site.run_for(10)
    assert site.runs == []


def test_a_job_that_is_put_back_while_it_is_looked_at_ends_the_incident_and_starts_no_other_run() -> None:
    site = site_in(Mode.auto)
    job = hung(site, "healer:requeue")
    goes_on(site, 5)
    site.slurm.requeue(job)
    goes_on(site, 60)
    (run,) = site.runs
    assert state_of(site, run.id)[0] is RunState.done
    assert "it no longer hangs" in site.log(run.id, "proof")[-1].text
    assert site.open_incidents == []


def test_hang_reported_while_the_job_waits_starts_at_most_one_run() -> None:
    site = site_in(Mode.auto)
    job = site.slurm.add_job(nodes=2, comment="healer:requeue", required=[name(1), name(2)])
    site.run_for(1200, step_s=60)
    site.slurm.requeue(job)
    site.look()
    site.find("hang", node=None, job=job)
    goes_on(site, 60)
    assert len(site.runs) <= 1
