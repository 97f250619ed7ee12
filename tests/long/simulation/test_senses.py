"""Faults planted one by one in what a fleet measures: the right rule names the right node and GPU, and
something is done only where the facts say so, and for a slow node only where two senses agree."""

from datetime import datetime, timedelta

import pytest

from healer.model import Incident, RunState, Sense, Severity, Ticket
from healer.sim.fleet_steps import Pace
from tests.support.fleet import Fleet
from tests.support.loop import name

#: Checkpoints each twenty steps: what waits for one need not wait ten minutes.
OFTEN = Pace(checkpoint_every=20)
#: So long a fleet runs well before anything is planted: a job's warm-up, and what is learned of each rank.
WELL_S = 300.0


def fleet(pace: Pace = OFTEN) -> Fleet:
    one = Fleet(16, jobs=(8,), pace=pace, each_s=5.0)
    one.run(WELL_S)
    assert one.open_incidents == [], [incident.title for incident in one.open_incidents]
    return one


def of(fleet: Fleet, node: int) -> list[Incident]:
    return [one for one in fleet.open_incidents if one.root.node == name(node)]


def others(fleet: Fleet, node: int) -> set[str | None]:
    """Other nodes with findings."""
    return {one.component.node for one in fleet.found} - {name(node), None}


# --- one sense is not enough --------------------------------------------------------------------------------


def test_step_times_alone_name_the_node_and_touch_nothing() -> None:
    one = fleet()
    one.sensors.plant("slow-gpu", name(3), 5)
    one.run_until(lambda: bool(of(one, 3)), 120)
    one.run(600)
    (incident,) = of(one, 3)
    assert (incident.rule, incident.root.gpu) == ("straggler", 5)
    assert {evidence.sense for evidence in incident.evidence} == {Sense.step_times}
    assert others(one, 3) == set()
    assert (one.drained, one.pages) == ([], [])


def test_metrics_alone_name_the_gpu_and_touch_nothing() -> None:
    one = Fleet(16, jobs=(8,), pace=Pace(reports=lambda _: False), each_s=5.0)
    one.run(WELL_S)
    one.sensors.plant("thermal-throttle", name(3), 5)
    one.run(600)
    gpus = {finding.component.gpu for finding in one.found if finding.component.node == name(3)}
    assert gpus == {5}
    assert others(one, 3) == set()
    assert (one.drained, one.pages) == ([], [])


def test_a_gpu_throttled_by_heat_is_taken_out_at_the_next_checkpoint() -> None:
    """Metrics and step times agree; the run waits for the durable checkpoint, then drains and requeues."""
    one = fleet()
    (job,) = one.jobs
    saved: list[datetime] = []
    one.on_sent = lambda at, sent: saved.extend(at for _ in sent.checkpoints)
    one.nodes.plant(name(3), "GPU 5 throttles by heat")
    one.sensors.plant("thermal-throttle", name(3), 5)
    one.run_until(lambda: bool(one.drained), 900)
    assert one.now - saved[-1] <= timedelta(seconds=10)
    assert one.drained == [name(3)]
    (incident,) = of(one, 3)
    assert {Sense.metrics, Sense.step_times} <= {evidence.sense for evidence in incident.evidence}
    one.run(30)
    life = one.slurm.job(job)
    assert life is not None
    assert life.restarts == 1
    assert name(3) not in life.nodes
    assert others(one, 3) == set()
    # The job is slow before the node is named: the search that was proposed for it ends then.
    ends = {"bisect": RunState.rejected, "slow-node": RunState.waiting}
    one.run_until(lambda: {run.playbook: run.state for run in one.runs} == ends, 120)
    assert len(one.runs) == len(ends)
    tickets = [message for message in one.ledger.tables.messages.values() if isinstance(message, Ticket)]
    assert [ticket.node for ticket in tickets] == [name(3)]
    assert not one.slurm.node(name(3)).in_service


# --- hard faults --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "rule", "gpu"),
    [
        ("ecc-uncorrectable", "gpu-ecc-uncorrectable", 2),
        ("remap-failed", "gpu-row-remap-failed", 2),
        ("gpu-missing", "gpu-count-low", None),
    ],
)
def test_a_fault_that_is_certain_takes_its_node_out(fault: str, rule: str, gpu: int | None) -> None:
    one = fleet()
    one.sensors.plant(fault, name(12), 2)
    one.run_until(lambda: bool(one.drained), 300)
    assert one.drained == [name(12)]
    (incident,) = of(one, 12)
    assert (incident.rule, incident.root.gpu) == (rule, gpu)
    assert others(one, 12) == set()


def test_a_dead_fabric_manager_is_restarted_and_its_node_is_back_without_a_person() -> None:
    one = fleet()
    one.nodes.plant(name(12), "fabric-manager")
    one.sensors.plant("fabric-manager-down", name(12))
    one.run_until(lambda: "fabric-manager" not in one.nodes.faults(name(12)), 300)
    one.sensors.mend(name(12))
    one.run(600)
    assert one.drained == [name(12)]
    assert one.slurm.node(name(12)).in_service
    assert [run.state for run in one.runs] == [RunState.done]
    assert one.pages == []
    assert one.open_incidents == []


# --- what is reported, and no more
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "rules"),
    [
        ("clock-low", {"gpu-clock-low"}),
        ("remap-pending", {"gpu-remap-pending"}),
        ("pcie-width", {"gpu-pcie-narrow"}),
        ("pcie-replays", {"gpu-pcie-replays"}),
        ("nvlink-crc", {"nvlink-crc-storm", "nvlink-crc-errors", "nvlink-replays"}),
    ],
)
def test_a_failing_part_is_named(fault: str, rules: set[str]) -> None:
    one = fleet(Pace())
    one.sensors.plant(fault, name(3), 5)
    one.run(600)
    measured = [finding for finding in one.found if finding.evidence[0].sense is Sense.metrics]
    assert {finding.rule for finding in measured} == rules
    assert {(finding.component.node, finding.component.gpu) for finding in measured} == {(name(3), 5)}
    assert others(one, 3) == set()


def test_a_bad_cable_is_named_by_its_port() -> None:
    one = fleet()
    one.sensors.plant("ib-errors", name(3))
    one.run(600)
    assert {finding.component.nic for finding in one.found} == {"mlx5_0/1"}
    assert others(one, 3) == set()
    assert one.drained == []


# --- what is no node's fault
# ---------------------------------------------------------------------------------


def test_a_sensor_that_falls_silent_is_no_fault_of_its_node() -> None:
    one = fleet()
    one.sensors.plant("sensor-gone", name(3))
    one.run(900)
    assert one.drained == []
    assert one.pages == []
    assert [incident.rule for incident in one.incidents if incident.severity < Severity.P3] == []


def test_warm_hall_drains_no_node() -> None:
    one = fleet()
    one.sensors.plant("fleet-warm")
    one.run(900)
    assert one.drained == []
    assert [incident.rule for incident in one.incidents if incident.severity < Severity.P3] == []


def test_an_exporter_that_restarts_and_a_node_that_boots_are_no_fault() -> None:
    one = fleet()
    one.sensors.restart_exporter(name(3))
    one.sensors.reboot(name(12))
    one.run(600)
    assert one.found == []
    assert one.drained == []
