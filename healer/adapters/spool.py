"""Accepted signals on disk while the database is away: records appended with fsync, taken out in their order.

Each process writes a folder of its own below `spool/` and holds a lock on it; what a dead process left is
taken over by the next one that looks. A folder holds segments that are read from the oldest on and deleted
once all of them is stored, so after a kill at most one segment is stored a second time, where its digests
are known already.

A record is its length and the CRC-32 of what follows, a byte of kind, and the content. What was being
written when a process or the machine died has no whole record, and nobody was told that it is safe.
"""

import fcntl
import itertools
import os
import re
import struct
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from healer.api.services import NoRoom
from healer.ports import Spooled, SpoolState

log = structlog.get_logger()

#: What one process may hold: 10 minutes of 400 events/s of 1 kB each.
LIMIT_BYTES = 256 * 1024 * 1024
#: A new segment begins at this size; the last one may be larger by one call of `append`.
SEGMENT_BYTES = 8 * 1024 * 1024
#: Records of a segment that is not our own are at most this long; a larger length is no length.
_RECORD_MAX = 64 * 1024 * 1024

#: What is ours: a folder by the time of its making and its process, a segment by its number and time.
_FOLDER, _NAME = re.compile(r"\d{20}-\d{1,10}"), re.compile(r"\d{8}-\d{1,12}")

_HEAD = struct.Struct("<IIc")


@dataclass(eq=False)
class _Segment:
    path: Path
    folder: "_Folder"
    size: int
    entries: int
    begun_at: float  # s since 1970


@dataclass(eq=False)
class _Folder:
    """`lock` is open and locked for as long as the folder is ours."""

    path: Path
    lock: int


class FileSpool:
    """`healer.ports.Spool` in `folder`. Thread-safe; one thread may take records out.

    What dead processes left is ours from the start, and `adopt` looks for more.
    """

    def __init__(self, folder: Path, *, limit: int = LIMIT_BYTES, segment: int = SEGMENT_BYTES) -> None:
        self._root, self._limit, self._segment = folder, limit, segment
        self._lock = threading.Lock()
        self._segments: list[_Segment] = []
        self._own: _Folder | None = None
        #: The segment that is open for writing: always the last one, if any.
        self._file: int | None = None
        self._read_at = 0  # place in the oldest segment
        self._read_entries = 0
        self._taken = 0  # place behind what `oldest` gave last
        self._numbers = itertools.count(1)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.adopt()

    # --- what lies here ---

    @property
    def pending(self) -> bool:
        return bool(self._segments)

    def state(self) -> SpoolState:
        with self._lock:
            segments = list(self._segments)
            entries = sum(one.entries for one in segments) - self._read_entries
            size = sum(one.size for one in segments) - self._read_at
        since = min((one.begun_at for one in segments), default=None)
        return SpoolState(
            entries=entries,
            size_bytes=size,
            limit_bytes=self._limit,
            since=None if since is None else datetime.fromtimestamp(since, UTC),
        )

    # --- in ---

    def append(self, records: Sequence[Spooled]) -> None:
        """All of them, safe on disk when this returns; or none: NoRoom when there is none for all."""
        block = b"".join(_framed(one) for one in records)
        with self._lock:
            used = sum(one.size for one in self._segments)
            if used + len(block) > self._limit:
                raise NoRoom(f"the database is away, and the spool of {self._limit} bytes is full")
            try:
                file, segment = self._open()
            except OSError as error:
                raise NoRoom(f"the database is away, and the spool cannot be written: {error}") from error
            try:
                _write(file, block)
                os.fdatasync(file)
            except OSError as error:
                self._undo(file, segment)
                raise NoRoom(
                    f"the database is away, and the spool cannot be written: {error.strerror}", disk=True
                ) from error
            segment.size += len(block)
            segment.entries += len(records)

    def _open(self) -> tuple[int, _Segment]:
        if self._file is not None and self._segments and self._segments[-1].size < self._segment:
            return self._file, self._segments[-1]
        self._close_file()
        if self._own is None:
            self._own = self._new_folder()
        # By number, as the clock may jump; the time is for people.
        path = self._own.path / f"{next(self._numbers):08d}-{int(time.time())}"
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
        _sync_folder(self._own.path)
        segment = _Segment(path, self._own, 0, 0, time.time())
        self._file = file
        self._segments.append(segment)
        return file, segment

    def _undo(self, file: int, segment: _Segment) -> None:
        """A part of a record at the end must not stand before the next one."""
        try:
            os.ftruncate(file, segment.size)
        except OSError:
            self._close_file()  # what is behind the last whole record is passed over by whoever reads it
        if segment.size == 0:
            self._close_file()
            self._segments.remove(segment)
            segment.path.unlink(missing_ok=True)

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    # --- out ---

    def oldest(self, most: int, size: int) -> list[Spooled]:
        """The oldest records: at most `most`, and at most `size` bytes but for the first one."""
        while True:
            with self._lock:
                if not self._segments:
                    return []
                segment, place = self._segments[0], self._read_at
                end = segment.size
            records: list[Spooled] = []
            for record, behind in _records(segment.path, place, end):
                if records and (len(records) == most or behind - place > size):
                    break
                records.append(record)
                self._taken = behind
            if records:
                return records
            with self._lock:
                # Nothing readable is left in it, though it is not at its end: the disk lost what it held.
                log.error("a spool cannot be read to its end", file=str(segment.path), place=place, end=end)
                self._drop(segment)

    def drop_oldest(self, records: Sequence[Spooled]) -> None:
        """What `oldest` gave last is stored: it is not needed any more."""
        with self._lock:
            segment = self._segments[0]
            self._read_at = self._taken
            self._read_entries += len(records)
            if self._read_at >= segment.size:
                self._drop(segment)

    def _drop(self, segment: _Segment) -> None:
        if self._segments[-1] is segment:
            self._close_file()
        del self._segments[0]
        self._read_at = self._read_entries = 0
        segment.path.unlink(missing_ok=True)
        if segment.folder is not self._own and not any(
            one.folder is segment.folder for one in self._segments
        ):
            self._give_up(segment.folder)

    # --- folders ---

    def adopt(self) -> int:
        """Takes over what dead processes left; the number of records."""
        found = 0
        with self._lock, self._door():
            for path in sorted(one for one in self._root.iterdir() if _FOLDER.fullmatch(one.name)):
                folder = _locked(path)
                if folder is None:
                    continue
                segments = _segments_of(folder)
                if not segments:
                    self._give_up(folder)
                    continue
                found += sum(one.entries for one in segments)
                # Before ours, as they came before; but what is being read stays the first.
                place = 1 if self._segments and self._read_at else 0
                older = [one for one in self._segments[place:] if one.folder is not self._own]
                self._segments[place + len(older) : place + len(older)] = segments
        if found:
            log.warning("signals that another process spooled are taken over", entries=found)
        return found

    def _new_folder(self) -> _Folder:
        with self._door():
            path = self._root / f"{time.time_ns():020d}-{os.getpid()}"
            path.mkdir(mode=0o700)
            folder = _locked(path)
            assert folder is not None  # nobody else passes the door meanwhile
            _sync_folder(self._root)
            return folder

    def _give_up(self, folder: _Folder) -> None:
        (folder.path / "lock").unlink(missing_ok=True)
        try:
            folder.path.rmdir()
        except OSError as error:
            log.warning("a folder of the spool is not empty", folder=str(folder.path), error=str(error))
        os.close(folder.lock)

    @contextmanager
    def _door(self) -> Iterator[None]:
        """One process at a time makes or takes folders, so that none is taken while it is being made."""
        file = os.open(self._root / "door", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def close(self) -> None:
        """Gives the locks back. What is left stays on disk for the next process."""
        with self._lock:
            self._close_file()
            folders = {id(one.folder): one.folder for one in self._segments}
            if self._own is not None and id(self._own) not in folders:
                self._give_up(self._own)
            for folder in folders.values():
                os.close(folder.lock)
            self._segments, self._own = [], None


def _framed(one: Spooled) -> bytes:
    content = one.kind + one.body
    return _HEAD.pack(len(content), zlib.crc32(content), one.kind) + one.body


def _write(file: int, block: bytes) -> None:
    rest = memoryview(block)
    while rest:
        rest = rest[os.write(file, rest) :]


def _records(path: Path, place: int, end: int) -> Iterator[tuple[Spooled, int]]:
    """(record, place behind it) from `place` on. Ends at `end` and at what is no whole record."""
    with path.open("rb") as file:
        file.seek(place)
        while place + _HEAD.size <= end:
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                return
            length, crc, kind = _HEAD.unpack(head)
            # A machine that lost its power may leave zeros behind the last record.
            if not 1 <= length <= _RECORD_MAX:
                return
            body = file.read(length - 1)
            if len(body) < length - 1 or zlib.crc32(kind + body) != crc:
                return
            place += _HEAD.size + length - 1
            yield Spooled(kind, body), place


def _segments_of(folder: _Folder) -> list[_Segment]:
    """The segments of a dead process, up to the last whole record of each; empty ones are deleted."""
    segments: list[_Segment] = []
    for path in sorted(one for one in folder.path.iterdir() if _NAME.fullmatch(one.name)):
        whole, entries, size = 0, 0, path.stat().st_size
        for _, behind in _records(path, 0, size):
            whole, entries = behind, entries + 1
        if whole < size:
            log.warning("a spool ends in a torn record", file=str(path), bytes=size - whole)
        if entries:
            begun_at = float(path.name.partition("-")[2])
            segments.append(_Segment(path, folder, whole, entries, begun_at))
        else:
            path.unlink()
    return segments


def _locked(path: Path) -> _Folder | None:
    """None: its process lives."""
    lock = os.open(path / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return _Folder(path, lock)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
