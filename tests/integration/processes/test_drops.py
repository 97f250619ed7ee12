"""What the windows did not take is in the book of losses, each once."""

from datetime import timedelta

import sqlalchemy as sa

from healer.adapters.postgres.arrivals import PostgresLosses
from healer.model import Loss, LossReason
from healer.observations.telemetry_windows import Counts
from healer.ports.request_errors import Unavailable
from healer.processes.senses_loop import Drops
from tests.support.loop import CLUSTER, START


def test_drops_are_reported_once_and_windows_are_reset(fresh_database: sa.Engine) -> None:
    book = PostgresLosses(fresh_database)
    drops = Drops(book, CLUSTER)
    for minute, counts in enumerate(
        (
            Counts(late=3, samples=100),
            Counts(late=3, out_of_order=5, samples=200),
            Counts(late=1, dropped=2),  # the windows were rebuilt
        )
    ):
        drops.report(counts, START + timedelta(minutes=minute))
    losses = {one.reason: one.count for one in book.losses([CLUSTER], 10)}
    assert losses == {LossReason.late: 4, LossReason.out_of_order: 5, LossReason.series_limit: 2}
    assert {one.source for one in book.losses(None, 10)} == {"windows"}


class Away:
    def __init__(self, book: PostgresLosses) -> None:
        self.book, self.away = book, True

    def add(self, counts: list[Loss]) -> None:
        if self.away:
            raise Unavailable("the database does not answer")
        self.book.add(counts)


def test_drops_that_could_not_be_reported_are_reported_next_time(fresh_database: sa.Engine) -> None:
    book = Away(PostgresLosses(fresh_database))
    drops = Drops(book, CLUSTER)  # type: ignore[arg-type]
    drops.report(Counts(late=3), START)
    book.away = False
    drops.report(Counts(late=4), START + timedelta(minutes=1))
    (one,) = book.book.losses([CLUSTER], 10)
    assert (one.count, one.first_seen) == (4, START + timedelta(minutes=1))
