"""The isolation forest: trained on nodes that are attested healthy, reports what stays unusual, and why."""

import itertools
from datetime import timedelta

import numpy as np
import pytest

from healer.detection import training
from healer.detection.features import NAMES
from healer.detection.forest import KEEP_S, NODES_KEPT, UNUSUAL, Forest
from healer.detection.protocol import TickInput
from healer.detection.scorers import Model
from healer.detection.training import NoModel, healthy_samples, train
from healer.model import Component, FaultClass, Sense
from healer.model.feature_rows import FeatureRow
from healer.observations.steps import StepTimes
from healer.text import stored_json
from tests.support.measured import CLUSTER, START
from tests.support.unusual import Fleet

pytestmark = pytest.mark.heavy

HOT = {"gpu_temp_c": 12.0, "sm_clock_mhz": -250.0, "power_w": -120.0}


def where(name: str) -> Component:
    return Component(cluster=CLUSTER, node=name)


@pytest.fixture(scope="module")
def healthy() -> list[FeatureRow]:
    fleet = Fleet()
    fleet.run(15)
    return fleet.rows


@pytest.fixture(scope="module")
def trained(healthy: list[FeatureRow]) -> Model:
    return train(healthy, len(healthy), {})


@pytest.fixture
def fleet(trained: Model) -> Fleet:
    made = Fleet(seed=2)
    made.models = [trained]
    return made


# --- training ---


def test_a_model_is_of_what_was_measured(trained: Model, healthy: list[FeatureRow]) -> None:
    assert (trained.hardware, trained.load) == ("h100", "busy")
    assert "gpu power, lowest" in trained.features
    assert "NVLink CRC errors" not in trained.features
    assert 0 < trained.threshold < 1
    samples = healthy_samples(healthy, len(healthy), {})
    count = sum(len(row.nodes) for row in healthy)
    assert (len(samples.fitted), len(samples.held_out)) == (count * 2 // 3, count // 3)


def test_the_same_history_gives_the_same_model_and_scores(trained: Model, healthy: list[FeatureRow]) -> None:
    again, data = train(healthy, len(healthy), {}), healthy_samples(healthy, len(healthy), {}).fitted
    assert (again.id, again.threshold) == (trained.id, trained.threshold)
    assert again.scorer.score(data).tobytes() == trained.scorer.score(data).tobytes()
    assert train(healthy[1:], len(healthy[1:]), {}).id != trained.id


def test_samples_near_an_incident_are_left_out_of_training(healthy: list[FeatureRow]) -> None:
    begun = START + timedelta(minutes=65)
    sick = {
        "gpu0003": [(begun, begun)],
        "gpu0004": [(begun + timedelta(hours=3), begun + timedelta(hours=4))],
    }
    samples = healthy_samples(healthy, len(healthy), sick)
    before = sum(row.at < begun - training.AROUND_INCIDENT for row in healthy)
    assert 0 < before < len(healthy)
    left_out = len(healthy) - before
    assert len(samples.fitted) + len(samples.held_out) == sum(len(row.nodes) for row in healthy) - left_out


def test_too_little_history_is_refused_in_words(healthy: list[FeatureRow]) -> None:
    with pytest.raises(NoModel, match=r"^192 healthy samples; 200 are needed"):
        train(healthy[:8], len(healthy[:8]), {})
    with pytest.raises(NoModel, match=r"^0 healthy samples"):
        train([], 0, {})


def test_samples_of_which_most_is_unknown_do_not_count(healthy: list[FeatureRow]) -> None:
    gaps = [
        FeatureRow(CLUSTER, "h100", "busy", row.at, row.nodes, NAMES, np.full_like(row.matrix, np.nan))
        for row in healthy
    ]
    with pytest.raises(NoModel, match="too many features are unknown"):
        train(gaps, len(gaps), {})


def test_a_model_is_bounded_and_takes_from_all_moments(
    healthy: list[FeatureRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "ROWS_MAX", 240)
    samples = healthy_samples(healthy, len(healthy), {})
    assert 200 <= len(samples.fitted) + len(samples.held_out) <= 240


def test_history_of_an_older_version_without_some_features_is_used(
    healthy: list[FeatureRow], trained: Model
) -> None:
    short = [
        FeatureRow(CLUSTER, "h100", "busy", row.at, row.nodes, NAMES[:10], row.matrix[:, :10])
        for row in healthy
    ]
    assert set(train(short, len(short), {}).features) == set(trained.features) & set(NAMES[:10])


# --- finding ---


def test_node_unusual_for_five_minutes_is_reported_with_reasons(fleet: Fleet) -> None:
    assert fleet.run(10) == []
    fleet.odd["gpu0007"] = HOT
    begun = fleet.now
    (found,) = fleet.run(9)
    assert found.component == where("gpu0007")
    assert (found.fault, found.fault_class, found.unusable) == (UNUSUAL, FaultClass.informational, False)
    assert found.evidence[0].sense is Sense.forest
    assert fleet.models[0].id[:12] in found.evidence[0].text
    assert timedelta(minutes=5) <= found.arrived_at - found.at
    assert begun <= found.at <= begun + timedelta(minutes=3)
    assert len(found.contributions) == 5
    shares = [one.share for one in found.contributions]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) <= 1
    assert {one.feature.split(",")[0] for one in found.contributions if one.share > 0.05} <= {
        "gpu temperature",
        "SM clock",
        "gpu power",
    }
    clock = next(one for one in found.contributions if one.feature.startswith("SM clock"))
    assert clock.value == pytest.approx(1505, abs=25)
    assert clock.peers == pytest.approx(1755, abs=25)
    (chart,) = found.charts
    lines = {line.role: line.values for line in chart.lines}
    assert lines["own"][-1] > lines["threshold"][-1] > lines["peers"][-1]  # type: ignore[operator]


def test_short_trouble_and_trouble_of_all_are_no_finding(fleet: Fleet) -> None:
    fleet.run(5)
    fleet.odd["gpu0007"] = HOT
    assert fleet.run(1) == []
    fleet.odd.clear()
    assert fleet.run(8) == []
    for name in fleet.names[:6]:
        fleet.odd[name] = HOT
    assert fleet.run(10) == []


def test_end_of_anomaly_is_reported_and_silence_proves_nothing(fleet: Fleet) -> None:
    fleet.run(5)
    fleet.odd["gpu0007"] = HOT
    assert fleet.run(9)
    pair = (UNUSUAL, where("gpu0007"))
    watched = frozenset({pair, (UNUSUAL, where("gpu0008")), (UNUSUAL, where("gone"))})
    fleet.run(0.5, watched)
    assert pair not in fleet.sensed.clear_since
    assert (UNUSUAL, where("gpu0008")) in fleet.sensed.clear_since
    assert (UNUSUAL, where("gone")) not in fleet.sensed.clear_since
    fleet.silent.add("gpu0007")
    fleet.run(5, watched)  # the last measurement still counts for some minutes
    assert fleet.run(10, watched) == []
    assert pair not in fleet.sensed.clear_since
    fleet.silent.clear()
    fleet.odd.clear()
    fleet.run(5, watched)
    well = fleet.sensed.clear_since[pair]
    assert fleet.now - timedelta(minutes=5) <= well < fleet.now
    fleet.run(2, watched)
    assert fleet.sensed.clear_since[pair] == well


def test_returned_node_needs_the_full_hold_again(fleet: Fleet) -> None:
    fleet.run(5)
    fleet.odd["gpu0007"] = HOT
    (first,) = fleet.run(9)
    fleet.telemetry.forget("gpu0007", fleet.now)
    fleet.forest.forget(fleet.telemetry, "gpu0007", fleet.now)
    assert fleet.run(4.5) == []
    (again, *_) = fleet.run(8)
    assert again.component == first.component
    assert again.evidence[0].digest != first.evidence[0].digest


def test_without_a_model_of_its_class_no_node_is_unusual(fleet: Fleet) -> None:
    fleet.models = []
    fleet.odd["gpu0007"] = HOT
    assert fleet.run(12) == []


def test_a_node_of_which_most_is_unknown_is_not_scored(fleet: Fleet) -> None:
    few = list(fleet.models[0].features[:2])
    scorer = train(_only_of(fleet, few), 20, {})
    other = Fleet(seed=3)
    other.models = [scorer]
    other.odd["gpu0001"] = HOT
    other.run(4)
    assert np.isfinite(other.forest._history[-1][1]).all()
    for silent in other.names:
        other.silent.add(silent)
    other.run(12)
    assert np.isnan(other.forest._history[-1][1]).all()


def _only_of(fleet: Fleet, names: list[str]) -> list[FeatureRow]:
    fleet.run(10)
    return [_only(row, names) for row in fleet.rows]


def _only(row: FeatureRow, names: list[str]) -> FeatureRow:
    picked = [row.features.index(name) for name in names]
    return FeatureRow(
        row.cluster, row.hardware, row.load, row.at, row.nodes, tuple(names), row.matrix[:, picked]
    )


# --- history ---


def test_history_is_kept_often_at_first_and_then_every_five_minutes() -> None:
    fleet = Fleet()
    fleet.run(35)
    times = [row.at for row in fleet.rows]
    gaps = [(b - a).total_seconds() for a, b in itertools.pairwise(times)]
    assert gaps == [30.0] * 19 + [KEEP_S] * 4


def test_drained_nodes_are_no_part_of_history_and_large_classes_take_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert NODES_KEPT < 12_500
    monkeypatch.setattr("healer.detection.forest.NODES_KEPT", 10)
    fleet = Fleet()
    fleet.state["gpu0000"] = ("ALLOCATED", "DRAIN")
    fleet.run(4)
    assert [len(row.nodes) for row in fleet.rows] == [10] * 4
    assert set().union(*(row.nodes for row in fleet.rows)) == set(fleet.names[1:])


def test_the_same_samples_give_the_same_findings(trained: Model) -> None:
    outputs = []
    for _ in range(2):
        fleet = Fleet(seed=5)
        fleet.forest = Forest(lambda: [trained], lambda row: None)
        fleet.odd["gpu0002"] = HOT
        outputs.append(stored_json(fleet.run(10)))
    assert outputs[0] == outputs[1] != b"[]"


def test_other_windows_are_other_nodes(fleet: Fleet) -> None:
    fleet.odd["gpu0007"] = HOT
    fleet.run(5)
    other = Fleet(seed=9)
    other.names.reverse()
    other.at_s, other.forest = fleet.at_s, fleet.forest
    assert other.run(10) == []


def test_a_clock_that_goes_back_leaves_no_node_unwatched(fleet: Fleet) -> None:
    fleet.run(3)
    kept = len(fleet.rows)
    fleet.at_s -= 3600
    fleet.telemetry = Fleet(seed=2).telemetry
    fleet.odd["gpu0003"] = HOT
    assert [one.component for one in fleet.run(20)] == [where("gpu0003")] * 3
    assert len(fleet.rows) > kept


def test_forest_forgets_its_last_look_when_the_clock_goes_back(fleet: Fleet) -> None:
    asked = []
    forest = Forest(lambda: asked.append(1) or [], fleet.rows.append)
    fleet.run(1)
    for back_s in (0, 3600, 3590, 3570):
        forest.tick(TickInput(fleet.now - timedelta(seconds=back_s), fleet.telemetry, StepTimes(CLUSTER)))
    assert len(asked) == 3
