"""What is not sealed or not witnessed is seen, and pages once."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
import sqlalchemy as sa

from healer.adapters.postgres.audit_rows import PostgresChain, append
from healer.adapters.postgres.loops import WITNESS_PART, Heartbeat, expect_witnesses
from healer.adapters.postgres.own_health import seal_state
from healer.adapters.postgres.tables import beats, messages
from healer.audit import Sealer
from healer.ports.answers import SealState
from healer.processes.scheduler import Duty, seal_watch, woken_by
from tests.support.audit import record, signer
from tests.support.ledgers import CLUSTER, PostgresBench

NOW = datetime.now(UTC)


class Hand:
    def __init__(self) -> None:
        self.at = NOW

    def now(self) -> datetime:
        return self.at


def titles(engine: sa.Engine) -> list[str]:
    with engine.connect() as conn:
        return list(conn.scalars(sa.select(messages.c.doc["title"]["text"].astext).order_by(messages.c.id)))


def test_the_oldest_record_without_a_seal_is_seen(fresh_database: sa.Engine) -> None:
    oldest = NOW - timedelta(minutes=3)
    with fresh_database.begin() as conn:
        for at in (NOW, oldest):
            append(conn, msgspec.structs.replace(record(1, stored=False), at=at))
    assert seal_state(fresh_database, "pod1").since == oldest
    assert seal_state(fresh_database, "pod2").since is None
    sealer = Sealer(PostgresChain(fresh_database), signer())
    sealer.seal_once()
    sealer.close()
    assert seal_state(fresh_database, "pod1") == SealState()


def test_a_witness_is_expected_from_the_start_and_until_it_is_taken_away(fresh_database: sa.Engine) -> None:
    expect_witnesses(fresh_database, "pod1", ["file:/a", "file:/b"])
    first = seal_state(fresh_database, "pod1").witnesses
    assert first.keys() == {"file:/a", "file:/b"}
    expect_witnesses(fresh_database, "pod1", ["file:/a"])
    assert seal_state(fresh_database, "pod1").witnesses == {"file:/a": first["file:/a"]}
    # A restart is no answer; a delivery is.
    Heartbeat(fresh_database, "pod1", f"{WITNESS_PART}file:/a")()
    assert seal_state(fresh_database, "pod1").witnesses["file:/a"] > first["file:/a"]
    expect_witnesses(fresh_database, "pod1", ["file:/a", "file:/b"])
    assert seal_state(fresh_database, "pod1").witnesses["file:/b"] > first["file:/b"]
    with fresh_database.connect() as conn:
        assert conn.scalar(sa.select(sa.func.count()).select_from(beats)) == 2


@pytest.mark.parametrize(
    ("state", "what"),
    [
        (SealState(since=NOW - timedelta(seconds=61)), "sealed"),
        (
            SealState(witnesses={"w": NOW - timedelta(minutes=6)}),
            "witnessed",
        ),
    ],
)
def test_it_pages_once_a_day(fresh_database: sa.Engine, state: SealState, what: str) -> None:
    title = f"The audit of {CLUSTER} is not {what}"
    hand = Hand()
    make: Callable[[], Callable[[], None]] = lambda: seal_watch(  # noqa: E731
        PostgresBench(fresh_database).ledger, lambda: state, hand
    )
    watch = make()
    watch()
    watch()
    make()()  # a scheduler that was started again
    assert titles(fresh_database) == [title]
    hand.at += timedelta(days=1)
    watch()
    assert titles(fresh_database) == [title, title]


def test_work_of_another_process_wakes_nothing() -> None:
    look, duty = woken_by(lambda: {"seal", "sweep"}, [Duty("sweep", 1.0, lambda: None)])
    look.work()
    assert duty.woken is not None
    assert duty.woken.is_set()
