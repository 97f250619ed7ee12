"""What the windows did not take: told to the book of losses, once a minute."""

from datetime import datetime

import structlog

from healer.model import Loss, LossReason
from healer.observations.telemetry import Counts
from healer.ports.signal_stores import LossBook

log = structlog.get_logger()

SOURCE = "windows"
_SAID = {
    LossReason.late: "samples older than the windows of 15 min, or of before a repair",
    LossReason.out_of_order: "samples not newer than the last of their series, or told twice",
    LossReason.series_limit: "samples for which the windows have no room, or too many moments at once",
}


class Drops:
    """Of one cluster. `tell` never raises: the windows matter more."""

    def __init__(self, book: LossBook, cluster: str) -> None:
        self._book, self._cluster = book, cluster
        self._told: dict[LossReason, int] = {}

    def tell(self, counts: Counts, now: datetime) -> None:
        """`counts` grow while the windows live, and begin at 0 with new ones."""
        found = {
            LossReason.late: counts.late,
            LossReason.out_of_order: counts.out_of_order,
            LossReason.series_limit: counts.dropped,
        }
        if any(count < self._told.get(reason, 0) for reason, count in found.items()):
            self._told = {}
        losses = [
            Loss(
                cluster=self._cluster,
                source=SOURCE,
                reason=reason,
                count=count - self._told.get(reason, 0),
                first_seen=now,
                last_seen=now,
                example=_SAID[reason],
            )
            for reason, count in found.items()
            if count > self._told.get(reason, 0)
        ]
        if not losses:
            return
        try:
            self._book.add(losses)
        except Exception as error:  # the database is away: the same is told the next time
            log.warning("what the windows dropped could not be told", error=str(error)[:200])
            return
        self._told = found
