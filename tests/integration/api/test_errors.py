"""Errors on real sockets: what never becomes a request, what no route takes, and what the stop cuts off."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
import uvicorn
from uvicorn.config import WS_PROTOCOLS

from healer.api.edge import Bounds, uvicorn_settings
from tests.integration.api.test_connections import connected, post, rest, until
from tests.support.api import Api
from tests.support.console_pages import BROWSER
from tests.support.console_site import Site, make_sample
from tests.support.wait import wait_until

PROBLEM = "application/problem+json"


@contextmanager
def serving(app: Any, *, of_peer: int = 20) -> Iterator[tuple[uvicorn.Server, int]]:
    bounds = Bounds(total=20, of_peer=of_peer, head_s=2.0, request_s=20.0)
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_level="critical", access_log=False, timeout_graceful_shutdown=1,
        **uvicorn_settings(bounds),
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started, 30, what="uvicorn serves")
        yield server, server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(timeout=20)


@pytest.fixture
def api(fresh_database: sa.Engine) -> Iterator[Api]:
    one = Api(fresh_database)
    yield one
    one.close()


@pytest.fixture
def port(api: Api) -> Iterator[int]:
    with serving(api.app) as (_, number):
        yield number


def asked(line: str, *headers: str) -> bytes:
    return "\r\n".join([line, "Host: h", *headers, "", ""]).encode("latin-1")


def assert_problem(answer: bytes, status: int) -> dict[str, Any]:
    """One whole answer, and nothing behind it."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    assert first.startswith(f"HTTP/1.1 {status} "), answer
    assert headers["content-type"] == PROBLEM, answer
    assert int(headers["content-length"]) == len(body)
    problem = json.loads(body)
    assert {"type", "title", "status", "detail", "code"} <= problem.keys() and problem["status"] == status
    return {"headers": headers, **problem}


POST = "POST /api/v1/pauses HTTP/1.1"
MALFORMED = {
    "no HTTP": b"\x00\x01\x02\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 50,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "another version": asked("GET / HTTP/9.9"),
    "an unknown method": asked("BREW / HTTP/1.1"),
    "a space in the address": asked("GET /a b HTTP/1.1"),
    "no path": asked("GET http://h HTTP/1.1"),
    "a long address": asked(f"GET /{'a' * 70_000} HTTP/1.1"),
    "no colon": asked("GET / HTTP/1.1", "nocolon"),
    "a folded header": asked("GET / HTTP/1.1", "A: b", " c"),
    "two lengths": asked(POST, "Content-Length: 1", "Content-Length: 2"),
    "a length and chunks": asked(POST, "Content-Length: 1", "Transfer-Encoding: chunked"),
    "a wrong length": asked(POST, "Content-Length: x"),
    "a wrong chunk": asked(POST, "Transfer-Encoding: chunked") + b"zz\r\n",
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_request_is_answered_with_a_problem(port: int, what: str) -> None:
    with connected(port) as link:
        link.sendall(MALFORMED[what])
        problem = assert_problem(rest(link), 400)
    assert problem["code"] == "bad_request"
    assert problem["headers"]["connection"] == "close" and problem["headers"]["date"].endswith("GMT")


def test_an_answer_under_way_is_not_mixed_with_another(api: Api, port: int) -> None:
    stream = asked("GET /api/v1/events/stream HTTP/1.1", f"Authorization: Bearer {api.token('viewer')}")
    with connected(port) as link:
        link.sendall(stream)
        until(link, b"\r\n\r\n")
        link.sendall(b"\x00\x01\r\n\r\n")
        assert b"HTTP/1.1" not in rest(link)


def test_headers_that_do_not_come_are_a_problem(port: int) -> None:
    with connected(port) as link:
        link.sendall(b"GET /api")
        assert assert_problem(rest(link), 408)["code"] == "stalled"


def test_too_many_connections_are_a_problem(api: Api) -> None:
    with serving(api.app, of_peer=1) as (_, number), connected(number) as first:
        first.sendall(asked("GET /healthz HTTP/1.1"))
        until(first, b"ok")
        with connected(number) as second:
            assert assert_problem(rest(second), 503)["headers"]["retry-after"] == "5"


@pytest.mark.parametrize("method", ["OPTIONS", "TRACE", "PUT", "PROPFIND", "CONNECT"])
def test_methods_that_no_route_takes_are_problems(port: int, method: str) -> None:
    for path, status in (("/healthz", 405), ("/api/v1/nodes", 405), ("/api/v1/nope", 404), ("/nope", 404)):
        with connected(port) as link:
            link.sendall(asked(f"{method} {path} HTTP/1.1", "Connection: close"))
            assert_problem(rest(link), status)


def test_an_upgrade_is_answered_as_what_it_asks_else(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    upgrade = ("Connection: upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
    with connected(port) as link:
        link.sendall(asked("GET /api/v1/nodes HTTP/1.1", *upgrade))
        assert b"401 Unauthorized" in until(link, b"unauthenticated")
    # A library for websockets that is installed beside healer must not answer in its place.
    monkeypatch.setitem(WS_PROTOCOLS, "auto", "asyncio:Protocol")
    config = uvicorn.Config("asyncio:Protocol", **uvicorn_settings())
    config.load()
    assert config.ws_protocol_class is None


@pytest.mark.parametrize("path", ["/api/v1/signals/kernel-log", "/api/v1/pauses"])
def test_request_cut_off_by_the_stop_is_answered_with_a_problem(api: Api, path: str) -> None:
    head, _ = post(api, 1)
    with serving(api.app) as (server, number), connected(number) as link:
        link.sendall(head.replace(b"/api/v1/signals/kernel-log", path.encode()))
        wait_until(lambda: server.server_state.tasks, what="the request waits for its body")
        api.events.close()
        server.should_exit = True
        assert assert_problem(rest(link), 503)["headers"]["retry-after"] == "5"


def test_errors_before_any_route_are_pages_to_a_browser_and_problems_else(api: Api, port: int) -> None:
    """The outermost layer's own: an address that cannot be, a body too long, a packing that is not known."""
    site = Site(make_sample(4))
    api.app.state.errors.page = site.console.error_page
    long = ("Content-Length: 70000", "Cookie: healer_session=cookie-good")
    tries = [
        (asked("GET /%00 HTTP/1.1", "Cookie: healer_session=cookie-good"), 404),
        (asked("POST /language HTTP/1.1", *long), 413),
        (asked("POST /language HTTP/1.1", "Content-Encoding: br", "Content-Length: 0"), 415),
    ]
    for request, status in tries:
        with connected(port) as link:
            link.sendall(request)
            assert PROBLEM.encode() in until(link, b'"code"')
        with connected(port) as link:
            link.sendall(request.replace(b"Host: h", f"Host: h\r\nAccept: {BROWSER['Accept']}".encode()))
            page = until(link, b"</html>")
        assert page.startswith(f"HTTP/1.1 {status} ".encode()) and b"content-type: text/html" in page
        assert re.search(rb"<a href=\"/\">Go to fleet</a>", page)
    inside = tries[0][0].replace(b"/%00", b"/api/v1/%00").replace(b"Host: h", b"Host: h\r\nAccept: text/html")
    with connected(port) as link:
        link.sendall(inside)
        assert PROBLEM.encode() in until(link, b'"code"')
