"""A database that is away: nobody waits for it, and whom it knew a little while ago still tells signals."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from starlette.requests import Request

from healer.api import access as access_module
from healer.api.access import Access
from healer.api.problems import Problem
from healer.api.reach import Reach
from healer.api.services import Caller, Unavailable
from healer.model import Role
from tests.support.api import Api
from tests.support.wait import wait_until


def away() -> str:
    raise Unavailable("connection refused")


def test_what_the_database_says_is_told_and_it_is_there() -> None:
    async def ask() -> None:
        reach = Reach()
        assert await reach.ask(lambda: 5) == 5
        assert not reach.away and reach.away_s() == 0
        with pytest.raises(KeyError):
            await reach.ask(lambda: {}["x"])
        assert not reach.away, "a wrong question is no database that is away"

    asyncio.run(ask())


def test_nobody_waits_for_one_that_hangs_and_it_is_found_when_it_is_back() -> None:
    release = threading.Event()

    async def ask() -> None:
        reach = Reach(patience_s=0.2)
        with pytest.raises(Unavailable, match="does not answer"):
            await reach.ask(release.wait, 60)
        assert reach.away
        asked: list[int] = []

        def hangs() -> bool:
            asked.append(1)
            return release.wait(60)

        for _ in range(50):
            with pytest.raises(Unavailable):
                await reach.ask(hangs)
        assert len(asked) <= 1, "one at a time looks whether it is back"
        release.set()
        deadline = time.monotonic() + 20
        while reach.away and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        assert not reach.away
        assert await reach.ask(lambda: 7) == 7

    asyncio.run(ask())


def test_one_that_refuses_is_away_until_it_answers() -> None:
    async def ask() -> None:
        reach = Reach()
        with pytest.raises(Unavailable, match="refused"):
            await reach.ask(away)
        assert reach.away_s() > 0
        assert await reach.insist(lambda: 1) == 1
        assert not reach.away

    asyncio.run(ask())


# --- senders ---------------------------------------------------------------------------------------------


@pytest.fixture
def api(fresh_database: sa.Engine) -> Iterator[Api]:
    one = Api(fresh_database)
    yield one
    one.close()


def request(token: str) -> Request:
    headers = [(b"authorization", f"Bearer {token}".encode())]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": headers})


def asked_while_away(api: Api, token: str, *, before: float = 0.0) -> Caller:
    """What a sender is told whose token was good `before` s before the database went away."""
    reach = Reach()
    access = Access(api.services, reach)

    async def ask() -> Caller:
        await access.sender(request(token))
        access._cache.clear()  # a second later
        for digest, (seen_at, caller) in list(access._senders.items()):
            access._senders[digest] = (seen_at - before, caller)
        reach.failed("away")
        reach._looked_at = time.monotonic() + 60  # nobody looks whether it is back
        return await access.sender(request(token))

    return asyncio.run(ask())


def test_a_sender_that_was_known_still_counts(api: Api) -> None:
    told = asked_while_away(api, api.token(Role.signals, node="gpu0001"))
    assert (told.role, told.node) == (Role.signals, "gpu0001")


def test_not_for_ever(api: Api) -> None:
    with pytest.raises(Unavailable):
        asked_while_away(api, api.token(Role.signals), before=access_module.REMEMBERED_S)


@pytest.mark.parametrize("role", ["viewer", "responder", "operator", "admin", "auditor"])
def test_no_other_role_is_remembered(api: Api, role: str) -> None:
    with pytest.raises(Unavailable):
        asked_while_away(api, api.token(role))


def test_a_known_sender_may_do_nothing_else_meanwhile(api: Api) -> None:
    token, reach = api.token(Role.signals), Reach()
    access = Access(api.services, reach)

    async def ask() -> None:
        await access.sender(request(token))
        access._cache.clear()
        reach.failed("away")
        with pytest.raises(Unavailable):
            await access.caller(request(token))

    asyncio.run(ask())


def test_a_revoked_token_is_forgotten_at_its_next_look(api: Api) -> None:
    token, reach = api.token(Role.signals), Reach()
    access = Access(api.services, reach)

    async def ask() -> None:
        caller = await access.sender(request(token))
        assert api.tokens.revoke(caller.id, by="test", now=api.services.clock.now())
        access._cache.clear()
        with pytest.raises(Problem):
            await access.sender(request(token))
        access._cache.clear()
        reach.failed("away")
        with pytest.raises(Unavailable):
            await access.sender(request(token))

    asyncio.run(ask())


def test_what_is_remembered_is_bounded(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_module, "_CACHE_SIZE", 2)
    access = Access(api.services, Reach())
    tokens = [api.token(Role.signals) for _ in range(4)]

    async def ask() -> None:
        for token in tokens:
            await access.sender(request(token))

    asyncio.run(ask())
    wait_until(lambda: len(access._senders) == 2)
