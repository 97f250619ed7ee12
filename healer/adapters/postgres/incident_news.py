"""From incidents to messages: what opened, grew worse, is looked after or is over since it was last told.

Incidents are looked at where they stand, so nothing is lost with a process, and the walk waits for nothing.
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres import messages as outbox
from healer.adapters.postgres.tables import deliveries, incidents, run_log, runs, told_incidents
from healer.model import Incident, LogEntry, Message, Notifications, Run, Severity, Stage, ways
from healer.telling import news

#: Incidents of each kind of news in one round: a storm is told in several.
ROUND_MAX = 200


def tell_opened(
    conn: sa.Connection, cluster: str, told: Notifications, since: datetime, now: datetime
) -> None:
    """Incidents that opened, opened again or grew worse. Those at P0 are paged for by the walk: only where
    healer cannot or may not act for a while."""
    known = told_incidents
    rows = conn.execute(
        sa.select(incidents.c.doc, known.c.stage)
        .outerjoin(known, known.c.incident == incidents.c.id)
        .where(
            incidents.c.cluster == cluster,
            incidents.c.state != "resolved",
            incidents.c.severity != Severity.P0,
            incidents.c.opened >= since,
            sa.or_(
                known.c.incident.is_(None),
                known.c.stage == Stage.resolved,
                incidents.c.severity < known.c.severity,
            ),
        )
        .order_by(incidents.c.severity, incidents.c.opened)
        .limit(ROUND_MAX)
    )
    for row in rows.all():
        incident = msgspec.convert(row.doc, Incident)
        if incident.settle_until > now:
            continue
        if ways(told.routes, incident.severity, cluster, news.about(incident)):
            outbox.queue(conn, news.opened(incident, now if row.stage else None), at=now, has_sink=False)
        _note_told(conn, incident.id, cluster, incident.severity, Stage.opened)


def tell_further(conn: sa.Connection, cluster: str, now: datetime) -> None:
    """What was told of and is looked after by somebody now, or over."""
    taken = incidents.c.doc["acknowledged_by"].astext
    rows = conn.execute(
        sa.select(incidents.c.doc)
        .join(told_incidents, told_incidents.c.incident == incidents.c.id)
        .where(
            told_incidents.c.cluster == cluster,
            told_incidents.c.stage != Stage.resolved,
            sa.or_(
                incidents.c.state == "resolved",
                sa.and_(told_incidents.c.stage == Stage.opened, taken.is_not(None)),
            ),
        )
        .limit(ROUND_MAX)
    )
    for row in rows.all():
        incident = msgspec.convert(row.doc, Incident)
        stage = Stage.acknowledged if incident.is_open else Stage.resolved
        waits = sa.exists().where(deliveries.c.thread == incident.id)
        if conn.execute(sa.select(waits)).scalar_one():
            message = news.acknowledged(incident) if incident.is_open else _ended(conn, incident)
            outbox.queue(conn, message, at=now, has_sink=False)
        _note_told(conn, incident.id, cluster, incident.severity, stage)


def _ended(conn: sa.Connection, incident: Incident) -> Message:
    made = conn.execute(
        sa.select(runs.c.id, runs.c.doc).where(runs.c.incident == incident.id).order_by(runs.c.created_at)
    ).all()
    work: list[tuple[Run, Sequence[LogEntry]]] = []
    for row in made:
        log = conn.scalars(sa.select(run_log.c.doc).where(run_log.c.run == row.id).order_by(run_log.c.seq))
        work.append((msgspec.convert(row.doc, Run), [msgspec.convert(one, LogEntry) for one in log]))
    return news.resolved(incident, work)


def _note_told(conn: sa.Connection, incident: str, cluster: str, severity: Severity, stage: Stage) -> None:
    values = {"severity": severity, "stage": stage}
    conn.execute(
        insert(told_incidents)
        .values(incident=incident, cluster=cluster, **values)
        .on_conflict_do_update(index_elements=["incident"], set_=values)
    )
