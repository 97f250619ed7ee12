"""A slow node: two senses, a good moment, a test. And no job is touched before that."""

from collections.abc import Callable
from datetime import timedelta

import msgspec
import pytest

from healer.model import (
    BreakerState,
    CommandKind,
    FaultClass,
    GuardSettings,
    IncidentState,
    Mode,
    RunState,
    Slot,
    StepEvent,
)
from tests.support.deaths import CountingSlurm
from tests.support.loop import CLUSTER, LOST, Crash, equip, later, name
from tests.support.slow import SlowSite, slow_rules

NODE = name(1)


def slow(**fields: object) -> tuple[SlowSite, str]:
    """A job that agreed to a requeue, on a node that two senses call slow; its run waits for the moment."""
    site = SlowSite(scheduler=CountingSlurm, **fields)  # type: ignore[arg-type]
    job = site.agreed(required=[NODE])
    site.find("straggler", "gpu-hot", gpu=3, job=job)
    site.pass_time(5)
    return site, job


def fills(
    site: SlowSite, *, gpus: int, then: Callable[[str], None] = lambda _: None
) -> Callable[[str], None]:
    """A job that must not be requeued starts between the look and the drain: the node stays full."""

    def at(where: str) -> None:
        if where == "started:drain":
            site.slurm.add_job(required=[NODE], gpus=gpus, comment="")
        then(where)

    return at


def steps(site: SlowSite, run: str, *events: StepEvent) -> list[str]:
    return [one.step for one in site.log(run) if one.event in (events or (StepEvent.done,))]


# --- two senses ---


def test_step_times_alone_start_nothing_and_say_why() -> None:
    site = SlowSite()
    site.find("straggler", gpu=3)
    site.pass_time(60)
    assert site.runs == []
    assert site.ledger.tables.decisions[-1].why == (
        f"Only step times report {NODE} so far: a second signal must agree before healer acts."
    )
    assert [one.outcome for one in site.ledger.tables.decisions] == ["nothing"], "said once"


def test_a_second_sense_starts_the_run() -> None:
    site = SlowSite()
    site.find("straggler", gpu=3)
    site.pass_time(30)
    site.find("gpu-hot", gpu=3)
    site.pass_time(1)
    assert site.run_of("slow-node").by == "healer"
    assert len(site.open_incidents) == 1


def test_the_same_sense_twice_is_one() -> None:
    site = SlowSite()
    site.find("straggler", gpu=3)
    site.clock.advance(5)
    site.find("straggler", gpu=4)
    site.pass_time(30)
    assert site.runs == []


def test_a_sense_that_speaks_of_another_node_does_not_count() -> None:
    site = SlowSite()
    site.find("straggler", gpu=3)
    site.find("gpu-hot", node=2, gpu=3)
    site.pass_time(30)
    assert site.runs == []


def test_cleared_incident_starts_no_run_until_its_finding_returns() -> None:
    site = SlowSite()
    site.find("straggler", gpu=3)
    site.clear("straggler", gpu=3)
    site.find("gpu-hot", gpu=3)
    site.pass_time(30)
    assert site.runs == []
    site.back()
    site.pass_time(1)
    assert site.run_of("slow-node").state is RunState.running


# --- the whole way ---


def test_senses_that_fell_silent_while_it_waited_take_no_node() -> None:
    site = SlowSite()
    job = site.agreed()
    site.find("straggler", "gpu-hot", gpu=3, job=job)
    site.pass_time(3600, step_s=30)
    site.checkpoint(job, 120)
    site.pass_time(60)
    run = site.run_of("slow-node")
    assert run.state is RunState.stuck
    assert site.node(1).in_service
    assert site.ledger.tables.slots == {}


def test_it_waits_for_the_checkpoint_then_drains_requeues_tests_and_returns() -> None:
    site = SlowSite(scheduler=CountingSlurm)
    job = site.agreed()
    assert site.slurm.job(job).nodes == (NODE,)  # type: ignore[union-attr]
    site.find("straggler", "gpu-hot", gpu=3, job=job)
    site.pass_time(3600, step_s=30)
    assert site.scheduler.writes == [], "nothing is taken while the job works"
    assert site.ledger.tables.slots == {}
    site.find("straggler", "gpu-hot", gpu=3, job=job)  # persisting findings are repeated
    site.checkpoint(job, 120)
    site.pass_time(8)
    assert site.node(1).drain
    assert site.node(1).reason.startswith("healer:straggler inc:")
    site.pass_time(60)
    found = site.slurm.job(job)
    assert found is not None and found.restarts == 1
    assert NODE not in found.nodes
    run = site.run_of("slow-node")
    assert (run.state, run.question) == (RunState.done, None)
    assert site.node(1).in_service
    done = [*steps(site, run.id)]
    assert done == [
        "evidence", "moment", "still", "drain", "jobs", f"requeue:{job}", f"owner:{job}", "leave", "empty",
        "validate", "notify", "verify", "resume",
    ]  # fmt: skip
    assert steps(site, run.id, StepEvent.skipped) == ["free", "start", "ticket", "repair"]
    assert [one for one in site.scheduler.writes if one != "start_now"] == ["drain", "requeue", "resume"]
    assert site.ledger.tables.slots == {}
    assert site.open_incidents == []
    assert site.incidents[0].probation_until is not None
    assert site.audited("node.vetoed") == 0, "our own return is no person's"


def test_tests_that_fail_keep_the_node_out_with_a_ticket() -> None:
    site, job = slow()
    site.nodes.plant(NODE, "slow-gpu-3")
    site.checkpoint(job, 120, at=site.now + timedelta(seconds=1))
    site.clock.advance(1)
    site.pass_time(60)
    site.checkpoint(job, 121)
    site.pass_time(120)
    run = site.run_of("slow-node")
    assert run.state is RunState.waiting
    (validate,) = (one for one in site.log(run.id, "validate") if one.event is StepEvent.done)
    assert (validate.data["passed"], validate.data["failed"]) == (False, ["slow-gpu-3"])
    assert "ticket" in steps(site, run.id)
    assert site.node(1).drain
    assert list(site.ledger.tables.slots) == [NODE]


def test_an_idle_node_is_taken_at_once() -> None:
    site = SlowSite()
    site.find("straggler", "gpu-hot", gpu=3)
    site.pass_time(3)
    assert site.node(1).drain


def test_a_job_that_did_not_agree_is_waited_for_and_its_checkpoint_does_not_help() -> None:
    site = SlowSite(scheduler=CountingSlurm)
    job = site.agreed(required=[NODE], comment="")
    site.find("straggler", "gpu-hot", gpu=3)
    site.pass_time(5)
    site.checkpoint(job, 120)
    site.pass_time(600, step_s=10)
    assert site.scheduler.writes == []
    site.slurm.complete(job)
    site.pass_time(10)
    assert site.scheduler.writes[0] == "drain"
    assert "requeue" not in site.scheduler.writes


@pytest.mark.parametrize("what", ["before", "old clock", "earlier life"])
def test_a_checkpoint_that_is_not_of_now_does_not_help(what: str) -> None:
    site = SlowSite(scheduler=CountingSlurm)
    job = site.agreed(required=[NODE])
    if what == "earlier life":
        site.slurm.requeue(job)
        site.clock.advance(200)
        site.look()
        site.slurm.requeue(job)
        site.clock.advance(200)
        site.look()
    if what == "before":
        site.checkpoint(job, 120)
        site.clock.advance(1)
    site.find("straggler", "gpu-hot", gpu=3)
    site.pass_time(5)
    if what == "old clock":
        site.checkpoint(job, 121, at=site.now - timedelta(minutes=5))
    if what == "earlier life":
        site.checkpoint(job, 121, restart=1)
    before = list(site.scheduler.writes)
    site.pass_time(60)
    assert site.scheduler.writes == before


def test_each_job_on_the_node_is_waited_for() -> None:
    site = SlowSite(scheduler=CountingSlurm)
    first = site.agreed(required=[NODE], gpus=4)
    second = site.agreed(required=[NODE], gpus=4)
    site.find("straggler", "gpu-hot", gpu=3)
    site.pass_time(5)
    site.checkpoint(first, 120)
    site.pass_time(60)
    assert site.scheduler.writes == []
    site.checkpoint(second, 120)
    site.pass_time(8)
    assert site.scheduler.writes[0] == "drain"


def test_a_wait_of_a_day_asks_a_person_and_leaves_few_lines() -> None:
    site, _ = slow()
    site.pass_time(90_000, step_s=600)
    run = site.run_of("slow-node")
    assert run.state is RunState.stuck
    assert "waiting for 24" in (run.question or "")
    assert len(site.log(run.id)) < 8
    assert site.scheduler.writes == []


# --- it gets well ---


def test_a_node_that_gets_well_while_it_is_waited_for_is_left_alone() -> None:
    site, job = slow()
    site.clear("straggler", gpu=3)
    site.pass_time(240, step_s=5)
    assert site.run_of("slow-node").state is RunState.running, "it might come back"
    site.checkpoint(job, 120)
    site.pass_time(30)
    assert site.scheduler.writes == [], "well for some minutes: not now"
    site.pass_time(120)
    run = site.run_of("slow-node")
    assert run.state is RunState.done
    assert site.scheduler.writes == []
    assert site.open_incidents == []
    assert site.incidents[0].closed_why == f"recovered at {later(5):%H:%M:%S} UTC"


def test_a_node_that_is_slow_again_is_waited_for_again() -> None:
    site, job = slow()
    site.clear("straggler", gpu=3)
    site.pass_time(120)
    site.back()
    site.checkpoint(job, 120)
    site.pass_time(8)
    assert site.scheduler.writes[0] == "drain"


def test_a_node_that_gets_well_while_a_guard_holds_its_drain_is_left_alone() -> None:
    site, job = slow()
    site.pause()
    site.checkpoint(job, 120)
    site.pass_time(30)
    assert site.log(site.run_of("slow-node").id)[-1].event is StepEvent.held
    site.clear("straggler", gpu=3)
    site.pass_time(330, step_s=5)
    assert site.run_of("slow-node").state is RunState.done
    assert site.open_incidents == []
    assert site.scheduler.writes == []


# --- the gate, when the drain is due ---


def test_a_waiting_run_uses_no_slot_and_several_wait_beside_each_other() -> None:
    site = SlowSite(scheduler=CountingSlurm)
    jobs = {n: site.agreed(required=[name(n)]) for n in (1, 2)}
    for n in jobs:
        site.find("straggler", "gpu-hot", node=n, gpu=3)
    site.pass_time(10)
    assert {run.state for run in site.runs} == {RunState.running}
    assert len(site.runs) == 2
    assert site.ledger.tables.slots == {}
    for job in jobs.values():
        site.checkpoint(job, 120)
    site.pass_time(20)
    # 32 nodes: one slot at once. The other waits at its drain, by the caps of now.
    assert site.scheduler.writes.count("drain") == 1
    held = [run for run in site.runs if run.question]
    assert len(held) == 1 and "slots" in (held[0].question or "")


def test_moment_missed_while_a_guard_held_is_awaited_again() -> None:
    site, job = slow()
    site.pause()
    site.checkpoint(job, 120)
    site.pass_time(3600, step_s=10)
    lines = len(site.log(site.run_of("slow-node").id))
    site.end_pause()
    site.pass_time(300, step_s=5)
    assert site.scheduler.writes == [], "an hour of work would be lost"
    assert len(site.log(site.run_of("slow-node").id)) - lines < 6
    site.checkpoint(job, 240)
    site.pass_time(8)
    assert site.scheduler.writes[0] == "drain"


def test_the_grant_is_a_decision_on_record_and_audited_with_the_drain() -> None:
    site, job = slow()
    site.checkpoint(job, 120)
    site.pass_time(8)
    (slot,) = site.ledger.tables.slots.values()
    assert (slot.run, slot.incident) == (site.run_of("slow-node").id, site.incidents[0].id)
    acts = [one for one in site.ledger.tables.decisions if one.outcome == "act"]
    assert [one.proposal.begins for one in acts if one.proposal][:2] == [True, False]
    assert site.audited("node.drained") == 1


@pytest.mark.parametrize("mode", [Mode.shadow, Mode.off])
def test_a_rule_that_may_do_less_now_takes_its_waiting_run_back(mode: Mode) -> None:
    site, job = slow()
    run = site.run_of("slow-node").id
    site.ledger.tables.modes["straggler"] = mode
    site.checkpoint(job, 120)
    site.pass_time(120)
    assert site.scheduler.writes == []
    assert site.ledger.tables.runs[run].state is RunState.rejected
    assert [one.shadow for one in site.runs if one.id != run] == ([True] if mode is Mode.shadow else [])


def test_a_rule_that_asks_for_approval_now_asks_for_the_waiting_run_too() -> None:
    site, job = slow()
    run = site.run_of("slow-node").id
    site.ledger.tables.modes["straggler"] = Mode.approve
    site.checkpoint(job, 120)
    site.pass_time(60)
    assert site.scheduler.writes == []
    assert site.ledger.tables.runs[run].state is RunState.rejected
    assert site.run_of("slow-node").state is RunState.waiting_approval
    site.approve(site.run_of("slow-node").id)
    site.pass_time(10)
    site.checkpoint(job, 240)
    site.pass_time(10)
    assert site.scheduler.writes[0] == "drain"


def test_a_rule_made_shadow_in_its_file_binds_the_driver_too() -> None:
    """The worker may drive before the detector has walked over the new rules."""
    site, job = slow()
    site.checkpoint(job, 120)
    site.rules = slow_rules(straggler=Mode.shadow)
    site.clock.advance(6)
    site.drive()
    assert site.scheduler.writes == []
    assert site.log(site.run_of("slow-node").id)[-1].data["guard"] == "mode"


def test_an_open_breaker_holds_what_waited() -> None:
    site, job = slow()
    breaker = site.ledger.tables.breaker
    assert breaker is not None
    site.ledger.tables.breaker = msgspec.structs.replace(breaker, state=BreakerState.open, why="a storm")
    site.checkpoint(job, 120)
    site.pass_time(30)
    assert site.scheduler.writes == []
    assert site.log(site.run_of("slow-node").id)[-1].data["guard"] == "breaker"


def test_half_open_the_run_is_no_canary_before_its_drain() -> None:
    site = SlowSite(scheduler=CountingSlurm)
    breaker = site.ledger.tables.breaker
    assert breaker is not None
    site.ledger.tables.breaker = msgspec.structs.replace(
        breaker, state=BreakerState.half_open, reset_by="ann", reset_reason="looked"
    )
    job = site.agreed(required=[NODE])
    site.find("straggler", "gpu-hot", gpu=3)
    site.pass_time(30)
    assert site.ledger.tables.breaker is not None and site.ledger.tables.breaker.canary is None
    site.checkpoint(job, 120)
    site.pass_time(7)
    assert site.ledger.tables.breaker.canary == site.run_of("slow-node").id


def test_canary_drained_for_long_has_succeeded() -> None:
    site = SlowSite(scheduler=CountingSlurm)
    other = site.agreed(required=[NODE], gpus=4)
    site.find("straggler", "gpu-hot", gpu=3)
    breaker = site.ledger.tables.breaker
    assert breaker is not None
    site.ledger.tables.breaker = msgspec.structs.replace(
        breaker, state=BreakerState.half_open, reset_by="ann", reset_reason="looked"
    )
    site.pass_time(5)
    site.checkpoint(other, 120)
    site.on_checkpoint = fills(site, gpus=4)
    site.pass_time(120)
    assert site.ledger.tables.breaker is not None
    assert site.ledger.tables.breaker.state is BreakerState.half_open
    site.pass_time(900, step_s=10)
    assert site.ledger.tables.breaker.state is BreakerState.closed
    assert site.run_of("slow-node").state is RunState.running


# --- other runs, other people, worse news ---


def test_a_gpu_that_dies_does_not_wait_for_the_run_that_waits() -> None:
    site, job = slow()
    waiting = site.run_of("slow-node").id
    site.walk(*site.say(1, LOST))
    site.pass_time(3)
    assert site.node(1).drain
    assert site.node(1).reason.startswith("healer:gpu-lost")
    assert site.ledger.tables.runs[waiting].state is RunState.done
    (left,) = site.open_incidents
    assert left.rule == "gpu-lost"
    merged = next(one for one in site.incidents if one.rule == "straggler")
    assert merged.merged_into == left.id
    site.pass_time(30)
    found = site.slurm.job(job)
    assert found is not None and found.restarts == 1


def test_a_fault_that_healer_may_not_act_on_leaves_the_waiting_run_alone() -> None:
    rules = slow_rules()
    shadow = tuple(
        msgspec.structs.replace(one, mode=Mode.shadow) if one.name == "gpu-lost" else one
        for one in rules.rules
    )
    site, job = slow(rules=msgspec.structs.replace(rules, rules=shadow))
    site.walk(*site.say(1, LOST))
    site.pass_time(10)
    assert site.run_of("slow-node").state is RunState.running
    # Once the node is out for being slow, it stays out: a dead GPU does not come back by itself.
    site.checkpoint(job, 120)
    site.pass_time(120)
    assert site.node(1).drain
    run = site.run_of("slow-node")
    assert run.state is RunState.stuck and "is more severe and still open" in (run.question or "")
    assert "resume" not in site.scheduler.writes


@pytest.mark.parametrize("step", ["empty", "validate", "verify", "resume"])
def test_a_gpu_that_dies_while_its_node_is_tested_keeps_it_out(step: str) -> None:
    """The run leaves the node to the worse incident: it must not bring it back."""
    site, job = slow()
    site.checkpoint(job, 120)
    noticed: list[str] = []

    def dies(where: str) -> None:
        if where == f"started:{step}" and not noticed:
            noticed.append(where)
            site.look()
            site.walk(*site.say(1, LOST))

    if step == "empty":  # a job that must not be requeued keeps the node full
        site.on_checkpoint = fills(site, gpus=1, then=dies)
    else:
        site.on_checkpoint = dies
    site.pass_time(240)
    assert noticed
    assert site.node(1).drain, "a dead GPU is not in service"
    (left,) = site.open_incidents
    assert left.rule == "gpu-lost"
    assert not any(veto.node == NODE for veto in site.ledger.tables.vetoes)


def test_what_a_person_splits_from_the_worse_incident_that_took_its_node_stays_apart() -> None:
    site, job = slow()
    site.checkpoint(job, 120)

    def dies(where: str) -> None:
        if where == "started:validate" and not any(one.rule == "gpu-lost" for one in site.incidents):
            site.walk(*site.say(1, LOST))

    site.on_checkpoint = dies
    site.pass_time(240)
    (left,) = site.open_incidents
    (milder,) = (one for one in site.incidents if one.merged_into == left.id)
    site.send_command(CommandKind.split, incident=left.id, incidents=[milder.id])
    site.pass_time(30)
    assert {one.id for one in site.open_incidents} == {left.id, milder.id}
    assert site.node(1).drain


def test_worse_news_between_the_grant_of_the_return_and_the_return_keeps_the_node_out() -> None:
    site, job = slow()
    site.checkpoint(job, 120)

    def dies(where: str) -> None:
        if where == "performed:verify" and not any(one.rule == "gpu-lost" for one in site.incidents):
            site.walk(*site.say(1, LOST))

    site.on_checkpoint = dies
    site.pass_time(240)
    assert "resume" not in site.scheduler.writes
    assert site.node(1).drain


def test_a_persons_drain_takes_the_waiting_node_over() -> None:
    site, _ = slow()
    waiting = site.run_of("slow-node")
    asked = msgspec.structs.replace(
        waiting, id="r-ann", playbook="drain", by="ann", state=RunState.held, incident=None, rule="drain"
    )
    with site.ledger.transaction() as tx:
        tx.create_run(asked)
    site.pass_time(5)
    assert site.ledger.tables.runs[waiting.id].state is RunState.done
    assert site.node(1).drain
    # The incident is still open, and does nothing while the node is out by ann's word.
    site.pass_time(60)
    assert len(site.runs) == 2
    assert site.incident.run is None


def test_a_cancelled_wait_stays_cancelled() -> None:
    site, job = slow()
    site.cancel(site.run_of("slow-node").id)
    site.checkpoint(job, 120)
    site.pass_time(60)
    assert site.scheduler.writes == []
    assert len(site.runs) == 1
    assert site.incident.stopped_by is not None or site.incident.run is None


def test_a_node_that_a_person_drained_meanwhile_is_left_to_them() -> None:
    site, job = slow()
    site.slurm.person_drain(NODE, "fan swap", "ann")
    site.checkpoint(job, 120)
    site.pass_time(120)
    assert "drain" not in site.scheduler.writes
    assert site.node(1).reason == "fan swap"
    assert site.run_of("slow-node").state is RunState.running


def test_a_slot_of_another_run_on_the_node_ends_the_wait() -> None:
    """Two runs on one node: the other has taken it out, so there is nothing left to take."""
    site, job = slow()
    site.ledger.tables.slots[NODE] = Slot(
        cluster=CLUSTER, node=NODE, incident="other", run="r-other", granted_at=site.now, drained_at=site.now
    )
    site.slurm.drain(NODE, "healer:gpu-lost inc:0badcafe other")
    site.checkpoint(job, 120)
    site.pass_time(10)
    assert site.run_of("slow-node").state is RunState.done
    assert site.scheduler.writes == []
    assert site.node(1).drain


def test_healer_by_itself_does_not_end_the_drain_of_another_incident() -> None:
    site, job = slow()
    site.checkpoint(job, 120)

    def other(where: str) -> None:
        if where == "performed:verify":
            site.slurm.drain(NODE, "healer:gpu-lost inc:0badcafe other")

    site.on_checkpoint = other
    site.pass_time(120)
    run = site.run_of("slow-node")
    assert run.state is RunState.stuck
    assert "out of service for another reason" in (run.question or "")
    assert site.node(1).drain


def test_a_person_who_resumes_the_node_while_it_is_tested_is_heard() -> None:
    site, job = slow()
    site.checkpoint(job, 120)

    def resumes(where: str) -> None:
        if where == "started:validate":
            site.slurm.resume(NODE)

    site.on_checkpoint = resumes
    site.pass_time(60)
    assert [veto.node for veto in site.ledger.tables.vetoes] == [NODE]
    assert site.run_of("slow-node").state is RunState.cancelled


def test_the_same_test_is_not_repeated_within_its_hours() -> None:
    site, job = slow()
    site.checkpoint(job, 120)
    site.pass_time(120)
    assert site.node(1).in_service
    site.find("straggler", "gpu-hot", gpu=3)
    site.pass_time(60)
    run = site.run_of("slow-node")
    assert (run.state, site.incident.held_by) == (RunState.held, "repeat")


# --- no way to reach nodes ---


def test_without_a_way_to_the_nodes_the_run_asks_and_never_says_passed() -> None:
    site, job = slow()
    equip(site.driver, nodes=None)
    site.checkpoint(job, 120)
    site.pass_time(60)
    run = site.run_of("slow-node")
    assert run.state is RunState.stuck
    assert "cannot work on gpu0001" in (run.question or "")
    assert site.node(1).drain


def test_a_node_that_does_not_answer_is_asked_again_then_a_person_is() -> None:
    site, job = slow()
    site.nodes.plant(NODE, "unreachable")
    site.checkpoint(job, 120)
    site.pass_time(12_000, step_s=30)
    run = site.run_of("slow-node")
    assert run.state is RunState.stuck
    assert "did not answer" in (run.question or "")
    site.nodes.mend(NODE)
    site.retry(run.id, "validate")
    site.pass_time(60)
    assert site.run_of("slow-node").state is RunState.done
    assert site.node(1).in_service


# --- shadow ---


def test_shadow_waits_for_the_moment_logs_every_step_and_touches_nothing() -> None:
    site, job = slow(rules=slow_rules(straggler=Mode.shadow))
    run = site.run_of("slow-node")
    assert run.shadow and run.state is RunState.running
    site.pass_time(60)
    assert [one.text for one in site.log(run.id) if "would drain" in one.text] == []
    site.checkpoint(job, 120)
    site.pass_time(30)
    texts = [one.text for one in site.log(run.id)]
    assert f"shadow: would drain {NODE}" in texts
    assert f"shadow: would requeue {job}" in texts
    assert f"shadow: would diagnose {NODE}" in texts
    assert f"shadow: would resume {NODE}" in texts
    assert site.scheduler.writes == []
    assert site.nodes.diagnoses(NODE) == []
    assert site.run_of("slow-node").state is RunState.done
    assert site.ledger.tables.slots == {}
    assert site.ledger.facts().actions == (), "what was not done says nothing of Slurm"


# --- deaths ---

MOMENTS = [
    "started:evidence", "performed:evidence", "started:moment", "performed:moment", "started:drain",
    "done:drain", "performed:drain", "started:jobs", "performed:jobs", "started:requeue", "done:requeue",
    "performed:requeue", "started:empty", "performed:empty", "started:validate", "done:validate",
    "performed:validate", "started:notify", "performed:notify", "started:verify", "performed:verify",
    "started:resume", "done:resume", "performed:resume",
]  # fmt: skip


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_death_at_any_moment_leads_to_the_same_end(moment: str) -> None:
    site = SlowSite(scheduler=CountingSlurm)
    job = site.agreed(required=[NODE])
    died: list[str] = []

    def die(where: str) -> None:
        if where.removesuffix(f":{job}") == moment and not died:
            died.append(where)
            raise Crash(where)

    site.on_checkpoint = die
    site.find("straggler", "gpu-hot", gpu=3, job=job)
    for second in range(180):
        if second % 20 == 19:
            site.checkpoint(job, second)
        site.clock.advance(1)
        site.tick()
        try:
            site.drive()
        except Crash:
            site.ledger._claimed.clear()
            site.tick()
    assert died
    found = site.slurm.job(job)
    assert found is not None and found.restarts == 1
    assert site.run_of("slow-node").state is RunState.done
    assert len(site.runs) == 1
    writes = site.scheduler.writes
    assert [writes.count(one) for one in ("drain", "requeue", "resume")] == [1, 1, 1]
    assert len(site.nodes.diagnoses(NODE)) == 1
    assert site.ledger.tables.slots == {}
    assert site.ledger.tables.vetoes == []
    assert site.node(1).in_service
    assert [one.state for one in site.incidents] == [IncidentState.resolved]


def test_many_slow_nodes_of_one_rule_open_the_breaker_and_none_is_taken() -> None:
    site = SlowSite(
        scheduler=CountingSlurm,
        rules=msgspec.structs.replace(slow_rules(), guards=GuardSettings(max_share=0.5, share_per_hour=0.5)),
    )
    jobs = [site.agreed(required=[name(n)]) for n in range(1, 9)]
    for n in range(1, 9):
        site.find("straggler", "gpu-hot", node=n, gpu=3)
    assert all(one.fault_class is FaultClass.degraded for one in site.incidents)
    site.pass_time(5)
    for job in jobs:
        site.checkpoint(job, 120)
    site.pass_time(60)
    assert site.ledger.tables.breaker is not None
    assert site.ledger.tables.breaker.state is BreakerState.open
    assert site.scheduler.writes == []
