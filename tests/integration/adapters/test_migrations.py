"""The migrations and `tables.py` say the same; a database is upgraded by one at a time, never backwards."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.script import ScriptDirectory

from healer.adapters.postgres import migrate
from healer.adapters.postgres.loops import try_lead
from healer.adapters.postgres.tables import metadata
from healer.adapters.postgres.upgrade_plan import plan
from tests.support.processes import NOT_ROOT, clean_environ
from tests.support.wait import wait_until

_COLUMNS = """
    SELECT table_name, column_name, data_type, is_nullable, column_default, is_identity
    FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'alembic_version'
"""
_INDEXES = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'alembic_version'"
_CONSTRAINTS = """
    SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text <> 'alembic_version'
"""


def _shape(engine: sa.Engine) -> set[tuple[object, ...]]:
    with engine.connect() as connection:
        return {
            tuple(row)
            for query in (_COLUMNS, _INDEXES, _CONSTRAINTS)
            for row in connection.execute(sa.text(query))
        }


def test_migrations_build_the_tables_that_the_code_uses(
    empty_database: sa.Engine, fresh_database: sa.Engine
) -> None:
    metadata.create_all(empty_database)
    by_code, by_migrations = _shape(empty_database), _shape(fresh_database)
    assert by_migrations - by_code == set(), "only the migrations have it"
    assert by_code - by_migrations == set(), "only tables.py has it"


def test_upgrade_says_where_it_came_from_and_a_second_one_changes_nothing(empty_database: sa.Engine) -> None:
    assert migrate.upgrade(empty_database) == (None, migrate.head())
    assert migrate.upgrade(empty_database) == (migrate.head(), migrate.head())


def test_migration_file_names_give_revisions_in_order() -> None:
    scripts = ScriptDirectory.from_config(migrate.alembic_config())
    assert migrate.revisions() == [one.revision for one in scripts.walk_revisions()][::-1]
    assert migrate.head() == scripts.get_current_head()


def test_two_upgrades_at_once_take_turns(empty_database: sa.Engine) -> None:
    results: list[tuple[str | None, str]] = []
    threads = [
        threading.Thread(target=lambda: results.append(migrate.upgrade(empty_database))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(before is None for before, _ in results) == [False, True]


def _made_by_newer(database: sa.Engine, works_with: str) -> None:
    with database.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
        connection.exec_driver_sql(f"COMMENT ON TABLE alembic_version IS '{works_with}'")


def test_a_database_of_a_newer_healer_is_refused_and_left_alone(fresh_database: sa.Engine) -> None:
    _made_by_newer(fresh_database, works_with="9998")
    with pytest.raises(migrate.MigrationError, match="9999"):
        migrate.upgrade(fresh_database)
    with fresh_database.connect() as connection:
        assert migrate.current(connection) == "9999"


def test_the_version_before_works_with_tables_that_keep_it(fresh_database: sa.Engine) -> None:
    """A version is taken back, or its parts run beside newer ones: nothing is changed for that."""
    _made_by_newer(fresh_database, works_with=migrate.head())
    with fresh_database.begin() as connection:
        connection.execute(sa.text("REVOKE SELECT ON runs FROM healer_api"))
    assert migrate.upgrade(fresh_database) == ("9999", "9999")
    with fresh_database.connect() as connection:
        granted = sa.text("SELECT has_table_privilege('healer_api', 'runs', 'SELECT')")
        assert connection.scalar(granted) is False, "rights are the newer healer's"


@pytest.mark.parametrize(
    ("revision", "works_with", "says"),
    [
        ("9999", "9998", "newer healer"),
        ("0044", "0044", "run `healer db upgrade`"),
        (f"{migrate.RESTORING}0044", "0044", "run `healer restore` again"),
    ],
)
def test_no_part_starts_on_tables_that_it_does_not_work_with(
    fresh_database: sa.Engine, revision: str, works_with: str, says: str
) -> None:
    migrate.require_tables(fresh_database)
    with fresh_database.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = :to"), {"to": revision})
        connection.exec_driver_sql(f"COMMENT ON TABLE alembic_version IS '{works_with}'")
    with pytest.raises(migrate.MigrationError, match=says):
        migrate.require_tables(fresh_database)


def test_parts_start_on_newer_tables_that_keep_them_and_without_a_database(
    fresh_database: sa.Engine, tmp_path: Path
) -> None:
    _made_by_newer(fresh_database, works_with=migrate.head())
    migrate.require_tables(fresh_database)
    migrate.require_tables(sa.create_engine(f"postgresql+psycopg:///x?host={tmp_path}"))


@contextmanager
def started(part: str, database: sa.Engine, scratch: Path) -> Iterator[subprocess.Popen[str]]:
    """The part as a process of its own; ended at the end."""
    url = database.url.render_as_string(hide_password=False)
    process = subprocess.Popen(
        [*(NOT_ROOT if part == "api" else ()), sys.executable, "-m", "healer", part],
        env=clean_environ(
            HEALER_DATA_DIR=str(scratch), HEALER_DATABASE_URL=url, HEALER_REDIS_URL="redis://127.0.0.1:1/0",
            HEALER_SLURM_ADAPTERS="sim", HEALER_CLUSTER="pod1", HEALER_SIM_SOCKET=str(scratch / "none"),
        ),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.heavy
@pytest.mark.parametrize("part", ["api", "detector", "scheduler", "worker", "scraper"])
def test_each_part_says_so_and_ends(fresh_database: sa.Engine, scratch: Path, part: str) -> None:
    """An earlier version that is installed again must not act on what it misreads."""
    _made_by_newer(fresh_database, works_with="9998")
    with started(part, fresh_database, scratch) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.splitlines()[-1].startswith("healer: the database is at revision 9999")


@pytest.mark.heavy
def test_a_detector_that_waited_to_take_over_looks_again(fresh_database: sa.Engine, scratch: Path) -> None:
    """The one that leads is stopped for an upgrade; who waits must not lead on what comes of it."""
    leads = fresh_database.connect()
    assert try_lead(leads, "pod1", "detector")
    known = sa.text("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'healer detector%'")
    with started("detector", fresh_database, scratch) as process:

        def waits() -> bool:
            with fresh_database.connect() as connection:
                return bool(connection.scalar(known))

        wait_until(waits, 30, what="it waits")
        _made_by_newer(fresh_database, works_with="9998")
        leads.invalidate()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.splitlines()[-1].startswith("healer: the database is at revision 9999")


@pytest.mark.parametrize(
    ("keep", "oldest"), [((), "0003"), (("0003",), "0002"), (("0002", "0003"), "0001"), (("0002",), "0003")]
)
def test_an_upgrade_notes_the_oldest_healer_that_works_with_its_tables(
    fresh_database: sa.Engine, monkeypatch: pytest.MonkeyPatch, keep: tuple[str, ...], oldest: str
) -> None:
    chain = [migrate.Migration(name, "", name in keep) for name in ("0001", "0002", "0003")]
    monkeypatch.setattr(migrate, "migrations", lambda: chain)
    with fresh_database.begin() as connection:
        migrate.note_oldest(connection, "0003")
        comment = "SELECT obj_description('alembic_version'::regclass, 'pg_class')"
        assert connection.scalar(sa.text(comment)) == oldest


def test_the_plan_names_what_each_migration_holds_up_and_changes_nothing(empty_database: sa.Engine) -> None:
    with empty_database.begin() as connection:
        command.upgrade(migrate.alembic_config(connection=connection), "0035")
    with empty_database.connect() as connection:
        planned = plan(connection)
        assert migrate.current(connection) == "0035"
    assert [migration.revision for migration in planned] == [
        one for one in migrate.revisions() if one > "0035"
    ]
    columns, runs = planned[0], planned[3]
    assert columns.title.startswith("What reports count")
    assert [(table.table, table.effects) for table in columns.touched] == [
        ("incidents", ("rewritten", "indexed"))
    ]
    assert [(table.table, table.effects) for table in runs.touched] == [("runs", ("indexed",))]
    assert planned[2].touched == (), "a table that it makes itself holds up no one"


def test_the_title_of_a_migration_is_a_whole_sentence() -> None:
    """The plan shows it: its first line alone broke off in the middle."""
    [named] = [migration for migration in migrate.migrations() if migration.revision == "0045"]
    assert named.title.endswith("for the states of nodes that hooks ask for")


def test_every_migration_can_be_planned(empty_database: sa.Engine) -> None:
    with empty_database.connect() as connection:
        assert [migration.revision for migration in plan(connection)] == migrate.revisions()


@pytest.mark.parametrize("provided", [False, True])
def test_token_owners_above_viewer_become_local_people_without_a_provider(
    empty_database: sa.Engine, provided: bool
) -> None:
    tokens = [("t1", "admin", "ann"), ("t2", "operator", "ann"), ("t3", "viewer", "vic")]
    tokens += [("t4", "operator", "ann/ci"), ("t5", "operator", "operator-t5"), ("t7", "admin", "healer")]
    tokens += [("t6", "admin", "break-glass (ada)")]
    with empty_database.begin() as connection:
        command.upgrade(migrate.alembic_config(connection=connection), "0036")
        if provided:
            known = "VALUES ('eva', 'https://sso.example', '42', '[]', now(), now())"
            columns = "name, issuer, subject, groups, created_at, seen_at"
            connection.execute(sa.text(f"INSERT INTO people ({columns}) {known}"))
        new = "INSERT INTO tokens (id, digest, role, name, created_at) VALUES "
        for identity, role, name in tokens:
            row = {"id": identity, "digest": identity.encode(), "role": role, "name": name}
            connection.execute(sa.text(f"{new} (:id, :digest, :role, :name, now())"), row)
    migrate.upgrade(empty_database)
    with empty_database.connect() as connection:
        found = connection.execute(sa.text("SELECT name, issuer FROM people")).all()
    assert [tuple(row) for row in found] == [("eva", "https://sso.example") if provided else ("ann", "local")]


def test_evidence_of_earlier_versions_gets_its_source(empty_database: sa.Engine) -> None:
    """They wrote no source for the kernel, and none for what Slurm shows and what healer remembers either."""
    before = {
        "xid-79": [
            {"text": "x", "line": "NVRM: Xid 79"},
            {"text": "again"},
            {"text": "y", "sense": "metrics"},
        ],
        "slurm-drain:kill-task-failed": [{"text": "IDLE+DRAIN: Kill task failed"}],
        "person-drain": [{"text": "IDLE+DRAIN: PSU", "line": ""}],
        "gpu-hot": [{"text": "z", "sense": "metrics"}],
    }
    row = "INSERT INTO incidents (id, cluster, rule, state, severity, opened, updated, doc) VALUES "
    with empty_database.begin() as connection:
        command.upgrade(migrate.alembic_config(connection=connection), "0024")
        for fault, evidence in before.items():
            doc = json.dumps({"fault": fault, "evidence": evidence})
            values = "(:fault, 'pod1', 'r', 'open', 'P3', now(), now(), cast(:doc AS jsonb))"
            connection.execute(sa.text(row + values), {"fault": fault, "doc": doc})
            of = "INSERT INTO findings (incident, at, doc) VALUES (:fault, now(), cast(:doc AS jsonb))"
            connection.execute(sa.text(of), {"fault": fault, "doc": doc})
    assert migrate.upgrade(empty_database) == ("0024", migrate.head())
    for table, name in (("incidents", "id"), ("findings", "incident")):
        with empty_database.connect() as connection:
            rows = connection.execute(sa.text(f"SELECT {name}, doc -> 'evidence' FROM {table}")).all()
        assert {fault: [one["sense"] for one in evidence] for fault, evidence in rows} == {
            "xid-79": ["kernel", "history", "metrics"],
            "slurm-drain:kill-task-failed": ["slurm"],
            "person-drain": ["slurm"],
            "gpu-hot": ["metrics"],
        }
        assert {fault: [one["text"] for one in evidence] for fault, evidence in rows} == {
            fault: [one["text"] for one in evidence] for fault, evidence in before.items()
        }


def brought_to(revision: str, database: sa.Engine) -> None:
    with database.begin() as connection:
        command.upgrade(migrate.alembic_config(connection=connection), revision)


def test_a_table_in_use_delays_the_upgrade_and_no_one_else(
    empty_database: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0042 makes a trigger on a table in which another transaction has written."""
    brought_to("0041", empty_database)
    write = sa.text(
        "INSERT INTO inbox (cluster, kind, digest, arrived_at, doc) VALUES ('a', 'b', :digest, now(), '{}')"
    )
    pauses = []
    with empty_database.connect() as slow:
        slow.execute(write, {"digest": b"slow"})

        def pause(_: float) -> None:
            with empty_database.begin() as other:
                other.exec_driver_sql("SET LOCAL lock_timeout = 100")
                other.execute(write, {"digest": b"other"})
            slow.commit()
            pauses.append(1)

        monkeypatch.setattr(migrate.time, "sleep", pause)
        assert migrate.upgrade(empty_database) == ("0041", migrate.head())
    assert pauses == [1]


def test_an_upgrade_that_was_cut_off_goes_on_from_there(
    empty_database: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought_to("0039", empty_database)
    monkeypatch.setattr(migrate, "_TRIES", 1)
    with empty_database.connect() as slow:
        slow.exec_driver_sql("LOCK TABLE inbox IN ROW EXCLUSIVE MODE")
        with pytest.raises(migrate.MigrationError, match="revision 0041"):
            migrate.upgrade(empty_database)
    with empty_database.connect() as connection:
        noted = sa.text("SELECT obj_description('alembic_version'::regclass, 'pg_class')")
        assert (migrate.current(connection), connection.scalar(noted)) == ("0041", "0041")
    assert migrate.upgrade(empty_database) == ("0041", migrate.head())
