"""`healer backup`: a consistent dump, rules and keys in one file, while healer runs."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from healer import __version__
from healer.adapters.postgres import audit_rows, migrate
from healer.adapters.postgres.engine import make_engine
from healer.adapters.postgres.node_rows import cluster_names
from healer.adapters.postgres.roles import BROKER
from healer.adapters.postgres.tables import SAMPLE_SLOTS
from healer.adapters.signing import CHECKPOINT_FILE, KEY_FILE, PUBLIC_FILE
from healer.adapters.token_key import KEY_FILE as TOKEN_KEY_FILE
from healer.backups.archive import DUMP, FORMAT, KEYS, Manifest, Writer, writing
from healer.backups.clients import access, clients_for, first_error
from healer.backups.sealed_keys import SealedKeys, seal_keys
from healer.model import audit_record
from healer.model.run import BACKED_UP, BACKUP
from healer.model.vocabulary import UserError
from healer.text import Said, say

WITNESSES = "witnesses"
CONFIG_FILE = "healer.toml"
_PORTION = 1 << 20


class BackupFailed(UserError):
    """No backup was made. One sentence for people."""


class Source(NamedTuple):
    """What a backup is taken of. `url`: the database, as its owner. `rules`: the site's own, if it has any.
    `elsewhere`: files of settings that are not in a backup."""

    url: str
    data_dir: Path
    published: Path
    token_key: Path
    rules: Path | None
    config: Path | None
    elsewhere: Sequence[str] = ()


class _Facts(NamedTuple):
    revision: str
    release: int
    version: str
    taken_at: datetime
    table_bytes: int
    database_bytes: int
    clusters: list[str]


def make_backup(
    source: Source,
    target: Path,
    passphrase: bytes | None,
    *,
    by: str,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Manifest:
    """Writes `target`; without a passphrase it has no keys. `progress` gets bytes written, and at most how
    many there will be. Raises BackupFailed or BackupUnusable; then there is no new file."""
    db = make_engine(source.url, name="healer backup", pool_size=1)
    try:
        facts = _look(db)
        _check_space(target, facts.table_bytes)
        with writing(target) as writer:
            for name, path in _audit_files(source):  # before the snapshot, which then has all of them
                writer.add(name, path.read_bytes())
            for name, path in _rule_files(source.rules):
                writer.add(name, path.read_bytes())
            writer.add_stream(DUMP, lambda take: _dump(source.url, facts, take, progress))
            keys = _key_files(source)
            if passphrase is not None:
                found = {name: path.read_bytes() for name, path in keys.items() if path.exists()}
                writer.add(KEYS, seal_keys(SealedKeys(files=found, members={**writer.members}), passphrase))
            missing = [*source.elsewhere, *_not_in_it(keys, passphrase)]
            manifest = _manifest(facts, missing, writer)
            writer.finish(manifest)
        _record(db, facts, target, manifest, by)
    except DBAPIError as error:
        raise BackupFailed(
            say("backups.database_does_answer", why=" ".join(str(error.orig).split()))
        ) from None
    except OSError as error:
        raise BackupFailed(
            say("backups.cannot_read", path=str(error.filename or target), why=error.strerror)
        ) from None
    finally:
        db.dispose()
    return manifest


def _look(db: sa.Engine) -> _Facts:
    asked = sa.text(
        "SELECT current_setting('server_version_num')::int / 10000, current_setting('server_version'),"
        " clock_timestamp(), pg_database_size(current_database()),"
        " (SELECT coalesce(sum(pg_table_size(oid)), 0) FROM pg_class"
        "  WHERE relkind = 'r' AND relname NOT LIKE 'samples\\_%')::bigint"
    )
    with db.connect() as conn:
        revision = migrate.current(conn)
        if revision is None:
            raise BackupFailed(say("backups.database_empty_there_nothing"))
        release, version, now, size, tables = conn.execute(asked).one()
        return _Facts(revision, release, version, now, tables, size, sorted(cluster_names(conn)))


def _check_space(target: Path, wanted: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if free < wanted:
        raise BackupFailed(
            say(
                "backups.has_mb_free_backup",
                parent=str(target.parent),
                free=free / 1000000.0,
                wanted=wanted / 1000000.0,
            )
        )


def _audit_files(source: Source) -> Iterator[tuple[str, Path]]:
    """The positions at the witnesses first: none may be beyond the end of the checkpoints."""
    folder = source.data_dir / WITNESSES
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not path.suffix:
            yield f"audit/{WITNESSES}/{path.name}", path
    for name in (CHECKPOINT_FILE, PUBLIC_FILE):
        if (source.published / name).exists():
            yield f"audit/{name}", source.published / name


def _rule_files(folder: Path | None) -> Iterator[tuple[str, Path]]:
    if folder is not None:
        files = (path for path in sorted(folder.rglob("*")) if path.is_file())
        for path in files:
            # A name that is no UTF-8 has no place in the manifest.
            name = os.fsencode(path.relative_to(folder)).decode("utf-8", "backslashreplace")
            yield f"rules/{name}", path


def _dump(
    url: str, facts: _Facts, take: Callable[[bytes], None], progress: Callable[[int, int], None]
) -> None:
    clients, reached = clients_for(facts.release), access(url, "healer backup")
    without = [f"--exclude-table-data=public.samples_{slot}" for slot in range(SAMPLE_SLOTS)]
    command = [
        *(clients.folder / "pg_dump", "--format=custom", "--compress=3", "--no-owner", "--no-privileges"),
        *(f"--exclude-schema={BROKER}", *without, "--lock-wait-timeout=60s", f"--dbname={reached.conninfo}"),
    ]
    done = 0
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=reached.environ) as dumping:
            assert dumping.stdout is not None
            try:
                while portion := dumping.stdout.read(_PORTION):
                    take(portion)
                    done += len(portion)
                    progress(done, facts.table_bytes)
            except BaseException:
                dumping.kill()
                raise
        if dumping.returncode:
            errors.seek(0)
            raise BackupFailed(_why(first_error(errors.read())))


def _why(words: Said) -> Said:
    no_right = "permission denied" in words
    return say("backups.pg_dump_needs_owner" if no_right else "backups.pg_dump_failed", why=words)


def _key_files(source: Source) -> dict[str, Path]:
    keys = {KEY_FILE: source.data_dir / KEY_FILE, TOKEN_KEY_FILE: source.token_key}
    return keys | ({CONFIG_FILE: source.config} if source.config is not None else {})


def _not_in_it(keys: dict[str, Path], passphrase: bytes | None) -> list[str]:
    return [f"{name} ({path})" for name, path in keys.items() if passphrase is None or not path.exists()]


def _manifest(facts: _Facts, missing: list[str], writer: Writer) -> Manifest:
    return Manifest(
        healer_backup=FORMAT,
        healer=__version__,
        revision=facts.revision,
        clusters=facts.clusters,
        taken_at=facts.taken_at,
        postgres=facts.version,
        database_bytes=facts.database_bytes,
        missing=missing,
        members=writer.members,
    )


def _record(db: sa.Engine, facts: _Facts, target: Path, manifest: Manifest, by: str) -> None:
    cluster = next(iter(facts.clusters), "installation")
    data = {"file": str(target), "sha256": manifest.members[DUMP].sha256, "keys": KEYS in manifest.members}
    with db.begin() as conn:
        now = conn.scalar(sa.select(sa.func.clock_timestamp()))
        assert isinstance(now, datetime)
        audit_rows.append(conn, audit_record(cluster, now, by, BACKED_UP, BACKUP, **data))
