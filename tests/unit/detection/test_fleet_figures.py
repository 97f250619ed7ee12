"""What tests measured, against the other nodes of the model: nodes that are too slow are reported, and no
others."""

from datetime import datetime, timedelta

import numpy as np
import pytest

from healer.detection.fleet_figures import (
    EVERY,
    NODES_LEAST,
    SLOWER_THAN_FLEET,
    FleetFigures,
    standings,
)
from healer.detection.tick import Senses
from healer.model import (
    Component,
    Detections,
    FaultClass,
    Figure,
    NodeComparison,
    NodeFigures,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
)
from healer.ports.transactions import LedgerAway
from healer.sim.stores import MemoryColumns
from tests.support.looks import UNMEASURED, look
from tests.support.loop import shipped
from tests.support.steps import CLUSTER, START, batch, node_name

GEMM = "gemm_tflop_per_s"


def fleet(
    values: dict[int, float], others: int = 20, *, noise: float = 0.01, name: str = GEMM, at: datetime = START
) -> list[NodeFigures]:
    """Nodes of about 700, but for those in `values`."""
    random = np.random.default_rng(5)
    healthy = {number: 700 * (1 + noise * random.standard_normal()) for number in range(others)}
    return [
        NodeFigures(node_name(number), {name: Figure(float(value), at)})
        for number, value in sorted((healthy | values).items())
    ]


def kinds(count: int, kind: str = "h100") -> dict[str, str]:
    return {node_name(number): kind for number in range(count)}


def low(found: list[NodeComparison]) -> list[str]:
    return [one.node for one in found if any(figure.low for figure in one.figures)]


# --- how nodes stand ---


def test_a_node_far_below_the_others_is_low_with_its_figures() -> None:
    found = standings(CLUSTER, fleet({3: 610.0}), kinds(20))
    assert low(found) == [node_name(3)]
    (figure,) = found[3].figures
    assert (figure.nodes, figure.value, round(figure.median)) == (20, 610.0, 696)
    assert 0.005 * 700 < figure.spread < 0.02 * 700


@pytest.mark.parametrize("value", [680.0, 705.0, 900.0])
def test_figures_near_or_above_the_median_are_healthy(value: float) -> None:
    assert low(standings(CLUSTER, fleet({3: value}), kinds(20))) == []


def test_a_fleet_that_differs_much_has_a_wider_bound() -> None:
    assert low(standings(CLUSTER, fleet({3: 610.0}, noise=0.06), kinds(20))) == []


def test_figures_without_any_spread_need_five_percent() -> None:
    assert low(standings(CLUSTER, fleet({3: 680.0}, noise=0), kinds(20))) == []
    assert low(standings(CLUSTER, fleet({3: 660.0}, noise=0), kinds(20))) == [node_name(3)]


def test_too_few_nodes_of_the_model_say_nothing() -> None:
    few = NODES_LEAST - 1
    assert low(standings(CLUSTER, fleet({3: 300.0}, few), kinds(few))) == []
    assert low(standings(CLUSTER, fleet({3: 300.0}, few + 1), kinds(few + 1))) == [node_name(3)]


def test_models_are_compared_apart_and_unknown_nodes_not_at_all() -> None:
    slower = {number: 300.0 for number in range(10, 20)}
    of = kinds(10) | {node_name(number): "a100" for number in range(10, 20)}
    assert low(standings(CLUSTER, fleet(slower), of)) == []
    assert len(standings(CLUSTER, fleet({}), kinds(12))) == 12


def test_no_false_alarm_in_a_thousand_healthy_fleets_of_a_percent_of_noise() -> None:
    random = np.random.default_rng(9)
    alarms = 0
    for _ in range(1000):
        fleet_figures = [
            NodeFigures(node_name(number), {GEMM: Figure(float(700 * (1 + 0.01 * value)), START)})
            for number, value in enumerate(random.standard_normal(32))
        ]
        alarms += len(low(standings(CLUSTER, fleet_figures, kinds(32))))
    assert alarms == 0


# --- findings ---


class Fleet:
    def __init__(self, figures: list[NodeFigures]) -> None:
        self.kept_figures: list[NodeFigures] | None = figures
        self.now, self.kept = START, list[NodeComparison]()
        self.detector = FleetFigures(CLUSTER, self._read, self._keep)

    def _read(self, _: datetime) -> list[NodeFigures]:
        if self.kept_figures is None:
            raise LedgerAway("away")
        return self.kept_figures

    def _keep(self, found: list[NodeComparison], _: datetime) -> None:
        self.kept = found

    def tick(self, after: timedelta = EVERY, *watched: str) -> Detections:
        self.now += after
        nodes = {name: SlurmNode(name=name, state=("IDLE",), gpus=8, gpu_model="h100") for name in kinds(20)}
        slurm = SlurmSnapshot(cluster=CLUSTER, taken_at=self.now, nodes=nodes)
        asked = [(SLOWER_THAN_FLEET, Component(cluster=CLUSTER, node=one)) for one in watched]
        return self.detector.tick(look(self.now, slurm=slurm, watched=asked))


def test_finding_is_evidence_with_figures_a_person_can_check() -> None:
    site = Fleet(fleet({3: 610.0}))
    (found,) = site.tick().findings
    assert (found.fault, found.fault_class) == (SLOWER_THAN_FLEET, FaultClass.informational)
    assert found.component.node == node_name(3)
    assert f"{GEMM} 610, 12% below the median 696.4 of 20 nodes of its model" in found.text
    assert [one.node for one in site.kept] == sorted(kinds(20))
    again = site.tick().findings
    assert [one.evidence[0].digest for one in again] == [found.evidence[0].digest], "one fact"
    assert site.tick(timedelta(seconds=5)).findings == ()


def test_it_clears_when_a_later_test_is_halfway_back_but_not_when_unknown() -> None:
    site = Fleet(fleet({3: 610.0}))
    site.tick()
    site.kept_figures = fleet({3: 664.0})
    assert site.tick(EVERY, node_name(3)).findings != (), "half-way back is not back"
    site.kept_figures = [one for one in fleet({}) if one.node != node_name(3)]
    assert site.tick(EVERY, node_name(3)).clear_since == {}
    site.kept_figures = fleet({3: 695.0})
    assert len(site.tick(EVERY, node_name(3)).clear_since) == 1


def test_figures_measured_before_a_repair_no_longer_count() -> None:
    site = Fleet(fleet({3: 610.0}))
    site.tick()
    site.detector.forget(UNMEASURED, node_name(3), site.now)
    assert site.detector.suspects == {} and site.tick().findings == ()
    site.kept_figures = fleet({3: 610.0}, at=site.now + timedelta(minutes=1))
    assert len(site.tick().findings) == 1


def test_a_database_that_is_away_says_nothing_and_is_asked_again() -> None:
    site = Fleet(fleet({3: 610.0}))
    site.kept_figures = None
    assert site.tick(EVERY, node_name(3)) == Detections(at=site.now)
    site.kept_figures = fleet({3: 610.0})
    assert len(site.tick(timedelta(minutes=1)).findings) == 1


@pytest.mark.heavy
def test_it_is_the_first_suspect_of_a_slow_job_of_whole_steps() -> None:
    book = FleetFigures(CLUSTER, lambda _: fleet({3: 610.0}), lambda *_: None)
    senses = Senses(CLUSTER, shipped(), MemoryColumns(), fleet_figures=book)
    names = sorted(kinds(20))
    nodes = {name: SlurmNode(name=name, state=("ALLOCATED",), gpus=8, gpu_model="h100") for name in names}
    found = []
    for number in range(1, 100):
        now = START + timedelta(seconds=5 * number)
        job = SlurmJob(id="1", state="RUNNING", nodes=tuple(names[:8]))
        slurm = SlurmSnapshot(cluster=CLUSTER, taken_at=now, nodes=nodes, jobs={"1": job})
        sent = batch(number, None, job="1", ranks=8, step_s=5 if number < 60 else 7, placed=False, at=now)
        senses.take([], [sent], slurm, now)
        found += senses.tick(slurm, now, ()).findings
    slow = next(one for one in found if one.fault == "job-slow")
    assert [one.node for one in slow.affected] == [node_name(3)]
    assert f"open there: its tests, {GEMM} 610" in slow.evidence[1].text
