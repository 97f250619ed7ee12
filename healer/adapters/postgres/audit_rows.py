"""The audit in PostgreSQL: its records, the sealed chain, pages of records, and the feed of events."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError

from healer.adapters.postgres.engine import (
    ClusterStore,
    PostgresStore,
    begins,
    confirm,
    matches,
    pick,
    reading,
    storable,
    storable_text,
)
from healer.adapters.postgres.tables import (
    audit_chain,
    audit_checkpoints,
    audit_records,
    audit_unsealed,
    event_feed,
    unsealed_records,
)
from healer.model import AuditRecord, Checkpoint
from healer.model.run import ChainLink
from healer.ports.answers import ChainState, Page
from healer.ports.audit_store import ChainHead
from healer.ports.outbound import FeedPosition
from healer.ports.queries import AuditQuery, decode_cursor, encode_cursor

#: `pg_try_advisory_lock` key of the one sealer: the bytes of "healaudi".
SEALER_LOCK = int.from_bytes(b"healaudi", "big")
_READ_ROWS = 5000
#: Further behind than any clock: `healer doctor` complains of seconds.
_BEHIND = timedelta(days=1)

APPEND = sa.text("""
INSERT INTO audit_records (cluster, at, actor, verb, subject, data)
SELECT doc->>'cluster', (doc->>'at')::timestamptz, doc->>'actor', doc->>'verb', doc->>'subject', doc->'data'
FROM jsonb_array_elements(CAST(:rows AS jsonb)) WITH ORDINALITY AS given (doc, place) ORDER BY place
""")
# The data is read as text and decoded by msgspec: one decoder for sealing, verifying and exporting.
_FIELDS = ("id", "cluster", "at", "actor", "verb", "subject")
RECORD: tuple[Any, ...] = (
    *(audit_records.c[name] for name in _FIELDS),
    sa.cast(audit_records.c.data, sa.Text).label("text"),
)
_is_chained = sa.exists().where(audit_chain.c.record == audit_records.c.id)


# --- records


def append(conn: sa.Connection, record: AuditRecord) -> None:
    """Stores the record in the caller's transaction; it is sealed within 1 s of the commit.

    Characters and numbers that JSONB refuses are replaced (`storable`), so that quoted text never fails the
    recorded action. Raises ValueError for a time without a zone.
    """
    append_many(conn, [record])


def append_many(conn: sa.Connection, records: Sequence[AuditRecord]) -> None:
    """Stores records in their order, like `append`."""
    if records:
        conn.execute(APPEND, {"rows": json.dumps([row_of(record) for record in records])})


def row_of(record: AuditRecord) -> dict[str, object]:
    if record.at.tzinfo is None:
        raise ValueError(
            f"an audit record's time needs a zone: {record.verb} {record.subject} at {record.at}"
        )
    texts = {name: storable_text(getattr(record, name)) for name in ("cluster", "actor", "verb", "subject")}
    return {**texts, "at": record.at.isoformat(), "data": storable(record.data)}


def record_of(row: Sequence[Any]) -> AuditRecord:
    """The record of a row of `RECORD`."""
    *fields, text = row
    return AuditRecord(**dict(zip(_FIELDS, fields, strict=True)), data=msgspec.json.decode(text))


# --- the chain


class PostgresChain:
    """`healer.ports.audit_store.ChainStore`, and `ChainReads`."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._held: sa.Connection | None = None

    def lock(self) -> bool:
        self._held = self._engine.connect()
        with self._transaction() as conn:
            is_mine = conn.scalar(sa.select(sa.func.pg_try_advisory_lock(SEALER_LOCK)))
            confirm(conn)  # checkpoints that another sealer stored are published next
        if not is_mine:
            self._held.close()
            self._held = None
        return bool(is_mine)

    def drop(self) -> None:
        # Not returned to the pool: the lock must end with the session.
        conn, self._held = self._held, None
        if conn is not None:
            with contextlib.suppress(DBAPIError):
                conn.invalidate()
            conn.close()

    def unlock(self) -> None:
        # Explicitly: the server may notice the end of the session late.
        with self._transaction() as conn:
            conn.execute(sa.select(sa.func.pg_advisory_unlock(SEALER_LOCK)))
        self.drop()

    def unsealed(self, limit: int) -> list[AuditRecord]:
        waiting = (
            sa.select(*RECORD)
            .join(audit_unsealed, audit_unsealed.c.record == audit_records.c.id)
            # A record that is queued again after it was sealed must not stop the sealer.
            .where(~_is_chained)
            .order_by(audit_records.c.id)
            .limit(limit)
        )
        with self._transaction() as conn:
            return [record_of(row) for row in conn.execute(waiting)]

    def add(self, links: Sequence[ChainLink]) -> None:
        names = ("cluster", "seq", "prev", "hash")
        rows = [pick(link, *names) | {"record": link.record_id} for link in links]
        numbers = sa.literal([link.record_id for link in links], sa.ARRAY(sa.BigInteger))
        sealed = audit_unsealed.c.record.in_(sa.select(sa.func.unnest(numbers)))
        with self._transaction() as conn:
            conn.execute(sa.insert(audit_chain), rows)
            conn.execute(sa.delete(audit_unsealed).where(sealed))

    def heads(self) -> dict[str, ChainHead]:
        with self._transaction() as conn:
            return heads_of(conn)

    def head(self, cluster: str) -> ChainHead | None:
        with self._transaction() as conn:
            return head_of(conn, cluster)

    def signed_seq(self, cluster: str) -> int:
        newest = sa.select(sa.func.max(audit_checkpoints.c.seq)).where(audit_checkpoints.c.cluster == cluster)
        with self._transaction() as conn:
            return conn.scalar(newest) or 0

    def checkpoints(self) -> list[Checkpoint]:
        with self._transaction() as conn:
            return checkpoints_of(conn)

    def add_checkpoint(self, checkpoint: Checkpoint) -> None:
        row = msgspec.structs.asdict(checkpoint)
        row |= {name: bytes.fromhex(row[name]) for name in ("hash", "signature")}
        with self._transaction() as conn:
            conn.execute(sa.insert(audit_checkpoints).values(row))

    @contextmanager
    def snapshot(self) -> Iterator["PostgresChainSnapshot"]:
        with self._engine.connect() as plain:
            conn = plain.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            # Plan for reading all rows, not for the first ones.
            conn.execute(sa.text("SET LOCAL cursor_tuple_fraction = 1"))
            # An audit of several years takes longer than a request may.
            conn.execute(sa.text("SET LOCAL statement_timeout = 0"))
            yield PostgresChainSnapshot(conn)
            conn.rollback()

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        """A transaction on the connection that holds the lock."""
        assert self._held is not None, "the sealer's lock is not held"
        with self._held.begin():
            yield self._held


class PostgresChainSnapshot:
    """`healer.ports.audit_store.ChainSnapshot`."""

    def __init__(self, conn: sa.Connection) -> None:
        self._conn = conn

    def links(self) -> Iterator[ChainLink]:
        chain = audit_chain.c
        query = (
            sa.select(chain.cluster.label("chain"), chain.seq, chain.prev, chain.hash, chain.record, *RECORD)
            .select_from(audit_chain.outerjoin(audit_records, audit_records.c.id == chain.record))
            .order_by(chain.cluster, chain.seq)
        )
        rows = self._conn.execute(query, execution_options={"yield_per": _READ_ROWS})
        for chain_of, seq, prev, made, number, *record in rows:
            yield ChainLink(
                cluster=chain_of,
                seq=seq,
                prev=prev,
                hash=made,
                record_id=number,
                record=None if record[0] is None else record_of(record),
            )

    def heads(self) -> dict[str, ChainHead]:
        return heads_of(self._conn)

    def checkpoints(self) -> list[Checkpoint]:
        return checkpoints_of(self._conn)

    def unsealed(self) -> int:
        return self._conn.scalar(sa.select(sa.func.count()).select_from(audit_unsealed)) or 0

    def unsealed_since(self) -> datetime | None:
        return self._conn.scalar(sa.select(sa.func.min(audit_records.c.at)).select_from(unsealed_records))

    def unsigned_since(self) -> dict[str, datetime]:
        table, chain = audit_checkpoints.c, audit_chain.c
        newest = sa.select(table.cluster, sa.func.max(table.seq).label("seq"))
        signed = newest.group_by(table.cluster).subquery()
        rows = audit_chain.join(audit_records, audit_records.c.id == chain.record)
        query = (
            sa.select(chain.cluster, sa.func.min(audit_records.c.at))
            .select_from(rows.outerjoin(signed, signed.c.cluster == chain.cluster))
            .where(chain.seq > sa.func.coalesce(signed.c.seq, 0))
            .group_by(chain.cluster)
        )
        return {cluster: oldest for cluster, oldest in self._conn.execute(query)}

    def never_sealed(self) -> list[AuditRecord]:
        # The trigger queues a record in the record's own transaction.
        is_waiting = sa.exists().where(audit_unsealed.c.record == audit_records.c.id)
        lost = sa.select(*RECORD).where(~_is_chained, ~is_waiting).order_by(audit_records.c.id).limit(1000)
        return [record_of(row) for row in self._conn.execute(lost)]


def head_of(conn: sa.Connection, cluster: str) -> ChainHead | None:
    """The last link of the cluster's chain."""
    last = sa.select(audit_chain.c.seq, audit_chain.c.hash).where(audit_chain.c.cluster == cluster)
    row = conn.execute(last.order_by(audit_chain.c.seq.desc()).limit(1)).first()
    return ChainHead(*row) if row else None


def heads_of(conn: sa.Connection) -> dict[str, ChainHead]:
    """The last link of every cluster."""
    newest = sa.select(audit_chain.c.cluster, sa.func.max(audit_chain.c.seq).label("seq"))
    top = newest.group_by(audit_chain.c.cluster).subquery()
    rows = conn.execute(
        sa.select(audit_chain.c.cluster, audit_chain.c.seq, audit_chain.c.hash)
        .join(top, (top.c.cluster == audit_chain.c.cluster) & (top.c.seq == audit_chain.c.seq))
        .order_by(audit_chain.c.cluster)
    )
    return {cluster: ChainHead(seq, made) for cluster, seq, made in rows}


def checkpoints_of(conn: sa.Connection) -> list[Checkpoint]:
    """All checkpoints by cluster and seq."""
    table = audit_checkpoints.c
    return [
        _checkpoint(row)
        for row in conn.execute(sa.select(audit_checkpoints).order_by(table.cluster, table.seq))
    ]


def _checkpoint(row: sa.Row) -> Checkpoint:
    fields = pick(row, "cluster", "seq", "key") | {"at": row.at.astimezone(UTC)}
    return Checkpoint(**fields, hash=row.hash.hex(), signature=row.signature.hex())


# --- pages of records


class PostgresAudit(PostgresStore):
    """`healer.ports.queries.AuditQueries`."""

    def page(self, query: AuditQuery, *, limit: int, cursor: str | None = None) -> Page[AuditRecord]:
        statement = (
            sa.select(*RECORD, audit_chain.c.seq, audit_chain.c.prev, audit_chain.c.hash)
            .outerjoin(audit_chain, audit_chain.c.record == audit_records.c.id)
            .where(*_asked(query))
            .order_by(audit_records.c.id.desc())
            .limit(limit + 1)
        )
        if cursor is not None:
            (last,) = decode_cursor(cursor, tuple[int])
            statement = statement.where(audit_records.c.id < min(last, 2**63 - 1))
        with reading(self._engine) as conn:
            rows = conn.execute(statement).all()
        more = encode_cursor(rows[limit - 1].id) if len(rows) > limit else None
        return Page(items=[_sealed(row) for row in rows[:limit]], next_cursor=more)

    def chain(self, cluster: str) -> ChainState:
        count = sa.select(sa.func.count()).select_from(unsealed_records)
        waiting = count.where(audit_records.c.cluster == cluster)
        table = audit_checkpoints.c
        newest = sa.select(audit_checkpoints).where(table.cluster == cluster).order_by(table.seq.desc())
        with reading(self._engine) as conn:
            head = head_of(conn, cluster) or ChainHead(0, b"")
            signed = conn.execute(newest.limit(1)).first()
            return ChainState(
                cluster=cluster,
                seq=head.seq,
                hash=head.hash.hex(),
                unsealed=conn.execute(waiting).scalar_one(),
                checkpoint=None if signed is None else _checkpoint(signed),
            )


def _asked(query: AuditQuery) -> Iterator[sa.ColumnElement[bool]]:
    record = audit_records.c
    yield matches(record.cluster, query.clusters)
    yield matches(record.actor, query.actor or None)
    if query.verb:
        yield begins(record.verb, query.verb)
    if query.subject:
        yield begins(record.subject, query.subject)
    yield matches(record.subject, query.subjects or None)
    if query.people_since is not None:
        yield record.actor != "healer"
        yield from stored_since(query.people_since)
        yield from (~begins(record.verb, verb) for verb in query.but)
        # Steps, and the end of a run, are healer's own work, in the name of who asked for it.
        yield ~record.data.has_key("step")
        yield sa.or_(~begins(record.verb, "run."), record.data.has_key("reason"))


def stored_since(moment: datetime) -> tuple[sa.ColumnElement[bool], ...]:
    """Records of then or later. Searched from the end: a filter by `at` alone would scan all rows. A day more
    is read, because a clock that is behind stores an old time among new ones."""
    record = audit_records.c
    older = sa.select(record.id).where(record.at < moment - _BEHIND).order_by(record.id.desc()).limit(1)
    return record.at >= moment, record.id > sa.func.coalesce(older.scalar_subquery(), 0)


def _sealed(row: sa.Row) -> AuditRecord:
    """The record with its link in the chain, if it is sealed."""
    *record, seq, prev, made = row
    if seq is None:
        return record_of(record)
    return msgspec.structs.replace(record_of(record), seq=seq, prev=prev.hex(), hash=made.hex())


# --- the feed of events. The audit chain is its outbox: a sealed record is committed and never changes, so
# only the sink's position is stored.


class PostgresEventFeed(ClusterStore):
    """`healer.ports.outbound.EventFeed`."""

    def position(self) -> FeedPosition:
        table = event_feed.c
        wanted = sa.select(table.seq, table.tries, table.next_try_at).where(table.cluster == self.cluster)
        with self._engine.begin() as conn:
            fed = conn.execute(wanted).first()
            if fed is None:
                head = head_of(conn, self.cluster)
                begin = insert(event_feed).values(cluster=self.cluster, seq=head.seq if head else 0)
                conn.execute(begin.on_conflict_do_nothing())
                fed = conn.execute(wanted).one()
        return FeedPosition(*fed)

    def next(self, after: int) -> tuple[int, AuditRecord] | None:
        with reading(self._engine) as conn:
            row = conn.execute(
                sa.select(audit_chain.c.seq, *RECORD)
                .select_from(audit_chain.join(audit_records, audit_records.c.id == audit_chain.c.record))
                .where(audit_chain.c.cluster == self.cluster, audit_chain.c.seq > after)
                .order_by(audit_chain.c.seq)
                .limit(1)
            ).first()
        return None if row is None else (row[0], record_of(row[1:]))

    def note(self, before: int, fed: FeedPosition) -> None:
        unmoved = (event_feed.c.cluster == self.cluster, event_feed.c.seq == before)
        with self._engine.begin() as conn:
            conn.execute(sa.update(event_feed).where(*unmoved).values(fed._asdict()))
