"""Rows of the isolation forest: features, models, and anomaly scores of nodes."""

import zlib
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
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
from healer.model.trained import ClassCheck, FeatureRow, Model, ModelComparison, Trained, Version
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

    def classes(self, since: datetime) -> list[tuple[str, str, int]]:
        """GPU model, load and number of rows of each class."""
        table = feature_rows.c
        key = (table.hardware, table.load)
        counted = sa.select(*key, sa.func.count()).where(table.cluster == self.cluster, table.at >= since)
        counted = counted.group_by(*key).order_by(*key)
        with self._engine.connect() as conn:
            return [(hardware, load, count) for hardware, load, count in conn.execute(counted)]

    def read(self, hardware: str, load: str, since: datetime) -> Iterator[FeatureRow]:
        """Rows of a class, oldest first, streamed: two weeks of a large class do not fit into memory."""
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
    """Drops what is older than two weeks."""
    conn.execute(sa.delete(feature_rows).where(feature_rows.c.at < now - FEATURES_KEPT))


def _row(row: sa.Row) -> FeatureRow:
    packed = np.frombuffer(zlib.decompress(row.matrix), "<f2")
    return FeatureRow(
        **pick(row, "cluster", "hardware", "load", "at"),
        nodes=tuple(row.nodes),
        features=tuple(row.features),
        matrix=packed.reshape(len(row.nodes), len(row.features)).astype(np.float32),
    )


#: Models kept of each class: the newest ones, and those last in force. The audit describes deleted ones.
KEPT, KEPT_IN_FORCE = 10, 2
#: Fields of a model in the audit.
_AUDITED = (
    *("hardware", "load", "params", "features", "definition"),
    *("data_hash", "rows", "attested", "seen", "threshold"),
)


class PostgresModels(ClusterStore):
    """Models of one cluster."""

    def save(
        self,
        trained: Trained,
        *,
        by: str,
        at: datetime,
        why: str = "",
        judged: ModelComparison | None = None,
        against: str | None = None,
    ) -> bool:
        """Stores the model and puts it in force unless it was refused, with audit records, in one commit.
        Returns False if the model is already stored.

        `against`: the model in force that it was compared to. If another one was put in force meanwhile, the
        new model is refused."""
        model, table = trained.model, forest_models.c
        values = {
            **pick(model, "id", "cluster", "hardware", "load", "trained_at"),
            "doc": to_stored(model),
            "data": zlib.compress(trained.data.astype("<f4").tobytes(), 6),
        }
        with self._engine.begin() as conn:
            if conn.scalar(sa.select(table.id).where(table.id == model.id)) is not None:
                return False
            newest = _newest(conn, model)
            if judged is not None and not judged.refused and newest is not None and newest.id != against:
                why_not = "another model was put in force while this one was made"
                judged = msgspec.structs.replace(judged, refused=why_not)
            values["judged"] = to_stored(judged)
            conn.execute(sa.insert(forest_models).values(values))
            data = {name: values["doc"][name] for name in _AUDITED}
            _audit(conn, model, "model.trained", by, at, data | {"why": why})
            if judged is not None and judged.refused:
                _audit(conn, model, "model.refused", by, at, {"judged": values["judged"]})
            else:
                _put_in_force(conn, model, by=by, at=at, why=why, judged=values["judged"])
            _forget_models(conn, model)
        return True

    def use(self, model: Model, *, by: str, at: datetime, why: str) -> None:
        """Puts a stored model in force, an older one or a refused one. Raises KeyError if it was deleted."""
        with self._engine.begin() as conn:
            _put_in_force(conn, model, by=by, at=at, why=why)

    def in_force(self) -> list[Version]:
        """The model in force of each class, without training data."""
        was_in_force = forest_models.c.in_force_at
        oldest_first = reversed(self._versions(was_in_force.is_not(None), by=was_in_force))
        found = {(version.model.hardware, version.model.load): version for version in oldest_first}
        return [found[name] for name in sorted(found)]

    def versions(self) -> list[Version]:
        """All stored models, by class, newest first."""
        found = self._versions(by=forest_models.c.trained_at)
        return sorted(found, key=lambda version: (version.model.hardware, version.model.load))

    def find(self, start: str) -> list[Version]:
        """Models whose id begins so; at most ten."""
        table = forest_models.c
        return self._versions(table.id.startswith(start, autoescape=True), by=table.trained_at)[:10]

    def _versions(self, *where: sa.ColumnElement[bool], by: sa.ColumnElement) -> list[Version]:
        table = forest_models.c
        query = sa.select(table.doc.label("model"), table.in_force_at, table.in_force_by, table.judged).where(
            table.cluster == self.cluster, *where
        )
        with self._engine.connect() as conn:
            rows = conn.execute(query.order_by(by.desc(), table.id)).mappings()
            return [from_stored(row, Version) for row in rows]

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
        """The model with its training data. Raises KeyError if it was deleted."""
        with self._engine.connect() as conn:
            packed = conn.scalar(sa.select(forest_models.c.data).where(forest_models.c.id == model.id))
        if packed is None:
            raise KeyError(model.id)
        data = np.frombuffer(zlib.decompress(packed), "<f4").astype(np.float32)
        return Trained(model, data.reshape(model.rows, len(model.features)))


def _of_class(model: Model) -> tuple[sa.ColumnElement[bool], ...]:
    table = forest_models.c
    return table.cluster == model.cluster, table.hardware == model.hardware, table.load == model.load


def _newest(conn: sa.Connection, model: Model) -> sa.Row[Any, Any] | None:
    """`id` and `in_force_at` of the model in force of the same class, locked until the transaction ends."""
    lock = sa.text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")
    conn.execute(lock, {"name": f"model {model.cluster}/{model.hardware}/{model.load}"})
    table = forest_models.c
    newest = sa.select(table.id, table.in_force_at).where(*_of_class(model), table.in_force_at.is_not(None))
    return conn.execute(newest.order_by(table.in_force_at.desc(), table.id).limit(1)).first()


def _put_in_force(
    conn: sa.Connection,
    model: Model,
    *,
    by: str,
    at: datetime,
    why: str,
    judged: dict[str, Any] | None = None,
) -> None:
    table = forest_models.c
    before = _newest(conn, model)
    # Later than the previous model, even if the clocks of two hosts differ.
    at_least = before.in_force_at + timedelta(milliseconds=1) if before is not None else at
    done = conn.execute(
        sa.update(forest_models)
        .where(table.id == model.id)
        .values(in_force_at=max(at, at_least), in_force_by=by)
    )
    if not done.rowcount:
        raise KeyError(model.id)
    data = {"hardware": model.hardware, "load": model.load, "why": why, "judged": judged}
    data["before"] = before.id if before is not None else None
    _audit(conn, model, "model.in_force", by, at, data)


def _forget_models(conn: sa.Connection, model: Model) -> None:
    """Deletes models of the class except the newest, and those last in force, for a rollback."""
    table, of_class = forest_models.c, _of_class(model)
    newest = sa.select(table.id).where(*of_class).order_by(table.trained_at.desc()).limit(KEPT)
    used = sa.select(table.id).where(*of_class, table.in_force_at.is_not(None))
    used = used.order_by(table.in_force_at.desc()).limit(KEPT_IN_FORCE)
    conn.execute(sa.delete(forest_models).where(*of_class, table.id.not_in(newest), table.id.not_in(used)))


def _audit(conn: sa.Connection, model: Model, verb: str, by: str, at: datetime, data: dict[str, Any]) -> None:
    subject = f"model/{model.id}"
    append(conn, AuditRecord(cluster=model.cluster, at=at, actor=by, verb=verb, subject=subject, data=data))


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
