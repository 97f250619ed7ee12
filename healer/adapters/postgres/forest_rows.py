"""Rows of the isolation forest: features, models, and anomaly scores of nodes."""

import zlib
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import numpy as np
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres.audit_rows import append
from healer.adapters.postgres.engine import ClusterStore, pick, read_doc, read_docs, upsert
from healer.adapters.postgres.tables import (
    feature_rows,
    forest_classes,
    forest_models,
    incidents,
    unusual_nodes,
)
from healer.model import AuditRecord
from healer.model.telemetry import Unusual
from healer.model.trained import ClassCheck, FeatureRow, Model, Trained, Version
from healer.text import from_stored, to_stored

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
        with self._engine.connect() as conn:
            rows = conn.execute(counted.group_by(*key).order_by(*key))
            return [(hardware, load, count, first) for hardware, load, count, first in rows]

    def read(self, hardware: str, load: str, since: datetime) -> Iterator[FeatureRow]:
        """Rows of a class, oldest first, streamed: two weeks of a large class do not fit into memory."""
        table = feature_rows.c
        of_class = table.cluster == self.cluster, table.hardware == hardware, table.load == load
        query = sa.select(feature_rows).where(*of_class, table.at >= since).order_by(table.at, table.id)
        with self._engine.connect() as conn:
            for row in conn.execution_options(yield_per=20).execute(query):
                yield _row(row)

    def sick(self, since: datetime, now: datetime) -> dict[str, list[tuple[datetime, datetime]]]:
        """By node: the periods in which it had incidents, without those reviewed as false alarms."""
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


def forget_features(conn: sa.Connection, now: datetime) -> None:
    conn.execute(sa.delete(feature_rows).where(feature_rows.c.at < now - FEATURES_KEPT))


def _row(row: sa.Row) -> FeatureRow:
    packed = np.frombuffer(zlib.decompress(row.matrix), "<f2")
    return FeatureRow(
        **pick(row, "cluster", "hardware", "load", "at"),
        nodes=tuple(row.nodes),
        features=tuple(row.features),
        matrix=packed.reshape(len(row.nodes), len(row.features)).astype(np.float32),
    )


#: Fields of a model in the audit, which describes deleted ones, too.
_AUDITED = (
    *("hardware", "load", "params", "features", "definition"),
    *("data_hash", "rows", "attested", "seen", "threshold"),
)


class PostgresModels(ClusterStore):
    """The model in force of each class of one cluster."""

    def save(self, trained: Trained, *, by: str, at: datetime, why: str = "") -> bool:
        """Puts the model in place of the one of its class, with an audit record, in one commit. Returns False
        if it is there already."""
        model, table = trained.model, forest_models.c
        doc = to_stored(model)
        values = {
            **pick(model, "id", "cluster", "hardware", "load", "trained_at"),
            "doc": doc,
            "data": zlib.compress(trained.data.astype("<f4").tobytes(), 6),
            "in_force_at": at,
            "in_force_by": by,
        }
        of_class = table.cluster == model.cluster, table.hardware == model.hardware, table.load == model.load
        lock = sa.text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")
        with self._engine.begin() as conn:
            conn.execute(lock, {"name": f"model {model.cluster}/{model.hardware}/{model.load}"})
            if conn.scalar(sa.select(table.id).where(table.id == model.id)) is not None:
                return False
            conn.execute(sa.delete(forest_models).where(*of_class))
            conn.execute(sa.insert(forest_models).values(values))
            data = {name: doc[name] for name in _AUDITED} | {"why": why}
            subject = f"model/{model.id}"
            verb = "model.in_force"
            append(
                conn,
                AuditRecord(cluster=self.cluster, at=at, actor=by, verb=verb, subject=subject, data=data),
            )
        return True

    def in_force(self) -> list[Version]:
        """By class, without training data. Of several, as older versions of healer kept them, the latest."""
        table = forest_models.c
        query = sa.select(table.doc.label("model"), table.in_force_at, table.in_force_by)
        query = query.where(table.cluster == self.cluster, table.in_force_at.is_not(None))
        query = query.order_by(table.hardware, table.load, table.in_force_at)
        with self._engine.connect() as conn:
            kept = [from_stored(row, Version) for row in conn.execute(query).mappings()]
        return list({(version.model.hardware, version.model.load): version for version in kept}.values())

    def looks(self) -> list[ClassCheck]:
        """The last training decision of each class."""
        table = forest_classes.c
        query = sa.select(table.doc).where(table.cluster == self.cluster)
        with self._engine.connect() as conn:
            return read_docs(conn, query.order_by(table.hardware, table.load), ClassCheck)

    def note(self, look: ClassCheck) -> None:
        key = pick(look, "cluster", "hardware", "load")
        with self._engine.begin() as conn:
            conn.execute(upsert(forest_classes, key, {"at": look.at, "doc": to_stored(look)}))

    def trained(self, model: Model) -> Trained:
        """The model with its training data. Raises KeyError if it was replaced."""
        with self._engine.connect() as conn:
            packed = conn.scalar(sa.select(forest_models.c.data).where(forest_models.c.id == model.id))
        if packed is None:
            raise KeyError(model.id)
        data = np.frombuffer(zlib.decompress(packed), "<f4").astype(np.float32)
        return Trained(model, data.reshape(model.rows, len(model.features)))


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


def read_unusual(conn: sa.Connection, cluster: str, node: str, now: datetime) -> Unusual | None:
    table = unusual_nodes.c
    query = sa.select(table.doc).where(table.cluster == cluster, table.node == node)
    return read_doc(conn, query.where(table.at >= now - UNUSUAL_KEPT), Unusual)


def forget_unusual(conn: sa.Connection, now: datetime) -> None:
    conn.execute(sa.delete(unusual_nodes).where(unusual_nodes.c.at < now - UNUSUAL_KEPT))
