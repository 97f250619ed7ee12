"""Hundreds of connections with wrong tokens, on a real server: people and senders get through."""

import asyncio
import secrets
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import httpx
import pytest
import sqlalchemy as sa

from healer.adapters.postgres.tables import audit_records, messages
from healer.api import credential_budget
from healer.api.credential_budget import BURST, OverBudget
from tests.support.api import XID_79, Api, serving
from tests.support.wait import wait_until

CONNECTIONS = 300
#: All of these are this machine.
STRANGERS, PERSON = "127.0.0.2", "127.0.0.1"
Served = tuple[Api, httpx.Client]
PAUSES = "/api/v1/pauses"


@pytest.fixture
def served(fresh_database: sa.Engine) -> Iterator[Served]:
    with serving(fresh_database) as served:
        yield served


class Flood:
    """Connections that each show one wrong token after the other."""

    def __init__(self, port: int) -> None:
        self.answers: Counter[str] = Counter()
        self._port, self._stopped = port, threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()), daemon=True)

    @contextmanager
    def going(self) -> Iterator[None]:
        self._thread.start()
        try:
            wait_until(lambda: self.answers["401"] >= BURST, 60, what="the budget is spent")
            yield
        finally:
            self._stopped.set()
            self._thread.join(60)

    async def _all(self) -> None:
        await asyncio.gather(*(self._connection(number) for number in range(CONNECTIONS)))

    async def _connection(self, number: int) -> None:
        line = ("GET /api/v1/nodes", "POST /api/v1/signals/heartbeat", "DELETE /api/v1/pauses/x")[number % 3]
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, local_addr=(STRANGERS, 0))
        try:
            while not self._stopped.is_set():
                wrong = secrets.token_urlsafe(32)
                proof = (
                    f"Cookie: healer_session={wrong}" if number % 2
                    else f"Authorization: Bearer heal_{wrong}"
                )  # fmt: skip
                writer.write(
                    f"{line} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/json\r\n{proof}\r\n"
                    "Content-Length: 0\r\n\r\n".encode()
                )
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                self.answers[head.split()[1]] += 1
                if (length := head.partition("content-length: ")[2].split("\r\n")[0]).isdigit():
                    await reader.readexactly(int(length))
        finally:
            writer.close()


def _refused(port: int, headers: dict[str, str]) -> httpx.Response | None:
    with by(port, STRANGERS, headers) as stranger:
        answer = stranger.get("/api/v1/nodes")
    return answer if answer.status_code == 429 else None


def by(port: int, address: str, headers: dict[str, str]) -> httpx.Client:
    transport = httpx.HTTPTransport(local_address=address)
    base = f"http://127.0.0.1:{port}"
    return httpx.Client(base_url=base, headers=headers, transport=transport, timeout=60)


def test_a_pause_and_a_signal_work_through_a_flood_of_wrong_tokens(served: Served) -> None:
    """Also of who sits behind the strangers' address, if healer accepted his token before."""
    api, client = served
    port = client.base_url.port
    assert port is not None
    neighbour = api.headers("operator", name="mara")
    with by(port, STRANGERS, neighbour) as before:
        assert before.get("/api/v1/nodes").status_code == 200
    flood = Flood(port)
    with flood.going():
        for address, headers in ((PERSON, api.headers("operator", name="ann")), (STRANGERS, neighbour)):
            with by(port, address, headers) as person:
                made = person.post(PAUSES, json={"reason": "a flood"})
                assert made.status_code == 201, made.text
                ended = person.delete(f"{PAUSES}/{made.json()['id']}", params={"reason": "over"})
                assert ended.status_code == 200, ended.text
        with by(port, PERSON, api.headers("signals", node="gpu0001")) as sender:
            body = {"node": "gpu0001", "boot_id": "b", "entries": [{"seq": 1, "line": XID_79}]}
            assert sender.post("/api/v1/signals/kernel-log", json=body).status_code == 202
        # On a slow machine the budget refills between two wrong tokens; an accepted token stays accepted.
        strangers = (api.headers("operator", name=f"eve{number}") for number in count())
        refused = wait_until(lambda: _refused(port, next(strangers)), 30, what="a stranger is refused")
        assert refused is not None
    assert flood.answers["429"] and not flood.answers["500"]
    assert int(refused.headers["retry-after"]) >= 1
    problem = refused.json()
    assert (problem["code"], problem["status"]) == ("credentials", 429) and STRANGERS in problem["detail"]
    assert refused.headers["content-type"] == "application/problem+json"
    metrics = client.get("/metrics", headers=api.headers("viewer")).text
    assert (
        'healer_credentials_refused_total{why="budget"}' in metrics and "healer_refused_addresses" in metrics
    )


def test_refused_credential_counts_as_no_lost_signal(served: Served) -> None:
    api, client = served
    budget = api.app.state.access.budget
    for number in range(int(BURST)):
        with budget.hold_now(PERSON, b"%032d" % number) as hold:
            hold.wrong()
    answer = client.post("/api/v1/signals/heartbeat", json={}, headers={"Authorization": "Bearer heal_x_y"})
    assert answer.status_code == 429
    api.app.state.losses.flush()
    with by(client.base_url.port or 0, "127.0.0.3", api.headers("viewer")) as viewer:
        assert viewer.get("/api/v1/signals/losses").json()["items"] == []


def test_people_are_notified_of_an_address_that_is_refused_for_long(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, client = served
    monkeypatch.setattr(credential_budget, "LONG_S", 0.0)
    for number in range(int(BURST) + 1):
        client.get("/api/v1/nodes", headers={"Authorization": f"Bearer heal_{number}_x"})

    def notified() -> bool:
        with api.engine.connect() as conn:
            return conn.scalar(sa.select(sa.func.count()).select_from(messages)) == 1

    wait_until(notified, 60, what="the message")
    with api.engine.connect() as conn:
        verb = audit_records.c.verb == "access.flooded"
        assert conn.scalar(sa.select(audit_records.c.data).where(verb))["addresses"] == [PERSON]


def test_a_wrong_sign_in_link_counts_too(served: Served) -> None:
    api, _ = served
    access = api.app.state.access
    for number in range(int(BURST)):
        assert access.sign_in(f"heal_{number}_x", STRANGERS) is None
    with pytest.raises(OverBudget):
        access.sign_in("heal_1_y", STRANGERS)
    with pytest.raises(OverBudget):
        access.session("1.y", STRANGERS)
    cookie = access.sign_in(api.token("operator", once=True, name="ann"), PERSON)
    assert access.session(cookie, STRANGERS).name == "ann", "a session that was just opened passes"


def test_what_anybody_may_ask_for_is_made_once(served: Served) -> None:
    api, client = served
    first = [client.get(path) for path in ("/openapi.json", "/docs")]

    def made_again() -> dict[str, object]:
        raise AssertionError("each time takes as long as 50 other requests")

    api.app.openapi = made_again  # type: ignore[method-assign]
    again = [client.get(path) for path in ("/openapi.json", "/docs")]
    assert [answer.status_code for answer in (*first, *again)] == [200] * 4
    assert [answer.content for answer in first] == [answer.content for answer in again]
