"""What was sent and is not stored, in PostgreSQL: one row per cluster, source, reason and sender."""

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres.engine import storable, translated
from healer.adapters.postgres.tables import losses
from healer.model import Loss, LossReason

_KEY = ("cluster", "source", "reason", "who")


class PostgresLosses:
    """`healer.ports.signal_stores.LossBook`. Bounded by who may send: all else are closed lists."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def add(self, told: Sequence[Loss]) -> None:
        rows = sorted(told, key=lambda one: (one.cluster, one.source, one.reason, one.who))
        with translated(), self._engine.begin() as conn:
            for one in rows:  # in one order, so that two processes never wait for each other
                row = msgspec.structs.asdict(one)
                row["reason"] = one.reason.value
                row["example"] = storable(one.example)[:500]
                statement = insert(losses).values(**row)
                fresh = statement.excluded
                conn.execute(
                    statement.on_conflict_do_update(
                        index_elements=list(_KEY),
                        set_={
                            "count": losses.c.count + fresh.count,
                            "last_seen": sa.func.greatest(losses.c.last_seen, fresh.last_seen),
                            "example": fresh.example,
                        },
                    )
                )

    def losses(self, clusters: Sequence[str] | None, limit: int) -> list[Loss]:
        wanted = sa.select(losses).order_by(losses.c.last_seen.desc(), *(losses.c[name] for name in _KEY))
        if clusters is not None:
            wanted = wanted.where(losses.c.cluster.in_(clusters))
        with translated(), self._engine.connect() as conn:
            rows = conn.execute(wanted.limit(limit))
            return [
                Loss(**{**row._mapping, "reason": LossReason(row.reason)})
                for row in rows
                if row.reason in LossReason.__members__
            ]
