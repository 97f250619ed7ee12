"""What wakes the loops: a notice from PostgreSQL, or the question what waits for the scheduler's duties."""

import time
from collections.abc import Sequence

import psycopg
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy.exc import SQLAlchemyError

from healer.adapters.postgres.engine import OwnConnection
from healer.ports.clock import Clock
from healer.ports.lease import LEASE, SENT, UNHEARD


class Waker:
    """LISTEN on its own connection: something was committed elsewhere. A missed notice costs one tick."""

    def __init__(self, engine: sa.Engine, channels: Sequence[str]) -> None:
        def listen(connection: psycopg.Connection) -> None:
            for channel in channels:
                connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))

        self._connection = OwnConnection(engine, begin=listen)

    def wait(self, seconds: float) -> None:
        """Returns when notified, at the latest after `seconds`."""
        begun = time.monotonic()
        try:
            for _ in self._connection.get().notifies(timeout=seconds, stop_after=1):
                return
        except (psycopg.Error, SQLAlchemyError):
            self.close()
            time.sleep(max(0.0, min(0.5, seconds - (time.monotonic() - begun))))

    def close(self) -> None:
        self._connection.close()


# As `PostgresLedger.due_runs`, `PostgresOutbox.claim`, `PostgresPlanTx.unrouted` and `PostgresChain.unsealed`
# look for it themselves.
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
        self._cluster, self._clock = cluster, clock
        self._connection = OwnConnection(engine, prepare_threshold=0)

    def __call__(self) -> set[str]:
        try:
            connection, now = self._connection.get(), self._clock.now()
            asked = {"cluster": self._cluster, "now": now}
            asked |= {"unheard": now + LEASE - UNHEARD, "wrong": now + 2 * LEASE, "sent": now - SENT}
            row = connection.execute(_STATEMENT, asked).fetchone()
        except BaseException:
            self.close()
            raise
        assert row is not None
        return {name for name, waits in zip(_ASKED, row, strict=True) if waits}

    def close(self) -> None:
        self._connection.close()
