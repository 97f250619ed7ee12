"""Features of nodes: a difference to the peers, whatever the job; unknown stays unknown."""

import numpy as np
import pytest

from healer.detection.features import FEATURES, NAMES, NodeFeatures, classes, columns
from healer.rulebook.source import Source
from tests.support.unusual import GPUS, Fleet


def features_after(fleet: Fleet, minutes: float = 5) -> tuple[NodeFeatures, np.ndarray]:
    features = NodeFeatures()
    for _ in range(int(minutes * 2)):
        fleet.measure()
        features.sample(fleet.telemetry, fleet.now)
    return features, features.matrix(fleet.now)


def column(matrix: np.ndarray, name: str) -> np.ndarray:
    return matrix[:, NAMES.index(name)]


def test_node_that_differs_from_its_peers_is_an_outlier_in_that_feature_only() -> None:
    fleet = Fleet()
    fleet.odd["gpu0003"] = {"gpu_temp_c": 12.0}
    features, matrix = features_after(fleet)
    heat = column(matrix, "gpu temperature, hottest")
    assert heat[3] > 3
    assert np.abs(np.delete(heat, 3)).max() < 2
    assert np.abs(column(matrix, "SM clock, mean")).max() < 2
    own, peers = features.latest("gpu temperature, mean", 3)
    assert own == pytest.approx(72, abs=4)
    assert peers == pytest.approx(60, abs=2)


def test_deviation_shared_by_all_nodes_does_not_change_a_feature() -> None:
    fleet = Fleet()
    _, cool = features_after(fleet)
    for name in fleet.names:
        fleet.odd[name] = {"gpu_temp_c": 15.0}
    _, hot = features_after(fleet)
    for name in ("gpu temperature, mean", "gpu temperature, hottest"):
        assert np.abs(column(hot, name)).max() < np.abs(column(cool, name)).max() + 1


def test_growth_of_a_counter_counts_and_not_its_height() -> None:
    fleet = Fleet()
    fleet.replays = 1e6
    fleet.odd["gpu0005"] = {"pcie_replay_total": 10.0}
    features, matrix = features_after(fleet)
    replays = column(matrix, "PCIe replays")
    assert replays[5] > 5
    assert np.abs(np.delete(replays, 5)).max() == 0
    own, peers = features.latest("PCIe replays", 5)
    assert own == pytest.approx(10 * GPUS * 120, rel=0.01)
    assert peers == 0


def test_features_of_unmeasured_signals_and_silent_nodes_are_unknown() -> None:
    fleet = Fleet()
    features, matrix = features_after(fleet)
    assert np.isnan(column(matrix, "NVLink CRC errors")).all()
    assert np.isfinite(column(matrix, "host load")).all()
    fleet.silent.add("gpu0002")
    for _ in range(18):
        fleet.measure()
        features.sample(fleet.telemetry, fleet.now)
    matrix = features.matrix(fleet.now)
    assert np.isnan(matrix[2]).all()
    assert np.isfinite(column(matrix, "host load")[[1, 3]]).all()


def test_one_odd_sample_is_smoothed_away() -> None:
    fleet = Fleet()
    features, _ = features_after(fleet)
    fleet.odd["gpu0003"] = {"gpu_temp_c": 10.0}
    fleet.measure()
    features.sample(fleet.telemetry, fleet.now)
    once = column(features.matrix(fleet.now), "gpu temperature, mean")[3]
    assert 0 < once < 2


def test_classes_are_model_and_load_and_leave_out_what_is_neither() -> None:
    fleet = Fleet(6)
    fleet.state |= {
        "gpu0001": ("IDLE",),  # computes, and Slurm knows nothing of it
        "gpu0002": ("IDLE",),
        "gpu0003": ("ALLOCATED",),  # holds a job that does nothing
        "gpu0004": ("ALLOCATED", "DRAIN"),
    }
    for name in ("gpu0002", "gpu0003"):
        fleet.odd[name] = {"gpu_util_percent": -95.0}
    fleet.measure()
    loads = [load for _, load in classes(fleet.telemetry, fleet.now)]
    assert loads == ["busy", "", "idle", "", "", "busy"]
    assert {model for model, _ in classes(fleet.telemetry, fleet.now)} == {"h100"}


def test_every_signal_of_the_table_is_in_the_catalogue_that_ships(catalogue_names: set[str]) -> None:
    named = {signal for feature in FEATURES for signal in feature.signals}
    assert named - catalogue_names == set()
    assert len(set(NAMES)) == len(NAMES)


@pytest.fixture
def catalogue_names() -> set[str]:
    from pathlib import Path

    path = Path(__file__).parents[3] / "rules" / "signals.yaml"
    return {entry["name"] for entry in Source(path, "signals.yaml", []).items()}


def test_a_feature_that_this_version_does_not_have_is_an_error() -> None:
    with pytest.raises(KeyError, match="no such"):
        columns(["no such"])
