"""What is stored of nodes, and the clusters that they belong to."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
import sqlalchemy as sa

from healer.adapters.postgres import unusual
from healer.adapters.postgres.control_rows import pause_of
from healer.adapters.postgres.engine import reading
from healer.adapters.postgres.gate_facts import read_facts
from healer.adapters.postgres.incident_queries import OpenIncidents, about_node, incident_page, watched
from healer.adapters.postgres.leader import lock_held, part_lock
from healer.adapters.postgres.node_scores import read_lemons, read_standing
from healer.adapters.postgres.references import (
    changed_since,
    measured_figures,
    read_inventories,
    read_references,
)
from healer.adapters.postgres.run_queries import asking_runs
from healer.adapters.postgres.snapshots import PostgresSnapshots, read_controller
from healer.adapters.postgres.tables import gate, inbox, incidents, pauses, snapshots
from healer.model import (
    CONTEXT_LONGEST,
    Breaker,
    Inventory,
    LemonScore,
    Pause,
    Reference,
    SlurmSnapshot,
)
from healer.ports.answers import ClusterState, FleetRows, NodeRows

#: Incidents of a node's history that its page shows.
_HISTORY = 50
#: Heartbeats tell which GPUs a node has; the last ones within this time are looked at.
_TOLD = timedelta(minutes=5)
_HOUR = timedelta(hours=1)


class PostgresClusters:
    """`healer.ports.queries.ClusterQueries`."""

    def __init__(self, engine: sa.Engine, reader: PostgresSnapshots) -> None:
        self._engine, self._reader = engine, reader
        self._open = OpenIncidents()

    def names(self) -> list[str]:
        with reading(self._engine) as conn:
            return cluster_names(conn)

    def snapshots(self) -> dict[str, SlurmSnapshot]:
        with reading(self._engine) as conn:
            return _pictures(conn, self._reader, None)

    def state(self, cluster: str, now: datetime) -> ClusterState:
        with reading(self._engine) as conn:
            picture = conn.execute(
                sa.select(snapshots.c.version, snapshots.c.error).where(snapshots.c.cluster == cluster)
            ).first()
            facts = read_facts(conn, cluster, self._reader, now)
            return ClusterState(
                cluster=cluster,
                breaker=facts.breaker,
                snapshot=facts.snapshot,
                snapshot_version=picture.version if picture else 0,
                snapshot_error=picture.error or "" if picture else "",
                controller=read_controller(conn, cluster),
                slots=facts.slots,
                granted_last_hour=sum(at > now - _HOUR for at in facts.granted),
                pauses=facts.pauses,
                vetoes=facts.vetoes,
                open_incidents=self._open.read(conn, cluster),
                asking=tuple(asking_runs(conn, cluster)),
                detector_at=now if lock_held(conn, part_lock("detector", cluster)) else None,
            )

    def pauses(self, now: datetime) -> list[Pause]:
        in_force = (pauses.c.ended_at.is_(None), sa.or_(pauses.c.until.is_(None), pauses.c.until > now))
        with reading(self._engine) as conn:
            found = conn.execute(sa.select(pauses).where(*in_force).order_by(pauses.c.since))
            return [pause_of(row) for row in found]

    def breakers(self) -> list[Breaker]:
        with reading(self._engine) as conn:
            kept = {row.cluster: row.breaker for row in conn.execute(sa.select(gate))}
            names = sorted({*cluster_names(conn), *kept})
        return [
            msgspec.convert(kept[name], Breaker) if name in kept else Breaker(cluster=name) for name in names
        ]


def cluster_names(conn: sa.Connection) -> list[str]:
    return list(conn.execute(sa.select(snapshots.c.cluster).order_by(snapshots.c.cluster)).scalars())


def _pictures(
    conn: sa.Connection, reader: PostgresSnapshots, clusters: Sequence[str] | None
) -> dict[str, SlurmSnapshot]:
    names = cluster_names(conn)
    wanted = names if clusters is None else [name for name in names if name in clusters]
    found = {name: reader.read(conn, name) for name in wanted}
    return {name: one for name, one in found.items() if one is not None}


class PostgresNodes:
    """`healer.ports.queries.NodeQueries`."""

    def __init__(self, engine: sa.Engine, reader: PostgresSnapshots) -> None:
        self._engine, self._reader = engine, reader

    def fleet(self, clusters: Sequence[str] | None, now: datetime) -> FleetRows:
        with reading(self._engine) as conn:
            pictures = _pictures(conn, self._reader, clusters)
            return FleetRows(
                snapshots=pictures,
                watched=tuple(watched(conn, clusters, now)),
                changed={name: changed_since(conn, name, now - CONTEXT_LONGEST) for name in pictures},
                lemons={name: read_lemons(conn, name) for name in pictures},
            )

    def rows(self, cluster: str, node: str, now: datetime) -> NodeRows | None:
        with reading(self._engine) as conn:
            picture = self._reader.read(conn, cluster)
            if picture is None or node not in picture.nodes:
                return None
            told = read_inventories(conn, cluster, node)
            return NodeRows(
                snapshot=picture,
                node=picture.nodes[node],
                watched=tuple(watched(conn, [cluster], now, about_node(node))),
                history=tuple(
                    incident_page(conn, [incidents.c.cluster == cluster, about_node(node)], _HISTORY).items
                ),
                gpus=_gpus_told(conn, cluster, node, now),
                inventory=told[0] if told else None,
                lemon=read_lemons(conn, cluster, node).get(node),
                unusual=unusual.read(conn, cluster, node, now),
                standing=read_standing(conn, cluster, node),
            )

    def references(self, cluster: str) -> list[Reference]:
        with reading(self._engine) as conn:
            return read_references(conn, cluster)

    def inventories(self, cluster: str) -> list[Inventory]:
        with reading(self._engine) as conn:
            return read_inventories(conn, cluster)

    def measured(self, cluster: str, node: str) -> dict[str, float]:
        with reading(self._engine) as conn:
            return measured_figures(conn, cluster, node)

    def lemons(self, cluster: str) -> dict[str, LemonScore]:
        with reading(self._engine) as conn:
            return read_lemons(conn, cluster)


def _gpus_told(conn: sa.Connection, cluster: str, node: str, now: datetime) -> dict[int, dict[str, Any]]:
    """GPU index -> what the node's last heartbeat said of it."""
    data = conn.execute(
        sa.select(inbox.c.doc["data"]["gpus"])
        .where(
            inbox.c.cluster == cluster,
            inbox.c.node == node,
            inbox.c.kind == "heartbeat",
            inbox.c.arrived_at > now - _TOLD,
            inbox.c.doc["data"].has_key("gpus"),
        )
        .order_by(inbox.c.arrived_at.desc())
        .limit(1)
    ).scalar()
    return {int(gpu["index"]): gpu for gpu in data or ()}
