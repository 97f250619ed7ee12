"""The edge of HTTP: ends connections that bring nothing, and gives every answer its headers. The application
behind it serves the routes of signals first.

uvicorn only ends a connection that idles between two requests. Its protocol here also limits the time of a
head and of a whole request. One address may hold only a share of all connections, so that it cannot keep
others out. The outermost layer bounds bodies, and answers every error.
"""

import asyncio
import collections
import logging
import resource
import ssl
from collections.abc import Callable, Sequence
from enum import Enum
from http import HTTPStatus
from typing import Any, NamedTuple, cast

from fastapi import FastAPI
from prometheus_client import Counter
from starlette import datastructures
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from healer.api.client_certificates import CERTIFICATE, names_shown
from healer.api.cookies import read_cookie
from healer.api.metrics import REQUESTS, counter
from healer.api.problems import Errors, Problem, ending, held_back, problem_of
from healer.api.quotas import SENDER, loss_of, route_of
from healer.api.request_preamble import WHOLE, WHOLE_S, check_encoding, packing_of, too_large, unpacked, whole
from healer.api.site_address import PEER, Reached, SiteNames
from healer.ports.callers import Caller
from healer.text import language, say

#: Where the API begins; all other addresses are the console's.
PREFIX = "/api/v1"
#: From the first byte, or from the connection's beginning, until all headers are here.
HEAD_S = 10.0
#: Bytes of a head, or of what follows a body, that came before the piece that ends it. The parser copies all
#: of a field with each piece of it, while no one else is served.
HEAD_BYTES = 64 * 1024
#: From the headers to the end of the body; its reader answers 408 long before (`WHOLE_S`).
REQUEST_S = WHOLE_S + 15.0
#: Between two requests.
IDLE_S = 75
#: File descriptors for anything but senders: database, rule files, listening sockets.
_OWN_FILES = 256
#: So many bytes of a refused body are read on: a sender that writes all of it first reads the answer then.
LINGER_BYTES = 40 * 1024 * 1024
#: Share of all connections for one address; a proxy in front of many senders needs some hundred.
PEER_SHARE, PEER_LEAST = 0.25, 200
_ENDED = counter(
    "connections_ended",
    "Connections closed because they sent nothing, or because there were too many.",
    "why",
)
#: Answers without a request that reaches the application; the connection ends with them.
_WRONG = Problem(400, say("api.not_http"))
_LATE = Problem(408, say("api.headers_slow"))
_FULL = Problem(503, say("api.connections_full"), headers={"Retry-After": "5"})


class Bounds(NamedTuple):
    """Connections at once, and of one address; seconds for a head, for a whole request, and between two."""

    total: int
    of_peer: int
    head_s: float = HEAD_S
    request_s: float = REQUEST_S
    idle_s: int = IDLE_S


def bounds_here() -> Bounds:
    """What this process may hold open. Takes all that the system allows it, up to 65,536 files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    total = max(wanted - _OWN_FILES, 64)
    return Bounds(total, max(round(total * PEER_SHARE), min(PEER_LEAST, total)))


class _Place(Enum):
    head = 0  # of a request, or before it
    body = 1
    end = 2


class _Lingering:
    """A transport as uvicorn sees it, which closes it at once after a refusal. The system resets a connection
    that ends with bytes unread, and a sender that still writes its body would never see the answer: where
    `lingers` says so, what still comes is read first. A second `close` ends it."""

    def __init__(self, transport: asyncio.Transport, lingers: Callable[[], bool]) -> None:
        self._transport, self._lingers, self._is_left = transport, lingers, False
        self.write = transport.write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._is_left or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing() or not self._lingers():
            self._transport.close()
        else:
            self._is_left = True


class _Bounded(HttpToolsProtocol):
    """uvicorn's protocol within `bounds`; `peers` counts the connections of each address."""

    bounds: Bounds
    peers: collections.Counter[str]
    _timer: asyncio.TimerHandle | None = None
    _peer: str | None = None
    #: What the next bytes belong to.
    _place = _Place.head
    #: Bytes that came after the connection's last answer.
    _unread = 0
    #: Bytes since the parser last found the end of a head, a part of a body, or its end.
    _unfinished = 0
    #: In the client's certificate.
    _names: tuple[str, ...] = ()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, _Lingering(transport, self._lingers)))
        peer = self.client[0] if self.client else ""
        if len(self.connections) > self.bounds.total or self.peers[peer] >= self.bounds.of_peer:
            _ENDED.labels("too_many").inc()
            self._last(_FULL)
            return
        self._peer = peer
        self.peers[peer] += 1
        self._names = names_shown(transport)
        self._within(self.bounds.head_s, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        if self._peer is not None:
            self.peers[self._peer] -= 1
            if not self.peers[self._peer]:
                del self.peers[self._peer]
            self._peer = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            self._unread += len(data)
            if self._unread > LINGER_BYTES:
                self.transport.close()
            return
        if self._place is _Place.end and self._answered():
            self._place = _Place.head  # the next request of this connection begins
            self._stop()
        self._unfinished += len(data)
        super().data_received(data)
        if self._unfinished > HEAD_BYTES and not self.transport.is_closing():
            _ENDED.labels("long_head").inc()
            self.send_400_response("too long")
        # A timer is made only where something is still to come: most requests come in one piece.
        if self._timer is not None or self.transport.is_closing():
            return
        if self._place is _Place.body:
            self._within(self.bounds.request_s, self._body_is_late)
        elif not self._answered():
            return
        elif self._place is _Place.head:
            self._within(self.bounds.head_s, self._head_is_late)
        else:  # it was refused before its end had come, and uvicorn waited since its answer alone
            self._within(self.bounds.idle_s, self.transport.close)

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None and self.cycle.response_started and not self._answered():
            self.transport.close()  # within an answer another one would be a part of it
        else:
            self._last(_WRONG)

    def on_headers_complete(self) -> None:
        if self._names:
            self.scope[CERTIFICATE] = self._names  # type: ignore[typeddict-unknown-key]
        super().on_headers_complete()
        self._place, self._unfinished = _Place.body, 0
        self._stop()

    def on_body(self, body: bytes) -> None:
        self._unfinished = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.scope[WHOLE] = True  # type: ignore[typeddict-unknown-key]
        self._place, self._unfinished = _Place.end, 0
        self._stop()

    def _last(self, problem: Problem) -> None:
        answer = problem.response()
        headers = [*self.server_state.default_headers, *answer.raw_headers, (b"connection", b"close")]
        lines = [b"HTTP/1.1 %d %b" % (problem.status, HTTPStatus(problem.status).phrase.encode())]
        lines += [b"%b: %b" % header for header in headers]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(answer.body)]))
        self.transport.close()

    def shutdown(self) -> None:
        super().shutdown()
        if self._answered():
            self.transport.close()  # also where it lingers

    def _lingers(self) -> bool:
        """Whether the sender still writes a body that was answered; then for as long as any body may take."""
        if self._place is not _Place.body or not self._answered():
            return False
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._within(self.bounds.request_s, self.transport.close)
        return True

    def _answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _within(self, seconds: float, late: Callable[[], None]) -> None:
        self._stop()
        self._timer = self.loop.call_later(seconds, late)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _head_is_late(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            _ENDED.labels("slow_head").inc()
            self._last(_LATE)

    def _body_is_late(self) -> None:
        self._timer = None
        if not self.transport.is_closing():
            _ENDED.labels("slow_body").inc()
            self.transport.abort()


def bounded(bounds: Bounds) -> type[HttpToolsProtocol]:
    """uvicorn's protocol within these bounds. For one event loop."""
    return type("Bounded", (_Bounded,), {"bounds": bounds, "peers": collections.Counter()})


def uvicorn_settings(bounds: Bounds | None = None) -> dict[str, Any]:
    """uvicorn's settings for this. The application reads the headers of proxies."""
    bounds = bounds or bounds_here()
    return {
        "http": bounded(bounds),
        "timeout_keep_alive": bounds.idle_s,
        # No route speaks it, and what a library for it answers by itself is no RFC 9457 problem.
        "ws": "none",
        "backlog": 2048,
        "proxy_headers": False,
    }


def tls_settings(context: ssl.SSLContext) -> dict[str, Any]:
    """uvicorn's settings for TLS by this context."""
    return {"ssl_context_factory": lambda *_: context, "loop": "healer.api.handshakes:HandshakeLoop"}


log = logging.getLogger("healer.api")
Headers = Sequence[tuple[bytes, bytes]]
#: Bodies of everything but signals; and of paths below the API's prefix that take more: a file of rules.
BODY_LIMIT = 64 * 1024
LARGER = {"rehearsals": 1024 * 1024}
#: What Slack sends, which has no session here: no form of another site can do anything by it.
FORMS = {"chat/slack": "application/x-www-form-urlencoded"}
_STREAM = "/events/stream"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
#: What an answer of the API may do in a browser: nothing. Pages set their own policy.
_API_POLICY = "default-src 'none'; frame-ancestors 'none'"
_PLAIN = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
)
_STRICT = (
    *_PLAIN,
    (b"cache-control", b"private, no-cache"),
    (b"content-security-policy", _API_POLICY.encode()),
)

#: For a year this host is reached only by https. A browser ignores this for an address.
HSTS = (b"strict-transport-security", b"max-age=31536000")
_STRICT_BY_TLS = (*_STRICT, HSTS)


def speak_to(request: Request) -> None:
    """Answers the request in the caller's language."""
    accepts = request.headers.get("accept-language", "")
    language.current.set(language.chosen(read_cookie(request, language.COOKIE), accepts))


class Edge:
    """ASGI middleware, outside of everything. `prefix` is where the API begins.

    The routes of signals bound and unpack their bodies themselves, and use only `send` and `failed`."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self.app = app
        self.prefix = prefix + "/"
        self.signals = prefix + "/signals/"
        self._counters: dict[tuple[str, int], Counter] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = complete = False

        async def answer(message: Message) -> None:
            nonlocal started, complete
            if message["type"] == "http.response.start":
                started = True
                more = _STRICT if scope["path"].startswith(self.prefix) else _PLAIN
                if scope["scheme"] == "https":
                    more = (*more, HSTS)
                message["headers"] = _with_headers(message["headers"], more)
                self._count(scope, message["status"])
            elif message["type"] == "http.response.body" and not message.get("more_body", False):
                complete = True
            await send(message)

        try:
            site: SiteNames = scope["app"].state.site
            site.check_host(scope)
            _behind_proxies(scope, site.reached(scope))
            if "\x00" in scope["path"]:
                raise Problem(404, say("api.no_such_address"))
            reads = scope["method"] in {"GET", "HEAD"}
            if reads or not scope["path"].startswith(self.signals):
                asked = Request(scope)
                speak_to(asked)
                if not reads:
                    receive = await self._whole_body(asked.headers, scope, receive)
            # The server leaves the body of HEAD out. A stream has none that ends.
            head = scope["method"] == "HEAD" and not scope["path"].endswith(_STREAM)
            await self.app({**scope, "method": "GET"} if head else scope, receive, answer)
        except asyncio.CancelledError:  # only by uvicorn, which would answer 500 as text
            if started:
                raise
            await ending().response()(scope, receive, answer)
        except Exception as error:
            if complete:
                # The handler of last resort has answered and logged; Starlette raises it once more.
                return
            if started:
                raise
            errors: Errors = scope["app"].state.errors
            await (await errors.answer(Request(scope, receive), error))(scope, receive, answer)

    async def send(self, scope: Scope, answer: Response, send: Send) -> None:
        """Sends a whole answer of the API to a POST, with the headers that all answers carry."""
        self._count(scope, answer.status_code)
        more = _STRICT_BY_TLS if scope["scheme"] == "https" else _STRICT
        headers = [*_with_headers(answer.raw_headers, more)]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    def failed(self, scope: Scope, error: Exception) -> Response:
        """The answer of the API that an error is."""
        problem = problem_of(error)
        if problem.status == 500:
            log.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
        return problem.response()

    async def _whole_body(self, headers: datastructures.Headers, scope: Scope, receive: Receive) -> Receive:
        """Reads the body before the routes see it, so that its size is bounded in one place."""
        length = headers.get("content-length", "")
        packed = packing_of(headers)
        check_encoding(packed)
        route = scope["path"].removeprefix(self.prefix)
        limit = LARGER.get(route, BODY_LIMIT)
        if length.isascii() and length.isdigit() and int(length) > limit:
            raise too_large(limit)
        raw = await whole(receive, limit)
        kind = headers.get("content-type", "").split(";")[0].strip().lower()
        wanted = FORMS.get(route, "application/json")
        if raw and scope["path"].startswith(self.prefix) and kind != wanted:
            raise Problem(415, say("api.body_must_be", kinds=wanted))
        body = unpacked(raw, packed, limit) if raw else b""
        replayed = False

        async def replay() -> Message:
            nonlocal replayed
            if replayed:
                return await receive()
            replayed = True
            return {"type": "http.request", "body": body, "more_body": False}

        return replay

    def _count(self, scope: Scope, status: int) -> None:
        key = (scope["method"], status)
        counter = self._counters.get(key)
        if counter is None:
            # An invented method must not become a series.
            method = key[0] if key[0] in _METHODS else "other"
            counter = self._counters[key] = REQUESTS.labels(method, str(key[1]))
        counter.inc()


def _behind_proxies(scope: Scope, reached: Reached) -> None:
    """Makes the client and its scheme those of the request, as every route reads them."""
    scope["scheme"] = reached.scheme
    scope[PEER] = scope["client"][0] if scope.get("client") else ""
    if scope.get("client") and scope["client"][0] != reached.client:
        scope["client"] = (reached.client, 0)


def _with_headers(headers: Headers, more: Headers) -> Headers:
    """With those of `more` that the answer does not set itself."""
    names = {name for name, _ in headers}
    return [*headers, *(header for header in more if header[0] not in names)]


def _drop_quoted_cookies(scope: Scope) -> None:
    """Takes cookies with a quote out of the request: none of ours has one, and to unquote costs older Pythons
    the square of the length, wherever a layer reads the cookies."""
    if any(name == b"cookie" and b'"' in value for name, value in scope["headers"]):
        scope["headers"] = [
            (name, _without_quoted(value) if name == b"cookie" else value) for name, value in scope["headers"]
        ]


def _without_quoted(header: bytes) -> bytes:
    return b";".join(pair for pair in header.split(b";") if b'"' not in pair)


class Application(FastAPI):
    """FastAPI behind the Edge. The signal routes are served before its own layers: they halve the rate."""

    def __init__(self, routes: Sequence[Route], **rest: Any) -> None:
        super().__init__(**rest)
        self.router.routes.extend(routes)
        self._hot = {route.path: route.endpoint for route in routes}
        self._edge = Edge(super().__call__, PREFIX)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        hot = None
        if scope["type"] == "http":
            _drop_quoted_cookies(scope)
            hot = self._hot.get(scope["path"]) if scope["method"] == "POST" else None
        if hot is None:
            await self._edge(scope, receive, send)
            return
        try:
            self.state.site.check_host(scope)
            answer = await hot(Request(scope, receive))
        except (Exception, asyncio.CancelledError) as raised:
            error = raised if isinstance(raised, Exception) else ending()
            self._count(scope, error)
            answer = self._edge.failed(scope, error)
            if isinstance(error, Problem):
                await held_back(error)
            del error  # a cycle with its traceback would hold the body until a collection of garbage
        await self._edge.send(scope, answer, send)

    def _count(self, scope: Scope, error: Exception) -> None:
        """Counts a failed request as lost: nothing of it is stored."""
        lost = loss_of(error, disk_full=self.state.database.disk_full)
        if lost is None:
            return
        caller: Caller | None = scope.get(SENDER)
        reason, entries, why = lost
        self.state.losses.add(
            route_of(scope["path"]),
            reason,
            entries,
            cluster=(caller.cluster if caller else None) or self.state.services.cluster,
            who=caller.name if caller else "",
            example=why,
        )
