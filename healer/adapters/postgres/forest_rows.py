"""Rows of the isolation forest: features, and anomaly scores of nodes."""

import zlib
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import numpy as np
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres.engine import ClusterStore, pick, read_doc, reading
from healer.adapters.postgres.tables import feature_rows, incidents, unusual_nodes
from healer.model.feature_rows import FeatureRow
from healer.model.telemetry import Unusual
from healer.ports.answers import ModelSeen
from healer.text import to_stored

FEATURES_KEPT = timedelta(days=14)


class PostgresFeatures(ClusterStore):
    """Feature rows of one cluster."""

    def put(self, row: FeatureRow) -> None:
        """Stores one row as float16: features are clipped to ±10, and half a percent is precise enough."""
        with self._engine.begin() as conn:
            # A crash may lose this row: one sample of the history.
            conn.execute(sa.text("SET LOCAL synchronous_commit = off"))
            conn.execute(
                sa.insert(feature_rows).values(
                    **pick(row, "cluster", "hardware", "load", "at"),
                    nodes=list(row.nodes),
                    features=list(row.features),
                    matrix=zlib.compress(row.matrix.astype("<f2").tobytes(), 1),
                )
            )

    def classes(self, since: datetime) -> list[tuple[str, str, int, datetime]]:
        """GPU model, load, number of rows and time of the first of each class."""
        table = feature_rows.c
        key = (table.hardware, table.load)
        counted = sa.select(*key, sa.func.count(), sa.func.min(table.at))
        counted = counted.where(table.cluster == self.cluster, table.at >= since)
        with reading(self._engine) as conn:
            rows = conn.execute(counted.group_by(*key).order_by(*key))
            return [(hardware, load, count, first) for hardware, load, count, first in rows]

    def read(self, hardware: str, load: str, since: datetime, each: int = 1) -> Iterator[FeatureRow]:
        """Each so many-th row of a class, oldest first, streamed: weeks of a large class do not fit into
        memory."""
        table = feature_rows.c
        of_class = table.cluster == self.cluster, table.hardware == hardware, table.load == load
        number = sa.func.row_number().over(order_by=(table.at, table.id)).label("number")
        rows = sa.select(feature_rows, number).where(*of_class, table.at >= since).subquery()
        query = sa.select(rows).where(rows.c.number % each == 0).order_by(rows.c.number)
        with self._engine.connect() as conn:
            for row in conn.execution_options(yield_per=20).execute(query):
                packed = np.frombuffer(zlib.decompress(row.matrix), "<f2")
                yield FeatureRow(
                    **pick(row, "cluster", "hardware", "load", "at"),
                    nodes=tuple(row.nodes),
                    features=tuple(row.features),
                    matrix=packed.reshape(len(row.nodes), len(row.features)).astype(np.float32),
                )

    def sick(self, since: datetime, now: datetime) -> dict[str, list[tuple[datetime, datetime]]]:
        """By node: the periods in which it had incidents, without those reviewed as false alarms."""
        table = incidents.c
        over = sa.or_(table.closed.is_(None), table.closed >= since - timedelta(days=1))
        real = sa.func.coalesce(table.doc["review"].astext, "") != "false_alarm"
        query = sa.select(table.node, table.doc["nodes"], table.opened, table.closed)
        query = query.where(table.cluster == self.cluster, over, real)
        found: dict[str, list[tuple[datetime, datetime]]] = {}
        with reading(self._engine) as conn:
            for node, named, opened, closed in conn.execute(query):
                for name in {*named, node} - {None}:
                    found.setdefault(name, []).append((opened, closed or now))
        return found


def forget_features(conn: sa.Connection, now: datetime) -> None:
    conn.execute(sa.delete(feature_rows).where(feature_rows.c.at < now - FEATURES_KEPT))


#: Older scores are outdated.
UNUSUAL_KEPT = timedelta(days=1)


def keep_unusual(engine: sa.Engine, nodes: Sequence[Unusual]) -> None:
    if not nodes:
        return
    rows = [pick(node, "cluster", "node", "at") | {"doc": to_stored(node)} for node in nodes]
    statement = insert(unusual_nodes)
    given = {"at": statement.excluded.at, "doc": statement.excluded.doc}
    with engine.begin() as conn:
        conn.execute(sa.text("SET LOCAL synchronous_commit = off"))
        conn.execute(
            statement.on_conflict_do_update(index_elements=["cluster", "node"], set_=given),
            sorted(rows, key=lambda row: row["node"]),
        )


def models_seen(conn: sa.Connection, cluster: str, now: datetime) -> tuple[ModelSeen, ...]:
    """The model of each class, as the latest scores show."""
    table = unusual_nodes.c
    of_model = tuple(table.doc[name].astext.label(name) for name in ("hardware", "load", "model"))
    latest = sa.func.max(table.at)
    query = sa.select(*of_model, sa.func.count().label("nodes"), latest.label("at"))
    query = query.where(table.cluster == cluster, table.at >= now - UNUSUAL_KEPT)
    rows = conn.execute(query.group_by(*of_model).order_by(latest))
    by_class = {(row.hardware, row.load): ModelSeen(**row._mapping) for row in rows}
    return tuple(model for _, model in sorted(by_class.items()))


def read_unusual(conn: sa.Connection, cluster: str, node: str, now: datetime) -> Unusual | None:
    table = unusual_nodes.c
    query = sa.select(table.doc).where(table.cluster == cluster, table.node == node)
    return read_doc(conn, query.where(table.at >= now - UNUSUAL_KEPT), Unusual)


def forget_unusual(conn: sa.Connection, now: datetime) -> None:
    conn.execute(sa.delete(unusual_nodes).where(unusual_nodes.c.at < now - UNUSUAL_KEPT))
