"""Both ends of a cable, ports of a leaf switch, racks: findings as telemetry and detectors report them."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from healer.incidents import Book, take_findings
from healer.model import (
    Component,
    Evidence,
    FaultClass,
    Finding,
    Incident,
    IncidentState,
    Peer,
    Place,
    Sense,
    SlurmNode,
    SlurmSnapshot,
    Switch,
    Topology,
)
from healer.observations import Picture
from tests.support.loop import CLUSTER, START, later, name, rules_in

CABLES = {
    "leaf1": {str(port): Peer(name(port), "mlx5_0") for port in range(1, 9)} | {"30": Peer("spine1", "4")},
    "spine1": {"4": Peer("leaf1", "30")},
}
TOPOLOGY = Topology(switches={"leaf1": Switch(), "spine1": Switch()}, links=CABLES)


def at_node(number: int, nic: str | None = "mlx5_0", **fields: Any) -> Component:
    return Component(cluster=CLUSTER, node=name(number), nic=nic, **fields)


def at_port(port: int, switch: str = "leaf1") -> Component:
    return Component(cluster=CLUSTER, device=switch, part=str(port))


def finding_at(
    fault: str, where: Component, fault_class: FaultClass = FaultClass.degraded, at_s: float = 0
) -> Finding:
    evidence = Evidence(
        digest=f"{fault}{where}{at_s}", at=later(at_s), component=where, text=fault, sense=Sense.metrics
    )
    return Finding(
        rule=fault,
        fault=fault,
        fault_class=fault_class,
        component=where,
        at=later(at_s),
        arrived_at=later(at_s),
        text=fault,
        confidence=0.9,
        evidence=(evidence,),
    )


class Fleet:
    """One picture, and passes over it. `nodes` are fields of Slurm's nodes by number, of 32."""

    def __init__(self, topology: Topology = TOPOLOGY, **fields: Sequence[str]) -> None:
        self.rules = rules_in(topology=topology)
        self.picture = Picture(CLUSTER, watching_since=START)
        shown = {
            name(n): msgspec.structs.replace(
                SlurmNode(name=name(n), gpus=8, state=("IDLE",)),
                **{key: row[n - 1] for key, row in fields.items()},
            )
            for n in range(1, 33)
        }
        self.picture.show(SlurmSnapshot(cluster=CLUSTER, taken_at=START, nodes=shown))
        self.known: dict[str, Incident] = {}

    def hear(self, *findings: Finding, at_s: float = 0) -> list[Incident]:
        """What is open after it."""
        open_ = [one for one in self.known.values() if one.is_open]
        work = Book(self.rules, open_, self.picture, later(at_s), self.known.get)
        take_findings(work, findings)
        self.known |= work.changed
        assert not {one.merged_into for one in self.known.values() if one.merged_into} - self.known.keys()
        return [one for one in self.known.values() if one.is_open]


@pytest.mark.parametrize("apart_s", [0, 20, 400])
def test_both_ends_of_a_cable_are_one_incident(apart_s: float) -> None:
    fleet = Fleet()
    fleet.hear(finding_at("ib-port-down", at_node(3)))
    (one,) = fleet.hear(finding_at("switch-port-flaps", at_port(3), at_s=apart_s), at_s=apart_s)
    assert one.root == at_node(3)
    assert one.affected == (at_port(3),)


def test_the_end_that_says_more_is_the_root() -> None:
    fleet = Fleet()
    (first,) = fleet.hear(finding_at("switch-port-flaps", at_port(3)))
    (one,) = fleet.hear(finding_at("ib-port-down", at_node(3), FaultClass.fatal, at_s=5), at_s=5)
    assert (one.id, one.root, one.fault) == (first.id, at_node(3), "ib-port-down")
    assert one.affected == (at_port(3),)


def test_a_cable_between_two_switches_has_two_ends_too() -> None:
    fleet = Fleet()
    fleet.hear(finding_at("switch-port-errors", at_port(30)))
    (one,) = fleet.hear(finding_at("switch-port-errors", at_port(4, "spine1"), at_s=5), at_s=5)
    assert one.root == at_port(30)


def test_ends_of_different_cables_are_different_incidents() -> None:
    fleet = Fleet()
    fleet.hear(finding_at("ib-port-down", at_node(3)))
    assert len(fleet.hear(finding_at("switch-port-flaps", at_port(4)))) == 2


def test_several_ports_of_a_leaf_are_the_leafs() -> None:
    fleet = Fleet(switch=["leaf1"] * 8 + ["leaf2"] * 24)
    for number in (1, 2):
        fleet.hear(finding_at("ib-port-down", at_node(number), at_s=number), at_s=number)
    (one,) = fleet.hear(finding_at("ib-port-down", at_node(3), at_s=30), at_s=30)
    assert (one.rule, one.root) == ("leaf-switch", Component(cluster=CLUSTER, switch="leaf1"))
    assert {part.node for part in one.affected} == {name(1), name(2), name(3)}
    later_ = fleet.hear(finding_at("ib-port-down", at_node(4), at_s=60), at_s=60)
    assert [one.rule for one in later_] == ["leaf-switch"]
    assert name(4) in {part.node for part in later_[0].affected}


def test_each_rail_has_its_own_leaf() -> None:
    cables = {
        "leaf1": {str(n): Peer(name(n), "mlx5_0") for n in range(1, 9)},
        "leaf2": {str(n): Peer(name(n), "mlx5_1/1") for n in range(1, 9)},
    }
    fleet = Fleet(Topology(links=cables), switch=["leaf1"] * 32)
    (one,) = fleet.hear(*(finding_at("ib-port-down", at_node(number, "mlx5_1")) for number in (1, 2, 3)))
    assert one.root == Component(cluster=CLUSTER, switch="leaf2")


def test_nodes_of_one_name_in_two_clusters_are_each_behind_their_own_leaf() -> None:
    cables = {
        f"{CLUSTER}/leaf1": {str(n): Peer(name(n), "mlx5_0") for n in range(1, 9)},
        "zzz/leaf9": {str(n): Peer(name(n), "mlx5_0") for n in range(1, 9)},
    }
    fleet = Fleet(Topology(links=cables))
    (one,) = fleet.hear(*(finding_at("ib-port-down", at_node(number)) for number in (1, 2, 3)))
    assert one.root == Component(cluster=CLUSTER, switch="leaf1")


def test_finding_an_hour_after_a_switch_outage_opens_its_own_incident() -> None:
    fleet = Fleet(switch=["leaf1"] * 8 + ["leaf2"] * 24)
    fleet.hear(*(finding_at("ib-port-down", at_node(number)) for number in (1, 2, 3)))
    after = fleet.hear(finding_at("ib-port-down", at_node(5), at_s=3600), at_s=3600)
    assert {one.root for one in after} == {Component(cluster=CLUSTER, switch="leaf1"), at_node(5)}


def test_a_switch_that_is_silent_itself_explains_its_ports() -> None:
    fleet = Fleet(switch=["leaf1"] * 8 + ["leaf2"] * 24)
    fleet.hear(finding_at("ib-port-down", at_node(1)))
    leaf = Component(cluster=CLUSTER, device="leaf1")
    (one,) = fleet.hear(finding_at("switch-silent-itself", leaf, at_s=20), at_s=20)
    assert one.root == leaf
    (one,) = fleet.hear(finding_at("ib-port-down", at_node(2), at_s=40), at_s=40)
    assert {part.node for part in one.affected} == {name(1), name(2)}


def test_hot_rack_is_reported_once_and_a_hot_node_separately() -> None:
    racks = ["r1"] * 4 + ["r2"] * 28
    fleet = Fleet(rack=racks)
    (alone,) = fleet.hear(finding_at("gpu-hot", at_node(20, None, gpu=3)))
    assert alone.root.node == name(20)
    hot = [finding_at("gpu-hot", at_node(number, None, gpu=0), at_s=5) for number in (1, 2, 3)]
    found = fleet.hear(*hot, at_s=5)
    assert {(one.rule, one.root.device) for one in found} == {("gpu-hot", None), ("rack-cooling", "r1")}


def test_power_faults_belong_to_the_pdu_where_the_site_lists_it() -> None:
    places = {name(number): Place(pdu="p7", rack="r1") for number in range(1, 7)}
    fleet = Fleet(Topology(places=places))
    found = fleet.hear(
        *(finding_at("host-power-supply-failed", at_node(number, None)) for number in (1, 2, 3))
    )
    assert [(one.rule, one.root.device) for one in found] == [("pdu-power", "p7")]


def test_certainly_unusable_node_and_a_working_one_stay_separate() -> None:
    fleet = Fleet(domain=["d1"] * 32)
    link = [finding_at("xid-74", at_node(number, None, gpu=0), FaultClass.fatal) for number in (1, 2, 3)]
    gone = finding_at("xid-79", at_node(4, None, gpu=0), FaultClass.fatal)
    found = fleet.hear(*link, gone)
    assert {(one.rule, one.root.node) for one in found} == {("nvlink-domain", None), ("gpu-lost", name(4))}


def test_an_older_fault_of_a_node_is_not_lost_in_the_domains() -> None:
    fleet = Fleet(domain=["d1"] * 32)
    (older,) = fleet.hear(finding_at("xid-63", at_node(1, None, gpu=5)))
    fatal = [
        finding_at("xid-149", at_node(number, None, gpu=0), FaultClass.fatal, at_s=900)
        for number in (1, 2, 3)
    ]
    found = fleet.hear(*fatal, at_s=900)
    assert {one.rule for one in found} == {older.rule, "nvlink-domain"}


def test_a_wave_of_what_healer_would_not_act_on_is_one_incident() -> None:
    fleet, found = Fleet(), list[Incident]()
    for number in range(1, 9):
        found = fleet.hear(finding_at("xid-63", at_node(number, None, gpu=0), at_s=number), at_s=number)
    (wave,) = found
    assert (wave.rule, wave.fault) == ("wave", "wave:gpu-degraded")
    assert len({part.node for part in wave.affected}) == 8
    assert set(wave.nodes.values()) == {"watch"}


def test_wave_ends_with_the_last_of_its_incidents() -> None:
    fleet = Fleet()
    faults = [finding_at("xid-119", at_node(number, None, gpu=0), FaultClass.fatal) for number in range(1, 7)]
    singles = [one for one in fleet.hear(*faults) if one.rule != "wave"]
    assert [one.rule for one in fleet.hear(at_s=900) if one.rule == "wave"] == ["wave"]
    for one in singles:
        fleet.known[one.id] = msgspec.structs.replace(one, state=IncidentState.resolved)
    assert fleet.hear(at_s=1000) == []


def test_a_wave_that_a_person_ended_is_not_opened_again_by_what_it_was_made_of() -> None:
    fleet = Fleet()
    faults = [finding_at("xid-119", at_node(number, None, gpu=0), FaultClass.fatal) for number in range(1, 7)]
    (wave,) = [one for one in fleet.hear(*faults) if one.rule == "wave"]
    fleet.known[wave.id] = msgspec.structs.replace(wave, state=IncidentState.resolved)
    after = fleet.hear(finding_at("xid-119", at_node(9, None, gpu=0), FaultClass.fatal, at_s=60), at_s=60)
    assert "wave" not in {one.rule for one in after}
