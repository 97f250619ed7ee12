"""What happened to a node over a long time, for its life line."""

from datetime import datetime

import sqlalchemy as sa

from healer.adapters.postgres.engine import read_docs, read_structs
from healer.adapters.postgres.incident_rows import about_node
from healer.adapters.postgres.tables import fault_bursts, incidents, run_log, runs, slots
from healer.model import FaultBurst, Incident, StepEvent, Verb
from healer.model.faults import REPLACED
from healer.ports.answers import NodeLife, NodeStep, OutOfService

#: Incidents and steps that are read, the newest.
_MOST = 500
#: Verbs that repair a node or return it.
_LIFE_VERBS = (
    Verb.reset_gpu, Verb.restart_service, Verb.reboot, Verb.power_cycle, Verb.site_command, Verb.ticket,
    Verb.resume, Verb.undrain,
)  # fmt: skip


def read_life(conn: sa.Connection, cluster: str, node: str, since: datetime) -> NodeLife:
    """What was opened, done or changed since then, and what lasted until then or longer."""
    verb = run_log.c.doc["data"]["verb"].astext
    steps = (
        sa.select(run_log.c.at, verb.label("verb"), runs.c.id.label("run"))
        .join(runs, runs.c.id == run_log.c.run)
        .where(
            runs.c.cluster == cluster,
            runs.c.node == node,
            runs.c.shadow.is_(False),
            run_log.c.event == str(StepEvent.done),
            run_log.c.at >= since,
            verb.in_([str(each) for each in _LIFE_VERBS]),
        )
        .order_by(run_log.c.seq.desc())
        .limit(_MOST)
    )
    return NodeLife(
        incidents=tuple(reversed(read_docs(conn, _incidents(cluster, node, since), Incident))),
        outs=tuple(read_structs(conn, _outs(cluster, node, since), OutOfService)),
        steps=tuple(reversed(read_structs(conn, steps, NodeStep))),
        parts=tuple(read_docs(conn, _parts(cluster, node, since), FaultBurst)),
    )


def _incidents(cluster: str, node: str, since: datetime) -> sa.Select:
    table = incidents.c
    lasted = sa.or_(table.opened >= since, table.closed >= since, table.closed.is_(None))
    query = sa.select(table.doc).where(table.cluster == cluster, about_node(node), lasted)
    return query.order_by(table.opened.desc(), table.id.desc()).limit(_MOST)


def _outs(cluster: str, node: str, since: datetime) -> sa.Select:
    table = slots.c
    fields = table.drained_at, table.released_at, table.incident
    return (
        sa.select(*fields)
        .where(
            table.cluster == cluster,
            table.node == node,
            table.drained_at.is_not(None),
            sa.or_(table.released_at.is_(None), table.released_at >= since),
        )
        .order_by(table.drained_at)
    )


def _parts(cluster: str, node: str, since: datetime) -> sa.Select:
    table = fault_bursts.c
    here = table.cluster == cluster, table.node == node
    replaced = table.fault == REPLACED, table.began_at >= since
    return sa.select(table.doc).where(*here, *replaced).order_by(table.began_at)
