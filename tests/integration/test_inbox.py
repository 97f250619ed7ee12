"""The inbox on a real PostgreSQL: stored once, in order, and still there after the server was killed."""

import os
import signal
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from healer.adapters.postgres import migrate
from healer.adapters.postgres.inbox import (
    PostgresInbox,
    PostgresSignals,
    inbox_channel,
    put_command,
)
from healer.embedded.postgres import Postgres
from healer.model import Command, CommandKind, Component, Observation, ObservationKind
from healer.ports.request_errors import Unavailable
from healer.ports.signal_stores import Arrival
from tests.support.ledgers import consume

NOW = datetime(2026, 11, 20, 3, tzinfo=UTC)
CLUSTER = "pod1"


def seen(number: int, cluster: str = CLUSTER) -> Observation:
    return Observation(
        digest=f"{number:064x}",
        kind=ObservationKind.xid,
        component=Component(cluster=cluster, node="gpu0001", gpu=3),
        event_at=NOW,
        arrived_at=NOW + timedelta(seconds=number),
        code=79,
        line="NVRM: Xid …",
        data={"pid": 4711},
    )


def test_stored_observations_come_back_whole_and_in_order(fresh_database: sa.Engine) -> None:
    inbox = PostgresInbox(fresh_database, CLUSTER)
    assert inbox.add([seen(2), seen(1), seen(2), seen(9, cluster="pod2")]) == 3
    assert inbox.add([seen(1), seen(3)]) == 1
    found = inbox.unconsumed(10)
    assert [one.digest for one in found] == [seen(2).digest, seen(1).digest, seen(3).digest]
    assert found[0].data == {"pid": 4711}
    assert found[0].component.gpu == 3
    assert all(one.inbox_id for one in found)


def test_nul_byte_affects_no_other_record(fresh_database: sa.Engine) -> None:
    inbox = PostgresInbox(fresh_database, CLUSTER)
    odd = msgspec.structs.replace(seen(1), line="a\x00b", data={"uuid": "\x00"})
    assert inbox.add([odd, seen(2)]) == 2
    assert inbox.unconsumed(1)[0].line == "a\ufffdb"


def test_consumed_rows_are_not_walked_again_but_still_known(fresh_database: sa.Engine) -> None:
    inbox = PostgresInbox(fresh_database, CLUSTER)
    inbox.add([seen(1), seen(2)])
    with fresh_database.begin() as conn:
        consume(conn, inbox.unconsumed(1), NOW)
    assert [one.digest for one in inbox.unconsumed(10)] == [seen(2).digest]
    assert inbox.add([seen(1)]) == 0
    second = NOW + timedelta(seconds=2)
    assert len(list(inbox.since(NOW, lines=NOW))) == 2
    assert len(list(inbox.since(second, lines=second))) == 1
    assert len(list(inbox.since(second, lines=NOW))) == 2


def of(node: str | None, number: int) -> Observation:
    return msgspec.structs.replace(seen(number), component=Component(cluster=CLUSTER, node=node))


def walked(engine: sa.Engine, inbox: PostgresInbox, limit: int) -> list[tuple[str | None, int]]:
    """(node, number) of one batch, which is then walked."""
    batch = inbox.unconsumed(limit)
    with engine.begin() as conn:
        consume(conn, batch, NOW)
    return [(one.component.node, int(one.digest, 16)) for one in batch]


def test_a_flood_of_one_node_holds_up_no_other(fresh_database: sa.Engine) -> None:
    inbox = PostgresInbox(fresh_database, CLUSTER)
    inbox.add([of("loud", number) for number in range(2_000)])
    inbox.add([of("noisy", 10_000 + number) for number in range(2_000)])
    inbox.add([of("gpu0001", 30_002), of(None, 30_000), of("gpu0002", 30_003), of("gpu0001", 30_001)])
    first = walked(fresh_database, inbox, 100)
    assert first[-4:] == [("gpu0001", 30_002), (None, 30_000), ("gpu0002", 30_003), ("gpu0001", 30_001)]
    assert len(first) == 100
    counts = Counter(node for node, _ in first)
    assert counts["loud"] >= 10 and counts["noisy"] >= 10
    # What comes while the flood is walked is in the next batch, and no node's order is another.
    inbox.add([of("gpu0003", 40_000)])
    second = walked(fresh_database, inbox, 100)
    assert second[-1] == ("gpu0003", 40_000)
    seen_of: dict[str | None, list[int]] = {}
    for node, number in [*first, *second]:
        seen_of.setdefault(node, []).append(number)
    assert seen_of["loud"] == list(range(len(seen_of["loud"])))
    assert seen_of["noisy"] == list(range(10_000, 10_000 + len(seen_of["noisy"])))


def test_of_a_flood_alone_whole_batches_are_walked_until_nothing_is_left(fresh_database: sa.Engine) -> None:
    inbox = PostgresInbox(fresh_database, CLUSTER)
    inbox.add([of("loud", number) for number in range(950)])
    numbers: list[int] = []
    while batch := walked(fresh_database, inbox, 100):
        assert len(batch) == 100 or len(numbers) == 900
        numbers += [number for _, number in batch]
    assert numbers == list(range(950))


def test_another_name_of_the_same_signal_is_a_duplicate(fresh_database: sa.Engine) -> None:
    store = PostgresSignals(fresh_database)
    assert store.store([Arrival(seen(1))]) == [True]
    assert store.store([Arrival(seen(2), (seen(1).digest,)), Arrival(seen(3), (seen(9).digest,))]) == [
        False,
        True,
    ]
    assert store.store([Arrival(seen(4)), Arrival(seen(5), (seen(4).digest,))]) == [True, False]
    store.close()


def test_a_command_is_one_row_per_request(fresh_database: sa.Engine) -> None:
    command = Command(kind=CommandKind.resolve, cluster=CLUSTER, at=NOW, by="ann", incident="i", reason="x")
    with fresh_database.begin() as conn:
        first = put_command(conn, command, request="r1")
        assert put_command(conn, command, request="r1") == first
        assert put_command(conn, command, request="r2") != first
    found = PostgresInbox(fresh_database, CLUSTER).unconsumed(10)
    assert [one.kind for one in found] == [ObservationKind.command] * 2
    assert found[0].data["by"] == "ann"


def test_signals_and_commands_wake_the_detector_of_their_cluster_alone(fresh_database: sa.Engine) -> None:
    command = Command(kind=CommandKind.resolve, cluster="pod2", at=NOW, by="ann", incident="i", reason="x")
    with fresh_database.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        for cluster in (CLUSTER, "pod2", "pod3"):
            conn.execute(sa.text(f'LISTEN "{inbox_channel(cluster)}"'))
        PostgresInbox(fresh_database, CLUSTER).add([seen(1), seen(2)])
        with fresh_database.begin() as other:
            put_command(other, command, request="r1")
        driver = conn.connection.driver_connection
        assert driver is not None
        woken = [one.channel for one in driver.notifies(timeout=5, stop_after=2)]
        assert woken == [inbox_channel(CLUSTER), inbox_channel("pod2")]


def test_writers_that_meet_store_everything_once(fresh_database: sa.Engine) -> None:
    """Two processes with the same signals in opposite order: a deadlock is repeated, not answered."""
    numbers = list(range(300))
    new: list[int] = []

    def write(order: list[int]) -> None:
        store = PostgresSignals(fresh_database)
        new.append(sum(store.store([Arrival(seen(number)) for number in order])))
        store.close()

    threads = [threading.Thread(target=write, args=(order,)) for order in (numbers, numbers[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(new) == 300


@pytest.mark.crash
def test_acknowledged_signals_survive_a_kill_of_the_database(scratch: Path) -> None:
    server = Postgres(scratch / "data")
    server.start()
    engine = sa.create_engine(server.url)
    migrate.upgrade(engine)
    store = PostgresSignals(engine)
    try:
        assert store.store([Arrival(seen(number)) for number in range(50)]) == [True] * 50
        assert server.process is not None
        os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()
        with pytest.raises(Unavailable):
            store.store([Arrival(seen(99))])
        server.start()
        assert store.store([Arrival(seen(number)) for number in range(49, 52)]) == [False, True, True]
        with engine.connect() as conn:
            assert conn.execute(sa.text("SELECT count(*) FROM inbox")).scalar_one() == 52
    finally:
        store.close()
        engine.dispose()
        server.stop()
