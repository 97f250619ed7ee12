"""What nodes told of themselves, and what nodes of each kind should be."""

from collections.abc import Sequence
from datetime import datetime

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, insert

from healer.adapters.postgres.tables import inventories, references, run_log, runs
from healer.model import Inventory, Reference, StepEvent, Verb, figures_in

#: The rows come as one document: one statement for however many.
_SAVE = sa.text(
    "INSERT INTO inventories (cluster, node, at, doc)"
    " SELECT :cluster, doc->>'node', (doc->>'at')::timestamptz, doc"
    " FROM jsonb_array_elements(:docs) AS doc"
    " ON CONFLICT (cluster, node) DO UPDATE SET at = excluded.at, doc = excluded.doc"
).bindparams(sa.bindparam("docs", type_=JSONB))


def save_inventories(conn: sa.Connection, cluster: str, told: Sequence[Inventory]) -> None:
    if told:
        conn.execute(_SAVE, {"cluster": cluster, "docs": msgspec.to_builtins(told)})


def read_inventories(conn: sa.Connection, cluster: str, node: str | None = None) -> list[Inventory]:
    """Of one node, or of all."""
    wanted = sa.select(inventories.c.doc).where(inventories.c.cluster == cluster)
    if node is not None:
        wanted = wanted.where(inventories.c.node == node)
    docs = conn.execute(wanted.order_by(inventories.c.node)).scalars()
    return [msgspec.convert(doc, Inventory) for doc in docs]


def changed_since(
    conn: sa.Connection, cluster: str, since: datetime, node: str | None = None
) -> dict[str, Inventory]:
    """By node, of one or of all: those that have booted, or of which something changed, since then."""
    doc = inventories.c.doc
    booted = sa.cast(doc["booted_at"].astext, sa.DateTime(timezone=True))
    wanted = sa.select(doc).where(
        inventories.c.cluster == cluster, sa.or_(inventories.c.at >= since, booted >= since)
    )
    if node is not None:
        wanted = wanted.where(inventories.c.node == node)
    found = [msgspec.convert(one, Inventory) for one in conn.execute(wanted).scalars()]
    return {one.node: one for one in found}


def read_references(conn: sa.Connection, cluster: str) -> list[Reference]:
    table = references
    docs = conn.execute(sa.select(table.c.doc).where(table.c.cluster == cluster).order_by(table.c.kind))
    return [msgspec.convert(doc, Reference) for doc in docs.scalars()]


def save_reference(conn: sa.Connection, reference: Reference) -> None:
    """In place of the one of its kind."""
    row = {"at": reference.at, "doc": msgspec.to_builtins(reference)}
    conn.execute(
        insert(references)
        .values(cluster=reference.cluster, kind=reference.kind, **row)
        .on_conflict_do_update(index_elements=["cluster", "kind"], set_=row)
    )


def forget_reference(conn: sa.Connection, cluster: str, kind: str) -> bool:
    """False where there is none."""
    table = references
    gone = conn.execute(sa.delete(table).where(table.c.cluster == cluster, table.c.kind == kind))
    return gone.rowcount > 0


def measured_figures(conn: sa.Connection, cluster: str, node: str) -> dict[str, float]:
    """What the node's newest test that passed and told results has measured; empty where there is none."""
    data = run_log.c.doc["data"]
    newest = (
        sa.select(data["results"])
        .select_from(run_log.join(runs, run_log.c.run == runs.c.id))
        .where(
            runs.c.cluster == cluster,
            runs.c.node == node,
            run_log.c.event == StepEvent.done.value,
            data["verb"].astext == Verb.diagnose.value,
            data["passed"].astext == "true",
            data["results"].astext.is_not(None),
        )
        .order_by(run_log.c.seq.desc())
        .limit(1)
    )
    return figures_in(conn.execute(newest).scalar() or {})
