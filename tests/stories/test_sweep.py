"""A sweep: tests of an idle node by a job that gives way. It takes nothing; what ends it from outside is no
verdict."""

from datetime import timedelta

import msgspec
import pytest

from healer.decisions.sweeps import SWEEP_JOBS
from healer.model import (
    GuardSettings,
    IncidentState,
    LogEntry,
    Mode,
    Outcome,
    RunState,
    SlurmJob,
    StepEvent,
    SweepSettings,
)
from healer.playbooks.advance import UNDO
from healer.processes.worker import leftover_jobs
from tests.support.loop import LOST, name, rules_in
from tests.support.under_test import TestSite

NODE = name(1)
WRONG = "healer-test/1; gpus:passed:1; answers:failed:9; says answers GPU 3: a wrong answer in fp32"


def asked(**fields: object) -> tuple[TestSite, str]:
    """A sweep of node 1 was requested, and its job runs."""
    site = TestSite(**fields)  # type: ignore[arg-type]
    run = site.ask("sweep", 1)
    site.run_for(2)
    assert [job.state for job in jobs(site)] == ["RUNNING"]
    return site, run


def jobs(site: TestSite) -> list[SlurmJob]:
    return [job for job in site.slurm.snapshot().jobs.values() if job.name.startswith(SWEEP_JOBS)]


def verdict(site: TestSite, run: str) -> dict[str, object]:
    return site.last(run).data


def ends(site: TestSite, run: str, within_s: float = 5) -> str:
    """The run has ended; what it says."""
    site.run_for(within_s)
    assert site.run_named(run).state is RunState.done
    return site.last(run).text


# --- what it is ---


def test_a_sweep_takes_nothing_that_the_gate_counts() -> None:
    site, run = asked()
    (job,) = jobs(site)
    assert (job.nodes, job.requeue, job.comment) == ((NODE,), False, f"{run}:test:0")
    assert site.scheduler.writes == ["submit"]
    assert (site.ledger.tables.slots, site.reservations()) == ({}, {})
    assert site.node(1).in_service and site.run_named(run).alongside
    site.slurm.complete(job.id)
    ends(site, run)
    assert verdict(site, run)["passed"] is True
    assert site.audited("node.swept") == 1 and site.open_incidents == []


def test_its_job_is_for_the_partition_and_qos_that_the_site_names() -> None:
    given = SweepSettings(qos="scavenger")
    site, _ = asked(rules=rules_in(guards=GuardSettings(sweep=given)))
    (job,) = jobs(site)
    assert (job.partition, job.qos) == ("train", "scavenger")


# --- it gives way ---


def test_a_job_that_waits_gets_the_node() -> None:
    site, run = asked(nodes=2)
    site.want()
    assert not site.runs_theirs()
    text = ends(site, run, 4)
    assert site.runs_theirs()
    assert site.scheduler.writes == ["submit", "cancel"]
    assert "Yielded" in text and "is pending in train" in text
    assert verdict(site, run) == {"verdict": "none", "verb": "sweep"}


@pytest.mark.parametrize(
    "why",
    [
        {"excluded": (NODE,), "required": [name(2)]},
        {"dependency": "singleton"},
        {"held": True},
        {"partition": "cpu"},
    ],
)
def test_a_job_that_the_node_would_not_help_ends_no_sweep(why: dict[str, object]) -> None:
    site, _ = asked(nodes=2)
    site.slurm.add_job(required=[name(2)], name="first")
    site.slurm.add_job(**({"required": [name(2)], "name": "first"} | why))  # type: ignore[arg-type]
    site.run_for(10)
    assert [job.state for job in jobs(site)] == ["RUNNING"]


def test_a_pause_ends_it() -> None:
    site, run = asked()
    site.pause()
    assert "Paused" in ends(site, run)
    assert site.scheduler.writes == ["submit", "cancel"]


def test_a_persons_drain_ends_it_and_stays() -> None:
    site, run = asked()
    site.slurm.person_drain(NODE, "board work", "bob")
    assert "bob took gpu0001 out of service" in ends(site, run)
    assert site.node(1).reason == "board work"


def test_fatal_fault_is_drained_regardless_of_a_sweep() -> None:
    site, run = asked()
    site.run_for(8, *site.say(1, LOST))
    assert site.node(1).drain and site.scheduler.writes.count("drain") == 1
    assert "A fatal fault is open" in site.last(run).text or "is drain" in site.last(run).text
    assert site.run_named(run).state is RunState.done
    assert [job.state for job in jobs(site)] == ["CANCELLED"]


def test_a_picture_that_is_old_ends_it() -> None:
    site, run = asked()
    old = site.ledger.snapshot
    assert old is not None
    site.look = lambda: None  # type: ignore[method-assign]
    site.run_for(40)
    assert "old" in site.last(run).text
    assert site.run_named(run).state is RunState.done


def test_sweep_that_slurm_does_not_start_is_cancelled() -> None:
    site = TestSite(nodes=2)
    run = site.ask("sweep", 1)
    site.slurm.add_job(required=[NODE], name="first")  # the picture that the gate looks at is older
    site.driver.drive(run)
    assert [job.state for job in jobs(site)] == ["PENDING"]
    site.run_for(70)
    assert "did not start" in site.last(run).text
    assert [job.state for job in jobs(site)] == ["CANCELLED"]


def test_only_its_own_job_is_ended() -> None:
    """Another user gives a job our name; ours is known by the number that Slurm gave."""
    site = TestSite(nodes=2)
    run = site.ask("sweep", 1)
    theirs = site.slurm.add_job(
        required=[name(2)], name=f"{SWEEP_JOBS}{run[:8]}", comment=f"{run}:test:0", user="mallory"
    )
    site.run_for(2)
    site.pause()
    site.run_for(5)
    found = site.slurm.job(theirs)
    assert found is not None and found.state == "RUNNING"
    assert sorted(job.state for job in jobs(site)) == ["CANCELLED", "RUNNING"]


def test_taking_it_back_ends_the_job() -> None:
    site, run = asked()
    entry = LogEntry(run=run, at=site.now, epoch=0, step=UNDO, event=StepEvent.done, text="ann")
    site.ledger.tables.log[run].append(entry)
    site.run_for(5)
    assert site.run_named(run).state is RunState.undone
    assert [job.state for job in jobs(site)] == ["CANCELLED"]


def test_a_cancelled_run_leaves_no_job() -> None:
    """No worker drives it any more: the scheduler's duty ends its job, and no other that has its name."""
    site, run = asked()
    called, key = f"{SWEEP_JOBS}{run[:8]}", f"{run}:test:0"
    theirs = site.slurm.add_job(required=[name(2)], user="mallory", name=called, comment=key)
    unknown = site.slurm.add_job(required=[name(3)], user="root", name=called, comment="r-other:test:0")

    class Shown:
        def latest(self, _: str) -> object:
            return site.slurm.snapshot()

    duty = leftover_jobs(site.scheduler, site.ledger, Shown(), lambda: ("root",))  # type: ignore[arg-type]
    duty()
    assert site.scheduler.writes == ["submit"], "its run goes on"
    site.cancel(run)
    duty()
    duty()
    assert site.scheduler.writes == ["submit", "cancel"]
    left = [job.id for job in jobs(site) if job.state == "RUNNING"]
    assert sorted(left) == sorted([theirs, unknown])


# --- deaths ---


@pytest.mark.parametrize("where", ["started:test", "done:test", "performed:test"])
def test_a_death_leaves_one_job(where: str) -> None:
    site = TestSite()
    run = site.ask("sweep", 1)
    assert site.die_once(where, 30)
    (job,) = jobs(site)
    site.slurm.complete(job.id)
    ends(site, run)
    assert site.scheduler.writes == ["submit"]
    assert verdict(site, run)["passed"] is True


# --- verdicts ---


def test_wrong_answer_is_a_finding_and_drains_no_node() -> None:
    site, run = asked()
    (job,) = jobs(site)
    site.slurm.remark(job.id, WRONG)
    site.slurm.fail_job(job.id, "1:0")
    ends(site, run, 10)
    assert verdict(site, run)["passed"] is False
    assert (site.incident.rule, site.incident.fault) == ("sweep-failed", "node-test:answers")
    assert site.incident.state is IncidentState.open and site.incident.severity == "P2"
    assert "GPU 3: a wrong answer in fp32" in site.incident.evidence[0].text
    (proposed,) = (one for one in site.runs if one.playbook == "validate")
    assert proposed.state is RunState.proposed and site.node(1).in_service


def test_repeated_result_is_one_finding() -> None:
    site, _ = asked()
    (job,) = jobs(site)
    site.slurm.remark(job.id, WRONG)
    site.slurm.fail_job(job.id, "1:0")
    site.clock.advance(2)
    site.drive()
    (command,) = site.ledger.tables.commands
    for late_s in (0, 5):
        again = msgspec.structs.replace(command, at=command.at + timedelta(seconds=late_s))
        site.ledger.tables.commands.append(again)
        site.run_for(5)
    assert len(site.incident.evidence) == 1 and len(site.incidents) == 1


@pytest.mark.parametrize("state", ["CANCELLED", "PREEMPTED", "TIMEOUT", "NODE_FAIL"])
def test_sweep_ended_from_outside_gives_no_verdict(state: str) -> None:
    site, run = asked()
    (job,) = jobs(site)
    site.slurm.remark(job.id, "healer-test/1; gpus:failed:1")
    site.slurm._end_now(job.id, state, "0:15")
    assert "no verdict" in ends(site, run)
    assert site.open_incidents == [] and "passed" not in verdict(site, run)


def test_unreadable_node_gives_no_verdict() -> None:
    site, run = asked()
    (job,) = jobs(site)
    site.slurm.remark(job.id, "healer-test/1; gpus:untested:0")
    site.slurm.fail_job(job.id, "77:0")
    assert "no verdict" in ends(site, run)
    assert site.open_incidents == []


# --- in turn ---


def scheduled(nodes: int = 32, *, mode: Mode = Mode.auto, **fields: object) -> TestSite:
    given = SweepSettings(**({"scheduled": True, "max_share": 1.0, "max_nodes": 2} | fields))  # type: ignore[arg-type]
    return TestSite(nodes, rules=rules_in(mode, guards=GuardSettings(sweep=given)), test_s=5)


def swept(site: TestSite) -> list[str]:
    return [run.node or "" for run in sorted(site.runs, key=lambda run: (run.created_at, run.node or ""))]


def test_as_shipped_nothing_begins_by_itself() -> None:
    site = TestSite()
    site.run_for(120)
    assert site.runs == []


def test_nodes_come_in_turn_and_few_at_once() -> None:
    site = scheduled(5)
    for _ in range(150):
        site.clock.advance(1)
        site.drive()
        site.walk()
        assert len({job.nodes for job in jobs(site) if job.active}) <= 2
    assert swept(site) == [name(number) for number in range(1, 6)]
    assert {run.state for run in site.runs} == {RunState.done}
    assert [verdict(site, run.id).get("passed") for run in site.runs] == [True] * 5
    site.clock.advance(timedelta(days=7).total_seconds())
    site.run_for(5)
    assert swept(site)[5:] == [name(1), name(2)], "the oldest first"


def test_each_scheduled_sweep_is_recorded_with_its_figures() -> None:
    site = scheduled()
    site.walk()
    begun = [one for one in site.ledger.tables.decisions if one.playbook == "sweep"]
    assert [one.outcome for one in begun] == [Outcome.act, Outcome.act]
    assert [(one.used, one.limit) for each in begun for one in each.answers if one.guard == "sweep"] == [
        (0, 2),
        (1, 2),
    ]


def test_no_sweep_while_a_job_is_queued() -> None:
    site = scheduled(2)
    site.slurm.add_job(required=[name(1)], name="a")
    site.slurm.add_job(required=[name(1)], name="b")
    site.run_for(60)
    assert site.runs == []


def test_a_node_that_gave_way_is_left_alone_for_an_hour() -> None:
    site = scheduled(1)
    site.run_for(2)
    assert [job.state for job in jobs(site)] == ["RUNNING"]
    site.pause()
    site.run_for(5)
    site.end_pause()
    site.run_for(120)
    assert len(site.runs) == 1
    site.clock.advance(3600)
    site.run_for(35)
    assert len(site.runs) == 2


def test_a_playbook_that_takes_capacity_is_never_scheduled() -> None:
    site = scheduled()
    books = dict(site.rules.playbooks)
    books["sweep"] = msgspec.structs.replace(books["validate"], name="sweep")
    site.rules = msgspec.structs.replace(site.rules, playbooks=books)
    site.run_for(60)
    assert site.runs == []


def test_sweep_that_is_held_at_its_start_ends_at_once() -> None:
    site = scheduled(1)
    site.walk()
    site.pause()
    site.drive()
    (run,) = site.runs
    assert run.state is RunState.done and site.last(run.id).event is StepEvent.skipped
    assert jobs(site) == []
