"""What is kept of each node, a document for each, replaced as a whole: the scores of lemons, and how what its
tests measured stands beside other nodes; and what both are reckoned from."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol, TypeVar

import msgspec
import sqlalchemy as sa

from healer.adapters.postgres.engine import ledger_errors
from healer.adapters.postgres.tables import incidents, lemon_scores, node_standings
from healer.adapters.postgres.tables import messages as queued
from healer.model import (
    Figure,
    Incident,
    LemonScore,
    NodeFigures,
    NodeHistory,
    NodeStanding,
    Verb,
    rates_in,
)


class _OfNode(Protocol):
    @property
    def node(self) -> str: ...


T = TypeVar("T", bound=_OfNode)

#: By the index `run_log_tests`. The newest of a node's tests come last, and take the place of older figures.
_TOLD = sa.text("""
SELECT runs.node, run_log.at, run_log.doc->'data'->'results' AS results
FROM run_log JOIN runs ON runs.id = run_log.run
WHERE run_log.event = 'done' AND run_log.doc->'data'->>'passed' IS NOT NULL AND run_log.at > :since
  AND run_log.doc->'data'->>'verb' = ANY(:tests) AND run_log.doc->'data'->'results' IS NOT NULL
  AND runs.cluster = :cluster AND runs.node IS NOT NULL
ORDER BY run_log.seq
""")
_TESTS = [str(Verb.diagnose), str(Verb.sweep)]


class PostgresLemons:
    """What the ledger holds of every node's last weeks, and the scores of lemons; of one cluster."""

    def __init__(self, engine: sa.Engine, cluster: str) -> None:
        self._engine, self._cluster = engine, cluster

    def histories(self, since: datetime) -> list[tuple[str, NodeHistory]]:
        """By node, of those with an incident that was open at `since` or later."""
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
            (node, NodeHistory(incidents=tuple(own), ticketed=ticketed))
            for node, own in sorted(found.items())
        ]

    def keep(self, scores: list[LemonScore], now: datetime) -> None:
        """In place of all that were kept."""
        with ledger_errors(), self._engine.begin() as conn:
            _replace(conn, lemon_scores, self._cluster, scores, at=now)


class PostgresFleetFigures:
    """What tests of nodes measured, of the runs' logs, and how each node stands by that; of one cluster."""

    def __init__(self, engine: sa.Engine, cluster: str) -> None:
        self._engine, self._cluster = engine, cluster

    def read(self, since: datetime) -> list[NodeFigures]:
        """Of each node the newest of each figure, whether the test passed or not."""
        asked = {"since": since, "tests": _TESTS, "cluster": self._cluster}
        found: dict[str, dict[str, Figure]] = {}
        with ledger_errors(), self._engine.connect() as conn:
            for row in conn.execute(_TOLD, asked):
                told = {name: Figure(value, row.at) for name, value in rates_in(row.results or {}).items()}
                found.setdefault(row.node, {}).update(told)
        return [NodeFigures(node, figures) for node, figures in sorted(found.items())]

    def keep(self, standings: list[NodeStanding], now: datetime) -> None:
        """In place of all that were kept."""
        with ledger_errors(), self._engine.begin() as conn:
            _replace(conn, node_standings, self._cluster, standings, at=now)


def read_lemons(conn: sa.Connection, cluster: str, node: str | None = None) -> dict[str, LemonScore]:
    """By node, of one or of all that have any."""
    return _read(conn, lemon_scores, LemonScore, cluster, node)


def read_standing(conn: sa.Connection, cluster: str, node: str) -> NodeStanding | None:
    return _read(conn, node_standings, NodeStanding, cluster, node).get(node)


def _replace(
    conn: sa.Connection, table: sa.Table, cluster: str, found: Sequence[_OfNode], *, at: datetime
) -> None:
    rows = [
        {"cluster": cluster, "node": one.node, "at": at, "doc": msgspec.to_builtins(one)} for one in found
    ]
    conn.execute(sa.delete(table).where(table.c.cluster == cluster))
    if rows:
        conn.execute(sa.insert(table), rows)


def _read(
    conn: sa.Connection, table: sa.Table, kind: type[T], cluster: str, node: str | None
) -> dict[str, T]:
    wanted = sa.select(table.c.doc).where(table.c.cluster == cluster)
    if node is not None:
        wanted = wanted.where(table.c.node == node)
    found = (msgspec.convert(doc, kind) for doc in conn.execute(wanted).scalars())
    return {one.node: one for one in found}
