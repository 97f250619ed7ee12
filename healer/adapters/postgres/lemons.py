"""What the ledger holds of every node's last weeks, and the scores of lemons that come of it."""

from datetime import datetime

import msgspec
import sqlalchemy as sa

from healer.adapters.postgres.engine import ledger_errors
from healer.adapters.postgres.tables import incidents, lemon_scores
from healer.adapters.postgres.tables import messages as queued
from healer.incidents.past import past_of
from healer.model import Incident, LemonScore, NodeHistory, NodePast


class PostgresLemons:
    """Of one cluster."""

    def __init__(self, engine: sa.Engine, cluster: str) -> None:
        self._engine, self._cluster = engine, cluster

    def pasts(self, since: datetime, now: datetime) -> list[NodePast]:
        """Of nodes with an incident that was open at `since` or later."""
        mine = sa.select(incidents.c.id, incidents.c.node, incidents.c.doc).where(
            incidents.c.cluster == self._cluster,
            incidents.c.node.is_not(None),
            sa.or_(incidents.c.closed.is_(None), incidents.c.closed >= since),
            incidents.c.doc["merged_into"].astext.is_(None),
        )
        filed = sa.select(queued.c.incident).where(
            queued.c.kind == "ticket", queued.c.incident.in_(mine.with_only_columns(incidents.c.id))
        )
        by_node: dict[str, list[Incident]] = {}
        with ledger_errors(), self._engine.connect() as conn:
            for row in conn.execute(mine.order_by(incidents.c.opened, incidents.c.id)):
                by_node.setdefault(row.node, []).append(msgspec.convert(row.doc, Incident))
            ticketed = frozenset(conn.execute(filed).scalars())
        return [
            past_of(NodeHistory(incidents=tuple(found), ticketed=ticketed), node, now)
            for node, found in sorted(by_node.items())
        ]

    def keep(self, scores: list[LemonScore], now: datetime) -> None:
        """In place of all that were kept."""
        rows = [
            {"cluster": self._cluster, "node": one.node, "at": now, "doc": msgspec.to_builtins(one)}
            for one in scores
        ]
        with ledger_errors(), self._engine.begin() as conn:
            conn.execute(sa.delete(lemon_scores).where(lemon_scores.c.cluster == self._cluster))
            if rows:
                conn.execute(sa.insert(lemon_scores), rows)


def read(conn: sa.Connection, cluster: str, node: str | None = None) -> dict[str, LemonScore]:
    """By node, of one or of all that have any."""
    wanted = sa.select(lemon_scores.c.doc).where(lemon_scores.c.cluster == cluster)
    if node is not None:
        wanted = wanted.where(lemon_scores.c.node == node)
    found = (msgspec.convert(doc, LemonScore) for doc in conn.execute(wanted).scalars())
    return {one.node: one for one in found}
