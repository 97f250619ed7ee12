"""Messages to people: which channels get which news and when, and their delivery.

Planning finds news and queues it for the channels, one transaction per round, and sends nothing. Delivery
sends what is due: each try is logged before it begins, and no database lock is held while a sink answers. No
run and no walk waits for either. A sink may get a message twice (a crash after the send), with the same id; a
channel that supports search is searched first.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec
import structlog

from healer.model import (
    AuditRecord,
    ChannelKind,
    DeliveryState,
    IncidentState,
    Manner,
    Message,
    Notifications,
    Routing,
    Severity,
    Stage,
    Ticket,
    audit_record,
    routes_to,
)
from healer.ports.clock import Clock
from healer.ports.outbound import (
    Attempt,
    ChannelOutbox,
    DeliveryFailed,
    EventFeed,
    EventSink,
    FeedPosition,
    MessageChannel,
    NewsTx,
    Notice,
    Notifier,
    OtherSystem,
    Outbox,
    Outcome,
    PartlyRefused,
    PlanTx,
    Put,
    Renewer,
    Thread,
    Tickets,
    Unrouted,
)
from healer.telling import news
from healer.telling.news import with_incident_link
from healer.text import from_stored, said_by, say
from healer.text.language import Language

log = structlog.get_logger()

#: Tries of one delivery, or of one event that the sink refuses.
MAX_TRIES = 5
#: Those of a page, and of a digest or an incident's opening at a channel: some 18 minutes apart for a day,
#: unless the incident is over before.
OPENING_TRIES = MAX_TRIES + 80
#: Those of the news that an incident is over, as a page that nothing closes stays open, and of a ticket that
#: its system does not refuse: hourly for a week.
END_TRIES = MAX_TRIES + 7 * 24
#: Messages or events per call, so that a storm does not block the caller for long.
ROUND_MAX = 50
#: Waits after the first to the fourth failure: 5 s, 30 s, 3 min, 18 min, each times 0.5 to 1.5.
_FIRST_WAIT_S = 5.0
_GROWTH = 6.0
#: A sink may ask for a longer wait, up to this.
_WAIT_MAX_S = 3600.0
#: The longest wait of a page at a channel that takes other messages. Not at once, as it may be this page that
#: the channel cannot take, which has so many tries.
_PAGE_WAITS = timedelta(minutes=3)
#: For so long a sink that is full costs a message none of its tries.
_FULL_FOR = timedelta(hours=1)
#: The mean wait for recipients who were put off: greylisting takes minutes.
_PARTIAL_WAIT_S = 300.0
#: An unreachable feed backs off as after one refusal while the event is younger than this, then as after two.
_SOON = timedelta(minutes=1)
#: Events older than this are skipped: a feed that was off for a week resumes with yesterday's.
_OLDEST = timedelta(hours=24)
#: Bots that post every message as a new one, so acknowledgements are not sent there.
_BOTS = (ChannelKind.wecom, ChannelKind.dingtalk, ChannelKind.feishu)
#: Longer than a message waits for its round of planning, and as long as an incident settles at most.
_LATELY = timedelta(minutes=1)
#: Why the waiting deliveries of a removed channel end.
_UNNAMED = "rules/notifications.yaml names this channel no longer"

# --- planning: incidents -> messages


def plan(tx: PlanTx, cluster: str, settings: Notifications, now: datetime) -> None:
    """Finds this cluster's news and queues it for the channels."""
    since = _note_channels(tx, settings, now)
    _route_queued(tx, settings, since, now)  # first: a page or a run's message may be an incident's opening
    if not since:
        return
    _queue_opened(tx, cluster, settings, min(since.values()), now)
    _queue_changed(tx)
    _route_queued(tx, settings, since, now)
    _gather_digests(tx, cluster, settings, now)


def _note_channels(tx: NewsTx, settings: Notifications, now: datetime) -> dict[str, datetime]:
    """When each channel was first named: it gets the news since then. One that was named later than now, by
    a clock that was set back, would get none until then."""
    stored, named = tx.channels(), {channel.name for channel in settings.channels}
    for name in stored.keys() - named:
        tx.drop_channel(name, _UNNAMED)
    since = {name: stored.get(name, now) for name in named}
    since = {name: at if at <= now else now - _LATELY for name, at in since.items()}
    for name, at in since.items():
        if stored.get(name) != at:
            tx.name_channel(name, at)
    return since


def _queue_opened(tx: NewsTx, cluster: str, settings: Notifications, since: datetime, now: datetime) -> None:
    """Queues news of opened incidents. The walk itself pages for P0, and only if healer cannot or may not act
    for a while."""
    for incident, stage in tx.unannounced(since):
        if timedelta(0) < incident.settle_until - now <= _LATELY:  # more: the detector's clock is ahead
            continue
        if routes_to(settings.routes, incident.severity, cluster, news.about_incident(incident)):
            tx.queue(news.opened_news(incident, now if stage else None))
        tx.save_announced(incident.id, incident.severity, Stage.opened)


def _queue_changed(tx: NewsTx) -> None:
    for incident in tx.announced_changed():
        stage = Stage.acknowledged if incident.is_open else Stage.resolved
        if tx.thread(incident.id).has_deliveries:
            ended = None if incident.is_open else news.resolved_news(incident, tx.work_of(incident.id))
            tx.queue(ended or news.acknowledged_news(incident))
        tx.save_announced(incident.id, incident.severity, stage)


# --- planning: messages -> deliveries


def _route_queued(tx: PlanTx, settings: Notifications, since: Mapping[str, datetime], now: datetime) -> None:
    unrouted = tx.unrouted()
    waiting = [(row, row.message) for row in unrouted if row.message is not None and since]
    pages = news.many_pages([message for _, message in waiting])
    in_one = {member.id for members in pages for member in members}
    # An Alertmanager groups alerts itself, and needs each of them.
    feeds = {channel.name for channel in settings.channels if channel.kind is ChannelKind.alertmanager}
    to_feeds, to_people = settings.to_channels(feeds), settings.to_channels(since.keys() - feeds)
    for members in pages:
        _page_once(tx, members, to_people, since, now)
    for row, message in waiting:
        _route(tx, row, message, to_feeds if row.id in in_one else settings, since, now)
    tx.mark_routed([row.id for row in unrouted])


def _page_once(
    tx: PlanTx, members: Sequence[Message], to_people: Notifications, since: Mapping[str, datetime],
    now: datetime,
) -> None:  # fmt: skip
    """One page in place of several: after a storm, tens of nodes may be left in service at once."""
    page = news.page_of_many(members)
    tx.queue(page, routed=True)
    _route(tx, Unrouted(page.id, now, page), page, to_people, since, now)
    for message in members:
        for way in routes_to(to_people.routes, message.severity, message.cluster, message.about):
            _queue_delivery(tx, message, now, way, DeliveryState.folded, ended_at=now)


def _route(
    tx: PlanTx, row: Unrouted, message: Message, settings: Notifications, since: Mapping[str, datetime],
    now: datetime,
) -> None:  # fmt: skip
    thread = tx.thread(message.thread)
    if message.about.stage is not Stage.opened:
        _route_follow_up(tx, row, message, settings, thread, now)
        return
    is_over = thread.state is IncidentState.resolved
    for way in routes_to(settings.routes, message.severity, message.cluster, message.about):
        if since[way.channel] > row.at:
            continue
        if way.how is Manner.digest and way.channel not in thread.standing:
            _queue_delivery(tx, message, row.at, way, DeliveryState.digest)
        elif is_over:
            _queue_delivery(tx, message, row.at, way, DeliveryState.over, ended_at=now)
        else:
            # The incident is open again: the message about its end is obsolete, and must neither follow this
            # one nor delay it.
            tx.end_late(message.thread, way.channel, tries=MAX_TRIES)
            due = _backed_off(tx, message, way, now)
            _queue_delivery(tx, message, row.at, way, DeliveryState.due, next_try_at=due)
    if message.incident is not None and thread.state is not None and not is_over:
        # The walk's own message counts as the opening: no second one. It may be more urgent itself.
        severity = thread.incident_severity or message.severity
        worst = min(thread.severity or severity, severity)
        stage = thread.stage if thread.stage not in (None, Stage.resolved) else Stage.opened
        tx.save_announced(message.incident, worst, stage or Stage.opened)


def _route_follow_up(
    tx: PlanTx, row: Unrouted, message: Message, settings: Notifications, thread: Thread, now: datetime
) -> None:
    """Follow-ups go to the channels that got the incident. Its end withdraws messages that still wait and
    were never tried."""
    is_end = message.about.stage is Stage.resolved
    if is_end:
        _withdraw_untried(tx, message.thread)
    for channel in settings.channels:
        name = channel.name
        if name in thread.standing or name in thread.tried:
            if is_end or channel.kind not in _BOTS:
                _queue_delivery(
                    tx, message, row.at, Routing(name, Manner.channel), DeliveryState.due, next_try_at=now
                )
        elif is_end and name in thread.listed:
            _queue_delivery(tx, message, row.at, Routing(name, Manner.digest), DeliveryState.digest)


def _withdraw_untried(tx: PlanTx, thread: str) -> None:
    """Withdraws messages that reached no channel; they do not count as sent."""
    for channel, alarm, raised in tx.unsent_alarms(thread):
        tx.save_raised(channel, alarm, news.withdraw_alarm(raised))
    tx.end_unsent(thread)


def _backed_off(tx: PlanTx, message: Message, way: Routing, now: datetime) -> datetime:
    """When to send the message. It replaces an earlier one of the same alarm, or a milder one, that still
    waits."""
    channel, alarm = way.channel, alarm_of(message, way.how)
    for milder in Severity:
        if milder > message.severity:
            tx.fold_waiting(channel, alarm_of(message, way.how, milder))
    took_place, raised = tx.fold_waiting(channel, alarm), tx.raised(channel, alarm)
    if not took_place or raised is None:
        raised = news.schedule_alarm(raised, now)
        tx.save_raised(channel, alarm, raised)
    return raised.last_at


def alarm_of(message: Message, how: Manner, severity: Severity | None = None) -> str:
    """The alarm whose repeats back off. Pages and messages count separately, and so does each severity: a
    worse severity is no repeat."""
    return f"{message.about.alarm or message.id} {severity or message.severity} {how}"


def _queue_delivery(
    tx: PlanTx, message: Message, at: datetime, way: Routing, state: DeliveryState, **when: datetime
) -> None:
    alarm = alarm_of(message, way.how)
    tx.put(Put(message=message, channel=way.channel, how=way.how, alarm=alarm, at=at, state=state, **when))


def _gather_digests(tx: PlanTx, cluster: str, settings: Notifications, now: datetime) -> None:
    """Queues one message for everything that waits at a channel, once the oldest item has waited long
    enough."""
    oldest = tx.digests()
    for channel in settings.channels:
        if channel.name not in oldest:
            continue
        waited = now - oldest[channel.name]
        if timedelta(0) <= waited < timedelta(hours=settings.digest_h):  # less: the clock was set back
            continue
        waiting = tx.in_digest(channel.name)
        name = f"digest:{cluster}:{channel.name}:{now.isoformat()}"
        items = [news.Item(message=message, incident=incident) for _, message, incident in waiting]
        message = news.digest(name, cluster, items, settings.console_url)
        tx.queue(message, routed=True)
        way = Routing(channel.name, Manner.digest)
        _queue_delivery(tx, message, now, way, DeliveryState.due, next_try_at=now)
        tx.end_digest([number for number, _, _ in waiting], name)


# --- delivery


class Links(NamedTuple):
    """How people reach the console, the secret that lets a link show a page without sign-in, and the people's
    language."""

    console_url: str = ""
    secret: str | None = None
    language: Language = "en"


NO_LINKS = Links()


def deliver_due(
    outbox: Outbox,
    notifier: Notifier | None,
    tickets: Tickets | None,
    *,
    clock: Clock,
    chance: Callable[[], float],
    links: Links = NO_LINKS,
) -> int:
    """Sends what is due to the webhook and the ticket system, pages first; returns the number that they
    accepted.

    `chance` returns 0..1 for the jitter. A sink that failed once is skipped until the next call, so a dead
    one costs one time-out. Database errors go to the caller.
    """
    sent, messages_go, tickets_go = 0, True, True
    with outbox.alone() as is_mine:
        for _ in range(ROUND_MAX if is_mine else 0):
            attempt = outbox.claim(messages=messages_go, tickets=tickets_go, now=clock.now())
            if attempt is None:
                break
            try:
                outcome = _send(attempt, notifier, tickets, links)
            except DeliveryFailed as error:
                foreign = isinstance(error, OtherSystem)
                if attempt.is_ticket:
                    tickets_go = foreign
                else:
                    messages_go = False
                outcome = outcome_of_failure(attempt, error, clock.now(), chance(), may_end=foreign)
            now = clock.now()
            outbox.settle(attempt, outcome, _record(attempt, outcome, now), now)
            sent += outcome.state is DeliveryState.sent
    return sent


#: Of a message that is no longer true, as its incident is over: it is not sent.
_OVER = Outcome(state=DeliveryState.over, word="over")
#: Without a sink for this kind.
_LISTED = Outcome(state=DeliveryState.listed, word="listed")


def _send(attempt: Attempt, notifier: Notifier | None, tickets: Tickets | None, links: Links) -> Outcome:
    _check_tries(attempt)
    if attempt.is_over:
        return _OVER
    if attempt.is_ticket:
        if tickets is None:
            return _LISTED
        ticket = news.worded_in(from_stored(attempt.doc, Ticket), links.language)
        ticket = with_incident_link(ticket, links.console_url)
        # A search may not show yet what was opened a moment ago; the name does.
        reference = tickets.send(msgspec.structs.replace(ticket, reference=attempt.reference))
        return Outcome(state=DeliveryState.sent, word="taken", text=reference)
    if notifier is None:
        return _LISTED
    notifier.send(from_stored(attempt.doc, Message))
    return Outcome(state=DeliveryState.sent, word="taken")


def deliver_to(
    outbox: ChannelOutbox,
    teller: Callable[[], MessageChannel],
    links: Links,
    *,
    clock: Clock,
    chance: Callable[[], float],
) -> int:
    """Sends what is due to this channel, pages first; returns the number that it accepted. After a failure
    the rest waits for the next call. `teller` may raise DeliveryFailed; `chance` returns 0..1 for the
    jitter."""
    sent = 0
    with outbox.alone() as is_mine:
        for _ in range(ROUND_MAX if is_mine else 0):
            attempt = outbox.claim(clock.now())
            if attempt is None:
                break
            try:
                notice, outcome = _send_to_channel(attempt, teller, links)
            except DeliveryFailed as error:
                now = clock.now()
                outcome = outcome_of_failure(attempt, error, now, chance(), may_end=not attempt.page)
                outbox.settle(attempt, outcome, _record(attempt, outcome, now), now)
                if error.is_partial:
                    continue
                break
            now = clock.now()
            outbox.settle(attempt, outcome, _record(attempt, outcome, now), now, notice)
            sent += outcome.state is DeliveryState.sent
        if sent:
            outbox.hurry_pages(clock.now() + _PAGE_WAITS)
    return sent


def _send_to_channel(
    attempt: Attempt, teller: Callable[[], MessageChannel], links: Links
) -> tuple[Notice | None, Outcome]:
    """Sends one message, and returns what the channel shows now; if the outcome of an earlier try is unknown,
    the channel is searched for it first."""
    _check_tries(attempt)
    channel = teller()
    notice = news.notice_of(
        news.message_in(from_stored(attempt.doc, Message), links.language),
        attempt.at,
        page=attempt.page,
        console_url=links.console_url,
        link_secret=links.secret,
        buttons=channel.has_buttons,
    )
    notice = msgspec.structs.replace(notice, language=links.language)
    if attempt.begun > 1 and (found := _reference_in(channel, notice, attempt.reference)):
        return notice, Outcome(state=DeliveryState.sent, word="found", text=found)
    if attempt.is_over:
        return None, _OVER
    missed = ""
    try:
        reference = channel.send(notice, attempt.reference)
    except PartlyRefused as error:
        reference, missed = error.reference, said_by(error)
    return notice, Outcome(state=DeliveryState.sent, word="taken", text=reference, missed=missed)


def _reference_in(channel: MessageChannel, notice: Notice, reference: str) -> str:
    """Where the channel has the message; empty also if the channel does not allow a search: twice is better
    than never."""
    try:
        return channel.find(notice, reference) if channel.can_find else ""
    except DeliveryFailed as error:
        if not error.refused:
            raise
        log.warning("message cannot be looked for, sent again", id=notice.id, why=str(error))
        return ""


def renew(outbox: ChannelOutbox, channel: Renewer, every: timedelta, now: datetime) -> int:
    """Sends the alerts of open incidents again, so that they end when healer does. DeliveryFailed."""
    notices = outbox.open_notices(now - every, now)
    if notices:
        channel.renew(notices)
        outbox.note_renewed(notices, now)
    return len(notices)


def outcome_of_failure(
    attempt: Attempt, error: DeliveryFailed, now: datetime, chance: float, *, may_end: bool = False
) -> Outcome:
    """The outcome of a failed try: another try, unless it was the last or (`may_end`) the sink will never
    accept it. One that a full sink had no room for goes out, pages first, when the sink has room again."""
    wish = error.retry_after_s
    held_until = now + timedelta(seconds=min(wish, _WAIT_MAX_S)) if wish else None
    if error.is_full and held_until is not None and now - attempt.at < _FULL_FOR:
        return Outcome(
            state=DeliveryState.due,
            word="failed",
            text=said_by(error),
            next_try_at=held_until,
            held_until=held_until,
            counts=False,
        )
    if error.is_partial:  # no try, for which later news of the incident would wait: others have this
        wait = timedelta(seconds=_PARTIAL_WAIT_S * (0.5 + chance))
        text = said_by(error)
        return Outcome(
            state=DeliveryState.due, word="failed", text=text, next_try_at=now + wait, counts=False
        )
    is_rejected = error.refused and not error.is_locked_out
    ends = attempt.tries >= _most_tries(attempt, refused=is_rejected) or (may_end and error.refused)
    # A page goes out soon after its pager is back.
    waits = min(attempt.tries, MAX_TRIES - 1) if _is_opening(attempt) else attempt.tries
    wait_s = wait_after(waits, wish, chance)
    return Outcome(
        state=DeliveryState.failed if ends else DeliveryState.due,
        word="refused" if error.refused else "failed",
        text=said_by(error),
        next_try_at=None if ends else now + timedelta(seconds=wait_s),
        held_until=held_until,
    )


def wait_after(tries: int, retry_after_s: float | None, chance: float) -> float:
    """Seconds to the next try after this many failures. The sink's own request counts if it is longer."""
    wait_s = _FIRST_WAIT_S * _GROWTH ** (tries - 1) * (0.5 + chance)
    return min(max(wait_s, retry_after_s or 0.0), _WAIT_MAX_S)


def _most_tries(attempt: Attempt, *, refused: bool = False) -> int:
    if attempt.stage is Stage.resolved or (attempt.is_ticket and not refused):
        return END_TRIES
    return OPENING_TRIES if _is_opening(attempt) else MAX_TRIES


def _is_opening(attempt: Attempt) -> bool:
    """A page, or at a channel the opening of an incident, which is true as long as that is open, or a digest,
    the only news of what it lists."""
    opens = attempt.stage is Stage.opened and attempt.doc.get("incident") is not None
    return attempt.page or attempt.is_digest or (bool(attempt.channel) and opens)


def _check_tries(attempt: Attempt) -> None:
    if attempt.tries > _most_tries(attempt):
        raise DeliveryFailed(say("engine.try_lost"))


def _record(attempt: Attempt, outcome: Outcome, now: datetime) -> AuditRecord | None:
    """The audit record of a delivery that was sent or failed."""
    if outcome.state not in (DeliveryState.sent, DeliveryState.failed):
        return None
    failed = outcome.state is DeliveryState.failed
    verb = "message.failed" if failed else "message.sent"
    if attempt.is_ticket and not failed:
        verb = f"ticket.{attempt.doc.get('stage', 'opened')}"
    where = {"channel": attempt.channel} if attempt.channel else {}
    text = {"error" if failed else "reference": outcome.text}
    text |= {"missed": outcome.missed} if outcome.missed else {}
    about = {**where, "page": attempt.page, "tries": attempt.tries, **text}
    return audit_record(attempt.cluster, now, "healer", verb, attempt.subject, **about)


# --- events


def deliver_events(feed: EventFeed, sink: EventSink, *, clock: Clock, chance: Callable[[], float]) -> int:
    """Sends each sealed audit record, in order and at least once; returns the number that the sink accepted.

    A record that the sink refused `MAX_TRIES` times is skipped, so that the sink gets the next one. While the
    sink is unreachable, records are skipped only by age.
    """
    sent = 0
    for _ in range(ROUND_MAX):
        now, fed = clock.now(), feed.position()
        wait = fed.next_try_at - now if fed.next_try_at is not None else timedelta(0)
        if timedelta(0) < wait <= timedelta(seconds=_WAIT_MAX_S):  # longer: the clock was set back
            break
        found = feed.next(fed.seq)
        if found is None:
            break
        seq, record = found
        try:
            if now - record.at <= _OLDEST:
                sink.send(seq, record)
                sent += 1
        except DeliveryFailed as error:
            tries = fed.tries + 1 if error.refused else fed.tries
            if tries < MAX_TRIES:
                failures = tries if error.refused else 1 if now - record.at < _SOON else 2
                wait_s = wait_after(failures, error.retry_after_s, chance())
                feed.note(fed.seq, FeedPosition(fed.seq, tries, now + timedelta(seconds=wait_s)))
                break
            log.warning("event skipped", cluster=feed.cluster, seq=seq, why=str(error))
        feed.note(fed.seq, FeedPosition(seq, 0, None))
    return sent
