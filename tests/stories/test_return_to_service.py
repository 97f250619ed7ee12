"""A node that a person calls repaired has to prove it, and is on probation for a week."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from healer.model import (
    CommandKind,
    FaultClass,
    Incident,
    Mode,
    Observation,
    Remedy,
    RemedyUse,
    RunState,
    StepEvent,
    Verdict,
)
from healer.signals.wire import kernel_log_observations
from tests.support.loop import CLUSTER, FATAL, LOST, START, Site, name
from tests.support.under_test import TestSite

NODE = name(1)
MEMORY = "NVRM: Xid (PCI:0000:1b:00): 48, pid=4242, name=python, An uncorrectable double bit error (DBE)"
CARD = "mlx5_core 0000:5e:00.0: poll_health:800: device's health compromised - reached miss count"
DONE = "healer-test/1; gpus:passed:1; gpu_count=8"


def broken() -> tuple[TestSite, str]:
    """A fatal fault: its node is out and waits for a repair."""
    site = TestSite(mode=Mode.auto)
    site.run_for(60, *site.say(1, FATAL))
    (run,) = (one for one in site.ledger.tables.runs.values() if one.state is RunState.waiting)
    return site, run.id


def proven(site: TestSite, *, passes: bool) -> str:
    run = site.ask("return-to-service", 1)
    site.run_for(30)
    job = site.running_test()
    site.slurm.remark(job, DONE if passes else "healer-test/1; gpus:failed:1")
    site.slurm.complete(job) if passes else site.slurm.fail_job(job, "1:0")
    site.run_for(30)
    return run


def test_node_that_passes_its_tests_returns_with_a_week_of_probation() -> None:
    site, waiting = broken()
    (incident,) = site.open_incidents
    run = proven(site, passes=True)
    assert site.run_named(run).state is RunState.done
    assert site.run_named(waiting).state is RunState.done
    assert site.node(1).in_service and site.reservations() == {}
    known = site.ledger.tables.incidents[incident.id]
    assert not known.is_open and known.nodes[NODE] is Verdict.watch
    assert known.closed is not None and known.probation_until == known.closed + timedelta(days=7)
    assert known.tried is not Remedy.none, "a person's word that it is repaired"
    assert site.ledger.tables.slots == {}


def test_failed_node_stays_out_and_is_not_called_repaired() -> None:
    site, _ = broken()
    (incident,) = site.open_incidents
    run = proven(site, passes=False)
    assert site.run_named(run).state is RunState.waiting
    assert site.node(1).drain and site.reservations() == {}
    known = site.ledger.tables.incidents[incident.id]
    assert known.is_open and known.tried is Remedy.none and known.probation_until is None


def test_in_shadow_it_goes_the_same_way_and_touches_nothing() -> None:
    site = TestSite(mode=Mode.shadow)
    run = site.ask("return-to-service", 1)
    known = site.run_named(run)
    site.ledger.tables.runs[run] = type(known)(
        **{name: getattr(known, name) for name in known.__struct_fields__} | {"shadow": True}
    )
    site.run_for(30)
    assert site.scheduler.writes == [] and site.node(1).in_service
    assert [one.text for one in site.log(run, "proof-drain") if one.event is StepEvent.done] == [
        f"shadow: would drain {NODE}"
    ]


@pytest.mark.parametrize(
    "where", ["performed:proof-reserve", "performed:proof-test", "performed:proof-resume"]
)
def test_its_steps_are_those_of_validate(where: str) -> None:
    site, _ = broken()
    proven(site, passes=True)
    assert where in site.checkpoints


ASKS = "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from {} to {}"
NONE, RESET = "0x0 (None)", "0x1 (GPU Reset Required)"


def waiting_for_a_person() -> tuple[TestSite, Incident]:
    """The driver asks for a reset; reset and reboot were tried an hour ago, so neither is repeated."""
    site = TestSite(mode=Mode.auto)
    for remedy in (Remedy.drain_then_reset, Remedy.reboot_node):
        use = RemedyUse(node=NODE, remedy=remedy, rule="x", at=site.now - timedelta(hours=1))
        site.ledger.tables.remedies.append(use)
    site.run_for(600, *site.say(1, ASKS.format(NONE, RESET)), step_s=5)
    (incident,) = site.open_incidents
    run = site.run_named(incident.run or "")
    assert (run.state, run.wake_at, site.node(1).drain) == (RunState.waiting, None, True)
    return site, incident


@pytest.mark.parametrize("passes", [True, False])
def test_a_withdrawn_request_is_tested_and_then_returns_the_node(passes: bool) -> None:
    site, incident = waiting_for_a_person()
    site.run_for(30, *site.say(1, ASKS.format(RESET, NONE)))
    job = site.running_test()
    site.slurm.remark(job, DONE if passes else "healer-test/1; gpus:failed:1")
    site.slurm.complete(job) if passes else site.slurm.fail_job(job, "1:0")
    site.run_for(60)
    stored = site.ledger.tables.incidents[incident.id]
    assert site.node(1).in_service is passes and stored.is_open is not passes
    runs = [one.playbook for one in site.ledger.tables.runs.values() if one.incident == incident.id]
    assert runs == ["gpu-fatal", "validate"], (
        "what failed its tests waits for a person, and is not tested again"
    )
    site.run_for(600, step_s=5)
    assert len(site.ledger.tables.runs) == len(runs)


def test_acknowledged_incident_is_left_to_its_person() -> None:
    site, incident = waiting_for_a_person()
    site.send_command(CommandKind.acknowledge, incident=incident.id)
    site.run_for(600, *site.say(1, ASKS.format(RESET, NONE)), step_s=5)
    assert site.node(1).drain and [one.playbook for one in site.ledger.tables.runs.values()] == ["gpu-fatal"]


def spoken(site: Site, line: str) -> Sequence[Observation]:
    body = {"cluster": CLUSTER, "node": NODE, "entries": [{"line": line, "time": site.now.isoformat()}]}
    book = site.rules.kernel_lines
    return kernel_log_observations(body, lambda *_: True, site.now, cluster=CLUSTER, book=book).observations


def returned_only_well(site: Site, seconds: int) -> None:
    """Moves the site on; whenever the node is in service, no fatal fault of it is open."""
    for _ in range(seconds // 10):
        site.run_for(10, step_s=5)
        fatal = [one.fault for one in site.open_incidents if one.fault_class is FaultClass.fatal]
        node = site.node(1)
        assert not node.in_service or node.planned or not fatal, (node.state, fatal)


@pytest.mark.parametrize("cancelled", [False, True], ids=["its run works", "its run was cancelled"])
@pytest.mark.parametrize("line", [LOST, CARD], ids=["a GPU is lost", "a network card fails"])
def test_no_run_returns_a_node_that_has_another_fatal_fault(line: str, *, cancelled: bool) -> None:
    """The second fault needs a reboot, the first only a GPU reset: that returned the node with the second."""
    site = Site(8, test_s=60)
    site.run_for(60, *spoken(site, MEMORY))
    (first,) = site.open_incidents
    if cancelled:
        assert first.run is not None
        site.cancel(first.run)
        site.run_for(60)
    site.run_for(60, *spoken(site, line))
    assert site.node(1).drain
    if cancelled:
        site.send_command(CommandKind.reopen, incident=first.id)
    returned_only_well(site, 1800)
    assert site.node(1).in_service and site.open_incidents == []
    assert site.audited("node.resumed") == 1


def test_a_fatal_fault_of_another_part_during_the_tests_keeps_the_node_out() -> None:
    """The card needed a reboot, the GPU's new fault only a reset: the tests passed, and the node was in
    service again while the incident of the GPU was open."""
    site = Site(8, test_s=120)
    site.run_for(60, *spoken(site, CARD))
    (run,) = site.runs
    while not any(entry.step == "proof" for entry in site.ledger.tables.log[run.id]):
        site.run_for(5, step_s=5)
        assert site.now < START + timedelta(hours=1)
    site.run_for(20, step_s=5)
    site.run_for(5, *spoken(site, MEMORY), step_s=5)
    gpu = next(one for one in site.open_incidents if one.fault == "xid-48")
    returned_only_well(site, 3600)
    failed = [entry.text for entry in site.ledger.tables.log[run.id] if entry.event is StepEvent.failed]
    assert any("Xid 48" in text for text in failed)
    assert gpu.id in {one.id for one in site.open_incidents} and not site.node(1).in_service
