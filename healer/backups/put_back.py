"""`healer restore`: a backup into a database, with everything held back that would act on the old picture."""

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

from healer.adapters.postgres import migrate, one_time_items
from healer.adapters.postgres.audit_rows import PostgresChain
from healer.adapters.postgres.claims import LedgerParts
from healer.adapters.postgres.engine import make_engine
from healer.adapters.postgres.ledger import PostgresTx
from healer.adapters.postgres.node_rows import PostgresSnapshots, cluster_names
from healer.adapters.signing import CHECKPOINT_FILE, KEY_FILE, PUBLIC_FILE, CheckpointFile, load_signer
from healer.adapters.system_clock import SystemClock
from healer.adapters.token_key import KEY_FILE as TOKEN_KEY_FILE
from healer.audit import Sealer
from healer.backups.archive import DUMP, KEYS, Archive, BackupUnusable
from healer.backups.load_database import NAME, check_target, half_restored, load
from healer.backups.make import CONFIG_FILE, WITNESSES
from healer.backups.sealed_keys import SealedKeys, open_keys
from healer.engine.restored import Restore, hold_back, pause_of
from healer.text import say

#: In the data directory: what a person puts into its place.
FOLDER = "restored"


class Places(NamedTuple):
    """Where the files of an installation are."""

    data_dir: Path
    published: Path
    token_key: Path


class Restored(NamedTuple):
    """`asking`: runs that wait for a person. `ended`: sessions, messages and so on, by kind. `left`: files
    that a person puts into their place. `statements`: what an administrator of the server has to execute."""

    pause: str
    asking: int
    revision: tuple[str | None, str]
    ended: dict[str, int]
    left: list[Path]
    statements: list[str]


class Checked(NamedTuple):
    """A backup that is whole and fits this healer. `keys`: None if it has none."""

    archive: Archive
    keys: SealedKeys | None


def check_backup(archive: Archive, passphrase: bytes | None) -> Checked:
    """Raises BackupUnusable."""
    manifest = archive.manifest
    archive.check()
    if manifest.revision not in migrate.revisions():
        raise BackupUnusable(
            say(
                "backups.was_made_newer_revision",
                path=str(archive.path),
                healer=manifest.healer,
                revision=manifest.revision,
            )
        )
    if KEYS not in manifest.members:
        return Checked(archive, None)
    if passphrase is None:
        raise BackupUnusable(say("backups.has_keys_name_passphrase", path=str(archive.path)))
    keys = open_keys(archive.read(KEYS), passphrase)
    others = {name: member for name, member in manifest.members.items() if name != KEYS}
    if keys.members != others:
        raise BackupUnusable(say("backups.sums_differ", path=str(archive.path)))
    return Checked(archive, keys)


def put_back(
    url: str,
    backup: Checked,
    places: Places,
    *,
    by: str,
    replace: bool,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Restored:
    """Raises NotEmpty, HalfRestored (the database is as before) and MigrationError."""
    archive, keys = backup
    db = make_engine(url, name=NAME, pool_size=2, statement_timeout_s=0)
    try:
        check_target(db, replace=replace)
        load(url, archive.portions(DUMP), archive.manifest.members[DUMP].size, progress)
        left = _write_files(archive, keys, places)
        source = f"{archive.path.name} {archive.manifest.members[DUMP].sha256[:16]}"
        done = hold_back_database(db, archive.manifest.taken_at, by=by, source=source)
        seal(db, places)
        return done._replace(left=left)
    finally:
        db.dispose()


def hold_back_database(db: sa.Engine, backup_at: datetime, *, by: str, source: str) -> Restored:
    """Upgrades a database that was put back and holds back what was in flight, in one transaction. Raises
    MigrationError."""
    with db.begin() as conn:
        if (plain := half_restored(conn)) is not None:
            conn.execute(sa.text("UPDATE alembic_version SET version_num = :plain"), {"plain": plain})
        before, after, statements = migrate.upgrade_within(conn)
        now = conn.scalar(sa.select(sa.func.clock_timestamp())) or datetime.now(UTC)
        restore, heads = Restore(backup_at, now, by, source), one_time_items.heads(conn)
        ended = one_time_items.end_one_time_items(conn, now, by=by)
        pause, asking = pause_of(restore), 0
        for cluster in sorted({*heads, *cluster_names(conn)}) or ["installation"]:
            tx = _transaction(db, conn, cluster)
            tx.add_pause(pause)  # one: it has the same id each time
            asking += hold_back(tx, cluster, restore, heads.get(cluster, 0))
            tx.send()
    return Restored(pause.id, asking, (before, after), ended, [], statements)


def _transaction(db: sa.Engine, conn: sa.Connection, cluster: str) -> PostgresTx:
    snapshots = PostgresSnapshots(db)
    return PostgresTx(
        conn, LedgerParts(engine=db, cluster=cluster, snapshots=snapshots, clock=SystemClock(), has_sink=True)
    )


def seal(db: sa.Engine, places: Places) -> None:
    """Seals and signs the record of the gap at once, so that the audit verifies before any worker runs. Where
    the key is not on this machine, the worker that has it does."""
    if not (places.data_dir / KEY_FILE).exists():
        return
    signer = load_signer(places.data_dir, places.published)
    sealer = Sealer(
        PostgresChain(db), signer, checkpoint_file=CheckpointFile(places.published / CHECKPOINT_FILE)
    )
    while sealer.seal_once():
        pass
    sealer.close()


# --- files -----------------------------------------------------------------------------------------------


def _write_files(archive: Archive, keys: SealedKeys | None, places: Places) -> list[Path]:
    """Keys and the audit's files into their places; rules and settings into a folder, whose files are
    returned. A key that is replaced is kept under another name."""
    for folder in (places.data_dir, places.published, places.token_key.parent):
        folder.mkdir(parents=True, exist_ok=True)
    files = dict(keys.files) if keys is not None else {}
    for name, path in ((KEY_FILE, places.data_dir / KEY_FILE), (TOKEN_KEY_FILE, places.token_key)):
        if name in files:
            _replace(path, files.pop(name))
    _add_lines(places.published / PUBLIC_FILE, archive, f"audit/{PUBLIC_FILE}", 0o644)
    _add_lines(places.published / CHECKPOINT_FILE, archive, f"audit/{CHECKPOINT_FILE}", 0o640)
    for name in archive.names(f"audit/{WITNESSES}"):
        _write(places.data_dir / WITNESSES / Path(name).name, archive.read(name), 0o600)
    left = places.data_dir / FOLDER
    found = []
    for name in archive.names("rules"):
        _write(left / name, archive.read(name), 0o644)
        found.append(left / name)
    if CONFIG_FILE in files:
        _write(left / CONFIG_FILE, files[CONFIG_FILE], 0o600)
        found.append(left / CONFIG_FILE)
    return found


def _replace(path: Path, data: bytes) -> None:
    with suppress(FileNotFoundError):
        if path.read_bytes() == data:
            return
        path.rename(path.with_name(f"{path.name}.before-restore"))
    _write(path, data, 0o600)


def _add_lines(path: Path, archive: Archive, name: str, mode: int) -> None:
    """Adds the lines that the file lacks: lines signed after the backup stay, as evidence of the gap."""
    if name not in archive.manifest.members:
        return
    have = path.read_bytes().splitlines() if path.exists() else []
    ours = [line for line in archive.read(name).splitlines() if line.strip()]
    present = frozenset(ours)
    lines = [*ours, *(line for line in have if line.strip() and line not in present)]
    _write(path, b"".join(line + b"\n" for line in lines), mode)


def _write(path: Path, data: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.chmod(mode)
    fresh.rename(path)
