"""Outcomes of forecasts: hit, miss, void; a fault without a forecast is recorded."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from healer.incidents.forecast_outcomes import LOOK_BACK, settle_forecasts
from healer.model import (
    Component,
    Detections,
    Evidence,
    FaultClass,
    Finding,
    Forecast,
    ForecastOutcome,
    ForecastScore,
    Sense,
    SlurmNode,
    SlurmSnapshot,
    Trend,
)
from healer.observations import Picture
from tests.support.ledgers import CLUSTER, START, Bench, bench_of
from tests.support.loop import rules_in

pytestmark = pytest.mark.heavy

GPU = Component(cluster=CLUSTER, node="gpu0001", gpu=3)
SEEN = Trend(level=3, per_day=1, days=5, low=4, high=6)
RULE = "forecast-rows-remapped"


def finding(fault: str, where: Component, at: datetime, **fields: Any) -> Finding:
    given: dict[str, Any] = {
        "rule": fault,
        "fault": fault,
        "fault_class": FaultClass.degraded,
        "component": where,
        "at": at,
        "arrived_at": at,
        "text": fault,
        "confidence": 1.0,
        "evidence": (Evidence(digest=fault, at=at, component=where, text=fault, sense=Sense.metrics),),
    }
    return Finding(**(given | fields))


class Site:
    """A cluster of two nodes, whose samples are looked at."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.rules = bench, rules_in()
        self.picture = Picture(CLUSTER, watching_since=START)
        self.picture.sensed = Detections(at=START)
        self.show("gpu0001", "gpu0002")

    def show(self, *names: str) -> None:
        nodes = {name: SlurmNode(name=name, state=("IDLE",), gpus=8, gpu_model="h100") for name in names}
        self.picture.show(SlurmSnapshot(cluster=CLUSTER, taken_at=START, nodes=nodes, jobs={}))

    def walk(self, at: datetime, *findings: Finding) -> list[Forecast]:
        placed = [("i1", one) for one in findings if one.foreseen is not None]
        with self.bench.ledger.transaction() as tx:
            settle_forecasts(tx, self.rules, self.picture, findings, placed, at)
        with self.bench.ledger.transaction() as tx:
            return tx.forecasts(at - LOOK_BACK)

    def foretell(self, at: datetime = START, where: Component = GPU) -> Forecast:
        return self.walk(at, finding(RULE, where, at, foreseen=SEEN))[-1]


@pytest.fixture(params=["memory", "postgres"])
def site(request: pytest.FixtureRequest) -> Site:
    return Site(bench_of(request))


def days(number: float) -> datetime:
    return START + timedelta(days=number)


def test_forecast_is_stored_once_however_often_it_repeats(site: Site) -> None:
    first = site.foretell()
    assert (first.rule, first.component, first.incident) == (RULE, GPU, "i1")
    assert (first.told_at, first.until, first.seen, first.limit) == (START, days(7), SEEN, 8)
    again = site.walk(days(1), finding(RULE, GPU, days(1), foreseen=SEEN))
    assert again == [first]


def test_the_fault_it_spoke_of_makes_it_a_hit(site: Site) -> None:
    site.foretell()
    (seen,) = site.walk(days(3), finding("xid-95", GPU, days(3)))
    assert (seen.outcome, seen.ended_at) == (ForecastOutcome.hit, days(3))
    assert seen.why.startswith("xid-95 at ")


def test_a_fault_known_by_its_address_alone_is_found(site: Site) -> None:
    site.foretell()
    node = site.picture.node("gpu0001")
    node.gpus.inventory([{"index": 3, "pci": "0000:9b:00", "uuid": "GPU-1"}])
    where = Component(cluster=CLUSTER, node="gpu0001", pci="0000:9b:00")
    (seen,) = site.walk(days(3), finding("xid-95", where, days(3)))
    assert seen.outcome is ForecastOutcome.hit


@pytest.mark.parametrize(
    ("fault", "where"),
    [
        ("xid-95", Component(cluster=CLUSTER, node="gpu0002", gpu=3)),
        ("xid-95", Component(cluster=CLUSTER, node="gpu0001", gpu=4)),
        ("xid-31", GPU),
    ],
    ids=["another node", "another GPU", "another fault"],
)
def test_another_fault_or_component_does_not_fulfil_a_forecast(
    site: Site, fault: str, where: Component
) -> None:
    first = site.foretell()
    seen = site.walk(days(3), finding(fault, where, days(3)))
    assert seen[0] == first
    assert site.walk(days(8))[0].outcome is ForecastOutcome.miss


def test_fault_before_its_forecast_proves_nothing(site: Site) -> None:
    site.foretell(days(2))
    late = site.walk(days(2.1), finding("xid-95", GPU, days(1)))
    assert late[-1].outcome is ForecastOutcome.open or late[0].outcome is ForecastOutcome.open


def test_when_its_time_is_over_it_missed(site: Site) -> None:
    site.foretell()
    assert site.walk(days(6.9))[0].outcome is ForecastOutcome.open
    (seen,) = site.walk(days(7.1))
    assert (seen.outcome, seen.why) == (ForecastOutcome.miss, "its time passed without that fault")


def test_a_node_that_left_proves_nothing(site: Site) -> None:
    site.foretell()
    site.show("gpu0002")
    (seen,) = site.walk(days(2))
    assert seen.outcome is ForecastOutcome.void and "was removed from the cluster" in seen.why


def test_a_part_that_was_replaced_in_time_proves_nothing(site: Site) -> None:
    site.foretell()
    node, history = site.picture.node("gpu0001"), site.picture.history
    node.gpus.inventory([{"index": 3, "pci": "0000:9b:00", "uuid": "GPU-new"}])
    history.identify("gpu0001", "0000:9b:00", "GPU-old", days(0))
    history.identify("gpu0001", "0000:9b:00", "GPU-new", days(2))
    history.keep()
    (seen,) = site.walk(days(2.1))
    assert seen.outcome is ForecastOutcome.void and "replaced" in seen.why


def test_missed_fault_counts_once(site: Site) -> None:
    seen = site.walk(days(1), finding("xid-95", GPU, days(1)), finding("xid-48", GPU, days(1)))
    mine = [one for one in seen if one.rule == RULE]
    assert [one.outcome for one in mine] == [ForecastOutcome.unforeseen]
    assert mine[0].seen is None
    again = site.walk(days(2), finding("xid-95", GPU, days(2)))
    assert [one for one in again if one.rule == RULE] == mine


def test_without_measurements_no_forecast_was_possible(site: Site) -> None:
    site.picture.sensed = None
    assert site.walk(days(1), finding("xid-95", GPU, days(1))) == []


def test_fault_merged_into_another_is_not_counted(site: Site) -> None:
    assert site.walk(days(1), finding("xid-95", GPU, days(1), evidence_only=True)) == []


def test_precision_and_recall() -> None:
    score = ForecastScore(open=3, hits=3, misses=1, void=7, unforeseen=9)
    assert (score.precision, score.recall) == (0.75, 0.25)
    assert (ForecastScore().precision, ForecastScore().recall) == (None, None)
