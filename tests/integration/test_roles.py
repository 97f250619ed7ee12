"""The table of the parts' rights against what PostgreSQL says: nothing more, nothing less."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from healer.adapters.postgres import migrate, roles
from healer.embedded.postgres import Postgres

pytestmark = pytest.mark.heavy
PRIVILEGES = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")


@pytest.fixture(scope="module")
def owner(postgres_engine: sa.Engine) -> Iterator[sa.Connection]:
    with postgres_engine.connect() as conn:
        yield conn


def on_tables(conn: sa.Connection, role: str) -> dict[str, frozenset[str]]:
    asked = sa.text(
        "SELECT relname, privilege FROM pg_class, unnest(CAST(:privileges AS text[])) AS privilege "
        "WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition "
        "AND has_table_privilege(:role, pg_class.oid, privilege)"
    )
    found: dict[str, set[str]] = {}
    for table, privilege in conn.execute(asked, {"role": role, "privileges": list(PRIVILEGES)}):
        found.setdefault(table, set()).add(privilege)
    return {table: frozenset(found.get(table, ())) for table in roles.tables()}


def on_columns(conn: sa.Connection, role: str) -> set[tuple[str, str]]:
    """Columns that may be updated where the whole table may not."""
    asked = sa.text(
        "SELECT relname, attname FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid AND attnum > 0 "
        "WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT attisdropped "
        "AND NOT has_table_privilege(:role, pg_class.oid, 'UPDATE') "
        "AND has_column_privilege(:role, pg_class.oid, attname, 'UPDATE')"
    )
    return {(table, column) for table, column in conn.execute(asked, {"role": role})}


def read_columns(conn: sa.Connection, role: str) -> set[tuple[str, str]]:
    """Columns that may be read where the whole table may not."""
    asked = sa.text(
        "SELECT relname, attname FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid AND attnum > 0 "
        "WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT attisdropped "
        "AND NOT has_table_privilege(:role, pg_class.oid, 'SELECT') "
        "AND has_column_privilege(:role, pg_class.oid, attname, 'SELECT')"
    )
    return {(table, column) for table, column in conn.execute(asked, {"role": role})}


@pytest.mark.parametrize("part", roles.PARTS)
def test_a_part_may_do_what_the_table_says_and_no_more(owner: sa.Connection, part: str) -> None:
    role = f"healer_{part}"
    wanted = {table: roles.rights(table, part) for table in roles.tables()}
    assert on_tables(owner, role) == {table: whole for table, (whole, _) in wanted.items()}
    assert on_columns(owner, role) == {(t, name) for t, (_, columns) in wanted.items() for name in columns}
    readable = {(t, name) for t in roles.tables() for name in roles.read_columns(t, part)}
    assert read_columns(owner, role) == readable
    assert ("tokens", "digest") not in readable


def test_every_existing_table_is_listed(owner: sa.Connection) -> None:
    rows = owner.execute(
        sa.text(
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace "
            "AND relkind IN ('r', 'p') AND NOT relispartition"
        )
    )
    assert set(rows.scalars()) == set(roles.tables())


def test_no_role_is_more_than_it_needs(owner: sa.Connection) -> None:
    asked = sa.text(
        "SELECT rolname, rolcanlogin FROM pg_roles WHERE rolname LIKE 'healer%' AND NOT "
        "(rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication OR rolbypassrls)"
    )
    logins = {name: can for name, can in owner.execute(asked)}
    assert logins == {role: role != roles.AUDITOR for role in (*roles.ROLES, roles.BROKER)} | {"healer": True}


def test_a_second_upgrade_takes_back_what_was_granted_by_hand(fresh_database: sa.Engine) -> None:
    with fresh_database.begin() as conn:
        conn.execute(sa.text("GRANT DELETE ON audit_records TO healer_api"))
    migrate.upgrade(fresh_database)
    with fresh_database.connect() as conn:
        assert on_tables(conn, "healer_api")["audit_records"] == {"SELECT", "INSERT"}


def test_migration_without_the_right_to_make_roles_reports_statements(
    postgres: Postgres, admin: sa.Connection, empty_database: sa.Engine
) -> None:
    """As on a managed PostgreSQL; here one role is renamed for a moment."""
    admin.execute(sa.text("ALTER ROLE healer_scraper RENAME TO elsewhere"))
    said: list[str] = []
    try:
        migrate.upgrade(empty_database, refused=said.extend)
    finally:
        admin.execute(sa.text("ALTER ROLE elsewhere RENAME TO healer_scraper"))
    assert [statement.split(" LOGIN")[0] for statement in said] == ["CREATE ROLE healer_scraper"]
    with empty_database.connect() as conn:
        assert migrate.current(conn) == migrate.head()
        assert not on_tables(conn, "healer_api")["runs"]
    migrate.upgrade(empty_database)
    with empty_database.connect() as conn:
        assert on_tables(conn, "healer_api")["runs"] == {"SELECT", "INSERT"}
