"""Memory of a GPU: reset on an empty node, read again, tested; what no reset mends is a ticket."""

from datetime import timedelta

import msgspec
import pytest

from healer.model import FaultClass, Mode, Remedy, RemedyUse, Run, RunState, StepEvent, Ticket, Verb
from tests.support.loop import REMAP, START, name, rules_in
from tests.support.power import PowerSite
from tests.support.slow import SlowSite, found

NODE = name(1)


def own(site: PowerSite) -> Run:
    (run,) = site.runs
    return run


def test_a_remap_that_failed_is_a_ticket_at_once_and_no_reset() -> None:
    """Xid 64: the rule names this playbook, and the cause is permanent."""
    site = PowerSite()
    site.walk(*site.say(1, REMAP))
    site.run_for(400, step_s=5)
    run = own(site)
    assert (run.playbook, run.state) == ("gpu-fatal", RunState.waiting)
    assert {"drain", "ticket", "notify"} <= set(site.done(run.id)) and site.last(run.id).step == "repair"
    assert site.nodes.resets(NODE) == [] and site.node(1).drain
    tickets = [one for one in site.ledger.tables.messages.values() if isinstance(one, Ticket)]
    assert [ticket.node for ticket in tickets] == [NODE]


def measured(site: SlowSite) -> None:
    """Metrics report uncorrectable errors: it is open whether they will stay."""
    finding = found("gpu-ecc-uncorrectable", site.now, gpu=3)
    site.tick((msgspec.structs.replace(finding, fault_class=FaultClass.fatal),))


def test_errors_of_no_known_cause_are_reset_and_proven() -> None:
    site = SlowSite()
    measured(site)
    site.pass_time(400, step_s=5)
    run = site.run_of("gpu-fatal")
    steps = {one.step for one in site.log(run.id) if one.event is StepEvent.done}
    assert {"reset", "memory"} <= steps and len(site.nodes.resets(NODE)) == 1


def test_a_reset_that_was_tried_of_late_is_not_repeated() -> None:
    """Law 10: up the ladder, which is a person's from here on. The node leaves service all the same."""
    site = SlowSite()
    use = RemedyUse(node=NODE, remedy=Remedy.drain_then_reset, rule="x", at=START - timedelta(hours=1))
    site.ledger.tables.remedies.append(use)
    measured(site)
    site.pass_time(400, step_s=5)
    run = site.run_of("gpu-fatal")
    assert any(one.step == "reboot" for one in site.log(run.id)), "up the ladder"
    assert site.nodes.resets(NODE) == []


UNCONTAINED = "NVRM: Xid (PCI:0000:{}:00): 95, pid=1, name=python3, Uncontained: FBHUB. RST: Yes, D-RST: No"
REBOOT = (
    "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x2 "
    "(Node Reboot Required)"
)


@pytest.mark.parametrize(("later", "does"), [(REBOOT, Verb.reboot), (REMAP, Verb.ticket)])
def test_what_is_reported_while_a_job_keeps_the_node_busy_chooses_the_remedy_too(
    later: str, does: Verb
) -> None:
    site = PowerSite()
    job = site.slurm.add_job(required=[NODE], gpus=1)
    site.look()
    site.walk(*site.say(1, UNCONTAINED.format("9b")))
    site.run_for(1200, step_s=10)
    site.walk(*site.say(1, later))
    site.run_for(1200, step_s=10)
    site.slurm.complete(job)
    site.run_for(60, step_s=2)
    assert site.nodes.resets(NODE) == []
    assert str(does) in [entry.data.get("verb") for entry in site.log(own(site).id)]


def test_two_gpus_of_a_node_with_errors_are_both_reset() -> None:
    site = PowerSite()
    site.walk(*site.say(1, UNCONTAINED.format("9b"), UNCONTAINED.format("1b")))
    site.run_for(400, step_s=5)
    (reset,) = [entry for entry in site.log(own(site).id, "reset") if entry.event is StepEvent.done]
    assert str(reset.text) == f"{NODE}: GPU reset finished (all GPUs)"


def test_a_person_may_resume_the_node_after_tests_that_failed_while_a_pause_holds_the_reboot() -> None:
    """healer had lifted its own drain for the tests: that says nothing about who lifts the next one."""
    site = SlowSite()
    site.nodes.plant(NODE, "slow-gpu-3")

    def pause(where: str) -> None:
        if where == "performed:out" and not site.slurm.snapshot().reservations:
            site.pause("playbook", "gpu-fatal")

    measured(site)
    site.on_checkpoint = pause
    site.pass_time(330, step_s=10)
    site.pass_time(40, step_s=2)
    run = site.run_of("gpu-fatal")
    assert [one.event for one in site.log(run.id, "reboot")] == [StepEvent.held]
    site.slurm.resume(NODE)
    site.pass_time(60, step_s=5)
    assert [veto.node for veto in site.ledger.tables.vetoes] == [NODE]
    assert site.run_of("gpu-fatal").state is RunState.cancelled
    assert (site.ledger.tables.slots, site.node(1).in_service) == ({}, True)


def test_shadow_goes_through_it_and_touches_nothing() -> None:
    site = PowerSite(mode=Mode.shadow)
    site.walk(*site.say(1, REMAP))
    site.run_for(60)
    assert own(site).state is RunState.done and own(site).shadow
    assert site.scheduler.writes == [] and site.nodes.resets(NODE) == []


def test_the_rules_of_memory_name_it() -> None:
    rules = rules_in()
    named = {one: rules.by_name[one].playbook for one in ("gpu-remap-failed", "gpu-row-remap-failed")}
    assert set(named.values()) == {"gpu-fatal"}
    assert rules.by_name["gpu-ecc-uncorrectable"].playbook == "gpu-fatal"
    for later in ("gpu-remap-pending", "gpu-repair-pending"):
        assert (rules.by_name[later].playbook, rules.by_name[later].mode) == (
            "repair-when-idle",
            None,
        )
    # No reset repairs it.
    assert rules.by_name["gpu-memory-unrepairable"].playbook == "gpu-fatal"
