"""Alerts in a real PostgreSQL: what a restarted detector knows, and how long repeats are kept."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from healer.adapters.postgres import retention
from healer.adapters.postgres.inbox import PostgresInbox, alerts
from healer.adapters.postgres.retention import tidy
from healer.adapters.postgres.sample_reads import PostgresSignalReads
from healer.adapters.postgres.samples import PostgresColumns
from healer.detection.reported import firing
from healer.model import Observation
from healer.model.detection import ALERT_STAYS_MAX
from healer.signals.alert_bodies import Site, alertmanager_observations, repeated_alert
from tests.support.ledgers import consume
from tests.support.loop import CLUSTER, name, rules_in

NOW = datetime(2026, 11, 20, 3, tzinfo=UTC)
BEGUN = NOW - timedelta(hours=30)


def alert(at: datetime, node: int = 1, status: str = "firing", **more: Any) -> Observation:
    item = {
        "status": status,
        "labels": {"alertname": "NodeClockNotSynchronising", "instance": f"{name(node)}:9100"},
        "startsAt": BEGUN.isoformat(),
    }
    where = Site(CLUSTER, (CLUSTER,), lambda _c, _n: True, lambda _c, _n: False)
    return alertmanager_observations({"version": "4", "alerts": [item | more]}, where, at).observations[0]


@pytest.fixture
def inbox(fresh_database: sa.Engine) -> PostgresInbox:
    return PostgresInbox(fresh_database, CLUSTER)


def test_alert_that_fires_for_long_is_read_back_from_the_inbox(
    inbox: PostgresInbox, fresh_database: sa.Engine
) -> None:
    first = alert(BEGUN)
    again = repeated_alert(alert(NOW - timedelta(hours=2)))
    inbox.add([first, again, alert(BEGUN, node=2), alert(NOW, node=2, status="resolved")])
    known = list(inbox.alerts(NOW - timedelta(hours=72)))
    assert [one.digest for one in known][:1] == [first.digest]
    shown = firing(rules_in(), known, NOW)
    assert [(one.component.node, one.heard_at) for one in shown] == [(name(1), NOW - timedelta(hours=2))]
    # The first message is out of reach: its repeat alone says the same.
    assert [one.since for one in firing(rules_in(), inbox.alerts(NOW - timedelta(hours=9)), NOW)] == [BEGUN]
    reads = PostgresSignalReads(fresh_database, PostgresColumns(fresh_database))
    assert [one.digest for one in reads.alerts(CLUSTER, name(1), BEGUN)] == [first.digest, again.digest]
    assert reads.alerts("pod9", name(1), BEGUN) == []


def test_node_with_very_many_alerts_hides_no_others_at_startup(
    inbox: PostgresInbox, fresh_database: sa.Engine
) -> None:
    older = alert(BEGUN, node=2)
    inbox.add([older])
    inbox.add([alert(NOW, fingerprint=f"{number:016x}") for number in range(3_000)])
    with fresh_database.connect() as conn:
        known = alerts(conn, CLUSTER, BEGUN, limit=2_500)
    assert known[0].digest == older.digest
    assert len(known) == 2_001


def test_a_backlog_goes_in_portions_that_stay_gone(
    inbox: PostgresInbox, fresh_database: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row cannot go: what went before it is gone, and when it can the rest goes."""
    monkeypatch.setattr(retention, "PORTION", 100)
    inbox.add([alert(BEGUN, fingerprint=f"{number:016x}") for number in range(1_000)])
    with fresh_database.begin() as conn:
        consume(conn, inbox.unconsumed(2_000), NOW)
        first = conn.scalar(sa.text("SELECT min(id) FROM inbox"))
        assert first is not None
        conn.execute(
            sa.text(
                "CREATE FUNCTION stays() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$BEGIN IF OLD.id = {first + 550} THEN RAISE 'it stays'; END IF; RETURN OLD; END$$"
            )
        )
        conn.execute(
            sa.text("CREATE TRIGGER stays BEFORE DELETE ON inbox FOR EACH ROW EXECUTE FUNCTION stays()")
        )
        for number in range(250):
            key = {"key": str(number), "at": BEGUN}
            conn.execute(
                sa.text("INSERT INTO idempotency (key, who, request, at) VALUES (:key, 'x', '', :at)"), key
            )
    later = BEGUN + timedelta(days=91)
    count = sa.text("SELECT count(*) FROM inbox")
    with pytest.raises(sa.exc.DBAPIError, match="it stays"):
        tidy(fresh_database, later)
    with fresh_database.begin() as conn:
        assert conn.scalar(count) == 500
        conn.execute(sa.text("DROP TRIGGER stays ON inbox"))
    tidy(fresh_database, later)
    with fresh_database.connect() as conn:
        assert conn.scalar(count) == 0
        assert conn.scalar(sa.text("SELECT count(*) FROM idempotency")) == 0


def test_repeats_go_after_three_days_and_the_alert_stays_known(
    inbox: PostgresInbox, fresh_database: sa.Engine
) -> None:
    first = alert(BEGUN)
    inbox.add([first, repeated_alert(alert(BEGUN + timedelta(hours=2))), repeated_alert(alert(NOW))])
    with fresh_database.begin() as conn:
        consume(conn, inbox.unconsumed(10), NOW)
    tidy(fresh_database, BEGUN + timedelta(hours=3) + ALERT_STAYS_MAX)
    left = [one.digest for one in inbox.alerts(BEGUN)]
    assert left == [first.digest, repeated_alert(alert(NOW)).digest]
    assert inbox.add([alert(NOW + timedelta(days=30))]) == 0
