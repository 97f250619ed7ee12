"""A database that is away: no request waits for it, and recently known senders may still send signals."""

import asyncio
import dataclasses
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from types import SimpleNamespace
from typing import Any, cast

import anyio.to_thread
import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from healer.api import access as access_module
from healer.api import system_routes
from healer.api.access import Access
from healer.api.db_health import Crowded, Database, shared_readiness
from healer.api.problems import Problem
from healer.api.request_preamble import parse
from healer.api.site_address import SiteNames
from healer.model import Role
from healer.ports.answers import Readiness
from healer.ports.callers import Caller
from healer.ports.request_errors import Unavailable
from tests.support.api import Api
from tests.support.wait import wait_until


def away() -> str:
    raise Unavailable("connection refused")


def test_database_error_is_reported_and_counts_as_reachable() -> None:
    async def ask() -> None:
        database = Database()
        assert await database.ask(lambda: 5) == 5
        assert not database.away
        with pytest.raises(KeyError):
            await database.ask(lambda: {}["x"])
        assert not database.away, "a wrong question is no database that is away"

    asyncio.run(ask())


def test_hanging_database_blocks_no_one_and_its_return_is_noticed() -> None:
    release = threading.Event()

    async def ask() -> None:
        database = Database(patience_s=0.2)
        with pytest.raises(Unavailable, match="does not answer"):
            await database.ask(release.wait, 60)
        assert database.away
        asked: list[int] = []

        def hangs() -> bool:
            asked.append(1)
            return release.wait(60)

        for _ in range(50):
            with pytest.raises(Unavailable):
                await database.ask(hangs)
        assert len(asked) <= 1, "one at a time looks whether it is back"
        release.set()
        deadline = time.monotonic() + 20
        while database.away and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        assert not database.away
        assert await database.ask(lambda: 7) == 7

    asyncio.run(ask())


def test_refusing_database_is_away_until_it_answers() -> None:
    async def ask() -> None:
        database = Database()
        with pytest.raises(Unavailable, match="refused"):
            await database.ask(away)
        assert database.away
        assert await database.ask_anyway(lambda: 1) == 1
        assert not database.away

    asyncio.run(ask())


def test_waiting_for_a_thread_does_not_mark_the_database_as_away() -> None:
    """Strangers send more queries than there are threads; the database would answer each at once."""
    release = threading.Event()

    async def ask() -> None:
        database = Database(patience_s=30)
        asked = [asyncio.create_task(database.ask_anyway(release.wait, 60)) for _ in range(600)]
        done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED, timeout=20)
        assert done, "what is more than may wait is refused at once"
        with pytest.raises(Crowded, match="too many queries"):
            await database.ask(lambda: 1)
        assert not database.away
        release.set()
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        crowded = [one for one in outcomes if isinstance(one, Crowded)]
        assert len(crowded) == 600 - outcomes.count(True) and 400 <= len(crowded) < 600
        assert not database.away
        assert await database.ask(lambda: 1) == 1

    asyncio.run(ask())


def test_silent_database_is_away_while_queries_wait() -> None:
    release = threading.Event()

    async def ask() -> None:
        database = Database(patience_s=0.2)
        asked = [asyncio.create_task(database.ask_anyway(release.wait, 60)) for _ in range(50)]
        await asyncio.gather(*asked, return_exceptions=True)
        assert database.away
        release.set()

    asyncio.run(ask())


def test_all_who_ask_whether_healer_is_ready_share_one_answer() -> None:
    asked: list[int] = []
    release = threading.Event()

    def look() -> Readiness:
        asked.append(1)
        assert release.wait(60)
        return Readiness(ready=True, checks={})

    async def ask() -> None:
        readying = shared_readiness(look, Database(patience_s=30))
        tasks = [asyncio.create_task(readying.current()) for _ in range(500)]
        await asyncio.sleep(0)
        release.set()
        assert all(one.ready for one in await asyncio.gather(*tasks))
        assert len(asked) == 1

    asyncio.run(ask())


def test_unreachable_database_is_not_ready() -> None:
    readying = shared_readiness(lambda: Readiness(ready=bool(away()), checks={}), Database())
    readiness = asyncio.run(readying.current())
    assert not readiness.ready and readiness.checks["database"] == {"ok": False, "text": "connection refused"}


@asynccontextmanager
async def all_pages_waiting() -> AsyncIterator[None]:
    """The threads of the pages hang in a database, and more pages wait for one."""
    release = threading.Event()
    limiter = anyio.to_thread.current_default_thread_limiter()
    limiter.total_tokens = 2
    pages = [asyncio.create_task(run_in_threadpool(release.wait, 60)) for _ in range(4)]
    while limiter.available_tokens:
        await asyncio.sleep(0.01)
    try:
        yield
    finally:
        release.set()
        await asyncio.gather(*pages)


def test_a_process_whose_pages_all_wait_is_alive() -> None:
    """A supervisor must not end it for a Prometheus or a database that hangs."""
    app = FastAPI()
    app.include_router(system_routes.router)

    async def ask() -> None:
        link = httpx.ASGITransport(app)
        async with all_pages_waiting(), httpx.AsyncClient(transport=link, base_url="http://healer") as asks:
            assert (await asyncio.wait_for(asks.get("/healthz"), 10)).json() == {"status": "ok"}

    asyncio.run(ask())


def test_a_long_body_is_read_while_all_pages_wait() -> None:
    """The threads of the pages hang in a database; a body of 1 MiB is read nevertheless."""

    async def ask() -> None:
        async with all_pages_waiting():
            assert await asyncio.wait_for(parse(1 << 20, lambda: "read"), 30) == "read"

    asyncio.run(ask())


# --- senders ---------------------------------------------------------------------------------------------


@pytest.fixture
def api(fresh_database: sa.Engine) -> Iterator[Api]:
    one = Api(fresh_database)
    yield one
    one.close()


def request(token: str) -> Request:
    headers = [(b"authorization", f"Bearer {token}".encode())]
    app = SimpleNamespace(state=SimpleNamespace(site=SiteNames(any_host=True)))
    client = ("192.0.2.1", 40000)
    return Request(
        {
            "type": "http",
            "method": "POST",
            "path": "/",
            "scheme": "http",
            "headers": headers,
            "app": app,
            "client": client,
        }
    )


def asked_while_away(api: Api, token: str, *, before: float = 0.0) -> Caller:
    """The answer to a sender whose token was good `before` s before the database went away."""
    database = Database()
    access = Access(api.services, database)

    async def ask() -> Caller:
        await access.sender(request(token))
        access._cache.clear()  # a second later
        for digest, (seen_at, caller) in list(access._senders.items()):
            access._senders[digest] = (seen_at - before, caller)
        database.failed("away")
        database._probed_at = time.monotonic() + 60  # no probe checks whether it is back
        return await access.sender(request(token))

    return asyncio.run(ask())


def test_a_sender_that_was_known_still_counts(api: Api) -> None:
    caller = asked_while_away(api, api.token(Role.signals, node="gpu0001"))
    assert (caller.role, caller.node) == (Role.signals, "gpu0001")


def test_senders_are_not_remembered_indefinitely(api: Api) -> None:
    with pytest.raises(Unavailable):
        asked_while_away(api, api.token(Role.signals), before=access_module.REMEMBERED_S)


@pytest.mark.parametrize("role", ["viewer", "responder", "operator", "admin", "auditor"])
def test_no_other_role_is_remembered(api: Api, role: str) -> None:
    with pytest.raises(Unavailable):
        asked_while_away(api, api.token(role))


def test_a_known_sender_may_do_nothing_else_meanwhile(api: Api) -> None:
    token, database = api.token(Role.signals), Database()
    access = Access(api.services, database)

    async def ask() -> None:
        await access.sender(request(token))
        access._cache.clear()
        database.failed("away")
        with pytest.raises(Unavailable):
            await access.caller(request(token))

    asyncio.run(ask())


def test_a_revoked_token_is_forgotten_at_its_next_look(api: Api) -> None:
    token, database = api.token(Role.signals), Database()
    access = Access(api.services, database)

    async def ask() -> None:
        caller = await access.sender(request(token))
        assert api.tokens.revoke(caller.id, by="test", now=api.services.clock.now())
        access._cache.clear()
        with pytest.raises(Problem):
            await access.sender(request(token))
        access._cache.clear()
        database.failed("away")
        with pytest.raises(Unavailable):
            await access.sender(request(token))

    asyncio.run(ask())


@pytest.mark.parametrize("known", [pytest.param(True, id="known"), pytest.param(False, id="new")])
def test_a_look_that_hung_brings_no_revoked_token_back(api: Api, known: bool) -> None:
    """It was asked before the token was revoked, and is answered after the next look found it revoked."""
    token, database = api.token(Role.signals), Database()
    find = api.services.tokens.by_token
    taken, answered = threading.Event(), threading.Event()

    class Tokens:
        def by_token(self, digest: bytes, now: datetime) -> Caller | None:
            found = find(digest, now)
            if threading.current_thread().name == "hung":
                taken.set()
                assert answered.wait(60)
            return found

    access = Access(dataclasses.replace(api.services, tokens=cast(Any, Tokens())), database)
    digest = access_module.digest_of(token)
    caller = find(digest, api.services.clock.now())
    if known:
        assert access.look_up("token", digest) == caller
    hung = threading.Thread(target=access.look_up, args=("token", digest), name="hung")
    hung.start()
    assert taken.wait(60) and caller is not None
    assert api.tokens.revoke(caller.id, by="test", now=api.services.clock.now())
    assert access.look_up("token", digest) is None
    answered.set()
    hung.join()
    assert access.cached("token", digest)[1] is None
    access._cache.clear()
    database.failed("away")
    with pytest.raises(Unavailable):
        asyncio.run(access.sender(request(token)))


def test_requests_of_one_token_share_a_look_that_is_young(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    token, find = api.token(Role.signals), api.services.tokens.by_token
    go_on = threading.Event()
    asked: list[bytes] = []

    class Tokens:
        def by_token(self, digest: bytes, now: datetime) -> Caller | None:
            asked.append(digest)
            assert go_on.wait(60)
            return find(digest, now)

    access = Access(dataclasses.replace(api.services, tokens=cast(Any, Tokens())), Database(patience_s=60))

    async def ask() -> None:
        waiting = [asyncio.ensure_future(access.sender(request(token))) for _ in range(20)]
        other = asyncio.ensure_future(access.sender(request(api.token(Role.signals))))
        await asyncio.sleep(0)
        waiting[0].cancel()  # who began it goes away, and the others go on
        # Later than the cache may answer: the token may have been revoked since that look began.
        key, (begun, look) = next(iter(access._looks.items()))
        access._looks[key] = (begun - access_module._CACHE_S - 0.1, look)
        waiting += [asyncio.ensure_future(access.sender(request(token))) for _ in range(20)]
        await asyncio.sleep(0)
        go_on.set()
        callers = await asyncio.gather(*waiting[1:])
        assert len({caller.id for caller in callers}) == 1 and (await other).id != callers[0].id

    asyncio.run(ask())
    assert len(asked) == 3 and len(set(asked)) == 2
    assert all(look.done() for _, look in access._looks.values())  # the next look-up drops them


def test_remembered_senders_are_not_accepted_during_an_overload(api: Api) -> None:
    """The database is reachable: its current answer counts, not an earlier one."""
    token = api.token(Role.signals)
    database = Database()
    access = Access(api.services, database)

    async def ask() -> None:
        await access.sender(request(token))
        access._cache.clear()
        database.common.queued = 10_000
        assert await access.sender(request(token))  # they have a lane of their own
        access._cache.clear()
        access._of_senders.queued = 10_000
        with pytest.raises(Crowded):
            await access.sender(request(token))

    asyncio.run(ask())


def test_senders_are_looked_up_together_and_each_gets_its_own_answer(api: Api) -> None:
    tokens = [api.token(Role.signals) for _ in range(6)]
    find, again, go_on, sizes = api.services.tokens, threading.Event(), threading.Event(), list[int]()

    class Tokens:
        def by_token(self, digest: bytes, now: datetime) -> Caller | None:
            if again.is_set():
                sizes.append(1)
                assert go_on.wait(60)
            return find.by_token(digest, now)

        def by_tokens(self, digests: Sequence[bytes], now: datetime) -> dict[bytes, Caller]:
            sizes.append(len(digests))
            return find.by_tokens(digests, now)

    access = Access(dataclasses.replace(api.services, tokens=cast(Any, Tokens())), Database(patience_s=60))

    async def ask() -> None:
        before = [await access.sender(request(token)) for token in tokens]
        access._cache.clear()
        assert api.tokens.revoke(before[3].id, by="test", now=api.services.clock.now())
        again.set()
        waiting = [asyncio.ensure_future(access.sender(request(tokens[0])))]
        async with asyncio.timeout(20):
            while not sizes:
                await asyncio.sleep(0.01)
            waiting += [asyncio.ensure_future(access.sender(request(token))) for token in tokens[1:]]
            while len(access._together._waiting) < len(tokens) - 1:
                await asyncio.sleep(0.01)
        go_on.set()
        after = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(after.pop(3), Problem) and after == before[:3] + before[4:]
        assert sizes == [1, 5]

    asyncio.run(ask())


def test_number_of_remembered_senders_is_bounded(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_module, "_CACHE_SIZE", 2)
    access = Access(api.services, Database())
    tokens = [api.token(Role.signals) for _ in range(4)]

    async def ask() -> None:
        for token in tokens:
            await access.sender(request(token))

    asyncio.run(ask())
    wait_until(lambda: len(access._senders) == 2)
