"""Feature history and models on a real PostgreSQL, and `healer model` as a person runs it."""

import json
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

import msgspec
import numpy as np
import pytest
import sqlalchemy as sa
from typer.testing import CliRunner, Result

from healer.adapters.postgres import forest_rows
from healer.adapters.postgres.forest_rows import PostgresFeatures, PostgresModels
from healer.adapters.postgres.tables import audit_records, forest_models, incidents
from healer.bootstrap.models import ModelKeeper
from healer.commands.cli import build
from healer.detection.features import ALL_NAMES
from healer.detection.scorers import Fitted
from healer.detection.training import train, usable
from healer.model import Review, Verdict
from healer.model.trained import FeatureRow, Params
from healer.text import to_stored
from tests.support.ledgers import incident
from tests.support.measured import CLUSTER
from tests.support.unusual import Fleet
from tests.support.wait import wait_until


@pytest.fixture(scope="module")
def history() -> list[FeatureRow]:
    """Some minutes of 24 nodes, ending now: commands look at the clock."""
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
    assert list(features.read("h100", "idle", begin)) == []
    assert list(features.read("h100", "busy", history[-1].at + timedelta(seconds=1))) == []


def test_history_is_dropped_after_two_weeks(features: PostgresFeatures, history: list[FeatureRow]) -> None:
    edge = history[5].at + forest_rows.FEATURES_KEPT
    with features._engine.begin() as conn:
        forest_rows.forget_features(conn, edge)
    assert [row.at for row in features.read("h100", "busy", history[0].at)] == [row.at for row in history[5:]]


def test_who_was_sick_when(features: PostgresFeatures, history: list[FeatureRow]) -> None:
    now = history[-1].at
    hour = timedelta(hours=1)
    told = [
        incident(1, nodes={"gpu0001": Verdict.suspect, "gpu0002": Verdict.suspect}, opened=now - hour),
        incident(2, nodes={"gpu0003": Verdict.isolate}, opened=now - 3 * hour, closed=now - 2 * hour),
        incident(3, nodes={"gpu0004": Verdict.watch}, opened=now - hour, review=Review.false_alarm),
        incident(4, nodes={}, opened=now - 90 * 24 * hour, closed=now - 80 * 24 * hour),
        incident(5, nodes={}, opened=now - hour, cluster="other"),
    ]
    with features._engine.begin() as conn:
        for one in told:
            conn.execute(
                sa.insert(incidents).values(
                    id=one.id,
                    cluster=one.cluster,
                    rule=one.rule,
                    state=one.state,
                    severity=one.severity,
                    node={2: None, 4: "gpu0009", 5: "gpu0008"}.get(told.index(one) + 1, "gpu0005"),
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


def test_a_model_comes_back_with_its_data_and_scores_the_same(
    fresh_database: sa.Engine, history: list[FeatureRow]
) -> None:
    now = history[-1].at
    store = PostgresModels(fresh_database, CLUSTER)
    made = train(history, len(history), {}, now)
    assert store.save(made, by="anna", at=now)
    assert not store.save(made, by="anna", at=now)
    ((model, version),) = [(one.model, one) for one in store.in_force()]
    assert (model, version.in_force_by) == (made.model, "anna")
    back = store.trained(model)
    assert back.data.tobytes() == made.data.tobytes()
    assert Fitted(back).score(made.data[:9]).tobytes() == Fitted(made).score(made.data[:9]).tobytes()
    assert PostgresModels(fresh_database, "other").in_force() == []
    with fresh_database.connect() as conn:
        told = conn.execute(sa.select(audit_records).order_by(audit_records.c.id)).all()
    assert [(one.actor, one.verb, one.subject) for one in told] == [
        ("anna", "model.in_force", f"model/{model.id}")
    ]
    assert told[0].data["data_hash"] == model.data_hash


def test_a_model_of_another_scorer_can_be_read_and_is_not_used(
    fresh_database: sa.Engine, history: list[FeatureRow]
) -> None:
    """Its threshold is a distance, and it names a second scorer's."""
    now, store = history[-1].at, PostgresModels(fresh_database, CLUSTER)
    made = train(history, len(history), {}, now)
    store.save(made, by="anna", at=now)
    doc = to_stored(made.model) | {"definition": "of a distance", "threshold": 1.7}
    doc["beside"] = {"forest": {"threshold": 0.6}}
    with fresh_database.begin() as conn:
        conn.execute(sa.update(forest_models).values(doc=doc))
    (kept,) = store.in_force()
    assert kept.model.threshold == 1.7
    keeper = ModelKeeper(fresh_database, CLUSTER)
    keeper._look()
    assert list(keeper.forest()._models()) == []


def test_a_model_takes_the_place_of_the_one_before(
    fresh_database: sa.Engine, history: list[FeatureRow]
) -> None:
    store, at = PostgresModels(fresh_database, CLUSTER), history[-1].at
    first, second = (train(history, len(history), {}, at, Params(seed=seed)) for seed in range(2))
    store.save(first, by="anna", at=at)
    store.save(second, by="anna", at=at - timedelta(hours=1))
    assert [one.model for one in store.in_force()] == [second.model], "whatever the clocks say"
    with pytest.raises(KeyError):
        store.trained(first.model)


def test_of_several_that_an_older_version_kept_the_latest_is_in_force(
    fresh_database: sa.Engine, history: list[FeatureRow]
) -> None:
    store, at = PostgresModels(fresh_database, CLUSTER), history[-1].at
    made = train(history, len(history), {}, at)
    store.save(made, by="anna", at=at)
    doc = {"id": "older", "cluster": CLUSTER, "hardware": "h100", "load": "busy", "trained_at": at}
    doc |= {"doc": to_stored(made.model), "data": b"", "in_force_by": "bob"}
    with fresh_database.begin() as conn:
        conn.execute(sa.insert(forest_models).values(doc | {"in_force_at": at - timedelta(days=1)}))
        conn.execute(sa.insert(forest_models).values(doc | {"id": "refused"}))
    assert [(one.model, one.in_force_by) for one in store.in_force()] == [(made.model, "anna")]


@pytest.fixture
def keeper(fresh_database: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelKeeper]:
    monkeypatch.setattr("healer.bootstrap.models.LOOK_S", 0.05)
    made, stopped = ModelKeeper(fresh_database, CLUSTER), threading.Event()
    thread = threading.Thread(target=made.run, args=(stopped,))
    thread.start()
    yield made
    stopped.set()
    thread.join(10)


def test_the_detector_writes_history_and_takes_up_a_newer_model(
    keeper: ModelKeeper, fresh_database: sa.Engine, history: list[FeatureRow]
) -> None:
    forest = keeper.forest()
    for row in history[:3]:
        forest._keep(row)  # as its tick does
    store = PostgresFeatures(fresh_database, CLUSTER)
    wait_until(lambda: [row[:3] for row in store.classes(history[0].at)] == [("h100", "busy", 3)])
    assert list(forest._models()) == []
    models = PostgresModels(fresh_database, CLUSTER)
    for seed in range(2):
        at = history[-1].at + timedelta(minutes=seed)
        one = train(history, len(history), {}, at, Params(seed=seed))
        models.save(one, by="anna", at=at)
        wait_until(lambda wanted=one: [s.model.id for s in forest._models()] == [wanted.model.id])


def test_a_model_of_other_features_is_named_once_and_not_used(
    fresh_database: sa.Engine, history: list[FeatureRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr("healer.bootstrap.models.log.warning", lambda text, **_: told.append(text))
    monkeypatch.setattr("healer.bootstrap.models.usable", lambda _: False)
    now = history[-1].at
    PostgresModels(fresh_database, CLUSTER).save(train(history, len(history), {}, now), by="anna", at=now)
    keeper = ModelKeeper(fresh_database, CLUSTER)
    for _ in range(2):
        keeper._look()
    assert told == ["a model of another version is not used: the scheduler makes a new one"]
    assert list(keeper.forest()._models()) == []


def test_a_model_made_from_other_features_is_not_used(history: list[FeatureRow]) -> None:
    model = train(history, len(history), {}, history[-1].at).model
    assert usable(model)
    assert not usable(msgspec.structs.replace(model, definition="older"))
    assert not usable(msgspec.structs.replace(model, features=("gone",)))


# --- the command ---

Healer = Callable[..., Result]


@pytest.fixture
def healer(fresh_database: sa.Engine) -> Healer:
    url = fresh_database.url.render_as_string(hide_password=False)

    def run(*arguments: str) -> Result:
        env = {"HEALER_DATABASE_URL": url, "HEALER_CLUSTER": CLUSTER}
        return CliRunner().invoke(build(), ["model", *arguments], env=env)

    return run


def test_train_and_show(healer: Healer, features: PostgresFeatures) -> None:
    assert "no model of pod1 yet" in healer("show").output
    done = json.loads(healer("train", "--json").stdout)
    (model,), (look,) = done["models"], done["classes"]
    assert look["told"] == f"model {model['id'][:12]} was put in force"
    assert model["attested"] <= model["seen"]
    assert "is in force already" in healer("train").output
    shown = json.loads(healer("show", "--json").stdout)
    assert [one["id"] for one in shown["models"]] == [model["id"]]
    assert "h100, busy: " in healer("show").output


def test_what_cannot_be_done_is_said_in_one_sentence(
    healer: Healer, fresh_database: sa.Engine, history: list[FeatureRow]
) -> None:
    none = healer("train")
    assert none.exit_code == 1
    assert "no history of pod1 in 7 days" in str(none.exception)
    store = PostgresFeatures(fresh_database, CLUSTER)
    for row in history[:2]:
        store.put(row)
    few = healer("train")
    assert few.exit_code == 1
    assert "no model: h100, busy: 48 healthy samples of 48; 200 are needed" in few.stdout
