"""A GPU that only a reset brings back: reset on an empty node, tested, returned; never under work."""

import pytest

from healer.model import RunState, StepEvent
from healer.ports.node_exec import NodeError
from healer.sim.nodes import HUNG
from tests.support.loop import equip, name
from tests.support.under_test import TestSite

NODE = name(1)


def asked(*faults: str) -> tuple[TestSite, str]:
    site = TestSite()
    for fault in faults:
        site.nodes.plant(NODE, fault)
    return site, site.ask("gpu-reset", 1)


def ended(site: TestSite, run: str, step: str) -> list[str]:
    return [one.text for one in site.log(run, step) if one.event is StepEvent.done]


def test_it_is_reset_tested_and_returned() -> None:
    site, run = asked(HUNG)
    site.run_for(40)
    site.slurm.complete(site.running_test())
    site.run_for(20)
    assert site.run_named(run).state is RunState.done
    assert site.nodes.faults(NODE) == [] and len(site.nodes.resets(NODE)) == 1
    assert ended(site, run, "reset") == [f"{NODE}: GPU reset finished (all GPUs)"]
    assert site.node(1).in_service and site.reservations() == {}
    assert (site.ledger.tables.slots, site.ledger.tables.vetoes) == ({}, [])
    assert site.audited("gpu.reset") == 1


def test_a_reset_that_fails_is_a_ticket_and_the_node_stays_out() -> None:
    site, run = asked(HUNG, "reset-fails")
    site.run_for(60)
    assert site.run_named(run).state is RunState.waiting
    assert site.done(run)[-2:] == ["ticket", "notify"]
    assert site.node(1).drain and site.test_jobs() == [] and site.reservations() == {}


def test_a_test_that_fails_after_it_is_a_ticket_too() -> None:
    site, run = asked("slow-gpu-3")
    site.run_for(90)
    assert site.run_named(run).state is RunState.waiting
    assert "ticket" in site.done(run) and site.node(1).drain and site.reservations() == {}


def test_jobs_are_requeued_first_and_nothing_is_reset_before_the_node_is_empty() -> None:
    site = TestSite()
    job = site.slurm.add_job(required=[NODE], requeue=False, gpus=8)
    site.look()
    run = site.ask("gpu-reset", 1)
    site.run_for(120)
    assert site.nodes.resets(NODE) == [] and site.node(1).drain
    site.slurm.complete(job)
    site.run_for(40)
    assert len(site.nodes.resets(NODE)) == 1
    assert "reset" in site.done(run)


def test_gate_refuses_a_reset_under_a_running_job() -> None:
    """The node is given back between the look and the reset: the gate looks again, for a person too."""
    site, run = asked(HUNG)

    def changes(where: str) -> None:
        if where == "performed:empty":
            site.slurm.resume(NODE)

    site.on_checkpoint = changes
    site.run_for(3)
    held = [one for one in site.log(run, "reset") if one.event is StepEvent.held]
    assert held and held[-1].data["guard"] == "consent"
    assert site.nodes.resets(NODE) == []


def test_a_process_that_holds_it_is_named_and_a_person_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    site, run = asked(HUNG)

    def held(node: str, key: str, gpu: str) -> None:
        raise NodeError("the GPU is in use by train (4711): nothing was reset.")

    monkeypatch.setattr(site.nodes, "start_reset", held)
    site.run_for(60)
    found = site.run_named(run)
    assert found.state is RunState.stuck and "in use by train (4711)" in (found.question or "")
    assert site.node(1).drain


def test_without_a_way_to_nodes_a_person_gets_the_command() -> None:
    site = TestSite()
    equip(site.driver, nodes=None)
    run = site.ask("gpu-reset", 1)
    site.run_for(30)
    assert "`nvidia-smi --gpu-reset`" in (site.run_named(run).question or "")


@pytest.mark.parametrize("where", ["started:reset", "performed:reset"])
def test_a_worker_that_dies_resets_once(where: str) -> None:
    site, run = asked(HUNG)
    died = site.die_once(where, rounds=60)
    assert died == [where]
    assert len(site.nodes.resets(NODE)) == 1
    assert "reset" in site.done(run)
