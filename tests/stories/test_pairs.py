"""Tests of two nodes: an idle one in service is borrowed as the partner, and gives way to all other jobs."""

import msgspec
import pytest

from healer.actions.diagnose import PARTNER_WITHIN_S, VOIDS_MAX
from healer.model import RunState, SlurmJob, StepEvent
from tests.support.loop import LOST, Crash, name
from tests.support.under_test import TestSite, Written

NODE = name(1)
ALONE = "healer-test/1; gpus:passed:1; gpu_count=8"
WELL = "healer-test/1; pair:passed:1; nccl_pair:passed:40; nccl_pair_busbw_gb_per_s=46.1"
WRONG = "healer-test/1; pair:passed:1; nccl_pair:failed:9; says nccl_pair wrong sums at 3 of its sizes"


def alone(nodes: int = 8, *, dies: bool = False) -> tuple[TestSite, str]:
    """Node 1 has passed the tests of `full` by itself. `dies`: the worker will, after the next submission."""
    site = TestSite(nodes)
    run = site.ask("validate", 1)
    known = site.run_named(run)
    given = {**known.input, "inputs": {"depth": "full"}}
    site.ledger.tables.runs[run] = msgspec.structs.replace(known, input=given)
    site.run_for(20)
    mortal(site).dies_after = "submit" if dies else ""
    ends(site, ALONE, within_s=0 if dies else 3)
    return site, run


def mortal(site: TestSite) -> Written:
    assert isinstance(site.driver.tools.scheduler, Written)
    return site.driver.tools.scheduler


def ends(site: TestSite, comment: str, *, within_s: float = 8, failed: bool = False) -> None:
    job = site.running_test()
    site.slurm.remark(job, comment)
    site.slurm.fail_job(job, "1:0") if failed else site.slurm.complete(job)
    site.run_for(within_s)


def pair(site: TestSite) -> SlurmJob:
    (job,) = (one for one in site.test_jobs() if one.state == "RUNNING" and len(one.nodes) == 2)
    return job


def partner(site: TestSite) -> str:
    assert NODE in pair(site).nodes
    return next(one for one in pair(site).nodes if one != NODE)


def verdict(site: TestSite, run: str) -> dict[str, object]:
    return next(one.data for one in site.log(run, "test") if one.event is StepEvent.done)


def test_well_together_it_returns_with_the_results_of_both() -> None:
    site, run = alone()
    borrowed = partner(site)
    assert site.slurm.node(borrowed).in_service, "a partner stays in service"
    ends(site, WELL, within_s=30)
    assert site.run_named(run).state is RunState.done
    data = verdict(site, run)
    assert data["passed"] is True and data["partners"] == [borrowed]
    assert data["results"] == {"gpu_count": "8", "nccl_pair_busbw_gb_per_s": "46.1"}
    assert site.reservations() == {} and set(site.ledger.tables.slots) == set()


def test_bad_with_one_and_well_with_another_speaks_against_the_one() -> None:
    site, run = alone()
    first = partner(site)
    ends(site, WRONG, failed=True)
    second = partner(site)
    assert second not in {first, NODE}
    ends(site, WELL, within_s=30)
    assert site.run_named(run).state is RunState.done and site.node(1).in_service
    (incident,) = site.open_incidents
    assert (incident.fault, incident.root.node) == ("node-test:pair", first)
    assert "wrong sums" in incident.evidence[0].text
    assert not site.slurm.node(first).drain, "one answer drains no node"


def test_bad_with_two_is_the_nodes_own() -> None:
    site, run = alone()
    ends(site, WRONG, failed=True)
    ends(site, WRONG, failed=True, within_s=30)
    assert site.run_named(run).state is RunState.waiting and site.node(1).drain
    assert verdict(site, run)["passed"] is False and "ticket" in site.done(run)
    assert site.open_incidents == []


def test_a_job_that_waits_gets_the_partner_and_another_one_is_borrowed() -> None:
    site, run = alone()
    first = partner(site)
    theirs = site.slurm.add_job(required=[first])
    site.run_for(6)
    assert (site.slurm.job(theirs) or pair(site)).state == "RUNNING"
    assert partner(site) != first
    ends(site, WELL, within_s=30)
    assert site.run_named(run).state is RunState.done


def test_a_partner_on_which_a_fault_opens_is_let_go() -> None:
    site, _ = alone(nodes=40)
    first = partner(site)
    site.run_for(8, *site.say(first, LOST))
    assert site.slurm.node(first).drain and partner(site) != first


def test_without_a_partner_it_returns_by_what_it_is_alone_and_that_is_said() -> None:
    site, run = alone(nodes=1)
    site.run_for(PARTNER_WITHIN_S - 60)
    assert site.run_named(run).state is not RunState.done
    site.run_for(120)
    assert site.run_named(run).state is RunState.done
    line = next(one.text for one in site.log(run, "test") if one.event is StepEvent.done)
    assert "not tested as a pair: no partner became free" in line
    assert "partners" not in verdict(site, run)


def test_bad_with_the_only_partner_there_is_asks_a_person() -> None:
    site, run = alone(nodes=2)
    ends(site, WRONG, failed=True)
    site.run_for(PARTNER_WITHIN_S + 60)
    assert site.run_named(run).state is RunState.stuck
    assert "which of the two is at fault is unknown" in (site.run_named(run).question or "")


def test_lost_partners_are_not_borrowed_indefinitely() -> None:
    site, run = alone(nodes=12)
    for _ in range(VOIDS_MAX):
        site.slurm.cancel(pair(site).id)
        site.run_for(10)
    assert site.run_named(run).state is RunState.done
    assert len({one for job in site.test_jobs() for one in job.nodes}) == VOIDS_MAX + 1


@pytest.mark.parametrize("call", ["submit", "cancel"])
def test_a_worker_that_dies_right_after_it_leaves_one_job_for_a_partner(call: str) -> None:
    site, run = alone(dies=call == "submit")
    if call == "cancel":
        site.slurm.add_job(required=[partner(site)])
        mortal(site).dies_after = "cancel"
    for _ in range(30):
        try:
            site.run_for(1)
        except Crash:
            site.clock.advance(14)
    assert mortal(site).dies_after == ""
    ends(site, WELL, within_s=30)
    assert site.run_named(run).state is RunState.done
    partners = [tuple(job.nodes) for job in site.test_jobs() if len(job.nodes) == 2]
    assert len(partners) == len(set(partners)) == (1 if call == "submit" else 2)
