"""The scorer of a model: what it is high for, what it names; and the own past that they look at."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from healer.detection.features import OWN_MARK, OWN_NAMES, OwnPast, against_own_past, largest
from healer.detection.scorers import Model, Residual, unusual_of
from healer.detection.training import train
from healer.model.feature_rows import FeatureRow
from healer.observations.groups import Groups
from tests.support.feature_history import FEATURES, NODES, history
from tests.support.measured import CLUSTER

pytestmark = pytest.mark.heavy

NOWHERE = Groups(np.full(8, -1, np.int32))
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def rows() -> list[FeatureRow]:
    """The second feature follows the first: that is their usual relation."""
    found = history(NOW - timedelta(days=2), NOW)
    for row in found:
        row.matrix[:, 1] = row.matrix[:, 0] + 0.02 * row.matrix[:, 11]
    return found


@pytest.fixture(scope="module")
def fitted(rows: list[FeatureRow]) -> Model:
    return train(rows, len(rows), {})


def scored(fitted: Model, row: FeatureRow, odd: dict[int, float], node: int = 7) -> float:
    """In units of the threshold."""
    matrix = row.matrix.copy()
    for column, moved in odd.items():
        matrix[node, column] += moved
    unusual = unusual_of(fitted, FeatureRow(CLUSTER, "h100", "busy", row.at, NODES, FEATURES, matrix))
    assert [one.node for one in unusual] == list(NODES)
    (way,) = unusual[node].ways
    return way.score / way.threshold


def test_one_feature_far_off_passes_the_threshold(fitted: Model, rows: list[FeatureRow]) -> None:
    assert scored(fitted, rows[-1], {}) < 1 < scored(fitted, rows[-1], {4: 12.0})


def test_a_broken_relation_is_seen_although_each_feature_is_usual(
    fitted: Model, rows: list[FeatureRow]
) -> None:
    """Both features stay where other nodes have them."""
    row = rows[-1]
    node = int(np.argmin(np.abs(row.matrix[:, 0])))
    assert scored(fitted, row, {0: 2.0, 1: -2.0}, node) > 1
    assert scored(fitted, row, {0: 2.0, 1: 2.0}, node) < 1


def test_most_deviating_feature_is_named_first(fitted: Model, rows: list[FeatureRow]) -> None:
    matrix = rows[-1].matrix.copy()
    matrix[7, 4] += 12
    unusual = unusual_of(fitted, FeatureRow(CLUSTER, "h100", "busy", NOW, NODES, FEATURES, matrix))[7]
    (way,) = unusual.ways
    assert way.parts[0].feature == FEATURES[4]
    assert way.parts[0].away == pytest.approx(float(matrix[7, 4]), abs=1e-3)
    assert 0.2 < sum(part.share for part in way.parts) <= 1.001
    assert (unusual.scored, unusual.model, unusual.load) == (24, fitted.id, "busy")


def test_sizes_know_no_sign_and_fewer_features_than_are_asked_for_are_0() -> None:
    data = np.random.default_rng(3).normal(size=(400, 2)).astype(np.float32)
    residual = Residual(data - data.mean(axis=0), np.arange(2))
    found = residual.sizes(np.array([[3.0, 1.0], [-3.0, -1.0], [0.0, 0.0]], np.float32))
    assert found.shape == (3, 6)
    assert found[0] == pytest.approx(found[1], abs=1e-5)
    assert found[0, 0] > found[2, 0] == pytest.approx(0, abs=1e-5)
    assert found[0, 1] >= found[0, 2] > found[0, 3] == 0


def test_a_node_of_which_most_is_unknown_has_no_score(fitted: Model, rows: list[FeatureRow]) -> None:
    matrix = rows[-1].matrix.copy()
    matrix[3, :9] = np.nan
    unusual = unusual_of(fitted, FeatureRow(CLUSTER, "h100", "busy", NOW, NODES, FEATURES, matrix))
    assert NODES[3] not in {one.node for one in unusual}
    assert len(unusual) == len(NODES) - 1


def test_shares_add_up_and_of_nothing_there_are_none() -> None:
    data = np.random.default_rng(3).normal(size=(400, 2)).astype(np.float32)
    residual = Residual(data - data.mean(axis=0), np.arange(2))
    (something,) = residual.shares(np.array([[3.0, 1.0]], np.float32))
    assert something.sum() == pytest.approx(1)
    assert largest(something) == [0, 1]
    assert largest(np.zeros(2)) == []


# --- the own past


def test_a_nature_is_taken_off_and_so_is_what_peers_share() -> None:
    nature = np.random.default_rng(1).normal(size=(16, len(OWN_NAMES))).astype(np.float32)
    peers = Groups(np.array([0, 1] * 8, np.int32), ["job 1", "job 2"])
    racks = Groups(np.repeat(range(4), 4).astype(np.int32), [f"rack {number}" for number in range(4)])
    now = nature.copy()
    now[::2] += 0.7  # all of one job: other peers, another middle
    now[:4] += 1.1  # all of one rack: warmer air
    now[5, 2] += 3.0
    found = against_own_past(now, nature, peers, racks)
    assert found[5, 2] == pytest.approx(3.0, abs=1e-5)
    found[5, 2] = 0
    assert found == pytest.approx(np.zeros_like(nature), abs=1e-5)
    apart = against_own_past(now, nature, peers, Groups(np.full(16, -1, np.int32)))
    assert apart[0] == pytest.approx(np.full(len(OWN_NAMES), 1.1), abs=1e-5), "no rack is known"


def test_without_a_past_nothing_is_said() -> None:
    now = np.ones((8, len(OWN_NAMES)), np.float32)
    usual = now.copy()
    usual[:6] = np.nan
    peers = Groups(np.zeros(8, np.int32), ["job 1"])
    assert np.isnan(against_own_past(now, usual, peers, NOWHERE)).all(), "two known pasts are no peers"
    usual[:3] = 1
    found = against_own_past(now, usual, peers, NOWHERE)
    assert np.isnan(found[3:6]).all()
    assert found[:3] == pytest.approx(0)


def test_a_node_without_a_past_is_neither_usual_nor_unusual(rows: list[FeatureRow]) -> None:
    """It was repaired: for hours nothing is known of where it lies now."""
    names = (*FEATURES, *(name + OWN_MARK for name in OWN_NAMES[:20]))
    wide = [
        FeatureRow(CLUSTER, "h100", "busy", row.at, NODES, names, np.pad(row.matrix, ((0, 0), (0, 20))))
        for row in rows
    ]
    fitted = train(wide, len(wide), {})
    wide[-1].matrix[5, len(FEATURES) :] = np.nan
    assert {one.node for one in unusual_of(fitted, wide[-1])} == {*NODES} - {NODES[5]}


def test_smoothing_follows_slowly_and_can_be_reset() -> None:
    own, step = OwnPast(1), np.array([[1.0], [np.nan]], np.float32)
    assert own.sample(0 * step)[0, 0] == 0
    for _ in range(29):
        own.sample(0 * step)
    found = [float(own.sample(step)[0, 0]) for _ in range(30)]
    assert found[14] == pytest.approx(1 - np.exp(-1), abs=0.02)
    assert np.isnan(own.sample(np.full((2, 1), np.nan, np.float32))).all()
    assert own.sample(5 * step)[0, 0] == 5, "what was unknown has no past"
    own.sample(np.ones((3, 1), np.float32))
    own.forget(np.array([0, 7]))
    assert own.sample(np.full((3, 1), 9, np.float32)).ravel().tolist()[0] == 9
