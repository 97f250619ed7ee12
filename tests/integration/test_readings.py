"""Counters for checks, as PostgreSQL keeps them: by series, by arrival, of a node and of a device."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import sqlalchemy as sa

from healer.adapters.postgres.sample_reads import PostgresReadings, PostgresSignalReads
from healer.adapters.postgres.samples import PostgresColumns, PostgresSamples
from healer.model import Column, Part
from healer.model.telemetry import Report
from healer.ports.transactions import LedgerAway

PORT = Part(port="mlx5_0/1")
SYMBOLS, STATE = Column("ib_symbol_error_total", PORT), Column("ib_state", PORT)


def test_counters_of_a_node_and_of_a_device_since_a_moment(fresh_database: sa.Engine) -> None:
    columns = PostgresColumns(fresh_database)
    ids = np.array(columns.ids([SYMBOLS, STATE]), np.int32)
    now = datetime.now(UTC)

    def report(subject: str, age_s: float, value: float) -> Report:
        at = now - timedelta(seconds=age_s)
        values = np.array([value, 4.0])
        return Report(cluster="pod1", node=subject, at=at, arrived_at=at, columns=ids, values=values)

    reports = [report("gpu0001", 90, 7), report("gpu0001", 30, 8), report("gpu0001", 10, np.nan)]
    PostgresSamples(fresh_database, "pod1").put([*reports, report("@leaf1", 20, 3), report("gpu0002", 20, 5)])
    readings = PostgresReadings(PostgresSignalReads(fresh_database, columns), "pod1")
    since = now - timedelta(seconds=60)
    found = readings.counters("gpu0001", since)
    assert [value for _, value in found[SYMBOLS]] == [8.0] and STATE not in found
    assert [value for _, value in readings.counters("@leaf1", since)[SYMBOLS]] == [3.0]
    assert readings.counters("gpu0009", since) == {}


def test_unavailable_database_is_reported_as_such() -> None:
    engine = sa.create_engine("postgresql+psycopg://healer@127.0.0.1:1/nothing")
    readings = PostgresReadings(PostgresSignalReads(engine, PostgresColumns(engine)), "pod1")
    with pytest.raises(LedgerAway, match="does not answer"):
        readings.counters("gpu0001", datetime.now(UTC))
