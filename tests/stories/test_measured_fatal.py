"""A measured level is no reported death: what healer does about it, and what it leaves to people."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from healer.model import (
    Component,
    FaultClass,
    Finding,
    IncidentState,
    Mode,
    Remedy,
    RemedyUse,
    RunState,
    StepEvent,
)
from healer.sim.nodes import SimNodes
from tests.support.loop import CLUSTER, DEGRADED, equip, name
from tests.support.slow import SlowSite, found, slow_rules

NODE = name(1)
#: A double-bit error: the driver ended the work on that GPU.
ENDED = "NVRM: Xid (PCI:0000:9b:00): 48, pid=1234, name=python, DBE (double bit error) ECC error"


def fatal(site: SlowSite, fault: str = "gpu-row-remap-failed", **where: Any) -> Finding:
    return msgspec.structs.replace(found(fault, site.now, **where), fault_class=FaultClass.fatal)


def restarts(site: SlowSite, *jobs: str) -> list[int]:
    found = [site.slurm.job(job) for job in jobs]
    return [one.restarts for one in found if one is not None]


def on_gpu(site: SlowSite, index: int = 3) -> None:
    site.picture.node(NODE).gpus.inventory([{"index": index, "pci": "0000:9b:00", "uuid": "GPU-1"}])


# --- whose work it takes ---


def test_jobs_that_did_not_agree_go_on_behind_the_drain() -> None:
    site = SlowSite()
    jobs = [site.slurm.add_job(required=[NODE], gpus=1) for _ in range(8)]
    site.look()
    site.tick((fatal(site, gpu=0),))
    site.pass_time(60)
    assert site.node(1).drain
    assert restarts(site, *jobs) == [0] * 8
    run = site.run_of("gpu-fatal")
    assert run.state is RunState.waiting
    assert any(one.step == "ticket" and one.event is StepEvent.done for one in site.log(run.id))


def test_job_whose_owner_agreed_is_requeued() -> None:
    site = SlowSite()
    job = site.agreed(required=[NODE])
    site.tick((fatal(site, gpu=0),))
    site.pass_time(60)
    assert restarts(site, job) == [1]


def test_without_a_gpu_it_is_one_unknown_gpu_and_no_job_of_a_shared_node_is_hit() -> None:
    site = SlowSite()
    jobs = [site.agreed(required=[NODE], gpus=4) for _ in range(2)]
    site.tick((fatal(site, "gpu-count-low"),))
    site.pass_time(60)
    assert site.node(1).drain
    assert restarts(site, *jobs) == [0, 0]


def test_without_a_gpu_a_lone_job_that_holds_them_all_is_hit() -> None:
    site = SlowSite()
    job = site.agreed(required=[NODE], gpus=8)
    site.tick((fatal(site, "gpu-count-low"),))
    site.pass_time(60)
    assert restarts(site, job) == [1]


def test_merged_finding_hits_no_job() -> None:
    site = SlowSite()
    site.walk()
    mine, other = (site.agreed(required=[NODE], gpus=4) for _ in range(2))
    shown = site.slurm.job(mine)
    assert shown is not None and shown.gpus[NODE] == (0, 1, 2, 3)
    site.tick((fatal(site, gpu=3), found("gpu-hot", site.now, gpu=5, job=other)))
    site.pass_time(60)
    assert restarts(site, mine, other) == [1, 0]


def test_gpu_confirmed_dead_needs_no_consent_and_a_line_of_another_gpu_adds_no_job() -> None:
    site = SlowSite()
    site.walk()
    mine, other = (site.slurm.add_job(required=[NODE], gpus=4) for _ in range(2))
    site.look()
    inventory = [
        {"index": 3, "pci": "0000:9b:00", "uuid": "GPU-1"},
        {"index": 5, "pci": "0000:9d:00", "uuid": "GPU-2"},
    ]
    site.picture.node(NODE).gpus.inventory(inventory)
    site.walk(*site.say(1, ENDED, DEGRADED.replace("9b", "9d")))
    assert len(site.incident.evidence) == 2
    site.pass_time(60)
    assert restarts(site, mine, other) == [1, 0]


# --- kernel lines about the same node ---


def test_kernel_report_takes_over_a_measured_incident() -> None:
    site = SlowSite()
    on_gpu(site)
    site.tick((fatal(site, "gpu-row-remap-failed", node=2, gpu=0),))  # takes the one slot of 32 nodes
    site.pass_time(10)
    job = site.slurm.add_job(required=[NODE])
    site.look()
    site.tick((fatal(site, "gpu-ecc-uncorrectable", gpu=3),))
    site.pass_time(5)
    held = site.run_of("gpu-fatal")
    assert (held.node, held.state) == (NODE, RunState.held)
    site.walk(*site.say(1, ENDED))
    site.pass_time(5)
    (one,) = (one for one in site.open_incidents if one.root.node == NODE)
    assert one.rule == "gpu-fatal"
    assert site.ledger.tables.runs[held.id].state is RunState.rejected
    site.clear("gpu-ecc-uncorrectable", gpu=3)
    site.pass_time(600, step_s=5)
    assert site.ledger.tables.incidents[one.id].is_open, "no sense ends what the kernel reported"
    assert restarts(site, job) == [0]


def test_kernel_line_of_a_shadow_rule_joins_the_measured_incident() -> None:
    given = slow_rules()
    watched = tuple(
        msgspec.structs.replace(one, mode=Mode.shadow) if one.name == "gpu-fatal" else one
        for one in given.rules
    )
    site = SlowSite(rules=msgspec.structs.replace(given, rules=watched))
    on_gpu(site)
    job = site.slurm.add_job(required=[NODE])
    site.look()
    site.pause()
    site.tick((fatal(site, "gpu-ecc-uncorrectable", gpu=3),))
    site.walk(*site.say(1, ENDED))
    assert [one.rule for one in site.open_incidents] == ["gpu-ecc-uncorrectable"]
    site.end_pause()
    site.pass_time(60)
    assert restarts(site, job) == [1]


# --- its end ---


def test_a_fatal_level_that_falls_closes_nothing() -> None:
    site = SlowSite()
    site.pause()
    site.tick((fatal(site, gpu=3),))
    site.clear("gpu-row-remap-failed", gpu=3)
    site.pass_time(3600, step_s=30)
    assert site.incident.state is IncidentState.open
    assert site.incident.clear_since is not None


def test_unreported_fault_closes_after_a_day() -> None:
    site = SlowSite()
    site.find("gpu-hot", gpu=3)
    site.pass_time(23 * 3600, step_s=600)
    assert site.open_incidents
    site.pass_time(2 * 3600, step_s=600)
    assert site.open_incidents == []
    assert site.incidents[0].closed_why == "no source reports it any more"


def test_unreported_fault_stays_open_while_a_run_works_on_it() -> None:
    site = SlowSite()
    site.find("fabric-manager-down")
    site.nodes.plant(NODE, "fabric-down")
    site.agreed(required=[NODE], comment="")
    site.pass_time(5)
    site.pass_time(26 * 3600, step_s=600)
    assert site.open_incidents


# --- a run that has not begun ---


def test_a_held_run_does_not_begin_while_its_cause_is_gone() -> None:
    site = SlowSite()
    site.pause()
    site.find("fabric-manager-down")
    site.pass_time(5)
    site.clear("fabric-manager-down")
    site.pass_time(60)
    site.end_pause()
    site.pass_time(30)
    run = site.run_of("restart-fabric-manager")
    assert run.state is RunState.held
    assert site.ledger.tables.decisions[-1].why.startswith("Recovered at 03:00:05 UTC")
    assert site.audited("node.drained") == 0
    site.back()
    site.pass_time(5)
    assert site.audited("node.drained") == 1


def test_a_proposed_run_stays_to_be_approved_and_a_persons_word_lets_it_go() -> None:
    site = SlowSite(rules=slow_rules(fabric_manager_down=Mode.approve))
    site.find("fabric-manager-down")
    site.pass_time(5)
    site.clear("fabric-manager-down")
    site.pass_time(30)
    run = site.run_of("restart-fabric-manager")
    assert run.state is RunState.waiting_approval
    assert site.audited("node.drained") == 0
    site.approve(run.id)
    site.pass_time(5)
    assert site.audited("node.drained") == 1


# --- what is not measured ---


def test_nothing_starts_on_data_older_than_a_minute() -> None:
    site = SlowSite(rules=slow_rules(fabric_manager_down=Mode.shadow))
    site.find("fabric-manager-down")
    site.clock.advance(120)
    site.ledger.tables.modes["fabric-manager-down"] = Mode.auto
    for _ in range(10):
        site.clock.advance(1)
        site.walk()
        site.drive()
    assert all(one.shadow for one in site.runs)
    assert site.ledger.tables.decisions[-1].why == (
        "The signals were last checked at 03:00:00 UTC: waiting for the next check."
    )
    site.pass_time(5)
    assert site.audited("node.drained") == 1


@pytest.mark.parametrize("known", ["standing", "clear"])
def test_a_run_that_waits_neither_drains_nor_ends_on_an_old_look(known: str) -> None:
    site = SlowSite()
    job = site.agreed(required=[NODE])
    site.find("straggler", "gpu-hot", gpu=3)
    site.pass_time(5)
    if known == "clear":
        site.clear("straggler", gpu=3)
        site.pass_time(10)
    run = site.run_of("slow-node").id
    lines = len(site.log(run))
    site.clock.advance(90)  # the tick's thread is dead, and the walk goes on
    for _ in range(400):
        site.clock.advance(1)
        site.checkpoint(job, 120)
        site.walk()
        site.drive()
    assert not site.node(1).drain
    assert site.ledger.tables.runs[run].state is RunState.running
    assert len(site.log(run)) - lines <= 2
    site.back()
    site.checkpoint(job, 121)
    site.pass_time(8)
    assert site.audited("node.drained") == 1, "the senses are back, and it still holds"


def test_a_drain_that_is_due_is_not_made_on_an_old_look() -> None:
    site = SlowSite()
    site.find("straggler", "gpu-hot", gpu=3)
    site.walk()
    site.drive_to("performed:moment")
    site.clock.advance(90)
    for _ in range(60):
        site.clock.advance(1)
        site.walk()
        site.drive()
    assert not site.node(1).drain
    assert site.run_of("slow-node").state is RunState.running
    site.pass_time(10)
    assert site.audited("node.drained") == 1


# --- a return that something speaks against ---


def says_in_tests(site: SlowSite, fault: str) -> None:
    """Says this line while the tests of the node run."""

    def says(where: str) -> None:
        if where == "started:validate" and not any(one.line for i in site.incidents for one in i.evidence):
            site.clock.advance(1)
            site.look()
            site.walk(*site.say(1, fault))

    site.on_checkpoint = says


def test_a_fault_line_while_the_tests_run_asks_a_person_before_the_return() -> None:
    site = SlowSite()
    site.nodes = SimNodes(site.clock, diagnosis_s=180)
    equip(site.driver, nodes=site.nodes)
    on_gpu(site)
    says_in_tests(site, DEGRADED)
    site.find("straggler", "gpu-hot", gpu=3)
    site.pass_time(300, step_s=5)
    run = site.run_of("slow-node")
    assert run.state is RunState.stuck
    assert "new fault line" in (run.question or "")
    assert site.node(1).drain
    site.retry(run.id, "verify")  # a person has checked it
    site.pass_time(60)
    assert site.node(1).in_service


def test_a_fault_line_between_the_check_and_the_return_does_too() -> None:
    site = SlowSite()
    on_gpu(site)
    said: list[str] = []

    def says(where: str) -> None:
        if where == "performed:verify" and not said:
            said.append(where)
            site.clock.advance(1)
            site.look()
            site.walk(*site.say(1, DEGRADED))

    site.on_checkpoint = says
    site.find("straggler", "gpu-hot", gpu=3)
    site.pass_time(300, step_s=5)
    run = site.run_of("slow-node")
    assert said and run.state is RunState.stuck
    assert site.node(1).drain
    site.retry(run.id, "resume")
    site.pass_time(60)
    assert site.node(1).in_service


# --- a requeue is near a checkpoint ---


def held_behind_its_drain(site: SlowSite, job: str) -> None:
    """The node is drained at a checkpoint; a pause holds what comes after."""
    site.find("straggler", "gpu-hot", gpu=3)
    site.pass_time(10)
    site.clock.advance(5)
    site.checkpoint(job, 120)
    site.on_checkpoint = lambda where: site.pause() if where == "performed:drain" else None
    site.pass_time(20)
    site.on_checkpoint = lambda _: None
    assert site.node(1).drain


@pytest.mark.heavy
def test_hours_after_its_checkpoint_a_job_is_not_requeued_before_the_next() -> None:
    site = SlowSite()
    job = site.agreed(required=[NODE])
    held_behind_its_drain(site, job)
    site.pass_time(3 * 3600, step_s=10)
    site.end_pause()
    lines = len(site.log(site.run_of("slow-node").id))
    site.pass_time(1800, step_s=5)
    assert restarts(site, job) == [0]
    assert len(site.log(site.run_of("slow-node").id)) - lines <= 1
    assert site.run_of("slow-node").question == f"job {job}: its next durable checkpoint, or its end"
    site.checkpoint(job, 900)
    site.pass_time(60)
    assert restarts(site, job) == [1]
    assert site.run_of("slow-node").state is RunState.done


def test_its_end_will_do_as_well() -> None:
    site = SlowSite()
    job = site.agreed(required=[NODE])
    held_behind_its_drain(site, job)
    site.pass_time(600, step_s=10)
    site.end_pause()
    site.pass_time(60)
    site.slurm.complete(job)
    site.pass_time(60)
    assert restarts(site, job) == [0]
    assert site.run_of("slow-node").state is RunState.done


def test_after_a_day_without_a_checkpoint_it_goes_on_to_its_end() -> None:
    site = SlowSite()
    job = site.agreed(required=[NODE])
    held_behind_its_drain(site, job)
    site.pass_time(600, step_s=10)
    site.end_pause()
    site.pass_time(25 * 3600, step_s=300)
    entries = site.log(site.run_of("slow-node").id, f"requeue:{job}")
    assert entries[-1].event is StepEvent.skipped
    assert "continues to its end" in entries[-1].text
    assert restarts(site, job) == [0]


def test_two_jobs_are_requeued_each_at_its_own_checkpoint() -> None:
    site = SlowSite()
    first, second = (site.agreed(required=[NODE], gpus=4) for _ in range(2))
    for fault in ("straggler", "gpu-hot"):
        site.find(fault)
    fault = found("straggler", site.now)
    evidence = tuple(
        msgspec.structs.replace(fault.evidence[0], job=job, digest=job) for job in (first, second)
    )
    site.tick((msgspec.structs.replace(fault, evidence=evidence),))
    site.pass_time(5)
    site.checkpoint(first, 120)
    site.pass_time(1800, step_s=5)
    site.find("straggler")
    site.find("gpu-hot")
    site.checkpoint(second, 120)
    site.pass_time(60)
    assert restarts(site, first, second) == [0, 1], "half an hour of the first would be lost"
    site.checkpoint(first, 240)
    site.pass_time(60)
    assert restarts(site, first, second) == [1, 1]


def test_job_that_a_fatal_fault_ended_is_requeued_at_once() -> None:
    site = SlowSite()
    on_gpu(site)
    job = site.agreed(required=[NODE])
    held_behind_its_drain(site, job)
    site.pass_time(3600, step_s=10)
    site.end_pause()
    site.walk(*site.say(1, ENDED))
    site.pass_time(30)
    assert restarts(site, job) == [1]


# --- giving way ---


def dies_under_test(site: SlowSite) -> None:
    job = site.agreed(required=[NODE])
    site.find("straggler", "gpu-hot", gpu=3)
    site.pass_time(10)
    site.clock.advance(5)
    site.checkpoint(job, 120)

    def dies(where: str) -> None:
        known = {one.rule for one in site.incidents}
        if where == "started:validate" and "gpu-row-remap-failed" not in known:
            site.look()
            site.tick((fatal(site, gpu=3),))

    site.on_checkpoint = dies
    site.pass_time(300, step_s=5)


def test_the_worse_one_goes_on_behind_the_drain_that_was_left_to_it() -> None:
    site = SlowSite()
    dies_under_test(site)
    run = site.run_of("gpu-fatal")
    assert run.state is RunState.waiting, "it has a ticket and waits for the repair"
    assert {"drain", "jobs", "ticket"} <= {
        one.step for one in site.log(run.id) if one.event is StepEvent.done
    }
    (slot,) = site.ledger.tables.slots.values()
    (worse,) = site.open_incidents
    assert (slot.run, slot.incident) == (run.id, worse.id)
    assert site.node(1).drain


@pytest.mark.parametrize("mode", [Mode.shadow, Mode.off])
def test_nothing_is_left_to_a_rule_that_may_not_act_and_the_node_stays_out(mode: Mode) -> None:
    given = slow_rules()
    rules = tuple(
        msgspec.structs.replace(one, mode=mode) if one.name == "gpu-row-remap-failed" else one
        for one in given.rules
    )
    site = SlowSite(rules=msgspec.structs.replace(given, rules=rules))
    dies_under_test(site)
    run = site.run_of("slow-node")
    assert run.state is RunState.stuck
    assert "is more severe and still open" in (run.question or "")
    assert site.node(1).drain
    assert len(site.open_incidents) == 2
    # Once the worse one may be acted on, the run is a person's question already: nothing is done twice.
    worse = next(one for one in site.open_incidents if one.rule == "gpu-row-remap-failed")
    with site.ledger.transaction() as tx:
        tx.save_incident(msgspec.structs.replace(worse, state=IncidentState.resolved))
    site.retry(run.id, "resume")
    site.pass_time(60)
    assert site.node(1).in_service


# --- senses ---


def test_stale_detector_confirms_nothing() -> None:
    site = SlowSite()
    site.find("straggler", gpu=3)
    site.pass_time(1200, step_s=60)
    site.find("gpu-hot", gpu=3)
    site.pass_time(10)
    assert site.runs == []
    assert "Only metrics report" in site.ledger.tables.decisions[-1].why


def test_repeated_finding_confirms_without_being_new_evidence() -> None:
    site = SlowSite()
    first = found("straggler", site.now, gpu=3)
    site.tick((first,))
    for _ in range(4):
        site.pass_time(300, step_s=60)
        site.tick((msgspec.structs.replace(first, arrived_at=site.now),))
    assert site.incident.evidence_count == 1
    site.find("gpu-hot", gpu=3)
    site.pass_time(10)
    assert site.run_of("slow-node").by == "healer"


def test_two_senses_that_name_different_gpus_do_not_agree() -> None:
    site = SlowSite()
    site.find("straggler", gpu=0)
    site.find("gpu-hot", gpu=5)
    site.pass_time(10)
    assert site.runs == []
    assert site.ledger.tables.decisions[-1].why == (
        f"Metrics and step times report different GPUs of {NODE}: a second signal must agree before "
        "healer acts."
    )
    site.find("unusual-node")  # of the node as a whole: it agrees with any
    site.pass_time(10)
    assert site.run_of("slow-node").by == "healer"


def test_the_kernel_counts_by_arrival() -> None:
    site = SlowSite()
    on_gpu(site)
    site.slurm.add_job(required=[NODE])  # the plan for the kernel's report waits for its end
    site.walk(*site.say(1, DEGRADED, event_at=site.now - timedelta(minutes=10)))
    site.pass_time(600, step_s=60)
    site.find("straggler", gpu=3)
    site.pass_time(10)
    assert site.run_of("slow-node").by == "healer"


def test_a_run_that_waits_for_leave_does_not_go_while_its_senses_are_silent() -> None:
    site = SlowSite()
    site.pause()
    site.find("straggler", "gpu-hot", gpu=3)
    site.pass_time(5)
    assert site.run_of("slow-node").state is RunState.held
    site.pass_time(1200, step_s=60)
    site.end_pause()
    site.pass_time(30)
    assert site.run_of("slow-node").state is RunState.held
    site.find("straggler", "gpu-hot", gpu=3)
    site.pass_time(10)
    assert site.node(1).drain


# --- drains that nothing speaks for ---


def test_a_slot_of_an_incident_that_is_over_speaks_for_nothing() -> None:
    site = SlowSite()
    site.tick((fatal(site, gpu=3),))
    site.pass_time(60)
    run = site.run_of("gpu-fatal")
    assert site.ledger.tables.slots
    incident = site.incident
    site.cancel(run.id)
    site.pass_time(5)
    with site.ledger.transaction() as tx:
        tx.save_incident(
            msgspec.structs.replace(
                incident, state=IncidentState.resolved, run=None, closed=site.now, merged_into="1" * 32
            )
        )
    site.pass_time(90)
    (left,) = site.open_incidents
    assert left.fault == "healer-drain"
    assert left.root == Component(cluster=CLUSTER, node=NODE)


@pytest.mark.parametrize(
    ("fault", "looked_at"), [("gpu-recovery-asked", True), ("gpu-row-remap-failed", False)]
)
def test_only_a_request_that_its_gauge_withdraws_has_a_drained_node_tested(
    fault: str, looked_at: bool
) -> None:
    """Reset and reboot were tried an hour ago: the node waits for a person."""
    site = SlowSite()
    for remedy in (Remedy.drain_then_reset, Remedy.reboot_node):
        use = RemedyUse(node=NODE, remedy=remedy, rule="x", at=site.now - timedelta(hours=1))
        site.ledger.tables.remedies.append(use)
    site.tick((fatal(site, fault, gpu=3),))
    site.pass_time(600, step_s=5)
    incident, run = site.incident, site.run_of("gpu-fatal")
    assert (run.state, run.wake_at, site.node(1).drain) == (RunState.waiting, None, True)
    since = site.now
    for _ in range(7):
        site.clear(fault, gpu=3, since=since)
        site.pass_time(60, step_s=5)
    tested = [one for one in site.runs if one.incident == incident.id and one.playbook == "validate"]
    assert bool(tested) is looked_at
