"""The isolation forest's models: stored with their data, audited."""

import zlib
from datetime import datetime

import msgspec
import numpy as np
import sqlalchemy as sa

from healer.adapters.postgres.audit import append
from healer.adapters.postgres.tables import forest_models
from healer.detection.training import Model, Trained
from healer.model import AuditRecord

#: Of each class; older ones are forgotten. The audit keeps what they were.
KEPT = 10


class PostgresModels:
    """Models of one cluster."""

    def __init__(self, engine: sa.Engine, cluster: str) -> None:
        self._engine, self.cluster = engine, cluster

    def save(self, trained: Trained, *, by: str, at: datetime) -> bool:
        """False when this very model is there already. With its audit record in one commit."""
        model, table = trained.model, forest_models.c
        values = {
            "id": model.id,
            "cluster": model.cluster,
            "hardware": model.hardware,
            "load": model.load,
            "trained_at": model.trained_at,
            "doc": msgspec.to_builtins(model),
            "data": zlib.compress(trained.data.astype("<f4").tobytes(), 6),
        }
        with self._engine.begin() as conn:
            if conn.scalar(sa.select(table.id).where(table.id == model.id)) is not None:
                return False
            conn.execute(sa.insert(forest_models).values(values))
            of_class = (
                table.cluster == model.cluster,
                table.hardware == model.hardware,
                table.load == model.load,
            )
            kept = sa.select(table.id).where(*of_class).order_by(table.trained_at.desc()).limit(KEPT)
            conn.execute(sa.delete(forest_models).where(*of_class, table.id.not_in(kept)))
            shown = msgspec.to_builtins(model)
            data = {name: shown[name] for name in ("hardware", "load", "params", "features", "definition")}
            figures = {name: shown[name] for name in ("data_hash", "rows", "attested", "seen", "threshold")}
            append(
                conn,
                AuditRecord(
                    cluster=model.cluster,
                    at=at,
                    actor=by,
                    verb="model.trained",
                    subject=f"model/{model.id}",
                    data=data | figures,
                ),
            )
        return True

    def newest(self) -> list[Model]:
        """The model in force of each class, without its data."""
        table = forest_models.c
        query = sa.select(table.doc).where(table.cluster == self.cluster).order_by(table.trained_at.desc())
        found: dict[tuple[str, str], Model] = {}
        with self._engine.connect() as conn:
            for doc in conn.scalars(query):
                model = msgspec.convert(doc, Model)
                found.setdefault((model.hardware, model.load), model)
        return [found[name] for name in sorted(found)]

    def find(self, start: str) -> list[Model]:
        """Models whose id begins so; at most ten."""
        table = forest_models.c
        query = sa.select(table.doc).where(
            table.cluster == self.cluster, table.id.startswith(start, autoescape=True)
        )
        with self._engine.connect() as conn:
            return [msgspec.convert(doc, Model) for doc in conn.scalars(query.limit(10))]

    def trained(self, model: Model) -> Trained:
        """With its data. KeyError when it has been forgotten since."""
        with self._engine.connect() as conn:
            packed = conn.scalar(sa.select(forest_models.c.data).where(forest_models.c.id == model.id))
        if packed is None:
            raise KeyError(model.id)
        data = np.frombuffer(zlib.decompress(packed), "<f4").astype(np.float32)
        return Trained(model, data.reshape(model.rows, len(model.features)))
