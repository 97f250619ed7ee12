"""The duty that brings news to the channels of `rules/notifications.yaml`."""

import random
import threading
from collections.abc import Callable

import sqlalchemy as sa
import structlog

from healer.adapters.notify.alertmanager import Alertmanager
from healer.adapters.postgres import deliveries, routing
from healer.bootstrap.channels import ChannelBook
from healer.model import Channel, ChannelKind, Notifications, Ruleset
from healer.ports.clock import Clock
from healer.ports.outbound import DeliveryFailed
from healer.settings import Settings

log = structlog.get_logger()

#: Channels that are told at the same time, and the connections that it takes: two each, and one to plan.
AT_ONCE = 6
CONNECTIONS = 2 * AT_ONCE + 1


class Telling:
    """Callable: one round of one cluster. Each channel is told in a thread of its own, so that one that does
    not answer delays no other."""

    def __init__(
        self, settings: Settings, db: sa.Engine, cluster: str, rules: Callable[[], Ruleset], clock: Clock
    ) -> None:
        self._db, self._cluster, self._rules, self._clock = db, cluster, rules, clock
        self._book = ChannelBook(settings)
        self._link_secret = settings.link_secret
        self._busy: dict[str, threading.Thread] = {}

    def __call__(self) -> None:
        told = self._rules().notifications
        routing.plan(self._db, self._cluster, told, self._clock.now())
        for name in self._to_tell(told):
            channel = told.channel(name)
            if channel is not None:
                self._begin(channel, told)

    def wait(self) -> None:
        """Until all that was begun has ended."""
        for thread in list(self._busy.values()):
            thread.join()

    def _to_tell(self, told: Notifications) -> list[str]:
        """Those with something due, pages first; and Alertmanagers, whose alerts end unless renewed."""
        if not told.channels:
            return []
        due = deliveries.waiting_channels(self._db, self._cluster, self._clock.now())
        managers = (one.name for one in told.channels if one.kind is ChannelKind.alertmanager)
        return list(dict.fromkeys((*due, *managers)))

    def _begin(self, channel: Channel, told: Notifications) -> None:
        self._busy = {name: thread for name, thread in self._busy.items() if thread.is_alive()}
        if channel.name in self._busy or len(self._busy) >= AT_ONCE:
            return
        thread = threading.Thread(
            target=self._tell, args=(channel, told), name=f"channel {channel.name}", daemon=True
        )
        self._busy[channel.name] = thread
        thread.start()

    def _tell(self, channel: Channel, told: Notifications) -> None:
        try:
            deliveries.deliver_to(
                self._db,
                self._cluster,
                channel.name,
                lambda: self._book.of(channel),
                console_url=told.console_url,
                link_secret=self._link_secret,
                clock=self._clock,
                chance=random.random,
            )
            if channel.kind is ChannelKind.alertmanager:
                self._renew(channel)
        except Exception:
            log.exception("a channel could not be told", channel=channel.name)

    def _renew(self, channel: Channel) -> None:
        try:
            teller = self._book.of(channel)
            if isinstance(teller, Alertmanager):
                deliveries.renew(self._db, self._cluster, channel.name, teller, self._clock.now())
        except DeliveryFailed as error:
            log.warning("open alerts are not renewed", channel=channel.name, error=str(error))
