"""Models made anew on a real PostgreSQL: what comes into force, what is refused, and the way back."""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner, Result

from healer.adapters.postgres.forest_rows import (
    PostgresFeatures,
    PostgresModels,
    forget_unusual,
    read_unusual,
)
from healer.adapters.postgres.tables import audit_records
from healer.bootstrap.models import ModelKeeper, Process, Refits
from healer.commands.cli import build
from healer.detection.training import EVERY, train
from healer.model.trained import HEALER, FeatureRow
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


@pytest.fixture
def refits(fresh_database: sa.Engine) -> Refits:
    return Refits(fresh_database, CLUSTER)


def put(store: PostgresFeatures, rows: Sequence[FeatureRow]) -> None:
    for row in rows:
        store.put(row)


def told(engine: sa.Engine) -> list[tuple[str, str]]:
    query = sa.select(audit_records.c.actor, audit_records.c.verb).order_by(audit_records.c.id)
    with engine.connect() as conn:
        return [(row.actor, row.verb) for row in conn.execute(query)]


def test_a_class_gets_its_first_model_after_a_day_and_the_next_after_a_week(
    refits: Refits, store: PostgresFeatures, models: PostgresModels, fresh_database: sa.Engine, now: datetime
) -> None:
    assert refits.look(now) == []
    put(store, history(now - DAY / 2, now))
    (young,) = refits.look(now)
    assert young.result == "no model: its history is younger than a day"
    put(store, history(now - 2 * DAY, now - DAY / 2))
    (first,) = refits.look(now)
    (version,) = models.in_force()
    assert "(there is none yet) was put in force" in first.result
    assert version.model.id[:12] in first.result
    assert version.in_force_by == HEALER
    assert version.judged is not None
    assert version.judged.above_before is None
    (again,) = refits.look(now + timedelta(hours=1))
    assert (again.result, again.drifted) == (first.result, ())
    assert again.at > first.at
    later = now + EVERY + timedelta(hours=1)
    put(store, history(now, later, seed=2))
    (weekly,) = refits.look(later)
    assert "(7 days have passed) was put in force" in weekly.result
    assert [one.in_force_by for one in models.versions()] == [HEALER, HEALER]
    assert told(fresh_database) == [(HEALER, "model.trained"), (HEALER, "model.in_force")] * 2


def test_a_class_with_too_little_keeps_none_and_says_so(
    refits: Refits, store: PostgresFeatures, models: PostgresModels, now: datetime
) -> None:
    put(store, history(now - 2 * DAY, now)[::15])  # a step of 8 h could hit only hours that are kept aside
    (look,) = refits.look(now)
    assert look.result.startswith("no model: h100, busy: ")
    assert "200 are needed" in look.result
    assert (models.in_force(), look.tried_at) == ([], now)
    (later,) = refits.look(now + timedelta(hours=1))
    assert later.tried_at == now, "it is not read whole each hour"


def test_a_drift_makes_a_new_model_once_a_day(
    refits: Refits, store: PostgresFeatures, models: PostgresModels, now: datetime
) -> None:
    put(store, history(now - 2 * DAY, now))
    refits.look(now)
    later = now + DAY + timedelta(hours=1)
    put(store, history(now, later, seed=2, moved=6.0))
    (drifted,) = refits.look(later)
    assert [one.feature for one in drifted.drifted] == ["gpu temperature, mean"]
    assert "(gpu temperature, mean is not what it was in training)" in drifted.result
    assert drifted.tried_at == later
    (soon,) = refits.look(later + timedelta(hours=1))
    assert soon.tried_at == later
    assert len(models.versions()) == 2


def test_what_a_person_put_in_force_stands_for_a_week(
    refits: Refits, store: PostgresFeatures, models: PostgresModels, now: datetime
) -> None:
    put(store, history(now - 2 * DAY, now))
    refits.look(now)
    (version,) = models.in_force()
    models.use(version.model, by="anna", at=now, why="I know it")
    later = now + 2 * DAY
    put(store, history(now, later, seed=2, moved=6.0))
    (look,) = refits.look(later)
    assert look.drifted
    assert [one.in_force_by for one in models.in_force()] == ["anna"]
    assert len(models.versions()) == 1


def test_a_refused_model_is_kept_and_told_and_a_person_may_use_it(
    refits: Refits,
    store: PostgresFeatures,
    models: PostgresModels,
    fresh_database: sa.Engine,
    monkeypatch: pytest.MonkeyPatch,
    now: datetime,
) -> None:
    put(store, history(now - 2 * DAY, now))
    refits.look(now)
    (old,) = models.in_force()
    later = now + EVERY + timedelta(hours=1)
    put(store, history(now, later, seed=2))
    # No model does: as if the old one found more than any.
    monkeypatch.setattr("healer.detection.training.MISSES_MORE", -1.0)
    (look,) = refits.look(later)
    assert "was made and not put in force: it finds" in look.result
    assert models.in_force() == [old]
    refused = next(one for one in models.versions() if one.model.id != old.model.id)
    assert refused.judged is not None
    assert (refused.in_force_at, bool(refused.judged.refused)) == (None, True)
    models.use(refused.model, by="anna", at=later, why="the fleet was rebuilt")
    assert [one.model.id for one in models.in_force()] == [refused.model.id]
    models.use(old.model, by="anna", at=later - DAY, why="it was not")
    assert [one.model.id for one in models.in_force()] == [old.model.id], "whatever the clocks say"
    verbs = [verb for _, verb in told(fresh_database)[2:]]
    assert verbs == ["model.trained", "model.refused", "model.in_force", "model.in_force"]


def test_a_forgotten_model_cannot_be_used(models: PostgresModels, now: datetime) -> None:
    rows = history(now - DAY, now)
    with pytest.raises(KeyError):
        models.use(train(rows, len(rows), {}, now).model, by="anna", at=now, why="gone")


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


# --- the command and the process ---

Healer = Callable[..., Result]


@pytest.fixture
def env(fresh_database: sa.Engine) -> dict[str, str]:
    url = fresh_database.url.render_as_string(hide_password=False)
    return {"HEALER_DATABASE_URL": url, "HEALER_CLUSTER": CLUSTER}


@pytest.fixture
def healer(env: dict[str, str]) -> Healer:
    return lambda *arguments: CliRunner().invoke(build(), ["model", *arguments], env=env)


def test_refit_show_and_back(healer: Healer, store: PostgresFeatures, now: datetime) -> None:
    put(store, history(now - 2 * DAY, now))
    assert "was put in force" in healer("refit").output
    person = json.loads(healer("train", "--json").stdout)["models"][0]["id"]
    (in_force,) = json.loads(healer("show", "--json").stdout)["models"]
    assert in_force["id"] == person
    kept = json.loads(healer("show", "--all", "--json").stdout)["models"]
    first = next(one for one in kept if one["id"] != person)
    assert first["in_force_by"] == HEALER
    assert "not judged: a person's word" in healer("show", "--all").output
    back = healer("use", first["id"][:10], "--why", "the newer one calls rack 7 unusual")
    assert back.exit_code == 0, back.output
    shown = healer("show").output
    assert first["id"][:12] in shown
    assert person[:12] not in shown
    assert "looked at" in shown
    one = healer("show", first["id"]).output
    assert "of healthy samples above" not in one
    assert "healthy samples above" in one
    assert "there is no model 0123" in str(healer("use", "0123", "--why", "no").exception)


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
