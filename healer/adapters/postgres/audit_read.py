"""Reads the audit back: verifies the stored chains and exports them, each in one snapshot."""

import contextlib
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import sqlalchemy as sa

from healer.adapters.postgres.audit_rows import RECORD, checkpoints_of, heads_of, record_of
from healer.adapters.postgres.tables import audit_chain, audit_records, audit_unsealed
from healer.adapters.signing import CHECKPOINT_FILE, load_checkpoints, trusted_keys
from healer.audit import Head, Header, Link, Report, examine, export_lines
from healer.model import AuditRecord, Broken, Checkpoint
from healer.ports.api_answers import AuditVerified

_READ_ROWS = 5000


def verify(
    engine: sa.Engine, *, keys: Collection[str] | None = None, checkpoint_file: Path | None = None
) -> list[Broken]:
    """The places where the stored chains do not hold; empty when all is well. See `report`."""
    return report(engine, keys=keys, checkpoint_file=checkpoint_file).broken


def report(
    engine: sa.Engine, *, keys: Collection[str] | None = None, checkpoint_file: Path | None = None
) -> Report:
    """Verifies everything in one snapshot, by a server-side cursor.

    `keys`: public keys that may sign (None: any). `checkpoint_file`: signed heads outside the database, which
    show a database that was put back or cut short. Raises healer.audit.ExportError when it has a bad line.
    """
    # Read before the snapshot: a checkpoint is in the database before it is in the file.
    outside = load_checkpoints(checkpoint_file) if checkpoint_file else []
    with _snapshot(engine) as conn:
        stored = checkpoints_of(conn)
        unsealed = conn.scalar(sa.select(sa.func.count()).select_from(audit_unsealed)) or 0
        late = _never_sealed(conn)
        known = {(item.cluster, item.seq, item.signature) for item in stored}
        removed = [item for item in outside if (item.cluster, item.seq, item.signature) not in known]
        seen = examine(_links(conn), checkpoints=[*stored, *removed], unsealed=late, keys=keys)
    broken = [*seen.broken, *map(_removed, removed)]
    return msgspec.structs.replace(seen, broken=broken, unsealed=unsealed)


def export(engine: sa.Engine, *, at: datetime | None = None) -> Iterator[bytes]:
    """The export as JSON Lines, one snapshot, streamed. `at` goes into the header (default: now)."""
    with _snapshot(engine) as conn:
        checkpoints = checkpoints_of(conn)
        header = Header(
            healer_audit=1,
            at=at or datetime.now(UTC),
            clusters={head.cluster: Head(seq=head.seq, hash=head.hash.hex()) for head in heads_of(conn)},
            keys=sorted({item.key for item in checkpoints}),
            checkpoints=len(checkpoints),
        )
        yield from export_lines(header, checkpoints, _links(conn))


@contextlib.contextmanager
def _snapshot(engine: sa.Engine) -> Iterator[sa.Connection]:
    with engine.connect() as plain:
        conn = plain.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        # All of it will be read: plan for the whole, not for the first rows.
        conn.execute(sa.text("SET LOCAL cursor_tuple_fraction = 1"))
        # An audit of years takes longer than any request may.
        conn.execute(sa.text("SET LOCAL statement_timeout = 0"))
        yield conn
        conn.rollback()


def _links(conn: sa.Connection) -> Iterator[Link]:
    """The whole chain by cluster and seq, with the records as they stand now."""
    chain = audit_chain.c
    query = (
        sa.select(chain.cluster.label("chain"), chain.seq, chain.prev, chain.hash, chain.record, *RECORD)
        .select_from(audit_chain.outerjoin(audit_records, audit_records.c.id == chain.record))
        .order_by(chain.cluster, chain.seq)
    )
    rows = conn.execute(query, execution_options={"yield_per": _READ_ROWS})
    for chain_of, seq, prev, made, number, *record in rows:
        yield Link(
            cluster=chain_of,
            seq=seq,
            prev=prev,
            hash=made,
            record_id=number,
            record=None if record[0] is None else record_of(record),
        )


def _never_sealed(conn: sa.Connection) -> list[AuditRecord]:
    """Records that neither have a link nor wait for one: the trigger queues each in its own transaction."""
    rows = conn.execute(
        sa.select(*RECORD)
        .where(~sa.exists().where(audit_chain.c.record == audit_records.c.id))
        .where(~sa.exists().where(audit_unsealed.c.record == audit_records.c.id))
        .order_by(audit_records.c.id)
        .limit(1000)
    ).all()
    return [record_of(row) for row in rows]


def _removed(item: Checkpoint) -> Broken:
    what = f"the checkpoint of seq {item.seq} stands in the checkpoint file"
    return Broken(cluster=item.cluster, seq=item.seq, what=f"{what}, but no longer in the database")


class PostgresAuditTrail:
    """The audit of one installation: its database against the keys and checkpoints of its data directory.

    Where the directory has never had a key (a part that runs on another machine), any key may sign.
    """

    def __init__(self, engine: sa.Engine, data_dir: Path) -> None:
        self._engine = engine
        self._data_dir = data_dir

    def report(self) -> Report:
        """See `report`; the same exceptions."""
        keys = trusted_keys(self._data_dir) or None
        return report(self._engine, keys=keys, checkpoint_file=self._data_dir / CHECKPOINT_FILE)

    def verify(self) -> AuditVerified:
        """The same, as the API answers it."""
        found = self.report()
        return AuditVerified(ok=not found.broken, broken=list(found.broken), records=found.records)

    def export(self) -> Iterator[bytes]:
        """JSON Lines, streamed."""
        return export(self._engine)
