"""Backup and restore for commands: from settings to files, folders and the database."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from healer import bootstrap
from healer.adapters.postgres.engine import make_engine
from healer.adapters.token_key import KEY_FILE as TOKEN_KEY_FILE
from healer.backups import Places, Restored, Source, check_stopped, hold_back_database, seal
from healer.bootstrap.database import OWNER
from healer.embedded.server_alone import server_alone
from healer.settings import ExecutorSettings, Settings, setting_name


def places_of(settings: Settings) -> Places:
    token_key = settings.token_key_file or settings.data_dir / TOKEN_KEY_FILE
    return Places(settings.data_dir, settings.published_audit, token_key)


def source_of(settings: ExecutorSettings) -> Source:
    """Raises EmbeddedError if no healer runs."""
    places, config = places_of(settings), os.environ.get("HEALER_CONFIG", "")
    return Source(
        url=bootstrap.database_url(settings, OWNER),
        data_dir=places.data_dir,
        published=places.published,
        token_key=places.token_key,
        rules=settings.rules_dir,
        config=Path(config).expanduser().absolute() if config else None,
        elsewhere=sorted(_elsewhere(settings, places.token_key)),
    )


def _elsewhere(settings: ExecutorSettings, token_key: Path) -> Iterator[str]:
    """Files that settings name and no backup has: the site's own."""
    files = {name: path for name, path in os.environ.items() if name.endswith("_FILE")}
    for each in (settings, *settings.each()):
        paths = {name: getattr(each, name) for name in each.__struct_fields__}
        files |= {setting_name(name): str(path) for name, path in paths.items() if _is_file(name, path)}
    for name, path in files.items():
        if name.startswith("HEALER_") and path != str(token_key):
            yield f"{name} ({path})"


def _is_file(name: str, value: object) -> bool:
    return isinstance(value, Path) and (name.endswith("_file") or name.startswith("tls_"))


@contextmanager
def database(settings: Settings) -> Iterator[str]:
    """The database that a restore fills, as its owner: as set, else the embedded one, started for it."""
    if settings.database_url is not None:
        yield settings.database_url
        return
    with server_alone(settings.data_dir) as url:
        yield url


def hold_back_in_place(url: str, places: Places, *, by: str) -> Restored:
    """After a recovery by other means: what the database holds is as of its newest audit record. Raises
    NotEmpty while parts are connected."""
    db = make_engine(url, name="healer restore", pool_size=2, statement_timeout_s=0)
    try:
        with db.connect() as conn:
            check_stopped(conn)
            newest = conn.scalar(sa.text("SELECT coalesce(max(at), clock_timestamp()) FROM audit_records"))
        assert newest is not None
        done = hold_back_database(db, newest, by=by, source="a recovery in place")
        seal(db, places)
        return done
    finally:
        db.dispose()
