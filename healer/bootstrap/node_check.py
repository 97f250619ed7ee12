"""What `healer doctor` tells of the nodes: how many were heard of late, and which were not."""

from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from healer import bootstrap
from healer.adapters.clock import SystemClock
from healer.adapters.postgres.rows import cluster_names
from healer.adapters.postgres.snapshots import PostgresSnapshots
from healer.adapters.postgres.tables import inbox
from healer.bootstrap.slurm_check import Look
from healer.embedded.user import EmbeddedError
from healer.settings import Settings

WITHIN = timedelta(minutes=15)
_NAMED = 5


def look(settings: Settings) -> list[Look]:
    """No fault in itself: a site need not run the follower, and a node may be down on purpose."""
    try:
        db = bootstrap.engine(settings, name="healer doctor", pool_size=1)
    except EmbeddedError:
        return []
    try:
        with db.connect() as conn:
            snapshots = PostgresSnapshots(db)
            pictures = {name: snapshots.read(conn, name) for name in cluster_names(conn)}
            heard = {(row.cluster, row.node) for row in conn.execute(_spoken())}
    except SQLAlchemyError:
        return []  # what is wrong with the database, its own check has said
    finally:
        db.dispose()
    return [
        told(name, {one.name for one in picture.gpu_nodes}, heard)
        for name, picture in pictures.items()
        if picture is not None
    ]


def told(cluster: str, nodes: set[str], heard: set[tuple[str, str]]) -> Look:
    silent = sorted(name for name in nodes if (cluster, name) not in heard)
    text = f"{len(nodes) - len(silent)} of {len(nodes)} nodes of {cluster} spoke in the last 15 min"
    if not silent:
        return Look("nodes", True, text)
    named = ", ".join(silent[:_NAMED]) + (", …" if len(silent) > _NAMED else "")
    repair = (
        "Install follower and hooks there (`healer node-package`), or see why: journalctl -u healer-follow."
    )
    return Look("nodes", True, f"{text}; not {named}", repair)


def _spoken() -> sa.Select:
    spoke = (inbox.c.kind.in_(("heartbeat", "hook")), inbox.c.arrived_at > SystemClock().now() - WITHIN)
    return sa.select(inbox.c.cluster, inbox.c.node).where(*spoke).distinct()
