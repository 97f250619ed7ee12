"""Models made again on a real PostgreSQL: when, and by whom."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from healer.adapters.postgres.forest_rows import (
    PostgresFeatures,
    PostgresModels,
    forget_unusual,
    read_unusual,
)
from healer.adapters.postgres.tables import audit_records
from healer.bootstrap.models import EVERY, ModelKeeper, Process, train_due
from healer.detection.training import train
from healer.model.trained import HEALER, ClassCheck, FeatureRow
from tests.support.feature_history import history
from tests.support.measured import CLUSTER
from tests.support.wait import wait_until

DAY = timedelta(days=1)


@pytest.fixture
def now() -> datetime:
    """Commands look at the clock."""
    return datetime.now(UTC)


@pytest.fixture
def store(fresh_database: sa.Engine) -> PostgresFeatures:
    return PostgresFeatures(fresh_database, CLUSTER)


@pytest.fixture
def models(fresh_database: sa.Engine) -> PostgresModels:
    return PostgresModels(fresh_database, CLUSTER)


def put(store: PostgresFeatures, rows: Sequence[FeatureRow]) -> None:
    for row in rows:
        store.put(row)


def told(engine: sa.Engine) -> list[tuple[str, str]]:
    query = sa.select(audit_records.c.actor, audit_records.c.verb).order_by(audit_records.c.id)
    with engine.connect() as conn:
        return [(row.actor, row.verb) for row in conn.execute(query)]


def test_a_class_gets_its_first_model_after_a_day_and_one_each_day(
    store: PostgresFeatures, models: PostgresModels, fresh_database: sa.Engine, now: datetime
) -> None:
    def look(at: datetime) -> ClassCheck:
        (found,) = train_due(models, store, at)
        assert models.looks() == [found]
        return found

    assert train_due(models, store, now) == []
    put(store, history(now - DAY / 2, now))
    assert look(now).result == "no model: its history is younger than a day"
    put(store, history(now - 2 * DAY, now - DAY / 2))
    first = look(now)
    (version,) = models.in_force()
    assert first.result == f"model {version.model.id[:12]} was put in force"
    assert version.in_force_by == HEALER
    again = look(now + timedelta(hours=1))
    assert (again.result, again.tried_at) == (first.result, now)
    assert again.at > first.at
    put(store, history(now, now + EVERY, seed=2))
    assert look(now + EVERY).tried_at == now + EVERY
    assert models.in_force()[0].model.id != version.model.id
    assert told(fresh_database) == [(HEALER, "model.in_force")] * 2


def test_a_class_with_too_little_keeps_none_and_says_so(
    store: PostgresFeatures, models: PostgresModels, now: datetime
) -> None:
    put(store, history(now - 2 * DAY, now)[::15])
    (look,) = train_due(models, store, now)
    assert look.result.startswith("no model: h100, busy: ")
    assert "200 are needed" in look.result
    assert (models.in_force(), look.tried_at) == ([], now)
    (later,) = train_due(models, store, now + timedelta(hours=1))
    assert later.tried_at == now, "it is not read whole each hour"


def test_a_person_has_one_made_at_once_and_it_stands_for_a_day(
    store: PostgresFeatures, models: PostgresModels, now: datetime
) -> None:
    put(store, history(now - DAY / 2, now))
    train_due(models, store, now, by="anna")
    assert [one.in_force_by for one in models.in_force()] == ["anna"]
    put(store, history(now, now + DAY, seed=2))
    train_due(models, store, now + EVERY - timedelta(hours=1))
    assert [one.in_force_by for one in models.in_force()] == ["anna"]
    train_due(models, store, now + EVERY)
    assert [one.in_force_by for one in models.in_force()] == [HEALER]


def test_the_detector_keeps_how_unusual_each_node_is(
    fresh_database: sa.Engine, models: PostgresModels, now: datetime
) -> None:
    rows = history(now - DAY, now)
    models.save(train(rows, len(rows), {}, now), by="anna", at=now)
    keeper = ModelKeeper(fresh_database, CLUSTER)
    forest = keeper.forest()
    keeper._look()
    rows[-1].matrix[7, 4] += 9
    forest._keep(rows[-1])
    keeper._store()
    with fresh_database.connect() as conn:
        found = read_unusual(conn, CLUSTER, "gpu0007", now)
        assert read_unusual(conn, CLUSTER, "gpu0007", now + 2 * DAY) is None
        assert read_unusual(conn, "other", "gpu0007", now) is None
    assert found is not None
    assert [one.way for one in found.ways] == ["forest"]
    assert found.at == rows[-1].at
    forest._keep(rows[-2])
    keeper._store()
    with fresh_database.begin() as conn:
        newest = read_unusual(conn, CLUSTER, "gpu0007", now)
        forget_unusual(conn, now + 2 * DAY)
        assert read_unusual(conn, CLUSTER, "gpu0007", now) is None
    assert newest is not None
    assert newest.at == rows[-2].at


@pytest.fixture
def env(fresh_database: sa.Engine) -> dict[str, str]:
    url = fresh_database.url.render_as_string(hide_password=False)
    return {"HEALER_DATABASE_URL": url, "HEALER_CLUSTER": CLUSTER}


def test_the_process_of_the_scheduler_does_it_and_says_what_is_wrong(
    env: dict[str, str],
    store: PostgresFeatures,
    models: PostgresModels,
    monkeypatch: pytest.MonkeyPatch,
    now: datetime,
) -> None:
    put(store, history(now - 2 * DAY, now))
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    process = Process(CLUSTER)
    wait_until(lambda: process.problem() is not None, timeout_s=60)
    assert process.problem() == ""
    process.stop()
    assert [one.in_force_by for one in models.in_force()] == [HEALER]
    monkeypatch.setenv("HEALER_CLUSTER", "other")
    wrong = Process(CLUSTER)
    wait_until(lambda: wrong.problem() is not None, timeout_s=60)
    assert "not pod1" in (wrong.problem() or "")
    wrong.stop()
