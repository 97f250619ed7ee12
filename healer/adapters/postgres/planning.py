"""Planning of notifications: which incidents have news, and which channels get which message when."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres.engine import pick, read_docs, storable_text, upsert
from healer.adapters.postgres.outbox import queue
from healer.adapters.postgres.run_rows import logs_of
from healer.adapters.postgres.tables import (
    channels,
    deliveries,
    incidents,
    messages,
    raised_alarms,
    runs,
    threads,
    told_incidents,
)
from healer.model import Incident, IncidentState, LogEntry, Manner, Message, Run, Severity, Stage
from healer.ports.outbound import Put, Raised, Thread, Unrouted
from healer.text import from_stored

#: Incidents of each kind of news, and messages, in one round; a storm takes several rounds.
ROUND_MAX = 200


@contextmanager
def planning(engine: sa.Engine, cluster: str, now: datetime) -> Iterator["PostgresPlanTx | None"]:
    """None while another process plans for this cluster."""
    lock = sa.text("SELECT pg_try_advisory_xact_lock(hashtextextended(:name, 0))")
    with engine.begin() as conn:
        is_mine = conn.execute(lock, {"name": f"plan:{cluster}"}).scalar_one()
        yield PostgresPlanTx(conn, cluster, now) if is_mine else None


# Wide: implements `ports.PlanTx`.
class PostgresPlanTx:
    """`healer.ports.outbound.PlanTx` on an open transaction."""

    def __init__(self, conn: sa.Connection, cluster: str, now: datetime) -> None:
        self._conn, self._cluster, self._now = conn, cluster, now
        self._ours = deliveries.c.cluster == cluster

    def channels(self) -> dict[str, datetime]:
        named = sa.select(channels.c.name, channels.c.since).where(channels.c.cluster == self._cluster)
        return {row.name: row.since for row in self._conn.execute(named)}

    def name_channel(self, name: str, since: datetime) -> None:
        key = {"cluster": self._cluster, "name": name}
        self._conn.execute(upsert(channels, key, {"since": since}))

    def drop_channel(self, name: str, why: str) -> None:
        waiting = (self._ours, deliveries.c.channel == name, deliveries.c.state.in_(("due", "digest")))
        self._end(*waiting, state="over", error=why)
        this = (channels.c.cluster == self._cluster, channels.c.name == name)
        self._conn.execute(sa.delete(channels).where(*this))

    # --- incidents

    def unannounced(self, since: datetime) -> list[tuple[Incident, Stage | None]]:
        announced = told_incidents
        rows = self._conn.execute(
            sa.select(incidents.c.doc, announced.c.stage)
            .outerjoin(announced, announced.c.incident == incidents.c.id)
            .where(
                incidents.c.cluster == self._cluster,
                incidents.c.state != "resolved",
                incidents.c.severity != Severity.P0,
                incidents.c.opened >= since,
                sa.or_(
                    announced.c.incident.is_(None),
                    announced.c.stage == Stage.resolved,
                    incidents.c.severity < announced.c.severity,
                ),
            )
            .order_by(incidents.c.severity, incidents.c.opened)
            .limit(ROUND_MAX)
        ).all()
        return [(from_stored(row.doc, Incident), row.stage and Stage(row.stage)) for row in rows]

    def announced_changed(self) -> list[Incident]:
        announced, acknowledged_by = told_incidents, incidents.c.doc["acknowledged_by"].astext
        acknowledged = sa.and_(announced.c.stage == Stage.opened, acknowledged_by.is_not(None))
        query = (
            sa.select(incidents.c.doc)
            .join(announced, announced.c.incident == incidents.c.id)
            .where(announced.c.cluster == self._cluster, announced.c.stage != Stage.resolved)
            .where(sa.or_(incidents.c.state == "resolved", acknowledged))
            .limit(ROUND_MAX)
        )
        return read_docs(self._conn, query, Incident)

    def work_of(self, incident: str) -> list[tuple[Run, list[LogEntry]]]:
        query = sa.select(runs.c.doc).where(runs.c.incident == incident).order_by(runs.c.created_at)
        found = read_docs(self._conn, query, Run)
        logs = logs_of(self._conn, [run.id for run in found])
        return [(run, logs[run.id]) for run in found]

    def save_announced(self, incident: str, severity: Severity, stage: Stage) -> None:
        values = {"cluster": self._cluster, "severity": severity, "stage": stage}
        self._conn.execute(upsert(told_incidents, {"incident": incident}, values))

    def thread(self, thread: str) -> Thread:
        here = (threads.c.cluster == self._cluster, threads.c.thread == thread)
        unresolved = sa.select(threads.c.channel).where(*here, threads.c.stage != Stage.resolved)
        of_thread = sa.select(
            deliveries.c.channel, deliveries.c.how, deliveries.c.state, deliveries.c.tries
        ).where(self._ours, deliveries.c.thread == thread)
        state_of = (
            sa.select(
                incidents.c.state,
                incidents.c.severity.label("present"),
                told_incidents.c.severity,
                told_incidents.c.stage,
            )
            .outerjoin(told_incidents, told_incidents.c.incident == incidents.c.id)
            .where(incidents.c.id == thread)
        )
        rows = self._conn.execute(of_thread).all()
        state, present, severity, stage = self._conn.execute(state_of).first() or (None,) * 4
        return Thread(
            standing=set(self._conn.scalars(unresolved)),
            tried={row.channel for row in rows if row.state == "due" and row.tries > 0},
            listed={row.channel for row in rows if row.how == Manner.digest and row.state == "sent"},
            has_deliveries=bool(rows),
            state=state and IncidentState(state),
            incident_severity=present and Severity(present),
            severity=severity and Severity(severity),
            stage=stage and Stage(stage),
        )

    # --- messages

    def queue(self, message: Message, *, routed: bool = False) -> None:
        queue(self._conn, message, at=self._now, has_sink=False, routed=routed)

    def unrouted(self) -> list[Unrouted]:
        rows = self._conn.execute(
            sa.select(messages.c.id, messages.c.kind, messages.c.at, messages.c.doc)
            .where(messages.c.cluster == self._cluster, sa.not_(messages.c.routed))
            .order_by(messages.c.page.desc(), messages.c.at, messages.c.id)
            .limit(ROUND_MAX)
        ).all()
        return [
            Unrouted(row.id, row.at, from_stored(row.doc, Message) if row.kind == "message" else None)
            for row in rows
        ]

    def mark_routed(self, names: Sequence[str]) -> None:
        if names:
            these = messages.c.id.in_(names)
            self._conn.execute(sa.update(messages).where(these).values(routed=True))

    # --- deliveries

    def put(self, put: Put) -> None:
        message = put.message
        row = insert(deliveries).values(
            **pick(put, "channel", "how", "at", "state", "next_try_at", "ended_at"),
            cluster=message.cluster,
            message=message.id,
            thread=message.thread,
            alarm=storable_text(put.alarm),
            stage=message.about.stage,
        )
        self._conn.execute(row.on_conflict_do_nothing(index_elements=["message", "channel"]))

    def fold_waiting(self, channel: str, alarm: str) -> bool:
        waits = (
            self._ours,
            deliveries.c.channel == channel,
            deliveries.c.alarm == storable_text(alarm),
            deliveries.c.stage == Stage.opened,
            deliveries.c.state == "due",
            deliveries.c.tries == 0,
            deliveries.c.next_try_at > self._now,
        )
        return self._end(*waits, state="folded") > 0

    def raised(self, channel: str, alarm: str) -> Raised | None:
        query = sa.select(raised_alarms.c.again, raised_alarms.c.last_at).where(*self._same(channel, alarm))
        row = self._conn.execute(query).first()
        return Raised(row.again, row.last_at) if row else None

    def save_raised(self, channel: str, alarm: str, raised: Raised | None) -> None:
        if raised is None:
            self._conn.execute(sa.delete(raised_alarms).where(*self._same(channel, alarm)))
        else:
            key = self._alarm(channel, alarm)
            self._conn.execute(upsert(raised_alarms, key, msgspec.structs.asdict(raised)))

    def unsent_alarms(self, thread: str) -> list[tuple[str, str, Raised]]:
        waited = sa.select(deliveries.c.channel, deliveries.c.alarm).where(*self._untried(thread))
        keys = sa.tuple_(raised_alarms.c.channel, raised_alarms.c.alarm)
        same = (raised_alarms.c.cluster == self._cluster, keys.in_(waited))
        rows = self._conn.execute(sa.select(raised_alarms).where(*same)).all()
        return [(row.channel, row.alarm, Raised(row.again, row.last_at)) for row in rows]

    def end_unsent(self, thread: str) -> None:
        self._end(*self._untried(thread), state="over")

    def end_late(self, thread: str, channel: str, *, tries: int) -> None:
        late = (
            self._ours,
            deliveries.c.thread == thread,
            deliveries.c.channel == channel,
            deliveries.c.stage == Stage.resolved,
            deliveries.c.state == "due",
            deliveries.c.tries >= tries,
        )
        self._end(*late, state="over")

    # --- digests

    def digests(self) -> dict[str, datetime]:
        oldest = sa.select(deliveries.c.channel, sa.func.min(deliveries.c.at).label("at"))
        waiting = oldest.where(self._ours, deliveries.c.state == "digest").group_by(deliveries.c.channel)
        return {row.channel: row.at for row in self._conn.execute(waiting)}

    def in_digest(self, channel: str) -> list[tuple[int, Message, Incident | None]]:
        rows = self._conn.execute(
            sa.select(deliveries.c.id, messages.c.doc, incidents.c.doc.label("incident"))
            .join(messages, messages.c.id == deliveries.c.message)
            .outerjoin(incidents, incidents.c.id == messages.c.incident)
            .where(self._ours, deliveries.c.channel == channel, deliveries.c.state == "digest")
            .order_by(deliveries.c.id)
        ).all()
        return [
            (row.id, from_stored(row.doc, Message), row.incident and from_stored(row.incident, Incident))
            for row in rows
        ]

    def end_digest(self, numbers: Sequence[int], digest: str) -> None:
        self._end(deliveries.c.id.in_(numbers), state="sent", reference=digest)

    def _end(self, *where: sa.ColumnElement[bool], **values: Any) -> int:
        """Ends deliveries and returns how many."""
        ended = sa.update(deliveries).where(*where).values(**values, next_try_at=None, ended_at=self._now)
        return self._conn.execute(ended).rowcount

    def _untried(self, thread: str) -> tuple[sa.ColumnElement[bool], ...]:
        waits = (deliveries.c.state == "due", deliveries.c.tries == 0)
        return self._ours, deliveries.c.thread == thread, *waits

    def _alarm(self, channel: str, alarm: str) -> dict[str, str]:
        return {"cluster": self._cluster, "channel": channel, "alarm": storable_text(alarm)}

    def _same(self, channel: str, alarm: str) -> Iterator[sa.ColumnElement[bool]]:
        return (raised_alarms.c[name] == value for name, value in self._alarm(channel, alarm).items())
