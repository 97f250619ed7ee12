"""A recording on disk: a folder of packed files by the hour, bounded by age, by size and by the disk itself.

`20261121T180000000000Z-events.jsonl.zst` holds what is judged at once and Slurm's picture,
`…-samples.jsonl.zst` what was measured: a hundred times as much, and the first to go. Each is a row of zstd
frames of whole lines, so that what a dead process left can be read to its last frame. Beside each a small
`.json` says what it holds.
"""

import os
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import cramjam
import msgspec

from healer.model.recordings import KINDS, Recorded

#: A file ends with the hour, or at this size.
FILE_BYTES = 512 * 1024 * 1024
#: Lines wait at most so long for their frame, or until there are so many bytes of them.
FRAME_S = 10.0
FRAME_BYTES = 4 * 1024 * 1024
#: Nothing is recorded into the last twentieth of a disk: the database may stand on the same one.
FREE_SHARE = 0.05
_LEVEL = 3
_NAME = "%Y%m%dT%H%M%S%fZ"


class DiskFull(OSError):
    """The disk has no room for recordings."""


class _Stream:
    """One file under way."""

    def __init__(self, folder: Path, kind: str, at: datetime) -> None:
        self.path = folder / f"{at.strftime(_NAME)}-{kind}.jsonl.zst"
        # People's names and jobs' comments stand in it: for healer's own user alone.
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self.known = Recorded(file=self.path.name, kind=kind, first=at, last=at)
        self._lines: list[bytes] = []
        self._waiting = 0
        self.waits_since: float | None = None

    @property
    def full(self) -> bool:
        return self._waiting >= FRAME_BYTES

    def add(self, line: bytes, at: datetime, route: str, stopwatch_s: float) -> None:
        known = self.known
        routes = known.routes
        routes[route] = routes.get(route, 0) + 1
        self.known = msgspec.structs.replace(known, last=max(known.last, at), lines=known.lines + 1)
        self._lines.append(line)
        self._waiting += len(line) + 1
        if self.waits_since is None:
            self.waits_since = stopwatch_s

    def write(self) -> int:
        """Ends the frame; how many lines of it could not be written because the disk refused them."""
        lines, self._lines, self._waiting, self.waits_since = self._lines, [], 0, None
        if not lines:
            return 0
        packed = bytes(cramjam.zstd.compress(b"\n".join(lines) + b"\n", level=_LEVEL))
        end = self.known.bytes
        try:
            if free_share(self.path.parent) < FREE_SHARE:
                raise DiskFull
            done = 0
            while done < len(packed):
                done += os.write(self._file, packed[done:])
        except OSError:
            os.ftruncate(self._file, end)  # half a frame would hide what comes after it
            os.lseek(self._file, end, os.SEEK_SET)
            self.known = msgspec.structs.replace(self.known, lost=self.known.lost + len(lines))
            return len(lines)
        self.known = msgspec.structs.replace(self.known, bytes=end + len(packed))
        self._tell()
        return 0

    def _tell(self) -> None:
        beside = self.path.with_name(f"{self.path.name}.tmp")
        beside.write_bytes(msgspec.json.encode(self.known))
        beside.replace(about(self.path))

    def close(self) -> int:
        lost = self.write()
        os.close(self._file)
        return lost


class RecordingFolder:
    """`healer.recordings.recorder.File`. For one thread; a disk that refuses loses lines and never raises."""

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int,
        max_age: timedelta,
        now: Callable[[], datetime],
        stopwatch: Callable[[], float] = time.monotonic,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        """OSError where the folder cannot be made or written."""
        self.folder, self._max_bytes, self._max_age = folder, max_bytes, max_age
        self._now, self._stopwatch, self._file_bytes = now, stopwatch, file_bytes
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "not writable", str(folder))
        self._streams: dict[str, _Stream] = {}
        self._turned_at: datetime | None = None
        self._last_name: datetime | None = None
        #: Lines that the disk refused since this was last taken.
        self._refused = 0

    def write(self, line: bytes, at: datetime, route: str, *, samples: bool = False) -> None:
        kind = KINDS[samples]
        try:
            if kind not in self._streams:
                self._streams[kind] = _Stream(self.folder, kind, self._named())
        except OSError:
            self._refused += 1
            return
        stream = self._streams[kind]
        stream.add(line, at, route, self._stopwatch())
        if stream.full:
            self._refused += stream.write()

    def begun(self) -> bool:
        """Turns full files and those of the last hour over. True once per file, and once per process."""
        now = self._now()
        if self._turned_at is not None and not self._is_due(now):
            return False
        self.close()
        self._turned_at = now
        prune(self.folder, max_bytes=self._max_bytes, max_age=self._max_age, now=now)
        return True

    def rest(self) -> int:
        """Writes frames that waited long enough; how many lines were lost since the last call."""
        for stream in self._streams.values():
            since = stream.waits_since
            if since is not None and self._stopwatch() - since >= FRAME_S:
                self._refused += stream.write()
        lost, self._refused = self._refused, 0
        return lost

    def close(self) -> None:
        for stream in self._streams.values():
            self._refused += stream.close()
        self._streams = {}

    def _is_due(self, now: datetime) -> bool:
        assert self._turned_at is not None
        if _hour(now) != _hour(self._turned_at):
            return True
        return any(stream.known.bytes >= self._file_bytes for stream in self._streams.values())

    def _named(self) -> datetime:
        """Now; later than the name of any file before, also where the clock was put back."""
        now = self._now()
        if self._last_name is not None and now <= self._last_name:
            now = self._last_name + timedelta(microseconds=1)
        self._last_name = now
        return now


def about(path: Path) -> Path:
    """The small file beside a recording."""
    return path.with_name(path.name.removesuffix(".jsonl.zst") + ".json")


def prune(folder: Path, *, max_bytes: int, max_age: timedelta, now: datetime) -> list[str]:
    """Deletes what is too old; then, while all is too large or the disk too full, the oldest samples, then
    the oldest events. The names of what went."""
    files = sorted(folder.glob("*.jsonl.zst"))
    oldest = (now - max_age).strftime(_NAME)
    gone = [path for path in files if path.name[: len(oldest)] < oldest]
    kept = [path for path in files if path not in gone]
    size = sum(path.stat().st_size for path in kept)
    for path in sorted(kept, key=lambda one: ("samples" not in one.name, one.name)):
        if size <= max_bytes and free_share(folder) >= FREE_SHARE:
            break
        size -= path.stat().st_size
        _drop(path)
        gone.append(path)
    for path in gone:
        _drop(path)
    return [path.name for path in gone]


def _drop(path: Path) -> None:
    path.unlink(missing_ok=True)
    about(path).unlink(missing_ok=True)


def free_share(folder: Path) -> float:
    told = shutil.disk_usage(folder)
    return told.free / told.total


def _hour(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y%m%d%H")
