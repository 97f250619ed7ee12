"""`hot-spare-swap`: a spare takes the place of a job's node; without one nothing is taken."""

from typing import Any

import msgspec
import pytest

from healer.model import Reservation, RunState, Spares
from healer.sim.sim_slurm import sim_nodes
from tests.support.asked import over, saves, state_of
from tests.support.jobs import NODE, OPT_IN, guards, job_of
from tests.support.loop import Crash, name, rules_in
from tests.support.under_test import TestSite

PLAYBOOK = "hot-spare-swap"
SPARE = name(10)


def with_spare(**settings: Any) -> tuple[TestSite, str]:
    """A job on nine nodes, and one spare."""
    given: dict[str, Any] = {"spares": Spares(reservation="spares"), "min_service_share": 0.5}
    fleet = [msgspec.structs.replace(node, switch="leaf1", switches=("leaf1",)) for node in sim_nodes(10)]
    site = TestSite(fleet, rules=rules_in(guards=guards(**(given | settings))))
    site.slurm.reserve(Reservation(name="spares", nodes=(SPARE,), users=("root",)))
    job = site.slurm.add_job(nodes=9, comment=OPT_IN)
    site.look()
    return site, job


def test_the_job_runs_with_the_spare_and_its_node_is_tested_and_returned() -> None:
    site, job = with_spare()
    run = site.ask(PLAYBOOK, 1)
    site.run_for(120)
    assert over(site, run) == ["begin", "spare"] and job_of(site, job).restarts == 0
    saves(site, job, step=7)
    site.run_for(90)
    found = job_of(site, job)
    assert (found.state, found.restarts) == ("RUNNING", 1)
    assert SPARE in found.nodes and NODE not in found.nodes
    assert f"{SPARE} in place of {NODE}" in site.log(run, f"runs:{job}")[-1].text
    assert site.slurm.snapshot().reservations["spares"].nodes == (NODE,)
    site.slurm.complete(site.running_test())
    site.run_for(30)
    assert state_of(site, run)[0] is RunState.done
    assert not site.node(1).drain and list(site.reservations()) == ["spares"]
    assert site.ledger.tables.slots == {}


def test_a_node_that_fails_its_tests_stays_out_with_a_ticket() -> None:
    site, job = with_spare()
    site.nodes.plant(NODE, "slow-gpu-3")
    run = site.ask(PLAYBOOK, 1)
    site.run_for(5)
    saves(site, job, step=7)
    site.run_for(120)
    assert state_of(site, run)[0] is RunState.waiting
    assert "node-ticket" in over(site, run) and site.node(1).drain
    assert job_of(site, job).state == "RUNNING"


def test_without_a_spare_a_person_is_asked_and_nothing_is_taken() -> None:
    site, job = with_spare()
    site.slurm.person_drain(SPARE, "RMA", "ann")
    run = site.ask(PLAYBOOK, 1)
    site.run_for(5)
    state, question = state_of(site, run)
    assert state is RunState.stuck and f"No free spare in spares matches {NODE}" in question
    assert not site.node(1).drain and job_of(site, job).restarts == 0
    site.slurm.resume(SPARE)
    site.retry(run, "spare")
    site.run_for(5)
    assert over(site, run) == ["begin", "spare"]


def finds_no_spare(site: TestSite, job: str) -> None:
    """A person asks for the swap: it ends before it takes anything."""
    site.look()
    run = site.ask(PLAYBOOK, 1)
    site.run_for(5)
    saves(site, job, step=7)
    site.run_for(30)
    state, question = state_of(site, run)
    assert state is RunState.stuck and f"No free spare in spares matches {NODE}" in question
    assert not site.node(1).drain and job_of(site, job).restarts == 0


@pytest.mark.parametrize("flag", ["REPLACE", "REPLACE_DOWN"])
def test_no_job_is_requeued_for_a_spare_that_slurm_does_not_give(flag: str) -> None:
    """Slurm refuses a list of nodes for such a reservation (seen on 22.05): it chooses them itself."""
    site, job = with_spare()
    site.slurm.unreserve("spares")
    site.slurm.reserve(Reservation(name="spares", nodes=(SPARE,), users=("root",), flags=(flag,)))
    finds_no_spare(site, job)


def test_a_job_in_a_reservation_of_its_own_is_left_at_work() -> None:
    """It could not use the spare, and would wait for its node."""
    site, job = with_spare()
    site.slurm.complete(job)
    site.run_for(2)
    team = Reservation(name="team", nodes=tuple(name(number) for number in range(1, 5)), users=("root",))
    site.slurm.reserve(team)
    job = site.slurm.add_job(nodes=4, comment=OPT_IN, reservation="team", user="root")
    site.look()
    assert job_of(site, job).nodes == team.nodes
    finds_no_spare(site, job)


def test_a_spare_that_went_to_another_meanwhile_is_missed_before_the_drain() -> None:
    site, job = with_spare()
    run = site.ask(PLAYBOOK, 1)
    site.run_for(5)
    site.slurm.person_drain(SPARE, "RMA", "ann")
    saves(site, job, step=7)
    site.run_for(20)
    assert state_of(site, run)[0] is RunState.stuck and not site.node(1).drain
    assert job_of(site, job).restarts == 0


def test_no_spares_at_this_site_and_a_node_without_work() -> None:
    site, _ = with_spare(spares=None)
    run = site.ask(PLAYBOOK, 1)
    site.run_for(5)
    assert "No spares are configured" in state_of(site, run)[1]
    site, job = with_spare()
    site.slurm.complete(job)
    run = site.ask(PLAYBOOK, 1)
    site.run_for(5)
    assert state_of(site, run)[0] is RunState.done and not site.node(1).drain
    assert "nothing to move" in site.log(run)[-1].text


def test_a_spare_itself_is_never_swapped() -> None:
    site, _ = with_spare()
    run = site.ask(PLAYBOOK, 10)
    site.run_for(5)
    assert "is itself a spare of spares" in state_of(site, run)[1] and not site.node(10).drain


def test_a_shadow_run_looks_waits_and_touches_nothing() -> None:
    site, job = with_spare()
    site.scheduler.writes.clear()
    run = site.ask(PLAYBOOK, 1)
    known = site.ledger.tables.runs[run]
    site.ledger.tables.runs[run] = msgspec.structs.replace(known, shadow=True)
    site.run_for(5)
    saves(site, job, step=7)
    site.run_for(300, step_s=5)
    assert "shadow: would drain" in site.log(run, "drain")[-1].text
    assert "shadow: would requeue" in site.log(run, f"requeue:{job}")[-1].text
    assert state_of(site, run)[0] is RunState.done
    assert site.scheduler.writes == [] and site.ledger.tables.slots == {}


@pytest.mark.parametrize(
    "where", ["performed:still", "started:drain", "done:drain", "done:requeue:1", "performed:runs:1"]
)
def test_a_worker_that_dies_swaps_once(where: str) -> None:
    site, job = with_spare()
    run = site.ask(PLAYBOOK, 1)
    died: list[str] = []

    def die(at: str) -> None:
        if at == where and not died:
            died.append(at)
            raise Crash(at)

    site.on_checkpoint = die
    for second in range(90):
        if second == 5:
            saves(site, job, step=7)
        try:
            site.drive()
        except Crash:
            site.clock.advance(11)
        site.walk()
        site.clock.advance(1)
    assert died == [where]
    assert site.slurm.snapshot().reservations["spares"].nodes == (NODE,)
    assert (job_of(site, job).restarts, site.scheduler.writes.count("drain")) == (1, 1)
    assert "node-reserve" in over(site, run)
