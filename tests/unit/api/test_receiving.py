"""Bodies on their way: whole in time, bounded for one token and for all."""

import asyncio
from collections.abc import Sequence

import pytest
from starlette.types import Message

from healer.api import request_preamble
from healer.api.problems import Problem
from healer.api.request_preamble import (
    HELD_OF_JOB,
    HELD_OF_NODE,
    OPEN_OF_NODE,
    RESERVE,
    SHORT,
    Broken,
    Crowded,
    Receiver,
    Stalled,
    whole,
)
from healer.model import Role
from healer.ports.callers import Caller

NODE = Caller(id="n", name="n", role=Role.signals, node="gpu0001")
OTHER = Caller(id="o", name="o", role=Role.signals, node="gpu0002")
BIG = 2**30


class Feed:
    """A sender: gives its pieces, then nothing more until `go_on`, or an end."""

    def __init__(self, *pieces: bytes, end: bool = False, gone: bool = False) -> None:
        self._pieces: list[bytes] = list(pieces)
        self._end, self._gone = end, gone
        self.stalls = asyncio.Event()
        self.go_on = asyncio.Event()

    async def __call__(self) -> Message:
        if self._pieces:
            last = self._end and len(self._pieces) == 1
            return {"type": "http.request", "body": self._pieces.pop(0), "more_body": not last}
        if self._gone:
            return {"type": "http.disconnect"}
        self.stalls.set()
        await self.go_on.wait()
        return {"type": "http.request", "body": b"", "more_body": False}


async def held(receiver: Receiver, callers: Sequence[Caller], size: int) -> list[tuple[asyncio.Task, Feed]]:
    """Bodies of that many bytes that have stalled."""
    begun = []
    for caller in callers:
        feed = Feed(bytes(size))
        task = asyncio.ensure_future(receiver.body(feed, BIG, caller))
        await asyncio.wait([task, asyncio.ensure_future(feed.stalls.wait())], return_when="FIRST_COMPLETED")
        begun.append((task, feed))
    return begun


async def let_go(begun: list[tuple[asyncio.Task, Feed]]) -> None:
    for _, feed in begun:
        feed.go_on.set()
    await asyncio.gather(*(task for task, _ in begun), return_exceptions=True)


def test_pieces_are_one_body() -> None:
    async def run() -> None:
        receiver = Receiver()
        assert await receiver.body(Feed(b"a", b"", b"bc", end=True), 3, NODE) == b"abc"
        assert receiver.held == 0 and not receiver._open and not receiver._held

    asyncio.run(run())


def test_oversized_body_is_refused_before_it_is_read() -> None:
    async def run() -> None:
        receiver = Receiver()
        with pytest.raises(Problem) as caught:
            await receiver.body(Feed(b"a" * 3, b"b"), 3, NODE)
        assert caught.value.status == 413 and receiver.held == 0
        with pytest.raises(Broken):
            await receiver.body(Feed(b"a", gone=True), 3, NODE)
        assert receiver.held == 0

    asyncio.run(run())


def test_request_that_stalls_or_drips_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_preamble, "GRACE_S", 0.01)

    async def run() -> None:
        for feed in (Feed(), Feed(b"a"), Feed(*[b"a"] * 5)):
            with pytest.raises(Stalled) as caught:
                await whole(feed, 100)
            assert (caught.value.status, caught.value.headers["Connection"]) == (408, "close")

    asyncio.run(run())


def test_a_token_holds_so_many_bodies_and_another_is_not_kept_out() -> None:
    async def run() -> None:
        receiver = Receiver()
        begun = await held(receiver, [NODE] * OPEN_OF_NODE, 1)
        with pytest.raises(Crowded):
            await receiver.body(Feed(b"x", end=True), 10, NODE)
        assert await receiver.body(Feed(b"x", end=True), 10, OTHER) == b"x"
        await let_go(begun)
        assert await receiver.body(Feed(b"x", end=True), 10, NODE) == b"x"
        assert receiver.held == 0

    asyncio.run(run())


def test_a_token_holds_so_many_bytes_and_all_together_no_more_than_theirs() -> None:
    async def run() -> None:
        receiver = Receiver()
        begun = await held(receiver, [NODE], HELD_OF_NODE)
        with pytest.raises(Crowded):
            await receiver.body(Feed(b"x", end=True), 10, NODE)
        assert await receiver.body(Feed(b"x", end=True), 10, OTHER) == b"x"
        many = [
            Caller(id=str(number), name=str(number), role=Role.signals, node="n")
            for number in range(request_preamble.HELD // HELD_OF_NODE - 1)
        ]
        begun += await held(receiver, many, HELD_OF_NODE)
        with pytest.raises(Crowded):
            await receiver.body(Feed(bytes(SHORT + 1), end=True), BIG, OTHER)
        assert len(await receiver.body(Feed(bytes(SHORT), end=True), BIG, OTHER)) == SHORT, "of the reserve"
        short = [
            Caller(id=f"s{number}", name="s", role=Role.signals, node="n")
            for number in range(RESERVE // SHORT)
        ]
        begun += await held(receiver, short, SHORT)
        with pytest.raises(Crowded):
            await receiver.body(Feed(b"x", end=True), 10, OTHER)
        await let_go(begun)
        assert receiver.held == 0

    asyncio.run(run())


def test_all_tokens_of_a_job_hold_together_what_one_may() -> None:
    async def run() -> None:
        receiver = Receiver()
        job = [
            Caller(id=f"t{number}", name="ann", role=Role.signals, job="4711", cluster="pod1")
            for number in range(9)
        ]
        begun = await held(receiver, job[:8], HELD_OF_JOB // 8)
        with pytest.raises(Crowded):
            await receiver.body(Feed(b"x", end=True), 10, job[8])
        other = Caller(id="u", name="ann", role=Role.signals, job="4712", cluster="pod1")
        assert await receiver.body(Feed(b"x", end=True), 10, other) == b"x"
        await let_go(begun)
        assert receiver.held == 0 and not receiver._open and not receiver._held

    asyncio.run(run())


def test_outcome_of_a_broken_body_is_reported_and_of_a_whole_one_is_not() -> None:
    async def run() -> None:
        receiver, came = Receiver(), list[int]()
        with pytest.raises(Broken):
            await receiver.body(Feed(b"abc", b"de", gone=True), 10, NODE, came.append)
        assert await receiver.body(Feed(b"abc", end=True), 10, NODE, came.append) == b"abc"
        assert came == [5]

    asyncio.run(run())
