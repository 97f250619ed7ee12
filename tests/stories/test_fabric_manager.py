"""A fabric manager that died: out of service, empty, restarted, read back, returned. On no job's back."""

import pytest

from healer.model import RunState, StepEvent
from tests.support.loop import Crash, equip, name
from tests.support.slow import SlowSite

NODE = name(1)


def broken(fault: str = "fabric-manager", *, busy: bool = False) -> tuple[SlowSite, str | None]:
    site = SlowSite()
    job = site.agreed(required=[NODE]) if busy else None
    site.nodes.plant(NODE, fault)
    site.find("fabric-manager-down")
    return site, job


def done(site: SlowSite) -> list[str]:
    run = site.run_of("restart-fabric-manager")
    return [one.step for one in site.log(run.id) if one.event is StepEvent.done]


def test_it_is_restarted_read_back_and_returned_without_a_person() -> None:
    site, _ = broken()
    site.pass_time(30)
    assert site.run_of("restart-fabric-manager").state is RunState.done
    assert done(site)[0] == "begin", "whether a job is restarted with it"
    assert done(site)[1:] == ["drain", "jobs", "empty", "restart", "fabric", "notify", "verify", "resume"]
    assert site.nodes.fabric_state(NODE).healthy
    assert site.nodes.restarts(NODE) == 1
    assert site.node(1).in_service
    assert site.open_incidents == []
    assert site.ledger.tables.slots == {}
    assert site.audited("service.restarted") == 1
    assert [(one.node, one.remedy) for one in site.ledger.tables.remedies] == [(NODE, "restart_service")]


def test_its_slot_is_granted_with_its_drain() -> None:
    site, _ = broken()
    assert site.run_of("restart-fabric-manager").state is RunState.running
    assert site.ledger.tables.slots == {}
    site.drive_to("started:drain")
    assert list(site.ledger.tables.slots) == [NODE]


def test_a_job_on_the_node_ends_by_itself_before_anything_is_restarted() -> None:
    site, job = broken(busy=True)
    site.pass_time(600, step_s=5)
    assert site.nodes.restarts(NODE) == 0
    found = site.slurm.job(job or "")
    assert found is not None and (found.state, found.restarts) == ("RUNNING", 0), "it is not requeued"
    site.slurm.complete(job or "")
    site.pass_time(60)
    assert site.nodes.restarts(NODE) == 1
    assert site.node(1).in_service


@pytest.mark.parametrize("case", ["a job", "not drained"])
def test_gate_refuses_a_restart_under_a_running_job(case: str) -> None:
    """The node changes between the look at it and the restart: the gate looks again, for a person too."""
    site, _ = broken()

    def changes(where: str) -> None:
        if where == "performed:empty":
            site.slurm.resume(NODE)
            if case == "a job":
                site.slurm.add_job(required=[NODE])

    site.on_checkpoint = changes
    site.drive()
    site.clock.advance(1)
    site.drive()
    (entry,) = site.log(site.run_of("restart-fabric-manager").id, "restart")
    assert (entry.event, entry.data["guard"]) == (StepEvent.held, "consent")
    assert site.nodes.restarts(NODE) == 0


def test_a_fabric_that_stays_broken_is_a_ticket_and_the_node_stays_out() -> None:
    site, _ = broken("fabric")
    site.pass_time(300)
    run = site.run_of("restart-fabric-manager")
    assert run.state is RunState.waiting
    (fabric,) = (one for one in site.log(run.id, "fabric") if one.event is StepEvent.done)
    assert (fabric.data["passed"], fabric.data["status"]) == (False, "NVLink failure")
    assert done(site)[-2:] == ["ticket", "notify"]
    assert site.node(1).drain


def test_a_service_that_does_not_stay_up_is_restarted_again_then_a_person_is_asked() -> None:
    site, _ = broken("service-stuck")
    site.pass_time(1200, step_s=5)
    run = site.run_of("restart-fabric-manager")
    assert run.state is RunState.stuck
    assert "not active" in (run.question or "")
    assert site.nodes.restarts(NODE) == 3, "once and two more attempts, not once per look"
    assert site.node(1).drain


def test_without_a_way_to_the_nodes_a_person_is_asked() -> None:
    site, _ = broken()
    equip(site.driver, nodes=None)
    site.pass_time(30)
    run = site.run_of("restart-fabric-manager")
    assert run.state is RunState.stuck
    assert "nothing was done there" in (run.question or "")
    assert f"as root on {NODE}: `systemctl restart nvidia-fabricmanager`" in (run.question or "")
    assert site.node(1).drain


def test_a_node_whose_fabric_cannot_be_read_never_returns_by_itself() -> None:
    site, _ = broken()
    site.on_checkpoint = lambda where: (
        site.nodes.plant(NODE, "unreachable") if where == "performed:restart" else None
    )
    site.pass_time(600, step_s=5)
    run = site.run_of("restart-fabric-manager")
    assert run.state is RunState.stuck
    assert "Could not read the fabric" in (run.question or "")
    assert site.node(1).drain


def test_a_pause_before_the_restart_holds_it() -> None:
    site, _ = broken()
    site.on_checkpoint = lambda where: site.pause() if where == "performed:empty" else None
    site.pass_time(60)
    assert site.nodes.restarts(NODE) == 0
    site.on_checkpoint = lambda _: None
    site.end_pause()
    site.pass_time(30)
    assert site.node(1).in_service


def test_repeated_finding_during_job_end_does_not_keep_the_node_out() -> None:
    """Detectors repeat a persisting fault every few minutes; that is no new fault after the repair."""
    site, job = broken(busy=True)
    site.pass_time(30)
    site.find("fabric-manager-down")
    site.slurm.complete(job or "")
    site.pass_time(30)
    assert site.incidents[0].evidence_count == 2
    assert site.run_of("restart-fabric-manager").state is RunState.done
    assert site.node(1).in_service


def test_it_is_not_restarted_again_within_its_hours_under_another_name() -> None:
    site, _ = broken()
    site.pass_time(30)
    assert site.node(1).in_service
    site.nodes.plant(NODE, "fabric-manager")
    site.find("fabric-manager-down")
    site.pass_time(30)
    assert site.nodes.restarts(NODE) == 1
    assert (site.incident.held_by, site.run_of("restart-fabric-manager").state) == ("repeat", RunState.held)


MOMENTS = [
    "started:drain", "done:drain", "performed:drain", "performed:jobs", "performed:empty", "started:restart",
    "done:restart", "performed:restart", "started:fabric", "performed:fabric", "performed:verify",
    "started:resume", "done:resume", "performed:resume",
]  # fmt: skip


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_death_at_any_moment_leads_to_the_same_end(moment: str) -> None:
    site, _ = broken()
    died: list[str] = []

    def die(where: str) -> None:
        if where == moment and not died:
            died.append(where)
            raise Crash(where)

    site.on_checkpoint = die
    for _ in range(60):
        site.clock.advance(1)
        site.tick()
        try:
            site.drive()
        except Crash:
            site.ledger._claimed.clear()
            site.tick()
    assert died
    assert site.run_of("restart-fabric-manager").state is RunState.done
    assert len(site.runs) == 1
    assert 1 <= site.nodes.restarts(NODE) <= 2
    assert site.node(1).in_service
    assert site.ledger.tables.slots == {}
    assert site.ledger.tables.vetoes == []
