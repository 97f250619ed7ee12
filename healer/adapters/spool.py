"""Accepted signals on disk while the database is away: records appended with fsync, taken out in their order.

Each process writes a folder of its own below `spool/` and holds a lock on it; what a dead process left is
taken over by the next one that looks. A folder holds segments that are read from the oldest on and deleted
once all of them is stored, so after a kill at most one segment is stored a second time, where its digests
are known already.

What was being written when a process or the machine died has no whole record, and nobody was told that it is
safe. What the disk has changed since is passed over and counted, and its segment kept as `*.bad`.
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

log = structlog.get_logger()

#: What one process may hold: 10 minutes of 400 events/s of 1 kB each.
LIMIT_BYTES = 256 * 1024 * 1024
#: A new segment begins at this size; the last one may be larger by one call of `append`.
SEGMENT_BYTES = 8 * 1024 * 1024
#: Segments with unreadable parts that are kept for people; older ones are deleted.
BAD_MAX = 10
#: What is ours: a folder by the time of its making and its process; a segment by its number, its time, and
#: the number that its checksums start from (none: 0).
_FOLDER = re.compile(r"\d{20}-\d{1,10}")
_NAME = re.compile(r"\d{8}-(?P<begun_at>\d{1,12})(?:-(?P<salt>[0-9a-f]{8}))?")


@dataclass(eq=False)
class _Segment:
    path: Path
    folder: "_Folder"
    size: int
    entries: int
    begun_at: float  # s since 1970
    salt: int  # the checksums start from it


@dataclass(eq=False)
class _Folder:
    """`lock` is open and locked for as long as the folder is ours."""

    path: Path
    lock: int


class FileSpool:
    """`healer.ports.signal_stores.Spool` in `folder`. Thread-safe; one thread may take records out.

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
        #: Where what this version cannot read waits for another one; locked as long as this process lives.
        self._aside: _Folder | None = None
        self._aside_bytes = 0
        self._lost: list[tuple[int, str]] = []
        #: What is there and not ours to use was told once.
        self._told: set[Path] = set()
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
        size = _size_of(records)
        with self._lock:
            used = self._aside_bytes + sum(one.size for one in self._segments)
            if used + size > self._limit:
                raise NoRoom(f"the database is away, and the spool of {self._limit} bytes is full")
            try:
                file, segment = self._open()
            except OSError as error:
                raise NoRoom(f"the database is away, and the spool cannot be written: {error}") from error
            try:
                _write(file, records, segment.salt)
            except OSError as error:
                self._undo(file, segment)
                raise NoRoom(
                    f"the database is away, and the spool cannot be written: {error.strerror}", disk=True
                ) from error
            segment.size += size
            segment.entries += len(records)

    def _open(self) -> tuple[int, _Segment]:
        if self._file is not None and self._segments and self._segments[-1].size < self._segment:
            return self._file, self._segments[-1]
        self._close_file()
        if self._own is None:
            self._own = self._new_folder()
        segment, self._file = self._new_segment(self._own)
        self._segments.append(segment)
        return self._file, segment

    def _new_segment(self, folder: _Folder) -> tuple[_Segment, int]:
        """An empty one, and its file, open for writing."""
        # By number, as the clock may jump; the time is for people.
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
        """Keeps what this version cannot read for one that can: the next process reads it again. NoRoom."""
        size = _size_of(records)
        with self._lock:
            if self._aside_bytes + size > self._limit // 4:
                raise NoRoom("too much that cannot be read lies in the spool")
            try:
                if self._aside is None:
                    self._aside = self._new_folder()
                segment, file = self._new_segment(self._aside)
                try:
                    _write(file, records, segment.salt)
                except OSError:
                    segment.path.unlink(missing_ok=True)
                    raise
                finally:
                    os.close(file)
            except OSError as error:
                raise NoRoom(f"the spool cannot be written: {error}") from error
            self._aside_bytes += size

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
            for record, behind in _records_of(segment.path, segment.salt, place, end):
                if record is None:
                    continue
                if records and (len(records) == most or behind - place > size):
                    break
                records.append(record)
                self._taken = behind
            if records:
                return records
            with self._lock:
                self._drop(segment)  # nothing readable is left in it, though it is not at its end

    def drop_oldest(self, records: Sequence[Spooled]) -> None:
        """What `oldest` gave last is stored: it is not needed any more."""
        with self._lock:
            segment = self._segments[0]
            self._read_at = self._taken
            self._read_entries += len(records)
            if self._read_at >= segment.size:
                self._drop(segment)

    def take_lost(self) -> list[tuple[int, str]]:
        """What could not be read since the last call: (entries, at least; a sentence)."""
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
            self._note(lost, "a segment of the spool cannot be read whole", segment.path)
            self._keep_bad(segment)
        else:
            segment.path.unlink(missing_ok=True)
        if segment.folder is not self._own and not any(
            one.folder is segment.folder for one in self._segments
        ):
            self._give_up(segment.folder)

    def _note(self, entries: int, what: str, path: Path) -> None:
        """Bounded: whoever counts comes every few seconds."""
        log.error(what, path=str(path), entries=entries)
        if len(self._lost) < 1000:
            self._lost.append((entries, f"{what}: {path.relative_to(self._root)}"))

    def _keep_bad(self, segment: _Segment) -> None:
        """Beside the folders, under a name that nobody takes for a segment."""
        try:
            segment.path.rename(self._root / f"{segment.folder.path.name}.{segment.path.name}.bad")
            for path in sorted(self._root.glob("*.bad"))[:-BAD_MAX]:
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("what cannot be read of the spool is not kept", error=str(error))
            segment.path.unlink(missing_ok=True)

    # --- folders ---

    def adopt(self) -> int:
        """Takes over what dead processes left; the number of records. What cannot be opened is told once and
        left alone."""
        found = 0
        with self._lock, self._door():
            for path in sorted(one for one in self._root.iterdir() if _FOLDER.fullmatch(one.name)):
                try:
                    folder = _locked(path)
                except OSError as error:
                    self._strange(path, error)
                    continue
                if folder is None:
                    continue
                segments = self._segments_of(folder)
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

    def _segments_of(self, folder: _Folder) -> list[_Segment]:
        """The segments of a dead process, up to the last whole record of each; empty ones are deleted."""
        try:
            paths = sorted(one for one in folder.path.iterdir() if _NAME.fullmatch(one.name))
        except OSError as error:
            self._strange(folder.path, error)
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
                self._strange(path, error)
        return segments

    def _strange(self, path: Path, error: OSError) -> None:
        if path not in self._told and len(self._told) < 1000:
            self._told.add(path)
            self._note(1, f"what lies in the spool cannot be opened ({error.strerror})", path)

    def _new_folder(self) -> _Folder:
        with self._door():
            path = self._root / f"{time.time_ns():020d}-{os.getpid()}"
            path.mkdir(mode=0o700)
            try:
                folder = _locked(path)
            except OSError:
                path.rmdir()
                raise
            assert folder is not None  # nobody else passes the door meanwhile
            try:
                _sync_folder(self._root)
            except OSError:
                self._give_up(folder)
                raise
            return folder

    def _give_up(self, folder: _Folder) -> None:
        try:
            (folder.path / "lock").unlink(missing_ok=True)
            folder.path.rmdir()
        except OSError as error:
            if folder.path not in self._told:
                self._told.add(folder.path)
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
            if self._aside is not None:
                os.close(self._aside.lock)
            self._segments, self._own, self._aside, self._aside_bytes = [], None, None, 0


def _segment_of(path: Path, folder: _Folder) -> _Segment:
    """As another process left it. OSError, also where no file has this name."""
    told = _NAME.fullmatch(path.name)
    if told is None or not path.is_file():
        raise OSError(errno.EINVAL, "not a file", str(path))
    size = path.stat().st_size
    segment = _Segment(path, folder, 0, 0, float(told["begun_at"]), int(told["salt"] or "0", 16))
    for _, behind in _records_of(path, segment.salt, 0, size):
        segment.size, segment.entries = behind, segment.entries + 1
    if segment.size < size:
        log.warning("a spool ends in a torn record", file=str(path), bytes=size - segment.size)
    return segment


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


# --- the form of a segment: records one behind the other, read also where the disk changed some ---
#
# A record is its length and the CRC-32 of what follows, a byte of kind, and the content. The CRC starts from
# the segment's own number, its salt, which no sender knows: no body can be taken for a record.

#: Records of a segment that is not our own are at most this long; a larger length is no length.
_RECORD_MAX = 64 * 1024 * 1024

#: What is read in search of the next record behind an unreadable one, of one segment.
_SEARCH_BYTES = 64 * 1024 * 1024
#: Where a page of the disk cannot be read, the others can.
_PAGE = 4096

_HEAD = struct.Struct("<IIc")
#: What may be a head: its length is below _RECORD_MAX, its kind a letter.
_LIKE_A_HEAD = re.compile(rb"(?s)(?=...[\x00-\x04]....[A-Za-z])")


def _size_of(records: Sequence[Spooled]) -> int:
    """Bytes on disk."""
    return sum(_HEAD.size + len(one.body) for one in records)


def _write(file: int, records: Sequence[Spooled], salt: int) -> None:
    """All of them, safe on disk when this returns. OSError: a part may stand there."""
    rest = memoryview(b"".join(_framed(one, salt) for one in records))
    while rest:
        rest = rest[os.write(file, rest) :]
    os.fdatasync(file)


def _framed(one: Spooled, salt: int) -> bytes:
    content = one.kind + one.body
    return _HEAD.pack(len(content), zlib.crc32(content, salt), one.kind) + one.body


def _records_of(path: Path, salt: int, place: int, end: int) -> Iterator[tuple[Spooled | None, int]]:
    """(record, place behind it) from `place` on; None for what has been whole and cannot be read any more.
    Ends at `end`, and before what was never written whole."""
    content, at, left = _content(path, place, end), 0, _SEARCH_BYTES
    while at < len(content):
        behind = _behind(content, at)
        if behind is not None and _is_whole(content, at, behind, salt):
            yield Spooled(content[at + 8 : at + 9], content[at + 9 : behind]), place + behind
            at = behind
            continue
        following, left = _following(content, at, salt, left)
        if following is None:
            # A machine that lost its power may leave zeros or a part of a record behind the last one.
            if behind is not None or left < 0:
                yield None, end
            return
        yield None, place + following
        at = following


def _behind(content: bytes, at: int) -> int | None:
    """Where the record ends that begins here; None where none does that is all there."""
    if at + _HEAD.size > len(content):
        return None
    length, _, _ = _HEAD.unpack_from(content, at)
    behind = at + _HEAD.size - 1 + length
    return behind if 1 <= length <= _RECORD_MAX and behind <= len(content) else None


def _is_whole(content: bytes, at: int, behind: int, salt: int) -> bool:
    _, crc, _ = _HEAD.unpack_from(content, at)
    return zlib.crc32(memoryview(content)[at + 8 : behind], salt) == crc


def _following(content: bytes, at: int, salt: int, left: int) -> tuple[int | None, int]:
    """Where the next whole record begins behind a bad one, and how many bytes may still be read in search of
    more; below 0: it was given up."""
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
    """What can be read of it; zeros for a page that cannot."""
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
