"""The one detector of a cluster, and its one scraper: a session lock on a connection of their own."""

from datetime import datetime

import sqlalchemy as sa

from healer.adapters.postgres.tables import slots


def part_lock(part: str, cluster: str) -> str:
    """The name under which the one detector, or scraper, of a cluster holds its advisory lock
    (hashtextextended of it)."""
    return f"{part}:{cluster}"


_LOCK_HELD = sa.text(
    "SELECT EXISTS (SELECT 1 FROM pg_locks, (SELECT hashtextextended(:name, 0) AS key) AS wanted "
    "WHERE locktype = 'advisory' AND granted AND objsubid = 1 "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND classid::bigint = ((key >> 32) & 4294967295) AND objid::bigint = (key & 4294967295))"
)


def lock_held(conn: sa.Connection, name: str) -> bool:
    return bool(conn.execute(_LOCK_HELD, {"name": name}).scalar())


def try_lead(conn: sa.Connection, cluster: str, part: str = "detector") -> bool:
    """True when this connection now leads. The lock lasts as long as the connection."""
    got = conn.execute(
        sa.text("SELECT pg_try_advisory_lock(hashtextextended(:name, 0))"), {"name": part_lock(part, cluster)}
    ).scalar_one()
    conn.commit()
    return bool(got)


def returned_nodes(conn: sa.Connection, cluster: str) -> list[tuple[str, datetime]]:
    """When each node last came back: what it said before is history, also after a restart."""
    rows = conn.execute(
        sa.select(slots.c.node, sa.func.max(slots.c.released_at))
        .where(slots.c.cluster == cluster, slots.c.released_at.is_not(None))
        .group_by(slots.c.node)
    )
    return [(row[0], row[1]) for row in rows]
