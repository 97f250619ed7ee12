"""A disk that is nearly full: samples go first, and nothing that a window asks for, nor any event."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from healer.adapters.postgres.engine import earlier_clock
from healer.adapters.postgres.inbox import PostgresSignals
from healer.adapters.postgres.retention import LOW_SHARE, free_share, tidy
from healer.adapters.postgres.samples import PostgresSamples
from healer.embedded.postgres import Postgres
from healer.model import Component, Observation, ObservationKind
from healer.model.gate import CLOCKS_DIFFER
from healer.model.telemetry import Report
from healer.ports.signal_stores import Arrival

AGES_MIN = (1, 8, 14, 31, 44, 52)


@pytest.fixture
def filled(fresh_database: sa.Engine) -> Iterator[sa.Engine]:
    now = datetime.now(UTC)
    store, signals = PostgresSamples(fresh_database, "pod1"), PostgresSignals(fresh_database)
    for age in AGES_MIN:
        at = now - timedelta(minutes=age)
        columns, values = np.array([1], np.int32), np.array([float(age)])
        store.put([Report("pod1", "gpu0001", at, at, columns, values)])
        event = Observation(
            digest=f"{age:064x}",
            kind=ObservationKind.xid,
            component=Component(cluster="pod1", node="gpu0001"),
            event_at=at,
            arrived_at=at,
        )
        signals.store([Arrival(event)])
    store.close()
    signals.close()
    yield fresh_database


def ages(engine: sa.Engine) -> list[int]:
    asked = (
        "SELECT round(extract(epoch FROM now() - arrived_at) / 60)::int FROM samples ORDER BY arrived_at DESC"
    )
    with engine.connect() as conn:
        return list(conn.execute(sa.text(asked)).scalars())


def test_a_clock_that_is_years_ahead_makes_nothing_old(filled: sa.Engine) -> None:
    now = datetime.now(UTC)
    assert now <= earlier_clock(filled, now + timedelta(days=4000)) <= datetime.now(UTC) + CLOCKS_DIFFER
    assert earlier_clock(filled, now - timedelta(days=1)) == now - timedelta(days=1)


@pytest.mark.parametrize("free", [None, LOW_SHARE, 0.9])
def test_with_room_samples_stay_for_an_hour(filled: sa.Engine, free: float | None) -> None:
    tidy(filled, datetime.now(UTC), free=free)
    assert len(ages(filled)) == len(AGES_MIN)


def test_what_cannot_be_deleted_stops_nothing_else(filled: sa.Engine) -> None:
    """A table that takes longer to search than a statement may is one for good: nothing after it was
    deleted, and the samples, which came last, filled the disk."""
    with filled.begin() as conn:
        conn.execute(sa.text("ALTER TABLE raised_alarms RENAME TO elsewhere"))
        long_ago = "now() - interval '9 days'"
        of_sender = f"'pod1', 'hooks', 'x', 'y', 1, {long_ago}, {long_ago}, '\"z\"'"
        conn.exec_driver_sql(f"INSERT INTO losses VALUES ({of_sender})")
    with pytest.raises(DBAPIError, match="raised_alarms"):
        tidy(filled, datetime.now(UTC), free=LOW_SHARE / 2)
    assert len(ages(filled)) < len(AGES_MIN)
    with filled.connect() as conn:
        assert conn.scalar(sa.text("SELECT count(*) FROM losses")) == 0


def test_without_room_what_windows_ask_for_stays(filled: sa.Engine) -> None:
    tidy(filled, datetime.now(UTC), free=LOW_SHARE / 2)
    left = ages(filled)
    assert len(left) in {3, 4} and {1, 8, 14} <= {round(age) for age in left}, left
    with filled.connect() as conn:
        assert conn.execute(sa.text("SELECT count(*) FROM inbox")).scalar() == len(AGES_MIN)


@pytest.mark.parametrize("role", ["healer_scheduler", "healer_api"])
def test_the_room_of_a_server_on_this_machine_is_known_to_who_tidies_and_who_tells(
    fresh_database: sa.Engine, role: str
) -> None:
    engine = sa.create_engine(fresh_database.url.set(username=role))
    free = free_share(engine)
    engine.dispose()
    assert free is not None and 0 <= free <= 1


def test_the_room_is_not_known_to_a_role_that_may_not_know_the_folder(
    fresh_database: sa.Engine, postgres: Postgres
) -> None:
    before = postgres.log.read_text()
    assert free_share(fresh_database) is None
    assert "permission denied" not in postgres.log.read_text().removeprefix(before)
