"""A recording on disk: a folder of compressed files by the hour, bounded by age and size.

`20261121T180000000000Z-events.jsonl.zst` holds events and Slurm's picture, `…-samples.jsonl.zst`
measurements: a hundred times as much, and the first to be deleted. Each file is a sequence of zstd frames of
whole lines, so that a file of a killed process can be read to its last frame. A small `.json` next to it
summarizes it.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO, Self

import cramjam
import msgspec

from healer.model.recordings import KINDS, Recorded, Recordings
from healer.text import NO_WORDS, said_by, say

#: A new file begins each hour, or after this size.
FILE_BYTES = 512 * 1024 * 1024
#: A frame is written after this many seconds or bytes of lines.
FRAME_S = 10.0
FRAME_BYTES = 4 * 1024 * 1024
#: Free share of the disk that recordings leave: the database may be on the same disk.
FREE_SHARE = 0.05
_LEVEL = 3
#: For a file that is written once.
_FILE_LEVEL = 6
_NAME = "%Y%m%dT%H%M%S%fZ"
_RECORDED = ".jsonl.zst"


class DiskFull(OSError):
    """The disk has no room for recordings."""


class _Stream:
    """An open file."""

    def __init__(self, folder: Path, kind: str, named: datetime, at: datetime) -> None:
        """`at`: of its first entry, which may have waited for the writer and be older than the name."""
        self.path = folder / f"{named.strftime(_NAME)}-{kind}{_RECORDED}"
        # It holds people's names and comments of jobs: readable by healer's user only.
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self.summary = Recorded(file=self.path.name, kind=kind, first=at, last=at)
        self._lines: list[bytes] = []
        self._waiting = 0
        self.waits_since: float | None = None

    @property
    def full(self) -> bool:
        return self._waiting >= FRAME_BYTES

    def add(self, line: bytes, at: datetime, route: str, stopwatch_s: float) -> None:
        summary = self.summary
        routes = summary.routes
        routes[route] = routes.get(route, 0) + 1
        self.summary = msgspec.structs.replace(summary, last=max(summary.last, at), lines=summary.lines + 1)
        self._lines.append(line)
        self._waiting += len(line) + 1
        if self.waits_since is None:
            self.waits_since = stopwatch_s

    def write(self) -> int:
        """Writes the frame. Returns the number of lines that the disk refused."""
        lines, self._lines, self._waiting, self.waits_since = self._lines, [], 0, None
        if not lines:
            return 0
        packed = bytes(cramjam.zstd.compress(b"\n".join(lines) + b"\n", level=_LEVEL))
        end = self.summary.bytes
        try:
            if free_share(self.path.parent) < FREE_SHARE:
                raise DiskFull
            done = 0
            while done < len(packed):
                done += os.write(self._file, packed[done:])
        except OSError:
            os.ftruncate(self._file, end)  # half a frame would hide what comes after it
            os.lseek(self._file, end, os.SEEK_SET)
            self.summary = msgspec.structs.replace(self.summary, lost=self.summary.lost + len(lines))
            return len(lines)
        self.summary = msgspec.structs.replace(self.summary, bytes=end + len(packed))
        with suppress(OSError):  # the next frame writes it again, and the lines are read without it
            temporary = self.path.with_name(f"{self.path.name}.tmp")
            temporary.write_bytes(msgspec.json.encode(self.summary))
            temporary.replace(about(self.path))
        return 0

    def close(self) -> int:
        lost = self.write()
        os.close(self._file)
        return lost


class LinesFile:
    """One file of whole lines, plain or packed in frames."""

    def __init__(self, path: Path, *, packed: bool) -> None:
        self._file, self._packed = path.open("wb"), packed
        self._held: list[bytes] = []
        self._held_bytes = 0

    def __enter__(self) -> Self:
        return self

    def write(self, line: bytes, /) -> object:
        """`line` with its end."""
        self._held.append(line)
        self._held_bytes += len(line)
        if self._held_bytes >= FRAME_BYTES:
            self._flush()
        return None

    def _flush(self) -> None:
        whole = b"".join(self._held)
        self._file.write(bytes(cramjam.zstd.compress(whole, level=_FILE_LEVEL)) if self._packed else whole)
        self._held, self._held_bytes = [], 0

    def __exit__(self, *_: object) -> None:
        if self._held:
            self._flush()
        self._file.close()


class RecordingFolder:
    """`healer.recordings.recorder.File`. Not thread-safe. A full disk loses lines and raises nothing."""

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int,
        max_age: timedelta,
        now: Callable[[], datetime],
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        """OSError where the folder cannot be made or written."""
        self.folder, self._max_bytes, self._max_age = folder, max_bytes, max_age
        self._now, self._stopwatch = now, stopwatch
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "not writable", str(folder))
        self._streams: dict[str, _Stream] = {}
        self._turned_at: datetime | None = None
        self._last_name: datetime | None = None
        #: Lines lost since the last `rest`.
        self._refused = 0

    def write(self, line: bytes, at: datetime, route: str, *, samples: bool = False) -> None:
        kind = KINDS[samples]
        try:
            if kind not in self._streams:
                self._streams[kind] = _Stream(self.folder, kind, self._named(), at)
        except OSError:
            self._refused += 1
            return
        stream = self._streams[kind]
        stream.add(line, at, route, self._stopwatch())
        if stream.full:
            self._refused += stream.write()

    def begun(self) -> bool:
        """Begins new files after an hour or when one is full, and prunes. True once per new file and
        process."""
        now = self._now()
        if self._turned_at is not None and not self._is_due(now):
            return False
        self.close()
        self._turned_at = now
        prune(self.folder, max_bytes=self._max_bytes, max_age=self._max_age, now=now)
        return True

    def rest(self) -> int:
        """Writes frames that are due. Returns the number of lines lost since the last call."""
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
        return any(stream.summary.bytes >= FILE_BYTES for stream in self._streams.values())

    def _named(self) -> datetime:
        """Time for a file name: now, but after all earlier names even if the clock went back."""
        now = self._now()
        if self._last_name is not None and now <= self._last_name:
            now = self._last_name + timedelta(microseconds=1)
        self._last_name = now
        return now


def about(path: Path) -> Path:
    """Path of the recording's summary."""
    return path.with_name(path.name.removesuffix(_RECORDED) + ".json")


def prune(folder: Path, *, max_bytes: int, max_age: timedelta, now: datetime) -> list[str]:
    """Deletes files that are too old; then, while the folder is too large or the disk too full, the oldest
    samples, then the oldest events. Returns the names of deleted files."""
    files = sorted(folder.glob(f"*{_RECORDED}"))
    oldest = (now - max_age).strftime(_NAME)
    gone = [path for path in files if path.name[: len(oldest)] < oldest]
    kept = [path for path in files if path not in gone]
    size = sum(path.stat().st_size for path in kept)
    for path in sorted(kept, key=lambda file: ("samples" not in file.name, file.name)):
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
    usage = shutil.disk_usage(folder)
    return usage.free / usage.total


def _hour(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y%m%d%H")


# --- reading: the files, and their lines one by one

PACKED = ".zst"
_MAGIC = b"\x28\xb5\x2f\xfd"
_KEYS = (0, 1, 2, 4)
#: Bytes at the end of a plain file in which its last line is looked for.
_TAIL_BYTES = 16 * 1024 * 1024


class BadFrame(ValueError):
    """The file is no zstd file."""


def recordings(folder: Path | None) -> Recordings:
    """Summaries of the files in the folder, oldest first. A file without its `.json` is scanned; one that
    cannot be read is the `problem`."""
    if folder is None:
        return Recordings(on=False)
    files: list[Recorded] = []
    problem = NO_WORDS
    try:
        # Not `glob`, to which a folder that may not be read is an empty one.
        paths = sorted(folder.iterdir()) if folder.exists() else []
    except OSError as error:
        paths, problem = [], said_by(error)
    for path in paths:
        if not path.name.endswith(_RECORDED):
            continue
        try:
            files.append(_recorded(path))
        except FileNotFoundError:  # deleted by now, as the oldest are
            continue
        except (OSError, ValueError) as error:
            problem = problem or said_by(error)
    return Recordings(
        on=True,
        folder=str(folder),
        problem=say("simulation.recordings_unreadable", why=problem) if problem else NO_WORDS,
        files=tuple(file for file in files if file.lines),
    )


def _recorded(path: Path) -> Recorded:
    try:
        return msgspec.json.decode(about(path).read_bytes(), type=Recorded)
    except (OSError, msgspec.DecodeError):
        return _scanned(path)


class _Head(msgspec.Struct):
    at: datetime
    route: str


def _scanned(path: Path) -> Recorded:
    first = last = None
    routes: dict[str, int] = {}
    decoder = msgspec.json.Decoder(_Head)
    for number, line in enumerate(lines_of(path), start=1):
        try:
            head = decoder.decode(line)
        except ValueError as error:
            of_line = {"file": path.name, "number": number, "text": said_by(error)}
            raise ValueError(say("simulation.of_line_in_file", **of_line)) from error
        first, last = first or head.at, head.at
        routes[head.route] = routes.get(head.route, 0) + 1
    never = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return Recorded(
        file=path.name, kind=kind_of(path), first=first or never, last=last or never,
        lines=sum(routes.values()), bytes=path.stat().st_size, routes=routes,
    )  # fmt: skip


def ends_of(path: Path) -> tuple[datetime, datetime] | None:
    """Times of the first and last entry; None for an empty or unreadable file, and for a pipe, which gives
    its lines once."""
    try:
        if not path.is_file():
            return None
        if path.suffix == PACKED:
            recorded = _recorded(path)
            return (recorded.first, recorded.last) if recorded.lines else None
        with path.open("rb") as file:
            first = file.readline()
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            last = file.read().splitlines()[-1]
        moments = (msgspec.json.decode(line, type=_Head).at for line in (first, last))
        return next(moments), next(moments)
    except (OSError, ValueError, IndexError):
        return None


def kind_of(path: Path) -> str:
    return KINDS["-samples." in path.name]


def tracks_of(paths: Sequence[Path]) -> list[str]:
    """For each of these files, by time, the track that it is the next of. Files of one kind are one, unless
    their times overlap, as where the clock was set back while the detector was away."""
    kinds = [kind_of(path) for path in paths]
    if len(set(kinds)) == len(kinds):
        return kinds  # no need to look into them
    ends: dict[str, datetime] = {}
    tracks: list[str] = []
    for path, kind in zip(paths, kinds, strict=True):
        track, span = kind, ends_of(path)
        while span is not None and track in ends and span[0] < ends[track]:
            track += "+"
        if span is not None:
            ends[track] = span[1]
        tracks.append(track)
    return tracks


def chosen(paths: Sequence[Path], since: datetime | None, until: datetime | None) -> list[Path]:
    """The files at these paths between `since` and `until`, from the events file that holds `since`, as
    Slurm's picture is at its start. Raises FileNotFoundError."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            path.stat()
            found.append(path)
            continue
        listed = recordings(path)
        if listed.problem:
            raise OSError(listed.problem)
        starts = [
            file.first for file in listed.files if file.kind == KINDS[0] and since and file.first <= since
        ]
        begin = max(starts, default=since)
        found += [
            path / file.file
            for file in listed.files
            if (begin is None or file.last >= begin) and (until is None or file.first <= until)
        ]
    return found


def lines_of(path: Path) -> Iterator[str]:
    """Lines of the file, without a truncated last frame as a killed process leaves it. What is not UTF-8 is
    left to who decodes a line, and names it."""
    if path.suffix != PACKED:
        with path.open(encoding="utf-8", errors="surrogateescape") as plain:
            yield from plain
        return
    with path.open("rb") as packed:
        while (frame := _frame(packed, path)) is not None:
            try:
                text = bytes(cramjam.zstd.decompress(frame)).decode(errors="surrogateescape")
            except cramjam.DecompressionError:
                at = packed.tell() - len(frame)
                raise BadFrame(say("simulation.bad_zstd", file=path.name, byte=at)) from None
            # Not `splitlines`: it also ends lines at U+2028 and its like, which JSON leaves within a text.
            yield from text.removesuffix("\n").split("\n")


def _frame(file: BinaryIO, path: Path) -> bytes | None:
    """The next whole frame; None at the end or if it is truncated."""
    start = file.tell()
    end = _frame_end(file, path)
    if end is None:
        return None
    file.seek(start)
    frame = file.read(end - start)
    return frame if len(frame) == end - start else None


def is_whole(path: Path) -> bool:
    """Whether the last frame of a zstd file ends: those who unpack it take a cut one for the end. True also
    for what is no frame, of which they complain themselves."""
    with path.open("rb") as file, suppress(BadFrame):
        size = file.seek(0, os.SEEK_END)
        end: int | None = 0
        while end is not None and end < size:
            file.seek(end)
            end = _frame_end(file, path)
        return end == size
    return True


def _frame_end(file: BinaryIO, path: Path) -> int | None:
    """Where the frame at this place ends by its headers (RFC 8878, section 3.1.1), which may be behind the
    file's end; None if a header is cut off."""
    start = file.tell()
    head = file.read(5)
    if len(head) < 5:
        return None
    if head[:4] != _MAGIC:
        raise BadFrame(say("simulation.bad_zstd", file=path.name, byte=start))
    flags = head[4]
    single, checked, size_flag = flags >> 5 & 1, flags >> 2 & 1, flags >> 6
    size_bytes = single if size_flag == 0 else 1 << size_flag
    file.seek((1 - single) + _KEYS[flags & 3] + size_bytes, 1)
    last = False
    while not last:
        block = file.read(3)
        if len(block) < 3:
            return None
        header = int.from_bytes(block, "little")
        last, is_run = bool(header & 1), header >> 1 & 3 == 1
        file.seek(1 if is_run else header >> 3, 1)
    return file.tell() + 4 * checked
