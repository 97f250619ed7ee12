"""All messages and how their delivery stands, and the replay of those that no sink took."""

from collections.abc import Sequence
from datetime import datetime

import msgspec
import sqlalchemy as sa

from healer.adapters.postgres import audit_rows as audit
from healer.adapters.postgres.engine import translated
from healer.adapters.postgres.paging import after
from healer.adapters.postgres.tables import deliveries, delivery_log, messages
from healer.model import TICKETS, WEBHOOK, Delivery, Try, audit_record
from healer.ports.answers import Page
from healer.ports.queries import encode_cursor
from healer.ports.request_errors import Conflict, NotFound


class PostgresMessageBook:
    """`healer.ports.queries.MessageBook`."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def page(
        self,
        *,
        clusters: Sequence[str] | None,
        state: Sequence[str],
        channel: str | None,
        incident: str | None,
        limit: int,
        cursor: str | None,
    ) -> Page[Delivery]:
        listed = everything()
        query = sa.select(listed)
        if clusters is not None:
            query = query.where(listed.c.cluster.in_(clusters))
        if state:
            query = query.where(listed.c.state.in_(state))
        if channel is not None:
            query = query.where(listed.c.channel == channel)
        if incident is not None:
            query = query.where(listed.c.incident == incident)
        query = after(query, listed.c.at, listed.c.key, cursor).limit(limit + 1)
        with translated(), self._engine.connect() as conn:
            rows = conn.execute(query).all()
            logs = _logs(conn, [row.number for row in rows[:limit] if row.number is not None])
        items = [_delivery(row, logs.get(row.number, ())) for row in rows[:limit]]
        last = rows[limit - 1] if len(rows) > limit else None
        return Page(items=items, next_cursor=encode_cursor(last.at, last.key) if last else None)

    def cluster_of(self, message: str) -> str:
        """The message's cluster. NotFound."""
        with translated(), self._engine.connect() as conn:
            found = conn.execute(sa.select(messages.c.cluster).where(messages.c.id == message)).scalar()
        if found is None:
            raise NotFound(f"there is no message {message}")
        return found

    def retry(
        self, message: str, *, channel: str | None, by: str, reason: str, now: datetime
    ) -> list[Delivery]:
        """Puts the message before every sink that failed to take it, or before `channel` alone, as if it had
        not been tried. Conflict where none failed."""
        again = {"state": "due", "tries": 0, "next_try_at": now}
        with translated(), self._engine.begin() as conn:
            ours = [messages.c.id == message, messages.c.state == "failed"]
            sink = sa.case((messages.c.kind == "ticket", TICKETS), else_=WEBHOOK)
            theirs = [deliveries.c.message == message, deliveries.c.state == "failed"]
            if channel is not None:
                ours.append(sink == channel)
                theirs.append(deliveries.c.channel == channel)
            sinks = list(conn.scalars(sa.update(messages).where(*ours).values(**again).returning(sink)))
            put = sa.update(deliveries).where(*theirs).values(**again, ended_at=None)
            rows = conn.execute(put.returning(deliveries.c.id, deliveries.c.channel)).all()
            if not sinks and not rows:
                at = f" at {channel}" if channel else ""
                raise Conflict(f"no delivery of {message}{at} has failed")
            for row in rows:
                told = {"delivery": row.id, "at": now, "outcome": "retried", "text": f"by {by}: {reason}"}
                conn.execute(sa.insert(delivery_log).values(**told))
            channels = [*sinks, *(row.channel for row in rows)]
            self._audit(conn, message, channels, by, reason, now)
            listed = everything(message)
            found = conn.execute(sa.select(listed).where(listed.c.channel.in_(channels))).all()
            logs = _logs(conn, [row.number for row in found if row.number is not None])
        return [_delivery(row, logs.get(row.number, ())) for row in found]

    def _audit(
        self, conn: sa.Connection, message: str, channels: Sequence[str], by: str, reason: str, now: datetime
    ) -> None:
        cluster = conn.execute(sa.select(messages.c.cluster).where(messages.c.id == message)).scalar_one()
        why, subject = {"reason": reason, "channels": sorted(channels)}, f"message/{message}"
        audit.append(conn, audit_record(cluster, now, by, "message.retried", subject, **why))


def channels_told(conn: sa.Connection, incident: str) -> dict[str, list[sa.Row]]:
    """By message of the incident: the channels that it goes to."""
    rows = conn.execute(
        sa.select(deliveries)
        .join(messages, messages.c.id == deliveries.c.message)
        .where(messages.c.incident == incident)
        .order_by(deliveries.c.id)
    )
    found: dict[str, list[sa.Row]] = {}
    for row in rows:
        found.setdefault(row.message, []).append(row)
    return found


def everything(message: str | None = None) -> sa.Subquery:
    """What each sink has of each message; one that channels take is not also listed as taken by nobody."""
    taken = sa.exists().where(deliveries.c.message == messages.c.id)
    title, severity = (messages.c.doc[name].astext for name in ("title", "severity"))
    own = sa.select(
        messages.c.id.label("message"),
        messages.c.cluster,
        sa.case((messages.c.kind == "ticket", TICKETS), else_=WEBHOOK).label("channel"),
        sa.case((messages.c.kind == "ticket", "ticket"), (messages.c.page, "page"), else_="channel").label(
            "how"
        ),
        messages.c.state,
        title.label("title"),
        sa.func.coalesce(severity, "P3").label("severity"),
        messages.c.incident,
        messages.c.at,
        messages.c.tries,
        messages.c.next_try_at,
        sa.cast(sa.null(), sa.DateTime(timezone=True)).label("ended_at"),
        messages.c.error,
        messages.c.reference,
        sa.cast(sa.null(), sa.BigInteger).label("number"),
        messages.c.id.label("key"),
    ).where(sa.or_(messages.c.state != "listed", sa.not_(taken)))
    theirs = sa.select(
        deliveries.c.message,
        deliveries.c.cluster,
        deliveries.c.channel,
        deliveries.c.how,
        deliveries.c.state,
        title,
        sa.func.coalesce(severity, "P3"),
        messages.c.incident,
        deliveries.c.at,
        deliveries.c.tries,
        deliveries.c.next_try_at,
        deliveries.c.ended_at,
        deliveries.c.error,
        deliveries.c.reference,
        deliveries.c.id,
        deliveries.c.message + " " + deliveries.c.channel,
    ).join(messages, messages.c.id == deliveries.c.message)
    if message is not None:
        own, theirs = own.where(messages.c.id == message), theirs.where(messages.c.id == message)
    return sa.union_all(own, theirs).subquery()


def _logs(conn: sa.Connection, numbers: Sequence[int]) -> dict[int, tuple[Try, ...]]:
    rows = conn.execute(
        sa.select(delivery_log).where(delivery_log.c.delivery.in_(numbers)).order_by(delivery_log.c.id)
    )
    found: dict[int, tuple[Try, ...]] = {}
    for row in rows:
        told = Try(at=row.at, outcome=row.outcome, text=row.text)
        found[row.delivery] = (*found.get(row.delivery, ()), told)
    return found


def _delivery(row: sa.Row, log: tuple[Try, ...]) -> Delivery:
    told = {name: getattr(row, name) for name in Delivery.__struct_fields__ if name != "tries_log"}
    told |= {"error": row.error or "", "reference": row.reference or ""}
    return msgspec.convert(told | {"tries_log": log}, Delivery)
