"""Work for one connection that goes together: what comes while a transaction runs is the next one.

A transaction costs a dozen round trips and an fsync, whether it speaks of one run or of fifty. So whoever has
something to do here puts it down; if nobody is at work it takes all that lies there and does it, else it
waits for whoever is. Alone, it costs no more than a transaction of its own, and waits for nothing.
"""

import select
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import psycopg
import sqlalchemy as sa

from healer.ports.commanding import ALONE

T = TypeVar("T")

#: So many go together at most: the last one of them waits for all.
MOST = 64


class _Waiting(Generic[T]):
    """One item, and its caller's place in the row."""

    def __init__(self, item: T, *, awaited: bool) -> None:
        self.item, self.awaited = item, awaited
        self.result: object = None
        self.done = False
        # A bare lock: an Event is four of them and a queue, for each write of each run.
        self._turn = threading.Lock()
        self._turn.acquire()

    def wait(self) -> None:
        """Until it is done or has the turn."""
        self._turn.acquire()

    def wake(self) -> None:
        """By whoever is at work, and so by one thread at a time; it may come again for the same item."""
        if self._turn.locked():
            self._turn.release()


class Lane(Generic[T]):
    """`work` carries items out on the connection and commits: a result for each, or the error that it is.

    An item whose result is ALONE gets a turn of its own. What is refused together is tried one by one, so
    that no item suffers from another: `work` must bear to be called again with an item whose transaction was
    rolled back.
    """

    def __init__(
        self, engine: sa.Engine, work: Callable[[sa.Connection, Sequence[T]], Sequence[object]]
    ) -> None:
        self._engine, self._work = engine, work
        self._lock = threading.Lock()
        self._row: list[_Waiting[T]] = []
        self._busy = False
        self._connection: sa.Connection | None = None
        #: Grows with each connection: what a session held is lost with it.
        self.session = 0

    def do(self, item: T) -> Any:
        """Returns the item's result, once it is committed, or raises its error."""
        mine = _Waiting(item, awaited=True)
        if not self._leads(mine):
            mine.wait()
        if not mine.done:
            self._serve()
        if isinstance(mine.result, BaseException):
            raise mine.result
        return mine.result

    def post(self, item: T) -> None:
        """The same for what nobody waits for. It is done when this returns, or goes with the next."""
        if self._leads(_Waiting(item, awaited=False)):
            self._serve()

    def _leads(self, mine: _Waiting[T]) -> bool:
        with self._lock:
            self._row.append(mine)
            if self._busy:
                return False
            self._busy = True
            return True

    def _serve(self) -> None:
        """One turn, for all that wait; then the first who came meanwhile has the next."""
        while True:
            with self._lock:
                served, self._row = self._row[:MOST], self._row[MOST:]
            for one, result in zip(served, self._results([one.item for one in served]), strict=True):
                one.result, one.done = result, True
                one.wake()
            with self._lock:
                following = next((one for one in self._row if one.awaited), None)
                if following is not None:
                    following.wake()
                    return
                if not self._row:
                    self._busy = False
                    return

    def _results(self, items: list[T]) -> Sequence[object]:
        try:
            results = self._carried(items)
        except BaseException as error:
            if self._connection is None or len(items) == 1 or not isinstance(error, Exception):
                return [error] * len(items)
            results = [ALONE] * len(items)
        pairs = zip(items, results, strict=True)
        return [self._alone(item) if result is ALONE else result for item, result in pairs]

    def _alone(self, item: T) -> object:
        try:
            return self._carried([item])[0]
        except Exception as error:
            return error

    def _carried(self, items: list[T]) -> Sequence[object]:
        connection = self._connected()
        try:
            return self._work(connection, items)
        except BaseException as error:
            if connection.invalidated or not isinstance(error, Exception):
                self.close()
            else:
                connection.rollback()
            raise

    def _connected(self) -> sa.Connection:
        if self._connection is not None and _is_gone(self._connection):
            self.close()
        if self._connection is None:
            self._connection = self._engine.connect()
            self.session += 1
        return self._connection

    def close(self) -> None:
        """Ends the session. Only while nothing is under way."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.invalidate()
            connection.close()


def _is_gone(connection: sa.Connection) -> bool:
    """The server ended the session while nothing was asked of it: there is something to be read."""
    if connection.invalidated:
        return True
    driver = connection.connection.driver_connection
    if not isinstance(driver, psycopg.Connection) or driver.closed:
        return True
    readable = select.poll()
    readable.register(driver.fileno(), select.POLLIN)
    return bool(readable.poll(0))
