"""What waits for the duties of the scheduler: one question, asked often, and mostly nothing does."""

import contextlib

import psycopg
import sqlalchemy as sa

from healer.adapters.postgres.engine import own_connection
from healer.ports.clock import Clock
from healer.ports.lease import LEASE, SENT, UNHEARD

# As `PostgresLedger.due_runs`, `messages.deliver_due`, `routing.plan` and `Sealer` look for it themselves.
_ASKED = {
    "sweep": """SELECT FROM runs WHERE cluster = %(cluster)s AND state = 'running'
        AND (wake_at IS NULL OR wake_at <= %(now)s)
        AND (lease_until IS NULL OR lease_until <= %(unheard)s OR lease_until > %(wrong)s)
        AND (epoch > 0 OR created_at <= %(sent)s OR created_at > %(now)s)""",
    "deliver": "SELECT FROM messages WHERE state = 'due' AND next_try_at <= %(now)s",
    "tell": """SELECT 1 FROM messages WHERE cluster = %(cluster)s AND NOT routed
        UNION ALL SELECT 1 FROM deliveries
        WHERE cluster = %(cluster)s AND state = 'due' AND next_try_at <= %(now)s""",
    "seal": "SELECT FROM audit_unsealed",
}
_STATEMENT = ("SELECT " + ", ".join(f"EXISTS ({question})" for question in _ASKED.values())).encode()


class Waiting:
    """Callable: the names of the duties that have work, of `sweep`, `deliver`, `tell` and `seal`.

    On a connection of its own, as a pool looks whether its connection still lives, begins and ends a
    transaction, and so asks four times. Errors of the database go to the caller; the next call connects anew.
    """

    def __init__(self, engine: sa.Engine, cluster: str, clock: Clock) -> None:
        self._engine, self._cluster, self._clock = engine, cluster, clock
        self._connection: psycopg.Connection | None = None

    def __call__(self) -> set[str]:
        try:
            connection = self._connect()
            now = self._clock.now()
            asked = {"cluster": self._cluster, "now": now}
            asked |= {"unheard": now + LEASE - UNHEARD, "wrong": now + 2 * LEASE, "sent": now - SENT}
            row = connection.execute(_STATEMENT, asked).fetchone()
        except BaseException:
            self.close()
            raise
        assert row is not None
        return {name for name, waits in zip(_ASKED, row, strict=True) if waits}

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()

    def _connect(self) -> psycopg.Connection:
        if self._connection is None or self._connection.closed:
            connection = own_connection(self._engine)
            connection.prepare_threshold = 0
            self._connection = connection
        return self._connection
