"""Upgrades a database to this version's tables. One linear history in `migrations/`.

Each file of `migrations/versions` is named `REVISION_topic.py`; revisions are in the order of these names.
Alembic, whose import takes half a second, is only needed where something is to be upgraded.
"""

import ast
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psycopg
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from healer import data_folder
from healer.adapters.postgres import roles
from healer.model.vocabulary import UserError
from healer.text import say

if TYPE_CHECKING:
    from alembic.config import Config

#: Advisory lock that serialises upgrades ("healer m" as a number).
_LOCK = 0x6865616C6572206D
#: A migration that waits longer for a table is rolled back and tried again, because later requests wait
#: behind it.
LOCK_WAIT_MS = 500
#: In between, the waiting requests continue. After all tries a person must check who holds the table.
_PAUSE_S, _TRIES = 1.0, 300
#: Begins the revision of a database that `healer restore` has loaded and not finished.
RESTORING = "restoring-"


class MigrationError(UserError):
    """The database cannot be upgraded. One sentence for people."""


class Migration(NamedTuple):
    """One file of `migrations/versions`.

    `keeps_older`: the healer before it works with the tables that it leaves. The file says so by
    `keeps_older = True`: it only adds what older code neither needs nor has to fill.
    """

    revision: str
    title: str
    keeps_older: bool


def migrations_folder() -> Path:
    """`migrations/` of the checkout, or the copy inside an installed package."""
    folder = data_folder("migrations")
    if (folder / "env.py").exists():
        return folder
    raise MigrationError(say("setup.s_migrations_are_installed"))


def revisions() -> list[str]:
    """The revisions that this version of healer knows, the latest at the end."""
    return [path.name.partition("_")[0] for path in _files()]


def _files() -> list[Path]:
    found = sorted((migrations_folder() / "versions").glob("[0-9]*.py"))
    if not found:
        raise MigrationError(say("setup.there_are_no_migrations"))
    return found


def migrations() -> list[Migration]:
    """The same with what their files say; without running them, which takes Alembic."""
    return [_read(path) for path in _files()]


@cache
def _read(path: Path) -> Migration:
    tree = ast.parse(path.read_text("utf-8"))
    first, _, _ = (ast.get_docstring(tree) or "").partition("\n\n")
    title = " ".join(first.split()).partition(". ")[0]
    keeps = any(
        isinstance(node, ast.Assign) and ast.unparse(node) == "keeps_older = True" for node in tree.body
    )
    return Migration(path.name.partition("_")[0], title, keeps)


def head() -> str:
    """The latest revision of this version of healer."""
    return revisions()[-1]


def current(connection: sa.Connection) -> str | None:
    """The revision of the database; None for an empty one."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    return connection.scalar(sa.text("SELECT version_num FROM alembic_version"))


def upgrade(
    engine: sa.Engine, *, refused: Callable[[Sequence[str]], None] = lambda _: None
) -> tuple[str | None, str]:
    """Upgrades to head and grants the parts' roles their rights, under a lock. Returns (revision before,
    revision after). An empty database gets all in one transaction. Where there are writers each migration has
    one of its own, so that they wait for a single one at most; what was cut off continues from there.

    `refused` gets the statements that make roles where this login may not: an administrator executes them,
    and until the next upgrade nothing is granted.

    Raises MigrationError if the database was created by a newer healer.
    """
    with _alone(engine):
        with engine.connect() as connection:
            before = checked(connection)
        if before in revisions():
            _bring_up(engine, before)
        with engine.begin() as connection:
            _, after, statements = _finished(connection)
    if statements:
        refused(statements)
    return before, after


def upgrade_within(connection: sa.Connection) -> tuple[str | None, str, list[str]]:
    """`upgrade` in the caller's transaction: the revisions, and the statements for an administrator."""
    connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    return _finished(connection)


def _finished(connection: sa.Connection) -> tuple[str | None, str, list[str]]:
    before = checked(connection)
    if before is not None and before not in revisions():
        return before, before, []
    if pending(before):
        _run(alembic_config(connection=connection), "head")
    return before, head(), roles.bring_up(connection)


@contextmanager
def _alone(engine: sa.Engine) -> Iterator[None]:
    """The session's own lock: a transaction that idles so long would be ended by the server."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.detach()  # the lock never returns to the pool
        connection.execute(sa.text("SELECT pg_advisory_lock(:key)"), {"key": _LOCK})
        try:
            yield
        finally:
            connection.execute(sa.text("SELECT pg_advisory_unlock(:key)"), {"key": _LOCK})


def _bring_up(engine: sa.Engine, before: str) -> None:
    """Each pending migration in a transaction of its own."""
    for left in range(_TRIES if pending(before) else 0, 0, -1):
        with engine.connect() as connection:
            connection.detach()  # its setting goes with it
            connection.exec_driver_sql(f"SET lock_timeout = {LOCK_WAIT_MS}")
            connection.commit()
            try:
                _run(alembic_config(connection=connection, apart=True), "head")
            except OperationalError as error:
                if not isinstance(error.orig, psycopg.errors.LockNotAvailable):
                    raise
                connection.rollback()
                if left == 1:
                    revision = str(current(connection))
                    raise MigrationError(say("setup.tables_are_in_use", revision=revision)) from error
            else:
                return
        time.sleep(_PAUSE_S)


def checked(connection: sa.Connection) -> str | None:
    """The database's revision, which this healer can work with or upgrade. Raises MigrationError."""
    revision = current(connection)
    if revision is not None and revision.startswith(RESTORING):
        raise MigrationError(say("setup.restore_into_database_was"))
    if revision is not None and revision not in revisions() and not is_newer(connection, revision):
        raise MigrationError(say("setup.database_at_unknown_revision", revision=revision))
    return revision


def require_tables(engine: sa.Engine) -> None:
    """Raises MigrationError for tables that this healer does not work with: a part would act on what it
    misreads. A database that does not answer passes, because a part waits for it."""
    try:
        with engine.connect() as connection:
            revision = checked(connection)
    except SQLAlchemyError:
        return
    if revision is None or revision < head():
        raise MigrationError(
            say("setup.tables_are_older", revision=revision or say("doctor.none"), needed=head())
        )


def pending(before: str | None) -> list[Migration]:
    """The migrations that a database at this revision lacks."""
    return [migration for migration in migrations() if before is None or migration.revision > before]


def is_newer(connection: sa.Connection, revision: str) -> bool:
    """Whether a newer healer made the tables, and says that this one works with them: so one version can be
    taken back, and parts of two versions run side by side during an upgrade."""
    oldest = connection.scalar(sa.text("SELECT obj_description('alembic_version'::regclass, 'pg_class')"))
    return revision not in revisions() and oldest is not None and oldest <= head()


def note_oldest(connection: sa.Connection, reached: str) -> None:
    """Records the oldest revision whose healer works with the tables of `reached`, where an older healer
    finds it."""
    every = [migration for migration in migrations() if migration.revision <= reached]
    oldest = every[-1].revision
    for migration, before in zip(every[:0:-1], every[-2::-1], strict=True):
        if not migration.keeps_older:
            break
        oldest = before.revision
    connection.exec_driver_sql(f"COMMENT ON TABLE alembic_version IS '{oldest}'")


def print_sql(revision: str, out: StringIO) -> None:
    """Prints the statements of one migration, and runs none."""
    every = revisions()
    before = every[every.index(revision) - 1] if revision != every[0] else "base"
    _run(alembic_config(out=out), f"{before}:{revision}", sql=True)


def alembic_config(
    *, connection: sa.Connection | None = None, out: StringIO | None = None, apart: bool = False
) -> "Config":
    """For Alembic on `connection`, or to print SQL to `out`. `apart`: it commits after each migration."""
    from alembic.config import Config

    config = Config(output_buffer=out) if out else Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.attributes |= {"connection": connection, "apart": apart, "applied": note_oldest}
    return config


def _run(config: "Config", revision: str, *, sql: bool = False) -> None:
    from alembic import command

    command.upgrade(config, revision, sql=sql)
