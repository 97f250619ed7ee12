"""Slots as one transaction writes them, on a real PostgreSQL."""

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from healer.adapters.postgres.run_rows import Lines, store
from healer.adapters.postgres.tables import slots
from healer.model import Slot
from tests.support.api import CLUSTER

START = datetime(2026, 11, 27, tzinfo=UTC)
DRAINED = START + timedelta(seconds=2)


def granted(run: str, at: datetime, node: str = "gpu0001") -> Lines:
    return Lines(granted=[Slot(cluster=CLUSTER, node=node, incident=None, run=run, granted_at=at)])


def test_a_slot_drained_and_asked_for_in_one_transaction_stays_with_the_run_that_drained(
    fresh_database: sa.Engine,
) -> None:
    """As two statements in this order; one statement would hand it over, and lose that it is drained."""
    with fresh_database.begin() as conn:
        store(conn, CLUSTER, [granted("r1", START)], at=START, has_sink=False)
    later = START + timedelta(seconds=3)
    both = [Lines(drained=[("gpu0001", DRAINED)]), granted("r2", later), granted("r2", later, "gpu0002")]
    with fresh_database.begin() as conn:
        store(conn, CLUSTER, both, at=later, has_sink=False)
    with fresh_database.connect() as conn:
        found = conn.execute(sa.select(slots.c.node, slots.c.run, slots.c.drained_at)).all()
    assert sorted(found) == [("gpu0001", "r1", DRAINED), ("gpu0002", "r2", None)]
