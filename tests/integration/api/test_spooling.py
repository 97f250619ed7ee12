"""Between queue and store: what is spooled, in which order it comes in, and what may go wrong there."""

import asyncio
import gc
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from healer.adapters.spool import FileSpool
from healer.api.db_health import FULL_S, Database
from healer.api.quotas import Losses
from healer.api.spooling import REFUSED_MAX, Lane, Spooling, events_lane, steps_lane
from healer.model import Component, Loss, LossReason, Observation, ObservationKind
from healer.ports.request_errors import DiskFull, NoRoom, Unavailable, Unstorable
from healer.ports.signal_stores import Arrival, Spooled
from healer.signals.step_times import step_batches
from tests.support.api import CLUSTER, Api
from tests.support.wait import wait_until

pytestmark = pytest.mark.heavy


class Store:
    """Keeps what it is given; `error` is raised instead, and it hangs while `hold` is set."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.calls = 0
        self.error: Exception | None = None
        #: The call from which on there is no error any more.
        self.mended_at: int | None = None
        self.hangs = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, items: Sequence[str]) -> list[bool]:
        self.calls += 1
        if self.calls == self.mended_at:
            self.error = None
        if self.hangs.is_set():
            assert self.go_on.wait(60)
        if self.error is not None:
            raise self.error
        if "poison" in items:
            raise Unstorable("this cannot be stored")
        new = [one not in self.kept for one in items]
        self.kept += [one for one in dict.fromkeys(items) if one not in self.kept]
        return new


class Book:
    def __init__(self) -> None:
        self.counted_losses: list[Loss] = []

    def add(self, counts: Sequence[Loss]) -> None:
        self.counted_losses += counts

    def losses(self, clusters: Sequence[str] | None, limit: int) -> list[Loss]:
        return self.counted_losses[:limit]


class Bench:
    def __init__(self, folder: Path, *, soon: bool = False, **spool: int) -> None:
        """`soon`: asked from an event loop."""
        self.soon = soon
        self.book, self.store, self.database = Book(), Store(), Database(patience_s=0.3)
        self.spool = FileSpool(folder / "spool", **spool)
        self.losses = Losses(self.book, lambda: datetime.now(UTC))
        self.spooling = Spooling(self.spool, self.database, self.losses)
        self.lane: Lane[str, bool] = self.spooling.add_lane(
            Lane(
                self.spooling,
                self.store,
                name="words",
                encode=str.encode,
                decode=bytes.decode,
                spooled=True,
            )
        )

    def put(self, words: list[str]) -> Sequence[bool]:
        if not self.soon:
            return self.lane.put(words)

        async def ask() -> Sequence[bool]:
            return await self.lane.put_soon(words)

        return asyncio.run(ask())

    def bring_all_in(self) -> None:
        while self.spool.pending:
            self.spooling.store_batch()


@pytest.fixture(params=[False, True], ids=["thread", "loop"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    one = Bench(tmp_path, soon=request.param)
    yield one
    one.store.go_on.set()


def test_a_store_that_answers_is_all_there_is(bench: Bench) -> None:
    assert bench.put(["a", "b"]) == [True, True]
    assert bench.put(["b", "c"]) == [False, True]
    assert not bench.spool.pending and not bench.database.away


def test_spooled_entries_are_stored_before_later_ones(bench: Bench) -> None:
    bench.store.error = Unavailable("away")
    assert bench.put(["a", "b"]) == [True, True]
    assert bench.database.away and bench.spool.state().entries == 2
    bench.store.error = None
    assert bench.put(["c"]) == [True], "behind what waits, though the store is back"
    assert bench.store.kept == []
    bench.bring_all_in()
    assert bench.store.kept == ["a", "b", "c"]
    assert not bench.database.away
    assert bench.put(["c", "d"]) == [False, True], "and now the store itself is asked again"


def test_hanging_store_blocks_no_request(bench: Bench) -> None:
    bench.store.hangs.set()
    assert bench.put(["a"]) == [True]
    assert bench.database.away
    assert bench.put(["b"]) == [True]
    bench.spooling.start()
    bench.store.hangs.clear()
    bench.store.go_on.set()
    wait_until(lambda: bench.store.kept == ["a", "b"], 30, what="both are stored, a once")
    wait_until(lambda: not bench.spool.pending, 30)
    bench.spooling.stop()


@pytest.mark.parametrize("soon", [False, True])
def test_a_full_spool_refuses_all_of_a_call_and_says_how_many(tmp_path: Path, soon: bool) -> None:
    bench = Bench(tmp_path, soon=soon, limit=60)
    bench.store.error = Unavailable("away")
    assert bench.put(["a" * 20]) == [True]
    with pytest.raises(NoRoom, match="its limit") as caught:
        bench.put(["b" * 20, "c" * 20])
    assert (caught.value.entries, bench.spool.state().entries) == (2, 1)


def test_a_database_without_room_is_no_database_that_is_away(bench: Bench) -> None:
    bench.store.error = DiskFull("the disk of the database is full")
    assert bench.put(["a"]) == [True]
    assert bench.database.disk_full and not bench.database.away
    assert bench.spooling.store_batch() > 0
    assert bench.spool.pending
    bench.store.error = None
    bench.bring_all_in()
    assert bench.store.kept == ["a"] and not bench.database.disk_full


def test_a_full_disk_is_forgotten_where_nothing_more_is_written() -> None:
    """The sender of the write that failed may have gone to another API for good."""
    now_s = 100.0
    database = Database(stopwatch=lambda: now_s)
    database.no_room(DiskFull("the disk of the database is full"))
    now_s += FULL_S - 1
    assert database.disk_full == "the disk of the database is full"
    now_s += 1
    assert not database.disk_full


def test_store_failure_leaves_no_unhandled_exception_in_the_log(tmp_path: Path) -> None:
    bench, logged = Bench(tmp_path, soon=True), list[dict[str, Any]]()

    async def ask() -> Sequence[bool]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
        accepted = await bench.lane.put_soon(["a"])
        gc.collect()
        return accepted

    bench.store.error = Unavailable("away")
    assert asyncio.run(ask()) == [True]
    assert logged == []


def test_entry_that_the_store_refuses_does_not_block_the_others(bench: Bench) -> None:
    bench.store.error = Unavailable("away")
    bench.put(["a", "poison", "b"])
    bench.store.error = None
    bench.bring_all_in()
    assert bench.store.kept == ["a", "b"]
    bench.losses.flush()
    assert [(one.source, one.reason, one.count) for one in bench.book.counted_losses] == [
        ("spool/words", LossReason.rejected, 1)
    ]


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(Unavailable("read-only"), id="takes nothing"),
        pytest.param(RuntimeError("of a kind that nobody thought of"), id="unknown"),
        pytest.param(Unstorable("no partition"), id="refuses all"),
    ],
)
def test_a_store_that_is_back_and_takes_nothing_costs_nothing(bench: Bench, error: Exception) -> None:
    words = [f"xid {number}" for number in range(40)]
    bench.store.error = Unavailable("away")
    bench.put(words)
    bench.store.error = error
    bench.spooling.start()
    wait_until(lambda: bench.store.calls > 3, 30, what="it is tried again")
    bench.store.error = None
    wait_until(lambda: not bench.spool.pending, 30, what="all is stored at last")
    assert sorted(bench.store.kept) == sorted(words)
    bench.spooling.stop()
    bench.losses.flush()
    assert bench.book.counted_losses == []


def test_a_store_that_is_mended_between_two_records_loses_none(bench: Bench) -> None:
    bench.store.error = Unavailable("away")
    bench.put(["a", "b", "c", "d"])
    bench.store.error = Unstorable("no partition")
    bench.store.mended_at = bench.store.calls + 4  # all together, then one by one: the third is taken
    bench.bring_all_in()
    assert bench.store.kept == ["c", "a", "b", "d"]
    bench.losses.flush()
    assert bench.book.counted_losses == []


def test_a_few_that_are_refused_are_lost_and_more_in_a_row_stay(bench: Bench) -> None:
    bench.store.error = Unavailable("away")
    few = [one for number in range(20) for one in (f"good {number}", "poison")]
    bench.put(few)
    bench.store.error = None
    bench.bring_all_in()
    assert bench.store.kept == few[::2] and not bench.spooling.stuck
    bench.losses.flush()
    assert [one.count for one in bench.book.counted_losses] == [20]
    bench.store.error = Unavailable("away")
    bench.put(["poison"] * (REFUSED_MAX + 1) + ["good at last"])
    bench.store.error = None
    for _ in range(3):
        assert bench.spooling.store_batch() > 0
    assert bench.spooling.stuck and bench.spool.state().entries == REFUSED_MAX + 2
    bench.losses.flush()
    assert len(bench.book.counted_losses) == 1, "what stays is not lost"


def test_a_record_that_this_version_cannot_read_keeps_no_other(tmp_path: Path) -> None:
    """It waits for a version that can, and so does a kind of record that is unknown here."""
    bench = Bench(tmp_path)
    bench.store.error = Unavailable("away")
    bench.put(["a"])
    bench.lane.decode = lambda body: body.decode("ascii")
    bench.put(["ä", "b"])
    bench.spooling.append([Spooled(b"q", b"of tomorrow")])
    for _ in range(5):
        assert bench.spooling.store_batch() > 0
    bench.store.error = None
    bench.bring_all_in()
    assert bench.store.kept == ["a", "b"]
    bench.spool.close()
    bench.losses.flush()
    assert bench.book.counted_losses == []
    later = FileSpool(tmp_path / "spool")
    found = [Spooled(b"w", "ä".encode()), Spooled(b"q", b"of tomorrow")]
    assert sorted(later.oldest(10, 1000) + rest_of(later)) == sorted(found), "each is kept once"
    later.close()


def rest_of(spool: FileSpool) -> list[Spooled]:
    """The records in the segments after the first one."""
    first = spool.oldest(10, 1000)
    spool.drop_oldest(first)
    return spool.oldest(10, 1000)


def test_spool_record_damaged_on_disk_is_counted_as_a_loss(bench: Bench, tmp_path: Path) -> None:
    bench.store.error = Unavailable("away")
    bench.put(["a", "b", "c"])
    (file,) = [one for one in tmp_path.glob("spool/*/*") if one.name != "lock"]
    raw = bytearray(file.read_bytes())
    raw[19] ^= 1
    file.write_bytes(raw)
    bench.store.error = None
    bench.spooling.start()

    def counted() -> list[Loss]:
        bench.losses.flush()
        return bench.book.counted_losses

    wait_until(counted, 30, what="the loss is counted")
    assert [(one.source, one.reason, one.count) for one in bench.book.counted_losses] == [
        ("spool", LossReason.rejected, 1)
    ]
    assert bench.store.kept == ["a", "c"]
    bench.spooling.stop()


def test_next_process_stores_entries_left_in_the_spool(tmp_path: Path) -> None:
    first = Bench(tmp_path)
    first.store.error = Unavailable("away")
    first.spooling.start()
    first.lane.put(["a", "b"])
    first.spooling.stop()
    second = Bench(tmp_path)
    second.lane.put(["c"])
    second.bring_all_in()
    assert second.store.kept == ["a", "b", "c"]


# --- what is spooled -------------------------------------------------------------------------------------


@pytest.fixture
def api(fresh_database: sa.Engine) -> Iterator[Api]:
    one = Api(fresh_database)
    yield one
    one.close()


def observation(number: int, at: datetime) -> Observation:
    return Observation(
        digest=f"{number:064x}",
        kind=ObservationKind.xid,
        component=Component(cluster=CLUSTER, node="gpu0001", pci="0000:9b:00"),
        event_at=at,
        arrived_at=at,
        code=79,
        text="a text with ä, \u2028 and \x00",
        line="NVRM: Xid",
        data={"pid": 4711, "name": "python"},
    )


def test_events_come_back_as_they_went(api: Api, bench: Bench) -> None:
    lane = events_lane(bench.spooling, api.services)
    at = datetime.now(UTC) - timedelta(minutes=9)
    entries = [Arrival(observation(number, at), (f"{number + 100:064x}",)) for number in range(3)]
    bench.database.failed("away")
    assert lane.put(entries) == [True] * 3
    assert lane.put(entries[:1]) == [True], "whether it is a duplicate shows later"
    bench.bring_all_in()
    with api.engine.connect() as conn:
        rows = conn.execute(sa.text("SELECT encode(digest, 'hex'), arrived_at FROM inbox ORDER BY id")).all()
    assert [tuple(row) for row in rows] == [(one.observation.digest, at) for one in entries]
    assert lane.decode(msgspec_of(entries[0])) == entries[0]


def test_entries_both_stored_and_spooled_are_stored_once(api: Api, bench: Bench) -> None:
    """A kill between the two steps leaves an entry in the inbox and in the spool."""
    lane = events_lane(bench.spooling, api.services)
    entries = [Arrival(observation(number, datetime.now(UTC))) for number in range(5)]
    assert lane.submit(entries[:3]).result(60) == [True] * 3
    bench.database.failed("away")
    lane.put(entries)
    bench.bring_all_in()
    with api.engine.connect() as conn:
        rows = conn.execute(sa.text("SELECT encode(digest, 'hex') FROM inbox ORDER BY id")).scalars().all()
    assert rows == [one.observation.digest for one in entries]


def msgspec_of(arrival: Arrival) -> bytes:

    return msgspec.json.encode(arrival)


def test_step_times_come_back_as_they_went_and_late_ones_are_counted(api: Api, bench: Bench) -> None:
    lane = steps_lane(bench.spooling, api.services, bench.losses)
    sample = {"step": 5, "rank": 1, "step_s": 1.5, "node": "gpu0001"}
    body = msgspec.json.encode({"job": "4711", "restart": 2, "samples": [sample]})
    now = datetime.now(UTC)
    old = now - timedelta(minutes=16)
    bench.database.failed("away")
    for arrived in (now, old):
        lane.put(step_batches(body, lambda *_: True, arrived, cluster=CLUSTER).batches)
    bench.bring_all_in()
    reader = api.samples
    _, batches = reader.new()
    assert [(one.job, one.restart, one.arrived_at) for one in batches] == [("4711", 2, now)]
    assert batches[0].step_s.tolist() == [1.5] and batches[0].nodes == ("gpu0001",)
    bench.losses.flush()
    assert [(one.source, one.reason, one.count) for one in bench.book.counted_losses] == [
        ("step-times", LossReason.late, 1)
    ]
