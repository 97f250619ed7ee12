"""The numbers of columns: given once for all nodes and processes, and never again for anything else."""

from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from healer.adapters.postgres.engine import translated
from healer.adapters.postgres.tables import signal_columns
from healer.model import Column, Part
from healer.ports.measurements import TooManyColumns

MOST = 100_000

_FIELDS = (
    signal_columns.c.id,
    signal_columns.c.signal,
    signal_columns.c.gpu,
    signal_columns.c.link,
    signal_columns.c.port,
)


class PostgresColumns:
    """`healer.ports.measurements.ColumnBook`. What it knows it never asks again: a number keeps its meaning.

    Raises `healer.ports.request_errors.Unavailable` when the database is away.
    """

    def __init__(self, engine: sa.Engine, *, most: int = MOST) -> None:
        self._engine, self._most = engine, most
        self._ids: dict[Column, int] = {}
        self._columns: dict[int, Column] = {}
        self._last = 0

    def ids(self, columns: Sequence[Column]) -> list[int]:
        known = self._ids
        if any(one not in known for one in columns):
            self._look_up()
            new = list(dict.fromkeys(one for one in columns if one not in known))
            if new:
                self._bound(new)
                self._number(new)
        return [known[one] for one in columns]

    def columns(self, ids: Iterable[int]) -> dict[int, Column]:
        wanted = list(ids)
        if any(one not in self._columns for one in wanted):
            self._look_up()
        return {one: self._columns[one] for one in wanted if one in self._columns}

    def _look_up(self) -> None:
        """What others numbered meanwhile. Numbers become visible in their order: see `_number`."""
        with translated(), self._engine.connect() as conn:
            self._learn(conn)

    def _learn(self, conn: sa.Connection) -> None:
        fresh = sa.select(*_FIELDS).where(signal_columns.c.id > self._last).order_by(signal_columns.c.id)
        for row in conn.execute(fresh):
            column = Column(row.signal, Part(gpu=row.gpu, link=row.link, port=row.port))
            self._columns[row.id] = column
            self._ids[column] = self._last = row.id

    def _number(self, columns: Sequence[Column]) -> None:
        with translated(), self._engine.begin() as conn:
            # One at a time, so that the bound is exact and no number is visible before a smaller one.
            conn.execute(sa.text("LOCK TABLE signal_columns IN SHARE ROW EXCLUSIVE MODE"))
            self._learn(conn)
            new = [one for one in columns if one not in self._ids]
            if not new:
                return
            self._bound(new)
            rows = [
                {"signal": one.signal, "gpu": one.part.gpu, "link": one.part.link, "port": one.part.port}
                for one in new
            ]
            conn.execute(sa.insert(signal_columns), rows)
        # Only now, after the commit, are they known: what a rollback takes away must not be used.
        self._look_up()

    def _bound(self, new: Sequence[Column]) -> None:
        if len(self._ids) + len(new) > self._most:
            raise TooManyColumns(f"at most {self._most} series are told apart, and {len(self._ids)} are")
