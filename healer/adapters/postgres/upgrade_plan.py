"""What an upgrade of the database would do, read from the SQL of its migrations; nothing is changed."""

import io
import re
from collections.abc import Iterator
from typing import NamedTuple

import sqlalchemy as sa

from healer.adapters.postgres import migrate

#: What statements on a table that exists keep others from, by how they begin. The first match counts.
_EFFECTS = (
    (re.compile(r"ALTER TABLE (\w+) .*(?:GENERATED ALWAYS AS|ALTER COLUMN \w+ TYPE)", re.S), "rewritten"),
    (re.compile(r"CREATE (?:UNIQUE )?INDEX (?!CONCURRENTLY)\w+ ON (\w+)"), "indexed"),
    (re.compile(r"(?:UPDATE|DELETE FROM|INSERT INTO) (\w+)"), "changed"),
    (re.compile(r"ALTER TABLE (\w+)"), "altered"),
    (re.compile(r"DROP TABLE (\w+)"), "dropped"),
    (re.compile(r"CREATE TRIGGER .* ON (\w+)", re.S), "altered"),
)
_CREATED = re.compile(r"CREATE TABLE (\w+)")
_COMMENTS = re.compile(r"^--.*$", re.M)
_SIZES = sa.text(
    "SELECT relname, greatest(reltuples, 0)::bigint AS rows, pg_total_relation_size(oid) AS bytes "
    "FROM pg_class WHERE relkind IN ('r', 'p') AND relnamespace = 'public'::regnamespace"
)


class Touched(NamedTuple):
    """An existing table, its size, and the effects on it, in order:
    `rewritten`, `indexed`, `changed` (rows), `altered` (its definition alone), `dropped`."""

    table: str
    rows: int
    bytes: int
    effects: tuple[str, ...]


class Planned(NamedTuple):
    """One migration. `keeps_older`: parts of the version before continue with the tables that it leaves."""

    revision: str
    title: str
    keeps_older: bool
    touched: tuple[Touched, ...]


def plan(connection: sa.Connection) -> list[Planned]:
    """The migrations that `healer db upgrade` would run, in order; empty if there is nothing to do.

    Raises MigrationError as `upgrade` does.
    """
    before = migrate.checked(connection)
    sizes = {row.relname: (row.rows, row.bytes) for row in connection.execute(_SIZES)}
    return [
        Planned(script.revision, script.title, script.keeps_older, tuple(_touched(script.revision, sizes)))
        for script in migrate.pending(before)
    ]


def _touched(revision: str, sizes: dict[str, tuple[int, int]]) -> Iterator[Touched]:
    effects: dict[str, list[str]] = {}
    sql = _sql(revision)
    created = set(_CREATED.findall(sql))
    for statement in sql.split(";\n"):
        for pattern, effect in _EFFECTS:
            found = pattern.match(_COMMENTS.sub("", statement).strip())
            if found:
                table = found[1]
                if table in sizes and table not in created and effect not in effects.setdefault(table, []):
                    effects[table].append(effect)
                break
    for table, done in effects.items():
        if table != "alembic_version":
            yield Touched(table, *sizes[table], tuple(done))


def _sql(revision: str) -> str:
    printed = io.StringIO()
    migrate.print_sql(revision, printed)
    return printed.getvalue()
