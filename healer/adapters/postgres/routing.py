"""From incidents and messages to deliveries: what is news, which channels take it, and when.

One transaction a round and one process a cluster at a time; nothing is sent here. Nothing is held up by it
either: the walk only writes its messages, and incidents are looked at where they stand.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres import messages as outbox
from healer.adapters.postgres.incident_news import ROUND_MAX, tell_further, tell_opened
from healer.adapters.postgres.tables import (
    channels,
    deliveries,
    incidents,
    messages,
    raised_alarms,
    threads,
    told_incidents,
)
from healer.audit import storable_text
from healer.model import (
    Channel,
    ChannelKind,
    Incident,
    Manner,
    Message,
    Notifications,
    Stage,
    ways,
)
from healer.telling import news

#: They write every message anew: who looks after it is no news there.
_BOTS = (ChannelKind.wecom, ChannelKind.dingtalk, ChannelKind.feishu)
#: Waiting deliveries of a channel that is named no longer.
_UNNAMED = "rules/notifications.yaml names this channel no longer"


def plan(engine: sa.Engine, cluster: str, told: Notifications, now: datetime) -> None:
    """Finds what is news in this cluster and puts it before the channels."""
    with engine.begin() as conn:
        got = conn.execute(
            sa.text("SELECT pg_try_advisory_xact_lock(hashtextextended(:name, 0))"),
            {"name": f"plan:{cluster}"},
        )
        if not got.scalar_one():
            return
        since = _note_channels(conn, cluster, told, now)
        if since:
            tell_opened(conn, cluster, told, min(since.values()), now)
            tell_further(conn, cluster, now)
        _route(conn, cluster, told, since, now)
        if since:
            _digest(conn, cluster, told, now)


def _note_channels(
    conn: sa.Connection, cluster: str, told: Notifications, now: datetime
) -> dict[str, datetime]:
    """Since when each channel is named. What waits for one that is named no longer is over."""
    rows = conn.execute(sa.select(channels.c.name, channels.c.since).where(channels.c.cluster == cluster))
    known: dict[str, datetime] = {row.name: row.since for row in rows}
    named = {one.name for one in told.channels}
    for name in named - known.keys():
        conn.execute(sa.insert(channels).values(cluster=cluster, name=name, since=now))
    for name in known.keys() - named:
        where = (deliveries.c.cluster == cluster, deliveries.c.channel == name)
        waiting = deliveries.c.state.in_(("due", "digest"))
        over = {"state": "over", "error": _UNNAMED, "next_try_at": None, "ended_at": now}
        conn.execute(sa.update(deliveries).where(*where, waiting).values(**over))
        conn.execute(sa.delete(channels).where(channels.c.cluster == cluster, channels.c.name == name))
    return {name: known.get(name, now) for name in named}


# --- messages -> deliveries ------------------------------------------------------------------------------


def _route(
    conn: sa.Connection, cluster: str, told: Notifications, since: dict[str, datetime], now: datetime
) -> None:
    rows = conn.execute(
        sa.select(messages.c.id, messages.c.kind, messages.c.at, messages.c.doc)
        .where(messages.c.cluster == cluster, sa.not_(messages.c.routed))
        .order_by(messages.c.page.desc(), messages.c.at, messages.c.id)
        .limit(ROUND_MAX)
    ).all()
    for row in rows:
        if row.kind == "message" and since:
            _route_one(conn, msgspec.convert(row.doc, Message), row.at, told, since, now)
    if rows:
        routed = messages.c.id.in_([row.id for row in rows])
        conn.execute(sa.update(messages).where(routed).values(routed=True))


def _route_one(
    conn: sa.Connection, message: Message, at: datetime, told: Notifications,
    since: dict[str, datetime], now: datetime,
) -> None:  # fmt: skip
    found = {
        way.channel: way.how
        for way in ways(told.routes, message.severity, message.cluster, message.about)
        if since[way.channel] <= at
    }
    stage, thread = message.about.stage, message.incident or message.id
    if stage is not Stage.opened:
        _follow(conn, message, told, found, at, now)
        return
    over = message.incident is not None and _is_over(conn, message.incident)
    for name, how in found.items():
        if how is Manner.digest and not _stands(conn, message.cluster, name, thread):
            _put(conn, message, name, Manner.digest, at, state="digest")
        elif over:
            _put(conn, message, name, how, at, state="over", ended_at=now)
        else:
            due = _backed_off(conn, message, name, how, now)
            _put(conn, message, name, how, at, state="due", next_try_at=due)
    if message.incident is not None and not over:
        _note_worst(conn, message)


def _note_worst(conn: sa.Connection, message: Message) -> None:
    """What the walk itself told of counts as told: no second message about its opening."""
    known = insert(told_incidents).values(
        incident=message.incident, cluster=message.cluster, severity=message.severity, stage=Stage.opened
    )
    worse = sa.func.least(told_incidents.c.severity, known.excluded.severity)
    reopened = sa.case((told_incidents.c.stage == Stage.resolved, Stage.opened), else_=told_incidents.c.stage)
    there = sa.exists().where(incidents.c.id == message.incident)
    if conn.execute(sa.select(there)).scalar_one():
        conn.execute(
            known.on_conflict_do_update(
                index_elements=["incident"], set_={"severity": worse, "stage": reopened}
            )
        )


def _follow(
    conn: sa.Connection, message: Message, told: Notifications, found: dict[str, Manner],
    at: datetime, now: datetime,
) -> None:  # fmt: skip
    """News of an incident go where it was told before, and nowhere else. Its end takes back what still waits
    and was never tried."""
    thread, is_end = message.incident or message.id, message.about.stage is Stage.resolved
    ours = (deliveries.c.cluster == message.cluster, deliveries.c.thread == thread)
    if is_end:
        _take_back(conn, ours, now)
    for channel in told.channels:
        here = (*ours, deliveries.c.channel == channel.name)
        tried = sa.exists().where(*here, deliveries.c.state == "due", deliveries.c.tries > 0)
        listed = sa.exists().where(*here, deliveries.c.how == Manner.digest, deliveries.c.state == "sent")
        if (
            _stands(conn, message.cluster, channel.name, thread)
            or conn.execute(sa.select(tried)).scalar_one()
        ):
            if is_end or channel.kind not in _BOTS:
                _put(conn, message, channel.name, Manner.channel, at, state="due", next_try_at=now)
        elif is_end and conn.execute(sa.select(listed)).scalar_one():
            _put(conn, message, channel.name, Manner.digest, at, state="digest")


def _take_back(conn: sa.Connection, ours: Sequence[sa.ColumnElement[bool]], now: datetime) -> None:
    """What nobody was told is over, and does not count as told."""
    untried = (*ours, deliveries.c.state == "due", deliveries.c.tries == 0)
    waited = sa.select(deliveries.c.cluster, deliveries.c.channel, deliveries.c.alarm).where(*untried)
    keys = (raised_alarms.c.cluster, raised_alarms.c.channel, raised_alarms.c.alarm)
    rows = conn.execute(
        sa.select(*raised_alarms.c).where(
            sa.tuple_(*keys).in_(waited),
        )
    ).all()
    for row in rows:
        same = (key == getattr(row, key.name) for key in keys)
        before = news.taken_back(news.Raised(row.again, row.last_at))
        if before is None:
            conn.execute(sa.delete(raised_alarms).where(*same))
            continue
        values = {"again": before.again, "last_at": before.last_at}
        conn.execute(sa.update(raised_alarms).where(*same).values(**values))
    over = {"state": "over", "next_try_at": None, "ended_at": now}
    conn.execute(sa.update(deliveries).where(*untried).values(**over))


def _stands(conn: sa.Connection, cluster: str, channel: str, thread: str) -> bool:
    """Whether the channel was told of it and not of its end."""
    key = (threads.c.cluster == cluster, threads.c.channel == channel, threads.c.thread == thread)
    return conn.execute(sa.select(sa.exists().where(*key, threads.c.stage != Stage.resolved))).scalar_one()


def _is_over(conn: sa.Connection, incident: str) -> bool:
    state = conn.execute(sa.select(incidents.c.state).where(incidents.c.id == incident)).scalar()
    return state == "resolved"


def _backed_off(conn: sa.Connection, message: Message, channel: str, how: Manner, now: datetime) -> datetime:
    """When it is told. An earlier one of the same alarm that still waits for its time gives way to it."""
    alarm = _alarm(message, how)
    key = {"cluster": message.cluster, "channel": channel, "alarm": alarm}
    waits = sa.update(deliveries).where(
        deliveries.c.cluster == message.cluster,
        deliveries.c.channel == channel,
        deliveries.c.alarm == alarm,
        deliveries.c.stage == Stage.opened,
        deliveries.c.state == "due",
        deliveries.c.tries == 0,
        deliveries.c.next_try_at > now,
    )
    took_place = conn.execute(waits.values(state="folded", next_try_at=None, ended_at=now)).rowcount > 0
    same = (raised_alarms.c[name] == value for name, value in key.items())
    row = conn.execute(sa.select(raised_alarms.c.again, raised_alarms.c.last_at).where(*same)).first()
    if took_place and row is not None:
        return row.last_at
    raised = news.told_next(news.Raised(row.again, row.last_at) if row else None, now)
    values = {"again": raised.again, "last_at": raised.last_at}
    conn.execute(
        insert(raised_alarms)
        .values(**key, **values)
        .on_conflict_do_update(index_elements=list(key), set_=values)
    )
    return raised.last_at


def _alarm(message: Message, how: Manner) -> str:
    """A page is no repeat of what was only told before."""
    return storable_text(f"{message.about.alarm or message.id} {how}")


def _put(
    conn: sa.Connection, message: Message, channel: str, how: Manner, at: datetime, *, state: str,
    **values: datetime,
) -> None:  # fmt: skip
    conn.execute(
        insert(deliveries)
        .values(
            cluster=message.cluster,
            channel=channel,
            message=message.id,
            thread=message.incident or message.id,
            alarm=_alarm(message, how),
            how=how,
            stage=message.about.stage,
            at=at,
            state=state,
            **values,
        )
        .on_conflict_do_nothing(index_elements=["message", "channel"])
    )


# --- digests ---------------------------------------------------------------------------------------------


def _digest(conn: sa.Connection, cluster: str, told: Notifications, now: datetime) -> None:
    """One message of all that waits at a channel, once the oldest of it has waited long enough."""
    for channel in told.channels:
        here = (deliveries.c.cluster == cluster, deliveries.c.channel == channel.name)
        waiting = (*here, deliveries.c.state == "digest")
        oldest = conn.execute(sa.select(sa.func.min(deliveries.c.at)).where(*waiting)).scalar()
        if oldest is None or now - oldest < timedelta(hours=told.digest_h):
            continue
        _gather(conn, cluster, told, channel, waiting, now)


def _gather(
    conn: sa.Connection, cluster: str, told: Notifications, channel: Channel,
    waiting: Sequence[sa.ColumnElement[bool]], now: datetime,
) -> None:  # fmt: skip
    rows = conn.execute(
        sa.select(deliveries.c.id, messages.c.doc, incidents.c.doc.label("incident"))
        .join(messages, messages.c.id == deliveries.c.message)
        .outerjoin(incidents, incidents.c.id == messages.c.incident)
        .where(*waiting)
        .order_by(deliveries.c.id)
    ).all()
    items = [
        news.Item(
            message=msgspec.convert(row.doc, Message),
            incident=msgspec.convert(row.incident, Incident) if row.incident else None,
        )
        for row in rows
    ]
    name = f"digest:{cluster}:{channel.name}:{now.isoformat()}"
    message = news.digest(name, cluster, items, told.console_url)
    outbox.queue(conn, message, at=now, has_sink=False)
    conn.execute(sa.update(messages).where(messages.c.id == name).values(routed=True))
    _put(conn, message, channel.name, Manner.digest, now, state="due", next_try_at=now)
    gathered = deliveries.c.id.in_([row.id for row in rows])
    told_in = {"state": "sent", "reference": name, "ended_at": now}
    conn.execute(sa.update(deliveries).where(gathered).values(**told_in))
