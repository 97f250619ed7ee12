"""Who sent the figures of a node: kept by signal for as long as the windows reach back."""

import math

import msgspec
import numpy as np
import pytest

from healer.model import Column, Part
from healer.model.telemetry import Report
from healer.observations import report_order as layouts
from healer.observations.figure_senders import NAMED_MOST, SEVERAL, FigureSenders, either_of
from healer.observations.telemetry_windows import Telemetry
from healer.sim.stores import MemoryColumns
from tests.support.measured import CLUSTER, after, catalogue

OWN, RELAY, OTHER = "", "prometheus (a1)", "collector (b2)"
HEAT, LOAD = Column("heat_c", Part(gpu=0)), Column("load", Part())


class Fleet:
    def __init__(self) -> None:
        self.telemetry, self.book = Telemetry(CLUSTER, catalogue()), MemoryColumns()

    def send(self, at_s: float, by: str, *columns: Column, nodes: str = "a", value: float = 1.0) -> None:
        ids = np.array(self.book.ids(columns or (HEAT, LOAD)), np.int32)
        values = np.full(len(ids), value)
        reports = [Report(CLUSTER, node, after(at_s), after(at_s), ids, values, by) for node in nodes]
        self.telemetry.update(reports, self.book, after(at_s))

    def said_by(self, now_s: float, *signals: str, node: str = "a", peers: bool = False) -> str:
        return self.telemetry.relayed_by(node, signals or None, after(now_s), peers=peers)


@pytest.fixture(params=[1, 10**9], ids=["as one matrix", "sample by sample"])
def fleet(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    monkeypatch.setattr(layouts, "ALIKE", request.param)
    return Fleet()


def test_figures_of_the_node_belong_to_no_one_else(fleet: Fleet) -> None:
    fleet.send(0, OWN)
    assert fleet.said_by(1) == fleet.said_by(1, "heat_c") == ""
    assert fleet.said_by(1, node="never heard of") == ""


def test_a_relay_is_named_for_the_signals_that_it_sent(fleet: Fleet) -> None:
    fleet.send(0, OWN)
    fleet.send(5, RELAY, HEAT)
    assert fleet.said_by(6) == fleet.said_by(6, "heat_c", "load") == RELAY
    assert fleet.said_by(6, "load") == ""
    assert fleet.said_by(6, "heat_c", node="b") == ""


def test_the_nodes_own_figure_does_not_hide_what_a_relay_sent_before(fleet: Fleet) -> None:
    fleet.send(0, RELAY, HEAT)
    fleet.send(5, OWN, HEAT)
    assert fleet.said_by(6, "heat_c") == RELAY
    assert fleet.said_by(895, "heat_c") == RELAY
    assert fleet.said_by(901, "heat_c") == ""


def test_of_two_relays_either_may_have_said_it(fleet: Fleet) -> None:
    fleet.send(0, RELAY, HEAT)
    fleet.send(5, OTHER, HEAT)
    fleet.send(10, RELAY, HEAT)
    assert fleet.said_by(11, "heat_c") == f"{OTHER} or {RELAY}"
    fleet.send(15, RELAY, HEAT)
    assert fleet.said_by(16, "heat_c") == f"{OTHER} or {RELAY}"


def test_silent_sender_is_forgotten_after_two_quarters_of_an_hour(fleet: Fleet) -> None:
    fleet.send(0, OTHER, HEAT)
    for minute in range(31):
        fleet.send(1 + 60 * minute, RELAY, HEAT)
        if minute < 15:
            assert fleet.said_by(2 + 60 * minute, "heat_c") == f"{OTHER} or {RELAY}"
    assert fleet.said_by(1802, "heat_c") == RELAY


def test_of_one_moment_too(fleet: Fleet) -> None:
    ids = np.array(fleet.book.ids([HEAT]), np.int32)
    both = [Report(CLUSTER, "a", after(0), after(0), ids, np.array([9.0]), by) for by in (OWN, RELAY)]
    fleet.telemetry.update(both, fleet.book, after(0))
    assert fleet.said_by(1, "heat_c") == RELAY


def test_a_repair_ends_it(fleet: Fleet) -> None:
    fleet.send(0, RELAY)
    fleet.telemetry.forget("a", after(1))
    assert fleet.said_by(2) == ""


def test_figure_sent_after_a_repair_keeps_its_sender(fleet: Fleet) -> None:
    fleet.send(0, RELAY)
    fleet.send(5, RELAY)
    fleet.telemetry.forget("a", after(3))
    assert fleet.said_by(6) == RELAY


def test_sender_of_many_peers_is_named_for_the_comparison(fleet: Fleet) -> None:
    fleet.send(0, OWN, nodes="abcdefgh")
    fleet.send(5, RELAY, nodes="b")
    assert fleet.said_by(6, "heat_c") == ""
    fleet.send(10, OTHER, nodes="cdefgh")
    assert fleet.said_by(11, "heat_c") == ""
    assert fleet.said_by(11, "heat_c", peers=True) == OTHER


def test_sender_of_one_peer_is_not_named_for_the_comparison(fleet: Fleet) -> None:
    fleet.send(0, OWN, nodes="abcdefgh")
    fleet.send(5, RELAY, HEAT, nodes="b")
    assert fleet.said_by(6, "heat_c", peers=True) == ""


def test_a_new_signal_makes_no_room_for_nodes() -> None:
    senders = FigureSenders()
    for signal in range(40):
        one = np.array([signal]), np.array([9]), np.array([senders.number(RELAY)], np.int16), np.array([1e9])
        senders.put(0, *one)
    assert RELAY in senders.of(0, 39, 9, 0.0)
    assert senders.nbytes < 100_000


def test_names_are_bounded() -> None:
    many = either_of(f"relay {number}" for number in range(NAMED_MOST + 1))
    assert many == SEVERAL == either_of([many, RELAY])
    assert either_of([RELAY, OWN, RELAY, f"{OTHER} or {RELAY}"]) == f"{OTHER} or {RELAY}"
    senders = FigureSenders()
    numbers = {senders.number(f"relay {number}") for number in range(5000)}
    assert max(numbers) < np.iinfo(np.int16).max
    assert senders.number("one more") == senders.number(SEVERAL)


def test_a_relay_s_figures_have_the_same_values() -> None:
    """Who sent them changes nothing else."""
    own, relayed = Fleet(), Fleet()
    for step in range(3):
        own.send(5.0 * step, OWN, nodes="abc", value=step)
        relayed.send(5.0 * step, RELAY, nodes="abc", value=step)
    assert (own.telemetry.value("load", after(11)) == relayed.telemetry.value("load", after(11))).all()
    assert own.telemetry.counts == relayed.telemetry.counts


def test_a_report_is_otherwise_as_before() -> None:
    ids = np.zeros(0, np.int32)
    report = Report(CLUSTER, "a", after(0), after(0), ids, np.full(0, math.nan))
    assert report.relayed_by == OWN
    assert msgspec.structs.replace(report, relayed_by=RELAY).relayed_by == RELAY
