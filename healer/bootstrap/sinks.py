"""The sinks that a site has set, and the duty that brings messages to them."""

import random
from collections.abc import Callable

import sqlalchemy as sa

from healer.adapters.clock import SystemClock
from healer.adapters.notify.events import EventSink
from healer.adapters.notify.webhook import WebhookNotifier
from healer.adapters.postgres.event_feed import deliver_events
from healer.adapters.postgres.messages import deliver_due
from healer.adapters.webhook import SignedWebhook
from healer.bootstrap.tickets import tickets
from healer.processes.scheduler import DELIVER_S, Duty
from healer.settings import Settings, SettingsError


def delivery(
    settings: Settings, db: sa.Engine, console_url: Callable[[], str] = lambda: ""
) -> Callable[[], float | None]:
    """One round of delivery at each call. What has no sink stays in our own list. `console_url`: as people of
    the site reach the console, for the links in tickets."""
    notify = _webhook(settings, settings.notify_webhook_url)
    notifier = WebhookNotifier(notify) if notify else None
    repairs = tickets(settings, db, console_url)
    clock = SystemClock()

    def work() -> None:
        deliver_due(db, notifier, repairs, clock=clock, chance=random.random)

    return work


def event_duty(settings: Settings, db: sa.Engine, cluster: str) -> list[Duty]:
    """Brings what is recorded to the site's address; no duty where none is set."""
    webhook = _webhook(settings, settings.events_webhook_url)
    if webhook is None:
        return []
    sink, clock = EventSink(webhook), SystemClock()

    def work() -> None:
        deliver_events(db, cluster, sink, clock=clock, chance=random.random)

    return [Duty("events", DELIVER_S, work)]


def _webhook(settings: Settings, url: str | None) -> SignedWebhook | None:
    if url is None:
        return None
    try:
        return SignedWebhook(url, settings.webhook_secret)
    except ValueError as error:
        raise SettingsError(f"{error}.") from None
