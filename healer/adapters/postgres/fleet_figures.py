"""What tests of nodes measured, of the runs' logs, and how each node stands by that."""

from datetime import datetime

import sqlalchemy as sa

from healer.adapters.postgres import by_node
from healer.adapters.postgres.engine import ledger_errors
from healer.adapters.postgres.tables import node_standings
from healer.model import Figure, NodeFigures, NodeStanding, Verb, rates_in

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


class PostgresFleetFigures:
    """Of one cluster."""

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
            by_node.replace(conn, node_standings, self._cluster, standings, at=now)


def read_standing(conn: sa.Connection, cluster: str, node: str) -> NodeStanding | None:
    return by_node.read(conn, node_standings, NodeStanding, cluster, node).get(node)
