"""The file of a backup: an uncompressed tar whose last member, `manifest.json`, has the sum of each other.

It is written under another name and renamed when it is whole and on the disk; one that was cut short has no
manifest.
"""

import fcntl
import hashlib
import os
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO

import msgspec

from healer.model.vocabulary import UserError
from healer.text import said_by, say

FORMAT = 1
#: A folder's backup while it is written. The remains of a killed process are overwritten by the next.
PART = ".healer-backup.part"
MANIFEST, DUMP, KEYS = "manifest.json", "database.dump", "keys"
_MANIFEST_MAX = 50_000_000
_PORTION = 1 << 20
_BLOCK = tarfile.BLOCKSIZE


class BackupUnusable(UserError):
    """The file cannot be restored, or another could not be written. One sentence for people."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    size: int
    sha256: str


# Wide: what people and programs read about a backup, one field per fact.
class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`healer_backup`: the format. `taken_at`: a moment shortly before the snapshot, by the database's clock.
    `database_bytes`: of the tables and indexes. `missing`: files of the installation that are not in it.
    """

    healer_backup: int
    healer: str
    revision: str
    clusters: list[str]
    taken_at: datetime
    postgres: str
    database_bytes: int
    missing: list[str]
    members: dict[str, Member]


class Writer:
    """`members`: the sums of what was written so far."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.members: dict[str, Member] = {}

    def add(self, name: str, data: bytes) -> None:
        self.add_stream(name, lambda take: take(data))

    def add_stream(self, name: str, produce: Callable[[Callable[[bytes], None]], None]) -> None:
        """A member whose size is known only at its end: its header is written last. `produce` hands its bytes
        to the function that it gets."""
        begin, digest, size = self._file.tell(), hashlib.sha256(), 0
        self._file.write(bytes(len(_header(name, 0))))

        def take(portion: bytes) -> None:
            nonlocal size
            self._file.write(portion)
            digest.update(portion)
            size += len(portion)

        produce(take)
        self._file.write(bytes(-size % _BLOCK))
        self._file.seek(begin)
        self._file.write(_header(name, size))
        self._file.seek(0, os.SEEK_END)
        self.members[name] = Member(size=size, sha256=digest.hexdigest())

    def finish(self, manifest: Manifest) -> None:
        """`manifest` has the members that were added."""
        self.add(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
        self._file.write(bytes(2 * _BLOCK))


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    return info.tobuf(tarfile.GNU_FORMAT)  # as long for any size, also over 8 GiB


@contextmanager
def writing(target: Path) -> Iterator[Writer]:
    """A new file at `target`, mode 0600, which is there once the block has ended well. Raises BackupUnusable,
    also while another process writes one there."""
    part = target.with_name(PART)
    try:
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise BackupUnusable(say("backups.cannot_written", part=str(part), why=error.strerror)) from None
    with os.fdopen(descriptor, "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BackupUnusable(say("backups.another_process_writing_backup", part=str(part))) from None
        try:
            file.truncate(0)  # of a process that was killed
            yield Writer(file)
            file.flush()
            os.fsync(file.fileno())
            part.rename(target)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise BackupUnusable(
                say("backups.cannot_written", part=str(target), why=error.strerror)
            ) from None
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class Archive:
    """A backup whose manifest was read. `check` reads all of it."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        """Raises BackupUnusable."""
        self.path, self._file = path, file
        self._found = self._members()
        self.manifest = self._read_manifest()

    def check(self) -> None:
        """Compares every member with its sum. Raises BackupUnusable that names the first which differs."""
        wanted = self.manifest.members
        if self._found.keys() != wanted.keys() | {MANIFEST}:
            odd = min(self._found.keys() ^ (wanted.keys() | {MANIFEST}))
            raise BackupUnusable(say("backups.member_added", path=str(self.path), odd=odd))
        for name, member in wanted.items():
            digest = hashlib.sha256()
            for portion in self.portions(name):
                digest.update(portion)
            if self._found[name].size != member.size or digest.hexdigest() != member.sha256:
                raise BackupUnusable(say("backups.member_changed", path=str(self.path), name=name))

    def names(self, folder: str) -> list[str]:
        return sorted(name for name in self._found if name.startswith(f"{folder}/"))

    def read(self, name: str) -> bytes:
        return b"".join(self.portions(name))

    def portions(self, name: str) -> Iterator[bytes]:
        info = self._found[name]
        left = info.size
        self._file.seek(info.offset_data)
        while left:
            portion = self._file.read(min(left, _PORTION))
            if not portion:
                raise BackupUnusable(say("backups.cut_short", path=str(self.path)))
            left -= len(portion)
            yield portion

    def _members(self) -> dict[str, tarfile.TarInfo]:
        try:
            with tarfile.open(fileobj=self._file, mode="r:") as tar:
                infos = tar.getmembers()
        except (tarfile.TarError, OSError):
            raise BackupUnusable(say("backups.no_backup_cut_short", path=str(self.path))) from None
        if not infos or infos[-1].name != MANIFEST or not all(info.isreg() for info in infos):
            raise BackupUnusable(say("backups.cut_short_no_backup", path=str(self.path)))
        found = {info.name: info for info in infos}
        if len(found) < len(infos) or any(_leaves(name) for name in found):
            raise BackupUnusable(say("backups.names_changed", path=str(self.path)))
        return found

    def _read_manifest(self) -> Manifest:
        if self._found[MANIFEST].size > _MANIFEST_MAX:
            raise BackupUnusable(say("backups.no_backup_its_manifest", path=str(self.path)))
        try:
            manifest = msgspec.json.decode(self.read(MANIFEST), type=Manifest)
        except msgspec.MsgspecError as error:
            raise BackupUnusable(
                say("backups.manifest_cannot_read", path=str(self.path), why=said_by(error))
            ) from None
        if manifest.healer_backup != FORMAT:
            raise BackupUnusable(
                say(
                    "backups.has_format_reads_format",
                    path=str(self.path),
                    healer_backup=manifest.healer_backup,
                    format=FORMAT,
                )
            )
        return manifest


def _leaves(name: str) -> bool:
    """Whether the name would leave the folder in which it is put."""
    return name.startswith("/") or ".." in Path(name).parts


@contextmanager
def reading(path: Path) -> Iterator[Archive]:
    """Raises BackupUnusable."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise BackupUnusable(say("backups.cannot_read", path=str(path), why=error.strerror)) from None
    with file:
        yield Archive(path, file)
