"""How healer talks to PostgreSQL: one engine per process, and errors translated at its edge."""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import psycopg
import sqlalchemy as sa
from sqlalchemy.exc import DataError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from healer.ports.request_errors import DiskFull, Invalid, Unavailable, Unstorable
from healer.ports.transactions import LedgerAway


def make_engine(
    url: str, *, name: str = "healer", pool_size: int = 8, statement_timeout_s: float = 15
) -> sa.Engine:
    """An engine for `url` (`postgresql://…`; the driver is always psycopg 3).

    `name` is what `pg_stat_activity` shows. No connection is made here. A connection that went bad is
    replaced when it is taken from the pool, so a restarted PostgreSQL costs nobody an error.
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
        begin: Callable[[psycopg.Connection], None] | None = None,
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
        yield
    except DataError as error:
        raise Invalid("request", "a value cannot be stored: " + _first_line(error)) from error
    except (OperationalError, InterfaceError, PoolTimeout) as error:
        raise Unavailable("the database does not answer: " + _first_line(error)) from error
    except DBAPIError as error:
        state = getattr(error.orig, "sqlstate", None) or ""
        if error.connection_invalidated or state.startswith(_AWAY):
            raise Unavailable("the database does not answer: " + _first_line(error)) from error
        raise


@contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A connection for one short read; errors as `translated` tells them."""
    with translated(), engine.connect() as conn:
        yield conn


@contextmanager
def ledger_errors() -> Iterator[None]:
    """Turns "the database is away" into LedgerAway, for the loops that know what to do then."""
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeout) as error:
        raise LedgerAway("the database does not answer: " + _first_line(error)) from error
    except DBAPIError as error:
        state = getattr(error.orig, "sqlstate", None) or ""
        if error.connection_invalidated or state.startswith(_AWAY):
            raise LedgerAway("the database does not answer: " + _first_line(error)) from error
        raise


def _first_line(error: Exception) -> str:
    cause = getattr(error, "orig", None) or error
    text = str(cause).strip()
    return text.splitlines()[0] if text else type(cause).__name__
