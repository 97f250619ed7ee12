"""Reads a source as blocks of whole lines, unpacked on the way. Memory stays bounded, whatever is in it."""

import bz2
import codecs
import errno
import gzip
import io
import itertools
import lzma
import re
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Protocol, cast

import zstandard

from healer.importing.tally import Tally
from healer.recordings.recording_folder import is_whole
from healer.signals.kernel_log import COLOURS
from healer.signals.wire import byte_order
from healer.text import Said, say

BLOCK_BYTES = 1 << 20
#: The longest line that is read: a record of the journal may hold a long message, a kernel line is short.
LINE_BYTES = 256 << 10
#: A window that a frame may ask for: `zstd --long=27` needs 128 MiB.
_WINDOW_BYTES = 128 << 20
#: An archive that is cut off or broken.
_BROKEN = (EOFError, OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError)
#: Its head, and that of its first block or of its end.
_BZIP2 = re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)", re.DOTALL)
_COLOURS = re.compile(COLOURS.pattern.encode())
STDIN = "-"


class _Readable(Protocol):
    def read1(self, size: int, /) -> bytes: ...


class Bytes(Protocol):
    def read(self, size: int, /) -> bytes: ...

    def processed(self, count: int, /) -> None:
        """So many unpacked bytes are done with."""


class Counter(Protocol):
    def __setitem__(self, place: int, value: int, /) -> None: ...


class _Counted(io.RawIOBase):
    """A file that counts the bytes read, for the progress."""

    def __init__(self, path: str, counter: Counter | None, place: int) -> None:
        self._file = io.FileIO(path)
        self._counter, self._place, self._read = counter, place, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override] - what BufferedReader passes
        count = self._file.readinto(buffer) or 0
        self._read += count
        if self._counter is not None:
            self._counter[self._place] = self._read
        return count

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._file.seek(offset, whence)


class _Plain(io.RawIOBase):
    """Bytes of `read1`, for what reads a file. Closing it leaves standard input open."""

    def __init__(self, file: _Readable) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override] - what BufferedReader passes
        try:
            piece = self._file.read1(len(buffer))
        except _BROKEN as error:
            raise OSError(errno.EIO, say("importing.broken_archive", why=str(error))) from error
        buffer[: len(piece)] = piece
        return len(piece)


class _Zstd:
    """An archive of zstd, whose library treats a truncated one as complete."""

    def __init__(self, file: IO[bytes], path: str) -> None:
        unpacker = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES)
        self._file, self._path = unpacker.stream_reader(file, read_across_frames=True), path

    def read1(self, size: int, /) -> bytes:
        piece = self._file.read1(size)
        if not piece and not is_whole(Path(self._path)):
            raise EOFError(say("detection.dump_ends_early"))
        return piece


def _kept(file: IO[bytes]) -> _Zstd:
    """From standard input: in a file, as only that shows whether its last frame ends."""
    kept = tempfile.NamedTemporaryFile()  # noqa: SIM115 - it lives as long as its reader
    shutil.copyfileobj(file, kept)
    kept.seek(0)
    return _Zstd(kept, kept.name)


class _AsUtf8:
    """UTF-16, as Windows writes it, becomes UTF-8; a byte-order mark is left out. All else stays as it is."""

    def __init__(self, file: _Readable) -> None:
        self._file, self._held, self._ended, self._is_known = file, b"", False, False
        self._decoder: codecs.IncrementalDecoder | None = None

    def read1(self, size: int, /) -> bytes:
        while not self._is_known:
            self._look()
        while not self._held and not self._ended:
            self._take(self._file.read1(size))
        piece, self._held = self._held[:size], self._held[size:]
        return piece

    def _look(self) -> None:
        """Takes the first bytes, until they say what follows."""
        piece = self._file.read1(BLOCK_BYTES)
        self._held += piece
        if piece and len(self._held) < len(codecs.BOM_UTF8):
            return
        self._is_known = True
        mark, encoding = byte_order(self._held)
        self._decoder = codecs.getincrementaldecoder(encoding)("replace") if encoding else None
        first, self._held = self._held[mark:], b""
        if first:
            self._take(first)

    def _take(self, piece: bytes) -> None:
        self._ended = not piece
        if self._decoder is not None:
            piece = self._decoder.decode(piece, final=self._ended).encode()
        self._held = piece


class Unpacked:
    """Unpacked bytes behind the first `after`. An archive that is broken is read up to there."""

    def __init__(self, file: _Readable, after: int, processed: Callable[[int], None] | None) -> None:
        self._file, self._after, self._processed = file, after, processed

    def read(self, size: int, /) -> bytes:
        while self._after:
            piece = self._file.read1(min(self._after, BLOCK_BYTES))
            if not piece:
                return b""
            self._after -= len(piece)
        parts = list[bytes]()
        while left := size - sum(map(len, parts)):
            try:
                piece = self._file.read1(left)
            except _BROKEN:
                if not parts:
                    raise
                break  # the next call meets it again
            if not piece:
                break
            parts.append(piece)
        return b"".join(parts)

    def processed(self, count: int, /) -> None:
        if self._processed is not None:
            self._processed(count)


def opened(
    path: str,
    counter: Counter | None = None,
    place: int = 0,
    after: int = 0,
    processed: Callable[[int], None] | None = None,
) -> Unpacked:
    """The file's bytes, unpacked if it is gzip, bzip2, xz or zstd, and as UTF-8 if it is UTF-16; `-` is
    standard input. `counter[place]` becomes the bytes read of the file itself. Raises OSError."""
    return Unpacked(_AsUtf8(_unpacked(path, counter, place)), after, processed)


def text_file(path: str) -> io.BufferedReader:
    """The same as a file of its own. A broken archive raises OSError where it breaks."""
    return io.BufferedReader(_Plain(_AsUtf8(_unpacked(path))))


def is_url(path: str) -> bool:
    return path.startswith(("http://", "https://"))


def _unpacked(path: str, counter: Counter | None = None, place: int = 0) -> _Readable:
    if is_url(path):  # it is asked, not read
        return io.BytesIO()
    stdin = cast(io.BufferedReader, sys.stdin.buffer)
    raw = _Plain(stdin) if path == STDIN else _Counted(path, counter, place)
    file = io.BufferedReader(raw, BLOCK_BYTES)
    head = file.peek(10)[:10]
    if head.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file)
    if _BZIP2.fullmatch(head):
        return bz2.BZ2File(file)
    if head.startswith(b"\xfd7zXZ\x00"):
        return lzma.LZMAFile(file)
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return _Zstd(file, path) if path != STDIN else _kept(file)
    return file


def gzip_time(path: str) -> int | None:
    """When the packed file was last written, in seconds since 1970, as gzip keeps it."""
    with Path(path).open("rb") as file:
        head = file.read(8)
    return int.from_bytes(head[4:8], "little") or None if head.startswith(b"\x1f\x8b") else None


def pieces(file: Bytes, tally: Tally) -> Iterator[bytes]:
    """What the file holds, piece by piece; what follows the broken part of an archive is lost."""
    while True:
        try:
            piece = file.read(BLOCK_BYTES)
        except _BROKEN as error:
            tally.skip(say("importing.broken_archive", why=str(error)))
            return
        if not piece:
            return
        tally.read_bytes += len(piece)
        yield piece


def blocks(file: Bytes, tally: Tally) -> Iterator[bytes]:
    """Whole lines, about 1 MiB at once, each with its end. Longer lines than LINE_BYTES and lines with a NUL
    are skipped. The caller counts the lines of a block before it takes the next."""
    rest, dropping = b"", False
    for each in pieces(file, tally):
        piece = each
        if dropping:
            cut = piece.find(b"\n") + 1
            if not cut:
                continue
            piece, dropping = piece[cut:], False
        end = piece.rfind(b"\n") + 1
        if end:
            yield from _clean(rest + piece[:end], tally)
            rest = piece[end:]
            file.processed(tally.read_bytes - len(rest))
        else:
            rest += piece
        if len(rest) > LINE_BYTES:
            tally.lines += 1
            tally.skip(say("importing.long_line", kib=LINE_BYTES >> 10), rest[:100])
            rest, dropping = b"", True
    if rest:
        yield from _clean(rest + b"\n", tally)


def without_colours(text: bytes) -> bytes:
    """Without what a terminal shows as colours, as `dmesg --color=always` prints them."""
    return _COLOURS.sub(b"", text) if b"\x1b" in text else text


def _clean(with_colours: bytes, tally: Tally) -> Iterator[bytes]:
    """The block, or the parts of it between lines that are skipped."""
    block = without_colours(with_colours)
    if b"\0" not in block and not _has_long_line(block):
        yield block
        return
    lines = (line + b"\n" for line in block.split(b"\n")[:-1])
    for why, run in itertools.groupby(lines, _why_skipped):
        if why is None:
            yield b"".join(run)
            continue
        for line in run:
            tally.lines += 1
            tally.skip(why, line)


def lines_in(block: bytes, tally: Tally) -> Iterator[bytes]:
    """Without their ends; each is counted as it is read. A carriage return within a line ends none: what a
    program wrote behind it would otherwise pass for a line of the file itself."""
    for line in block.removesuffix(b"\n").split(b"\n"):
        tally.lines += 1
        yield line.removesuffix(b"\r")


def lines_of(file: Bytes, tally: Tally) -> Iterator[bytes]:
    """All lines of a source, as `lines_in`."""
    for block in blocks(file, tally):
        yield from lines_in(block, tally)


def texts_of(file: Bytes, tally: Tally) -> Iterator[str]:
    """The same as text."""
    return (line.decode("utf-8", "replace") for line in lines_of(file, tally))


def _has_long_line(block: bytes) -> bool:
    """A line that is longer than LINE_BYTES covers a multiple of it."""
    places = range(LINE_BYTES, len(block), LINE_BYTES)
    return any(block.find(b"\n", place) - block.rfind(b"\n", 0, place) > LINE_BYTES for place in places)


def _why_skipped(line: bytes) -> Said | None:
    if len(line) > LINE_BYTES:
        return say("importing.long_line", kib=LINE_BYTES >> 10)
    return say("importing.binary") if b"\0" in line else None
