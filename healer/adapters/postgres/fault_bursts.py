"""What parts have had, by burst: written with the walk that noted it, read at the detector's start."""

from collections.abc import Sequence
from datetime import datetime

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from healer.adapters.postgres.tables import fault_bursts
from healer.model import FaultBurst

#: The rows come as one document: one statement for however many.
_SAVE = sa.text(
    "INSERT INTO fault_bursts (cluster, node, part, fault, began_at, last_at, doc)"
    " SELECT doc->>'cluster', doc->>'node', doc->>'part', doc->>'fault',"
    " (doc->>'began_at')::timestamptz, (doc->>'last_at')::timestamptz, doc"
    " FROM jsonb_array_elements(:docs) AS doc"
    " ON CONFLICT (cluster, node, part, fault, began_at)"
    " DO UPDATE SET last_at = excluded.last_at, doc = excluded.doc"
).bindparams(sa.bindparam("docs", type_=JSONB))


def save(conn: sa.Connection, bursts: Sequence[FaultBurst]) -> None:
    """A burst that goes on is the same row."""
    if bursts:
        conn.execute(_SAVE, {"docs": msgspec.to_builtins(bursts)})


def since(conn: sa.Connection, cluster: str, last_at: datetime) -> list[FaultBurst]:
    """Those that went on at `last_at` or later, the oldest first."""
    table = fault_bursts
    docs = conn.execute(
        sa.select(table.c.doc)
        .where(table.c.cluster == cluster, table.c.last_at >= last_at)
        .order_by(table.c.last_at, table.c.node, table.c.part, table.c.fault)
    )
    return [msgspec.convert(doc, FaultBurst) for doc in docs.scalars()]
