"""Upgrades a database to this version's tables. One linear history in `migrations/`."""

from collections.abc import Callable, Sequence
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from healer import data_folder
from healer.adapters.postgres import roles

#: Advisory lock that serialises upgrades ("healer m" as a number).
_LOCK = 0x6865616C6572206D


class MigrationError(Exception):
    """The database cannot be upgraded. One sentence for people."""


def migrations_folder() -> Path:
    """`migrations/` of the checkout, or the copy inside an installed package."""
    folder = data_folder("migrations")
    if (folder / "env.py").exists():
        return folder
    raise MigrationError("healer's migrations are not installed beside it: the installation is incomplete.")


def head() -> str:
    """The latest revision of this version of healer."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    if revision is None:
        raise MigrationError("there are no migrations: the installation is incomplete.")
    return revision


def current(connection: sa.Connection) -> str | None:
    """The revision of the database; None for an empty one."""
    return MigrationContext.configure(connection).get_current_revision()


def upgrade(
    engine: sa.Engine, *, refused: Callable[[Sequence[str]], None] = lambda _: None
) -> tuple[str | None, str]:
    """Upgrades to head and grants the parts' roles their rights, in one transaction, under a lock. Returns
    (revision before, revision after).

    `refused` gets the statements that make roles where this login may not: an administrator executes them,
    and until the next upgrade nothing is granted.

    Raises MigrationError if the database was created by a newer healer.
    """
    config = _config()
    revisions = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    with engine.begin() as connection:
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        before = current(connection)
        if before is not None and before not in revisions:
            raise MigrationError(
                f"the database stands at revision {before}, which this healer does not know: it was made by "
                "a newer one."
            )
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        after = current(connection)
        statements = roles.bring_up(connection)
    if statements:
        refused(statements)
    assert after is not None
    return before, after


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    return config
