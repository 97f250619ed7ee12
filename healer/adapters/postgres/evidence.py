"""Evidence files in PostgreSQL: written by workers and read by the API, on any machine.

Pieces are stored one after the other, and a file is shown once its checksum is right. `forget` deletes the
oldest files beyond the limits.
"""

import hashlib
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres.engine import (
    PostgresStore,
    ledger_errors,
    ledger_reading,
    matches,
    pick,
    read_doc,
    read_docs,
)
from healer.adapters.postgres.tables import evidence, evidence_pieces, incidents
from healer.model import EvidenceFile, IncidentState
from healer.ports.node_exec import EvidenceBroken
from healer.text import say, to_stored

#: Longer than a repair and its warranty claim take.
KEPT = timedelta(days=90)
#: The limit of all files together; one file has at most 24 MB.
MOST_BYTES = 2 * 1024**3
#: The limit when the database's disk is nearly full.
LOW_BYTES = MOST_BYTES // 16


class PostgresEvidence(PostgresStore):
    """`healer.ports.node_exec.EvidenceBook`."""

    def stored(self, file: str) -> int:
        last = (
            sa.select(evidence_pieces.c.start + sa.func.octet_length(evidence_pieces.c.data))
            .where(evidence_pieces.c.file == file)
            .order_by(evidence_pieces.c.start.desc())
            .limit(1)
        )
        with ledger_reading(self._engine) as conn:
            return conn.scalar(last) or 0

    def add(self, file: EvidenceFile, start: int, data: bytes) -> None:
        with ledger_errors(), self._engine.begin() as conn:
            head = insert(evidence).values(
                **pick(file, "id", "cluster", "incident", "run", "at"),
                size_bytes=file.bundle.size_bytes,
                finished=False,
                doc=to_stored(file),
            )
            conn.execute(head.on_conflict_do_nothing())
            piece = insert(evidence_pieces).values(file=file.id, start=start, data=data)
            conn.execute(piece.on_conflict_do_nothing())

    def finish(self, file: EvidenceFile) -> None:
        digest = hashlib.sha256()
        with ledger_errors(), self._engine.begin() as conn:
            for (piece,) in conn.execute(_pieces(file.id)):
                digest.update(piece)
            right = digest.hexdigest() == file.bundle.sha256
            chosen = evidence.c.id == file.id
            conn.execute(
                sa.update(evidence).where(chosen).values(finished=True)
                if right
                else sa.delete(evidence).where(chosen)
            )
        if not right:
            raise EvidenceBroken(say("adapters.evidence_other", file=file.id, node=file.node))

    def files(self, *, incident: str | None = None, run: str | None = None) -> list[EvidenceFile]:
        with ledger_reading(self._engine) as conn:
            return collected_for(conn, incident=incident, run=run)

    def file(self, file: str) -> EvidenceFile | None:
        query = sa.select(evidence.c.doc).where(evidence.c.finished, evidence.c.id == file)
        with ledger_reading(self._engine) as conn:
            return read_doc(conn, query, EvidenceFile)

    def content(self, file: str) -> bytes:
        whole = sa.select(evidence.c.id).where(evidence.c.id == file, evidence.c.finished)
        with ledger_reading(self._engine) as conn:
            pieces = conn.execute(_pieces(file).where(evidence_pieces.c.file.in_(whole)))
            return b"".join(pieces.scalars())


def collected_for(
    conn: sa.Connection, *, incident: str | None = None, run: str | None = None
) -> list[EvidenceFile]:
    table = evidence.c
    wanted = table.finished, matches(table.incident, incident), matches(table.run, run)
    query = sa.select(table.doc).where(*wanted).order_by(table.at, table.id)
    return read_docs(conn, query, EvidenceFile)


def forget(engine: sa.Engine, now: datetime, *, low: bool = False) -> None:
    """Deletes files that are too old, and the oldest beyond the limit. `low`: the disk is nearly full.

    Those of an open incident, or of one that is part of it, are kept; beyond the limit the oldest of them go
    last, because without a disk nothing is healed. Each file is a transaction of its own: to delete 2 GB at
    once writes as much to the log, on the same disk, and may take longer than a statement may.
    """
    files, is_open = evidence.c, _of_open_incident()
    first = (is_open.desc(), files.at.desc(), files.id.desc())
    so_far = sa.func.sum(files.size_bytes).over(order_by=first)
    summed = sa.select(files.id, files.at, is_open.label("is_open"), so_far.label("so_far")).subquery()
    limit = sa.case((summed.c.is_open, MOST_BYTES), else_=LOW_BYTES if low else MOST_BYTES)
    old = sa.and_(~summed.c.is_open, summed.c.at < now - KEPT)
    gone = sa.select(summed.c.id).where(sa.or_(old, summed.c.so_far > limit))
    with engine.connect() as conn:
        ids = conn.scalars(gone.order_by(summed.c.is_open, summed.c.at, summed.c.id)).all()
    for file in ids:
        with engine.begin() as conn:
            conn.execute(sa.delete(evidence).where(files.id == file))


def _of_open_incident() -> sa.ColumnElement[bool]:
    whole = incidents.alias("whole")
    of_whole = whole.c.id == sa.func.coalesce(incidents.c.merged_into, incidents.c.id)
    here = incidents.c.id == evidence.c.incident, whole.c.state != str(IncidentState.resolved)
    return sa.exists().select_from(incidents.join(whole, of_whole)).where(*here)


def _pieces(file: str) -> sa.Select:
    return (
        sa.select(evidence_pieces.c.data)
        .where(evidence_pieces.c.file == file)
        .order_by(evidence_pieces.c.start)
    )
