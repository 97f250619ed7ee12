"""Slurm's picture in PostgreSQL: what is read back is never older than it says."""

from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from healer.adapters.postgres.snapshots import PostgresSnapshots
from healer.adapters.postgres.tables import snapshots
from healer.model import SlurmNode, SlurmSnapshot

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


def test_an_unchanged_picture_is_only_dated_anew(fresh_database: sa.Engine) -> None:
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
