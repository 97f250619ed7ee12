"""A job's checkpoints, as they lie in the inbox."""

import sqlalchemy as sa

from healer.adapters.postgres.engine import ledger_errors
from healer.model import JobCheckpoint

# A later life of the job comes first, then the later step: no clock is asked.
_NEWEST = sa.text(
    """
    SELECT
      doc #>> '{component,job}' AS job,
      (doc #>> '{data,restart}')::bigint AS restart,
      (doc #>> '{data,step}')::bigint AS step,
      coalesce(doc #>> '{data,path}', '') AS path,
      (doc ->> 'event_at')::timestamptz AS at,
      arrived_at
    FROM inbox
    WHERE cluster = :cluster AND doc #>> '{component,job}' = :job AND kind = 'checkpoint'
      AND doc @> '{"data": {"durable": true}}'
    ORDER BY restart DESC NULLS LAST, step DESC, at DESC
    LIMIT 1
    """
)


class PostgresCheckpoints:
    """`healer.ports.transactions.Checkpoints` of one cluster."""

    def __init__(self, engine: sa.Engine, cluster: str) -> None:
        self._engine, self._cluster = engine, cluster

    def newest_durable(self, job: str) -> JobCheckpoint | None:
        with ledger_errors(), self._engine.connect() as conn:
            return newest_durable(conn, self._cluster, job)


def newest_durable(conn: sa.Connection, cluster: str, job: str) -> JobCheckpoint | None:
    row = conn.execute(_NEWEST, {"cluster": cluster, "job": job}).first()
    return None if row is None else JobCheckpoint(**row._mapping)
