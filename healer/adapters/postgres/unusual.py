"""How unusual nodes are, as the detector reckoned last: written by its thread of models, read by pages."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres.tables import unusual_nodes
from healer.model.telemetry import Unusual

#: What is older says nothing of the node any more.
KEPT = timedelta(days=1)


def keep(engine: sa.Engine, nodes: Sequence[Unusual]) -> None:
    if not nodes:
        return
    rows = [
        {"cluster": one.cluster, "node": one.node, "at": one.at, "doc": msgspec.to_builtins(one)}
        for one in nodes
    ]
    statement = insert(unusual_nodes)
    given = {"at": statement.excluded.at, "doc": statement.excluded.doc}
    with engine.begin() as conn:
        conn.execute(sa.text("SET LOCAL synchronous_commit = off"))
        conn.execute(
            statement.on_conflict_do_update(index_elements=["cluster", "node"], set_=given),
            sorted(rows, key=lambda row: row["node"]),
        )


def read(conn: sa.Connection, cluster: str, node: str, now: datetime) -> Unusual | None:
    table = unusual_nodes.c
    doc = conn.scalar(
        sa.select(table.doc).where(table.cluster == cluster, table.node == node, table.at >= now - KEPT)
    )
    return msgspec.convert(doc, Unusual) if doc is not None else None


def forget(conn: sa.Connection, now: datetime) -> None:
    conn.execute(sa.delete(unusual_nodes).where(unusual_nodes.c.at < now - KEPT))
