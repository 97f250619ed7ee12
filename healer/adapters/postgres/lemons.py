"""What the ledger holds of every node's last weeks, and the scores of lemons that come of it."""

from datetime import datetime

import msgspec
import sqlalchemy as sa

from healer.adapters.postgres import by_node
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
        found: dict[str, list[Incident]] = {}
        with ledger_errors(), self._engine.connect() as conn:
            for row in conn.execute(mine.order_by(incidents.c.opened, incidents.c.id)):
                found.setdefault(row.node, []).append(msgspec.convert(row.doc, Incident))
            ticketed = frozenset(conn.execute(filed).scalars())
        return [
            past_of(NodeHistory(incidents=tuple(own), ticketed=ticketed), node, now)
            for node, own in sorted(found.items())
        ]

    def keep(self, scores: list[LemonScore], now: datetime) -> None:
        """In place of all that were kept."""
        with ledger_errors(), self._engine.begin() as conn:
            by_node.replace(conn, lemon_scores, self._cluster, scores, at=now)


def read(conn: sa.Connection, cluster: str, node: str | None = None) -> dict[str, LemonScore]:
    """By node, of one or of all that have any."""
    return by_node.read(conn, lemon_scores, LemonScore, cluster, node)
