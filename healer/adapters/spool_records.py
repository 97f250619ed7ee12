"""The form of a segment of the spool: records one behind the other, read also where the disk changed some.

A record is its length and the CRC-32 of what follows, a byte of kind, and the content. The CRC starts from
the segment's own number, its salt, which no sender knows: what stands in a body is never taken for a record.
"""

import errno
import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from healer.ports.signal_stores import Spooled

#: Records of a segment that is not our own are at most this long; a larger length is no length.
_RECORD_MAX = 64 * 1024 * 1024

#: What is read in search of the next record behind an unreadable one, of one segment.
_SEARCH_BYTES = 64 * 1024 * 1024
#: Where a page of the disk cannot be read, the others can.
_PAGE = 4096

_HEAD = struct.Struct("<IIc")
#: What may be a head: its length is below _RECORD_MAX, its kind a letter.
_LIKE_A_HEAD = re.compile(rb"(?s)(?=...[\x00-\x04]....[A-Za-z])")


def size_of(records: Sequence[Spooled]) -> int:
    """Bytes on disk."""
    return sum(_HEAD.size + len(one.body) for one in records)


def write(file: int, records: Sequence[Spooled], salt: int) -> None:
    """All of them, safe on disk when this returns. OSError: a part may stand there."""
    rest = memoryview(b"".join(_framed(one, salt) for one in records))
    while rest:
        rest = rest[os.write(file, rest) :]
    os.fdatasync(file)


def _framed(one: Spooled, salt: int) -> bytes:
    content = one.kind + one.body
    return _HEAD.pack(len(content), zlib.crc32(content, salt), one.kind) + one.body


def records_of(path: Path, salt: int, place: int, end: int) -> Iterator[tuple[Spooled | None, int]]:
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
