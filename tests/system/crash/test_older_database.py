"""A data directory of an earlier healer, whose only role was a superuser, goes on after an upgrade."""

import os
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from healer.adapters.postgres import migrate, roles
from healer.embedded import database_logins, postgres
from healer.embedded.postgres import LOGINS, Postgres
from healer.embedded.user import name_of

pytestmark = pytest.mark.crash
SUPER = "SELECT rolname FROM pg_roles WHERE rolsuper"


def lay_older(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database as it was made before: everything belongs to the superuser `healer`."""
    with monkeypatch.context() as before:
        before.setattr(postgres, "SUPERUSER", "healer")
        before.setattr(database_logins, "statements", lambda: ["CREATE DATABASE healer"])
        before.setattr(database_logins, "_HAND_OVER", ())
        before.setattr(database_logins, "_OWNED", "SELECT 1")
        before.setattr(roles, "bring_up", lambda _: [])
        server = Postgres(folder)
        server.start()
        engine = sa.create_engine(server.url)
        migrate.upgrade(engine)
        with engine.begin() as conn:
            assert conn.scalars(sa.text(SUPER)).all() == ["healer"]
            conn.execute(
                sa.text("INSERT INTO beats (cluster, part, at) VALUES ('pod1', 'detector', '2026-01-01')")
            )
        engine.dispose()
        server.stop()


def test_its_superuser_becomes_the_owner_and_nothing_is_lost(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_older(scratch / "data", monkeypatch)
    server = Postgres(scratch / "data", logins={name_of(os.geteuid()): (*LOGINS, "postgres")})
    for _ in range(2):  # and a second start finds nothing to do
        server.start()
        engine = sa.create_engine(server.url)
        assert migrate.upgrade(engine) == (migrate.head(), migrate.head())
        with engine.begin() as conn:
            assert conn.scalars(sa.text(SUPER)).all() == ["postgres"]
            assert conn.scalar(sa.text("SELECT count(*) FROM beats")) == 1
            conn.execute(sa.text("ALTER TABLE beats ADD COLUMN later text"))
            conn.execute(sa.text("ALTER TABLE beats DROP COLUMN later"))
        engine.dispose()
        worker = psycopg.connect(f"host={server.sockets} user=healer_worker dbname=healer")
        with worker:
            worker.execute("UPDATE beats SET at = now()")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                worker.execute("DELETE FROM audit_records")
        worker.close()
        server.stop()


def test_next_start_finishes_an_interrupted_change_of_table_owners(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_older(scratch / "data", monkeypatch)
    server = Postgres(scratch / "data")
    with monkeypatch.context() as cut:
        cut.setattr(database_logins, "_OWNED", "SELECT 1 / 0")
        with pytest.raises(postgres.EmbeddedError, match="division by zero"):
            server.start()
    server.start()
    engine = sa.create_engine(server.url)
    migrate.upgrade(engine)
    with engine.connect() as conn:
        assert conn.scalar(sa.text("SELECT tableowner FROM pg_tables WHERE tablename = 'runs'")) == "healer"
    engine.dispose()
    server.stop()
