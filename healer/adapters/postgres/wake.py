"""LISTEN: wakes a loop when something was committed elsewhere. A missed wake costs one tick."""

import contextlib
import time
from collections.abc import Sequence

import psycopg
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy.exc import SQLAlchemyError

from healer.adapters.postgres.engine import own_connection


class Waker:
    """Waits on its own connection; reconnects by itself."""

    def __init__(self, engine: sa.Engine, channels: Sequence[str]) -> None:
        self._engine, self._channels = engine, tuple(channels)
        self._connection: psycopg.Connection | None = None

    def wait(self, seconds: float) -> None:
        """Returns when notified, at the latest after `seconds`."""
        begun = time.monotonic()
        try:
            connection = self._connect()
            for _ in connection.notifies(timeout=seconds, stop_after=1):
                return
        except (psycopg.Error, SQLAlchemyError):
            self.close()
            time.sleep(max(0.0, min(0.5, seconds - (time.monotonic() - begun))))

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()

    def _connect(self) -> psycopg.Connection:
        if self._connection is None or self._connection.closed:
            connection = own_connection(self._engine)
            for channel in self._channels:
                connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
            self._connection = connection
        return self._connection
