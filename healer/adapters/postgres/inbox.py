"""The inbox: accepted signals and commands, until the walk takes them. Accepted means committed with fsync.

The `doc` of a row is the JSON of an Observation, or of a Command for `kind = 'command'`. `digest` is unique:
what is sent twice is stored once.
"""

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

import msgspec
import psycopg
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.exc import SQLAlchemyError

from healer.adapters.postgres.engine import (
    ClusterStore,
    DedicatedConnection,
    Lane,
    alone,
    confirm,
    ledger_reading,
    matches,
    read_structs,
    reading,
    storage_error,
    write_docs,
)
from healer.adapters.postgres.tables import inbox
from healer.model import (
    Command,
    CommandKind,
    Component,
    JobCheckpoint,
    Observation,
    ObservationKind,
    Review,
)
from healer.model.detection import KERNEL_LINES
from healer.ports.signal_stores import Arrival
from healer.text import from_stored, stored


def inbox_channel(cluster: str) -> str:
    """The channel of the NOTIFY that wakes this cluster's detector, and no other; it also polls."""
    return f"healer_inbox:{cluster}"


_WAKE = "SELECT pg_notify(channel, '') FROM unnest(%s::text[]) AS channel"

# One JSON parameter for all rows: much faster than adapting six arrays.
_INSERT = """
INSERT INTO inbox (cluster, kind, node, digest, arrived_at, doc)
SELECT
  doc #>> '{component,cluster}', doc ->> 'kind', doc #>> '{component,node}',
  decode(doc ->> 'digest', 'hex'), (doc ->> 'arrived_at')::timestamptz, doc
FROM jsonb_array_elements(%s::jsonb) AS doc
ON CONFLICT (digest) DO NOTHING
RETURNING encode(digest, 'hex')
"""

#: Alerts that a starting detector reads: as many as it remembers, with a few repetitions each.
_ALERTS_READ = 100_000
#: Alerts of one node: as many as are remembered of it (`observations.alerts`), with repetitions.
_ALERTS_OF_NODE = 2_000
#: Deadlocks in a row after which a batch is given up.
_DEADLOCKS = 5

#: One node gets at most 1/SHARE of a full batch while others wait.
SHARE = 10
#: Queries for other nodes' rows behind those of flooding nodes, each excluding more nodes.
_LOOKS = 8
#: Ids are assigned before the commit: a row may become visible after this many later ones.
_SLACK = 20_000

_COLUMNS = (inbox.c.id, inbox.c.cluster, inbox.c.kind, inbox.c.digest, inbox.c.arrived_at, inbox.c.doc)

_encode = msgspec.json.Encoder(enc_hook=stored).encode


class PostgresSignals:
    """The durable end of the API's group commit, for one thread, with a dedicated connection."""

    def __init__(self, engine: sa.Engine) -> None:
        self._connection = DedicatedConnection(engine, prepare_threshold=1)

    def store(self, arrivals: Sequence[Arrival]) -> list[bool]:
        """Stores all in one commit; returns for each arrival whether it was new. Raises Unavailable or
        Unstorable; then nothing was stored."""
        try:
            with self._connection.writing() as connection:
                for _ in range(_DEADLOCKS):
                    # Two processes store the same signals in different orders: one of them has to repeat.
                    with contextlib.suppress(psycopg.errors.DeadlockDetected):
                        return self._store(connection, arrivals)
                return self._store(connection, arrivals)
        except (psycopg.Error, SQLAlchemyError) as error:
            self.close()
            raise storage_error(error) from error

    def close(self) -> None:
        self._connection.close()

    def _store(self, connection: psycopg.Connection, arrivals: Sequence[Arrival]) -> list[bool]:
        others = sorted({digest for arrival in arrivals for digest in arrival.also})
        stored_before: set[str] = set()
        if others:
            rows = connection.execute(
                "SELECT encode(digest, 'hex') FROM inbox WHERE digest = ANY(%s)",
                [[bytes.fromhex(digest) for digest in others]],
            )
            stored_before = {row[0] for row in rows}
        fresh: list[Observation] = []
        taken: set[str] = set()
        for arrival in arrivals:
            if not stored_before.isdisjoint(arrival.also) or not taken.isdisjoint(arrival.also):
                continue
            fresh.append(arrival.observation)
            taken.add(arrival.observation.digest)
        stored = insert_observations(connection, fresh)
        if not stored:
            confirm(connection)  # a duplicate of a row that no standby has yet is not safe
        result: list[bool] = []
        for arrival in arrivals:
            digest = arrival.observation.digest
            result.append(digest in stored)
            stored.discard(digest)
        return result


def insert_observations(connection: psycopg.Connection, observations: Sequence[Observation]) -> set[str]:
    """Inserts new signals and wakes the detector. Returns the digests (hex) of new rows.

    On an autocommit connection the INSERT is durable when it returns. The NOTIFY has its own transaction:
    inside the INSERT's it would hold the notification lock during the fsync.
    """
    if not observations:
        return set()
    # PostgreSQL's text cannot hold NUL; one NUL must not fail the whole batch.
    rows_json = _encode(observations).decode().replace("\\u0000", "\\ufffd")
    rows = connection.execute(_INSERT, [rows_json])
    stored = {row[0] for row in rows}
    woken = {seen.component.cluster for seen in observations if _wakes(seen) and seen.digest in stored}
    if woken:
        connection.execute(_WAKE, [[*map(inbox_channel, woken)]])
    return stored


def _wakes(observation: Observation) -> bool:
    """Whether it wakes the detector. Heartbeats and passed hooks wait for the next tick: a large fleet sends
    hundreds a second."""
    passed = observation.kind is ObservationKind.hook and not observation.data.get("failed")
    return not passed and observation.kind is not ObservationKind.heartbeat


_COMMANDS = sa.text("""
INSERT INTO inbox (cluster, kind, digest, arrived_at, doc)
SELECT doc #>> '{command,cluster}', 'command', decode(doc->>'digest', 'hex'),
  (doc #>> '{command,at}')::timestamptz, doc->'command'
FROM jsonb_array_elements(CAST(:rows AS jsonb)) WITH ORDINALITY AS given (doc, place) ORDER BY place
ON CONFLICT (digest) DO NOTHING
""")


def put_commands(conn: sa.Connection, commands: Sequence[tuple[Command, str]]) -> None:
    """Adds commands, each with the request name under which it is stored once. The NOTIFY is sent with the
    commit."""
    if commands:
        rows = [
            {"digest": command_digest(command, name).hex(), "command": command} for command, name in commands
        ]
        write_docs(conn, _COMMANDS, rows)
        woken = {command.cluster for command, _ in commands}
        conn.exec_driver_sql(_WAKE, ([*map(inbox_channel, woken)],))


def put_command(conn: sa.Connection, command: Command, *, request: str) -> int:
    """Adds a command and returns the id of its row; the same `request` again is the same row."""
    put_commands(conn, [(command, request)])
    query = sa.select(inbox.c.id).where(inbox.c.digest == command_digest(command, request))
    return conn.execute(query).scalar_one()


def pending_reviews(conn: sa.Connection) -> dict[str, Review]:
    """By incident: people's reviews that the detector has not taken yet."""
    doc, kind = inbox.c.doc, inbox.c.kind == ObservationKind.command.value
    query = sa.select(doc["incident"].astext, doc["data"]["review"].astext).where(
        inbox.c.consumed_at.is_(None), kind, doc["kind"].astext == CommandKind.review.value
    )
    return {incident: Review(review) for incident, review in conn.execute(query.order_by(inbox.c.id))}


def command_digest(command: Command, request: str) -> bytes:
    return hashlib.sha256(f"command\0{command.cluster}\0{request}".encode()).digest()


def observation_of(row: sa.Row) -> Observation:
    """The observation in a row of the inbox. For a command, `data` is the JSON of the Command."""
    if row.kind != ObservationKind.command.value:
        return msgspec.structs.replace(from_stored(row.doc, Observation), inbox_id=row.id)
    command = from_stored(row.doc, Command)
    return Observation(
        digest=bytes(row.digest).hex(),
        kind=ObservationKind.command,
        component=Component(cluster=row.cluster),
        event_at=command.at,
        arrived_at=row.arrived_at,
        text=command.kind.value,
        data=row.doc,
        inbox_id=row.id,
    )


#: Marks rows as consumed, in the walk's transaction.
CONSUME = sa.text("""
UPDATE inbox SET consumed_at = :at
WHERE id IN (SELECT given::bigint FROM jsonb_array_elements_text(CAST(:rows AS jsonb)) AS given)
""")


def alerts(
    conn: sa.Connection, cluster: str, since: datetime, *, node: str | None = None, limit: int
) -> list[Observation]:
    """The newest alerts of a cluster, or of one node, oldest first. At most `_ALERTS_OF_NODE` of each node,
    so that a noisy node hides no other."""
    newest = (inbox.c.arrived_at.desc(), inbox.c.id.desc())
    rank = sa.func.row_number().over(partition_by=inbox.c.node, order_by=newest)
    ranked = (
        sa.select(*_COLUMNS, inbox.c.node, rank.label("rank"))
        .where(inbox.c.cluster == cluster, inbox.c.kind == ObservationKind.alert.value)
        .where(inbox.c.arrived_at >= since, matches(inbox.c.node, node))
        .subquery()
    )
    wanted = (
        sa.select(ranked)
        .where(sa.or_(ranked.c.node.is_(None), ranked.c.rank <= _ALERTS_OF_NODE))
        .order_by(ranked.c.arrived_at.desc(), ranked.c.id.desc())
        .limit(limit)
    )
    return [observation_of(row) for row in reversed(conn.execute(wanted).all())]


class FairQueue:
    """Selects the next rows for the walk of one cluster: in order of arrival, but fair to all nodes.

    By id alone, a node that floods the inbox would delay all others until its rows are consumed.
    """

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        #: Up to this id only flooding nodes have pending rows, except rows that became visible very late.
        self._searched, self._flooding = 0, frozenset[str]()

    def take(self, conn: sa.Connection, limit: int) -> Sequence[sa.Row]:
        """At most `limit` pending rows, by id. If more are pending, a node gets `limit / SHARE` of them at
        most, unless the others do not fill the rest."""
        found = self._oldest(conn, limit)
        share = max(1, limit // SHARE)
        if len(found) < limit:
            self._searched, self._flooding = 0, frozenset()
            return found
        flooding = _over(found, share)
        if not flooding:
            return found
        if not flooding >= self._flooding:
            self._searched = 0  # skipped rows may belong to nodes that no longer flood
        last = conn.execute(sa.select(sa.func.max(inbox.c.id))).scalar() or 0
        rows = {row.id: row for row in found}
        for _ in range(_LOOKS):
            others = self._oldest(conn, limit, flooding, self._searched)
            rows |= {row.id: row for row in others}
            more = _over(others, share) - flooding
            if not more or len(others) < limit:
                break
            flooding |= more
        first = min((row.id for row in rows.values() if row.node not in flooding), default=last + 1)
        self._searched, self._flooding = max(0, min(first - 1, last - _SLACK)), frozenset(flooding)
        return _share_batch([rows[number] for number in sorted(rows)], share, limit)

    def _oldest(
        self, conn: sa.Connection, limit: int, without: Iterable[str] = (), after: int = 0
    ) -> Sequence[sa.Row]:
        wanted = (
            sa.select(*_COLUMNS, inbox.c.node)
            .where(inbox.c.cluster == self._cluster, inbox.c.consumed_at.is_(None), inbox.c.id > after)
            .order_by(inbox.c.id)
            .limit(limit)
        )
        if nodes := sorted(without):
            wanted = wanted.where(sa.or_(inbox.c.node.is_(None), inbox.c.node.not_in(nodes)))
        return conn.execute(wanted).all()


def _over(rows: Sequence[sa.Row], share: int) -> set[str]:
    """Nodes with more than `share` of these rows."""
    counts = Counter(row.node for row in rows if row.node is not None)
    return {node for node, count in counts.items() if count > share}


def _share_batch(rows: Sequence[sa.Row], share: int, limit: int) -> list[sa.Row]:
    """The first `share` rows of each node, then others up to `limit`; by id."""
    taken: Counter[str] = Counter()
    first: list[sa.Row] = []
    rest: list[sa.Row] = []
    for row in rows:
        taken[row.node] += row.node is not None
        (first if row.node is None or taken[row.node] <= share else rest).append(row)
    chosen = first[:limit]
    return sorted([*chosen, *rest[: limit - len(chosen)]], key=lambda row: row.id)


class PostgresInbox:
    """`healer.ports.signal_stores.Inbox` of one cluster."""

    def __init__(self, engine: sa.Engine, cluster: str) -> None:
        self._engine = engine
        self._cluster = cluster
        self._signals = PostgresSignals(engine)
        queue = FairQueue(cluster)
        #: A connection of its own: one from the pool takes three round trips more, in each walk.
        self._looks = Lane[int](alone(engine), lambda conn, limits: [queue.take(conn, n) for n in limits])

    def add(self, observations: Sequence[Observation]) -> int:
        return sum(self._signals.store([Arrival(observation) for observation in observations]))

    def unconsumed(self, limit: int) -> list[Observation]:
        return [observation_of(row) for row in self._looks.do(limit)]

    def since(self, moment: datetime, *, lines: datetime) -> Iterator[Observation]:
        """Reads with a server-side cursor, so that an hour of a storm fits into memory."""
        wanted = (inbox.c.arrived_at >= moment) | inbox.c.kind.in_(KERNEL_LINES)
        statement = (
            sa.select(*_COLUMNS)
            .where(inbox.c.cluster == self._cluster, inbox.c.arrived_at >= min(moment, lines), wanted)
            .order_by(inbox.c.arrived_at, inbox.c.id)
        )
        with self._engine.connect().execution_options(yield_per=1000) as conn:
            for row in conn.execute(statement):
                yield observation_of(row)

    def listed_gpus(self, since: datetime) -> list[Observation]:
        """The last signal of each node since then that lists its GPUs."""
        listing = (ObservationKind.heartbeat.value, ObservationKind.gpu_inventory.value)
        newest = (
            sa.select(*_COLUMNS)
            .ext(distinct_on(inbox.c.node))
            .where(inbox.c.cluster == self._cluster, inbox.c.arrived_at > since)
            .where(inbox.c.kind.in_(listing), inbox.c.doc["data"].has_key("gpus"))
            .order_by(inbox.c.node, inbox.c.arrived_at.desc(), inbox.c.id.desc())
        )
        with reading(self._engine) as conn:
            return [observation_of(row) for row in conn.execute(newest)]

    def alerts(self, moment: datetime) -> list[Observation]:
        with reading(self._engine) as conn:
            return alerts(conn, self._cluster, moment, limit=_ALERTS_READ)


# Ordered by the job's restarts, then by step: clocks are not compared.
_NEWEST_DURABLE = sa.text(
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
      AND (CAST(:since AS timestamptz) IS NULL OR arrived_at >= :since)
    ORDER BY restart DESC NULLS LAST, step DESC, at DESC
    LIMIT 1
    """
)


class PostgresCheckpoints(ClusterStore):
    """`healer.ports.transactions.Checkpoints` of one cluster."""

    def newest_durable(self, job: str, since: datetime | None = None) -> JobCheckpoint | None:
        with ledger_reading(self._engine) as conn:
            return newest_durable(conn, self.cluster, job, since)


def newest_durable(
    conn: sa.Connection, cluster: str, job: str, since: datetime | None = None
) -> JobCheckpoint | None:
    wanted = {"cluster": cluster, "job": job, "since": since}
    found = read_structs(conn, _NEWEST_DURABLE, JobCheckpoint, wanted)
    return found[0] if found else None
