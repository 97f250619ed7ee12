"""Slurm's latest picture in PostgreSQL: one row per cluster, decoded once per version and process."""

import secrets
import threading
from datetime import UTC, datetime

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres.tables import snapshots
from healer.model import SlurmSnapshot

CHANNEL = "healer_snapshot"
#: Stands in the body for the moment, which has a column of its own: an unchanged cluster has unchanged bytes.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SlurmSnapshot).decode


class PostgresSnapshots:
    """`healer.ports.Snapshots`. The body is written only when it changed; `taken_at` always."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._known: dict[str, tuple[int, SlurmSnapshot]] = {}
        self._written: dict[str, tuple[int, bytes]] = {}

    def put(self, snapshot: SlurmSnapshot) -> None:
        """A new moment is told of the stored body only while that is the very one that was written here."""
        body = _encode(msgspec.structs.replace(snapshot, taken_at=_EPOCH))
        version, written = self._written.get(snapshot.cluster, (None, b""))
        if version is not None and written == body and self._still(snapshot, version):
            return
        # Random: readers keep bodies by version, so one that a crash took must not come back for another.
        version = secrets.randbits(63)
        row = {"version": version, "taken_at": snapshot.taken_at, "body": body, "error": None}
        with self._engine.begin() as conn:
            statement = insert(snapshots).values(cluster=snapshot.cluster, **row)
            conn.execute(statement.on_conflict_do_update(index_elements=["cluster"], set_=row))
            conn.execute(sa.text(f"NOTIFY {CHANNEL}"))
        self._written[snapshot.cluster] = (version, body)

    def _still(self, snapshot: SlurmSnapshot, version: int) -> bool:
        """Notes the moment at which the stored picture was still true. False: another one is stored.

        A crash that loses this commit only makes the picture look older than it is.
        """
        with self._engine.begin() as conn:
            conn.execute(sa.text("SET LOCAL synchronous_commit = off"))
            same = conn.execute(
                sa.update(snapshots)
                .where(
                    snapshots.c.cluster == snapshot.cluster,
                    snapshots.c.version == version,
                    snapshots.c.taken_at <= snapshot.taken_at,
                )
                .values(taken_at=snapshot.taken_at, error=None)
            )
            return same.rowcount == 1

    def failed(self, cluster: str, error: str) -> None:
        """Notes why the last poll gave nothing; the old picture stays and grows stale."""
        with self._engine.begin() as conn:
            conn.execute(sa.update(snapshots).where(snapshots.c.cluster == cluster).values(error=error))

    def latest(self, cluster: str) -> SlurmSnapshot | None:
        with self._engine.connect() as conn:
            return self.read(conn, cluster)

    def read(self, conn: sa.Connection, cluster: str) -> SlurmSnapshot | None:
        """The same inside a caller's transaction."""
        head = conn.execute(
            sa.select(snapshots.c.version, snapshots.c.taken_at).where(snapshots.c.cluster == cluster)
        ).first()
        if head is None:
            return None
        with self._lock:
            known = self._known.get(cluster)
        if known is None or known[0] != head.version:
            row = conn.execute(
                sa.select(snapshots.c.version, snapshots.c.taken_at, snapshots.c.body).where(
                    snapshots.c.cluster == cluster
                )
            ).one()
            known, head = (row.version, _decode(row.body)), row
            with self._lock:
                self._known[cluster] = known
        return msgspec.structs.replace(known[1], taken_at=head.taken_at)
