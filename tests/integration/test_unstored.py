"""What PostgreSQL's errors mean to the writer: only wrong values are the fault of the values."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa

from healer.adapters.postgres.engine import make_engine, request_errors
from healer.adapters.postgres.inbox import PostgresSignals
from healer.adapters.postgres.samples import PostgresSamples
from healer.model import Component, Observation, ObservationKind
from healer.model.telemetry import StepBatch
from healer.ports.request_errors import Unavailable, Unstorable
from healer.ports.signal_stores import Arrival
from healer.signals.step_times import step_batches

NOW = datetime(2026, 11, 20, 3, tzinfo=UTC)
BODY = b'{"job":"4711","restart":0,"samples":[{"step":5,"rank":1,"step_s":1.5,"node":"gpu0001"}]}'

Store = Callable[[], object]


def event(number: int = 1, *, at: datetime = NOW) -> Arrival:
    component = Component(cluster="pod1", node="gpu0001")
    kind = ObservationKind.xid
    return Arrival(
        Observation(digest=f"{number:064x}", kind=kind, component=component, event_at=at, arrived_at=at)
    )


def steps() -> list[StepBatch]:
    return step_batches(BODY, lambda *_: True, NOW, cluster="pod1").batches


def stores(engine: sa.Engine) -> dict[str, tuple[Store, str]]:
    """What stores, and the table that it needs."""
    signals, samples = PostgresSignals(engine), PostgresSamples(engine, "pod1")
    return {
        "events": (lambda: signals.store([event()]), "inbox"),
        "steps": (lambda: samples.put_steps(steps()), "samples"),
    }


def run(engine: sa.Engine, *statements: str) -> None:
    with engine.begin() as conn:
        for one in statements:
            conn.execute(sa.text(one))


@pytest.mark.parametrize("name", ["events", "steps"])
@pytest.mark.parametrize(
    ("breaking", "mending"),
    [
        pytest.param(
            "ALTER DATABASE {db} SET default_transaction_read_only = on",
            "ALTER DATABASE {db} RESET default_transaction_read_only",
            id="read-only",
        ),
        pytest.param(
            "ALTER TABLE {table} RENAME TO elsewhere", "ALTER TABLE elsewhere RENAME TO {table}", id="table"
        ),
        pytest.param(
            "ALTER TABLE {table} RENAME COLUMN cluster TO elsewhere",
            "ALTER TABLE {table} RENAME COLUMN elsewhere TO cluster",
            id="column",
        ),
    ],
)
def test_a_database_that_cannot_take_it_is_away(
    fresh_database: sa.Engine, name: str, breaking: str, mending: str
) -> None:
    store, table = stores(fresh_database)[name]
    names = {"db": str(fresh_database.url.database), "table": table}
    run(fresh_database, breaking.format(**names))
    fresh_database.dispose()
    for _ in range(2):
        with pytest.raises(Unavailable, match="cannot store anything"):
            store()
    run(fresh_database, "SET SESSION default_transaction_read_only = off", "COMMIT", mending.format(**names))
    fresh_database.dispose()
    store()


def test_client_without_write_permission_is_refused_and_loses_nothing(fresh_database: sa.Engine) -> None:
    login = fresh_database.url.set(username="healer_worker")
    other = sa.create_engine(login, connect_args={"options": "-c role=healer_auditor"})
    try:
        with pytest.raises(Unavailable, match="InsufficientPrivilege"):
            PostgresSignals(other).store([event()])
    finally:
        other.dispose()


def test_value_that_breaks_a_constraint_raises_unstorable(fresh_database: sa.Engine) -> None:
    run(
        fresh_database,
        "ALTER TABLE inbox ADD CONSTRAINT none_of_gpu0001 CHECK (node <> 'gpu0001')",
    )
    with pytest.raises(Unstorable, match="none_of_gpu0001"):
        PostgresSignals(fresh_database).store([event()])


def test_a_command_to_a_standby_is_refused_as_to_one_that_is_away(fresh_database: sa.Engine) -> None:
    with (
        pytest.raises(Unavailable, match="read-only"),
        request_errors(),
        fresh_database.begin() as conn,
    ):
        conn.execute(sa.text("SET TRANSACTION READ ONLY"))
        conn.execute(sa.text("DELETE FROM permits"))


def test_a_document_comes_back_as_the_database_has_it(postgres_engine: sa.Engine) -> None:
    stored = (
        '{"big": 1e400, "small": 12345678901234567890, "text": "\\u20ac \\ud83d\\ude00", "list": [0.5, null]}'
    )
    engine = make_engine(postgres_engine.url.render_as_string(hide_password=False))
    with engine.connect() as conn:
        found = conn.execute(sa.text("SELECT CAST(:told AS jsonb)"), {"told": stored}).scalar_one()
    engine.dispose()
    assert found == {
        "big": 10**400,  # beyond all floats
        "small": 12345678901234567890,
        "text": "\u20ac \U0001f600",
        "list": [0.5, None],
    }
