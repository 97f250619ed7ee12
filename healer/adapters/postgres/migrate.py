"""Upgrades a database to this version's tables. One linear history in `migrations/`.

Each file of `migrations/versions` is named `REVISION_topic.py`; revisions are in the order of these names.
Alembic, whose import takes half a second, is only needed where something is to be upgraded.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import sqlalchemy as sa

from healer import data_folder
from healer.adapters.postgres import roles

#: Advisory lock that serialises upgrades ("healer m" as a number).
_LOCK = 0x6865616C6572206D
#: Begins the revision of a database that `healer restore` has loaded and not finished.
RESTORING = "restoring-"


class MigrationError(Exception):
    """The database cannot be upgraded. One sentence for people."""


def migrations_folder() -> Path:
    """`migrations/` of the checkout, or the copy inside an installed package."""
    folder = data_folder("migrations")
    if (folder / "env.py").exists():
        return folder
    raise MigrationError("healer's migrations are not installed beside it: the installation is incomplete.")


def revisions() -> list[str]:
    """The revisions that this version of healer knows, the latest at the end."""
    found = sorted(
        path.name.partition("_")[0] for path in (migrations_folder() / "versions").glob("[0-9]*.py")
    )
    if not found:
        raise MigrationError("there are no migrations: the installation is incomplete.")
    return found


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
    """Upgrades to head and grants the parts' roles their rights, in one transaction, under a lock. Returns
    (revision before, revision after).

    `refused` gets the statements that make roles where this login may not: an administrator executes them,
    and until the next upgrade nothing is granted.

    Raises MigrationError if the database was created by a newer healer.
    """
    with engine.begin() as connection:
        before, after, statements = upgrade_within(connection)
    if statements:
        refused(statements)
    return before, after


def upgrade_within(connection: sa.Connection) -> tuple[str | None, str, list[str]]:
    """`upgrade` in the caller's transaction: the revisions, and the statements for an administrator."""
    all_known = revisions()
    connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    before = current(connection)
    if before is not None and before.startswith(RESTORING):
        raise MigrationError("a restore into this database was cut off: run `healer restore` again.")
    if before is not None and before not in all_known:
        raise MigrationError(
            f"the database stands at revision {before}, which this healer does not know: it was made by "
            "a newer one."
        )
    if before != all_known[-1]:
        _upgrade(connection)
    return before, all_known[-1], roles.bring_up(connection)


def _upgrade(connection: sa.Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
