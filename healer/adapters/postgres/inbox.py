"""The inbox: accepted signals and commands, until the walk takes them. Accepted means committed with fsync.

Every row's `doc` is the JSON of an Observation, but for `kind = 'command'`, where it is a Command; `digest`
is the row's identity and unique, so whatever is told twice is stored once.
"""

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

import msgspec
import psycopg
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from healer.adapters.postgres.engine import (
    DedicatedConnection,
    ledger_errors,
    read_structs,
    storage_error,
    write_docs,
)
from healer.adapters.postgres.tables import inbox
from healer.model import Command, Component, JobCheckpoint, Observation, ObservationKind
from healer.model.detection import KERNEL_LINES
from healer.ports.signal_stores import Arrival

#: Wakes the detector; what was missed it finds by its own poll.
CHANNEL = "healer_inbox"
#: Wakes the detector, with the commit.
TELL = sa.text("NOTIFY " + CHANNEL)

# One parameter for all rows: msgspec writes it far faster than six arrays are adapted.
_INSERT = """
INSERT INTO inbox (cluster, kind, node, digest, arrived_at, doc)
SELECT
  doc #>> '{component,cluster}', doc ->> 'kind', doc #>> '{component,node}',
  decode(doc ->> 'digest', 'hex'), (doc ->> 'arrived_at')::timestamptz, doc
FROM jsonb_array_elements(%s::jsonb) AS doc
ON CONFLICT (digest) DO NOTHING
RETURNING encode(digest, 'hex')
"""

#: Alerts that a detector reads when it starts: those that it remembers, each sent again a few times.
_ALERTS_READ = 100_000
#: Of one node: those that are remembered of it (`observations.picture`), each sent again many times.
_ALERTS_OF_NODE = 2_000
#: Deadlocks in a row after which a batch is not tried again.
_DEADLOCKS = 5

#: Of a full batch, so much may be one node's while others wait.
SHARE = 10
#: Looks for others behind floods; so many nodes that flood one behind the other are told apart.
_LOOKS = 8
#: Ids are given before the commit: a row may become visible behind so many later ones.
_SLACK = 20_000

_COLUMNS = (inbox.c.id, inbox.c.cluster, inbox.c.kind, inbox.c.digest, inbox.c.arrived_at, inbox.c.doc)

_encode = msgspec.json.Encoder().encode


class PostgresSignals:
    """The durable end of the API's group commit. One thread at a time; its connection is its own."""

    def __init__(self, engine: sa.Engine) -> None:
        self._connection = DedicatedConnection(engine, prepare_threshold=1)

    def store(self, arrivals: Sequence[Arrival]) -> list[bool]:
        """One INSERT, one commit. True where new. Raises Unavailable, or Unstorable where something of it is
        refused; then nothing was stored."""
        try:
            for _ in range(_DEADLOCKS):
                # Two processes stored the same signals in another order: one of them is asked to repeat.
                with contextlib.suppress(psycopg.errors.DeadlockDetected):
                    return self._store(arrivals)
            return self._store(arrivals)
        except (psycopg.Error, SQLAlchemyError) as error:
            self.close()
            raise storage_error(error) from error

    def close(self) -> None:
        self._connection.close()

    def _store(self, arrivals: Sequence[Arrival]) -> list[bool]:
        connection = self._connection.get()
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
        result: list[bool] = []
        for arrival in arrivals:
            digest = arrival.observation.digest
            result.append(digest in stored)
            stored.discard(digest)
        return result


def insert_observations(connection: psycopg.Connection, observations: Sequence[Observation]) -> set[str]:
    """Inserts what is new and wakes the detector; digests (hex) of what was new.

    On an autocommit connection the INSERT is durable when it returns, and the NOTIFY is a transaction of
    its own that writes nothing: inside the INSERT's it would hold the notification lock over the fsync.
    """
    if not observations:
        return set()
    # PostgreSQL's text holds no NUL; a sender's NUL must not cost the whole batch.
    rows_json = _encode(observations).decode().replace("\\u0000", "\\ufffd")
    rows = connection.execute(_INSERT, [rows_json])
    stored = {row[0] for row in rows}
    if any(_wakes(observation) and observation.digest in stored for observation in observations):
        connection.execute("NOTIFY " + CHANNEL)
    return stored


def _wakes(observation: Observation) -> bool:
    """What only says that a node is well waits for the next tick: on a large fleet it would wake a walk a
    hundred times a second."""
    well = observation.kind is ObservationKind.hook and not observation.data.get("failed")
    return not well and observation.kind is not ObservationKind.heartbeat


_COMMANDS = sa.text("""
INSERT INTO inbox (cluster, kind, digest, arrived_at, doc)
SELECT doc #>> '{command,cluster}', 'command', decode(doc->>'digest', 'hex'),
  (doc #>> '{command,at}')::timestamptz, doc->'command'
FROM jsonb_array_elements(CAST(:rows AS jsonb)) WITH ORDINALITY AS given (doc, place) ORDER BY place
ON CONFLICT (digest) DO NOTHING
""")


def put_commands(conn: sa.Connection, commands: Sequence[tuple[Command, str]]) -> None:
    """Puts commands into the inbox, each with the name under which it comes once. The NOTIFY leaves with the
    commit."""
    if commands:
        rows = [
            {"digest": command_digest(command, name).hex(), "command": command} for command, name in commands
        ]
        write_docs(conn, _COMMANDS, rows)
        conn.execute(TELL)


def put_command(conn: sa.Connection, command: Command, *, request: str) -> int:
    """The id of its row; the same `request` again is the same row."""
    put_commands(conn, [(command, request)])
    mine = inbox.c.digest == command_digest(command, request)
    return conn.execute(sa.select(inbox.c.id).where(mine)).scalar_one()


def command_digest(command: Command, request: str) -> bytes:
    """What makes the same request the same row."""
    return hashlib.sha256(f"command\0{command.cluster}\0{request}".encode()).digest()


def observation_of(row: sa.Row) -> Observation:
    """A row of the inbox as the walk sees it: a command's `data` is the JSON of the Command."""
    if row.kind != ObservationKind.command.value:
        return msgspec.structs.replace(msgspec.convert(row.doc, Observation), inbox_id=row.id)
    command = msgspec.convert(row.doc, Command)
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


def unconsumed(conn: sa.Connection, cluster: str, limit: int) -> list[Observation]:
    """What the walk has not taken yet, oldest first."""
    rows = conn.execute(
        sa.select(*_COLUMNS)
        .where(inbox.c.cluster == cluster, inbox.c.consumed_at.is_(None))
        .order_by(inbox.c.id)
        .limit(limit)
    )
    return [observation_of(row) for row in rows]


def consume(conn: sa.Connection, observations: Iterable[Observation], at: datetime) -> None:
    """Marks rows as walked, in the walk's own transaction."""
    ids = [observation.inbox_id for observation in observations if observation.inbox_id is not None]
    if ids:
        conn.execute(sa.update(inbox).where(inbox.c.id.in_(ids)).values(consumed_at=at))


def alerts(
    conn: sa.Connection, cluster: str, since: datetime, *, node: str | None = None, limit: int
) -> list[Observation]:
    """The newest alerts of a cluster, or of one node; oldest first. Of each node `_ALERTS_OF_NODE` at most:
    one that tells very many hides no other's."""
    newest = (inbox.c.arrived_at.desc(), inbox.c.id.desc())
    place = sa.func.row_number().over(partition_by=inbox.c.node, order_by=newest)
    told = sa.select(*_COLUMNS, inbox.c.node, place.label("place")).where(
        inbox.c.cluster == cluster, inbox.c.kind == ObservationKind.alert.value, inbox.c.arrived_at >= since
    )
    if node is not None:
        told = told.where(inbox.c.node == node)
    each = told.subquery()
    wanted = (
        sa.select(each)
        .where(sa.or_(each.c.node.is_(None), each.c.place <= _ALERTS_OF_NODE))
        .order_by(each.c.arrived_at.desc(), each.c.id.desc())
        .limit(limit)
    )
    return [observation_of(row) for row in reversed(conn.execute(wanted).all())]


class Turns:
    """What the walk of one cluster takes next: each node's rows in their order, no node's before all others.

    By id alone, a node that floods its own events would hold up everybody's until all of them are walked.
    """

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        #: Up to this id only `_floods` have rows that wait, but for those that became visible very late.
        self._looked, self._floods = 0, frozenset[str]()

    def take(self, conn: sa.Connection, limit: int) -> Sequence[sa.Row]:
        """At most `limit` rows that wait, by id. Where more wait than that, a node has `limit / SHARE` of
        them at most, unless there are not enough others."""
        found = self._oldest(conn, limit)
        share = max(1, limit // SHARE)
        if len(found) < limit:
            self._looked, self._floods = 0, frozenset()
            return found
        floods = _over(found, share)
        if not floods:
            return found
        if not floods >= self._floods:
            self._looked = 0  # what was passed over belongs to others now
        last = conn.execute(sa.select(sa.func.max(inbox.c.id))).scalar() or 0
        rows = {row.id: row for row in found}
        for _ in range(_LOOKS):
            others = self._oldest(conn, limit, floods, self._looked)
            rows |= {row.id: row for row in others}
            more = _over(others, share) - floods
            if not more or len(others) < limit:
                break
            floods |= more
        first = min((row.id for row in rows.values() if row.node not in floods), default=last + 1)
        self._looked, self._floods = max(0, min(first - 1, last - _SLACK)), frozenset(floods)
        return _in_turn([rows[number] for number in sorted(rows)], share, limit)

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
    counts = Counter(row.node for row in rows if row.node is not None)
    return {node for node, count in counts.items() if count > share}


def _in_turn(rows: Sequence[sa.Row], share: int, limit: int) -> list[sa.Row]:
    """By id: the first `share` of each node, then what else there is room for."""
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
        self._turns = Turns(cluster)

    def add(self, observations: Sequence[Observation]) -> int:
        return sum(self._signals.store([Arrival(one) for one in observations]))

    def unconsumed(self, limit: int) -> list[Observation]:
        with self._engine.connect() as conn:
            return [observation_of(row) for row in self._turns.take(conn, limit)]

    def since(self, moment: datetime, *, lines: datetime) -> Iterator[Observation]:
        """Read by a server-side cursor, so an hour of a storm fits."""
        wanted = (inbox.c.arrived_at >= moment) | inbox.c.kind.in_(KERNEL_LINES)
        statement = (
            sa.select(*_COLUMNS)
            .where(inbox.c.cluster == self._cluster, inbox.c.arrived_at >= min(moment, lines), wanted)
            .order_by(inbox.c.arrived_at, inbox.c.id)
        )
        with self._engine.connect().execution_options(yield_per=1000) as conn:
            for row in conn.execute(statement):
                yield observation_of(row)

    def alerts(self, moment: datetime) -> list[Observation]:
        with self._engine.connect() as conn:
            return alerts(conn, self._cluster, moment, limit=_ALERTS_READ)


# A later life of the job comes first, then the later step: no clock is asked.
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
    ORDER BY restart DESC NULLS LAST, step DESC, at DESC
    LIMIT 1
    """
)


class PostgresCheckpoints:
    """`healer.ports.transactions.Checkpoints` of one cluster."""

    def __init__(self, engine: sa.Engine, cluster: str) -> None:
        self._engine, self._cluster = engine, cluster

    def newest_durable(self, job: str) -> JobCheckpoint | None:
        with ledger_errors(), self._engine.connect() as conn:
            return newest_durable(conn, self._cluster, job)


def newest_durable(conn: sa.Connection, cluster: str, job: str) -> JobCheckpoint | None:
    found = read_structs(conn, _NEWEST_DURABLE, JobCheckpoint, {"cluster": cluster, "job": job})
    return found[0] if found else None
