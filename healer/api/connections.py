"""Connections that bring nothing end: uvicorn's protocol, with a time for a head, a request, and between two.

uvicorn itself ends a connection that idles between two requests, with a timer for each answer, and no other
one. A peer may hold a share of all connections, so that one machine with too many keeps no other out.
"""

import asyncio
import resource
from collections import Counter
from enum import Enum
from http import HTTPStatus
from typing import Any, NamedTuple

from prometheus_client import Counter as Figure
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from healer.api.metrics import REGISTRY
from healer.api.problems import Problem
from healer.api.receiving import WHOLE_S

#: From the first byte, or from the connection's beginning, until all headers are here.
HEAD_S = 10.0
#: From the headers to the end of the body; who reads it answers 408 long before (`receiving.WHOLE_S`).
REQUEST_S = WHOLE_S + 15.0
#: Between two requests; at most a fifth more.
IDLE_S = 75
#: File descriptors that are no connections of senders: database, rule files, listening sockets.
_OWN_FILES = 256
#: Of all connections those of one address; a proxy in front of many senders needs some hundred.
PEER_SHARE, PEER_LEAST = 0.25, 200

_ENDED = Figure(
    "healer_connections_ended",
    "Connections that were ended because they brought nothing, or were too many.",
    ("why",),
    registry=REGISTRY,
)
#: What is answered where no request comes to the application; the connection ends with it.
_WRONG = Problem(400, "this is no request of HTTP/1.1, or a part of it is malformed or too long")
_LATE = Problem(408, "the headers came too slowly")
_FULL = Problem(503, "too many connections", headers={"Retry-After": "5"})


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


class _Idle:
    """Ends what idles between two requests, by one look at all now and then: a timer for each answer costs
    more. For one event loop."""

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, loop: asyncio.AbstractEventLoop, connections: "set[Any]") -> None:
        """`connections` are looked at until there are none."""
        if self._timer is None and connections:
            self._timer = loop.call_later(self._idle_s / 5, self._look, loop, connections)

    def _look(self, loop: asyncio.AbstractEventLoop, connections: "set[Any]") -> None:
        now = loop.time()
        for one in [*connections]:
            since: float | None = getattr(one, "idle_since", None)  # a websocket has none
            if since is not None and now - since >= self._idle_s:
                one.timeout_keep_alive_handler()
        self._timer = None
        self.watch(loop, connections)


class _Place(Enum):
    head = 0  # of a request, or what stands before it
    body = 1
    end = 2


def bounded(bounds: Bounds) -> type[HttpToolsProtocol]:
    """uvicorn's protocol within these bounds. For one event loop."""
    peers: Counter[str] = Counter()
    idle = _Idle(bounds.idle_s)

    class Bounded(HttpToolsProtocol):
        _timer: asyncio.TimerHandle | None = None
        _peer: str | None = None
        #: What the next bytes belong to.
        _place = _Place.head
        #: When the last answer was given, by the loop's clock; None while a request is under way.
        idle_since: float | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            peer = self.client[0] if self.client else ""
            if len(self.connections) > bounds.total or peers[peer] >= bounds.of_peer:
                _ENDED.labels("too_many").inc()
                self._last(_FULL)
                return
            self._peer = peer
            peers[peer] += 1
            idle.watch(self.loop, self.connections)
            self._within(bounds.head_s, head=True)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            if self._peer is not None:
                peers[self._peer] -= 1
                if not peers[self._peer]:
                    del peers[self._peer]
                self._peer = None
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            self.idle_since = None
            if self._place is _Place.end and self._answered():
                self._place = _Place.head  # the next request of this connection begins
            super().data_received(data)
            if self._place is _Place.end:
                if self._answered():  # it was refused before its end had come
                    self.idle_since = self.loop.time()
                return
            # A timer is made only where something is still to come: most requests come in one piece.
            if self._timer is not None or self.transport.is_closing():
                return
            if self._place is _Place.body:
                self._within(bounds.request_s, head=False)
            elif self._answered():
                self._within(bounds.head_s, head=True)

        def send_400_response(self, msg: str) -> None:
            if self.cycle is not None and self.cycle.response_started and not self._answered():
                self.transport.close()  # within an answer another one would be a part of it
            else:
                self._last(_WRONG)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._place = _Place.head

        def on_headers_complete(self) -> None:
            super().on_headers_complete()
            self._place = _Place.body
            self._stop()

        def on_body(self, body: bytes) -> None:
            # The first piece is kept as it came: most bodies are no more, and then they are copied by nobody.
            held: bytes | bytearray = self.cycle.body
            if type(held) is bytes:
                self.cycle.body = bytearray(held)
            elif not held:
                self.cycle.body = b""  # type: ignore[assignment]  # to which uvicorn adds
            super().on_body(body)

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self._place = _Place.end
            self._stop()

        def on_response_complete(self) -> None:
            # As uvicorn's own, but that what idles is found by a look at all.
            self.server_state.total_requests += 1
            if self.transport.is_closing():
                return
            self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
            else:
                self.idle_since = self.loop.time()

        def _last(self, problem: Problem) -> None:
            answer = problem.response()
            headers = [*self.server_state.default_headers, *answer.raw_headers, (b"connection", b"close")]
            lines = [b"HTTP/1.1 %d %b" % (problem.status, HTTPStatus(problem.status).phrase.encode())]
            lines += [b"%b: %b" % one for one in headers]
            self.transport.write(b"\r\n".join([*lines, b"", bytes(answer.body)]))
            self.transport.close()

        def _answered(self) -> bool:
            return self.cycle is None or self.cycle.response_complete

        def _within(self, seconds: float, *, head: bool) -> None:
            self._stop()
            self._timer = self.loop.call_later(seconds, self._end, head)

        def _stop(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _end(self, head: bool) -> None:
            self._timer = None
            if self.transport.is_closing():
                return
            _ENDED.labels("slow_head" if head else "slow_body").inc()
            if head:
                self._last(_LATE)
            else:
                self.transport.abort()

    return Bounded


def uvicorn_settings(bounds: Bounds | None = None) -> dict[str, Any]:
    """What uvicorn is told of all this. What proxies say is read by the application."""
    return {
        "http": bounded(bounds or bounds_here()),
        # No route speaks it, and what a library for it answers by itself is no problem.
        "ws": "none",
        "backlog": 2048,
        "proxy_headers": False,
    }
