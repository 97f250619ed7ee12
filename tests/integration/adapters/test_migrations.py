"""The migrations and `tables.py` say the same; a database is upgraded by one at a time, never backwards."""

import json
import threading

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from healer.adapters.postgres import migrate
from healer.adapters.postgres.tables import metadata

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


def test_the_names_of_the_files_tell_their_revisions_in_order() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrate.migrations_folder()))
    scripts = ScriptDirectory.from_config(config)
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


def test_a_database_of_a_newer_healer_is_refused_and_left_alone(fresh_database: sa.Engine) -> None:
    with fresh_database.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(migrate.MigrationError, match="9999"):
        migrate.upgrade(fresh_database)
    with fresh_database.connect() as connection:
        assert migrate.current(connection) == "9999"


@pytest.mark.parametrize("provided", [False, True])
def test_who_had_a_token_above_viewer_is_a_person_where_there_is_no_provider(
    empty_database: sa.Engine, provided: bool
) -> None:
    tokens = [("t1", "admin", "ann"), ("t2", "operator", "ann"), ("t3", "viewer", "vic")]
    tokens += [("t4", "operator", "ann/ci"), ("t5", "operator", "operator-t5"), ("t7", "admin", "healer")]
    tokens += [("t6", "admin", "break-glass (ada)")]
    config = Config()
    config.set_main_option("script_location", str(migrate.migrations_folder()))
    with empty_database.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0036")
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
    config = Config()
    config.set_main_option("script_location", str(migrate.migrations_folder()))
    with empty_database.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0024")
        for fault, told in before.items():
            doc = json.dumps({"fault": fault, "evidence": told})
            values = "(:fault, 'pod1', 'r', 'open', 'P3', now(), now(), cast(:doc AS jsonb))"
            connection.execute(sa.text(row + values), {"fault": fault, "doc": doc})
            of = "INSERT INTO findings (incident, at, doc) VALUES (:fault, now(), cast(:doc AS jsonb))"
            connection.execute(sa.text(of), {"fault": fault, "doc": doc})
    assert migrate.upgrade(empty_database) == ("0024", migrate.head())
    for table, name in (("incidents", "id"), ("findings", "incident")):
        with empty_database.connect() as connection:
            rows = connection.execute(sa.text(f"SELECT {name}, doc -> 'evidence' FROM {table}")).all()
        assert {fault: [one["sense"] for one in told] for fault, told in rows} == {
            "xid-79": ["kernel", "history", "metrics"],
            "slurm-drain:kill-task-failed": ["slurm"],
            "person-drain": ["slurm"],
            "gpu-hot": ["metrics"],
        }
        assert {fault: [one["text"] for one in told] for fault, told in rows} == {
            fault: [one["text"] for one in told] for fault, told in before.items()
        }
