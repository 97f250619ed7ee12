"""Reading recordings: which files there are, and their lines one after another, never a file as a whole."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import cramjam
import msgspec

from healer.model.recordings import KINDS, Recorded, Recordings
from healer.recordings.recording_folder import about

PACKED = ".zst"
_MAGIC = b"\x28\xb5\x2f\xfd"
_KEYS = (0, 1, 2, 4)
#: The last line of a plain file begins within so much of its end, or its end is not known.
_TAIL_BYTES = 16 * 1024 * 1024


class BadFrame(ValueError):
    """The file is no zstd."""


def recordings(folder: Path | None) -> Recordings:
    """What lies in the folder, oldest first. A file without its `.json` is read for it."""
    if folder is None:
        return Recordings(on=False)
    try:
        files = tuple(_recorded(path) for path in sorted(folder.glob("*.jsonl.zst")))
    except (OSError, ValueError) as error:
        return Recordings(on=True, folder=str(folder), problem=str(error))
    return Recordings(on=True, folder=str(folder), files=tuple(one for one in files if one.lines))


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
    for line in lines_of(path):
        head = decoder.decode(line)
        first, last = first or head.at, head.at
        routes[head.route] = routes.get(head.route, 0) + 1
    never = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return Recorded(
        file=path.name, kind=kind_of(path), first=first or never, last=last or never,
        lines=sum(routes.values()), bytes=path.stat().st_size, routes=routes,
    )  # fmt: skip


def ends_of(path: Path) -> tuple[datetime, datetime] | None:
    """The first and the last moment of a file; None where it has none, or cannot be read for them."""
    try:
        if path.suffix == PACKED:
            known = _recorded(path)
            return (known.first, known.last) if known.lines else None
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


def chosen(paths: Sequence[Path], since: datetime | None, until: datetime | None) -> list[Path]:
    """The files of these paths, a folder's by its list. With `since` from the one that holds it: its
    beginning tells Slurm's picture. FileNotFoundError for a path that is none."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            path.stat()
            found.append(path)
            continue
        told = recordings(path)
        if told.problem:
            raise OSError(told.problem)
        starts = [one.first for one in told.files if one.kind == KINDS[0] and since and one.first <= since]
        begin = max(starts, default=since)
        found += [
            path / one.file
            for one in told.files
            if (begin is None or one.last >= begin) and (until is None or one.first <= until)
        ]
    return found


def lines_of(path: Path) -> Iterator[str]:
    """Its lines; those of a frame that was cut off, as a dead process leaves it, are left out."""
    if path.suffix != PACKED:
        with path.open(encoding="utf-8") as plain:
            yield from plain
        return
    with path.open("rb") as packed:
        while (frame := _frame(packed, path)) is not None:
            text = bytes(cramjam.zstd.decompress(frame)).decode()
            yield from text.splitlines()


def _frame(file: BinaryIO, path: Path) -> bytes | None:
    """The next whole frame, by RFC 8878 section 3.1.1; None at the end, and where it was cut off."""
    start = file.tell()
    head = file.read(5)
    if len(head) < 5:
        return None
    if head[:4] != _MAGIC:
        raise BadFrame(f"{path.name} is no zstd file, or is broken at byte {start}")
    flags = head[4]
    single, checked, size_flag = flags >> 5 & 1, flags >> 2 & 1, flags >> 6
    size_bytes = single if size_flag == 0 else 1 << size_flag
    file.seek((1 - single) + _KEYS[flags & 3] + size_bytes, 1)
    last = False
    while not last:
        block = file.read(3)
        if len(block) < 3:
            return None
        told = int.from_bytes(block, "little")
        last, is_run = bool(told & 1), told >> 1 & 3 == 1
        file.seek(1 if is_run else told >> 3, 1)
    end = file.tell() + 4 * checked
    file.seek(start)
    frame = file.read(end - start)
    return frame if len(frame) == end - start else None
