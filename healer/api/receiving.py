"""Bodies: received within their time, unpacked within their size.

A sender packs once: `Content-Encoding` is gzip, zstd, or nothing. A list of them (a pack within a pack) is
refused by name, so a bomb inside a bomb is never opened.
"""

import asyncio
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

import cramjam
import numpy as np
from numpy.typing import NDArray
from starlette.datastructures import Headers
from starlette.types import Receive

from healer.api.problems import Problem
from healer.ports.callers import Caller

#: What a body may be packed as; the names are HTTP's.
PACKINGS = ("gzip", "zstd")
_PLAIN = frozenset({"", "identity"})
_ALIASES = {"x-gzip": "gzip"}  # RFC 9110, 8.4.1.3
#: gzip is fed so much at once: what lies behind the end of a member is copied, once for each member.
_PIECE = 64 * 1024
#: And unpacked in steps of so much.
_STEP = 1024 * 1024
#: Members of one gzip body. Senders write one; log shippers that append write some.
MEMBERS_MAX = 1000


def packing_of(headers: Headers) -> str:
    """`Content-Encoding` as one word in small letters, all its lines together; `identity` without one."""
    text = ", ".join(headers.getlist("content-encoding")).strip().lower()
    return "identity" if text in _PLAIN else _ALIASES.get(text, text)


def check_encoding(encoding: str) -> None:
    """Raises Problem 415, before a body is read that nobody could unpack."""
    if encoding not in {"identity", *PACKINGS}:
        named = encoding[:50]
        why = "more than one packing" if "," in encoding else "not understood"
        raise Problem(415, f"Content-Encoding {named}: {why}; send it plain, or as gzip or zstd")


def unpacked(raw: bytes, encoding: str, limit: int) -> bytes:
    """The body of at most `limit` bytes; no more than that is ever unpacked.

    Raises Problem: 413 beyond the limit, 415 for another packing, 400 for what is not what it says.
    """
    check_encoding(encoding)
    if encoding == "identity":
        if len(raw) > limit:
            raise too_large(limit)
        return raw
    room = np.empty(limit + 1, np.uint8)  # pages that nobody writes to cost nothing
    size, why = _gunzip(raw, room) if encoding == "gzip" else _unzstd(raw, room)
    if not why and size <= limit:
        return room[:size].tobytes()
    del room  # else it would live as long as the error's traceback
    if why:
        raise Problem(400, f"the body is not {encoding}: {why}")
    raise too_large(limit)


def too_large(limit: int) -> Problem:
    return Problem(413, f"the body is larger than {limit} bytes", headers={"Connection": "close"})


def _gunzip(raw: bytes, room: NDArray[np.uint8]) -> tuple[int, str]:
    """RFC 1952: one member or several. (bytes written to `room`, why it is not gzip); full means too many."""
    size = place = members = 0
    piece = b""
    unpacker = None
    while size < len(room):
        if unpacker is None:
            if place == len(raw):
                break
            members += 1
            if members > MEMBERS_MAX:
                return size, f"it has more than {MEMBERS_MAX} members"
            unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
        if not piece:
            piece = raw[place : place + _PIECE]
            place += len(piece)
        try:
            part = unpacker.decompress(piece, min(_STEP, len(room) - size))
        except zlib.error as error:
            return size, str(error)
        if not part and not piece and not unpacker.eof:
            break  # nothing goes in, nothing comes out
        room[size : size + len(part)] = np.frombuffer(part, np.uint8)
        size += len(part)
        piece = unpacker.unconsumed_tail
        if unpacker.eof:
            place -= len(unpacker.unused_data)
            piece, unpacker = b"", None
    ended = size == len(room) or (unpacker is None and members > 0)
    return size, "" if ended else "it ends too early"


def _unzstd(raw: bytes, room: NDArray[np.uint8]) -> tuple[int, str]:
    """RFC 8878: one frame or several, with or without their sizes. As `_gunzip`.

    The decoder writes into the room it is given, and refuses frames that want a window of over 128 MiB.
    """
    if not raw:
        return 0, "it is empty"
    try:
        return cramjam.zstd.decompress_into(raw, room.data), ""
    except cramjam.DecompressionError as error:
        # The room's end is told only by these words; were they to change, the body would be refused as 400.
        return (len(room), "") if "whole buffer" in str(error) else (0, str(error))


#: The key of a scope whose whole body is here already, as `connections` sees it: nothing is waited for.
WHOLE = "healer.whole"
#: A body of 8 MB needs 280 kB/s for this; senders are on the cluster's own network.
WHOLE_S = 30.0
#: After so long at least so much must have come for each second: one that drips is told before `WHOLE_S`.
GRACE_S, LEAST_RATE = 10.0, 1024
#: Bodies on their way at once: of a token bound to a node, of all tokens of a job, whose ranks send by
#: themselves, and of any other token.
OPEN_OF_NODE, OPEN_OF_JOB, OPEN = 64, 1024, 4096
#: Bytes of bodies that are not whole yet: of one token or one job, and of all together.
HELD_OF_NODE, HELD_OF_JOB, HELD_OF_TOKEN, HELD = 16 * 2**20, 16 * 2**20, 64 * 2**20, 256 * 2**20
#: Beyond `HELD` for short bodies alone, such as events are: long ones keep them out no more than this.
SHORT, RESERVE = 256 * 1024, 32 * 2**20


class Stalled(Problem):
    """408: the body did not come in its time. The connection ends, as the rest of the body may still come."""

    def __init__(self, size: int) -> None:
        super().__init__(
            408,
            f"the body came too slowly: {size} bytes, and it must be whole within {WHOLE_S:g} s and after "
            f"{GRACE_S:g} s have brought {LEAST_RATE} bytes for each second more",
            code="stalled",
            headers={"Connection": "close"},
        )


class Broken(Problem):
    """400 that nobody reads: the sender went away before its body was whole."""

    def __init__(self, size: int) -> None:
        super().__init__(400, f"the sender went away after {size} bytes of its body")


class Crowded(Problem):
    """429: too much is on its way already, of this token or of all."""

    def __init__(self, why: str) -> None:
        super().__init__(429, why, headers={"Retry-After": "2", "Connection": "close"})


class Receiver:
    """For one event loop. What it holds is bounded by the bodies that are on their way."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        #: Bytes of bodies that are not whole yet.
        self.held = 0

    async def body(
        self,
        receive: Receive,
        limit: int,
        caller: Caller,
        came: Callable[[int], None] = lambda _: None,
    ) -> bytes:
        """The whole body. Raises 413 as soon as it is too long, 408, 429, or 400 where it breaks off; then
        `came` is told how many bytes had come."""
        most = (OPEN, HELD_OF_TOKEN)
        if caller.node is not None:
            most = (OPEN_OF_NODE, HELD_OF_NODE)
        elif caller.job is not None:
            most = (OPEN_OF_JOB, HELD_OF_JOB)
        owner = caller.owner
        with self._place(owner, most[0]):
            return await self._read(receive, limit, owner, most[1], came)

    @contextmanager
    def _place(self, owner: str, most: int) -> Iterator[None]:
        if self._open[owner] >= most:
            raise Crowded(f"{most} bodies of this token are on their way already")
        self._open[owner] += 1
        try:
            yield
        finally:
            self._open[owner] -= 1
            if not self._open[owner]:
                del self._open[owner]

    async def _read(
        self, receive: Receive, limit: int, owner: str, most: int, came: Callable[[int], None]
    ) -> bytes:
        pieces: list[bytes] = []
        size = 0
        is_whole = False
        try:
            async for piece in _pieces(receive, limit):
                pieces.append(piece)
                size += len(piece)
                self._held[owner] += len(piece)
                self.held += len(piece)
                of_all = HELD + RESERVE if size <= SHORT else HELD
                if self._held[owner] > most or self.held > of_all:
                    raise Crowded("too many bytes of bodies that are not whole yet wait here")
            is_whole = True
            return b"".join(pieces)
        finally:
            if not is_whole and size:
                came(size)
            self.held -= size
            self._held[owner] -= size
            if self._held[owner] <= 0:
                del self._held[owner]


async def whole(receive: Receive, limit: int) -> bytes:
    """A short body of anybody: `Receiver.body` without a token."""
    return b"".join([piece async for piece in _pieces(receive, limit)])


async def _pieces(receive: Receive, limit: int) -> AsyncIterator[bytes]:
    began = asyncio.get_running_loop().time()
    size = 0
    more = True
    while more:
        try:
            async with asyncio.timeout_at(began + min(WHOLE_S, GRACE_S + size / LEAST_RATE)):
                message = await receive()
        except TimeoutError:
            raise Stalled(size) from None
        if message["type"] == "http.disconnect":
            raise Broken(size)
        piece = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise too_large(limit)
        more = message.get("more_body", False)
        yield piece
