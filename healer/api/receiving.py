"""Bodies as they come in: whole within a time, and never more of them at once than there is memory for.

What has come of a body that stalls is held until its time is over. So a token may hold so many bodies and
bytes and no more, and all tokens together so many bytes: who stalls keeps nobody else out.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

from starlette.types import Receive

from healer.api.problems import Problem
from healer.api.quotas import owner_of
from healer.api.unpacking import too_large
from healer.ports.callers import Caller

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
        owner = owner_of(caller)
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
