"""Who sends what, in PostgreSQL: one row per cluster, token's name and route."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, insert

from healer.adapters.postgres.engine import translated
from healer.adapters.postgres.tables import senders
from healer.model import Sender

_KEY = ("cluster", "who", "source")


class PostgresSenders:
    """`healer.ports.signal_stores.SenderBook`. Rows of tokens that send no more stay for a week:
    `retention`."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def add(self, told: Sequence[Sender]) -> None:
        if not told:
            return
        # In one order, so that two processes never wait for each other.
        rows = sorted(told, key=lambda one: (one.cluster, one.who, one.source))
        columns = list(senders.c)
        arrays = [
            sa.cast([getattr(one, column.name) for one in rows], ARRAY(column.type)) for column in columns
        ]
        fresh = sa.func.unnest(*arrays).table_valued(*(column.name for column in columns)).render_derived()
        statement = insert(senders).from_select([one.name for one in columns], sa.select(*fresh.c))
        new = statement.excluded
        once = statement.on_conflict_do_update(
            index_elements=list(_KEY),
            set_={
                "requests": senders.c.requests + new.requests,
                "bytes": senders.c.bytes + new.bytes,
                "node": new.node,
                "last_seen": sa.func.greatest(senders.c.last_seen, new.last_seen),
            },
        )
        with translated(), self._engine.begin() as conn:
            conn.execute(once)

    def senders(self, clusters: Sequence[str] | None, limit: int, *, node: str | None = None) -> list[Sender]:
        wanted = sa.select(senders).order_by(senders.c.last_seen.desc(), *(senders.c[name] for name in _KEY))
        if clusters is not None:
            wanted = wanted.where(senders.c.cluster.in_(clusters))
        if node is not None:
            wanted = wanted.where(senders.c.node == node)
        with translated(), self._engine.connect() as conn:
            return [Sender(**row._mapping) for row in conn.execute(wanted.limit(limit))]
