"""Feature history on a real PostgreSQL, and the models that the detector makes of it."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import sqlalchemy as sa

from healer.adapters.postgres import forest_rows
from healer.adapters.postgres.forest_rows import (
    PostgresFeatures,
    forget_unusual,
    models_seen,
    read_unusual,
)
from healer.adapters.postgres.tables import incidents
from healer.bootstrap import models
from healer.bootstrap.models import EVERY, ModelKeeper
from healer.detection.features import ALL_NAMES
from healer.model import Review, Verdict
from healer.model.feature_rows import FeatureRow
from healer.text import to_stored
from tests.support import feature_history
from tests.support.ledgers import incident
from tests.support.measured import CLUSTER
from tests.support.unusual import Fleet
from tests.support.wait import wait_until

DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def history() -> list[FeatureRow]:
    """Some minutes of 24 nodes, ending now: the keeper looks at the clock."""
    fleet = Fleet()
    fleet.run(15)
    behind = datetime.now(fleet.now.tzinfo) - fleet.now
    return [moved_to(row, row.at + behind) for row in fleet.rows]


def moved_to(row: FeatureRow, at: datetime) -> FeatureRow:
    return FeatureRow(row.cluster, row.hardware, row.load, at, row.nodes, row.features, row.matrix)


@pytest.fixture
def features(fresh_database: sa.Engine, history: list[FeatureRow]) -> PostgresFeatures:
    store = PostgresFeatures(fresh_database, CLUSTER)
    for row in history:
        store.put(row)
    return store


def test_rows_come_back_as_they_were_put_and_in_their_order(
    features: PostgresFeatures, history: list[FeatureRow]
) -> None:
    begin = history[0].at
    assert features.classes(begin) == [("h100", "busy", len(history), begin)]
    back = list(features.read("h100", "busy", begin))
    assert [row.at for row in back] == [row.at for row in history]
    assert (back[3].nodes, back[3].features) == (history[3].nodes, ALL_NAMES)
    assert np.array_equal(np.isnan(back[3].matrix), np.isnan(history[3].matrix))
    assert np.nanmax(np.abs(back[3].matrix - history[3].matrix)) < 0.005
    assert [row.at for row in features.read("h100", "busy", begin, 3)] == [row.at for row in history[2::3]]
    assert list(features.read("h100", "idle", begin)) == []
    assert list(features.read("h100", "busy", history[-1].at + timedelta(seconds=1))) == []


def test_history_is_dropped_after_two_weeks(features: PostgresFeatures, history: list[FeatureRow]) -> None:
    edge = history[5].at + forest_rows.FEATURES_KEPT
    with features._engine.begin() as conn:
        forest_rows.forget_features(conn, edge)
    assert [row.at for row in features.read("h100", "busy", history[0].at)] == [row.at for row in history[5:]]


def test_sick_intervals_of_each_node_are_read_from_its_incidents(
    features: PostgresFeatures, history: list[FeatureRow]
) -> None:
    now = history[-1].at
    hour = timedelta(hours=1)
    episodes = [
        incident(1, nodes={"gpu0001": Verdict.suspect, "gpu0002": Verdict.suspect}, opened=now - hour),
        incident(2, nodes={"gpu0003": Verdict.isolate}, opened=now - 3 * hour, closed=now - 2 * hour),
        incident(3, nodes={"gpu0004": Verdict.watch}, opened=now - hour, review=Review.false_alarm),
        incident(4, nodes={}, opened=now - 90 * 24 * hour, closed=now - 80 * 24 * hour),
        incident(5, nodes={}, opened=now - hour, cluster="other"),
    ]
    with features._engine.begin() as conn:
        for one in episodes:
            conn.execute(
                sa.insert(incidents).values(
                    id=one.id,
                    cluster=one.cluster,
                    rule=one.rule,
                    state=one.state,
                    severity=one.severity,
                    node={2: None, 4: "gpu0009", 5: "gpu0008"}.get(episodes.index(one) + 1, "gpu0005"),
                    opened=one.opened,
                    updated=one.updated,
                    closed=one.closed,
                    doc=to_stored(one),
                )
            )
    open_still = [(now - hour, now)]
    assert features.sick(now - 7 * 24 * hour, now) == {
        "gpu0001": open_still,
        "gpu0002": open_still,
        "gpu0005": open_still,
        "gpu0003": [(now - 3 * hour, now - 2 * hour)],
    }


# --- models


@pytest.fixture
def now() -> datetime:
    return datetime.now(UTC)


def put(engine: sa.Engine, begin: datetime, until: datetime, *, seed: int = 1) -> list[FeatureRow]:
    rows, store = feature_history.history(begin, until, seed=seed), PostgresFeatures(engine, CLUSTER)
    for row in rows:
        store.put(row)
    return rows


def names(keeper: ModelKeeper) -> list[str]:
    return [model.id for model in keeper.forest()._models()]


def test_a_class_gets_its_first_model_after_a_day_and_one_each_day(
    fresh_database: sa.Engine, now: datetime
) -> None:
    keeper = ModelKeeper(fresh_database, CLUSTER)
    put(fresh_database, now - DAY / 2, now)
    keeper.train_due(now)
    assert names(keeper) == []
    put(fresh_database, now - 2 * DAY, now - DAY / 2)
    keeper.train_due(now + timedelta(minutes=59))
    assert names(keeper) == [], "it was looked within the hour"
    begun = now + timedelta(hours=1)
    keeper.train_due(begun)
    (first,) = names(keeper)
    put(fresh_database, now, now + EVERY, seed=2)
    keeper.train_due(begun + EVERY - timedelta(hours=1))
    assert names(keeper) == [first]
    keeper.train_due(begun + EVERY)
    (second,) = names(keeper)
    assert second != first
    after_restart = ModelKeeper(fresh_database, CLUSTER)
    after_restart.train_due(begun + EVERY)
    assert names(after_restart) == [second], "made again of the same history"


def test_old_model_stays_when_no_new_one_can_be_trained(
    fresh_database: sa.Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = ModelKeeper(fresh_database, CLUSTER)
    put(fresh_database, now - 2 * DAY, now)
    keeper.train_due(now)
    (first,) = names(keeper)
    monkeypatch.setattr("healer.detection.training.FOUND_LEAST", 1.1)
    keeper.train_due(now + EVERY)
    assert names(keeper) == [first]
    fresh = ModelKeeper(fresh_database, CLUSTER)
    fresh.train_due(now)
    assert names(fresh) == []


def test_of_a_long_history_so_many_moments_are_read(
    fresh_database: sa.Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(fresh_database, now - 2 * DAY, now)
    monkeypatch.setattr(models, "MOMENTS_MOST", 40)
    taken: list[tuple[int, int]] = []

    def train(history, moments, sick):
        taken.append((moments, len(list(history))))
        raise models.NoModel("enough seen")

    monkeypatch.setattr(models, "train", train)
    ModelKeeper(fresh_database, CLUSTER).train_due(now)
    assert taken == [(32, 32)]


def test_the_detector_keeps_how_unusual_each_node_is(fresh_database: sa.Engine, now: datetime) -> None:
    rows = put(fresh_database, now - 2 * DAY, now)
    keeper = ModelKeeper(fresh_database, CLUSTER)
    keeper.train_due(now)
    forest = keeper.forest()
    rows[-1].matrix[7, 4] += 9
    forest._keep(rows[-1])
    keeper.store()
    with fresh_database.connect() as conn:
        found = read_unusual(conn, CLUSTER, "gpu0007", now)
        assert read_unusual(conn, CLUSTER, "gpu0007", now + 2 * DAY) is None
        assert read_unusual(conn, "other", "gpu0007", now) is None
        (seen,) = models_seen(conn, CLUSTER, now)
        assert models_seen(conn, CLUSTER, now + 2 * DAY) == ()
    assert (seen.hardware, seen.load, seen.model) == ("h100", "busy", names(keeper)[0])
    assert (seen.nodes, seen.at) == (24, rows[-1].at)
    assert found is not None
    assert [one.way for one in found.ways] == ["forest"]
    assert found.at == rows[-1].at
    forest._keep(rows[-2])
    keeper.store()
    with fresh_database.begin() as conn:
        newest = read_unusual(conn, CLUSTER, "gpu0007", now)
        forget_unusual(conn, now + 2 * DAY)
        assert read_unusual(conn, CLUSTER, "gpu0007", now) is None
    assert newest is not None
    assert newest.at == rows[-2].at


@pytest.fixture
def keeper(fresh_database: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelKeeper]:
    monkeypatch.setattr(models, "LOOK_S", 0.05)
    monkeypatch.setattr(models, "CHECK", timedelta(0))
    monkeypatch.setattr(models, "FIRST_AFTER", timedelta(0))
    monkeypatch.setattr(models, "EVERY", timedelta(0))
    made, stopped = ModelKeeper(fresh_database, CLUSTER), threading.Event()
    thread = threading.Thread(target=made.run, args=(stopped,))
    thread.start()
    yield made
    stopped.set()
    thread.join(10)


def test_the_thread_writes_history_and_makes_a_model_of_it(
    keeper: ModelKeeper, fresh_database: sa.Engine, history: list[FeatureRow]
) -> None:
    forest = keeper.forest()
    for row in history[:3]:
        forest._keep(row)  # as its tick does
    store = PostgresFeatures(fresh_database, CLUSTER)
    wait_until(lambda: [row[:3] for row in store.classes(history[0].at)] == [("h100", "busy", 3)])
    assert list(forest._models()) == []
    for row in history[3:]:
        forest._keep(row)
    wait_until(lambda: len(forest._models()) == 1)
