"""The audit's rows as nouns, for the sealer and for those who read the chain back."""

from collections.abc import Sequence
from datetime import UTC
from typing import Any

import msgspec
import sqlalchemy as sa

from healer.adapters.postgres.tables import audit_chain, audit_checkpoints, audit_records
from healer.model import AuditRecord, Checkpoint

# The data is read as text and decoded by msgspec: one decoder for sealing, verifying and exporting.
RECORD = (
    audit_records.c.id,
    audit_records.c.cluster,
    audit_records.c.at,
    audit_records.c.actor,
    audit_records.c.verb,
    audit_records.c.subject,
    sa.cast(audit_records.c.data, sa.Text).label("text"),
)


def record_of(row: Sequence[Any]) -> AuditRecord:
    """The record of a row of `RECORD`."""
    number, cluster, at, actor, verb, subject, text = row
    return AuditRecord(
        id=number,
        cluster=cluster,
        at=at,
        actor=actor,
        verb=verb,
        subject=subject,
        data=msgspec.json.decode(text),
    )


def head_of(conn: sa.Connection, cluster: str) -> sa.Row | None:
    """`seq` and `hash` of the cluster's last link."""
    return conn.execute(
        sa.select(audit_chain.c.seq, audit_chain.c.hash)
        .where(audit_chain.c.cluster == cluster)
        .order_by(audit_chain.c.seq.desc())
        .limit(1)
    ).first()


def heads_of(conn: sa.Connection) -> list[sa.Row]:
    """`cluster`, `seq` and `hash` of every chain's last link."""
    newest = sa.select(audit_chain.c.cluster, sa.func.max(audit_chain.c.seq).label("seq"))
    top = newest.group_by(audit_chain.c.cluster).subquery()
    return list(
        conn.execute(
            sa.select(audit_chain.c.cluster, audit_chain.c.seq, audit_chain.c.hash)
            .join(top, (top.c.cluster == audit_chain.c.cluster) & (top.c.seq == audit_chain.c.seq))
            .order_by(audit_chain.c.cluster)
        )
    )


def signed_seq(conn: sa.Connection, cluster: str) -> int:
    """The newest checkpoint's seq; 0 without any."""
    newest = sa.select(sa.func.max(audit_checkpoints.c.seq)).where(audit_checkpoints.c.cluster == cluster)
    return conn.scalar(newest) or 0


def checkpoints_of(conn: sa.Connection) -> list[Checkpoint]:
    """All checkpoints by cluster and seq."""
    table = audit_checkpoints.c
    rows = conn.execute(sa.select(audit_checkpoints).order_by(table.cluster, table.seq))
    return [
        Checkpoint(
            cluster=row.cluster,
            seq=row.seq,
            hash=row.hash.hex(),
            at=row.at.astimezone(UTC),
            key=row.key,
            signature=row.signature.hex(),
        )
        for row in rows
    ]
