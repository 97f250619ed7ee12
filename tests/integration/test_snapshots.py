"""Slurm's picture in PostgreSQL: what is read back is never older than it says."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import msgspec
import psycopg
import pytest
import sqlalchemy as sa

from healer.adapters.postgres.engine import alone
from healer.adapters.postgres.node_rows import PostgresSnapshots
from healer.adapters.postgres.tables import snapshots
from healer.model import Controller, SlurmJob, SlurmNode, SlurmSnapshot, Trouble
from tests.support.ledgers import lock_waits
from tests.support.wait import wait_until

START = datetime(2026, 11, 20, 3, tzinfo=UTC)
CLUSTER = "pod1"


def picture(seconds: float, *state: str) -> SlurmSnapshot:
    nodes = {"gpu0001": SlurmNode(name="gpu0001", state=state or ("IDLE",))}
    return SlurmSnapshot(cluster=CLUSTER, taken_at=START + timedelta(seconds=seconds), nodes=nodes)


def stored(database: sa.Engine) -> tuple[int, datetime, bytes]:
    with database.connect() as conn:
        row = conn.execute(
            sa.select(snapshots.c.version, snapshots.c.taken_at, snapshots.c.body).where(
                snapshots.c.cluster == CLUSTER
            )
        ).one()
    return row.version, row.taken_at, row.body


def test_unchanged_snapshot_only_gets_a_new_time(fresh_database: sa.Engine) -> None:
    writer, reader = PostgresSnapshots(fresh_database), PostgresSnapshots(fresh_database)
    writer.put(picture(0))
    first = stored(fresh_database)
    writer.put(picture(2))
    version, taken_at, body = stored(fresh_database)
    assert (version, body) == (first[0], first[2])
    assert taken_at == START + timedelta(seconds=2)
    assert reader.latest(CLUSTER) == picture(2)


def test_a_body_that_a_crash_lost_is_not_shown_as_fresh(fresh_database: sa.Engine) -> None:
    writer, reader = PostgresSnapshots(fresh_database), PostgresSnapshots(fresh_database)
    writer.put(picture(0))
    version, taken_at, body = stored(fresh_database)
    writer.put(picture(2, "IDLE", "DRAIN"))
    with fresh_database.begin() as conn:  # the server comes back without its last commit
        conn.execute(sa.update(snapshots).values(version=version, taken_at=taken_at, body=body))
    assert reader.latest(CLUSTER) == picture(0)
    writer.put(picture(4, "IDLE", "DRAIN"))
    assert reader.latest(CLUSTER) == picture(4, "IDLE", "DRAIN")


def test_a_version_is_never_used_again(fresh_database: sa.Engine) -> None:
    """A reader keeps the body of the version it read; the crash may have taken that version with it."""
    writer, reader = PostgresSnapshots(fresh_database), PostgresSnapshots(fresh_database)
    writer.put(picture(0))
    version, taken_at, body = stored(fresh_database)
    writer.put(picture(2, "DOWN"))
    assert reader.latest(CLUSTER) == picture(2, "DOWN")
    with fresh_database.begin() as conn:
        conn.execute(sa.update(snapshots).values(version=version, taken_at=taken_at, body=body))
    PostgresSnapshots(fresh_database).put(picture(4, "IDLE", "DRAIN"))
    assert reader.latest(CLUSTER) == picture(4, "IDLE", "DRAIN")


def test_a_row_that_is_gone_is_written_again(fresh_database: sa.Engine) -> None:
    writer = PostgresSnapshots(fresh_database)
    writer.put(picture(0))
    with fresh_database.begin() as conn:
        conn.execute(sa.delete(snapshots))
    writer.put(picture(2))
    assert writer.latest(CLUSTER) == picture(2)


def test_two_pollers_never_date_each_others_picture(fresh_database: sa.Engine) -> None:
    one, other = PostgresSnapshots(fresh_database), PostgresSnapshots(fresh_database)
    reader = PostgresSnapshots(fresh_database)
    one.put(picture(0))
    other.put(picture(1, "DOWN"))
    one.put(picture(2))
    assert reader.latest(CLUSTER) == picture(2)
    other.put(picture(3, "DOWN"))
    assert reader.latest(CLUSTER) == picture(3, "DOWN")


def test_a_poller_that_was_held_up_replaces_no_later_picture(fresh_database: sa.Engine) -> None:
    held_up, other = PostgresSnapshots(fresh_database), PostgresSnapshots(fresh_database)
    held_up.put(picture(0))
    other.put(picture(30, "IDLE", "DRAIN"))
    held_up.put(picture(2, "DOWN"))
    assert other.latest(CLUSTER) == picture(30, "IDLE", "DRAIN")
    held_up.put(picture(32))
    assert other.latest(CLUSTER) == picture(32)


def test_a_later_picture_that_is_just_being_stored_is_not_replaced_by_an_earlier_one(
    fresh_database: sa.Engine,
) -> None:
    PostgresSnapshots(fresh_database).put(picture(0))
    version, newest = 7, START + timedelta(seconds=4)
    with (
        ThreadPoolExecutor(1) as pool,
        fresh_database.connect() as conn,
        alone(fresh_database).connect() as looking,
    ):
        conn.execute(sa.update(snapshots).values(version=version, taken_at=newest))
        late = pool.submit(PostgresSnapshots(fresh_database).put, picture(2, "DOWN"))
        wait_until(lambda: lock_waits(looking) == 1, 20, what="the late writer waits")
        conn.commit()
        late.result(20)
    assert stored(fresh_database)[:2] == (version, newest)


def test_a_picture_of_a_clock_that_was_ahead_is_replaced(fresh_database: sa.Engine) -> None:
    ahead = (datetime.now(UTC) - START).total_seconds() + 3600
    PostgresSnapshots(fresh_database).put(picture(ahead))
    writer = PostgresSnapshots(fresh_database)
    writer.put(picture(2, "DOWN"))
    assert writer.latest(CLUSTER) == picture(2, "DOWN")


@pytest.mark.parametrize("steps", [(0, -3600, -3598)])
def test_a_clock_that_was_set_back_stops_nothing(fresh_database: sa.Engine, steps: tuple[int, ...]) -> None:
    writer = PostgresSnapshots(fresh_database)
    for seconds in steps:
        writer.put(picture(seconds))
        assert writer.latest(CLUSTER) == picture(seconds)


def test_a_changed_body_survives_a_crash_right_after(fresh_database: sa.Engine) -> None:
    """Its commit waits for the disk: only the moment alone may be lost."""
    settings: list[str] = []

    @sa.event.listens_for(fresh_database, "commit")
    def _(conn: sa.Connection) -> None:
        settings.append(conn.execute(sa.text("SHOW synchronous_commit")).scalar_one())

    writer = PostgresSnapshots(fresh_database)
    writer.put(picture(0))
    writer.put(picture(2))
    assert settings == ["on", "off"]


def with_jobs(seconds: float, *jobs: str) -> SlurmSnapshot:
    shown = {job: SlurmJob(id=job, state="PENDING") for job in jobs}
    return msgspec.structs.replace(picture(seconds), jobs=shown)


def test_a_reader_keeps_the_mapping_of_nodes_while_only_jobs_come_and_go(fresh_database: sa.Engine) -> None:
    writer, reader = PostgresSnapshots(fresh_database), PostgresSnapshots(fresh_database)
    writer.put(with_jobs(0, "1"))
    first = reader.latest(CLUSTER)
    writer.put(with_jobs(2, "1", "2"))
    second = reader.latest(CLUSTER)
    assert first is not None and second is not None
    assert second.nodes is first.nodes
    assert set(second.jobs) == {"1", "2"}


def test_a_reader_keeps_the_nodes_that_did_not_change(fresh_database: sa.Engine) -> None:
    writer, reader = PostgresSnapshots(fresh_database), PostgresSnapshots(fresh_database)
    other = {"gpu0002": SlurmNode(name="gpu0002", state=("IDLE",))}
    seen = []
    for seconds, state in ((0, "IDLE"), (2, "DOWN")):
        shown = picture(seconds, state)
        writer.put(msgspec.structs.replace(shown, nodes=shown.nodes | other))
        seen.append(reader.latest(CLUSTER))
    first, second = seen
    assert first is not None and second is not None
    assert second.nodes["gpu0001"].state == ("DOWN",)
    assert second.nodes["gpu0002"] is first.nodes["gpu0002"]


def test_pitfall_21_snapshot_that_slurm_calls_unchanged_only_gets_a_new_time(
    fresh_database: sa.Engine,
) -> None:
    """An adapter hands the very mappings back; what they hold is not looked at again."""
    writer, reader = PostgresSnapshots(fresh_database), PostgresSnapshots(fresh_database)
    shown = with_jobs(0, "1")
    writer.put(shown)
    before = stored(fresh_database)
    writer.put(msgspec.structs.replace(shown, taken_at=START + timedelta(seconds=2)))
    after = stored(fresh_database)
    assert (after[0], after[2]) == (before[0], before[2])
    assert reader.latest(CLUSTER) == with_jobs(2, "1")
    with fresh_database.begin() as conn:
        conn.execute(sa.delete(snapshots))
    writer.put(msgspec.structs.replace(shown, taken_at=START + timedelta(seconds=4)))
    assert reader.latest(CLUSTER) == with_jobs(4, "1")


def test_controller_state_is_the_last_reported_one(fresh_database: sa.Engine) -> None:
    kept = PostgresSnapshots(fresh_database)
    assert kept.controller(CLUSTER) is None
    seen = Controller(
        cluster=CLUSTER, at=START, adapter="rest", host="ctl1", role="backup", version="24.11.5",
        answer_s=0.25,
        threads=3, agent_queue=0, dbd_queue=12, fallbacks=("cli: scontrol is not installed.",),
        since={Trouble.backup: START},
    )  # fmt: skip
    kept.put_controller(seen)
    assert PostgresSnapshots(fresh_database).controller(CLUSTER) == seen
    later = msgspec.structs.replace(seen, at=START + timedelta(seconds=2), role="primary", since={})
    kept.put_controller(later)
    assert kept.controller(CLUSTER) == later
    assert kept.controller("pod2") is None


def test_pages_are_notified_only_when_the_controller_state_changed(fresh_database: sa.Engine) -> None:
    kept = PostgresSnapshots(fresh_database)
    seen = Controller(cluster=CLUSTER, at=START, answer_s=0.1)
    with fresh_database.connect() as listening:
        raw: psycopg.Connection = listening.connection.driver_connection  # type: ignore[assignment]
        raw.autocommit = True
        raw.execute("LISTEN healer_events")
        kept.put_controller(seen)
        kept.put_controller(msgspec.structs.replace(seen, answer_s=0.2))
        kept.put_controller(msgspec.structs.replace(seen, answer_s=9.0, since={Trouble.slow: START}))
        kept.put_controller(msgspec.structs.replace(seen, answer_s=9.1, since={Trouble.slow: START}))
        notices = [json.loads(one.payload) for one in raw.notifies(timeout=5, stop_after=2)]
        assert [(one["kind"], one["data"]) for one in notices] == [("fleet", {"cluster": CLUSTER})] * 2
        assert list(raw.notifies(timeout=0)) == []
