"""The feature history that models are trained on, packed: one row per class and moment."""

import zlib
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import sqlalchemy as sa

from healer.adapters.postgres.tables import feature_rows, incidents
from healer.model.trained import FeatureRow

KEPT = timedelta(days=14)


class PostgresFeatures:
    """Feature rows of one cluster."""

    def __init__(self, engine: sa.Engine, cluster: str) -> None:
        self._engine, self.cluster = engine, cluster

    def put(self, row: FeatureRow) -> None:
        """Stores one row. Features are cut at ±10 and half a percent is enough: 2 bytes each."""
        with self._engine.begin() as conn:
            # What a power loss takes is one moment of history.
            conn.execute(sa.text("SET LOCAL synchronous_commit = off"))
            conn.execute(
                sa.insert(feature_rows).values(
                    cluster=row.cluster,
                    hardware=row.hardware,
                    load=row.load,
                    at=row.at,
                    nodes=list(row.nodes),
                    features=list(row.features),
                    matrix=zlib.compress(row.matrix.astype("<f2").tobytes(), 1),
                )
            )

    def classes(self, since: datetime) -> list[tuple[str, str, int]]:
        """GPU model, load and number of rows of each class."""
        table = feature_rows.c
        with self._engine.connect() as conn:
            rows = conn.execute(
                sa.select(table.hardware, table.load, sa.func.count())
                .where(table.cluster == self.cluster, table.at >= since)
                .group_by(table.hardware, table.load)
                .order_by(table.hardware, table.load)
            )
            return [(hardware, load, count) for hardware, load, count in rows]

    def read(self, hardware: str, load: str, since: datetime) -> Iterator[FeatureRow]:
        """Oldest first, a few at a time: two weeks of a large class do not fit into memory at once."""
        query = self._of_class(hardware, load, since).order_by(feature_rows.c.at, feature_rows.c.id)
        with self._engine.connect() as conn:
            for row in conn.execution_options(yield_per=20).execute(query):
                yield _row(row)

    def newest(self, hardware: str, load: str, since: datetime, limit: int) -> list[FeatureRow]:
        """The newest first."""
        query = self._of_class(hardware, load, since).order_by(feature_rows.c.at.desc()).limit(limit)
        with self._engine.connect() as conn:
            return [_row(row) for row in conn.execute(query)]

    def _of_class(self, hardware: str, load: str, since: datetime) -> sa.Select[Any]:
        table = feature_rows.c
        of_class = table.cluster == self.cluster, table.hardware == hardware, table.load == load
        return sa.select(feature_rows).where(*of_class, table.at >= since)

    def sick(self, since: datetime, now: datetime) -> dict[str, list[tuple[datetime, datetime]]]:
        """By node, from when to when it had incidents. Those that a person called false alarms are none."""
        table = incidents.c
        over = sa.or_(table.closed.is_(None), table.closed >= since - timedelta(days=1))
        real = sa.func.coalesce(table.doc["review"].astext, "") != "false_alarm"
        query = sa.select(table.node, table.doc["nodes"], table.opened, table.closed)
        query = query.where(table.cluster == self.cluster, over, real)
        found: dict[str, list[tuple[datetime, datetime]]] = {}
        with self._engine.connect() as conn:
            for node, named, opened, closed in conn.execute(query):
                for name in {*named, node} - {None}:
                    found.setdefault(name, []).append((opened, closed or now))
        return found


def forget(conn: sa.Connection, now: datetime) -> None:
    """Drops what is older than two weeks."""
    conn.execute(sa.delete(feature_rows).where(feature_rows.c.at < now - KEPT))


def _row(row: sa.Row) -> FeatureRow:
    packed = np.frombuffer(zlib.decompress(row.matrix), "<f2")
    return FeatureRow(
        cluster=row.cluster,
        hardware=row.hardware,
        load=row.load,
        at=row.at,
        nodes=tuple(row.nodes),
        features=tuple(row.features),
        matrix=packed.reshape(len(row.nodes), len(row.features)).astype(np.float32),
    )
