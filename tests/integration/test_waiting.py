"""What waits for the scheduler: the one question says what the duties themselves would find."""

from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from healer.adapters.postgres import audit_rows as audit
from healer.adapters.postgres import outbox
from healer.adapters.postgres.claims import LedgerParts
from healer.adapters.postgres.engine import make_engine
from healer.adapters.postgres.ledger import PostgresLedger
from healer.adapters.postgres.loops import PendingDuties
from healer.adapters.postgres.node_rows import PostgresSnapshots
from healer.adapters.postgres.planning import planning
from healer.adapters.postgres.tables import runs
from healer.engine.tell import plan
from healer.model import AuditRecord, Message, Notifications, Run, RunState, Severity
from healer.ports.lease import SENT
from healer.sim.sim_clock import SimClock
from tests.support.api import save_run

NOW = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
CLUSTER = "pod1"


def run(state: RunState = RunState.running, cluster: str = CLUSTER) -> Run:
    return Run(id="r1", cluster=cluster, playbook="drain", state=state, by="ann", reason="x", created_at=NOW)


def test_nothing_waits(fresh_database: sa.Engine) -> None:
    waiting = PendingDuties(fresh_database, CLUSTER, SimClock(NOW))
    assert [waiting() for _ in range(3)] == [set()] * 3
    waiting.close()


@pytest.mark.parametrize("state", [RunState.running, RunState.waiting_approval], ids=str)
@pytest.mark.parametrize("cluster", [CLUSTER, "pod2"])
@pytest.mark.parametrize("wake_in_s", [None, -1, 0, 1, 3600])
@pytest.mark.parametrize("lease_in_s", [None, -1, 0, 1])
def test_a_run_waits_when_the_ledger_calls_it_due(
    fresh_database: sa.Engine, state: RunState, cluster: str, wake_in_s: int | None, lease_in_s: int | None
) -> None:
    with fresh_database.begin() as conn:
        save_run(conn, run(state, cluster))
    _waits_as_due(fresh_database, epoch=1, wake_at=_in(wake_in_s), lease_until=_in(lease_in_s))


def test_new_run_is_left_to_its_creator_for_a_second(fresh_database: sa.Engine) -> None:
    with fresh_database.begin() as conn:
        save_run(conn, run())
    for begun_in_s, waits in ((-2, True), (-1, True), (-0.5, False), (0, False), (5, True)):
        begun = NOW + timedelta(seconds=begun_in_s)
        assert _waits_as_due(fresh_database, epoch=0, created_at=begun) == waits, begun_in_s
        assert _waits_as_due(fresh_database, epoch=1, created_at=begun)


def test_only_a_run_of_the_playbook_that_is_running_here_counts(fresh_database: sa.Engine) -> None:
    ledger = _ledger(fresh_database)
    book = run().playbook
    for other in (run(RunState.waiting), run(RunState.running, "elsewhere")):
        with fresh_database.begin() as conn:
            conn.execute(sa.delete(runs))
            save_run(conn, other)
        assert not ledger.has_running([book])
    with fresh_database.begin() as conn:
        conn.execute(sa.delete(runs))
        save_run(conn, run())
    assert ledger.has_running(["else", book])
    assert not ledger.has_running(["else"])
    assert not ledger.has_running([])


def _ledger(engine: sa.Engine) -> PostgresLedger:
    snapshots = PostgresSnapshots(engine)
    return PostgresLedger(
        LedgerParts(engine=engine, cluster=CLUSTER, snapshots=snapshots, clock=SimClock(NOW), has_sink=False)
    )


def _waits_as_due(engine: sa.Engine, **values: object) -> bool:
    """Whether the sweep gets the run, once it has these values; the sweep itself says the same."""
    clock = SimClock(NOW)
    with engine.begin() as conn:
        conn.execute(sa.update(runs).values(**values))
    ledger = _ledger(engine)
    waiting = PendingDuties(engine, CLUSTER, clock)
    waits = waiting()
    assert waits == ({"sweep"} if ledger.due_runs(NOW, sent=SENT) else set())
    waiting.close()
    return bool(waits)


def _in(seconds: int | None) -> datetime | None:
    return None if seconds is None else NOW + timedelta(seconds=seconds)


def test_a_message_waits_until_it_is_sent_and_a_record_until_it_is_sealed(fresh_database: sa.Engine) -> None:
    page = Message(id="m", cluster=CLUSTER, title="t", text="x", severity=Severity.P0, page=True)
    record = AuditRecord(cluster=CLUSTER, at=NOW, actor="ann", verb="v", subject="s", data={})
    with fresh_database.begin() as conn:
        outbox.queue(conn, page, at=NOW, has_sink=True)
    early = PendingDuties(fresh_database, CLUSTER, SimClock(NOW - timedelta(seconds=1)))
    waiting = PendingDuties(fresh_database, CLUSTER, SimClock(NOW))
    # Due at once, though the clock of its writer is ahead.
    assert early() == waiting() == {"deliver", "tell"}
    with planning(fresh_database, CLUSTER, NOW) as tx:
        assert tx is not None
        plan(tx, CLUSTER, Notifications(), NOW)  # no channel is named: no message is sent
    assert early() == waiting() == {"deliver"}
    claimed = outbox.PostgresOutbox(fresh_database).claim(messages=True, tickets=True, now=NOW)
    assert claimed is not None
    assert early() == waiting() == set()
    with fresh_database.begin() as conn:
        audit.append(conn, record)
    assert early() == waiting() == {"seal"}
    early.close()
    waiting.close()


def test_broken_connection_is_reopened(fresh_database: sa.Engine) -> None:
    engine = make_engine(fresh_database.url.render_as_string(hide_password=False), name="waiting here")
    waiting = PendingDuties(engine, CLUSTER, SimClock(NOW))
    assert waiting() == set()
    with fresh_database.begin() as conn:
        mine = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'waiting here'"
        )
        ended = conn.execute(sa.text(mine))
        assert ended.scalar() is True
    with pytest.raises(Exception, match="terminat"):
        waiting()
    assert waiting() == set()
    waiting.close()
    engine.dispose()
