"""Messages and tickets and their delivery to sinks: the webhook, the ticket system, and each channel.

A row of `messages` is `due` until the sink accepts it (`sent`) or its last attempt fails (`failed`); without
a sink it is `listed`. Its delivery to each channel is a row of `deliveries`. `healer.engine.tell` decides.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import SQLAlchemyError

from healer.adapters.postgres import audit_rows
from healer.adapters.postgres.engine import (
    PostgresStore,
    matches,
    pick,
    read_docs,
    read_page,
    reading,
    storable_doc,
    storable_text,
    stored_sentence,
    upsert,
    writing,
)
from healer.adapters.postgres.tables import (
    channels,
    deliveries,
    delivery_log,
    incidents,
    messages,
    runs,
    threads,
)
from healer.model import (
    TICKETS,
    WEBHOOK,
    AuditRecord,
    Delivery,
    DeliveryAttempt,
    DeliveryState,
    Manner,
    Message,
    RunState,
    Stage,
    Ticket,
    audit_record,
)
from healer.ports.answers import ChannelDelivery, Page
from healer.ports.outbound import APPROVAL_MARK, FORGOTTEN, Attempt, Notice, Outcome
from healer.ports.queries import decode_cursor
from healer.ports.request_errors import Conflict, NotFound
from healer.text import Said, from_stored, quoted, say

#: A claim expires after this: longer than the slowest send, so that no two processes send at once.
_CLAIM_S = 60.0
#: The same for a channel, which one process serves at a time.
_CHANNEL_CLAIM_S = 20.0
#: A process that claims nothing for so long has frozen and loses its channel: longer than the slowest send.
_FROZEN_AFTER_S = 120.0
#: Tries of a page that may come close together; later ones are 18 minutes apart.
_TRIES_AT_ONCE = 5
#: Neither tried nor put off yet: due at once, though the clock of its writer may be ahead of ours.
_IS_NEW = messages.c.next_try_at == messages.c.at
#: Longer than any message waits for its next try, and than a channel is left alone.
_LONGEST = FORGOTTEN


def queue(
    conn: sa.Connection, item: Message | Ticket, *, at: datetime, has_sink: bool, routed: bool = False
) -> None:
    """Queues it in the caller's transaction; an id that is already there changes nothing."""
    row = insert(messages).values(
        **pick(item, "id", "cluster", "incident"),
        kind="message" if isinstance(item, Message) else "ticket",
        page=isinstance(item, Message) and item.page,
        at=at,
        state="due" if has_sink else "listed",
        next_try_at=at if has_sink else None,
        doc=storable_doc(item),
        routed=routed,
    )
    conn.execute(row.on_conflict_do_nothing(index_elements=["id"]))


class _Sender:
    """The lock for sending to a sink: one process at a time, whatever the clocks of others say."""

    def __init__(self, engine: sa.Engine, lock: str, frozen_after_s: float = _FROZEN_AFTER_S) -> None:
        self._engine, self._asked, self._frozen_after_s = engine, {"name": lock}, frozen_after_s
        self._lock: sa.Connection | None = None

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether this process holds the sink: a session-level lock, which ends with the process, or when
        it has claimed nothing for `frozen_after_s`."""
        with self._engine.connect() as conn:
            lock = sa.text("SELECT pg_try_advisory_lock(hashtextextended(:name, 0))")
            is_mine = bool(conn.execute(lock, self._asked).scalar_one())
            if is_mine:
                conn.execute(sa.text(f"SET idle_session_timeout = {self._frozen_after_s * 1000:.0f}"))
                self._lock = conn
            conn.commit()
            try:
                yield is_mine
            except BaseException:
                with suppress(SQLAlchemyError):
                    self._unlock(conn)
                conn.invalidate()  # ends the session, and so the lock where it is left
                raise
            finally:
                self._lock = None
            if is_mine:
                self._unlock(conn)

    def _unlock(self, conn: sa.Connection) -> None:
        conn.execute(sa.text("SELECT pg_advisory_unlock(hashtextextended(:name, 0))"), self._asked)
        conn.execute(sa.text("RESET idle_session_timeout"))
        conn.commit()

    def check(self) -> None:
        """Not frozen; an error if it was, and another process has the lock."""
        if self._lock is not None:
            self._lock.execute(sa.text("SELECT 1"))
            self._lock.commit()


class PostgresOutbox(PostgresStore):
    """`healer.ports.outbound.Outbox`; of these kinds of rows alone."""

    def __init__(self, engine: sa.Engine, kinds: Sequence[str] = ("message", "ticket")) -> None:
        super().__init__(engine)
        self._kinds = kinds
        self._sender = _Sender(engine, "tickets")

    def alone(self) -> AbstractContextManager[bool]:
        """For tickets: each of two processes would find none and open one. A webhook knows a repeat by its
        id, and no page waits for another process."""
        return self._sender.alone() if "ticket" in self._kinds else nullcontext(True)

    def claim(self, *, messages: bool, tickets: bool, now: datetime) -> Attempt | None:
        self._sender.check()
        wanted = {"message": messages, "ticket": tickets}
        kinds = [name for name in self._kinds if wanted[name]]
        with self._engine.begin() as conn:
            row = conn.execute(_claimed(kinds, now)).first()
            if row is None:
                return None
            name = _ticket_name(conn, row.incident) if row.kind == "ticket" else ""
            # The first attempt at a page is always made: it may be about what outlives the incident.
            is_over = row.page and row.tries > 1 and _is_over(conn, row.incident, row.id)
        fields = pick(row, "id", "cluster", "doc", "at", "page", "tries")
        return Attempt(**fields, subject=f"{row.kind}/{row.id}", reference=name, is_over=is_over)

    def settle(self, attempt: Attempt, outcome: Outcome, record: AuditRecord | None, now: datetime) -> None:
        with self._engine.begin() as conn:
            if outcome.held_until is not None:
                # The sink asked for a pause: nothing of this kind spends an attempt meanwhile.
                kind, until = "ticket" if attempt.is_ticket else "message", outcome.held_until
                same = (messages.c.state == "due", messages.c.kind == kind)
                is_earlier = sa.or_(_IS_NEW, messages.c.next_try_at < until)
                conn.execute(sa.update(messages).where(*same, is_earlier).values(next_try_at=until))
            if _mark(conn, messages, attempt, _values(attempt, outcome)) and record is not None:
                audit_rows.append(conn, record)


def _claimed(kinds: Sequence[str], now: datetime) -> Any:
    """Claims the most urgent due row of these kinds.

    Of an incident's ticket rows only the first: two at once could each find no ticket and open one.
    """
    earlier = messages.alias("earlier")
    waits = sa.exists().where(
        earlier.c.incident == messages.c.incident,
        earlier.c.kind == "ticket",
        earlier.c.state == "due",
        sa.tuple_(earlier.c.at, earlier.c.id) < sa.tuple_(messages.c.at, messages.c.id),
    )
    due = (
        sa.select(messages.c.id)
        .where(messages.c.state == "due", messages.c.kind.in_(kinds))
        .where(sa.or_(_IS_NEW, _is_time(messages, now)))
        .where(sa.or_(messages.c.kind != "ticket", ~waits))
        .order_by(messages.c.page.desc(), messages.c.tries > 0, messages.c.next_try_at, messages.c.id)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    claim = {"tries": messages.c.tries + 1, "next_try_at": now + timedelta(seconds=_CLAIM_S)}
    return sa.update(messages).where(messages.c.id.in_(due)).values(claim).returning(messages)


def _ticket_name(conn: sa.Connection, incident: str | None) -> str:
    """The sink's reference of the incident's ticket; empty if there is none."""
    if incident is None:
        return ""
    query = sa.select(messages.c.reference).where(
        messages.c.incident == incident, messages.c.kind == "ticket", messages.c.reference.is_not(None)
    )
    return conn.scalar(query.order_by(messages.c.at, messages.c.id).limit(1)) or ""


def _is_over(conn: sa.Connection, incident: str | None, message: str) -> bool:
    """The incident is over, or the run waits no longer for the approval that the message asks for."""
    if conn.scalar(sa.select(incidents.c.state).where(incidents.c.id == incident)) == "resolved":
        return True
    run, asks, _ = message.partition(APPROVAL_MARK)
    state = conn.scalar(sa.select(runs.c.state).where(runs.c.id == run)) if asks else None
    return state is not None and state not in (RunState.waiting_approval, RunState.waiting)


# --- channels


def waiting_channels(engine: sa.Engine, cluster: str, now: datetime) -> list[str]:
    """Channels with a delivery due now, those with a page first."""
    is_page = sa.func.bool_or(deliveries.c.how == Manner.page)
    named = sa.select(deliveries.c.channel).where(*_due(cluster, now)).group_by(deliveries.c.channel)
    with reading(engine) as conn:
        return list(conn.scalars(named.order_by(is_page.desc(), deliveries.c.channel)))


class PostgresChannelOutbox:
    """`healer.ports.outbound.ChannelOutbox`."""

    def __init__(
        self, engine: sa.Engine, cluster: str, name: str, *, frozen_after_s: float = _FROZEN_AFTER_S
    ) -> None:
        self._engine, self._cluster, self.name = engine, cluster, name
        self._sender = _Sender(engine, f"channel:{cluster}:{name}", frozen_after_s)

    def alone(self) -> AbstractContextManager[bool]:
        return self._sender.alone()

    def claim(self, now: datetime) -> Attempt | None:
        self._sender.check()
        before, table = deliveries.alias(), deliveries.c
        # Milder news that waits for its retry delays no page; it is over once the page has gone out.
        overtakes = sa.and_(table.how == Manner.page, _may_be_overtaken(before))
        # What a full channel did not take is due with the page, and would take the only place.
        yields = sa.and_(overtakes, before.c.tries == 0, before.c.error.is_not(None))
        is_first = ~sa.exists().where(
            before.c.thread == deliveries.c.thread,
            before.c.channel == deliveries.c.channel,
            before.c.cluster == deliveries.c.cluster,
            before.c.state == "due",
            before.c.id < deliveries.c.id,
            sa.or_(sa.and_(before.c.tries > 0, ~overtakes), sa.and_(_is_time(before, now), ~yields)),
        )
        # The next round of planning withdraws it.
        is_over = sa.exists().where(incidents.c.id == deliveries.c.thread, incidents.c.state == "resolved")
        is_true = sa.or_(deliveries.c.stage != Stage.opened, deliveries.c.tries > 0, ~is_over)
        chosen = (
            sa.select(deliveries.c.id)
            .where(*_due(self._cluster, now), deliveries.c.channel == self.name, is_first, is_true)
            .order_by((table.how == Manner.page).desc(), table.tries > 0, table.next_try_at, table.id)
            .limit(1)
        )
        claim = {"tries": deliveries.c.tries + 1, "next_try_at": now + timedelta(seconds=_CHANNEL_CLAIM_S)}
        claimed = sa.update(deliveries).where(deliveries.c.id == chosen.scalar_subquery()).values(claim)
        with self._engine.begin() as conn:
            row = conn.execute(claimed.returning(deliveries)).first()
            if row is None:
                return None
            _log(conn, row.id, now, "begun", say("adapters.delivery_try", n=row.tries))
            doc = conn.execute(sa.select(messages.c.doc).where(messages.c.id == row.message)).scalar_one()
            reference = sa.select(threads.c.reference).where(*self._here, threads.c.thread == row.thread)
            was_tried = row.tries > 1 or row.error is not None
            begun = (delivery_log.c.delivery == row.id, delivery_log.c.outcome == "begun")
            return Attempt(
                **pick(row, "id", "cluster", "at", "tries", "channel", "thread"),
                subject=f"message/{row.message}",
                doc=doc,
                page=row.how == Manner.page,
                begun=conn.execute(sa.select(sa.func.count()).where(*begun)).scalar_one(),
                stage=Stage(row.stage),
                is_digest=row.how == Manner.digest,
                reference=conn.execute(reference).scalar() or "",
                is_over=(row.stage == Stage.opened and _is_over(conn, row.thread, row.message))
                or (was_tried and conn.execute(_overtaken(row.id)).scalar_one()),
            )

    def settle(
        self,
        attempt: Attempt,
        outcome: Outcome,
        record: AuditRecord | None,
        now: datetime,
        notice: Notice | None = None,
    ) -> None:
        key = {"cluster": self._cluster, "channel": self.name, "thread": attempt.thread}
        shown = {
            "stage": attempt.stage,
            "reference": storable_text(outcome.text),
            "told_at": now,
            "doc": notice and storable_doc(notice),
        }
        ended_at = None if outcome.state is DeliveryState.due else now
        with self._engine.begin() as conn:
            if notice is not None:
                conn.execute(upsert(threads, key, shown))
            _log(conn, attempt.id, now, outcome.word, outcome.missed or outcome.text)
            if outcome.held_until is not None:
                here = (channels.c.cluster == self._cluster, channels.c.name == self.name)
                conn.execute(sa.update(channels).where(*here).values(held_until=outcome.held_until))
            took = _mark(conn, deliveries, attempt, {**_values(attempt, outcome), "ended_at": ended_at})
            if took and record is not None:
                audit_rows.append(conn, record)

    def hurry_pages(self, until: datetime) -> None:
        here = (deliveries.c.cluster == self._cluster, deliveries.c.channel == self.name)
        waits = (deliveries.c.state == "due", deliveries.c.how == Manner.page, deliveries.c.tries > 0)
        # No faster than its tries last for a day: it may be this page alone that the channel refuses.
        spent = sa.func.make_interval(0, 0, 0, 0, 0, 18 * (deliveries.c.tries - _TRIES_AT_ONCE))
        late = sa.update(deliveries).where(
            *here, *waits, deliveries.c.next_try_at > until, deliveries.c.at + spent <= until
        )
        with self._engine.begin() as conn:
            conn.execute(late.values(next_try_at=until))

    def open_notices(self, before: datetime, now: datetime) -> list[Notice]:
        # A notice about no incident is never resolved: it expires at the channel. So does one whose
        # incident ended while the channel was away for so long that the news of it is a dead letter.
        about_incident = threads.c.thread != threads.c.doc["id"].astext
        is_over = sa.exists().where(incidents.c.id == threads.c.thread, incidents.c.state == "resolved")
        is_due = sa.or_(threads.c.told_at <= before, threads.c.told_at > now)
        is_open = (is_due, threads.c.stage != Stage.resolved, about_incident, ~is_over)
        with reading(self._engine) as conn:
            return read_docs(conn, sa.select(threads.c.doc).where(*self._here, *is_open), Notice)

    def note_renewed(self, notices: Sequence[Notice], now: datetime) -> None:
        these = threads.c.thread.in_([notice.thread for notice in notices])
        with self._engine.begin() as conn:
            conn.execute(sa.update(threads).where(*self._here, these).values(told_at=now))

    @property
    def _here(self) -> tuple[sa.ColumnElement[bool], ...]:
        return threads.c.cluster == self._cluster, threads.c.channel == self.name


def _may_be_overtaken(table: sa.FromClause) -> sa.ColumnElement[bool]:
    """By a later page of the same incident. An end goes first: a pager would take the page for a repeat. A
    question for an approval stays open whatever is paged."""
    asks = table.c.message.contains(APPROVAL_MARK)
    return sa.and_(table.c.how != Manner.page, table.c.stage != Stage.resolved, ~asks)


def _overtaken(delivery: int) -> sa.Select[bool]:
    """Whether a later page of its incident has gone out before it: what it says is older than that."""
    later = deliveries.alias()
    same = (later.c[name] == deliveries.c[name] for name in ("cluster", "channel", "thread"))
    is_later = (later.c.id > deliveries.c.id, later.c.how == Manner.page, later.c.state == "sent")
    went_out = sa.exists().where(*same, *is_later)
    return sa.select(sa.and_(_may_be_overtaken(deliveries), went_out)).where(deliveries.c.id == delivery)


def _due(cluster: str, now: datetime) -> tuple[sa.ColumnElement[bool], ...]:
    held = sa.exists().where(
        channels.c.cluster == deliveries.c.cluster,
        channels.c.name == deliveries.c.channel,
        channels.c.held_until > now,
        channels.c.held_until <= now + _LONGEST,
    )
    is_due = (deliveries.c.state == "due", _is_time(deliveries, now), sa.not_(held))
    return deliveries.c.cluster == cluster, *is_due


def _is_time(table: sa.FromClause, now: datetime) -> sa.ColumnElement[bool]:
    """The next try is due. What waits longer than anything does was put off by a clock that was set back
    since."""
    return sa.or_(table.c.next_try_at <= now, table.c.next_try_at > now + _LONGEST)


def _log(conn: sa.Connection, delivery: str | int, now: datetime, outcome: str, text: str) -> None:
    row = {"delivery": delivery, "at": now, "outcome": outcome, "text": storable_doc(quoted(text))}
    conn.execute(sa.insert(delivery_log).values(row))


def _values(attempt: Attempt, outcome: Outcome) -> dict[str, object]:
    if outcome.is_failure:
        values: dict[str, object] = {"error": storable_doc(quoted(outcome.text))}
    else:
        error = storable_doc(quoted(outcome.missed)) if outcome.missed else None
        values = {"error": error, "reference": storable_text(outcome.text) or None}
    tries = attempt.tries if outcome.counts else attempt.tries - 1
    return {"state": outcome.state, "next_try_at": outcome.next_try_at, "tries": tries, **values}


def _mark(conn: sa.Connection, table: sa.Table, attempt: Attempt, values: dict[str, object]) -> bool:
    """Updates the row; False if the claim expired and another process has claimed it since."""
    same = (table.c.id == attempt.id, table.c.state == "due", table.c.tries == attempt.tries)
    return conn.execute(sa.update(table).where(*same).values(values)).rowcount == 1


# --- all messages with the state of their deliveries, and the retry of failed ones


class PostgresMessageBook(PostgresStore):
    """`healer.ports.queries.MessageBook`."""

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
        listed = all_deliveries().c
        query = sa.select(*listed).where(
            matches(listed.cluster, clusters),
            matches(listed.state, state or None),
            matches(listed.channel, channel),
            matches(listed.incident, incident),
        )
        with reading(self._engine) as conn:
            if incident is None:
                newest = messages if channel is None and not state else deliveries
                begin = conn.scalar(_page_begins(newest, clusters, state, channel, limit, cursor))
                query = query if begin is None else query.where(listed.at >= begin)
            rows, more = read_page(conn, query, (listed.at, listed.key), limit, cursor)
            return Page(items=_deliveries(conn, rows), next_cursor=more)

    def cluster_of(self, message: str) -> str:
        with reading(self._engine) as conn:
            found = conn.execute(sa.select(messages.c.cluster).where(messages.c.id == message)).scalar()
        if found is None:
            raise NotFound(say("adapters.no_message", message=message))
        return found

    def retry(
        self, message: str, *, channel: str | None, by: str, reason: str, now: datetime
    ) -> list[Delivery]:
        again = {"state": "due", "tries": 0, "next_try_at": now}
        with writing(self._engine) as conn:
            _check_still_true(conn, message)
            sink = sa.case((messages.c.kind == "ticket", TICKETS), else_=WEBHOOK)
            at_sink = sa.update(messages).where(
                messages.c.id == message, messages.c.state == "failed", matches(sink, channel)
            )
            at_channels = sa.update(deliveries).where(
                deliveries.c.message == message,
                deliveries.c.state == "failed",
                matches(deliveries.c.channel, channel),
            )
            sinks = list(conn.scalars(at_sink.values(**again).returning(sink)))
            put = at_channels.values(**again, ended_at=None)
            rows = conn.execute(put.returning(deliveries.c.id, deliveries.c.channel)).all()
            if not sinks and not rows:
                if channel is not None:
                    raise Conflict(say("adapters.none_failed_at", message=message, channel=channel))
                raise Conflict(say("adapters.none_failed", message=message))
            for row in rows:
                _log(conn, row.id, now, "retried", say("adapters.delivery_retried", by=by, reason=reason))
            channels = [*sinks, *(row.channel for row in rows)]
            cluster = conn.execute(sa.select(messages.c.cluster).where(messages.c.id == message)).scalar_one()
            data, subject = {"reason": reason, "channels": sorted(channels)}, f"message/{message}"
            audit_rows.append(conn, audit_record(cluster, now, by, "message.retried", subject, **data))
            listed = all_deliveries(message)
            found = conn.execute(sa.select(listed).where(listed.c.channel.in_(channels))).all()
            return _deliveries(conn, found)


def _page_begins(
    table: sa.Table,
    clusters: Sequence[str] | None,
    state: Sequence[str],
    channel: str | None,
    limit: int,
    cursor: str | None,
) -> sa.Select:
    """A time from which on there are enough deliveries for a page; none if there are too few: by the index
    on the time, where the page itself would sort all that were ever stored.

    `table`: `messages` where all are wanted, because each is at one sink at least; a delivery has its
    message's time.
    """
    wanted = [matches(table.c.cluster, clusters)]
    if table is deliveries:
        wanted += [matches(table.c.state, state or None), matches(table.c.channel, channel)]
    if cursor is not None:
        wanted.append(table.c.at < sa.literal(decode_cursor(cursor, tuple[datetime, str])[0]))
    return sa.select(table.c.at).where(*wanted).order_by(table.c.at.desc()).offset(limit).limit(1)


def _check_still_true(conn: sa.Connection, message: str) -> None:
    """Raises Conflict for news of an incident that is over by now, and for its end if it is open again: a
    pager would open an alert that nothing closes, or close one that is open."""
    stage = sa.func.coalesce(messages.c.doc["about"]["stage"].astext, str(Stage.opened))
    query = sa.select(incidents.c.id, incidents.c.state, stage).join(
        messages, messages.c.incident == incidents.c.id
    )
    found = conn.execute(query.where(messages.c.id == message, messages.c.kind == "message")).first()
    if found is None:
        return
    incident, state, of_stage = found
    says_over, is_over = of_stage == Stage.resolved, state == "resolved"
    if says_over != is_over:
        key = "over" if is_over else "open_again"
        raise Conflict(say(f"adapters.retry_{key}", message=message, incident=incident[:8]))


def channel_states(conn: sa.Connection, incident: str) -> dict[str, list[ChannelDelivery]]:
    """By message of the incident: the state of its delivery to each channel."""
    table = deliveries.c
    rows = conn.execute(
        sa.select(table.message, table.channel, table.state, table.error, table.reference)
        .join(messages, messages.c.id == table.message)
        .where(messages.c.incident == incident)
        .order_by(table.id)
    )
    found: dict[str, list[ChannelDelivery]] = {}
    for message, channel, state, error, reference in rows:
        delivery = ChannelDelivery(
            channel=channel, state=state, error=stored_sentence(error), reference=reference
        )
        found.setdefault(message, []).append(delivery)
    return found


def all_deliveries(message: str | None = None) -> sa.Subquery:
    """A row for each message and sink. A message that channels deliver does not also appear as `listed`."""
    has_channel = sa.exists().where(deliveries.c.message == messages.c.id)
    stored_title, severity = messages.c.doc["title"], messages.c.doc["severity"].astext
    title = sa.func.coalesce(stored_title["text"].astext, stored_title.astext)
    is_ticket = messages.c.kind == "ticket"
    # Of the types that `deliveries` has, or no filter reaches an index of it.
    channel = sa.cast(sa.case((is_ticket, TICKETS), else_=WEBHOOK), sa.Text)
    how = sa.cast(sa.case((is_ticket, "ticket"), (messages.c.page, "page"), else_="channel"), sa.Text)
    same = ("cluster", "state", "at", "tries", "next_try_at", "error", "reference")

    def each(table: sa.Table, **columns: sa.ColumnElement) -> sa.Select:
        columns |= {
            "title": title,
            "severity": sa.func.coalesce(severity, "P3"),
            "incident": messages.c.incident,
        }
        named = (column.label(name) for name, column in sorted(columns.items()))
        return sa.select(*(table.c[name] for name in same), *named)

    at_sinks = each(
        messages,
        message=messages.c.id,
        channel=channel,
        how=how,
        ended_at=sa.cast(sa.null(), sa.DateTime(timezone=True)),
        number=sa.cast(sa.null(), sa.BigInteger),
        key=messages.c.id,
    ).where(sa.or_(messages.c.state != "listed", sa.not_(has_channel)))
    at_channels = each(
        deliveries,
        message=deliveries.c.message,
        channel=deliveries.c.channel,
        how=deliveries.c.how,
        ended_at=deliveries.c.ended_at,
        number=deliveries.c.id,
        key=deliveries.c.message + " " + deliveries.c.channel,
    ).select_from(deliveries.join(messages, messages.c.id == deliveries.c.message))
    if message is not None:
        of_message = messages.c.id == message
        at_sinks, at_channels = at_sinks.where(of_message), at_channels.where(of_message)
    return sa.union_all(at_sinks, at_channels).subquery()


def _deliveries(conn: sa.Connection, rows: Sequence[sa.Row]) -> list[Delivery]:
    """The deliveries with the log of their attempts."""
    table, numbers = delivery_log.c, [row.number for row in rows if row.number is not None]
    logs: dict[int, tuple[DeliveryAttempt, ...]] = {}
    for row in conn.execute(sa.select(delivery_log).where(table.delivery.in_(numbers)).order_by(table.id)):
        done = DeliveryAttempt(at=row.at, outcome=row.outcome, text=from_stored(row.text, Said))
        logs[row.delivery] = (*logs.get(row.delivery, ()), done)
    names = [name for name in Delivery.__struct_fields__ if name != "tries_log"]
    return [
        from_stored(
            pick(row, *names)
            | {"error": row.error or "", "reference": row.reference or ""}
            | {"tries_log": logs.get(row.number, ())},
            Delivery,
        )
        for row in rows
    ]
