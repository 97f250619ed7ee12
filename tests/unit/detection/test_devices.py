"""Rules over devices: one incident's root for a device, nodes behind it, what is clear, what stays apart."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import msgspec
import numpy as np
import pytest

from healer.detection.language import parse
from healer.detection.language.expr import ExpressionError
from healer.detection.measured import RuleEngine
from healer.model import (
    Catalogue,
    Cause,
    Column,
    Component,
    DetectionRule,
    Detections,
    DeviceKind,
    FaultClass,
    Finding,
    Part,
    Peer,
    Place,
    Scope,
    Severity,
    Signal,
    SignalKind,
    SlurmNode,
    SlurmSnapshot,
    Switch,
    Topology,
)
from healer.model.telemetry import Report
from healer.observations import axes
from healer.observations.telemetry_windows import Telemetry
from healer.sim.stores import MemoryColumns
from tests.support.looks import look

START = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
PLACES = Topology(
    places={f"n{number}": Place(rack="r1", switch="leaf1") for number in (1, 2, 3)},
    switches={"leaf1": Switch(guid="0x0000000000000abc", above=("spine1",)), "spine1": Switch()},
    links={"leaf1": {"7": Peer("n1", "mlx5_0"), "8": Peer("n4"), "40": Peer("spine1", "1")}},
)


def signal(name: str, scope: Scope, kind: SignalKind = SignalKind.gauge) -> Signal:
    device = DeviceKind.switch if scope in (Scope.device, Scope.device_part) else None
    return Signal(
        name=name, unit="count", kind=kind, scope=scope, text=name, source="test", device=device
    )  # fmt: skip


SIGNALS = {
    one.name: one
    for one in (
        signal("hot", Scope.device),
        signal("broken", Scope.device_part),
        signal("errors", Scope.device_part, SignalKind.counter),
        signal("load", Scope.node),
    )
}


def rule(when: str, scope: Scope, **fields: object) -> DetectionRule:
    made = DetectionRule(
        name="bad",
        title="Bad",
        when=when,
        scope=scope,
        severity=Severity.P3,
        fault_class=FaultClass.degraded,
        cause=Cause.fabric,
        source="test",
    )
    return msgspec.structs.replace(made, **fields)


class Site:
    """Nodes n1 to n4, and the reports of devices."""

    def __init__(self, *rules: DetectionRule) -> None:
        self.book = MemoryColumns(1000)
        self.telemetry = Telemetry("c", Catalogue(signals=SIGNALS))
        nodes = {name: SlurmNode(name=name, state=("IDLE",), gpus=8) for name in ("n1", "n2", "n3", "n4")}
        self.telemetry.show(SlurmSnapshot(cluster="c", taken_at=START, nodes=nodes), PLACES)
        self.engine = RuleEngine(rules, Catalogue(signals=SIGNALS))
        self.now = START
        self.watched: list[tuple[str, Component]] = []

    def send(self, subject: str, by_part: Mapping[tuple[str, str | None], float]) -> None:
        columns = self.book.ids([Column(name, Part(port=part)) for name, part in by_part])
        values = np.array(list(by_part.values()), np.float64)
        report = Report("c", subject, self.now, self.now, np.array(columns, np.int32), values)
        self.telemetry.update([report], self.book, self.now)

    def tick(self, seconds: float = 30.0) -> Detections:
        sensed = self.engine.tick(look(self.now, self.telemetry, watched=self.watched))
        self.now += timedelta(seconds=seconds)
        return sensed


LEAF = Component(cluster="c", device="leaf1")


def test_root_is_the_device_and_the_part_is_named() -> None:
    site = Site(rule("broken > 0", Scope.device_part))
    site.send("@leaf1", {("broken", "7"): 1, ("broken", "8"): 0, ("broken", "40"): 1})
    found = site.tick().findings
    assert [one.component for one in found] == [LEAF, LEAF]
    assert [one.evidence[0].component.part for one in found] == ["7", "40"]
    assert found[0].text.startswith("leaf1 7 (before n1): Bad: ")
    assert found[0].affected == (
        Component(cluster="c", device="leaf1", part="7"),
        Component(cluster="c", node="n1"),
    )
    assert found[1].affected == (Component(cluster="c", device="leaf1", part="40"),), "a spine is no node"


@pytest.mark.parametrize("name", ["leaf1", "leaf1.pod1.example", "0x0000000000000abc"])
def test_whole_switch_is_blamed_before_its_nodes(name: str) -> None:
    site = Site(rule("hot > 0", Scope.device))
    site.send(f"@{name}", {("hot", None): 1})
    (finding,) = site.tick().findings
    nodes = [one.node for one in finding.affected]
    # By cable n1 and n4; where its own name is that of the leaf, by place too.
    assert nodes == ["n1", "n2", "n3", "n4"]


def test_rack_is_blamed_before_its_nodes_and_a_pdu_before_none() -> None:
    site = Site(rule("hot > 0", Scope.device))
    site.send("@r1", {("hot", None): 1})
    site.send("@pdu9", {("hot", None): 1})
    found = {one.component.device: [node.node for node in one.affected] for one in site.tick().findings}
    assert found == {"r1": ["n1", "n2", "n3"], "pdu9": []}


def test_it_is_clear_when_all_its_parts_are() -> None:
    site = Site(rule("broken > 0", Scope.device_part))
    site.watched = [("bad", LEAF)]
    site.send("@leaf1", {("broken", "7"): 1, ("broken", "8"): 1})
    assert ("bad", LEAF) not in site.tick().clear_since
    site.send("@leaf1", {("broken", "7"): 0, ("broken", "8"): 1})
    assert ("bad", LEAF) not in site.tick().clear_since
    site.send("@leaf1", {("broken", "7"): 0, ("broken", "8"): 0})
    assert ("bad", LEAF) in site.tick().clear_since
    site.now += timedelta(minutes=10)
    assert ("bad", LEAF) not in site.tick().clear_since, "silence is not well"


def test_counters_of_parts_and_parts_of_a_whole() -> None:
    site = Site(
        rule("rate(errors, 1m) > 1", Scope.device_part),
        rule("count_of(rate(errors, 1m) > 1) >= 2", Scope.device, name="many"),
    )
    findings: list[Finding] = []
    for step in range(5):
        site.send("@leaf1", {("errors", "1"): 100.0 * step, ("errors", "2"): 100.0 * step})
        site.send("@leaf2", {("errors", "1"): 100.0 * step, ("errors", "2"): 0.0})
        findings += site.tick().findings
    assert {(one.rule, one.component.device) for one in findings} == {
        ("bad", "leaf1"), ("bad", "leaf2"), ("many", "leaf1"),
    }  # fmt: skip


def test_a_device_and_a_node_of_one_name_are_two() -> None:
    site = Site()
    site.send("n1", {("load", None): 7, ("hot", None): 1, ("broken", "1"): 1})
    site.send("@n1", {("hot", None): 3, ("load", None): 9})
    assert site.telemetry.value("load", site.now).tolist()[0] == 7
    assert site.telemetry.value("hot", site.now).tolist() == [3]
    assert site.telemetry.axis(Scope.device_part).n == 0
    assert site.telemetry.counts.unknown_columns == 3


def test_rows_of_devices_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(axes, "DEVICE_PARTS_MAX", 2)
    monkeypatch.setitem(axes.ROWS_MAX, Scope.device, 2)
    site = Site()
    for name in ("a", "b", "c"):
        site.send(f"@{name}", {("hot", None): 1, ("broken", "1"): 1, ("broken", "2"): 1, ("broken", "3"): 1})
    assert site.telemetry.axis(Scope.device).n == 2
    assert [str(one) for one in site.telemetry.axis(Scope.device_part).components()] == [
        "a 1", "a 2", "b 1", "b 2",
    ]  # fmt: skip
    assert site.telemetry.counts.dropped == 4
    assert site.telemetry.value("load", site.now).tolist() != []


BOTH = "; a rule uses signals of devices or of nodes, not both"


@pytest.mark.parametrize(
    ("when", "scope", "said"),
    [
        (
            "hot > 0 and load > 0",
            Scope.device,
            f"load is measured per node, but the rule has scope: device{BOTH}",
        ),
        (
            "any_of(broken > 0)",
            Scope.node,
            f"broken is measured per device_part, but the rule has scope: node{BOTH}",
        ),
        (
            "any_of(hot > 0)",
            Scope.fabric,
            f"hot is measured per device, but the rule has scope: fabric{BOTH}",
        ),
        ('hot > spec("x")', Scope.device, "spec(…) reads the GPU model of a node, and devices have none"),
        ("broken > 0", Scope.device, "this is measured per device_part, but the rule has scope: device"),
        ("peers(hot) > 0", Scope.device, "only links, GPUs and nodes have peers"),
    ],
)
def test_devices_and_nodes_do_not_meet_in_an_expression(when: str, scope: Scope, said: str) -> None:
    with pytest.raises(ExpressionError) as error:
        parse.condition(when, SIGNALS, scope)
    assert error.value.text == said
