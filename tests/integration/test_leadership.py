"""Who leads a cluster when the leader's process is frozen: its session, and so its lock, stays."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from healer.adapters.postgres.arrivals import PostgresScrapes
from healer.adapters.postgres.engine import make_engine
from healer.adapters.postgres.loops import DEAD_AFTER_S, Heartbeat, lock_held, part_lock, wait_to_lead
from healer.adapters.postgres.tables import beats
from healer.model import ScrapeState

CLUSTER = "pod1"


@pytest.fixture
def leader(fresh_database: sa.Engine) -> Iterator[sa.Connection]:
    """A detector that leads and has sent a heartbeat."""
    connection = wait_to_lead(fresh_database, CLUSTER, lambda _: True)
    assert connection is not None
    Heartbeat(fresh_database, CLUSTER, "detector")()
    yield connection
    connection.invalidate()


class Waits:
    """`stopped` of one that waits to lead: counts its looks, and ends it after `most`."""

    def __init__(self, most: float, each: Callable[[], object] = lambda: None) -> None:
        self.most, self.each, self.looks = most, each, 0

    def __call__(self, seconds: float) -> bool:
        self.each()
        self.looks += 1
        return self.looks >= self.most


def _second(database: sa.Engine) -> sa.Engine:
    return make_engine(database.url.render_as_string(hide_password=False))


def test_another_leads_when_the_leader_is_frozen(fresh_database: sa.Engine, leader: sa.Connection) -> None:
    second, waits = _second(fresh_database), Waits(2 * DEAD_AFTER_S)
    leads = wait_to_lead(second, CLUSTER, waits)
    assert leads is not None and lock_held(leads, part_lock("detector", CLUSTER))
    assert DEAD_AFTER_S <= waits.looks <= DEAD_AFTER_S + 3
    with pytest.raises(OperationalError):  # the frozen one commits nothing when it continues
        leader.execute(sa.text("SELECT 1"))
    leads.invalidate()


def test_another_scraper_leads_when_the_first_one_is_frozen_and_not_before(fresh_database: sa.Engine) -> None:
    def report() -> None:
        if 0 < waits.looks < 2 * DEAD_AFTER_S and waits.looks % int(DEAD_AFTER_S - 5) == 0:
            PostgresScrapes(fresh_database).put(ScrapeState(cluster=CLUSTER, at=datetime.now(UTC)))

    first = wait_to_lead(fresh_database, CLUSTER, lambda _: True, "scraper")
    assert first is not None
    waits = Waits(4 * DEAD_AFTER_S, report)
    leads = wait_to_lead(_second(fresh_database), CLUSTER, waits, "scraper")
    assert leads is not None and lock_held(leads, part_lock("scraper", CLUSTER))
    assert waits.looks > 2 * DEAD_AFTER_S
    with pytest.raises(OperationalError):
        first.execute(sa.text("SELECT 1"))
    first.invalidate()
    leads.invalidate()


def test_a_leader_that_works_keeps_its_session(fresh_database: sa.Engine, leader: sa.Connection) -> None:
    def beat() -> None:
        if waits.looks % int(DEAD_AFTER_S - 5) == 0:
            Heartbeat(fresh_database, CLUSTER, "detector")()

    waits = Waits(3 * DEAD_AFTER_S, beat)
    assert wait_to_lead(_second(fresh_database), CLUSTER, waits) is None
    assert leader.execute(sa.text("SELECT 1")).scalar() == 1


def test_a_leader_without_any_heartbeat_keeps_its_session(
    fresh_database: sa.Engine, leader: sa.Connection
) -> None:
    with fresh_database.begin() as conn:
        conn.execute(sa.delete(beats))
    assert wait_to_lead(_second(fresh_database), CLUSTER, Waits(2 * DEAD_AFTER_S)) is None
    assert leader.execute(sa.text("SELECT 1")).scalar() == 1


def test_the_transaction_of_a_frozen_process_does_not_last_in_a_database_of_the_sites_own(
    fresh_database: sa.Engine,
) -> None:
    """healer's own server has such a limit; it would keep the gate, and all would wait."""
    with fresh_database.begin() as conn:
        name = fresh_database.url.database
        conn.execute(sa.text(f"ALTER DATABASE {name} SET idle_in_transaction_session_timeout = 0"))
    with _second(fresh_database).connect() as conn:
        assert conn.execute(sa.text("SHOW idle_in_transaction_session_timeout")).scalar() == "1min"
