"""The database for commands, which choose no adapter themselves: migrations and tokens."""

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from healer import bootstrap
from healer.adapters.postgres import tokens as postgres_tokens
from healer.adapters.postgres.engine import reading
from healer.adapters.postgres.migrate import MigrationError, current, head, is_newer, upgrade
from healer.adapters.postgres.node_rows import cluster_names
from healer.adapters.postgres.token_book import PostgresTokenBook
from healer.adapters.postgres.upgrade_plan import Planned, plan
from healer.adapters.system_clock import SystemClock
from healer.engine.emergency import Emergency
from healer.engine.local_accounts import LocalAccounts
from healer.settings import Settings, SettingsError

#: The login of the embedded database's owner.
OWNER = "healer"

__all__ = [
    "OWNER", "MigrationError", "Planned", "adopt_key", "current", "head", "is_newer", "plan", "upgrade",
]  # fmt: skip


def adopt_key(settings: Settings, engine: sa.Engine) -> None:
    """Keys the digests of tokens that were made before. Raises SettingsError for another key than theirs."""
    try:
        with engine.begin() as conn:
            postgres_tokens.adopt_key(conn, bootstrap.tokens_key(settings), SystemClock().now())
    except postgres_tokens.OtherTokenKey as error:
        raise SettingsError(str(error)) from None


@contextmanager
def tokens(settings: Settings) -> Iterator[PostgresTokenBook]:
    """Raises healer.ports.request_errors.Unavailable when the database does not answer."""
    db = bootstrap.engine(settings, name="healer token", pool_size=1)
    try:
        cluster, key = settings.each()[0].cluster or _only_cluster(db), bootstrap.tokens_key(settings)
        yield PostgresTokenBook(db, cluster, key, provided=bootstrap.has_provider(settings))
    finally:
        db.dispose()


@contextmanager
def emergency(settings: Settings) -> Iterator[Emergency]:
    """Raises healer.ports.request_errors.Unavailable when the database does not answer."""
    db = bootstrap.engine(settings, name="healer break-glass", pool_size=1)
    try:
        yield bootstrap.emergency(settings, db, settings.each()[0].cluster or _only_cluster(db))
    finally:
        db.dispose()


@contextmanager
def accounts(settings: Settings) -> Iterator[LocalAccounts | None]:
    """Raises healer.ports.request_errors.Unavailable when the database does not answer."""
    db = bootstrap.engine(settings, name="healer account", pool_size=1)
    try:
        yield bootstrap.local_accounts(settings, db, settings.each()[0].cluster or _only_cluster(db))
    finally:
        db.dispose()


def _only_cluster(db: sa.Engine) -> str:
    """The cluster whose audit records tokens: the first that Slurm has shown, `installation` before."""
    with reading(db) as conn:
        return next(iter(cluster_names(conn)), "installation")
