"""Measured samples in PostgreSQL: one row per report, written by COPY, read exactly once, kept for an hour.

The table is a ring of 8 partitions of 15 minutes (`tables.samples`), chosen by the time of arrival. `forget`
truncates expired partitions.
"""

import struct
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import sqlalchemy as sa
import structlog
from psycopg.errors import LockNotAvailable
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from healer.adapters.postgres.engine import DedicatedConnection, pick, reading, storage_error, writing
from healer.adapters.postgres.tables import SAMPLE_SLOTS, signal_columns
from healer.model import Column, Part
from healer.model.packed import PackedReport, pack_report, pack_steps, unpack_reports, unpack_steps
from healer.model.telemetry import UNNAMED_SENDER, Report, StepBatch
from healer.ports.measurements import TooManyColumns
from healer.ports.transactions import LedgerAway
from healer.text import say

log = structlog.get_logger()

#: How far back a reader starts: the longest window of a rule.
WINDOW = timedelta(minutes=15)
#: Rows in one answer of `new`.
CHUNK = 10_000
METRICS, STEPS = "metrics", "steps"

#: A stored row: kind, subject, at, arrived_at, body, relayed_by.
Row = tuple[str, str, datetime, datetime, bytes, str | None]

_SLOT_S = 900
#: Slots before the current one that may hold rows of the last 60 minutes.
_KEPT = 4
_ERRORS = (psycopg.Error, SQLAlchemyError)

# --- writing ---------------------------------------------------------------------------------------------

_COPY = (
    "COPY samples (cluster, kind, relayed_by, subject, at, arrived_at, slot, body) FROM STDIN (FORMAT BINARY)"
)
_COPY_HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_END = b"\xff\xff"
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_length = struct.Struct(">i").pack
#: at, arrived_at and slot, each preceded by its length, and the length of the body.
_tail = struct.Struct(">iqiqihi").pack


def slot_of(arrived_at: datetime) -> int:
    """The partition of rows that arrived then."""
    return int(arrived_at.timestamp() // _SLOT_S) % SAMPLE_SLOTS


class PostgresSamples:
    """`healer.ports.measurements.Samples` of one cluster. One thread may put reports, one steps, and one may
    read.

    `put` and `put_steps` raise Unavailable or Unstorable; then nothing of the call is stored. `new` raises
    LedgerAway and then starts over: after a crash of the server, transaction ids may be assigned again, so
    the last snapshot does not identify new rows.
    """

    def __init__(self, engine: sa.Engine, cluster: str) -> None:
        # A crash of the server loses at most 0.6 s of metrics, which are sent again; no writer waits for the
        # disk. Step times are sent once.
        self._metrics = _Writer(engine, "SET synchronous_commit = off")
        self._steps = _Writer(engine, "SET synchronous_commit = on")
        self._reader = _Reader(engine, cluster)
        self._cluster = cluster

    def put(self, reports: Sequence[Report]) -> None:
        self._metrics.copy(
            (
                (report.cluster, METRICS, report.relayed_by),
                report.node,
                report.at,
                report.arrived_at,
                pack_report(report),
            )
            for report in reports
        )

    def put_steps(self, batches: Sequence[StepBatch]) -> None:
        self._steps.copy(
            ((batch.cluster, STEPS, ""), batch.job, batch.arrived_at, batch.arrived_at, pack_steps(batch))
            for batch in batches
        )

    def new(self) -> tuple[list[Report], list[StepBatch]]:
        """New reports and step times, at most `CHUNK` rows; both lists are empty when there are none left."""
        try:
            rows = self._reader.rows()
        except _ERRORS as error:
            self._reader.close()
            raise LedgerAway(say("adapters.database_silent", error=type(error).__name__)) from error
        since = self._reader.since
        return unpacked(self._cluster, rows if since is None else (_dated(row, since) for row in rows))

    def close(self) -> None:
        for part in (self._metrics, self._steps, self._reader):
            part.close()


def unpacked(cluster: str, rows: Iterable[Row]) -> tuple[list[Report], list[StepBatch]]:
    """The reports and step times in these rows, in order. An unreadable row, perhaps of another version, is
    logged and skipped."""
    packed: list[PackedReport] = []
    batches: list[StepBatch] = []
    for kind, subject, at, arrived_at, body, relayed_by in rows:
        if kind == METRICS:
            sender = UNNAMED_SENDER if relayed_by is None else relayed_by
            packed.append(PackedReport(subject, at, arrived_at, body, sender))
            continue
        try:
            batches.append(unpack_steps(body, cluster=cluster, job=subject, arrived_at=arrived_at))
        except ValueError as error:
            _log_unreadable(subject, error)
    reports: list[Report] = []
    for row, report in zip(packed, unpack_reports(cluster, packed), strict=True):
        if isinstance(report, Report):
            reports.append(report)
        else:
            _log_unreadable(row.node, report)
    return reports, batches


def _dated(row: Row, since: datetime) -> Row:
    """This row, which came after `since`. If its time says otherwise, the clock of the host where it arrived
    is behind: that host takes the sender's times for times of the future, and replaces them by its own. Step
    times may have waited in a spool."""
    kind, subject, at, arrived_at, body, relayed_by = row
    if kind != METRICS or arrived_at >= since:
        return row
    return kind, subject, max(at, since) if at >= arrived_at else at, since, body, relayed_by


def _log_unreadable(subject: str, error: ValueError) -> None:
    log.warning("unreadable row of samples", subject=subject, error=str(error))


class _Writer:
    """A connection for COPY. Each call is one transaction."""

    def __init__(self, engine: sa.Engine, setting: str) -> None:
        self._connection = DedicatedConnection(engine, begin=lambda conn: conn.execute(setting.encode()))

    def copy(self, rows: "Iterable[_NewRow]") -> None:
        block = _block(rows)
        try:
            with (
                self._connection.writing() as connection,
                connection.cursor() as cursor,
                cursor.copy(_COPY) as copy,
            ):
                copy.write(block)
        except _ERRORS as error:
            self.close()
            raise storage_error(error) from error

    def close(self) -> None:
        self._connection.close()


#: (cluster, kind, relayed_by), subject, at, arrived_at, body.
_NewRow = tuple[tuple[str, str, str], str, datetime, datetime, bytes]


def _block(rows: Iterable[_NewRow]) -> bytes:
    """The rows in the format of PostgreSQL's binary COPY."""
    parts = [_COPY_HEAD]
    heads: dict[tuple[str, str, str], bytes] = {}
    arrival, arrived, slot = None, 0, 0
    for source, subject, at, arrived_at, body in rows:
        head = heads.get(source)
        if head is None:
            head = heads[source] = b"\0\x08" + b"".join(map(_text, source))
        if arrived_at is not arrival:
            arrival, arrived, slot = arrived_at, (arrived_at - _EPOCH) // _MICROSECOND, slot_of(arrived_at)
        moment = arrived if at is arrived_at else (at - _EPOCH) // _MICROSECOND
        parts += (head, _text(subject), _tail(8, moment, 8, arrived, 2, slot, len(body)), body)
    parts.append(_COPY_END)
    return b"".join(parts)


def _text(value: str) -> bytes:
    raw = value.encode()
    return _length(len(raw)) + raw


# --- reading ---------------------------------------------------------------------------------------------

_FIELDS = (
    "SELECT kind, subject, at, arrived_at, body, relayed_by FROM samples WHERE cluster = %(cluster)s AND "
)
_FIRST = _FIELDS + "arrived_at > %(since)s AND slot = ANY(%(slots)s) ORDER BY tx, id"
# Visible now and not in the snapshot of the last pass: a transaction that commits late is read, and none is
# read twice.
_NEXT = _FIELDS + (
    "tx >= pg_snapshot_xmin(%(seen)s::pg_snapshot) "
    "AND NOT pg_visible_in_snapshot(tx, %(seen)s::pg_snapshot) ORDER BY tx, id"
)


class _Reader:
    """Reads rows that became visible since the last pass. A pass is one transaction of one or more calls."""

    def __init__(self, engine: sa.Engine, cluster: str) -> None:
        self._cluster = cluster
        self._connection = DedicatedConnection(engine, begin=_begin_reading)
        self._cursor: psycopg.ServerCursor[Any] | None = None
        #: PostgreSQL snapshots of the last complete pass and of the current one, and when they were taken.
        self._last_snapshot: str | None = None
        self._snapshot = ""
        self._begun: datetime | None = None
        #: The rows of this pass came later; None of the first pass, which reads what came before.
        self.since: datetime | None = None

    def rows(self) -> list[Row]:
        """At most CHUNK rows in the order of their transactions."""
        if self._cursor is None:
            self._cursor = self._begin_pass()
        rows = self._cursor.fetchmany(CHUNK)
        if len(rows) < CHUNK:
            self._cursor.close()
            self._cursor = None
            self._connection.get().commit()
            self._last_snapshot = self._snapshot
        return rows

    def _begin_pass(self) -> "psycopg.ServerCursor[Any]":
        connection = self._connection.get()
        row = connection.execute("SELECT pg_current_snapshot()::text, now()").fetchone()
        assert row is not None
        self._snapshot, now = row
        self.since, self._begun = self._begun if self._last_snapshot is not None else None, now
        cursor = connection.cursor("new_samples", binary=True)
        if self._last_snapshot is not None:
            cursor.execute(_NEXT, {"cluster": self._cluster, "seen": self._last_snapshot})
            return cursor
        # Also the next slot: the clock of the API's machine may be ahead.
        slots = sorted({slot_of(now + timedelta(seconds=_SLOT_S * step)) for step in (-1, 0, 1)})
        cursor.execute(_FIRST, {"cluster": self._cluster, "since": now - WINDOW, "slots": slots})
        return cursor

    def close(self) -> None:
        self._cursor, self._last_snapshot = None, None
        self._connection.close()


def _begin_reading(connection: psycopg.Connection) -> None:
    # The partitions are never analysed, so the planner would guess. The index on `tx` is always right: rows
    # are stored in its order, and no sort delays the first row.
    for plan in ("seqscan", "bitmapscan", "sort"):
        connection.execute(f"SET enable_{plan} = off".encode())
    connection.autocommit = False
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.read_only = True


# --- forgetting ------------------------------------------------------------------------------------------


#: By the index on `tx`; no row where the slot is empty.
_NEWEST_IS_OLD = "SELECT arrived_at < clock_timestamp() - :kept FROM {} ORDER BY tx DESC LIMIT 1"


def forget(engine: sa.Engine, now: datetime, *, kept: int = _KEPT) -> list[int]:
    """Truncates the slots whose rows all arrived over 60 minutes ago; returns those slots.

    `kept`: the number of slots kept before the current one; 1 still covers the longest window. The next slot
    is kept too: an API whose clock is ahead may already write there. So is a slot whose newest row is young
    by the database's clock: ours is wrong. Gives up on a slot after waiting 0.2 s for its lock, so that no
    reader or writer is delayed.
    """
    here = slot_of(now)
    done: list[int] = []
    for behind in range(kept + 1, SAMPLE_SLOTS - 1):
        slot = (here - behind) % SAMPLE_SLOTS
        table = f"samples_{slot}"
        try:
            with engine.begin() as conn:
                conn.execute(sa.text("SET LOCAL lock_timeout = '200ms'"))
                is_old = sa.text(_NEWEST_IS_OLD.format(table))
                if not conn.scalar(is_old, {"kept": timedelta(seconds=kept * _SLOT_S)}):
                    continue
                conn.execute(sa.text(f"TRUNCATE {table}"))
        except OperationalError as error:
            if not isinstance(error.orig, LockNotAvailable):
                raise
            continue
        done.append(slot)
    return done


COLUMNS_MAX = 100_000


class PostgresColumns:
    """`healer.ports.measurements.ColumnBook`. Numbers never change and are cached. Raises Unavailable."""

    def __init__(self, engine: sa.Engine, *, most: int = COLUMNS_MAX) -> None:
        self._engine, self._most = engine, most
        self._ids: dict[Column, int] = {}
        self._columns: dict[int, Column] = {}
        self._last = 0

    def ids(self, columns: Sequence[Column]) -> list[int]:
        ids = self._ids
        if any(column not in ids for column in columns):
            self._refresh()
            new = list(dict.fromkeys(column for column in columns if column not in ids))
            if new:
                self._check_bound(new)
                self._assign(new)
        return [ids[column] for column in columns]

    def columns(self, ids: Iterable[int]) -> dict[int, Column]:
        wanted = list(ids)
        if any(number not in self._columns for number in wanted):
            self._refresh()
        return {number: self._columns[number] for number in wanted if number in self._columns}

    def _refresh(self) -> None:
        """Reads the numbers that other processes assigned meanwhile."""
        with reading(self._engine) as conn:
            self._read_new(conn)

    def _read_new(self, conn: sa.Connection) -> None:
        """Numbers become visible in order (`_assign`), so reading starts after the last one."""
        new = sa.select(signal_columns).where(signal_columns.c.id > self._last).order_by(signal_columns.c.id)
        for row in conn.execute(new):
            column = Column(row.signal, Part(gpu=row.gpu, link=row.link, port=row.port))
            self._columns[row.id] = column
            self._ids[column] = self._last = row.id

    def _assign(self, columns: Sequence[Column]) -> None:
        with writing(self._engine) as conn:
            # One process at a time: the bound is exact, and no number is visible before a smaller one.
            conn.execute(sa.text("LOCK TABLE signal_columns IN SHARE ROW EXCLUSIVE MODE"))
            self._read_new(conn)
            new = [column for column in columns if column not in self._ids]
            if not new:
                return
            self._check_bound(new)
            rows = [{"signal": column.signal, **pick(column.part, "gpu", "link", "port")} for column in new]
            conn.execute(sa.insert(signal_columns), rows)
        # Cached only after the commit, in case of a rollback.
        self._refresh()

    def _check_bound(self, new: Sequence[Column]) -> None:
        if len(self._ids) + len(new) > self._most:
            raise TooManyColumns(say("adapters.too_many_series", most=self._most, n=len(self._ids)))
