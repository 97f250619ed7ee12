"""Forecasts with what came of them, and the trends behind them."""

from collections.abc import Mapping
from datetime import datetime

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres.engine import ledger_errors
from healer.adapters.postgres.tables import forecasts, trends
from healer.model import Forecast, ForecastOutcome, ForecastScore


def since(conn: sa.Connection, cluster: str, ended_at: datetime) -> list[Forecast]:
    """Those that are open, and those that ended at `ended_at` or later."""
    docs = conn.execute(
        sa.select(forecasts.c.doc)
        .where(
            forecasts.c.cluster == cluster,
            sa.or_(forecasts.c.ended_at.is_(None), forecasts.c.ended_at >= ended_at),
        )
        .order_by(forecasts.c.told_at, forecasts.c.id)
    )
    return [msgspec.convert(doc, Forecast) for doc in docs.scalars()]


def save(conn: sa.Connection, forecast: Forecast) -> None:
    row = {name: getattr(forecast, name) for name in ("cluster", "rule", "outcome", "told_at", "ended_at")}
    row["doc"] = msgspec.to_builtins(forecast)
    statement = insert(forecasts).values(id=forecast.id, **row)
    conn.execute(statement.on_conflict_do_update(index_elements=["id"], set_=row))


def scores(conn: sa.Connection) -> dict[str, ForecastScore]:
    """By rule, of all clusters."""
    counted = conn.execute(
        sa.select(forecasts.c.rule, forecasts.c.outcome, sa.func.count()).group_by(
            forecasts.c.rule, forecasts.c.outcome
        )
    )
    found: dict[str, dict[str, int]] = {}
    for rule, outcome, count in counted:
        found.setdefault(rule, {})[_FIELD[ForecastOutcome(outcome)]] = count
    return {rule: ForecastScore(**counts) for rule, counts in found.items()}


_FIELD = {
    ForecastOutcome.open: "open",
    ForecastOutcome.hit: "hits",
    ForecastOutcome.miss: "misses",
    ForecastOutcome.void: "void",
    ForecastOutcome.unforeseen: "unforeseen",
}


class PostgresTrends:
    """The trends of one cluster."""

    def __init__(self, engine: sa.Engine, cluster: str) -> None:
        self._engine, self._cluster = engine, cluster

    def read(self) -> dict[str, bytes]:
        with ledger_errors(), self._engine.connect() as conn:
            rows = conn.execute(
                sa.select(trends.c.rule, trends.c.packed).where(trends.c.cluster == self._cluster)
            )
            return {row.rule: bytes(row.packed) for row in rows}

    def write(self, packed: Mapping[str, bytes], now: datetime) -> None:
        if not packed:
            return
        rows = [
            {"cluster": self._cluster, "rule": rule, "saved_at": now, "packed": one}
            for rule, one in packed.items()
        ]
        statement = insert(trends).values(rows)
        given = {"saved_at": statement.excluded.saved_at, "packed": statement.excluded.packed}
        with ledger_errors(), self._engine.begin() as conn:
            conn.execute(statement.on_conflict_do_update(index_elements=["cluster", "rule"], set_=given))
