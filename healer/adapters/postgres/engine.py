"""How healer talks to PostgreSQL: one engine for a process, its errors translated, common transactions,
rows as nouns, and the parts of statements that recur."""

import json
import math
import select
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec
import psycopg
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DataError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from healer.ports.commanding import ALONE
from healer.ports.queries import decode_cursor, encode_cursor
from healer.ports.request_errors import DiskFull, Invalid, Unavailable, Unstorable
from healer.ports.transactions import LedgerAway

T = TypeVar("T")


def make_engine(
    url: str, *, name: str = "healer", pool_size: int = 8, statement_timeout_s: float = 15
) -> sa.Engine:
    """An engine for `url` (`postgresql://…`; the driver is always psycopg 3).

    `name` is what `pg_stat_activity` shows. No connection is made here. A connection that went bad is
    replaced when it is taken from the pool, so a restarted PostgreSQL costs no caller an error.
    """
    parsed = sa.make_url(url).set(drivername="postgresql+psycopg")
    return sa.create_engine(
        parsed,
        pool_size=pool_size,
        max_overflow=3 * pool_size,
        pool_timeout=5,
        pool_pre_ping=True,
        json_deserializer=_decoded,
        connect_args={
            "connect_timeout": 3,
            "application_name": name,
            "options": f"-c statement_timeout={int(statement_timeout_s * 1000)} -c timezone=UTC",
            # A dead peer is noticed within seconds, not after the two hours of the kernel's default.
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "tcp_user_timeout": 10_000,
        },
    )


_decode = msgspec.json.Decoder().decode


def _decoded(text: bytes | str) -> Any:
    """A document as PostgreSQL gives it, in a third of the time that Python's own decoder takes."""
    try:
        return _decode(text)
    except msgspec.DecodeError:
        return json.loads(text)  # a figure beyond all floats, which PostgreSQL keeps and a sender may tell


def own_connection(engine: sa.Engine) -> psycopg.Connection:
    """A connection outside of the pool, in autocommit: for what speaks to PostgreSQL past SQLAlchemy.

    The caller closes it.
    """
    pooled = engine.raw_connection()
    connection = pooled.driver_connection
    pooled.detach()
    assert isinstance(connection, psycopg.Connection)
    connection.rollback()
    connection.autocommit = True
    return connection


class OwnConnection:
    """Such a connection, made when it is first needed and again after it broke."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        prepare_threshold: int = 5,
        begin: Callable[[psycopg.Connection], object] | None = None,
    ) -> None:
        self._engine, self._prepare_threshold, self._begin = engine, prepare_threshold, begin
        self._connection: psycopg.Connection | None = None

    def get(self) -> psycopg.Connection:
        if self._connection is None or self._connection.closed:
            connection = own_connection(self._engine)
            connection.prepare_threshold = self._prepare_threshold
            if self._begin is not None:
                self._begin(connection)
            self._connection = connection
        return self._connection

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()


def storable(value: Any) -> Any:
    """The same data in the form that PostgreSQL's JSONB takes and gives back unchanged.

    Nothing is lost for what it quotes: NUL and lone surrogates, which JSONB refuses and a kernel line may
    hold, become U+FFFD, and figures that JSON does not know (NaN, infinity) become their names.
    """
    return _clean(msgspec.to_builtins(value, str_keys=True, enc_hook=str))


def storable_text(text: str) -> str:
    """Text without NUL and lone surrogates."""
    if "\x00" in text:
        text = text.replace("\x00", "\ufffd")
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {storable_text(str(name)): _clean(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value


#: SQLSTATEs, or classes of them, that tell of a server that is away, starting or stopping, or that takes
#: nothing now (a standby: 25006), rather than of a wrong question.
_AWAY = ("08", "53", "57", "25006")
#: Classes that tell of the values themselves: data, constraints, limits of the program.
_WRONG = ("22", "23", "54")


def unstored(error: Exception) -> Unavailable | Unstorable:
    """What an error means to whoever wanted to store: only where the very values are refused it cannot help
    to come again. A table that lacks or a right that is missing is the trouble of the database."""
    cause = getattr(error, "orig", None) or error
    state = getattr(cause, "sqlstate", None)
    if isinstance(cause, psycopg.errors.DiskFull):
        return DiskFull("the disk of the database is full")
    if (state or "").startswith(_WRONG) or (state is None and isinstance(cause, psycopg.DataError)):
        return Unstorable("the database refuses it: " + _first_line(error))
    if state is None or state.startswith(_AWAY[:3]):
        return Unavailable(f"the database does not answer: {type(cause).__name__}")
    return Unavailable(f"the database can store nothing: {type(cause).__name__}")


@contextmanager
def translated() -> Iterator[None]:
    """Turns "the database is away" into Unavailable, and text it cannot hold into Invalid."""
    try:
        with _away_as(Unavailable):
            yield
    except DataError as error:
        raise Invalid("request", "a value cannot be stored: " + _first_line(error)) from error


@contextmanager
def ledger_errors() -> Iterator[None]:
    """Turns "the database is away" into LedgerAway, for the loops that know what to do then."""
    with _away_as(LedgerAway):
        yield


@contextmanager
def _away_as(kind: type[Exception]) -> Iterator[None]:
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeout) as error:
        raise kind("the database does not answer: " + _first_line(error)) from error
    except DBAPIError as error:
        state = getattr(error.orig, "sqlstate", None) or ""
        if error.connection_invalidated or state.startswith(_AWAY):
            raise kind("the database does not answer: " + _first_line(error)) from error
        raise


class OnDatabase:
    """Reads and writes over one engine."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine


@contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A connection for one short read; errors as `translated` tells them."""
    with translated(), engine.connect() as conn:
        yield conn


def _first_line(error: Exception) -> str:
    cause = getattr(error, "orig", None) or error
    text = str(cause).strip()
    return text.splitlines()[0] if text else type(cause).__name__


#: So many go together at most: the last one of them waits for all.
TOGETHER_MAX = 64


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
    """Work for one connection that goes together: what comes while a transaction runs is the next one.

    A transaction costs a dozen round trips and an fsync, whether it speaks of one run or of fifty. So whoever
    has something to do here puts it down; if no one is at work it takes all that lies there and does it, else
    it waits for whoever is. Alone, it costs no more than a transaction of its own, and waits for nothing.

    `work` carries items out on the connection and commits: a result for each, or the error that it is.

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
        """The same for what no one waits for. It is done when this returns, or goes with the next."""
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
                served, self._row = self._row[:TOGETHER_MAX], self._row[TOGETHER_MAX:]
            for entry, result in zip(served, self._results([entry.item for entry in served]), strict=True):
                entry.result, entry.done = result, True
                entry.wake()
            with self._lock:
                following = next((entry for entry in self._row if entry.awaited), None)
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


# --- rows as nouns, and the parts of statements that recur


def read_docs(conn: sa.Connection, query: sa.Select, kind: type[T]) -> list[T]:
    """`query` asks for one column of documents."""
    return [msgspec.convert(doc, kind) for doc in conn.execute(query).scalars()]


def read_doc(conn: sa.Connection, query: sa.Select, kind: type[T]) -> T | None:
    doc = conn.execute(query).scalar()
    return None if doc is None else msgspec.convert(doc, kind)


def read_structs(
    conn: sa.Connection, query: sa.Executable, kind: type[T], asked: Mapping[str, Any] | None = None
) -> list[T]:
    """`query` asks for columns with the names of the fields."""
    return [kind(**row) for row in conn.execute(query, asked).mappings()]


def read_page(
    conn: sa.Connection, query: sa.Select, order: Sequence[sa.ColumnElement], limit: int, cursor: str | None
) -> tuple[Sequence[sa.Row], str | None]:
    """Rows from behind the cursor, newest first by `order` (a moment and an identity); the next cursor."""
    if cursor is not None:
        last = decode_cursor(cursor, tuple[datetime, str])
        query = query.where(sa.tuple_(*order) < sa.tuple_(*(sa.literal(part) for part in last)))
    rows = conn.execute(query.order_by(*(part.desc() for part in order)).limit(limit + 1)).all()
    if len(rows) <= limit:
        return rows, None
    return rows[:limit], encode_cursor(*(getattr(rows[limit - 1], str(part.key)) for part in order))


def pick(item: object, *names: str) -> dict[str, Any]:
    """These attributes of a row or of a noun, by name."""
    return {name: getattr(item, name) for name in names}


def write_docs(
    conn: sa.Connection, statement: sa.TextClause, rows: Sequence[object], **given: object
) -> None:
    """One statement for however many rows: they are one JSON text, and it is planned once."""
    if rows:
        conn.execute(statement, {"rows": msgspec.json.encode(rows).decode(), **given})


def upsert(table: sa.Table, key: dict[str, Any], values: dict[str, Any]) -> Any:
    made = insert(table).values(**key, **values)
    fresh = {name: made.excluded[name] for name in values}
    return made.on_conflict_do_update(index_elements=list(key), set_=fresh)


def matches(column: sa.ColumnElement, wanted: Sequence[str] | str | None) -> sa.ColumnElement[bool]:
    """The column is what is wanted, or one of those; None: whatever it is."""
    if wanted is None:
        return sa.true()
    return column == wanted if isinstance(wanted, str) else column.in_(wanted)


def contains(text: str) -> str:
    """A LIKE pattern that finds `text` anywhere, whatever it holds. Use with escape='\\\\'."""
    return "%" + text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"


def begins(column: sa.ColumnElement, text: str) -> sa.ColumnElement[bool]:
    return column.startswith(text, autoescape=True)
