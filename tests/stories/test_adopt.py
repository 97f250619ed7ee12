"""What Slurm itself took out may be taken over: when a person starts it, tested before it returns."""

from datetime import timedelta

import msgspec
import pytest

from healer.model import LogEntry, Mode, Reservation, RunState, StepEvent
from healer.playbooks.advance import UNDO
from tests.support.loop import LOST, name, rules_in
from tests.support.under_test import TestSite

NODE = name(1)
KILL = "Kill task failed"


def drained(reason: str = KILL, user: str = "slurm", *, mode: Mode | None = None) -> TestSite:
    """Slurm has drained the node; a rule in another mode where one is given."""
    rules = rules_in()
    if mode is not None:
        own = tuple(
            msgspec.structs.replace(rule, mode=mode) if rule.playbook == "adopt-slurm-drain" else rule
            for rule in rules.rules
        )
        rules = rules_in(rules=own)
    site = TestSite(rules=rules)
    site.slurm.person_drain(NODE, reason, user)
    site.run_for(5)
    return site


def finish(site: TestSite, seconds: int = 60, *, passes: bool = True) -> None:
    for _ in range(seconds):
        site.run_for(1)
        for job in site.test_jobs():
            if job.state == "RUNNING":
                site.slurm.complete(job.id) if passes else site.slurm.fail_job(job.id)


@pytest.mark.parametrize(
    "reason",
    [
        KILL,
        "Kill task failed (JobId=5 StepId=0)",
        "Prolog error",
        "Epilog error",
        "Node unexpectedly rebooted",
    ],
)
def test_as_shipped_it_is_proposed_and_a_person_starts_it(reason: str) -> None:
    site = drained(reason)
    finish(site)
    (run,) = site.runs
    assert (run.playbook, run.state) == ("adopt-slurm-drain", RunState.proposed)
    assert site.scheduler.writes == [] and site.node(1).reason == reason
    site.approve(run.id)
    finish(site)
    assert site.run_named(run.id).state is RunState.done, site.run_named(run.id).question
    assert site.scheduler.writes == ["drain", "reserve", "resume", "submit", "unreserve"]
    assert site.node(1).in_service
    assert site.open_incidents == []


@pytest.mark.parametrize(
    ("reason", "user"),
    [
        ("PSU", "ann"),
        ("PSU : reboot issued", "slurm"),
        ("NHC: check_hw_ib failed", "root"),
        ("gres/gpu count reported lower than configured (7 < 8)", "slurm"),
        ("Low RealMemory (reported:1 < 100.00% of configured:2)", "slurm"),
    ],
)
def test_drain_that_slurm_did_not_set_for_a_passing_problem_is_left_alone(reason: str, user: str) -> None:
    site = drained(reason, user, mode=Mode.auto)
    finish(site)
    assert site.scheduler.writes == []
    assert site.node(1).reason == reason


def test_a_person_who_is_faster_keeps_the_node() -> None:
    site = TestSite(rules=drained(mode=Mode.auto).rules)
    site.slurm.person_drain(NODE, KILL, "slurm")
    site.walk()
    site.slurm.person_drain(NODE, "ann looks at it", "ann")
    finish(site, 20)
    assert site.scheduler.writes == []
    assert site.node(1).reason == "ann looks at it"


def test_in_mode_auto_it_goes_by_itself_and_a_node_that_fails_stays_out_as_ours() -> None:
    site = drained(mode=Mode.auto)
    finish(site, passes=False)
    (run,) = site.runs
    assert run.state is RunState.waiting
    assert site.node(1).drain and site.node(1).reason.startswith("healer:slurm-drain inc:")
    assert list(site.ledger.tables.slots) == [NODE]


def test_an_undo_gives_the_drain_back_to_slurm() -> None:
    """It was out before healer came, and nothing has been tested."""
    site = drained(mode=Mode.auto)
    finish(site, passes=False)
    (run,) = site.runs
    entry = LogEntry(run=run.id, at=site.now, epoch=99, step=UNDO, event=StepEvent.done, text="ann: no")
    site.ledger.tables.log[run.id].append(entry)
    with site.ledger.transaction() as tx:
        tx.set_run_state(run.id, RunState.running, why="ann: no", at=site.now)
    site.run_for(30)
    assert site.run_named(run.id).state is RunState.undone
    assert (site.node(1).drain, site.node(1).reason) == (True, KILL)
    assert (site.reservations(), site.ledger.tables.slots) == ({}, {})


def test_maintenance_announced_for_later_holds_no_test_of_now() -> None:
    """Sites reserve all nodes for the next upgrade weeks ahead."""
    site = drained(mode=Mode.auto)
    begins = site.now + timedelta(days=14)
    work = Reservation(
        name="upgrade",
        nodes=tuple(name(number) for number in range(1, 33)),
        users=("root",),
        maintenance=True,
        since=begins,
        until=begins + timedelta(days=1),
    )
    site.slurm.reserve(work)
    finish(site)
    (run,) = site.runs
    assert run.state is RunState.done, run.question
    assert site.node(1).in_service


def test_a_node_that_does_not_answer_is_waited_for_without_a_slot() -> None:
    site = TestSite(slurmd_timeout_s=10)
    site.slurm.silence(NODE)
    site.run_for(20)
    run = site.ask("adopt-slurm-drain", 1)
    site.run_for(60)
    assert site.run_named(run).state is RunState.running
    assert site.scheduler.writes == [] and site.ledger.tables.slots == {}
    site.slurm.answer(NODE)  # ReturnToService: it is back by itself
    site.run_for(20)
    assert site.run_named(run).state is RunState.done
    assert site.scheduler.writes == [] and site.node(1).in_service


def test_a_fatal_fault_amid_the_tests_has_the_node_before_any_job() -> None:
    site = drained(mode=Mode.auto)
    site.run_for(15)
    assert site.running_test()
    site.want()
    site.walk(*site.say(1, LOST))
    site.slurm.complete(site.running_test())
    site.run_for(60)
    assert not site.runs_theirs()
    assert site.node(1).reason.startswith("healer:gpu-lost inc:")
    site.ask("resume", 1)
    site.run_for(20)
    assert site.reservations() == {} and site.runs_theirs()


def test_a_healthy_node_has_nothing_to_take_over() -> None:
    site = TestSite()
    run = site.ask("adopt-slurm-drain", 1)
    site.run_for(10)
    assert site.run_named(run).state is RunState.done
    assert site.scheduler.writes == [] and site.ledger.tables.slots == {}
