"""From the database to one channel: what is due is told, and what came of it is noted.

One process a channel at a time. Each try is noted before it begins; where it is not known what came of one
(a crash, a time-out), the channel is asked for that very message before it is told again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.notify.alertmanager import REPOST_S, Alertmanager
from healer.adapters.notify.channel import Teller
from healer.adapters.notify.notice import Notice, notice_of
from healer.adapters.postgres import audit
from healer.adapters.postgres.messages import MAX_TRIES, wait_after
from healer.adapters.postgres.tables import channels, deliveries, delivery_log, messages, threads
from healer.audit import storable, storable_text
from healer.model import AuditRecord, Manner, Message, Stage
from healer.ports.clock import Clock
from healer.ports.outbound import DeliveryFailed
from healer.telling import links

#: A try that was begun and of which nothing more is known is taken up again after this.
_CLAIM_S = 20.0
#: A channel may ask for a longer wait, up to this.
_HELD_MAX_S = 3600.0
#: Messages of one round; pages go first in each.
_ROUND_MAX = 50
_COLUMNS = ("id", "cluster", "channel", "message", "thread", "how", "stage", "at", "tries")


def waiting_channels(engine: sa.Engine, cluster: str, now: datetime) -> list[str]:
    """Channels with something to tell now, those with a page first."""
    with engine.connect() as conn:
        is_page = sa.func.bool_or(deliveries.c.how == Manner.page)
        named = sa.select(deliveries.c.channel).where(*_due(cluster, now)).group_by(deliveries.c.channel)
        return list(conn.scalars(named.order_by(is_page.desc(), deliveries.c.channel)))


def deliver_to(
    engine: sa.Engine,
    cluster: str,
    channel: str,
    teller: Callable[[], Teller],
    *,
    console_url: str = "",
    link_secret: str | None = None,
    clock: Clock,
    chance: Callable[[], float],
) -> int:
    """Tells what is due at this channel, pages first; the number that it took. After a failure the rest waits
    for the next call. `teller` may raise DeliveryFailed; `chance` gives 0..1 for the jitter."""
    sent = 0
    with _alone(engine, f"channel:{cluster}:{channel}") as got:
        for _ in range(_ROUND_MAX if got else 0):
            row = _claim(engine, cluster, channel, clock.now())
            if row is None:
                break
            try:
                reference, found, notice = _tell(engine, row, teller, console_url, link_secret)
            except DeliveryFailed as error:
                _failed(engine, row, error, clock.now(), chance())
                break
            _settled(engine, row, notice, reference, clock.now(), found=found)
            sent += 1
    return sent


@contextmanager
def _alone(engine: sa.Engine, name: str) -> Iterator[bool]:
    """Whether this process is the one; a lock of the session, so that it goes with its process."""
    with engine.connect() as conn:
        asked = {"name": name}
        got = conn.execute(
            sa.text("SELECT pg_try_advisory_lock(hashtextextended(:name, 0))"), asked
        ).scalar_one()
        conn.commit()
        try:
            yield bool(got)
        except BaseException:
            conn.invalidate()  # with its session goes the lock
            raise
        if got:
            conn.execute(sa.text("SELECT pg_advisory_unlock(hashtextextended(:name, 0))"), asked)
            conn.commit()


def _due(cluster: str, now: datetime) -> tuple[sa.ColumnElement[bool], ...]:
    held = sa.exists().where(
        channels.c.cluster == deliveries.c.cluster,
        channels.c.name == deliveries.c.channel,
        channels.c.held_until > now,
    )
    return (
        deliveries.c.cluster == cluster,
        deliveries.c.state == "due",
        deliveries.c.next_try_at <= now,
        sa.not_(held),
    )


def _claim(engine: sa.Engine, cluster: str, channel: str, now: datetime) -> sa.Row | None:
    """The most urgent due one, its try noted. What began a thread comes before what goes on in it."""
    before = deliveries.alias()
    first = sa.not_(
        sa.exists().where(
            before.c.thread == deliveries.c.thread,
            before.c.channel == deliveries.c.channel,
            before.c.cluster == deliveries.c.cluster,
            before.c.state == "due",
            before.c.id < deliveries.c.id,
            sa.or_(before.c.tries > 0, before.c.next_try_at <= now),
        )
    )
    chosen = (
        sa.select(deliveries.c.id)
        .where(*_due(cluster, now), deliveries.c.channel == channel, first)
        .order_by((deliveries.c.how == Manner.page).desc(), deliveries.c.next_try_at, deliveries.c.id)
        .limit(1)
    )
    with engine.begin() as conn:
        row = conn.execute(
            sa.update(deliveries)
            .where(deliveries.c.id == chosen.scalar_subquery())
            .values(tries=deliveries.c.tries + 1, next_try_at=now + timedelta(seconds=_CLAIM_S))
            .returning(*(deliveries.c[name] for name in _COLUMNS))
        ).first()
        if row is not None:
            _log(conn, row, now, "begun", f"try {row.tries}")
        return row


def _tell(
    engine: sa.Engine,
    row: sa.Row,
    teller: Callable[[], Teller],
    console_url: str,
    link_secret: str | None,
) -> tuple[str, bool, Notice]:
    """The thread's reference, and whether an earlier try turned out to have been taken."""
    if row.tries > MAX_TRIES:
        raise DeliveryFailed("the process that made the last try ended before its answer was noted")
    with engine.connect() as conn:
        doc = conn.execute(sa.select(messages.c.doc).where(messages.c.id == row.message)).scalar_one()
        ref = conn.execute(sa.select(threads.c.reference).where(*_thread(row))).scalar() or ""
        begun = (delivery_log.c.delivery == row.id, delivery_log.c.outcome == "begun")
        times = conn.execute(sa.select(sa.func.count()).where(*begun)).scalar_one()
    one = teller()
    notice = shown(
        msgspec.convert(doc, Message),
        row.at,
        page=row.how == Manner.page,
        console_url=console_url,
        link_secret=link_secret,
        buttons=one.has_buttons,
    )
    if times > 1 and one.can_find and (found := one.find(notice, ref)):
        return found, True, notice
    return one.tell(notice, ref), False, notice


def shown(
    message: Message,
    at: datetime,
    *,
    page: bool,
    console_url: str,
    link_secret: str | None = None,
    buttons: bool = False,
) -> Notice:
    """As channels write it. An approval is a link to the run, where a person signs in and approves; with a
    secret it shows the run for a day without that. Buttons where the channel has them."""
    run = message.about.run
    path = f"/runs/{run}" if run else ""
    if path and link_secret:
        path = links.signed(path, link_secret, at)
    approve = f"{console_url.rstrip('/')}{path}" if console_url and path else ""
    notice = notice_of(message, at, console_url=console_url, approve=approve)
    return msgspec.structs.replace(notice, page=page, run=run if buttons else "")


def _thread(row: sa.Row) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        threads.c.cluster == row.cluster, threads.c.channel == row.channel, threads.c.thread == row.thread,
    )  # fmt: skip


def _settled(
    engine: sa.Engine, row: sa.Row, notice: Notice, reference: str, now: datetime, *, found: bool
) -> None:
    values = {"stage": row.stage, "reference": reference, "told_at": now, "doc": storable(notice)}
    key = {"cluster": row.cluster, "channel": row.channel, "thread": row.thread}
    with engine.begin() as conn:
        conn.execute(
            insert(threads)
            .values(**key, **values)
            .on_conflict_do_update(index_elements=list(key), set_=values)
        )
        done = _mark(conn, row, state="sent", next_try_at=None, ended_at=now, error=None, reference=reference)
        _log(conn, row, now, "found" if found else "taken", reference)
        if done:
            _audit(conn, row, "message.sent", {"tries": row.tries, "reference": reference}, now)


def _failed(engine: sa.Engine, row: sa.Row, error: DeliveryFailed, now: datetime, chance: float) -> None:
    """Tried again, but for what the channel says that it never takes; a page is tried again even then."""
    never = error.refused and row.how != Manner.page
    with engine.begin() as conn:
        _log(conn, row, now, "refused" if error.refused else "failed", str(error))
        if error.retry_after_s:
            _hold_back(conn, row, now + timedelta(seconds=min(error.retry_after_s, _HELD_MAX_S)))
        if row.tries >= MAX_TRIES or never:
            if _mark(
                conn, row, state="failed", next_try_at=None, ended_at=now, error=storable_text(str(error))
            ):
                _audit(conn, row, "message.failed", {"tries": row.tries, "error": str(error)}, now)
            return
        wait_s = wait_after(row.tries, error.retry_after_s, chance)
        _mark(conn, row, error=storable_text(str(error)), next_try_at=now + timedelta(seconds=wait_s))


def _hold_back(conn: sa.Connection, row: sa.Row, until: datetime) -> None:
    here = (channels.c.cluster == row.cluster, channels.c.name == row.channel)
    conn.execute(sa.update(channels).where(*here).values(held_until=until))


def _mark(conn: sa.Connection, row: sa.Row, **values: object) -> bool:
    """False when somebody else has tried since: what they write counts."""
    same = (deliveries.c.id == row.id, deliveries.c.state == "due", deliveries.c.tries == row.tries)
    return conn.execute(sa.update(deliveries).where(*same).values(**values)).rowcount == 1


def _log(conn: sa.Connection, row: sa.Row, now: datetime, outcome: str, text: str) -> None:
    conn.execute(
        sa.insert(delivery_log).values(delivery=row.id, at=now, outcome=outcome, text=storable_text(text))
    )


def _audit(conn: sa.Connection, row: sa.Row, verb: str, data: dict[str, object], now: datetime) -> None:
    record = AuditRecord(
        cluster=row.cluster,
        at=now,
        actor="healer",
        verb=verb,
        subject=f"message/{row.message}",
        data={"channel": row.channel, "page": row.how == Manner.page, **data},
    )
    audit.append(conn, record)


# --- alerts that end by themselves ------------------------------------------------------------------------


def renew(engine: sa.Engine, cluster: str, channel: str, teller: Alertmanager, now: datetime) -> int:
    """Sends the alerts of open incidents again, so that they end when healer does. DeliveryFailed."""
    old = threads.c.told_at <= now - timedelta(seconds=REPOST_S)
    key = (threads.c.cluster == cluster, threads.c.channel == channel)
    # What is about no incident has no end that anybody tells: it ends by itself.
    about_incident = threads.c.thread != threads.c.doc["id"].astext
    with engine.connect() as conn:
        rows = conn.execute(
            sa.select(threads.c.thread, threads.c.doc).where(
                *key, old, threads.c.stage != Stage.resolved, about_incident
            )
        ).all()
    if rows:
        teller.renew([msgspec.convert(row.doc, Notice) for row in rows])
        with engine.begin() as conn:
            these = threads.c.thread.in_([row.thread for row in rows])
            conn.execute(sa.update(threads).where(*key, these).values(told_at=now))
    return len(rows)
