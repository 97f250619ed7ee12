"""Notices of service accounts that end, on the real list of messages."""

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from healer.adapters.postgres.tables import messages
from healer.model import Role
from healer.ports.service_accounts import TokenRow
from healer.processes.scheduler import account_watch
from tests.support.ledgers import CLUSTER, PostgresBench

NOW = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)


class Hand:
    def __init__(self) -> None:
        self.at = NOW

    def now(self) -> datetime:
        return self.at


def test_each_notice_is_queued_once_and_other_clusters_have_their_own(fresh_database: sa.Engine) -> None:
    made, until = NOW - timedelta(days=80), NOW + timedelta(days=10)
    mine = TokenRow(
        id="0a", role=Role.operator, name="ann/ci", owner="ann", created_at=made, expires_at=until
    )
    other = TokenRow(
        id="0b", role=Role.operator, name="bob/ci", owner="bob", cluster="other", created_at=made,
        expires_at=until,
    )  # fmt: skip
    hand = Hand()
    work = account_watch(PostgresBench(fresh_database).ledger, lambda now: [mine, other], hand)

    def days() -> list[int]:
        """The notices queued so far, by the days that were left."""
        work()
        work()
        with fresh_database.connect() as conn:
            found = sa.select(messages.c.doc["id"].astext).where(messages.c.cluster == CLUSTER)
            ids = [one.rpartition(":") for one in conn.scalars(found)]
        assert {prefix for prefix, _, _ in ids} == {"account-ending:0a"}
        return sorted((int(left) for _, _, left in ids), reverse=True)

    assert days() == [14]
    hand.at = until - timedelta(days=3)
    assert days() == [14, 3]
    hand.at = until + timedelta(hours=1)
    assert days() == [14, 3, 0]
    hand.at = until + timedelta(days=3)
    assert days() == [14, 3, 0]
