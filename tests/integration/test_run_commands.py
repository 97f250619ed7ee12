"""What people do to runs, on both ledgers: the same gate as the walk, one transaction each, nothing twice."""

import threading
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from healer.adapters.postgres.audit_rows import PostgresAudit
from healer.console.views.timeline_view import audit_row
from healer.model import (
    APPROVAL_LASTS,
    Breaker,
    BreakerState,
    Guard,
    LogEntry,
    Outcome,
    Pause,
    Ruleset,
    RunState,
    StepEvent,
    Verb,
)
from healer.ports.queries import AuditQuery
from healer.ports.request_errors import Conflict, GuardRefused, Invalid, NotFound
from tests.support.command_desk import Desk
from tests.support.ledgers import CLUSTER, START, PostgresBench, begin, bench_of, claimed, entry, facts, run
from tests.support.loop import name, rules_in
from tests.support.wait import wait_until


@pytest.fixture(params=["memory", "postgres"])
def desk(request: pytest.FixtureRequest) -> Desk:
    return Desk(bench_of(request))


def test_a_persons_drain_and_resume_go_all_the_way(desk: Desk) -> None:
    started = desk.people.start(desk.ask())
    assert (started.state, desk.poked) == (RunState.running, [started.id])
    assert facts(desk).slots == (), "the worker grants it"
    assert desk.work(started.id) is RunState.waiting
    assert [slot.node for slot in facts(desk).slots] == [name(1)]
    assert facts(desk).kept == {name(1): "ann"}
    assert desk.slurm.node(name(1)).drain
    back = desk.people.start(desk.ask("resume"))
    assert desk.state(started.id) is RunState.done  # taken over
    assert desk.work(back.id) is RunState.done
    assert desk.slurm.node(name(1)).in_service
    assert (facts(desk).slots, facts(desk).kept) == ((), {})


def test_the_hand_over_lists_what_the_person_did_and_not_the_steps_of_their_run(
    fresh_database: sa.Engine,
) -> None:
    desk = Desk(PostgresBench(fresh_database))
    desk.people.start(desk.ask())
    desk.work("r-drain-1")
    back = desk.people.start(desk.ask("resume"))
    assert desk.work(back.id) is RunState.done
    asked = AuditQuery(clusters=[CLUSTER], people_since=START)
    records = PostgresAudit(fresh_database).page(asked, limit=9).items
    assert [record.verb for record in records] == ["run.started", "run.started"]
    assert {audit_row(record, CLUSTER).words for record in records} == {"noisy fan"}
    assert "node.drained" in desk.audited(), "under the name of the person, in the audit"


def test_the_hand_over_shows_the_reason_of_a_person_for_a_run_that_a_guard_holds(desk: Desk) -> None:
    desk.bench.pause(Pause(id="p1", scope="all", name="", by="bob", reason="x", since=START))
    assert desk.people.start(desk.ask()).state is RunState.held
    assert audit_row(desk.records()[-1], CLUSTER).words == "noisy fan"


def test_the_same_request_again_is_the_same_run(desk: Desk) -> None:
    first, again = desk.people.start(desk.ask()), desk.people.start(desk.ask())
    assert first.id == again.id
    assert len(desk.decisions()) == 1
    assert desk.audited().count("run.started") == 1


def test_runs_started_together_reach_the_workers_in_one_message(fresh_database: sa.Engine) -> None:
    """Starts wait together while the gate is locked; one message names their runs after the commit."""
    begun = list[int]()

    def counted() -> Ruleset:
        begun.append(1)  # each start asks for the rules, then comes to the gate
        return rules_in()

    desk = Desk(PostgresBench(fresh_database), counted)
    asked = [desk.ask("collect-evidence", number) for number in range(1, 8)]
    threads = [threading.Thread(target=desk.people.start, args=(one,)) for one in asked]
    with desk.ledger.transaction() as tx:
        tx.lock_gate()
        for thread in threads:
            thread.start()
        wait_until(lambda: len(begun) > len(asked), 20, what="all starts are under way")
        assert desk.poked == []
    for thread in threads:
        thread.join(20)
    assert sorted(desk.poked) == sorted(one.id for one in asked)
    assert max(desk.pokes) > 1


def test_two_runs_never_work_on_one_node(desk: Desk) -> None:
    desk.people.start(desk.ask())
    with pytest.raises((Conflict, GuardRefused)):
        desk.people.start(desk.ask(id="another"))
    assert len(facts(desk).running) == 1


def test_a_refusal_is_an_error_with_the_guards_answer_and_is_kept(desk: Desk) -> None:
    desk.slurm.person_drain(name(1), "PSU", "bob")
    desk.poll()
    with pytest.raises(GuardRefused) as refused:
        desk.people.start(desk.ask())
    assert refused.value.answer.guard is Guard.ownership
    assert [one.guard for one in desk.decisions()] == [Guard.ownership]
    assert desk.audited() == ["run.refused"]
    assert facts(desk).running == {}


def test_a_hold_is_a_run_that_waits_for_leave(desk: Desk) -> None:
    desk.clock.advance(31)  # the picture of Slurm is too old
    held = desk.people.start(desk.ask())
    assert (held.state, desk.poked) == (RunState.held, [])
    assert facts(desk).slots == ()


def test_start_without_a_known_playbook_or_target_is_refused(desk: Desk) -> None:
    with pytest.raises(NotFound):
        desk.people.start(desk.ask("no-such-playbook"))
    with pytest.raises(Invalid):
        desk.people.start(desk.ask("requeue"))
    with pytest.raises(NotFound):
        desk.people.start(desk.ask("requeue", job="999"))


def test_a_persons_requeue_restarts_the_job_once(desk: Desk) -> None:
    job = desk.slurm.add_job()
    desk.poll()
    started = desk.people.start(desk.ask("requeue", job=job))
    assert desk.work(started.id) is RunState.done
    found = desk.slurm.job(job)
    assert found is not None
    assert found.restarts == 1


def test_job_is_named_as_slurm_names_it_for_any_request(desk: Desk) -> None:
    last_task = desk.slurm.add_job(array=3)
    leader = desk.slurm.add_job(het=[[name(5)], [name(6)]])
    desk.poll()
    task = desk.slurm.job(f"{last_task}_0")
    assert task is not None and task.id != f"{last_task}_0"
    asked = desk.ask("requeue", job=f"{last_task}_0")
    assert [one.id for one in desk.people.preview(asked).jobs_hit] == [task.id]
    assert desk.people.start(asked).job == task.id
    part = next(one.id for one in desk.slurm.snapshot().jobs.values() if one.het_offset == 1)
    assert desk.people.start(desk.ask("requeue", 2, job=part)).job == leader
    assert desk.work("r-requeue-1") is RunState.done
    assert [one.job for one in facts(desk).requeues] == [task.id]


def test_a_cancelled_run_stays_cancelled_and_cancelling_again_is_nothing(desk: Desk) -> None:
    started = desk.people.start(desk.ask())
    for _ in range(2):
        desk.people.cancel(started.id, by="bob", reason="wrong node", request="q1")
    assert desk.work(started.id) is RunState.cancelled
    assert not desk.slurm.node(name(1)).drain
    assert desk.audited().count("run.cancelled") == 1
    with pytest.raises(Conflict):
        desk.people.retry(started.id, by="bob", reason="x", request="q2")


def test_a_retry_begins_every_part_again_that_is_stuck(desk: Desk) -> None:
    begin(desk, run("r1", playbook="gpu-fatal", state=RunState.stuck))
    entries: list[LogEntry] = [
        entry("drain", StepEvent.done),
        entry("jobs", StepEvent.done, data={"jobs": {"1": 0, "2": 0}}),
        entry("requeue:1", StepEvent.failed, data={"final": True}),
        entry("requeue:2", StepEvent.done),
    ]
    with desk.ledger.command() as tx:
        for one in entries:
            tx.write(one)
    desk.people.retry("r1", by="ann", reason="mended", request="q1")
    assert desk.state("r1") is RunState.running
    assert desk.log("r1")[4:] == [("requeue:1", "retry")]
    assert desk.poked == ["r1"]


def test_a_run_whose_playbook_is_gone_has_nothing_to_approve(desk: Desk) -> None:
    begin(desk, run("r1", 1, playbook="gone", state=RunState.stuck))
    with pytest.raises(Conflict, match="there is nothing to approve"):
        desk.people.approve("r1", by="ann", reason="yes", request="q1")


def test_an_approval_passes_the_gate_too(desk: Desk) -> None:
    begin(desk, run("r1", 1, state=RunState.waiting_approval), run("r2", 2, state=RunState.waiting_approval))
    approved = desk.people.approve("r1", by="ann", reason="yes", request="q1")
    assert (approved.state, approved.approved_by) == (RunState.running, "ann")
    assert (facts(desk).running, facts(desk).slots) == ({name(1): "r1"}, ()), "the worker grants the slot"
    desk.slurm.person_drain(name(2), "PSU", "bob")
    desk.poll()
    with pytest.raises(GuardRefused):
        desk.people.approve("r2", by="ann", reason="yes", request="q2")
    assert desk.state("r2") is RunState.waiting_approval
    assert approved.created_at == START


def test_an_approval_that_comes_twice_approves_no_later_step(desk: Desk) -> None:
    """The run's begin was approved; the press, sent again by Slack, is no word on its power."""
    begin(desk, run("r1", playbook="power-cycle", state=RunState.waiting_approval))
    desk.people.approve("r1", by="ann", reason="yes", request="q1")
    with desk.ledger.command() as tx:
        tx.write(entry("agree", StepEvent.waiting, data={"approval": True}))
        tx.set_run_state("r1", RunState.waiting, why="its power", at=desk.clock.now())
    assert desk.people.approve("r1", by="ann", reason="yes", request="q1").state is RunState.waiting
    assert desk.log("r1") == [("agree", "waiting")]
    assert desk.people.approve("r1", by="ann", reason="its power too", request="q2").state is RunState.running


def test_an_approval_is_of_the_question_that_its_person_saw(desk: Desk) -> None:
    """Two people press the same page: the first begins the run, and the second knows nothing of its power."""
    seen = desk.clock.now() + APPROVAL_LASTS
    begin(desk, run("r1", playbook="power-cycle", state=RunState.waiting_approval, approve_until=seen))
    desk.people.approve("r1", by="ann", reason="yes", request="q1", until=seen)
    later = seen + timedelta(minutes=1)
    with desk.ledger.command() as tx:
        tx.write(entry("agree", StepEvent.waiting, data={"approval": True}))
        tx.set_run_state("r1", RunState.waiting, why="its power", at=desk.clock.now(), approve_until=later)
    with pytest.raises(Conflict, match="no longer waits for this approval"):
        desk.people.approve("r1", by="bob", reason="yes", request="q2", until=seen)
    assert desk.log("r1") == [("agree", "waiting")]
    went_on = desk.people.approve("r1", by="bob", reason="its power too", request="q3", until=later)
    assert went_on.state is RunState.running


def test_who_is_asked_at_a_step_may_reject(desk: Desk) -> None:
    """The run has begun, and asks a person before one of its steps."""
    begin(desk, run("r1", playbook="power-cycle"), run("r2", 2, playbook="power-cycle"))
    with desk.ledger.command() as tx:
        tx.write(entry("agree", StepEvent.waiting, data={"approval": True}))
        tx.set_run_state("r1", RunState.waiting, why="its power", at=desk.clock.now())
        tx.set_run_state("r2", RunState.waiting, why="until it is empty", at=desk.clock.now())
    for _ in range(2):
        rejected = desk.people.reject("r1", by="ann", reason="not now", request="q1")
        assert rejected.state is RunState.rejected
    assert desk.audited().count("run.rejected") == 1
    with pytest.raises(Conflict, match="cancel it instead"):
        desk.people.reject("r2", by="ann", reason="not now", request="q2")
    assert desk.state("r2") is RunState.waiting


def test_a_retry_that_comes_twice_is_one(desk: Desk) -> None:
    begin(desk, run("r1", playbook="gpu-fatal", state=RunState.stuck))
    failed = entry("drain", StepEvent.failed, data={"final": True})
    with desk.ledger.command() as tx:
        tx.write(failed)
    desk.people.retry("r1", by="ann", reason="mended", request="q1")
    with desk.ledger.command() as tx:
        tx.write(failed)
        tx.set_run_state("r1", RunState.stuck, why="again", at=desk.clock.now())
    assert desk.people.retry("r1", by="ann", reason="mended", request="q1").state is RunState.stuck
    assert desk.audited().count("run.retried") == 1


def test_a_retry_is_of_the_failure_that_its_person_saw(desk: Desk) -> None:
    """Two people have the page open: the second has not seen why the retry of the first failed."""
    failed = entry("drain", StepEvent.failed, data={"final": True})
    begin(desk, run("r1", playbook="gpu-fatal", state=RunState.stuck))
    with desk.ledger.command() as tx:
        tx.write(failed)
    seen = desk.run("r1").epoch
    desk.people.retry("r1", by="ann", reason="mended", request="q1", epoch=seen)
    with desk.ledger.command() as tx:
        tx.write(failed)
        tx.set_run_state("r1", RunState.stuck, why="another cable", at=desk.clock.now())
    for step in (None, "drain"):
        with pytest.raises(Conflict, match="has gone on since"):
            desk.people.retry("r1", by="bob", reason="mended", request="q2", step=step, epoch=seen)
    assert (desk.state("r1"), desk.audited().count("run.retried")) == (RunState.stuck, 1)
    now = desk.run("r1").epoch
    assert (
        desk.people.retry("r1", by="bob", reason="it too", request="q3", epoch=now).state is RunState.running
    )


def test_a_wait_that_is_checked_now_and_then_is_still_the_one_that_was_seen(desk: Desk) -> None:
    begin(desk, run("r1", playbook="gpu-fatal"))
    seen = desk.run("r1").epoch
    with ExitStack() as stack:
        claim = claimed(stack, desk)
        claim.write(entry("drain", StepEvent.done))
        claim.set_state(RunState.waiting, why="on its drained node", wake_at=desk.clock.now())
    assert desk.run("r1").epoch > seen
    back = desk.people.retry("r1", by="ann", reason="again", request="q1", step="drain", epoch=seen)
    assert back.state is RunState.running


def test_a_reset_of_the_breaker_that_comes_twice_is_one(desk: Desk) -> None:
    """Its answer was lost with the process that gave it; pressed again after the canary failed."""
    opened = Breaker(cluster=CLUSTER, state=BreakerState.open, since=START, why="storm")
    for _ in range(2):
        with desk.ledger.transaction() as tx:
            tx.lock_gate()
            tx.save_breaker(opened)
        desk.people.reset_breaker(CLUSTER, by="ann", reason="bad cable", request="q1")
    assert facts(desk).breaker == opened
    assert desk.audited().count("breaker.reset") == 1
    again = desk.people.reset_breaker(CLUSTER, by="ann", reason="the other cable too", request="q2")
    assert again.state is BreakerState.half_open
    assert desk.people.reset_breaker(CLUSTER, by="ann", reason="the other cable too", request="q2") == again


def test_a_reset_covers_the_storm_that_was_seen_and_no_later_one(desk: Desk) -> None:
    later = Breaker(cluster=CLUSTER, state=BreakerState.open, since=START + timedelta(hours=1), why="storm")
    with desk.ledger.transaction() as tx:
        tx.lock_gate()
        tx.save_breaker(later)
    seen = {"by": "ann", "reason": "bad cable"}
    with pytest.raises(Conflict, match="has opened again"):
        desk.people.reset_breaker(CLUSTER, **seen, request="q1", since=START)
    assert facts(desk).breaker == later and "breaker.reset" not in desk.audited()
    reset = desk.people.reset_breaker(CLUSTER, **seen, request="q2", since=later.since)
    assert reset.state is BreakerState.half_open


# --- runs that wait before they take anything ---


def test_a_slow_node_by_hand_begins_without_a_slot_and_takes_it_with_its_drain(desk: Desk) -> None:
    job = desk.slurm.add_job(required=[name(1)])
    desk.poll()
    started = desk.people.start(desk.ask("slow-node"))
    assert started.state is RunState.running
    assert desk.work(started.id, seconds=30) is RunState.running
    assert facts(desk).slots == ()
    assert not desk.slurm.node(name(1)).drain
    desk.slurm.complete(job)
    desk.work(started.id, seconds=15)
    assert [(one.node, one.run) for one in facts(desk).slots] == [(name(1), started.id)]
    assert desk.slurm.node(name(1)).drain
    with desk.ledger.transaction() as tx:
        assert not tx.is_returning(started.id)


@pytest.mark.parametrize("playbook", ["slow-node", "restart-fabric-manager"])
def test_a_preview_shows_the_plan_and_the_guards(desk: Desk, playbook: str) -> None:
    job = desk.slurm.add_job(required=[name(1)])
    desk.poll()
    shown = desk.people.preview(desk.ask(playbook))
    assert shown.outcome == "act"
    assert [step.id for step in shown.playbook.steps][-2:] == ["verify", "resume"]
    assert [one.id for one in shown.jobs_hit] == [job]
    assert (facts(desk).slots, facts(desk).running) == ((), {})


def test_a_persons_drain_takes_over_a_run_that_has_only_waited(desk: Desk) -> None:
    desk.slurm.add_job(required=[name(1)])
    desk.poll()
    waiting = desk.people.start(desk.ask("slow-node"))
    desk.work(waiting.id, seconds=5)
    drain = desk.people.start(desk.ask("drain", by="bob"))
    assert desk.state(waiting.id) is RunState.done
    assert desk.work(drain.id) is RunState.waiting
    assert desk.slurm.node(name(1)).drain
    desk.driver.drive(waiting.id)
    assert desk.state(waiting.id) is RunState.done


def test_read_only_run_is_allowed_beside_a_working_one(desk: Desk) -> None:
    """Nor does it keep one off: a drain that is asked for meanwhile begins at once."""
    beside = desk.people.start(desk.ask("collect-evidence"))
    assert (beside.state, beside.alongside, facts(desk).running) == (RunState.running, True, {})
    drain = desk.people.start(desk.ask())
    assert (drain.state, desk.state(beside.id)) == (RunState.running, RunState.running)
    with pytest.raises(Conflict, match="does the same"):
        desk.people.start(desk.ask("collect-evidence", id="r-twice"))
    assert desk.work(drain.id) is RunState.waiting
    assert desk.work(beside.id) is RunState.stuck  # this worker comes to no node
    again = desk.people.start(desk.ask("collect-evidence", id="r-again"))
    assert (again.state, desk.state(drain.id)) == (RunState.running, RunState.waiting)


def test_a_persons_drain_does_not_take_over_a_run_that_has_taken_the_node(desk: Desk) -> None:
    waiting = desk.people.start(desk.ask("slow-node"))
    desk.driver.drive(waiting.id)
    assert [one.run for one in facts(desk).slots] == [waiting.id]
    with pytest.raises((Conflict, GuardRefused)):
        desk.people.start(desk.ask("drain", by="bob"))
    assert desk.state(waiting.id) in {RunState.running, RunState.stuck}


def test_a_return_that_was_granted_is_known_to_be_ours(desk: Desk) -> None:
    desk.work(desk.people.start(desk.ask()).id)
    back = desk.people.start(desk.ask("resume"))
    with desk.ledger.transaction() as tx:
        assert not tx.is_returning(back.id)
    desk.work(back.id)
    with desk.ledger.transaction() as tx:
        assert tx.is_returning(back.id)


def test_a_node_that_was_drained_again_after_its_tests_is_not_being_returned(desk: Desk) -> None:
    own = desk.people.start(desk.ask()).id
    desk.work(own)

    def logged(step: str, event: StepEvent, verb: Verb) -> bool:
        with desk.ledger.transaction() as tx:
            tx.write(LogEntry(run=own, at=START, epoch=9, step=step, event=event, data={"verb": str(verb)}))
            return tx.is_returning(own)

    assert logged("reserve", StepEvent.started, Verb.reserve)
    assert not logged("out", StepEvent.done, Verb.drain)
    assert logged("resume", StepEvent.started, Verb.resume)


def test_a_sweep_by_hand_is_judged_takes_nothing_and_gives_way(desk: Desk) -> None:
    seen = desk.people.preview(desk.ask("sweep"))
    assert seen.outcome is Outcome.act
    assert {one.guard: (one.used, one.limit) for one in seen.answers}[Guard.sweep] == (0, 1)
    run = desk.people.start(desk.ask("sweep"))
    assert (run.state, run.alongside) == (RunState.running, True)
    assert (facts(desk).slots, facts(desk).running) == ((), {})
    second = desk.people.start(desk.ask("sweep", 2))
    assert second.state is RunState.held and "1 of 1 nodes in sweep" in (second.question or "")
    assert desk.work(run.id, 3) is RunState.running
    (job,) = desk.slurm.snapshot().jobs.values()
    theirs = desk.slurm.add_job(required=[name(1)], gpus=8)
    assert desk.work(run.id, 5) is RunState.done
    ended, taken = desk.slurm.job(job.id), desk.slurm.job(theirs)
    assert ended is not None and taken is not None
    assert (ended.state, taken.state) == ("CANCELLED", "RUNNING")


def test_a_search_by_halves_is_planned_and_begins_also_for_a_job_that_slurm_forgot(desk: Desk) -> None:
    job = desk.slurm.add_job(nodes=4)
    desk.poll()
    seen = desk.people.preview(desk.ask("bisect", job=job))
    assert (seen.outcome, seen.not_available) == (Outcome.act, {})
    assert [step.id for step in seen.playbook.steps] == ["halves", "tell"]
    assert {one.guard for one in seen.answers} >= {Guard.pause, Guard.stale, Guard.breaker}
    run = desk.people.start(desk.ask("bisect", job=job))
    assert (run.state, facts(desk).slots, facts(desk).running) == (RunState.running, (), {})
    assert desk.work(run.id, 3) is RunState.running
    desk.slurm.complete(job)
    assert desk.work(run.id, 15) is RunState.running
    assert any(one.name.startswith("healer-sweep-") for one in desk.slurm.snapshot().jobs.values())
    inputs: Any = {"nodes": "gpu[0005-0008]"}
    again = desk.people.start(desk.ask("bisect", 2, job="9999", inputs=inputs))
    assert (again.state, again.job) == (RunState.running, "9999")
    with pytest.raises(NotFound):
        desk.people.start(desk.ask("requeue", job="9999"))


def test_a_drain_goes_ahead_of_a_sweep_of_its_node(desk: Desk) -> None:
    sweep = desk.people.start(desk.ask("sweep"))
    desk.work(sweep.id, 3)
    drain = desk.people.start(desk.ask("drain"))
    assert drain.state is RunState.running
    for _ in range(5):
        desk.work(drain.id, 1)
        desk.work(sweep.id, 1)
    assert desk.slurm.node(name(1)).drain
    assert desk.state(sweep.id) is RunState.done
    assert [job.state for job in desk.slurm.snapshot().jobs.values()] == ["CANCELLED"]


# --- jobs whose restart is agreed to with the run ---


def test_a_preview_offers_the_restart_of_the_jobs_on_the_node(desk: Desk) -> None:
    free = desk.slurm.add_job(gpus=4, user="bob")
    bound = desk.slurm.add_job(gpus=4, requeue=False)
    desk.poll()
    offers = desk.people.preview(desk.ask("validate")).restarts
    assert [(one.job, one.user, one.possible) for one in offers] == [
        (free, "bob", True),
        (bound, "user", False),
    ]
    assert "Requeue=0" in offers[1].why
    assert desk.people.preview(desk.ask("drain")).restarts == []


def test_a_job_that_is_named_at_the_start_is_restarted_with_the_run(desk: Desk) -> None:
    job = desk.slurm.add_job()
    desk.poll()
    started = desk.people.start(desk.ask("validate", restart=(job,)))
    assert (started.input["restart"], started.input["restart_by"]) == ({job: 0}, {job: "ann"})
    desk.work(started.id)
    assert desk.slurm.snapshot().jobs[job].restarts == 1
    assert (f"requeue:{job}", "done") in desk.log(started.id)


def test_run_with_jobs_it_cannot_restart_is_refused_before_it_begins(desk: Desk) -> None:
    elsewhere = desk.slurm.add_job(required=[name(2)])
    bound = desk.slurm.add_job(required=[name(1)], requeue=False)
    desk.poll()
    with pytest.raises(Invalid, match=f"job {elsewhere} does not run on {name(1)}"):
        desk.people.start(desk.ask("validate", restart=(elsewhere,)))
    with pytest.raises(Invalid, match="drain restarts no job"):
        desk.people.start(desk.ask("drain", restart=(bound,)))
    with pytest.raises(GuardRefused) as refused:
        desk.people.start(desk.ask("validate", restart=(bound,)))
    assert refused.value.answer.guard is Guard.consent
    assert facts(desk).slots == ()
    assert desk.poked == []


def test_a_life_that_is_named_is_restarted_and_no_other(desk: Desk) -> None:
    job = desk.slurm.add_job()
    desk.poll()
    with pytest.raises(Conflict, match=f"job {job} restarted after you looked"):
        desk.people.start(desk.ask("validate", restart=(f"{job}:1",)))
    with pytest.raises(Invalid, match="its restart count"):
        desk.people.start(desk.ask("validate", restart=(f"{job}:one",)))
    assert desk.people.preview(desk.ask("validate")).restarts[0].restarts == 0
    assert desk.people.start(desk.ask("validate", restart=(f"{job}:0",))).input["restart"] == {job: 0}


def test_consent_to_a_restart_is_never_dropped_in_silence(desk: Desk) -> None:
    job = desk.slurm.add_job(comment="healer:requeue")
    desk.poll()
    begin(desk, run("r1", 1, playbook="validate", state=RunState.waiting_approval))
    desk.people.approve("r1", by="ann", reason="it lies", request="q1")
    assert desk.people.approve("r1", by="ann", reason="it lies", request="q2").id == "r1"
    with pytest.raises(Conflict, match="consent to a restart must come earlier"):
        desk.people.approve("r1", by="ann", reason="it lies", request="q3", restart=[job])


def test_an_approval_may_name_them_too_and_the_audit_says_so(desk: Desk) -> None:
    job = desk.slurm.add_job(comment="healer:requeue")
    desk.poll()
    begin(desk, run("r1", 1, playbook="validate", state=RunState.waiting_approval))
    desk.people.approve("r1", by="ann", reason="it lies", request="q1", restart=[job])
    desk.work("r1")
    assert desk.slurm.snapshot().jobs[job].restarts == 1
    (approved,) = [record for record in desk.records() if record.verb == "run.approved"]
    assert approved.data["restart"] == {job: 0}
