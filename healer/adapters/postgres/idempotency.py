"""Idempotency-Key: one row per key and caller, committed before anything is done, kept for 24 h."""

import hashlib
from collections.abc import Callable
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres.engine import translated
from healer.adapters.postgres.tables import idempotency
from healer.ports.callers import Kept, KeyInFlight, KeyReused

KEPT = timedelta(hours=24)


class PostgresIdempotency:
    """`healer.ports.callers.Idempotency`.

    The key's lock is a transaction's: when this process dies, PostgreSQL lets it go, and the next request
    with the key finds a row without an answer and does the work (again, under the same request id).
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def once(self, key: str, who: str, request: bytes, now: datetime, act: Callable[[], Kept]) -> Kept:
        with translated():
            self._remember(key, who, request, now)
            with self._engine.begin() as conn:
                if not conn.execute(
                    sa.select(sa.func.pg_try_advisory_xact_lock(_lock(key, who)))
                ).scalar_one():
                    raise KeyInFlight
                row = conn.execute(sa.select(idempotency).where(_this(key, who))).one()
                if bytes(row.request) != request:
                    raise KeyReused
                if row.status is not None:
                    return Kept(row.status, dict(row.headers), bytes(row.body))
                kept = act()
                conn.execute(
                    sa.update(idempotency)
                    .where(_this(key, who))
                    .values(status=kept.status, headers=kept.headers, body=kept.body)
                )
                return kept

    def _remember(self, key: str, who: str, request: bytes, now: datetime) -> None:
        with self._engine.begin() as conn:
            conn.execute(sa.delete(idempotency).where(_this(key, who), idempotency.c.at < now - KEPT))
            conn.execute(
                insert(idempotency)
                .values(key=key, who=who, request=request, at=now)
                .on_conflict_do_nothing(index_elements=["key", "who"])
            )


def _this(key: str, who: str) -> sa.ColumnElement[bool]:
    return sa.and_(idempotency.c.key == key, idempotency.c.who == who)


def _lock(key: str, who: str) -> int:
    digest = hashlib.sha256(f"idempotency\0{who}\0{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
