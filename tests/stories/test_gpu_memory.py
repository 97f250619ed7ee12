"""Memory of a GPU: reset on an empty node, read again, tested; what no reset mends is a ticket."""

from datetime import timedelta

import msgspec
import pytest

from healer.model import FaultClass, Mode, Remedy, RemedyUse, Run, RunState, StepEvent, Ticket
from healer.ports.node_exec import NodeError
from tests.support.loop import REMAP, START, name, rules_in
from tests.support.power import PowerSite
from tests.support.slow import SlowSite, found

NODE = name(1)


def asked(*faults: str, playbook: str = "gpu-memory") -> tuple[PowerSite, str]:
    site = PowerSite()
    for fault in faults:
        site.nodes.plant(NODE, fault)
    return site, site.ask(playbook, 1)


def own(site: PowerSite) -> Run:
    (run,) = site.runs
    return run


def told(site: PowerSite, run: str, step: str) -> str:
    return next(one.text for one in site.log(run, step) if one.event is StepEvent.done)


def test_a_row_that_waited_is_remapped_proven_tested_and_the_node_returned() -> None:
    site, run = asked("remap-pending")
    site.finish(90)
    assert site.run_named(run).state is RunState.done
    assert told(site, run, "memory") == f"{NODE}: the memory of 8 GPUs is well, nothing is pending"
    assert site.nodes.faults(NODE) == [] and len(site.nodes.resets(NODE)) == 1
    assert site.node(1).in_service and site.reservations() == {}
    assert (site.ledger.tables.slots, site.ledger.tables.vetoes) == ({}, [])


@pytest.mark.parametrize(
    ("fault", "words"), [("remap-failed", "could not be remapped"), ("gpu-missing", "it shows 7 of 8 GPUs")]
)
def test_what_the_reset_did_not_mend_is_a_ticket_and_no_test_runs(fault: str, words: str) -> None:
    site, run = asked(fault)
    site.finish(60)
    assert site.run_named(run).state is RunState.waiting
    assert words in told(site, run, "memory")
    assert "ticket" in site.done(run) and site.node(1).drain
    assert site.test_jobs() == [] and site.reservations() == {}


def test_a_reset_that_fails_is_a_ticket_and_nothing_is_proven() -> None:
    site, run = asked("reset-fails")
    site.finish(60)
    assert site.run_named(run).state is RunState.waiting
    assert "ticket" in site.done(run) and "memory" not in site.done(run)


def test_a_test_that_fails_after_it_is_a_ticket_too() -> None:
    site, run = asked("slow-gpu-3")
    site.run_for(120)
    assert site.run_named(run).state is RunState.waiting
    assert "ticket" in site.done(run) and site.node(1).drain and site.reservations() == {}


def test_memory_that_cannot_be_read_is_neither_well_nor_ill(monkeypatch: pytest.MonkeyPatch) -> None:
    site, run = asked()

    def vague(node: str) -> None:
        raise NodeError(f"nvidia-smi on {node} says 'unknown error' of the memory of GPU 0.")

    monkeypatch.setattr(site.nodes, "memory_state", vague)
    site.finish(60)
    found = site.run_named(run)
    assert found.state is RunState.stuck and "unknown error" in (found.question or "")
    assert site.node(1).drain and site.test_jobs() == []


def test_a_node_that_does_not_answer_is_asked_again_and_then_a_person() -> None:
    site, run = asked()

    site.on_checkpoint = lambda at: site.nodes.plant(NODE, "unreachable") if at == "started:memory" else None
    site.finish(60)
    assert site.run_named(run).state is RunState.running
    site.on_checkpoint = lambda _: None
    site.run_for(600, step_s=5)
    assert site.run_named(run).state is RunState.stuck
    site.nodes.mend(NODE, "unreachable")
    site.retry(run, "memory")
    site.finish(60)
    assert site.run_named(run).state is RunState.done


def test_a_remap_that_failed_is_a_ticket_at_once_and_no_reset() -> None:
    """Xid 64: the rule names this playbook, and the cause is permanent."""
    site = PowerSite()
    site.walk(*site.say(1, REMAP))
    site.finish(60)
    run = own(site)
    assert (run.playbook, run.state) == ("gpu-memory", RunState.waiting)
    assert {"drain", "replace", "notify"} <= set(site.done(run.id)) and site.last(run.id).step == "repair"
    assert site.nodes.resets(NODE) == [] and site.node(1).drain
    tickets = [one for one in site.ledger.tables.messages.values() if isinstance(one, Ticket)]
    assert [ticket.node for ticket in tickets] == [NODE]


def measured(site: SlowSite) -> None:
    """Metrics tell of uncorrectable errors: nothing says yet that they will stay."""
    told = found("gpu-ecc-uncorrectable", site.now, gpu=3)
    site.tick((msgspec.structs.replace(told, fault_class=FaultClass.fatal),))


def test_errors_of_no_known_cause_are_reset_and_proven() -> None:
    site = SlowSite()
    measured(site)
    site.pass_time(30)
    run = site.run_of("gpu-memory")
    steps = {one.step for one in site.log(run.id) if one.event is StepEvent.done}
    assert {"reset", "memory"} <= steps and len(site.nodes.resets(NODE)) == 1


def test_a_reset_that_was_tried_of_late_is_not_repeated() -> None:
    """Law 10: up the ladder, which is a person's from here on. The node leaves service all the same."""
    site = SlowSite()
    use = RemedyUse(node=NODE, remedy=Remedy.drain_then_reset, rule="x", at=START - timedelta(hours=1))
    site.ledger.tables.remedies.append(use)
    measured(site)
    site.pass_time(30)
    run = site.run_of("gpu-memory")
    assert run.state is RunState.waiting and site.log(run.id)[-1].step == "repair"
    assert site.nodes.resets(NODE) == [] and site.node(1).drain


def test_what_may_wait_ends_nobodys_work() -> None:
    site = PowerSite()
    site.nodes.plant(NODE, "remap-pending")
    job = site.slurm.add_job(required=[NODE], requeue=True, gpus=8)
    site.look()
    run = site.ask("gpu-memory-later", 1)
    site.run_for(120, step_s=5)
    assert site.scheduler.writes == []
    site.slurm.complete(job)
    site.finish(120)
    assert site.run_named(run).state is RunState.done
    assert site.nodes.faults(NODE) == []
    moved = site.slurm.job(job)
    assert moved is not None and (moved.state, moved.restarts) == ("COMPLETED", 0)


def test_shadow_goes_through_it_and_touches_nothing() -> None:
    site = PowerSite(mode=Mode.shadow)
    site.walk(*site.say(1, REMAP))
    site.run_for(60)
    assert own(site).state is RunState.done and own(site).shadow
    assert site.scheduler.writes == [] and site.nodes.resets(NODE) == []


def test_the_rules_of_memory_name_it() -> None:
    rules = rules_in()
    named = {one: rules.by_name[one].playbook for one in ("gpu-remap-failed", "gpu-row-remap-failed")}
    assert set(named.values()) == {"gpu-memory"}
    assert rules.by_name["gpu-ecc-uncorrectable"].playbook == "gpu-memory"
    for later in ("gpu-remap-pending", "gpu-repair-pending"):
        assert (rules.by_name[later].playbook, rules.by_name[later].mode) == (
            "gpu-memory-later",
            Mode.suggest,
        )
    # No reset repairs it.
    assert rules.by_name["gpu-memory-unrepairable"].playbook == "gpu-fatal"
