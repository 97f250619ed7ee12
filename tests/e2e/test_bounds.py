"""Too much, too slow, too large: sent to a real `healer api`, and what that does to its memory and to others.

Bounds are on memory and on answers, never on time.
"""

import gzip
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import cramjam
import pytest
import sqlalchemy as sa

from tests.support.api_process import MB, ApiProcess, api_process
from tests.support.stack import make_scratch
from tests.support.wait import wait_until

XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=python, GPU has fallen off the bus."


@pytest.fixture
def api(fresh_database: sa.Engine) -> Iterator[ApiProcess]:
    with api_process(fresh_database, make_scratch()) as one:
        with one.client() as client:  # everything is loaded before memory is looked at
            for number in range(20):
                assert client.post("/signals/kernel-log", json=event(number)).status_code == 202
            assert client.post("/signals/metrics", json={"node": "gpu0001", "host": {"load1": 1}}).is_success
        one.forget_peak()
        yield one


def event(number: int, node: str = "gpu0001") -> dict[str, object]:
    return {"node": node, "boot_id": "b", "entries": [{"seq": number, "line": XID}]}


def begun(api: ApiProcess, route: str, headers: str, body: bytes = b"", *, source: str = "") -> socket.socket:
    """A request whose body has only begun."""
    link = socket.create_connection(("127.0.0.1", api.port), 60, (source, 0) if source else None)
    head = (
        f"POST /api/v1/signals/{route} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n{headers}\r\n"
    )
    link.sendall(head.encode() + body)
    return link


def answered(link: socket.socket) -> str:
    """All that comes until the other side closes."""
    parts = []
    link.settimeout(60)
    while True:
        try:
            part = link.recv(65536)
        except ConnectionError:
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts).decode()


def bearer(api: ApiProcess, **bound: str) -> str:
    return f"Authorization: {api.headers(**bound)['Authorization']}\r\n"


def test_a_gigabyte_is_refused_early_and_memory_stays_flat(api: ApiProcess) -> None:
    before = api.rss()
    declared = begun(api, "metrics", bearer(api) + f"Content-Length: {2**30}\r\n")
    with closing(declared):
        assert answered(declared).startswith("HTTP/1.1 413 ")
    chunked = begun(api, "metrics", bearer(api) + "Transfer-Encoding: chunked\r\n")
    sent = 0
    piece = b"100000\r\n" + b" " * MB + b"\r\n"
    with closing(chunked):
        try:
            for _ in range(1024):
                chunked.sendall(piece)
                sent += MB
        except OSError:
            pass  # closed, as it should be
        assert sent < 64 * MB, "a body is read on after it is too large"
    grown = api.peak() - before
    print(f"1 GB declared and chunked: {sent / MB:.0f} MB were taken, memory grew by {grown / MB:.0f} MB")
    assert grown < 60 * MB
    wait_until(lambda: api.losses().get(("metrics", "too_large")) == 2, timeout_s=60, what="both are counted")


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_bombs_take_a_bounded_memory_however_many(api: ApiProcess, packing: str) -> None:
    if packing == "gzip":
        bomb = gzip.compress(bytes(MB), 9) * 900  # 1 GB
        nested = gzip.compress(bomb)
    else:
        bomb = bytes(cramjam.zstd.compress(bytes(MB))) * 16_384  # 16 GB
        nested = bytes(cramjam.zstd.compress(bomb))
    assert len(bomb) < 2 * MB
    before = api.rss()
    answers: list[int] = []

    def send() -> None:
        with api.client() as client:
            for body, packed in ((bomb, packing), (nested, packing), (nested, f"{packing}, {packing}")):
                headers = {"Content-Encoding": packed, "Content-Type": "application/json"}
                answers.append(client.post("/signals/metrics", content=body, headers=headers).status_code)

    threads = [threading.Thread(target=send) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    grown = api.peak() - before
    print(f"{packing}: 8 bombs at once, memory grew by {grown / MB:.0f} MB")
    assert sorted(set(answers)) == [413, 415, 422]  # a bomb; named twice; nested: what comes out is no JSON
    assert len(answers) == 24
    assert grown < 400 * MB
    with api.client() as client:
        assert client.post("/signals/kernel-log", json=event(100)).json()["accepted"] == 1


def test_stalled_senders_are_told_and_counted_and_keep_no_one_out(api: ApiProcess) -> None:
    before = api.rss()
    with ExitStack() as stack:
        stalled = [
            stack.enter_context(
                closing(begun(api, "kernel-log", bearer(api) + "Content-Length: 1000\r\n", b"{"))
            )
            for _ in range(400)
        ]
        with api.client() as honest, api.client(node="gpu0002") as bound:
            for number in range(100, 120):
                assert honest.post("/signals/kernel-log", json=event(number)).status_code == 202
                told = bound.post("/signals/kernel-log", json=event(number, "gpu0002"))
                assert told.status_code == 202
        grown = api.peak() - before
        print(f"400 stalled: memory grew by {grown / MB:.0f} MB")
        assert grown < 100 * MB
        answers = [answered(one) for one in stalled]
    assert {one.partition("\r\n")[0] for one in answers} == {"HTTP/1.1 408 Request Timeout"}
    assert "it must be whole within 30 s" in answers[0]
    wait_until(
        lambda: api.losses().get(("kernel-log", "stalled")) == 400, timeout_s=60, what="each is counted"
    )


def test_a_node_holds_so_many_unfinished_bodies_and_no_more(api: ApiProcess) -> None:
    """What one token holds open is its own matter alone."""
    mine = bearer(api, node="gpu0001") + "Content-Length: 1000\r\n"
    with ExitStack() as stack:
        for _ in range(64):
            stack.enter_context(closing(begun(api, "kernel-log", mine, b"{")))

        def refused() -> bool:
            with closing(begun(api, "kernel-log", mine, b"{")) as one:
                one.settimeout(1)
                try:
                    return one.recv(100).startswith(b"HTTP/1.1 429 ")
                except TimeoutError:
                    return False

        wait_until(refused, what="the 65th is refused")
        with api.client(node="gpu0002") as other:
            assert other.post("/signals/kernel-log", json=event(1, "gpu0002")).status_code == 202


def test_a_head_that_never_ends_and_a_silent_connection_are_ended(api: ApiProcess) -> None:
    with ExitStack() as stack:
        silent, half, dripping = (
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", api.port), 60)))
            for _ in range(3)
        )
        half.sendall(b"POST /api/v1/signals/kernel-log HTTP/1.1\r\nHost: h\r\n")

        over = threading.Event()

        def drip() -> None:
            dripping.sendall(b"GET /healthz HTTP/1.1\r\n")
            while not over.wait(0.5):
                try:
                    dripping.sendall(b"x: y\r\n")
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        told = [answered(one) for one in (silent, half, dripping)]
        over.set()
        thread.join()
    assert told[0].startswith("HTTP/1.1 408 ") and told[1].startswith("HTTP/1.1 408 ")
    assert told[2].startswith("HTTP/1.1 408 ") or told[2] == ""


@contextmanager
def few_files(database: sa.Engine) -> Iterator[ApiProcess]:
    with api_process(database, make_scratch(), files=1024) as one:
        yield one


def test_one_address_takes_a_share_of_the_connections(fresh_database: sa.Engine) -> None:
    """1,024 files: 768 connections, 200 of one address."""
    with few_files(fresh_database) as api, ExitStack() as stack:
        links = [
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", api.port), 60)))
            for _ in range(300)
        ]
        wait_until(lambda: _closed(links) >= 100, what="those beyond its share are closed")
        honest = stack.enter_context(
            closing(
                begun(
                    api,
                    "kernel-log",
                    bearer(api) + f"Connection: close\r\nContent-Length: {len(json.dumps(event(1)))}\r\n",
                    json.dumps(event(1)).encode(),
                    source="127.0.0.2",
                )
            )
        )
        assert answered(honest).startswith("HTTP/1.1 202 ")


def _closed(links: list[socket.socket]) -> int:
    count = 0
    for one in links:
        one.setblocking(False)
        try:
            count += one.recv(4096, socket.MSG_PEEK)[:12] in (b"", b"HTTP/1.1 503")
        except BlockingIOError:
            pass
        except ConnectionError:
            count += 1
    return count
