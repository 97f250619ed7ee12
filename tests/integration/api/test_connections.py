"""Connections on real sockets: requests in any pieces are answered, and what stays unfinished is ended."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_network

import pytest
import sqlalchemy as sa
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from healer.api import edge
from healer.api.edge import Bounds, uvicorn_settings
from healer.api.site_address import SiteNames
from tests.support.api import XID_79, Api
from tests.support.wait import wait_until

Server = tuple[Api, int]
ACCEPTED = b'{"accepted":1,"duplicates":0,"unrecognised":0,"rejected":[]}'


@pytest.fixture
def server(fresh_database: sa.Engine, request: pytest.FixtureRequest) -> Iterator[Server]:
    """The application behind healer's own protocol, with two seconds for a head and for a request. The
    parameter: other bounds."""
    api = Api(fresh_database)
    bounds = Bounds(total=20, of_peer=20, head_s=2.0, request_s=2.0)._replace(**getattr(request, "param", {}))
    config = uvicorn.Config(
        api.app, host="127.0.0.1", port=0, log_level="warning", access_log=False, **uvicorn_settings(bounds)
    )
    serving = uvicorn.Server(config)
    thread = threading.Thread(target=serving.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: serving.started, 30, what="uvicorn serves")
        yield api, serving.servers[0].sockets[0].getsockname()[1]
    finally:
        api.events.close()
        serving.should_exit = True
        thread.join(timeout=20)
        api.close()


def post(api: Api, number: int, *, more: str = "", note: str = "") -> tuple[bytes, bytes]:
    """(head, body) of one kernel line; `note` makes the body longer."""
    entry = {"seq": number, "line": XID_79}
    body = json.dumps({"node": "gpu0001", "boot_id": "b", "entries": [entry], "note": note}).encode()
    head = (
        f"POST /api/v1/signals/kernel-log HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n{more}"
        f"Authorization: {api.headers('signals')['Authorization']}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode(), body


def connected(port: int) -> socket.socket:
    link = socket.create_connection(("127.0.0.1", port), 60)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def until(link: socket.socket, end: bytes, times: int = 1) -> bytes:
    """What comes until that was seen so often."""
    seen = b""
    while seen.count(end) < times:
        part = link.recv(65536)
        assert part, seen
        seen += part
    return seen


def rest(link: socket.socket) -> bytes:
    """All that comes until the other side ends the connection."""
    seen = b""
    while True:
        try:
            part = link.recv(65536)
        except ConnectionError:
            return seen
        if not part:
            return seen
        seen += part


def test_requests_in_one_piece_are_answered_one_by_one(server: Server) -> None:
    api, port = server
    requests = [b"".join(post(api, number)) for number in range(5)]
    with connected(port) as link:
        link.sendall(b"".join(requests))
        assert until(link, ACCEPTED, 5).count(b"HTTP/1.1 202") == 5
        link.sendall(requests[0])
        assert b'"duplicates":1' in until(link, b"rejected")


@pytest.mark.parametrize("at", [1, 40, -1])
def test_a_request_in_two_pieces_is_whole_when_the_second_is_here(server: Server, at: int) -> None:
    """The cut: in the first word, within the headers, before the last byte of the body."""
    api, port = server
    request = b"".join(post(api, 1))
    with connected(port) as link:
        for _ in range(2):
            link.sendall(request[:at])
            link.sendall(request[at:])
            until(link, b"rejected")


def test_a_body_that_is_asked_for_first_and_a_long_one(server: Server) -> None:
    api, port = server
    with connected(port) as link:
        head, body = post(api, 1, more="Expect: 100-continue\r\n")
        link.sendall(head)
        until(link, b"HTTP/1.1 100 Continue\r\n\r\n")
        link.sendall(body)
        assert ACCEPTED in until(link, b"rejected")
        link.sendall(b"".join(post(api, 2, note="x" * 200_000)))
        assert ACCEPTED in until(link, b"rejected")


def test_a_body_of_several_chunks_that_come_together_is_whole(server: Server) -> None:
    api, port = server
    head, body = post(api, 1, note="x" * 5000)
    length = b"Content-Length: %d" % len(body)
    assert length in head
    chunks = [body[:1], body[1:40], body[40:], b""]
    chunked = b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in chunks)
    with connected(port) as link:
        link.sendall(head.replace(length, b"Transfer-Encoding: chunked") + chunked)
        assert ACCEPTED in until(link, b"rejected")


def test_the_body_of_one_request_is_never_that_of_the_next(server: Server) -> None:
    """A refusal before the body is read leaves it lying; the next request of the connection has its own."""
    api, port = server
    with connected(port) as link:
        head, body = post(api, 1)
        link.sendall(head.replace(b"Bearer heal_", b"Bearer nope_") + body)
        assert b"401" in until(link, b"unauthenticated")
        link.sendall(b"".join(post(api, 2)))
        assert ACCEPTED in until(link, b"rejected")


def head_of(answer: bytes) -> tuple[bytes, dict[str, str]]:
    """(status line, headers but for the time)"""
    first, *lines = answer.partition(b"\r\n\r\n")[0].split(b"\r\n")
    headers = dict(line.decode().split(": ", 1) for line in lines)
    assert headers.pop("date").endswith("GMT")
    return first, headers


def test_an_answer_has_the_same_head_in_http_1_0(server: Server) -> None:
    """But that its connection ends."""
    api, port = server
    head, body = post(api, 1)
    wrong = head.replace(b"application/json", b"text/html") + body
    for request, status in ((head + body, b"202"), (wrong, b"415")):
        with connected(port) as link:
            link.sendall(request)
            first, headers = head_of(until(link, b"\r\n\r\n"))
        with connected(port) as link:
            link.sendall(request.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
            answer = rest(link)
            last, older = head_of(answer)
        assert first == last and status in first
        assert older.pop("connection") == "close"
        # the second time the line is a duplicate, which is a word of the same length
        assert headers == older and int(headers["content-length"]) == len(answer.partition(b"\r\n\r\n")[2])
        assert headers["content-security-policy"].startswith("default-src 'none'")


def test_an_answer_leaves_in_one_piece(server: Server) -> None:
    """Head and body are one system call and one packet: uvloop writes once a turn of its loop."""
    api, port = server
    with connected(port) as link:
        for number in range(2):
            link.sendall(b"".join(post(api, number)))
            assert link.recv(65536).endswith(ACCEPTED)


@pytest.mark.parametrize(
    ("answered_before", "begins"),
    [(0, b""), (0, b"POST /api"), (1, b"POST /api"), (1, b"\r\n")],
    ids=["silent", "half a line", "half a line after an answer", "an empty line after an answer"],
)
def test_a_head_that_does_not_come_ends_the_connection(
    server: Server, answered_before: int, begins: bytes
) -> None:
    api, port = server
    with connected(port) as link:
        for number in range(answered_before):
            link.sendall(b"".join(post(api, number)))
            until(link, ACCEPTED)
        link.sendall(begins)
        assert rest(link).startswith(b"HTTP/1.1 408")


GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"POST /sign-in HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
WAITS = b"GET /healthz HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n"  # it is answered after 2 s


@pytest.mark.parametrize("server", [{"head_s": 60.0, "request_s": 60.0}], indirect=True)
@pytest.mark.parametrize(
    "begins",
    [
        GET + b"X: ",
        GET + b"X: a\r\n" * 100,
        b"GET /",
        CHUNKED + b"X: ",
        GET + b"\r\n" + GET + b"X: ",
        WAITS + GET,
    ],
    ids=["field", "fields", "address", "trailer", "second request", "behind one that waits"],
)
def test_a_head_without_end_ends_the_connection_before_it_costs_others(server: Server, begins: bytes) -> None:
    """Each piece of it would cost a copy of all that came before."""
    _, port = server
    more = b"X: a\r\n" * 2000 if begins.endswith(b"\n") else b"a" * 12_000
    sent = 0
    with connected(port) as link:
        link.sendall(begins)
        with suppress(ConnectionError):
            while sent < 16 * 1024 * 1024:
                link.sendall(more)
                sent += len(more)
    assert sent < 16 * 1024 * 1024


@pytest.mark.parametrize(
    ("path", "status"),
    [("/healthz", b"200"), ("/api/v1/nodes", b"401"), ("/api/v1/signals/metrics", b"405"), ("/no", b"404")],
)
def test_a_question_for_the_head_is_answered_as_get_without_its_body(
    server: Server, path: str, status: bytes
) -> None:
    """As load balancers and `curl -I` ask."""
    _, port = server
    heads = []
    for method in ("HEAD", "GET"):
        with connected(port) as link:
            link.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            heads.append(rest(link).partition(b"\r\n\r\n"))
    (asked, _, nothing), (got, _, body) = heads
    assert asked.startswith(b"HTTP/1.1 " + status)
    assert nothing == b"" and body
    assert [line for line in asked.splitlines() if not line.startswith(b"date:")] == [
        line for line in got.splitlines() if not line.startswith(b"date:")
    ]


def test_the_stream_has_no_head_of_its_own(server: Server) -> None:
    """It never ends: who asks for its head must not hold it."""
    api, port = server
    head = f"Host: localhost\r\nAuthorization: {api.headers('viewer')['Authorization']}\r\n\r\n"
    with connected(port) as link:
        link.sendall(f"HEAD /api/v1/events/stream HTTP/1.1\r\n{head}".encode())
        assert until(link, b"\r\n\r\n").startswith(b"HTTP/1.1 405")


QUOTED = 'a="' + '\\"' * 25_000 + '"'


@pytest.mark.parametrize(
    ("asks", "status"),
    [("GET /healthz", b"200"), ("GET /api/v1/nodes", b"401"), ("POST /api/v1/signals/metrics", b"401")],
)
def test_a_long_cookie_in_quotes_costs_others_nothing(server: Server, asks: str, status: bytes) -> None:
    """Older Pythons unquote it in the square of its length."""
    _, port = server
    began_s = time.process_time()
    with connected(port) as link:
        link.sendall(f"{asks} HTTP/1.1\r\nHost: localhost\r\nCookie: {QUOTED}\r\n\r\n".encode())
        assert until(link, b"\r\n\r\n").startswith(b"HTTP/1.1 " + status)
    assert time.process_time() - began_s < 2


def test_a_cookie_behind_a_quoted_one_of_another_site_is_read(server: Server) -> None:
    api, port = server
    cookie = api.app.state.access.sign_in(api.token("viewer", once=True), "127.0.0.1")
    with connected(port) as link:
        head = (
            f'GET /api/v1/nodes HTTP/1.1\r\nHost: localhost\r\nCookie: a="b c"; healer_session={cookie}; d="'
        )
        link.sendall(head.encode() + b'"\r\n\r\n')
        assert until(link, b"\r\n\r\n").startswith(b"HTTP/1.1 200")


def test_a_head_as_long_as_any_honest_one_and_a_long_body_are_taken(server: Server) -> None:
    api, port = server
    head, body = post(api, 1, more=f"Cookie: {'a' * 30_000}\r\n", note="n" * 600_000)
    with connected(port) as link:
        for _ in range(2):
            link.sendall(head[:20_000])
            time.sleep(0.1)
            link.sendall(head[20_000:])
            for at in range(0, len(body), 100_000):
                link.sendall(body[at : at + 100_000])
            assert b"HTTP/1.1 202" in until(link, b"rejected")


@pytest.mark.parametrize("answered_before", [0, 1])
def test_a_body_that_does_not_come_ends_the_connection(server: Server, answered_before: int) -> None:
    api, port = server
    with connected(port) as link:
        for number in range(answered_before):
            link.sendall(b"".join(post(api, number)))
            until(link, ACCEPTED)
        head, body = post(api, 7)
        link.sendall(head + body[:10])
        assert b"202" not in rest(link)
    wait_until(lambda: api.app.state.preamble.receiver.held == 0, 30, what="nothing of the body is held")


@pytest.mark.parametrize("server", [{"idle_s": 1}], indirect=True)
@pytest.mark.parametrize("refused", [False, True], ids=["answered", "refused before its body was whole"])
def test_a_connection_that_idles_is_ended_and_one_in_use_is_not(server: Server, refused: bool) -> None:
    api, port = server
    head, body = post(api, 1)
    with connected(port) as idling, connected(port) as used:
        if refused:
            idling.sendall(head.replace(b"Bearer heal_", b"Bearer nope_") + body[:9])
            assert b"401" in until(idling, b"unauthenticated")
            idling.sendall(body[9:])
        else:
            idling.sendall(head + body)
            until(idling, b"rejected")
        stopped = threading.Event()

        def use() -> None:
            number = 2
            while not stopped.wait(0.1):
                used.sendall(b"".join(post(api, number)))
                until(used, b"rejected")
                number += 1

        using = threading.Thread(target=use)
        using.start()
        try:
            assert rest(idling) == b""
        finally:
            stopped.set()
            using.join()
        used.sendall(b"".join(post(api, 1)))
        assert b"202 Accepted" in until(used, b"rejected")


def refused_unread(api: Api, length: int) -> bytes:
    """The head of a body that is too long, as urllib sends it."""
    head = post(api, 1, more="Connection: close\r\n")[0]
    return head.partition(b"Content-Length")[0] + b"Content-Length: %d\r\n\r\n" % length


@pytest.mark.parametrize("server", [{"request_s": 60.0}], indirect=True)
def test_a_sender_sees_why_its_body_was_refused_though_it_writes_all_of_it_first(server: Server) -> None:
    api, port = server
    length = 40 * 2**20
    with connected(port) as link:
        link.sendall(refused_unread(api, length))
        piece = b" " * 2**20
        for _ in range(0, length, len(piece)):
            link.sendall(piece)
        assert rest(link).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize("fast", [False, True], ids=["nothing more", "without end"])
def test_a_refused_body_is_read_on_for_a_bounded_time_and_size(
    server: Server, monkeypatch: pytest.MonkeyPatch, fast: bool
) -> None:
    monkeypatch.setattr(edge, "LINGER_BYTES", 2**20)
    api, port = server
    with connected(port) as link:
        link.sendall(refused_unread(api, 2**30))
        assert rest(link).startswith(b"HTTP/1.1 413"), "the answer does not wait for the body"
        with pytest.raises(ConnectionError):
            while True:  # until the connection has ended
                link.sendall(b" " * 2**20 if fast else b" ")
                time.sleep(0.0 if fast else 0.2)


def test_a_named_proxy_may_say_who_asks_and_a_sender_of_signals_may_too(server: Server) -> None:
    api, port = server
    api.app.state.site = SiteNames(proxies=(ip_network("127.0.0.1"),), any_host=True)

    async def peer(request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"{request.client.host if request.client else ''} {request.url.scheme}.")

    api.app.router.routes.append(Route("/peer", peer))
    more = "X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: https\r\n"
    with connected(port) as link:
        link.sendall(f"GET /peer HTTP/1.1\r\nHost: h\r\n{more}\r\n".encode())
        assert until(link, b"https.").endswith(b"\r\n\r\n192.0.2.7 https.")
        link.sendall(b"".join(post(api, 7, more=more)))
        assert ACCEPTED in until(link, b"}")
