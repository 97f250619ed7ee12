"""Samples, columns, unknown series and checkpoints on a real PostgreSQL."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import sqlalchemy as sa

from healer.adapters.postgres import migrate
from healer.adapters.postgres import samples as postgres_samples
from healer.adapters.postgres.arrivals import REST, PostgresUnknownSeries
from healer.adapters.postgres.inbox import PostgresCheckpoints, PostgresInbox
from healer.adapters.postgres.retention import tidy
from healer.adapters.postgres.sample_reads import PostgresSignalReads
from healer.adapters.postgres.samples import PostgresColumns, PostgresSamples, forget, slot_of
from healer.embedded.postgres import Postgres
from healer.model import Column, Component, Observation, ObservationKind, Part, UnknownSeries
from healer.model.telemetry import UNNAMED_SENDER, Report, StepBatch
from healer.ports.measurements import TooManyColumns
from healer.ports.request_errors import Unavailable
from healer.ports.transactions import LedgerAway
from tests.support.processes import descendants

CLUSTER = "pod1"


def report(number: int, *, node: str = "gpu0001", cluster: str = CLUSTER, age_s: float = 0) -> Report:
    at = datetime.now(UTC) - timedelta(seconds=age_s)
    return Report(
        cluster=cluster,
        node=node,
        at=at,
        arrived_at=at,
        columns=np.array([1, 2], np.int32),
        values=np.array([number, np.nan]),
    )


def steps(number: int, job: str = "4711", age_s: float = 0) -> StepBatch:
    floats: dict[str, Any] = {
        name: np.array([np.nan])
        for name in ("compute_s", "comm_s", "data_s", "work", "loss", "grad_norm")
    }  # fmt: skip
    return StepBatch(
        cluster=CLUSTER,
        job=job,
        restart=1,
        arrived_at=datetime.now(UTC) - timedelta(seconds=age_s),
        nodes=("gpu0001",),
        rank=np.array([3], np.int32),
        step=np.array([number], np.int64),
        at=np.array([1.7e9]),
        node=np.array([0], np.int32),
        gpu=np.array([-1], np.int32),
        stage=np.array([-1], np.int32),
        step_s=np.array([1.5]),
        **floats,
    )


def numbers(reports: list[Report]) -> list[int]:
    return [int(one.values[0]) for one in reports]


@pytest.fixture
def store(fresh_database: sa.Engine) -> Iterator[PostgresSamples]:
    made = PostgresSamples(fresh_database, CLUSTER)
    yield made
    made.close()


def test_stored_samples_come_back_whole_and_once(store: PostgresSamples) -> None:
    put = report(7, node="gpu0002")
    store.put([put, report(8)])
    store.put_steps([steps(120)])
    reports, batches = store.new()
    assert numbers(reports) == [7, 8]
    back = reports[0]
    assert (back.cluster, back.node, back.at, back.arrived_at) == (CLUSTER, "gpu0002", put.at, put.arrived_at)
    assert back.columns.tolist() == [1, 2]
    assert np.isnan(back.values[1])
    assert (batches[0].job, batches[0].restart, batches[0].nodes) == ("4711", 1, ("gpu0001",))
    assert (batches[0].step.tolist(), batches[0].step_s.tolist()) == ([120], [1.5])
    assert store.new() == ([], [])
    store.put([report(9)])
    assert numbers(store.new()[0]) == [9]


def test_samples_from_a_host_whose_clock_is_behind_are_of_now_once_they_are_read_as_they_come(
    store: PostgresSamples,
) -> None:
    """That host replaced the sender's time by its own. Step times may have waited in its spool."""
    began = datetime.now(UTC) - timedelta(seconds=1)
    store.put([report(1, age_s=600)])
    assert store.new()[0][0].arrived_at < began, "what came before the first reading may be old"
    sent = datetime.now(UTC)
    store.put([report(2, age_s=1200), msgspec.structs.replace(report(3, age_s=1200), at=sent), report(4)])
    store.put_steps([steps(120, age_s=1200)])
    (replaced, dated, in_time), (batch,) = store.new()
    assert began < replaced.arrived_at <= datetime.now(UTC)
    assert replaced.at == replaced.arrived_at == dated.arrived_at
    assert dated.at == sent
    assert in_time.at == in_time.arrived_at > dated.arrived_at
    assert batch.arrived_at < began


def test_relay_of_stored_samples_is_read_back_or_unnamed(
    store: PostgresSamples, fresh_database: sa.Engine
) -> None:
    """An earlier version stores no sender, even next to this one during an upgrade."""
    relayed = [msgspec.structs.replace(report(1), relayed_by=by) for by in ("", "relay (a1)", "other (b2)")]
    store.put(relayed)
    assert [one.relayed_by for one in store.new()[0]] == ["", "relay (a1)", "other (b2)"]
    with fresh_database.begin() as conn:
        conn.execute(
            sa.text(
                "INSERT INTO samples (cluster, kind, subject, at, arrived_at, slot, body) "
                "SELECT cluster, kind, 'old', at, arrived_at, slot, body FROM samples WHERE relayed_by = ''"
            )
        )
    (old,) = store.new()[0]
    assert (old.node, old.relayed_by) == ("old", UNNAMED_SENDER)


def test_a_transaction_that_commits_late_is_seen_once(
    store: PostgresSamples, fresh_database: sa.Engine
) -> None:
    """Its rows have lower numbers than rows that were read long before it committed."""
    source = PostgresSamples(fresh_database, CLUSTER)
    source.put([report(1)])
    copy = (
        "INSERT INTO samples (cluster, kind, subject, at, arrived_at, slot, body) "
        "SELECT cluster, kind, 'late', at, arrived_at, slot, body FROM samples WHERE subject = 'gpu0001'"
    )
    store.new()
    with fresh_database.begin() as slow, fresh_database.begin() as slower:
        slow.execute(sa.text(copy))
        slower.execute(sa.text(copy))
        source.put([report(2)])
        assert numbers(store.new()[0]) == [2]
        slow.commit()
        assert [one.node for one in store.new()[0]] == ["late"]
        source.put([report(3)])
        assert numbers(store.new()[0]) == [3]
    assert [one.node for one in store.new()[0]] == ["late"]
    assert store.new() == ([], [])
    source.close()


def test_writers_and_a_reader_at_once_lose_and_double_nothing(fresh_database: sa.Engine) -> None:
    reader = PostgresSamples(fresh_database, CLUSTER)
    done = threading.Event()
    found: list[int] = []

    def write(first: int) -> None:
        store = PostgresSamples(fresh_database, CLUSTER)
        for number in range(first, first + 100):
            store.put([report(number), report(number + 1000)])
        store.close()

    def read() -> None:
        while not done.is_set():
            found.extend(numbers(reader.new()[0]))

    reading = threading.Thread(target=read)
    writing = [threading.Thread(target=write, args=(first,)) for first in (0, 100, 200)]
    for thread in (reading, *writing):
        thread.start()
    for thread in writing:
        thread.join(60)
    done.set()
    reading.join(60)
    found.extend(numbers(reader.new()[0]))
    reader.close()
    assert sorted(found) == sorted([*range(300), *range(1000, 1300)])


def test_the_first_look_is_the_last_15_minutes_of_this_cluster(
    store: PostgresSamples, fresh_database: sa.Engine
) -> None:
    store.put([report(1, age_s=16 * 60), report(2, age_s=14 * 60), report(3), report(4, cluster="pod2")])
    assert numbers(store.new()[0]) == [2, 3]
    store.put([report(5, age_s=30 * 60)])
    assert numbers(store.new()[0]) == [5], "late on arrival, and new all the same"
    reopened = PostgresSamples(fresh_database, CLUSTER)
    assert numbers(reopened.new()[0]) == [2, 3]
    reopened.close()


def test_a_large_look_takes_several_calls(
    store: PostgresSamples, monkeypatch: pytest.MonkeyPatch, fresh_database: sa.Engine
) -> None:
    monkeypatch.setattr(postgres_samples, "CHUNK", 4)
    store.put([report(number) for number in range(10)])
    first, _ = store.new()
    assert numbers(first) == [0, 1, 2, 3]
    PostgresSamples(fresh_database, CLUSTER).put([report(10)])
    rest: list[int] = []
    while reports := store.new()[0]:
        rest += numbers(reports)
    assert rest == list(range(4, 11)) or rest + numbers(store.new()[0]) == list(range(4, 11))


def test_old_slots_are_emptied_and_young_ones_never(
    store: PostgresSamples, fresh_database: sa.Engine
) -> None:
    minutes = (1, 44, 59, 61, 76, 89, 100)
    store.put([report(age, age_s=age * 60) for age in minutes])
    now = datetime.now(UTC)
    young = {slot_of(now - timedelta(minutes=age)) for age in range(-14, 61)}
    emptied = forget(fresh_database, now)
    assert emptied
    assert not young & set(emptied)
    with fresh_database.connect() as conn:
        left = set(
            conn.execute(sa.text("SELECT extract(epoch FROM now() - arrived_at)/60 FROM samples")).scalars()
        )
    assert {1, 44, 59} <= {round(age) for age in left}
    assert 89 not in {round(age) for age in left}
    assert forget(fresh_database, now) == [], "an empty slot is left alone"


@pytest.mark.parametrize("kept", [1, 4])
def test_a_wrong_clock_empties_no_slot_with_young_rows(
    store: PostgresSamples, fresh_database: sa.Engine, kept: int
) -> None:
    store.put([report(age, age_s=age * 60) for age in (14, 1, 0)])
    for hours in (-3, -2, -1, 1, 2, 3):
        assert forget(fresh_database, datetime.now(UTC) + timedelta(hours=hours), kept=kept) == [], hours


def test_emptying_never_makes_writers_wait(store: PostgresSamples, fresh_database: sa.Engine) -> None:
    store.put([report(1, age_s=85 * 60)])
    with fresh_database.begin() as reader:
        assert reader.execute(sa.text("SELECT count(*) FROM samples")).scalar_one() == 1
        assert forget(fresh_database, datetime.now(UTC)) == []
    assert len(forget(fresh_database, datetime.now(UTC))) == 1


def test_a_row_that_cannot_be_read_stops_nothing(store: PostgresSamples, fresh_database: sa.Engine) -> None:
    store.put([report(1), report(2)])
    with fresh_database.begin() as conn:
        conn.execute(sa.text("UPDATE samples SET body = '\\x99' WHERE id = (SELECT min(id) FROM samples)"))
    assert numbers(store.new()[0]) == [2]


def test_pages_read_one_node_and_one_job(fresh_database: sa.Engine, store: PostgresSamples) -> None:
    book = PostgresColumns(fresh_database)
    ids = book.ids([Column("gpu_temp_c", Part(gpu=0)), Column("load1")])
    now = datetime.now(UTC)
    mine = Report(CLUSTER, "gpu0001", now, now, np.array(ids, np.int32), np.array([61.0, 3.1]))
    store.put([mine, report(1, node="gpu0002"), report(2, age_s=3000)])
    store.put_steps([steps(1), steps(2, job="4712")])
    reads = PostgresSignalReads(fresh_database, PostgresColumns(fresh_database))
    found, columns = reads.node_signals(CLUSTER, "gpu0001", now - timedelta(minutes=15))
    assert [one.values.tolist() for one in found] == [[61.0, 3.1]]
    assert columns == {ids[0]: Column("gpu_temp_c", Part(gpu=0)), ids[1]: Column("load1")}
    found, _ = reads.node_signals(CLUSTER, "gpu0001", now - timedelta(minutes=59))
    assert numbers(found) == [2, 61], "oldest first"
    assert [one.step.tolist() for one in reads.job_steps(CLUSTER, "4711", now - timedelta(minutes=1))] == [
        [1]
    ]
    assert reads.node_signals(CLUSTER, "nosuch", now - timedelta(hours=1)) == ([], {})


def test_a_job_s_steps_are_sampled_about_moments(fresh_database: sa.Engine, store: PostgresSamples) -> None:
    store.put_steps([steps(number, age_s=1000 - 10 * number) for number in range(100)])
    store.put_steps([steps(7, job="4712")])
    reads = PostgresSignalReads(fresh_database, PostgresColumns(fresh_database))
    first = datetime.now(UTC) - timedelta(seconds=505)

    def sampled(*after_s: float) -> list[int]:
        moments = [first + timedelta(seconds=seconds) for seconds in after_s]
        return [int(one.step[0]) for one in reads.sampled_steps(CLUSTER, "4711", moments)]

    assert sampled(0) == [50], "none before the first moment"
    assert sampled(0, 100) == [50, 59, 60]
    assert sampled(0, 100, 101, 900) == [50, 59, 60, 99], "each once, and the newest of all"


# --- columns ---


def test_a_column_has_one_number_in_all_processes(fresh_database: sa.Engine) -> None:
    wanted = [Column("power_w", Part(gpu=gpu, link=link)) for gpu in range(8) for link in (None, 0, 1)]
    wanted += [Column("ib_errors", Part(port="mlx5_0/1")), Column("load1")]
    given: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: given.append(PostgresColumns(fresh_database).ids(wanted)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(given) == 4
    assert given[0] == given[1] == given[2] == given[3]
    assert len(set(given[0])) == len(wanted)
    columns = PostgresColumns(fresh_database).columns([*given[0], 10**6])
    assert [columns[one] for one in given[0]] == wanted
    assert 10**6 not in columns


def test_a_full_book_takes_no_more_and_still_knows(fresh_database: sa.Engine) -> None:
    book = PostgresColumns(fresh_database, most=2)
    known = book.ids([Column("a"), Column("b")])
    with pytest.raises(TooManyColumns):
        book.ids([Column("a"), Column("c")])
    other = PostgresColumns(fresh_database, most=2)
    with pytest.raises(TooManyColumns):
        other.ids([Column("c")])
    assert other.ids([Column("b"), Column("a")]) == known[::-1]


# --- unknown series ---


def unknown(name: str, count: int = 1, cluster: str = CLUSTER, at: datetime | None = None) -> UnknownSeries:
    at = at or datetime(2026, 11, 20, tzinfo=UTC)
    return UnknownSeries(
        cluster=cluster, name=name, why="not in the catalogue", count=count, first_seen=at, last_seen=at,
        example={"gpu": "0"},
    )  # fmt: skip


def test_unknown_series_add_up_and_are_bounded(fresh_database: sa.Engine) -> None:
    book = PostgresUnknownSeries(fresh_database, most=3)
    later = datetime(2026, 11, 20, 1, tzinfo=UTC)
    book.add([unknown("b", 2), unknown("a"), unknown("a", 4)])
    book.add([unknown("b", 5, at=later), unknown("x\0y", 3), unknown("z1"), unknown("z2", cluster="pod2")])
    book.add([unknown("z3"), unknown("a")])
    mine = {one.name: one.count for one in book.series([CLUSTER], 100)}
    assert mine == {"b": 7, "a": 6, "x\ufffdy": 3, REST: 2}
    first = book.series([CLUSTER], 1)[0]
    assert (first.first_seen, first.last_seen) == (datetime(2026, 11, 20, tzinfo=UTC), later)
    assert first.example == {"gpu": "0"}
    assert len(book.series(None, 100)) == 5


def test_names_without_a_sender_are_forgotten(fresh_database: sa.Engine, store: PostgresSamples) -> None:
    book = PostgresUnknownSeries(fresh_database)
    now = datetime.now(UTC)
    book.add([unknown("old", at=now - timedelta(days=8)), unknown("young", at=now - timedelta(days=6))])
    store.put([report(1, age_s=85 * 60), report(2)])
    tidy(fresh_database, now)
    assert [one.name for one in book.series(None, 10)] == ["young"]
    with fresh_database.connect() as conn:
        assert conn.execute(sa.text("SELECT count(*) FROM samples")).scalar_one() == 1


# --- checkpoints ---


def checkpoint(restart: int, step: int, *, durable: bool = True, job: str = "4711") -> Observation:
    at = datetime(2026, 11, 20, 3, tzinfo=UTC) - timedelta(seconds=step)
    return Observation(
        digest=os.urandom(32).hex(),
        kind=ObservationKind("checkpoint"),
        component=Component(cluster=CLUSTER, job=job),
        event_at=at,
        arrived_at=at + timedelta(seconds=1),
        data={"restart": restart, "step": step, "path": f"/ckpt/{step}", "durable": durable},
    )


def test_the_newest_durable_checkpoint_is_of_the_latest_life(fresh_database: sa.Engine) -> None:
    reads = PostgresCheckpoints(fresh_database, CLUSTER)
    inbox = PostgresInbox(fresh_database, CLUSTER)
    assert reads.newest_durable("4711") is None
    inbox.add([checkpoint(0, 900), checkpoint(0, 100), checkpoint(0, 950, durable=False)])
    inbox.add([checkpoint(0, 5000, job="4712")])
    found = reads.newest_durable("4711")
    assert found is not None
    assert (found.restart, found.step, found.path) == (0, 900, "/ckpt/900")
    assert found.arrived_at - found.at == timedelta(seconds=1)
    inbox.add([checkpoint(1, 120)])
    newest = reads.newest_durable("4711")
    assert newest is not None
    assert (newest.restart, newest.step) == (1, 120)
    inbox.add([checkpoint(3, 80), checkpoint(0, 30)])
    began = checkpoint(0, 31).arrived_at
    its_own = reads.newest_durable("4711", began)  # Slurm uses the number again, since then
    assert its_own is not None
    assert (its_own.restart, its_own.step) == (0, 30)
    assert PostgresCheckpoints(fresh_database, "pod2").newest_durable("4711") is None


# --- death ---


@pytest.mark.crash
def test_steps_survive_the_servers_death_and_a_reader_starts_over(scratch: Path) -> None:
    server = Postgres(scratch / "data")
    server.start()
    engine = sa.create_engine(server.url)
    migrate.upgrade(engine)
    store = PostgresSamples(engine, CLUSTER)
    try:
        store.put_steps([steps(number) for number in range(20)])
        assert len(store.new()[1]) == 20
        assert server.process is not None
        # Each backend is a session of its own, and would answer for a moment after its parent's death.
        for pid in descendants(server.process.pid) | {server.process.pid}:
            with contextlib.suppress(ProcessLookupError):  # it ended by itself meanwhile
                os.kill(pid, signal.SIGKILL)
        server.process.wait()
        with pytest.raises(Unavailable):
            store.put_steps([steps(99)])
        with pytest.raises(Unavailable):
            store.put([report(99)])
        with pytest.raises(LedgerAway):
            store.new()
        server.start()
        store.put_steps([steps(20)])
        store.put([report(1)])
        reports, batches = store.new()
        assert [int(one.step[0]) for one in batches] == list(range(21))
        assert numbers(reports) == [1]
    finally:
        store.close()
        engine.dispose()
        server.stop()
