"""From an exporter's line about a switch to an incident: people are notified, and no node is touched."""

import msgspec
import pytest

from healer.model import (
    Component,
    IncidentState,
    Mode,
    Peer,
    Place,
    Severity,
    Switch,
    Topology,
)
from healer.signals.hardware_names import with_devices
from tests.support.fleet import Fleet
from tests.support.loop import CLUSTER, rules_in

pytestmark = pytest.mark.heavy

PLACES = Topology(
    places={f"gpu{number:04d}": Place(switch="leaf1") for number in range(1, 5)},
    switches={"leaf1": Switch()},
    links={"leaf1": {"7": Peer("gpu0002", "mlx5_0"), "8": Peer("gpu0003", "mlx5_0")}},
)


class Switched(Fleet):
    """A fleet below a switch that counts how often its links went down."""

    def __init__(self) -> None:
        super().__init__(8, jobs=(4,), rules=msgspec.structs.replace(rules_in(Mode.auto), topology=PLACES))
        self.down = {"7": 0, "8": 0}

    def flap(self, ports: tuple[str, ...], seconds: float) -> None:
        """Time passes; these ports go down once a minute."""
        for number in range(int(seconds // 15)):
            for port in ports if number % 4 == 0 else ():
                self.down[port] += 1
            lines = [
                f'infiniband_switch_port_link_downed_total{{switch="leaf1",guid="0x1",port="{port}"}} {count}'
                for port, count in self.down.items()
            ]
            known = with_devices(self._known, bound=False)
            text = "\n".join(lines).encode()
            measured = self._translator.exposition(text, known, self.now, node=None)
            assert measured.samples == 2
            self.senses.take(measured.reports, (), self.slurm.snapshot(), self.now)
            self.run(15)


@pytest.fixture(scope="module")
def fleet() -> Switched:
    fleet = Switched()
    fleet.flap((), 120)
    assert fleet.incidents_of("switch-port-flaps") == []
    fleet.flap(("7",), 240)
    fleet.flap(("7", "8"), 240)
    return fleet


def test_one_incident_of_the_switch_names_its_ports_and_the_nodes_behind(fleet: Switched) -> None:
    (incident,) = fleet.incidents_of("switch-port-flaps")
    assert incident.root == Component(cluster=CLUSTER, device="leaf1")
    assert incident.severity is Severity.P2
    assert {one.component.part for one in incident.evidence} == {"7", "8"}
    assert incident.evidence[0].text.startswith("leaf1 7 (before gpu0002): A switch port goes down")
    assert {one.node for one in incident.affected if one.node} == {"gpu0002", "gpu0003"}
    assert "ticket" in incident.remedy


def test_no_node_is_judged_or_drained_and_no_job_called_hit(fleet: Switched) -> None:
    (incident,) = fleet.incidents_of("switch-port-flaps")
    assert (incident.nodes, incident.jobs_hit, incident.run) == ({}, (), None)
    assert fleet.drained == []
    assert fleet.runs == []


def test_it_ends_when_all_its_ports_are_well() -> None:
    fleet = Switched()
    fleet.flap((), 120)
    fleet.flap(("7", "8"), 240)
    (incident,) = fleet.incidents_of("switch-port-flaps")
    assert incident.state is IncidentState.open
    fleet.flap(("8",), 15 * 60)
    (incident,) = fleet.incidents_of("switch-port-flaps")
    assert incident.state is IncidentState.open, "port 7 is well, port 8 is not"
    fleet.flap((), 25 * 60)
    (incident,) = fleet.incidents_of("switch-port-flaps")
    assert incident.state is IncidentState.resolved
    assert (incident.closed_why or "").startswith("recovered at")
