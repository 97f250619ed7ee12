"""Accepted signals on disk while the database is down: appended with fsync, and read in order.

Each process writes and locks a folder below `spool/`; the folders of dead processes are adopted by others. A
folder contains segments, which are read from the oldest on and deleted when all records are stored. So after
a kill at most one segment is stored a second time, and its digests identify the duplicates.

A record that was being written when the process or machine died is incomplete, and was not acknowledged.
Corrupted records are skipped and counted, and their segment is kept as `*.bad`.
"""

import errno
import fcntl
import itertools
import os
import re
import secrets
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

from healer.ports.request_errors import NoRoom
from healer.ports.signal_stores import Spooled, SpoolState
from healer.text import Said, say

log = structlog.get_logger()

#: The limit of a process: 10 minutes of 400 events/s of 1 kB each.
LIMIT_BYTES = 256 * 1024 * 1024
#: The size at which a new segment begins; a segment may exceed it by one call of `append`.
SEGMENT_BYTES = 8 * 1024 * 1024
#: Corrupted segments that are kept for people; older ones are deleted.
BAD_MAX = 10
#: Folders are named by creation time and process id; segments by number, time, and the salt of their
#: checksums (none: 0).
_FOLDER = re.compile(r"\d{20}-\d{1,10}")
_NAME = re.compile(r"\d{8}-(?P<begun_at>\d{1,12})(?:-(?P<salt>[0-9a-f]{8}))?")


@dataclass(eq=False)
class _Segment:
    path: Path
    folder: "_Folder"
    size: int
    entries: int
    begun_at: float  # Unix seconds
    salt: int  # the initial value of the checksums


@dataclass(eq=False)
class _Folder:
    """`lock`: the descriptor that holds the folder's lock."""

    path: Path
    lock: int


class FileSpool:
    """`healer.ports.signal_stores.Spool` in `folder`. Thread-safe; one thread may read records.

    Adopts the folders of dead processes at the start and in `adopt`.
    """

    def __init__(self, folder: Path, *, limit: int = LIMIT_BYTES, segment: int = SEGMENT_BYTES) -> None:
        self._root, self._limit, self._segment = folder, limit, segment
        self._lock = threading.Lock()
        self._segments: list[_Segment] = []
        self._folder: _Folder | None = None
        #: The descriptor of the last segment, while it is open for writing.
        self._file: int | None = None
        self._read_at = 0  # offset in the oldest segment
        self._read_entries = 0
        self._returned_to = 0  # offset after the records that `oldest` returned last
        self._numbers = itertools.count(1)
        #: The folder of records that only another version can read, locked until this process ends.
        self._unreadable: _Folder | None = None
        self._unreadable_bytes = 0
        self._lost: list[tuple[int, Said]] = []
        #: Paths that were already reported as unusable.
        self._reported: set[Path] = set()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.adopt()

    # --- state ---

    @property
    def pending(self) -> bool:
        return bool(self._segments)

    def state(self) -> SpoolState:
        with self._lock:
            segments = list(self._segments)
            entries = sum(segment.entries for segment in segments) - self._read_entries
            size = sum(segment.size for segment in segments) - self._read_at
        since = min((segment.begun_at for segment in segments), default=None)
        return SpoolState(
            entries=entries,
            size_bytes=size,
            limit_bytes=self._limit,
            since=None if since is None else datetime.fromtimestamp(since, UTC),
        )

    # --- writing ---

    def append(self, records: Sequence[Spooled]) -> None:
        size = _size_of(records)
        with self._lock:
            used = self._unreadable_bytes + sum(segment.size for segment in self._segments)
            if used + size > self._limit:
                raise NoRoom(say("adapters.spool_full", limit=self._limit))
            try:
                file, segment = self._open()
            except OSError as error:
                raise NoRoom(say("adapters.spool_unwritable_away", error=str(error))) from error
            try:
                _write(file, records, segment.salt)
            except OSError as error:
                self._truncate(file, segment)
                why = say("adapters.spool_unwritable_away", error=error.strerror)
                raise NoRoom(why, disk=True) from error
            segment.size += size
            segment.entries += len(records)

    def _open(self) -> tuple[int, _Segment]:
        if self._file is not None and self._segments and self._segments[-1].size < self._segment:
            return self._file, self._segments[-1]
        self._close_file()
        if self._folder is None:
            self._folder = self._new_folder()
        segment, self._file = self._new_segment(self._folder)
        self._segments.append(segment)
        return self._file, segment

    def _new_segment(self, folder: _Folder) -> tuple[_Segment, int]:
        """An empty segment, and its open file."""
        # Ordered by number, because the clock may jump; the time is for people.
        salt = secrets.randbits(32)
        path = folder.path / f"{next(self._numbers):08d}-{int(time.time())}-{salt:08x}"
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            _sync_folder(folder.path)
        except OSError:
            os.close(file)
            path.unlink(missing_ok=True)
            raise
        return _Segment(path, folder, 0, 0, time.time(), salt), file

    def set_aside(self, records: Sequence[Spooled]) -> None:
        """Keeps records that this version cannot read; the next process reads them again. Raises NoRoom."""
        size = _size_of(records)
        with self._lock:
            if self._unreadable_bytes + size > self._limit // 4:
                raise NoRoom(say("adapters.spool_unreadable_full"))
            try:
                if self._unreadable is None:
                    self._unreadable = self._new_folder()
                segment, file = self._new_segment(self._unreadable)
                try:
                    _write(file, records, segment.salt)
                except OSError:
                    segment.path.unlink(missing_ok=True)
                    raise
                finally:
                    os.close(file)
            except OSError as error:
                raise NoRoom(say("adapters.spool_unwritable", error=str(error))) from error
            self._unreadable_bytes += size

    def _truncate(self, file: int, segment: _Segment) -> None:
        """Truncates a partial record at the end so that the next append starts on a clean boundary."""
        try:
            os.ftruncate(file, segment.size)
        except OSError:
            self._close_file()  # the reader skips the partial record
        if segment.size == 0:
            self._close_file()
            self._segments.remove(segment)
            segment.path.unlink(missing_ok=True)

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    # --- reading ---

    def oldest(self, most: int, size: int) -> list[Spooled]:
        while True:
            with self._lock:
                if not self._segments:
                    return []
                segment, place = self._segments[0], self._read_at
                end = segment.size
            records: list[Spooled] = []
            for record, behind in _records_of(segment.path, segment.salt, place, end):
                if record is None:
                    continue
                if records and (len(records) == most or behind - place > size):
                    break
                records.append(record)
                self._returned_to = behind
            if records:
                return records
            with self._lock:
                self._drop(segment)  # the rest of it is unreadable

    def drop_oldest(self, records: Sequence[Spooled]) -> None:
        with self._lock:
            segment = self._segments[0]
            self._read_at = self._returned_to
            self._read_entries += len(records)
            if self._read_at >= segment.size:
                self._drop(segment)

    def take_lost(self) -> list[tuple[int, Said]]:
        with self._lock:
            lost, self._lost = self._lost, []
            return lost

    def _drop(self, segment: _Segment) -> None:
        if self._segments[-1] is segment:
            self._close_file()
        del self._segments[0]
        lost = segment.entries - self._read_entries
        self._read_at = self._read_entries = 0
        if lost > 0:
            self._note_lost(lost, say("adapters.spool_segment"), segment.path)
            self._keep_bad(segment)
        else:
            segment.path.unlink(missing_ok=True)
        in_use = [self._folder, *(other.folder for other in self._segments)]
        if not any(folder is segment.folder for folder in in_use):
            self._remove_folder(segment.folder)

    def _note_lost(self, entries: int, what: Said, path: Path) -> None:
        """Bounded, as `take_lost` is called every few seconds."""
        log.error(what, path=str(path), entries=entries)
        if len(self._lost) < 1000:
            file = str(path.relative_to(self._root))
            self._lost.append((entries, say("words.labelled", label=what, text=file)))

    def _keep_bad(self, segment: _Segment) -> None:
        """Moves the segment next to the folders, as `*.bad`."""
        try:
            segment.path.rename(self._root / f"{segment.folder.path.name}.{segment.path.name}.bad")
            for path in sorted(self._root.glob("*.bad"))[:-BAD_MAX]:
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("unreadable spool segment not kept", error=str(error))
            segment.path.unlink(missing_ok=True)

    # --- folders ---

    def adopt(self) -> int:
        """Adopts the folders of dead processes and returns the number of their records. Folders that cannot
        be opened are reported once and skipped."""
        found = 0
        with self._lock, self._folders_lock():
            for path in sorted(path for path in self._root.iterdir() if _FOLDER.fullmatch(path.name)):
                try:
                    folder = _locked(path)
                except OSError as error:
                    self._report_unusable(path, error)
                    continue
                if folder is None:
                    continue
                segments = self._segments_of(folder)
                if not segments:
                    self._remove_folder(folder)
                    continue
                found += sum(segment.entries for segment in segments)
                # They are older than our segments; but a segment that is being read stays the first.
                place = 1 if self._segments and self._read_at else 0
                older = [segment for segment in self._segments[place:] if segment.folder is not self._folder]
                self._segments[place + len(older) : place + len(older)] = segments
        if found:
            log.warning("taking over another process's spool", entries=found)
        return found

    def _segments_of(self, folder: _Folder) -> list[_Segment]:
        """The segments in an adopted folder, up to the last complete record of each; deletes empty ones."""
        try:
            paths = sorted(path for path in folder.path.iterdir() if _NAME.fullmatch(path.name))
        except OSError as error:
            self._report_unusable(folder.path, error)
            return []
        segments: list[_Segment] = []
        for path in paths:
            try:
                segment = _segment_of(path, folder)
                if segment.entries:
                    segments.append(segment)
                else:
                    path.unlink()
            except OSError as error:
                self._report_unusable(path, error)
        return segments

    def _report_unusable(self, path: Path, error: OSError) -> None:
        if path not in self._reported and len(self._reported) < 1000:
            self._reported.add(path)
            self._note_lost(1, say("adapters.spool_unopened", error=error.strerror), path)

    def _new_folder(self) -> _Folder:
        with self._folders_lock():
            path = self._root / f"{time.time_ns():020d}-{os.getpid()}"
            path.mkdir(mode=0o700)
            try:
                folder = _locked(path)
            except OSError:
                path.rmdir()
                raise
            assert folder is not None  # other processes wait for `_folders_lock`
            try:
                _sync_folder(self._root)
            except OSError:
                self._remove_folder(folder)
                raise
            return folder

    def _remove_folder(self, folder: _Folder) -> None:
        try:
            (folder.path / "lock").unlink(missing_ok=True)
            folder.path.rmdir()
        except OSError as error:
            if folder.path not in self._reported:
                self._reported.add(folder.path)
                log.warning("spool folder not empty", folder=str(folder.path), error=str(error))
        os.close(folder.lock)

    @contextmanager
    def _folders_lock(self) -> Iterator[None]:
        """One process at a time creates or adopts folders, so that no unfinished folder is adopted."""
        file = os.open(self._root / "door", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def close(self) -> None:
        """Releases the locks. Pending records stay on disk for the next process."""
        with self._lock:
            self._close_file()
            folders = {id(segment.folder): segment.folder for segment in self._segments}
            if self._folder is not None and id(self._folder) not in folders:
                self._remove_folder(self._folder)
            for folder in folders.values():
                os.close(folder.lock)
            if self._unreadable is not None:
                os.close(self._unreadable.lock)
            self._segments, self._folder, self._unreadable, self._unreadable_bytes = [], None, None, 0


def _segment_of(path: Path, folder: _Folder) -> _Segment:
    """A segment written by another process. Raises OSError, also if it is no file."""
    name = _NAME.fullmatch(path.name)
    if name is None or not path.is_file():
        raise OSError(errno.EINVAL, "not a file", str(path))
    size = path.stat().st_size
    segment = _Segment(path, folder, 0, 0, float(name["begun_at"]), int(name["salt"] or "0", 16))
    for _, behind in _records_of(path, segment.salt, 0, size):
        segment.size, segment.entries = behind, segment.entries + 1
    if segment.size < size:
        log.warning("spool segment ends in a torn record", file=str(path), bytes=size - segment.size)
    return segment


def _locked(path: Path) -> _Folder | None:
    """The folder with its lock; None if another process holds it."""
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


# --- the format of a segment: a sequence of records, readable also around corrupted ones ---
# A record is its length, the CRC-32 of the rest, a byte for its kind, and the body. The CRC starts from the
# segment's random salt, which no sender knows, so that no body can be taken for a record.

#: The longest record of another process; a larger length is invalid.
_RECORD_MAX = 64 * 1024 * 1024

#: Bytes that are checked in search of records after a corrupted one, per segment.
_SEARCH_BYTES = 64 * 1024 * 1024
#: Unreadable parts of a file are skipped by pages.
_PAGE = 4096

_HEAD = struct.Struct("<IIc")
#: A possible head: its length is below _RECORD_MAX, and its kind a letter.
_LIKE_A_HEAD = re.compile(rb"(?s)(?=...[\x00-\x04]....[A-Za-z])")


def _size_of(records: Sequence[Spooled]) -> int:
    """Size in bytes on disk."""
    return sum(_HEAD.size + len(record.body) for record in records)


def _write(file: int, records: Sequence[Spooled], salt: int) -> None:
    """Writes all records, safe on disk when it returns. After an OSError a part may be written."""
    rest = memoryview(b"".join(_encode(record, salt) for record in records))
    while rest:
        rest = rest[os.write(file, rest) :]
    os.fdatasync(file)


def _encode(record: Spooled, salt: int) -> bytes:
    content = record.kind + record.body
    return _HEAD.pack(len(content), zlib.crc32(content, salt), record.kind) + record.body


def _records_of(path: Path, salt: int, place: int, end: int) -> Iterator[tuple[Spooled | None, int]]:
    """(record, offset after it) from `place` on, with None for a corrupted part. Stops at `end`, or before a
    record that was not written completely."""
    content, at, left = _content(path, place, end), 0, _SEARCH_BYTES
    while at < len(content):
        behind = _behind(content, at)
        if behind is not None and _is_whole(content, at, behind, salt):
            yield Spooled(content[at + 8 : at + 9], content[at + 9 : behind]), place + behind
            at = behind
            continue
        following, left = _following(content, at, salt, left)
        if following is None:
            # Zeros or a partial record at the end are left by a power loss, not by corruption.
            if behind is not None or left < 0:
                yield None, end
            return
        yield None, place + following
        at = following


def _behind(content: bytes, at: int) -> int | None:
    """The end of the record that begins at `at`; None if no complete record begins there."""
    if at + _HEAD.size > len(content):
        return None
    length, _, _ = _HEAD.unpack_from(content, at)
    behind = at + _HEAD.size - 1 + length
    return behind if 1 <= length <= _RECORD_MAX and behind <= len(content) else None


def _is_whole(content: bytes, at: int, behind: int, salt: int) -> bool:
    _, crc, _ = _HEAD.unpack_from(content, at)
    return zlib.crc32(memoryview(content)[at + 8 : behind], salt) == crc


def _following(content: bytes, at: int, salt: int, left: int) -> tuple[int | None, int]:
    """The start of the next valid record after a corrupted one, and the bytes that may still be checked in
    this search; negative if it was given up."""
    behind = _behind(content, at)
    if behind is not None:
        further = _behind(content, behind)
        if behind == len(content) or (further is not None and _is_whole(content, behind, further, salt)):
            return behind, left
    for like in _LIKE_A_HEAD.finditer(content, at + 1):
        start = like.start()
        behind = _behind(content, start)
        if behind is None:
            continue
        left -= behind - start
        if left < 0:
            return None, left
        if _is_whole(content, start, behind, salt):
            return start, left
    return None, left


def _content(path: Path, place: int, end: int) -> bytes:
    """The bytes of the file from `place` to `end`, with zeros for unreadable pages."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        parts: list[bytes] = []
        while place < end:
            try:
                part = os.pread(file, end - place, place)
            except OSError:
                part = _page(file, place, min(end, place - place % _PAGE + _PAGE))
            if not part:
                break
            parts.append(part)
            place += len(part)
        return b"".join(parts)
    finally:
        os.close(file)


def _page(file: int, place: int, end: int) -> bytes:
    try:
        return os.pread(file, end - place, place)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return bytes(end - place)
