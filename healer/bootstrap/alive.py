"""The dead man's switch: an Alertmanager is told that healer lives, as long as scheduler and detector do."""

import time
from collections.abc import Callable
from datetime import timedelta

import sqlalchemy as sa
import structlog

from healer.adapters.notify.alertmanager import Alertmanager
from healer.adapters.postgres.beats import DEAD_AFTER_S, beats_on
from healer.bootstrap.channels import ChannelBook
from healer.model import Ruleset
from healer.ports.outbound import DeliveryFailed
from healer.settings import Settings

log = structlog.get_logger()

#: How often it is looked whether the file names a switch, and tried again after a failure.
ALIVE_S = 5.0
#: The alert outlasts so many renewals: one that is late, or lost, alarms nobody.
_LASTS = 4


class Switch:
    """Callable: the duty; it returns how long to rest. Whoever waits for the alert hears nothing more once a
    part is dead, or this process is, or its machine or the way from it."""

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
        """The scheduler's main duty: one that hangs, or fails each time, is dead too."""

        def noted() -> float | None:
            rest = work()
            self._seen_at = self._stopwatch()
            return rest

        return noted

    def __call__(self) -> float:
        told = self._rules().notifications
        channel = told.channel(told.alive.channel) if told.alive else None
        if told.alive is None or channel is None:
            return ALIVE_S
        if (dead := self._dead()) is not None:
            log.error("the dead man's switch is not held", dead=dead)
            return ALIVE_S
        try:
            manager = self._book.of(channel)
            if isinstance(manager, Alertmanager):
                manager.alive((self._cluster,), timedelta(seconds=_LASTS * told.alive.every_s))
        except DeliveryFailed as error:
            log.warning("the dead man's switch could not be held", error=str(error))
            return ALIVE_S
        return told.alive.every_s

    def _dead(self) -> str | None:
        if self._stopwatch() - self._seen_at > DEAD_AFTER_S:
            return "scheduler"
        return None if beats_on(self._db, self._cluster, "detector") else "detector"
