"""Slurm's latest picture in PostgreSQL: one row per cluster, decoded once per version and process.

How its slurmctld does lies in a row of its own: those figures change with every poll, the picture does not.
"""

import secrets
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from healer.adapters.postgres.engine import Lane, read_doc, upsert
from healer.adapters.postgres.tables import controllers, snapshots
from healer.model import Controller, SlurmSnapshot

CHANNEL = "healer_snapshot"
#: Stands in the body for the moment, which has a column of its own: an unchanged cluster has unchanged bytes.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SlurmSnapshot).decode


class _Written(NamedTuple):
    version: int
    body: bytes
    snapshot: SlurmSnapshot

    def shows(self, snapshot: SlurmSnapshot) -> bool:
        """The very same mappings: Slurm said that nothing changed, and so they need not be compared."""
        mine = self.snapshot
        same_jobs = mine.jobs is snapshot.jobs and mine.reservations is snapshot.reservations
        return same_jobs and mine.nodes is snapshot.nodes


class PostgresSnapshots:
    """`healer.ports.scheduling.Snapshots`. The body is written only when it changed; `taken_at` always."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        #: Who asks at the same time gets one answer.
        self._lane = Lane[str](engine, self._latest)
        self._known: dict[str, tuple[int, SlurmSnapshot]] = {}
        self._written: dict[str, _Written] = {}

    def put(self, snapshot: SlurmSnapshot) -> None:
        """A new moment is noted for the stored body only while that is the very one that was written here."""
        written = self._written.get(snapshot.cluster)
        if written is not None and written.shows(snapshot):
            body = written.body
        else:
            body = _encode(msgspec.structs.replace(snapshot, taken_at=_EPOCH))
        if written is not None and written.body == body and self._still(snapshot, written.version):
            self._written[snapshot.cluster] = _Written(written.version, body, snapshot)
            return
        # Random: readers keep bodies by version, so one that a crash took must not come back for another.
        version = secrets.randbits(63)
        row = {"version": version, "taken_at": snapshot.taken_at, "body": body, "error": None}
        with self._engine.begin() as conn:
            conn.execute(upsert(snapshots, {"cluster": snapshot.cluster}, row))
            conn.execute(sa.text(f"NOTIFY {CHANNEL}"))
        self._written[snapshot.cluster] = _Written(version, body, snapshot)

    def _still(self, snapshot: SlurmSnapshot, version: int) -> bool:
        """Notes the moment at which the stored picture was still true. False: another one is stored.

        A crash that loses this commit only makes the picture look older than it is.
        """
        with self._engine.begin() as conn:
            conn.execute(sa.text("SET LOCAL synchronous_commit = off"))
            this = snapshots.c.cluster == snapshot.cluster, snapshots.c.version == version
            same = sa.update(snapshots).where(*this, snapshots.c.taken_at <= snapshot.taken_at)
            return conn.execute(same.values(taken_at=snapshot.taken_at, error=None)).rowcount == 1

    def failed(self, cluster: str, error: str) -> None:
        """Notes why the last poll gave nothing; the old picture stays and grows stale."""
        with self._engine.begin() as conn:
            conn.execute(sa.update(snapshots).where(snapshots.c.cluster == cluster).values(error=error))

    def put_controller(self, controller: Controller) -> None:
        """A crash that loses this commit only makes the figures look older than they are."""
        row = {"at": controller.at, "doc": msgspec.to_builtins(controller)}
        with self._engine.begin() as conn:
            conn.execute(sa.text("SET LOCAL synchronous_commit = off"))
            conn.execute(upsert(controllers, {"cluster": controller.cluster}, row))

    def controller(self, cluster: str) -> Controller | None:
        with self._engine.connect() as conn:
            return read_controller(conn, cluster)

    def latest(self, cluster: str) -> SlurmSnapshot | None:
        return self._lane.do(cluster)

    def _latest(self, conn: sa.Connection, clusters: Sequence[str]) -> Sequence[object]:
        with conn.begin():
            found = {cluster: self.read(conn, cluster) for cluster in set(clusters)}
        return [found[cluster] for cluster in clusters]

    def read(self, conn: sa.Connection, cluster: str) -> SlurmSnapshot | None:
        """The same inside a caller's transaction."""
        query = sa.select(snapshots.c.version, snapshots.c.taken_at).where(snapshots.c.cluster == cluster)
        head = conn.execute(query).first()
        if head is None:
            return None
        with self._lock:
            kept = self._known.get(cluster)
        if kept is None or kept[0] != head.version:
            row = conn.execute(query.add_columns(snapshots.c.body)).one()
            kept, head = (row.version, _kept(kept[1] if kept else None, _decode(row.body))), row
            with self._lock:
                self._known[cluster] = kept
        return msgspec.structs.replace(kept[1], taken_at=head.taken_at)


def read_controller(conn: sa.Connection, cluster: str) -> Controller | None:
    return read_doc(conn, sa.select(controllers.c.doc).where(controllers.c.cluster == cluster), Controller)


def _kept(before: SlurmSnapshot | None, now: SlurmSnapshot) -> SlurmSnapshot:
    """The mappings that say what they said before stay the same objects: a job that ended is no news of the
    nodes, and whoever looks at nodes alone has nothing to do."""
    if before is None:
        return now
    same = {
        name: getattr(before, name)
        for name in ("nodes", "jobs", "reservations")
        if getattr(before, name) == getattr(now, name)
    }
    return msgspec.structs.replace(now, **same)
