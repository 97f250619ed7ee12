"""What arrives and has no place: counted by name, so that a site sees what its exporters send in vain."""

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres.engine import storable, translated
from healer.adapters.postgres.tables import unknown_series
from healer.model import UnknownSeries

#: Names that are kept of one cluster; what is more is counted under `REST`.
MOST = 2000
REST = "…"

#: Advisory lock, with the cluster's hash: the bound is exact with several processes too.
_LOCK = 0x756E6B6E


class PostgresUnknownSeries:
    """`healer.ports.signal_stores.UnknownBook`."""

    def __init__(self, engine: sa.Engine, *, most: int = MOST) -> None:
        self._engine, self._most = engine, most

    def add(self, series: Sequence[UnknownSeries]) -> None:
        clusters = sorted({one.cluster for one in series})
        with translated(), self._engine.begin() as conn:
            for cluster in clusters:
                lock = sa.text("SELECT pg_advisory_xact_lock(:kind, hashtext(:cluster))")
                conn.execute(lock, {"kind": _LOCK, "cluster": cluster})
                names = sa.select(unknown_series.c.name).where(unknown_series.c.cluster == cluster)
                known = set(conn.execute(names).scalars())
                for row in _bounded([one for one in series if one.cluster == cluster], known, self._most):
                    _add(conn, row)

    def series(self, clusters: Sequence[str] | None, limit: int) -> list[UnknownSeries]:
        """The most frequent first; None: of all clusters."""
        wanted = sa.select(unknown_series).order_by(
            unknown_series.c.count.desc(), unknown_series.c.cluster, unknown_series.c.name
        )
        if clusters is not None:
            wanted = wanted.where(unknown_series.c.cluster.in_(clusters))
        with translated(), self._engine.connect() as conn:
            return [UnknownSeries(**row._mapping) for row in conn.execute(wanted.limit(limit))]


def _bounded(series: Sequence[UnknownSeries], known: set[str], most: int) -> list[UnknownSeries]:
    """Sorted by name, as two processes must; names beyond the bound are one row."""
    kept: dict[str, UnknownSeries] = {}
    left = most - len(known - {REST})
    for one in sorted(series, key=lambda one: one.name):
        told = msgspec.structs.replace(one, name=storable(one.name))
        if told.name not in known:
            if left > 0:
                left -= 1
                known.add(told.name)
            else:
                told = msgspec.structs.replace(one, name=REST, why=f"more than {most} names", example={})
        before = kept.get(told.name)
        kept[told.name] = msgspec.structs.replace(told, count=told.count + (before.count if before else 0))
    return [kept[name] for name in sorted(kept)]


def _add(conn: sa.Connection, one: UnknownSeries) -> None:
    row = msgspec.structs.asdict(one)
    row["why"] = storable(one.why)
    row["example"] = {storable(key): storable(str(value)) for key, value in one.example.items()}
    statement = insert(unknown_series).values(**row)
    conn.execute(
        statement.on_conflict_do_update(
            index_elements=["cluster", "name"],
            set_={
                "why": statement.excluded.why,
                "count": unknown_series.c.count + statement.excluded.count,
                "last_seen": sa.func.greatest(unknown_series.c.last_seen, statement.excluded.last_seen),
                "example": statement.excluded.example,
            },
        )
    )
