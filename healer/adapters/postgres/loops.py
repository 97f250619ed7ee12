"""PostgreSQL for the loops: leader election, heartbeats, and wake-ups."""

import time
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime

import psycopg
import sqlalchemy as sa
import structlog
from psycopg import sql
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from healer.adapters.postgres.engine import DedicatedConnection, confirm, reading, upsert
from healer.adapters.postgres.tables import beats, scrapes, slots
from healer.ports.clock import Clock
from healer.ports.lease import LEASE, NAP, SENT, UNHEARD

log = structlog.get_logger()


def part_lock(part: str, cluster: str) -> str:
    """The name of the advisory lock (its hashtextextended) of a cluster's detector or scraper."""
    return f"{part}:{cluster}"


_IS_HELD = (
    "locktype = 'advisory' AND granted AND objsubid = 1 "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND classid::bigint = ((key >> 32) & 4294967295) AND objid::bigint = (key & 4294967295)"
)
_HOLDER = sa.text(
    "SELECT pid FROM pg_locks, (SELECT hashtextextended(:name, 0) AS key) AS wanted "  # noqa: S608
    f"WHERE {_IS_HELD}"
)
#: The sessions that hold one of these and do nothing, not even wait.
_IDLE_HOLDERS = sa.text(
    "SELECT DISTINCT pid, state_change FROM pg_locks JOIN pg_stat_activity USING (pid), "  # noqa: S608
    "(SELECT hashtextextended(name, 0) AS key FROM unnest(CAST(:names AS text[])) AS given (name)) AS wanted "
    f"WHERE state LIKE 'idle%' AND {_IS_HELD}"
)


#: Of the same login; another's is left alone.
_END_SESSION = sa.text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE pid = :pid AND pg_has_role(usesysid, 'USAGE')"
)


def _holder(conn: sa.Connection, name: str) -> int | None:
    """The process of the server whose session holds the lock."""
    return conn.execute(_HOLDER, {"name": name}).scalar()


def lock_held(conn: sa.Connection, name: str) -> bool:
    return _holder(conn, name) is not None


def try_lead(conn: sa.Connection, cluster: str, part: str = "detector") -> bool:
    """True when this connection now leads. The lock lasts as long as the connection."""
    got = conn.execute(
        sa.text("SELECT pg_try_advisory_lock(hashtextextended(:name, 0))"), {"name": part_lock(part, cluster)}
    ).scalar_one()
    conn.commit()
    return bool(got)


def wait_to_lead(
    engine: sa.Engine, cluster: str, stopped: Callable[[float], bool], part: str = "detector"
) -> sa.Connection | None:
    """The connection that leads; None where `stopped`, which waits for so many seconds, says so.

    While another leads, a failover of the database is waited for: this one then leads without a start.
    Raises OperationalError where the database does not answer at first.
    """
    connection = engine.connect()
    silence = _Silence(cluster, part)
    while True:
        try:
            if try_lead(connection, cluster, part):
                return connection
            silence.look(connection)
        except OperationalError as error:
            log.warning("waiting for the database", error=str(error.orig))
            connection.rollback()  # the next statement connects again
        if stopped(1.0):
            return None


def _commits(conn: sa.Connection) -> bool:
    """Whether a commit ends within the interval of heartbeats. It waits for what a leader's commits wait for,
    the disk and a synchronous standby."""
    begun = time.monotonic()
    confirm(conn)
    conn.commit()
    return time.monotonic() - begun < BEAT_S


class _Silence:
    """Watches for a frozen leader, which keeps its session and with it the lock. It is safe to end the
    session, because a detector commits on no other, and a scraper no more than samples."""

    def __init__(self, cluster: str, part: str) -> None:
        self._cluster, self._part = cluster, part
        self._seen: tuple[int | None, datetime | None] = None, None
        self._looks = 0

    def look(self, conn: sa.Connection) -> None:
        """Call it once a second. Ends the leader's session after `DEAD_AFTER_S` looks without a new
        heartbeat. It counts looks, because time also passes while the database stores no heartbeat."""
        beat_at = _beat_at(conn, self._cluster, self._part)
        seen = _holder(conn, part_lock(self._part, self._cluster)), beat_at
        self._looks = self._looks + 1 if seen == self._seen and None not in seen else 0
        self._seen = seen
        if self._looks > 2 * BEAT_S and not _commits(conn):
            self._looks = 0
        if self._looks >= DEAD_AFTER_S:
            ended = conn.execute(_END_SESSION, {"pid": seen[0]}).scalar()
            log.warning("leader is frozen", part=self._part, last_heartbeat=str(beat_at), ended=bool(ended))
            self._looks = 0
        conn.commit()


class FrozenWorkers:
    """Watches for frozen workers: such a one keeps its session, and with it the runs that it holds. It is
    safe to end the session: whatever it does when it continues needs a proof of its claim there."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._seen: dict[int, tuple[datetime, int]] = {}

    def look(self, due: Sequence[str]) -> None:
        """Call it once a second with the runs that are due. Ends each session that holds one and was not used
        for `DEAD_AFTER_S` looks: a worker uses its own every `BEAT_S`. Counts looks, like `_Silence`."""
        before, self._seen = self._seen, {}
        if not due:
            return
        with self._engine.begin() as conn:
            for pid, used_at in conn.execute(_IDLE_HOLDERS, {"names": list(due)}):
                last_at, looks = before.get(pid, (None, 0))
                self._seen[pid] = used_at, looks + 1 if last_at == used_at else 0
                if self._seen[pid][1] >= DEAD_AFTER_S:
                    ended = conn.execute(_END_SESSION, {"pid": pid}).scalar()
                    log.warning("worker is frozen", last_used=str(used_at), ended=bool(ended))
                    del self._seen[pid]


def returned_nodes(conn: sa.Connection, cluster: str) -> list[tuple[str, datetime]]:
    """The last return of each node to service: older signals are history, also after a restart. One that was
    never drained was not returned: its slot was given up."""
    returned = slots.c.released_at.is_not(None), slots.c.drained_at.is_not(None)
    rows = conn.execute(
        sa.select(slots.c.node, sa.func.max(slots.c.released_at))
        .where(slots.c.cluster == cluster, *returned)
        .group_by(slots.c.node)
    )
    return [(row[0], row[1]) for row in rows]


#: The interval of heartbeats, and the silence after which a part counts as dead.
BEAT_S = 5.0
DEAD_AFTER_S = 60.0


class Heartbeat:
    """Stores a heartbeat when called, at most every `BEAT_S`. Never raises: a failed write is silence."""

    def __init__(
        self, engine: sa.Engine, cluster: str, part: str, stopwatch: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine, self._key, self._stopwatch = engine, {"cluster": cluster, "part": part}, stopwatch
        self._last = float("-inf")

    def __call__(self) -> None:
        now = self._stopwatch()
        if now - self._last < BEAT_S:
            return
        self._last = now
        try:
            with self._engine.begin() as conn:
                conn.execute(upsert(beats, self._key, {"at": sa.func.clock_timestamp()}))
        except SQLAlchemyError as error:
            log.warning("heartbeat not stored", part=self._key["part"], error=str(error))


#: Before the name of a witness of the audit, in its heartbeats; they stop when it does not answer.
WITNESS_PART = "witness "
#: The heartbeat of a process that is no longer expected.
RETIRED = datetime(1970, 1, 1, tzinfo=UTC)


def expect_witnesses(engine: sa.Engine, cluster: str, names: Collection[str]) -> None:
    """From now on these are expected to answer, and no others."""
    parts = [f"{WITNESS_PART}{name}" for name in names]
    witnesses = (beats.c.cluster == cluster, beats.c.part.startswith(WITNESS_PART))
    with engine.begin() as conn:
        conn.execute(sa.update(beats).where(*witnesses, beats.c.part.not_in(parts)).values(at=RETIRED))
        for part in parts:
            begin = insert(beats).values(cluster=cluster, part=part, at=sa.func.clock_timestamp())
            again = {"at": sa.case((beats.c.at > RETIRED, beats.c.at), else_=sa.func.clock_timestamp())}
            conn.execute(begin.on_conflict_do_update(index_elements=["cluster", "part"], set_=again))


def read_beats(conn: sa.Connection, cluster: str) -> dict[str, datetime]:
    """When each part was last heard."""
    rows = conn.execute(sa.select(beats.c.part, beats.c.at).where(beats.c.cluster == cluster))
    return {row.part: row.at for row in rows}


def _beat_at(conn: sa.Connection, cluster: str, part: str) -> datetime | None:
    """The part's last heartbeat; a scraper's are its reports."""
    if part != "scraper":
        return read_beats(conn, cluster).get(part)
    return conn.scalar(sa.select(scrapes.c.at).where(scrapes.c.cluster == cluster))


def beats_on(engine: sa.Engine, cluster: str, part: str) -> bool:
    """Whether the part sent a heartbeat within `DEAD_AFTER_S`."""
    with reading(engine) as conn:
        return beat_lately(conn, cluster, part) is True


def beat_lately(conn: sa.Connection, cluster: str, part: str) -> bool | None:
    """Whether the part sent a heartbeat within `DEAD_AFTER_S`; None if it never sent one."""
    since = sa.func.clock_timestamp() - sa.func.make_interval(0, 0, 0, 0, 0, 0, DEAD_AFTER_S)
    lately = sa.select(beats.c.at > since).where(beats.c.cluster == cluster, beats.c.part == part)
    return conn.execute(lately).scalar()


class Waker:
    """LISTENs on a dedicated connection for commits elsewhere. A missed notification costs one tick."""

    def __init__(self, engine: sa.Engine, channels: Sequence[str]) -> None:
        def listen(connection: psycopg.Connection) -> None:
            for channel in channels:
                connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))

        self._connection = DedicatedConnection(engine, begin=listen)

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


# The conditions of `PostgresLedger.due_runs`, `PostgresOutbox.claim`, `PostgresPlanTx.unrouted` and
# `PostgresChain.unsealed`.
_WORK = {
    "sweep": """SELECT FROM runs WHERE cluster = %(cluster)s AND state = 'running'
        AND (wake_at IS NULL OR wake_at <= %(now)s OR wake_at > %(wrong_nap)s)
        AND (lease_until IS NULL OR lease_until <= %(unheard)s OR lease_until > %(wrong_lease)s)
        AND (epoch > 0 OR created_at <= %(sent)s OR created_at > %(now)s)""",
    "deliver": "SELECT FROM messages WHERE state = 'due' AND (next_try_at <= %(now)s OR next_try_at = at)",
    "tell": """SELECT 1 FROM messages WHERE cluster = %(cluster)s AND NOT routed
        UNION ALL SELECT 1 FROM deliveries
        WHERE cluster = %(cluster)s AND state = 'due' AND next_try_at <= %(now)s""",
    "seal": "SELECT FROM audit_unsealed",
}
_STATEMENT = ("SELECT " + ", ".join(f"EXISTS ({query})" for query in _WORK.values())).encode()


class PendingDuties:
    """Callable: the names of the duties that have work, of `sweep`, `deliver`, `tell` and `seal`.

    One round trip on a dedicated connection; a pooled one takes four. Raises database errors; the next call
    reconnects.
    """

    def __init__(self, engine: sa.Engine, cluster: str, clock: Clock) -> None:
        self._cluster, self._clock = cluster, clock
        self._connection = DedicatedConnection(engine, prepare_threshold=0)

    def __call__(self) -> set[str]:
        try:
            connection, now = self._connection.get(), self._clock.now()
            asked = {"cluster": self._cluster, "now": now}
            asked |= {"unheard": now + LEASE - UNHEARD, "sent": now - SENT}
            asked |= {"wrong_lease": now + 2 * LEASE, "wrong_nap": now + 2 * NAP}
            row = connection.execute(_STATEMENT, asked).fetchone()
        except BaseException:
            self.close()
            raise
        assert row is not None
        return {name for name, waits in zip(_WORK, row, strict=True) if waits}

    def close(self) -> None:
        self._connection.close()
