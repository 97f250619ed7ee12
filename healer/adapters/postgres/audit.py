"""The audit in PostgreSQL: written in everybody's transactions, chained by one sealer, verified by a reader.

Ids are handed out before commit, so a lower id may become visible after a higher one. The chain therefore
follows visibility: what is there and unsealed is chained by id, and a late comer gets the next seq.
"""

import contextlib
import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from healer.adapters.postgres.audit_read import PostgresAuditTrail, export, report, verify
from healer.adapters.postgres.audit_rows import (
    RECORD,
    checkpoints_of,
    head_of,
    heads_of,
    record_of,
    signed_seq,
)
from healer.adapters.postgres.tables import audit_chain, audit_checkpoints, audit_records, audit_unsealed
from healer.adapters.signing import append_checkpoints, load_checkpoints
from healer.audit import Signer, extend, genesis, sign_checkpoint, storable, storable_text
from healer.model import AuditRecord

__all__ = [
    "SEALER_LOCK",
    "PostgresAuditTrail",
    "Sealer",
    "append",
    "append_many",
    "export",
    "report",
    "verify",
]

#: `pg_try_advisory_lock` key of the one sealer: the bytes of "healaudi".
SEALER_LOCK = int.from_bytes(b"healaudi", "big")
#: Records per sealing transaction; a backlog is worked off in several.
BATCH = 2000
#: A checkpoint every so many links, or so many seconds after the first link that has none.
CHECKPOINT_LINKS = 100
CHECKPOINT_AFTER_S = 60.0

_APPEND = sa.text("""
INSERT INTO audit_records (cluster, at, actor, verb, subject, data)
SELECT one->>'cluster', (one->>'at')::timestamptz, one->>'actor', one->>'verb', one->>'subject', one->'data'
FROM jsonb_array_elements(CAST(:rows AS jsonb)) WITH ORDINALITY AS given (one, place) ORDER BY place
""")


def append(conn: sa.Connection, record: AuditRecord) -> None:
    """Stores the record in the caller's transaction; it is sealed within 1 s of the commit.

    NUL, lone surrogates and figures that JSON lacks are replaced, so that what a record quotes never stops
    the work it tells of. A time without a zone is a ValueError.
    """
    append_many(conn, [record])


def append_many(conn: sa.Connection, records: Sequence[AuditRecord]) -> None:
    """The same for several, in their order."""
    if records:
        conn.execute(_APPEND, {"rows": json.dumps([_row(record) for record in records])})


def _row(record: AuditRecord) -> dict[str, object]:
    if record.at.tzinfo is None:
        raise ValueError(
            f"an audit record's time needs a zone: {record.verb} {record.subject} at {record.at}"
        )
    return {
        "cluster": storable_text(record.cluster),
        "at": record.at.isoformat(),
        "actor": storable_text(record.actor),
        "verb": storable_text(record.verb),
        "subject": storable_text(record.subject),
        "data": storable(record.data),
    }


class Sealer:
    """Chains what is committed. Any number may run; one seals, by a session lock, and the others stand by.

    It works on the connection that holds the lock: when that breaks, lock and work are lost together, and the
    next call takes a new one. `checkpoint_file` also gets every checkpoint, outside the database.
    """

    def __init__(
        self,
        engine: sa.Engine,
        signer: Signer,
        *,
        checkpoint_file: Path | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._engine = engine
        self._signer = signer
        self._file = checkpoint_file
        self._now = now
        self._conn: sa.Connection | None = None
        self._unsigned: dict[str, datetime] = {}  # cluster -> when its oldest unsigned link was sealed

    def seal_once(self) -> int:
        """Seals all that is visible and signs what is due; the number of records sealed.

        0 as well while another sealer is at work. With nothing new it costs one small query. Database errors
        go to the caller, and the next call starts anew.
        """
        try:
            conn = self._held()
            if conn is None:
                return 0
            total = 0
            while count := self._seal_batch(conn):
                total += count
                if count < BATCH:
                    break
            self._sign_due(conn, CHECKPOINT_AFTER_S)
            return total
        except BaseException:
            self._drop()
            raise

    def close(self) -> None:
        """Signs the heads and lets another sealer take over."""
        if self._conn is None:
            return
        try:
            self._sign_due(self._conn, after_s=0)
            # The server may take a while to see that the session is over: the next one need not wait for it.
            self._conn.execute(sa.select(sa.func.pg_advisory_unlock(SEALER_LOCK)))
            self._conn.commit()
        finally:
            self._drop()

    def _held(self) -> sa.Connection | None:
        """The connection that holds the lock; None when another sealer has it."""
        if self._conn is not None:
            return self._conn
        conn = self._engine.connect()
        try:
            locked = conn.scalar(sa.select(sa.func.pg_try_advisory_lock(SEALER_LOCK)))
            conn.commit()
            if not locked:
                conn.close()
                return None
            self._take_over(conn)
        except BaseException:
            conn.invalidate()
            raise
        self._conn = conn
        return conn

    def _take_over(self, conn: sa.Connection) -> None:
        """What an earlier sealer left: links without a checkpoint, checkpoints that missed the file."""
        now = self._now()
        self._unsigned = {
            head.cluster: now for head in heads_of(conn) if head.seq > signed_seq(conn, head.cluster)
        }
        if self._file is not None:
            known = {(item.cluster, item.seq) for item in load_checkpoints(self._file)}
            stored = checkpoints_of(conn)
            append_checkpoints(self._file, [c for c in stored if (c.cluster, c.seq) not in known])
        conn.commit()

    def _drop(self) -> None:
        # Never back into the pool: the session's lock must end with it.
        conn, self._conn = self._conn, None
        if conn is not None:
            with contextlib.suppress(DBAPIError):
                conn.invalidate()
            conn.close()

    def _seal_batch(self, conn: sa.Connection) -> int:
        rows = conn.execute(
            sa.select(*RECORD)
            .join(audit_unsealed, audit_unsealed.c.record == audit_records.c.id)
            # Whoever queues a sealed record again must not stop the sealer.
            .where(~sa.exists().where(audit_chain.c.record == audit_records.c.id))
            .order_by(audit_records.c.id)
            .limit(BATCH)
        ).all()
        if not rows:
            conn.rollback()
            return 0
        by_cluster: dict[str, list[AuditRecord]] = {}
        for row in rows:
            by_cluster.setdefault(row.cluster, []).append(record_of(row))
        for cluster, records in by_cluster.items():
            self._chain(conn, cluster, records)
        sealed = sa.select(sa.func.unnest(sa.literal([row.id for row in rows], sa.ARRAY(sa.BigInteger))))
        conn.execute(sa.delete(audit_unsealed).where(audit_unsealed.c.record.in_(sealed)))
        conn.commit()
        now = self._now()
        for cluster in by_cluster:
            self._unsigned.setdefault(cluster, now)
        self._sign_long(conn, by_cluster)
        return len(rows)

    def _chain(self, conn: sa.Connection, cluster: str, records: list[AuditRecord]) -> None:
        head = head_of(conn, cluster)
        seq, last = (head.seq, head.hash) if head else (0, genesis(cluster))
        conn.execute(
            sa.insert(audit_chain),
            [
                {"cluster": cluster, "seq": at.seq, "record": at.record_id, "prev": at.prev, "hash": at.hash}
                for at in extend(cluster, seq, last, records)
            ],
        )

    def _sign_long(self, conn: sa.Connection, clusters: Iterable[str]) -> None:
        """Signs the clusters whose unsigned end has grown long."""
        for cluster in clusters:
            head = head_of(conn, cluster)
            if head and head.seq - signed_seq(conn, cluster) >= CHECKPOINT_LINKS:
                self._sign(conn, cluster)
        conn.rollback()

    def _sign_due(self, conn: sa.Connection, after_s: float) -> None:
        if not self._unsigned:
            return
        before = self._now() - timedelta(seconds=after_s)
        for cluster in [name for name, since in self._unsigned.items() if since <= before]:
            self._sign(conn, cluster)

    def _sign(self, conn: sa.Connection, cluster: str) -> None:
        head = head_of(conn, cluster)
        if head is not None and head.seq > signed_seq(conn, cluster):
            at = self._now().astimezone(UTC)
            made = sign_checkpoint(self._signer, cluster, head.seq, head.hash, at)
            conn.execute(
                sa.insert(audit_checkpoints).values(
                    cluster=cluster,
                    seq=made.seq,
                    hash=head.hash,
                    at=made.at,
                    key=made.key,
                    signature=bytes.fromhex(made.signature),
                )
            )
            # Committed first: one in the file that the database lacks means that somebody removed it.
            conn.commit()
            if self._file is not None:
                append_checkpoints(self._file, [made])
        conn.rollback()
        self._unsigned.pop(cluster, None)
