"""Before a node returns: no fault line came since its drain, or none lately."""

from datetime import timedelta

import msgspec
import pytest

from healer.engine.drive import Driver
from healer.model import Run, RunState, StepEvent
from tests.support.loop import CLUSTER, LOST, Site, name


def drained() -> Site:
    site = Site(8)
    site.run_for(10, *site.say(1, LOST))
    (run,) = site.runs
    assert run.state is RunState.waiting and site.incident.drained_at is not None
    return site


def drive_at_once(site: Site, run: Run, *, ahead: timedelta = timedelta(0)) -> None:
    """A detector wakes the run, and a worker whose clock is so far ahead drives it."""
    runs = site.ledger.tables.runs
    runs[run.id] = msgspec.structs.replace(runs[run.id], state=RunState.running, wake_at=None)
    site.look()
    tools = msgspec.structs.replace(site.driver.tools, now=lambda: site.now + ahead)
    Driver(site.ledger, lambda: site.rules, tools).drive(run.id)


def resume(site: Site) -> Run:
    """A person asks for the node's return, as the API takes it; the state of the run after some seconds."""
    (old,) = [run for run in site.runs if run.by == "healer"]
    asked = Run(
        id="r-resume",
        cluster=CLUSTER,
        playbook="resume",
        state=RunState.running,
        by="ann",
        reason="board replaced",
        created_at=site.now,
        node=name(1),
        incident=old.incident,
        rule=old.rule,
    )
    with site.ledger.transaction() as tx:
        tx.set_run_state(old.id, RunState.done, why="taken over", at=site.now)
        tx.create_run(asked)
    site.run_for(5)
    return site.ledger.tables.runs["r-resume"]


def test_the_line_that_caused_the_drain_says_nothing_against_the_return() -> None:
    site = drained()
    assert resume(site).state is RunState.done
    assert site.node(1).in_service


@pytest.mark.parametrize("clock_s", [0, -1800])
def test_a_line_of_the_last_minute_does(clock_s: int) -> None:
    """By arrival: the host's clock may be behind."""
    site = drained()
    site.clock.advance(3600)
    then = site.now.timestamp() + clock_s
    site.walk(*site.say(1, LOST, event_at=site.now.fromtimestamp(then, site.now.tzinfo)))
    site.clock.advance(30)
    run = resume(site)
    assert run.state is RunState.stuck and "new fault line" in (run.question or "")
    assert site.node(1).drain
    site.clock.advance(60)
    site.retry(run.id, "verify")
    site.run_for(5)
    assert site.ledger.tables.runs[run.id].state is RunState.done
    assert site.node(1).in_service


def test_a_line_of_an_hour_ago_is_what_was_repaired() -> None:
    site = drained()
    site.walk(*site.say(1, LOST))
    site.clock.advance(61)
    assert resume(site).state is RunState.done


@pytest.mark.parametrize(("where", "state"), [(1, RunState.stuck), (2, RunState.done)])
def test_what_another_node_of_the_incidents_job_reports_says_nothing_against_it(
    where: int, state: RunState
) -> None:
    site = drained()
    site.clock.advance(3600)
    first = site.incident.evidence[0]
    place = msgspec.structs.replace(first.component, node=name(where))
    later = msgspec.structs.replace(first, component=place, at=site.now, arrived_at=site.now)
    with site.ledger.transaction() as tx:
        tx.save_incident(msgspec.structs.replace(site.incident, evidence=(first, later)))
    site.clock.advance(30)
    assert resume(site).state is state


def test_a_new_line_after_fifty_others_is_seen() -> None:
    site = drained()
    for _ in range(60):
        site.clock.advance(10)
        site.walk(*site.say(1, LOST))
    assert resume(site).state is RunState.stuck


def test_a_workers_clock_that_is_ahead_does_not_end_the_wait_for_the_last_reports() -> None:
    site = drained()
    site.run_for(20)
    (run,) = site.runs
    waits = [entry for entry in site.log(run.id) if entry.step == "told"]
    assert [entry.event for entry in waits][-1] is StepEvent.waiting
    site.clock.advance(240)
    drive_at_once(site, run, ahead=timedelta(hours=1))
    assert [entry.event for entry in site.log(run.id) if entry.step == "told"][-1] is StepEvent.waiting
    site.run_for(120)
    assert [entry.event for entry in site.log(run.id) if entry.step == "told"][-1] is StepEvent.done


def test_hosts_whose_clocks_were_behind_do_not_shorten_the_wait_for_the_last_reports() -> None:
    """API, detector and the worker that began the wait were on a host whose clock was an hour behind."""
    site = drained()
    site.run_for(20)
    (run,), hour = site.runs, timedelta(hours=1)
    log, replace = site.ledger.tables.log, msgspec.structs.replace
    (began,) = site.log(run.id, "told")
    woken = {"wake_at": (site.now - hour).isoformat()}
    log[run.id][log[run.id].index(began)] = replace(began, at=began.at - hour, data=woken)
    heard = tuple(replace(one, at=one.at - hour, arrived_at=one.at - hour) for one in site.incident.evidence)
    with site.ledger.transaction() as tx:
        tx.save_incident(replace(site.incident, opened=site.incident.opened - hour, evidence=heard))
    site.clock.advance(240)
    drive_at_once(site, run)
    assert site.log(run.id, "told")[-1].event is StepEvent.waiting
    site.run_for(120)
    assert site.log(run.id, "told")[-1].event is StepEvent.done


def test_a_clock_that_is_ahead_does_not_use_up_a_steps_time() -> None:
    site = Site(8)
    site.slurm.add_job(required=[name(1)], requeue=False)
    site.run_for(5)
    site.run_for(340, *site.say(1, LOST))
    (run,) = site.runs
    assert site.log(run.id, "empty")[-1].event is StepEvent.waiting
    drive_at_once(site, run, ahead=timedelta(days=8))
    assert site.log(run.id, "empty")[-1].event is StepEvent.waiting
