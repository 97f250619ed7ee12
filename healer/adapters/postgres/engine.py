"""Access to PostgreSQL: the engine, errors, batched transactions, row decoding and common SQL fragments."""

import json
import math
import select
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cache
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import msgspec
import psycopg
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy import event
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DataError, DBAPIError, InterfaceError, InvalidatePoolError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from healer.ports.commanding import ALONE
from healer.ports.queries import decode_cursor, encode_cursor
from healer.ports.request_errors import DiskFull, Invalid, Unavailable, Unstorable
from healer.ports.transactions import LedgerAway
from healer.text import Said, from_stored, say, stored_json, to_stored

P = ParamSpec("P")
T = TypeVar("T")


#: Where PostgreSQL waits for its standbys. Its messages are translated, this is not.
_WAIT_SOURCE = "syncrep.c"
#: Commits even where nothing changed: whatever is visible before it is confirmed with it.
_CONFIRM = "SELECT pg_logical_emit_message(true, 'healer', '')"


class UnconfirmedCommit(psycopg.OperationalError):
    """The commit is visible on this server, and no standby has confirmed it: an unknown outcome, never a
    success.

    PostgreSQL commits locally first and then waits for its standby. If that wait is cut, by a cancel or a
    shutdown, it reports success with a warning: the rows are visible, and vanish at a failover.
    """


class ConfirmedConnection(psycopg.Connection[Any]):
    """A commit whose wait was cut raises UnconfirmedCommit: to its callers the same as a connection that was
    lost during the commit. In autocommit mode call `check` before the outcome counts."""

    _is_cut = False

    @classmethod
    def open(cls, **words: Any) -> "ConfirmedConnection":
        """`words` are libpq's."""
        connection = cls.connect(**words)
        connection.add_notice_handler(connection.note)
        return connection

    def note(self, notice: psycopg.errors.Diagnostic) -> None:
        self._is_cut |= (notice.source_file or "").endswith(_WAIT_SOURCE)

    def commit(self) -> None:
        super().commit()
        self.check()

    def check(self) -> None:
        if self._is_cut:
            self.close()
            raise UnconfirmedCommit("the standby's confirmation of a commit was not waited for")


def confirm(conn: sa.Connection | psycopg.Connection[Any]) -> None:
    """What was read on this connection is certain once this transaction is committed.

    For an answer or an effect that rests on rows and writes none: another process may have written them in a
    commit that its standby did not confirm.
    """
    if isinstance(conn, sa.Connection):
        conn.exec_driver_sql(_CONFIRM)
    else:
        conn.execute(_CONFIRM)


def make_engine(
    url: str,
    *,
    name: str = "healer",
    pool_size: int = 8,
    statement_timeout_s: float = 15,
    acts_as: str | None = None,
) -> sa.Engine:
    """An engine for `url` (`postgresql://…`, always with psycopg 3). Connects lazily.

    `name` appears in `pg_stat_activity`. With `acts_as` the login takes this role where it may; an owner, at
    a site without the parts' roles, needs no other. Ended connections are replaced at checkout, so a restart
    of PostgreSQL causes no errors. A commit that a synchronous standby did not confirm raises
    OperationalError.
    """
    parsed = sa.make_url(url).set(drivername="postgresql+psycopg")
    engine = sa.create_engine(
        parsed,
        pool_size=pool_size,
        max_overflow=3 * pool_size,
        pool_timeout=5,
        json_deserializer=_decoded,
        connect_args={
            "connect_timeout": 3,
            "application_name": name,
            "options": f"-c statement_timeout={int(statement_timeout_s * 1000)} -c timezone=UTC "
            "-c client_min_messages=warning "  # by a warning the server says that a commit is not confirmed
            # A process that is frozen within a transaction would keep the gate and its rows for good.
            "-c idle_in_transaction_session_timeout=60000 "
            # The server's side: a session whose end never reached it would keep its locks for two hours, and
            # for a quarter of one while an answer is not acknowledged, which no keepalive looks at.
            "-c tcp_keepalives_idle=5 -c tcp_keepalives_interval=2 -c tcp_keepalives_count=3 "
            "-c tcp_user_timeout=10000",
            # Detects a dead peer within seconds; the kernel's default is two hours.
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "tcp_user_timeout": 10_000,
        },
    )
    event.listen(
        engine, "do_connect", lambda _dialect, _record, _args, words: ConfirmedConnection.open(**words)
    )
    event.listen(engine, "checkout", _replace_ended)
    if acts_as is not None:
        event.listen(engine, "connect", lambda connection, _: _take_role(connection, acts_as))
    return engine


def _replace_ended(driver: psycopg.Connection, _record: object, _pooled: object) -> None:
    """Replaces `pool_pre_ping`, which costs a round trip at each checkout. TCP keepalives close a connection
    whose server vanished without closing it."""
    if _is_ended(driver):
        raise InvalidatePoolError


def _take_role(connection: psycopg.Connection, role: str) -> None:
    with suppress(psycopg.errors.InsufficientPrivilege, psycopg.errors.InvalidParameterValue):
        connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
        connection.commit()
        return
    connection.rollback()


_decode = msgspec.json.Decoder().decode


def _decoded(text: bytes | str) -> Any:
    """The JSON document; msgspec takes a third of the time of the standard library."""
    try:
        return _decode(text)
    except msgspec.DecodeError:
        return json.loads(text)  # a number beyond all floats: valid JSON, stored by PostgreSQL


#: Each statement is a transaction of its own: for reads, without two round trips around.
_ALONE = {"isolation_level": "AUTOCOMMIT"}


def alone(engine: sa.Engine) -> sa.Engine:
    """The same pool for such reads. Made once: it takes longer to make than a read."""
    return engine.execution_options(**_ALONE)


def connect_outside_pool(engine: sa.Engine) -> psycopg.Connection:
    """A psycopg connection in autocommit mode that is not part of the pool. The caller closes it."""
    pooled = engine.raw_connection()
    connection = pooled.driver_connection
    pooled.detach()
    assert isinstance(connection, psycopg.Connection)
    connection.rollback()
    connection.autocommit = True
    return connection


class DedicatedConnection:
    """A connection outside the pool, opened on first use and reopened after it broke."""

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
            connection = connect_outside_pool(self._engine)
            connection.prepare_threshold = self._prepare_threshold
            if self._begin is not None:
                self._begin(connection)
            self._connection = connection
        return self._connection

    @contextmanager
    def writing(self) -> Iterator[psycopg.Connection]:
        """The same for writes in autocommit mode: raises UnconfirmedCommit at the end."""
        connection = self.get()
        yield connection
        if isinstance(connection, ConfirmedConnection):
            connection.check()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()


def storable(value: Any) -> Any:
    """The data as builtins that JSONB accepts and returns unchanged.

    NUL and lone surrogates, which a kernel line may contain, become U+FFFD; NaN and infinity become strings.
    """
    return _clean(msgspec.to_builtins(value, str_keys=True, enc_hook=str))


def storable_doc(value: msgspec.Struct | Said) -> Any:
    """The same for structs that are read back: their sentences keep their keys."""
    return _clean(to_stored(value, str_keys=True))


def storable_rows(rows: Sequence[object]) -> str:
    """The rows as one JSON text that JSONB accepts: what it cannot hold is replaced as by `storable_doc`."""
    with suppress(UnicodeEncodeError):  # a lone surrogate
        text = stored_json(rows).decode()
        if "\\u0000" not in text:
            return text
    return stored_json(_clean(to_stored(rows, str_keys=True))).decode()


def stored_sentence(value: Any) -> Said | None:
    """The sentence in a column; None if it is null."""
    return None if value is None else from_stored(value, Said)


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


#: SQLSTATEs and their classes for a server that is down, starting, stopping or read-only (25006, a standby).
_AWAY = ("08", "53", "57", "25006")
#: Classes of errors in the values themselves: data, constraints, program limits.
_BAD_VALUES = ("22", "23", "54")


def storage_error(error: Exception) -> Unavailable | Unstorable:
    """The error for the sender of data that was not stored: Unstorable if a retry cannot help, because the
    database refuses the values; otherwise Unavailable, also for a missing table or permission."""
    cause = getattr(error, "orig", None) or error
    state = getattr(cause, "sqlstate", None)
    if isinstance(cause, psycopg.errors.DiskFull):
        return DiskFull(say("adapters.database_disk_full"))
    if (state or "").startswith(_BAD_VALUES) or (state is None and isinstance(cause, psycopg.DataError)):
        return Unstorable(say("adapters.database_refuses", error=_first_line(error)))
    if state is None or state.startswith(_AWAY[:3]):
        return Unavailable(say("adapters.database_silent", error=type(cause).__name__))
    return Unavailable(say("adapters.database_stores_nothing", error=type(cause).__name__))


@contextmanager
def request_errors() -> Iterator[None]:
    """Raises Unavailable if the database is down, and Invalid for values that it cannot store."""
    try:
        with _away_as(Unavailable):
            yield
    except DataError as error:
        raise Invalid("request", say("adapters.value_not_stored", error=_first_line(error))) from error


@contextmanager
def ledger_errors() -> Iterator[None]:
    """Raises LedgerAway if the database is down."""
    with _away_as(LedgerAway):
        yield


@contextmanager
def _away_as(kind: type[Exception]) -> Iterator[None]:
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeout) as error:
        raise kind(say("adapters.database_silent", error=_first_line(error))) from error
    except DBAPIError as error:
        state = getattr(error.orig, "sqlstate", None) or ""
        if error.connection_invalidated or state.startswith(_AWAY):
            raise kind(say("adapters.database_silent", error=_first_line(error))) from error
        raise


class PostgresStore:
    """Base of the classes that read and write with one engine."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine


class ClusterStore:
    """Base of the classes that read and write the rows of one cluster."""

    def __init__(self, engine: sa.Engine, cluster: str) -> None:
        self._engine, self.cluster = engine, cluster


@contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A connection for short reads, each a transaction of its own; raises as `request_errors` does."""
    with request_errors(), engine.connect() as conn:
        yield conn.execution_options(**_ALONE)


@contextmanager
def ledger_reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """The same; raises as `ledger_errors` does."""
    with ledger_errors(), engine.connect() as conn:
        yield conn.execution_options(**_ALONE)


def earlier_clock(engine: sa.Engine, now: datetime) -> datetime:
    """`now`, or the time of the database's clock if that is earlier: one clock that is ahead must end no
    wait, and make nothing old, which would be deleted."""
    with ledger_reading(engine) as conn:
        return min(now, conn.execute(sa.select(sa.func.clock_timestamp())).scalar_one())


@contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction, committed at the end; raises as `request_errors` does."""
    with request_errors(), engine.begin() as conn:
        yield conn


def reads(query: Callable[Concatenate[sa.Connection, P], T]) -> Callable[Concatenate[Any, P], T]:
    """The method of a store that asks this, on a connection of its own; raises as `request_errors` does."""

    def read(self: PostgresStore, *args: P.args, **kwargs: P.kwargs) -> T:
        with reading(self._engine) as conn:
            return query(conn, *args, **kwargs)

    return read


def _first_line(error: Exception) -> str:
    cause = getattr(error, "orig", None) or error
    text = str(cause).strip()
    return text.splitlines()[0] if text else type(cause).__name__


#: Items in one batch: all callers wait for the slowest.
BATCH_MAX = 64


class _Entry(Generic[T]):
    """A queued item and the lock that its caller waits on."""

    def __init__(self, item: T, *, awaited: bool) -> None:
        self.item, self.awaited = item, awaited
        self.result: object = None
        self.done = False
        # A plain lock: much cheaper than an Event, and there is one for each write of each run.
        self._turn = threading.Lock()
        self._turn.acquire()

    def wait(self) -> None:
        """Returns when the item is done or its thread is to serve the next batch."""
        self._turn.acquire()

    def wake(self) -> None:
        """Called by the serving thread only; may be called twice for the same item."""
        if self._turn.locked():
            self._turn.release()


class Lane(Generic[T]):
    """Group commit on one connection: items that arrive during a transaction form the next batch.

    A transaction costs a dozen round trips and an fsync, for one item or for fifty. The first thread to find
    the lane idle serves everything in the queue; the others wait for it. A single item is served at once.

    `work` executes a batch on the connection, commits, and returns a result or an exception for each item.
    An item whose result is ALONE is repeated in a batch of its own. If a batch fails, its items are repeated
    one by one, so `work` must accept an item again after its transaction was rolled back.
    """

    def __init__(
        self, engine: sa.Engine, work: Callable[[sa.Connection, Sequence[T]], Sequence[object]]
    ) -> None:
        self._engine, self._work = engine, work
        self._lock = threading.Lock()
        self._queue: list[_Entry[T]] = []
        self._busy = False
        self._connection: sa.Connection | None = None
        #: Increases with each connection; session-level locks end with their session.
        self.session = 0

    def do(self, item: T) -> Any:
        """Returns the item's result after the commit, or raises its error."""
        entry = _Entry(item, awaited=True)
        if not self._enqueue(entry):
            entry.wait()
        if not entry.done:
            self._serve()
        if isinstance(entry.result, BaseException):
            raise entry.result
        return entry.result

    def post(self, item: T) -> None:
        """Queues an item without waiting for it, unless the lane is idle."""
        if self._enqueue(_Entry(item, awaited=False)):
            self._serve()

    def _enqueue(self, entry: _Entry[T]) -> bool:
        """Whether the caller must serve the queue."""
        with self._lock:
            self._queue.append(entry)
            if self._busy:
                return False
            self._busy = True
            return True

    def _serve(self) -> None:
        """Serves one batch, then hands over to the first caller that arrived meanwhile."""
        while True:
            with self._lock:
                served, self._queue = self._queue[:BATCH_MAX], self._queue[BATCH_MAX:]
            for entry, result in zip(served, self._results([entry.item for entry in served]), strict=True):
                entry.result, entry.done = result, True
                entry.wake()
            with self._lock:
                following = next((entry for entry in self._queue if entry.awaited), None)
                if following is not None:
                    following.wake()
                    return
                if not self._queue:
                    self._busy = False
                    return

    def _results(self, items: list[T]) -> Sequence[object]:
        try:
            results = self._execute(items)
        except BaseException as error:
            if self._connection is None or len(items) == 1 or not isinstance(error, Exception):
                return [error] * len(items)
            results = [ALONE] * len(items)
        pairs = zip(items, results, strict=True)
        return [self._execute_one(item) if result is ALONE else result for item, result in pairs]

    def _execute_one(self, item: T) -> object:
        try:
            return self._execute([item])[0]
        except Exception as error:
            return error

    def _execute(self, items: list[T]) -> Sequence[object]:
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
        """Ends the session. Call it only while no item is queued."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.invalidate()
            connection.close()


def _is_gone(connection: sa.Connection) -> bool:
    if connection.invalidated:
        return True
    driver = connection.connection.driver_connection
    return not isinstance(driver, psycopg.Connection) or _is_ended(driver)


def _is_ended(driver: psycopg.Connection) -> bool:
    """Whether the server closed the idle session: its socket is then readable."""
    if driver.closed:
        return True
    readable = select.poll()
    readable.register(driver.fileno(), select.POLLIN)
    return bool(readable.poll(0))


# --- rows decoded to structs, and common SQL fragments


def read_docs(conn: sa.Connection, query: sa.Select, kind: type[T]) -> list[T]:
    """Decodes the single column of documents that `query` selects."""
    return [from_stored(doc, kind) for doc in conn.execute(query).scalars()]


def read_doc(conn: sa.Connection, query: sa.Select, kind: type[T]) -> T | None:
    doc = conn.execute(query).scalar()
    return None if doc is None else from_stored(doc, kind)


def read_structs(
    conn: sa.Connection, query: sa.Executable, kind: type[T], values: Mapping[str, Any] | None = None
) -> list[T]:
    """Decodes rows whose columns have the names of the fields of `kind`."""
    return [kind(**row) for row in conn.execute(query, values).mappings()]


def read_page(
    conn: sa.Connection, query: sa.Select, order: Sequence[sa.ColumnElement], limit: int, cursor: str | None
) -> tuple[Sequence[sa.Row], str | None]:
    """The rows after the cursor, newest first by `order` (a time and an id), and the next cursor."""
    if cursor is not None:
        last = decode_cursor(cursor, tuple[datetime, str])
        query = query.where(sa.tuple_(*order) < sa.tuple_(*(sa.literal(part) for part in last)))
    rows = conn.execute(query.order_by(*(part.desc() for part in order)).limit(limit + 1)).all()
    if len(rows) <= limit:
        return rows, None
    return rows[:limit], encode_cursor(*(getattr(rows[limit - 1], str(part.key)) for part in order))


def pick(item: object, *names: str) -> dict[str, Any]:
    """These attributes of a row or a struct, by name."""
    return {name: getattr(item, name) for name in names}


def write_docs(
    conn: sa.Connection, statement: sa.TextClause, rows: Sequence[object], **values: object
) -> None:
    """Executes one statement for all rows, passed as one JSON text, so that it is planned once."""
    if rows:
        conn.execute(statement, {"rows": storable_rows(rows), **values})


class Writes:
    """Rows that a transaction inserts or updates and does not read again, sent as one statement.

    Each kind of row has its own table and statement with `:rows`; other values are common to all of them. A
    round trip costs more than most rows, and a drain waits for each.
    """

    def __init__(self) -> None:
        self._rows: dict[sa.TextClause, list[object]] = {}
        self._values: dict[str, object] = {}

    def add(self, statement: sa.TextClause, rows: Sequence[object], **values: object) -> None:
        if rows:
            self._rows.setdefault(statement, []).extend(rows)
            self._values |= values

    def send(self, conn: sa.Connection) -> None:
        """Sends what was added since the last time."""
        if not self._rows:
            return
        kinds, self._rows = self._rows, {}
        values = {f"rows_{place}": storable_rows(rows) for place, rows in enumerate(kinds.values())}
        conn.execute(_together(tuple(kinds)), {**values, **self._values})
        self._values = {}


@cache
def _together(statements: tuple[sa.TextClause, ...]) -> sa.TextClause:
    """Data-modifying statements as one: the first ones as its common table expressions."""
    *before, last = (part.text.replace(":rows ", f":rows_{at} ") for at, part in enumerate(statements))
    parts = ", ".join(f"part_{place} AS ({text})" for place, text in enumerate(before))
    return sa.text(f"WITH {parts} {last}" if parts else last)


def upsert(table: sa.Table, key: dict[str, Any], values: dict[str, Any]) -> Any:
    made = insert(table).values(**key, **values)
    fresh = {name: made.excluded[name] for name in values}
    return made.on_conflict_do_update(index_elements=list(key), set_=fresh)


def matches(column: sa.ColumnElement, wanted: Sequence[str] | str | None) -> sa.ColumnElement[bool]:
    """The column equals `wanted`, or is one of it; None matches everything."""
    if wanted is None:
        return sa.true()
    return column == wanted if isinstance(wanted, str) else column.in_(wanted)


def contains(text: str) -> str:
    """A LIKE pattern for `text` anywhere in a string, with wildcards escaped. Use with escape='\\\\'."""
    return "%" + text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"


#: The shortest prefix of an id that identifies a row: the length in Slurm's drain reason.
SHORT_ID = 8


def row_named(conn: sa.Connection, query: sa.Select, ids: sa.ColumnElement, name: str) -> sa.Row | None:
    """The row with this id, or the only one whose id begins with `name`."""
    found = conn.execute(query.where(ids == name)).first()
    if found is None and len(name) >= SHORT_ID and name.isalnum():
        some = conn.execute(query.where(begins(ids, name)).limit(2)).all()
        return some[0] if len(some) == 1 else None
    return found


def begins(column: sa.ColumnElement, text: str) -> sa.ColumnElement[bool]:
    return column.startswith(text, autoescape=True)
