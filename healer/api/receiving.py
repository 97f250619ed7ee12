"""Bodies as they come in: whole within a time, and never more of them at once than there is memory for.

What has come of a body that stalls is held until its time is over. So a token may hold so many bodies and
bytes and no more, and all tokens together so many bytes: who stalls keeps nobody else out.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from starlette.types import Receive
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from healer.api.problems import Problem
from healer.api.services import Caller
from healer.api.unpacking import too_large

#: A body of 8 MB needs 280 kB/s for this; senders are on the cluster's own network.
WHOLE_S = 30.0
#: After so long at least so much must have come for each second: one that drips is told before `WHOLE_S`.
GRACE_S, LEAST_RATE = 10.0, 1024
#: Bodies of one token on their way at once: of one bound to a node, and of any other.
OPEN_OF_NODE, OPEN = 64, 4096
#: Bytes of bodies that are not whole yet: of one token, and of all together.
HELD_OF_NODE, HELD_OF_TOKEN, HELD = 16 * 2**20, 64 * 2**20, 256 * 2**20
#: A body up to this is taken from uvicorn as a whole; of longer ones it has stopped to read.
_SHORT = 32 * 1024


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


def arrived(receive: Receive) -> bytes | None:
    """A short body that is all here before anybody asks for it, as most are: then nothing is waited for, and
    neither a time nor a place has to be kept for it. None: ask `receive`."""
    cycle = getattr(receive, "__self__", None)
    if type(cycle) is not RequestResponseCycle or cycle.more_body or cycle.waiting_for_100_continue:
        return None
    if cycle.disconnected or len(cycle.body) > _SHORT:
        return None
    body, cycle.body = bytes(cycle.body), bytearray()
    cycle.message_event.clear()  # as `receive` leaves it: the next one waits for the end of the connection
    return body


class Receiver:
    """For one event loop. What it holds is bounded by the bodies that are on their way."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        #: Bytes of bodies that are not whole yet.
        self.held = 0

    async def body(self, receive: Receive, limit: int, caller: Caller) -> bytes:
        """The whole body. Raises 413 as soon as it is too long, 408, 429, or 400 where it breaks off."""
        of_node = caller.node is not None
        with self._place(caller.id, OPEN_OF_NODE if of_node else OPEN):
            return await self._read(receive, limit, caller.id, HELD_OF_NODE if of_node else HELD_OF_TOKEN)

    @contextmanager
    def _place(self, token: str, most: int) -> Iterator[None]:
        if self._open[token] >= most:
            raise Crowded(f"{most} bodies of this token are on their way already")
        self._open[token] += 1
        try:
            yield
        finally:
            self._open[token] -= 1
            if not self._open[token]:
                del self._open[token]

    async def _read(self, receive: Receive, limit: int, token: str, most: int) -> bytes:
        pieces: list[bytes] = []
        size = 0
        try:
            async for piece in _pieces(receive, limit):
                pieces.append(piece)
                size += len(piece)
                self._held[token] += len(piece)
                self.held += len(piece)
                if self._held[token] > most or self.held > HELD:
                    raise Crowded("too many bytes of bodies that are not whole yet wait here")
            return b"".join(pieces)
        finally:
            self.held -= size
            self._held[token] -= size
            if self._held[token] <= 0:
                del self._held[token]


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
