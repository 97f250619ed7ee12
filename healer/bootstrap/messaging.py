"""Outbound messages: news to channels, messages and tickets to sinks, the dead man's switch."""

import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import msgspec
import sqlalchemy as sa
import structlog

from healer.adapters.notify.alertmanager import REPOST_S, Alertmanager
from healer.adapters.notify.group_bots import DingTalkBot, FeishuBot, WeComBot
from healer.adapters.notify.mail import Mail
from healer.adapters.notify.pagerduty import EVENTS_URL, PagerDuty
from healer.adapters.notify.slack import API, SlackChannel
from healer.adapters.postgres.audit_rows import PostgresEventFeed
from healer.adapters.postgres.loops import DEAD_AFTER_S, beats_on
from healer.adapters.postgres.outbox import PostgresChannelOutbox, PostgresOutbox, waiting_channels
from healer.adapters.postgres.planning import planning
from healer.adapters.system_clock import SystemClock
from healer.adapters.tickets.calls import Access
from healer.adapters.tickets.desk import Desk, DeskTickets
from healer.adapters.tickets.github import URL, GitHubDesk
from healer.adapters.tickets.jira import JiraDesk
from healer.adapters.tickets.servicenow import ServiceNowDesk
from healer.adapters.webhook import EventSink, SignedWebhook, WebhookNotifier, WebhookTickets
from healer.engine import tell
from healer.engine.tell import deliver_due, deliver_events
from healer.model import Channel, ChannelKind, Notifications, Ruleset
from healer.ports.clock import Clock
from healer.ports.outbound import DeliveryFailed, MessageChannel, Tickets
from healer.processes.scheduler import DELIVER_S, Duty
from healer.settings import GITHUB, JIRA, SECRET_OF, URL_OF, Settings, SettingsError
from healer.text import said_by, say, unstopped

#: Kinds that work without a secret; e-mail needs one where it logs in.
_MAY_LACK = (ChannelKind.feishu, ChannelKind.alertmanager, ChannelKind.email)


class ChannelAccess(msgspec.Struct, frozen=True):
    """A channel with its resolved address and secret."""

    channel: Channel
    url: str
    secret: str | None
    #: Slack's signing secret is set, so that presses of buttons can be verified.
    buttons: bool = False


class ChannelBook:
    """Adapters by channel, kept while channel and secrets are the same: a new secret in a file takes effect
    at the next message."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._made: dict[str, tuple[ChannelAccess, MessageChannel]] = {}

    def of(self, channel: Channel) -> MessageChannel:
        """Raises DeliveryFailed if a secret is missing: delivery is retried and shown as failed."""
        try:
            access = access_to(self._settings, channel)
        except SettingsError as error:
            raise DeliveryFailed(unstopped(said_by(error))) from None
        made = self._made.get(channel.name)
        if made is None or made[0] != access:
            made = self._made[channel.name] = (access, _MAKERS[channel.kind](access))
        return made[1]


def check_channels(settings: Settings, notifications: Notifications) -> None:
    """Raises SettingsError, in one sentence, if a channel lacks a secret."""
    for channel in notifications.channels:
        access_to(settings, channel)


def access_to(settings: Settings, channel: Channel) -> ChannelAccess:
    url = channel.url
    if channel.kind in URL_OF:
        url = _secret(settings, channel, channel.url or URL_OF[channel.kind][0]) or ""
    names = SECRET_OF.get(channel.kind, ())
    secret = None
    if names:
        may_lack = channel.kind in _MAY_LACK and not channel.secret and not channel.user
        secret = _secret(settings, channel, channel.secret or names[0], may_lack=may_lack)
        if not f"{channel.user}{secret or ''}".isascii():
            whose = say("setup.channel_of_rules", name=channel.name)
            raise SettingsError(say("setup.secret_not_ascii", where=channel.secret or names[0], whose=whose))
    return ChannelAccess(channel, url, secret, buttons=settings.slack_signing_secret is not None)


def _secret(settings: Settings, channel: Channel, where: str, *, may_lack: bool = False) -> str | None:
    """The value of the setting or the content of the file."""
    whose = say("setup.channel_of_rules", name=channel.name)
    if not where.startswith("/"):
        value: str | None = getattr(settings, where.removeprefix("HEALER_").lower())
        if value is None and not may_lack:
            raise SettingsError(say("setup.must_set_needs", where=where, whose=whose))
        return value
    try:
        text = Path(where).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or say("setup.not_utf8")
        raise SettingsError(say("setup.secret_cannot_read", where=where, whose=whose, why=why)) from None
    if not text:
        raise SettingsError(say("setup.secret_empty", where=where, whose=whose))
    return text


def _slack(access: ChannelAccess) -> MessageChannel:
    return SlackChannel(
        access.secret or "", access.channel.channel, url=access.url or API, buttons=access.buttons
    )


_MAKERS: dict[ChannelKind, Callable[[ChannelAccess], MessageChannel]] = {
    ChannelKind.slack: _slack,
    ChannelKind.wecom: lambda access: WeComBot(access.url, access.channel.mobiles),
    ChannelKind.dingtalk: lambda access: DingTalkBot(access.url, access.secret or "", access.channel.mobiles),
    ChannelKind.feishu: lambda access: FeishuBot(access.url, access.secret),
    ChannelKind.pagerduty: lambda access: PagerDuty(access.secret or "", url=access.url or EVENTS_URL),
    ChannelKind.alertmanager: lambda access: Alertmanager(access.url, access.secret),
    ChannelKind.email: lambda access: Mail(access.channel, access.secret),
}


log = structlog.get_logger()

#: Channels served at the same time, and the database connections for them: two each, and one to plan.
AT_ONCE = 6
CONNECTIONS = 2 * AT_ONCE + 1


class Telling:
    """Callable: one round of deliveries of one cluster. Each channel has a thread of its own, so that one
    that does not answer delays no other."""

    def __init__(
        self, settings: Settings, db: sa.Engine, cluster: str, rules: Callable[[], Ruleset], clock: Clock
    ) -> None:
        self._db, self._cluster, self._rules, self._clock = db, cluster, rules, clock
        self._book = ChannelBook(settings)
        self._link_secret, self._site_url = settings.link_secret, settings.public_url or ""
        self._busy: dict[str, threading.Thread] = {}

    def __call__(self) -> None:
        notifications, now = self._rules().notifications, self._clock.now()
        with planning(self._db, self._cluster, now) as tx:
            if tx is not None:
                tell.plan(tx, self._cluster, notifications, now)
        for name in self._to_deliver(notifications):
            channel = notifications.channel(name)
            if channel is not None:
                self._begin(channel, notifications)

    def wait(self) -> None:
        """Waits for all deliveries that have begun."""
        for thread in list(self._busy.values()):
            thread.join()

    def _to_deliver(self, notifications: Notifications) -> list[str]:
        """Channels with something due, pages first; and Alertmanagers, whose alerts end unless renewed."""
        if not notifications.channels:
            return []
        due = waiting_channels(self._db, self._cluster, self._clock.now())
        managers = (
            channel.name for channel in notifications.channels if channel.kind is ChannelKind.alertmanager
        )
        return list(dict.fromkeys((*due, *managers)))

    def _begin(self, channel: Channel, notifications: Notifications) -> None:
        self._busy = {name: thread for name, thread in self._busy.items() if thread.is_alive()}
        if channel.name in self._busy or len(self._busy) >= AT_ONCE:
            return
        thread = threading.Thread(
            target=self._deliver, args=(channel, notifications), name=f"channel {channel.name}", daemon=True
        )
        self._busy[channel.name] = thread
        thread.start()

    def _deliver(self, channel: Channel, notifications: Notifications) -> None:
        try:
            outbox = PostgresChannelOutbox(self._db, self._cluster, channel.name)
            tell.deliver_to(
                outbox,
                lambda: self._book.of(channel),
                tell.Links(notifications.console_url or self._site_url, self._link_secret, channel.language),
                clock=self._clock,
                chance=random.random,
            )
            if channel.kind is ChannelKind.alertmanager:
                self._renew(channel, outbox)
        except Exception:
            log.exception("message to a channel failed", channel=channel.name)

    def _renew(self, channel: Channel, outbox: PostgresChannelOutbox) -> None:
        try:
            teller = self._book.of(channel)
            if isinstance(teller, Alertmanager):
                tell.renew(outbox, teller, timedelta(seconds=REPOST_S), self._clock.now())
        except DeliveryFailed as error:
            log.warning("open alerts not renewed", channel=channel.name, error=str(error))


#: Interval of checks whether a switch is configured, and of retries.
ALIVE_S = 5.0
#: The alert lasts for this many renewals, so that a late or lost one raises no alarm.
_LASTS = 4


class Switch:
    """Callable: renews the alert of the dead man's switch; returns seconds to rest. The alert ends once a
    part, this process, its machine or its network is dead."""

    def __init__(
        self,
        settings: Settings,
        db: sa.Engine,
        cluster: str,
        rules: Callable[[], Ruleset],
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db, self._cluster, self._rules, self._stopwatch = db, cluster, rules, stopwatch
        self._book = ChannelBook(settings)
        self._seen_at = stopwatch()

    def seen(self, work: Callable[[], float | None]) -> Callable[[], float | None]:
        """Wraps the scheduler's main duty: if it hangs or always fails, the scheduler counts as dead."""

        def noted() -> float | None:
            rest = work()
            self._seen_at = self._stopwatch()
            return rest

        return noted

    def __call__(self) -> float:
        notifications = self._rules().notifications
        channel = notifications.channel(notifications.alive.channel) if notifications.alive else None
        if notifications.alive is None or channel is None:
            return ALIVE_S
        if (dead := self._dead()) is not None:
            log.error("heartbeat to the dead man's switch withheld", dead=dead)
            return ALIVE_S
        try:
            manager = self._book.of(channel)
            if isinstance(manager, Alertmanager):
                lasts = timedelta(seconds=_LASTS * notifications.alive.every_s)
                manager.alive((self._cluster,), lasts, channel.language)
        except DeliveryFailed as error:
            log.warning("heartbeat to the dead man's switch failed", error=str(error))
            return ALIVE_S
        return notifications.alive.every_s

    def _dead(self) -> str | None:
        if self._stopwatch() - self._seen_at > DEAD_AFTER_S:
            return "scheduler"
        return None if beats_on(self._db, self._cluster, "detector") else "detector"


def tickets(settings: Settings) -> Tickets | None:
    """The adapter of the site's ticket system; None: tickets are only in healer's own list."""
    if (webhook := _webhook(settings, settings.ticket_webhook_url)) is not None:
        return WebhookTickets(webhook)
    return DeskTickets(_desk(settings)) if settings.tickets is not None else None


def _desk(settings: Settings) -> Desk:
    """The desk of the configured system; `healer.settings` has checked its settings."""
    access = Access(
        url=settings.tickets_url or (URL if settings.tickets == GITHUB else ""),
        project=settings.tickets_project or "",
        token=settings.tickets_token or "",
        user=(settings.tickets_user or "") if settings.tickets != GITHUB else "",
        kind=settings.tickets_type or "Task",
        closes_by=settings.tickets_close or "",
    )
    if settings.tickets == JIRA:
        return JiraDesk(access)
    return GitHubDesk(access) if settings.tickets == GITHUB else ServiceNowDesk(access)


def delivery(
    settings: Settings, db: sa.Engine, notifications: Callable[[], Notifications] = Notifications
) -> tuple[Callable[[], float | None], ...]:
    """Returns one round of delivery of messages, and one of tickets: a ticket may take its system longer than
    a page may take. Messages and tickets without a sink stay in healer's own list. `notifications` has the
    language of tickets and the URL of their links."""
    notify = _webhook(settings, settings.notify_webhook_url)
    notifier = WebhookNotifier(notify) if notify else None
    repairs = tickets(settings)
    clock = SystemClock()

    def work(outbox: PostgresOutbox) -> None:
        shown = notifications()
        url = shown.console_url or settings.public_url or ""
        links = tell.Links(url, language=shown.ticket_language)
        deliver_due(outbox, notifier, repairs, clock=clock, chance=random.random, links=links)

    return tuple(partial(work, PostgresOutbox(db, [kind])) for kind in ("message", "ticket"))


def event_duty(settings: Settings, db: sa.Engine, cluster: str) -> list[Duty]:
    """Sends audit events to the site's webhook; empty if none is set."""
    webhook = _webhook(settings, settings.events_webhook_url)
    if webhook is None:
        return []
    feed, sink, clock = PostgresEventFeed(db, cluster), EventSink(webhook), SystemClock()

    def work() -> None:
        deliver_events(feed, sink, clock=clock, chance=random.random)

    return [Duty("events", DELIVER_S, work)]


def _webhook(settings: Settings, url: str | None) -> SignedWebhook | None:
    if url is None:
        return None
    try:
        return SignedWebhook(url, settings.webhook_secret)
    except ValueError as error:
        raise SettingsError(f"{error}.") from None
