"""The outermost layer: size and kind of bodies, headers on every answer, and nothing escapes as a trace."""

import logging

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from healer.api.metrics import REQUESTS
from healer.api.problems import Problem, problem_of

log = logging.getLogger("healer.api")

#: Bodies of everything but signals.
BODY_LIMIT = 64 * 1024

_HEADERS = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Frame-Options", "DENY"),
)
#: What an answer of the API may do in a browser: nothing. Pages set their own policy.
_API_POLICY = "default-src 'none'; frame-ancestors 'none'"


class Edge:
    """ASGI middleware. `prefix` is where the API begins; the console's pages lie beside it."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self.app = app
        self.prefix = prefix
        self.signals = prefix + "/signals/"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def answer(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                self._dress(scope, message)
            await send(message)

        try:
            if "\x00" in scope["path"]:
                raise Problem(404, "no such address")
            if not scope["path"].startswith(self.signals) and scope["method"] not in {"GET", "HEAD"}:
                receive = await self._whole_body(scope, receive)
            await self.app(scope, receive, answer)
        except Exception as error:
            problem = problem_of(error)
            if problem.status == 500:
                log.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
            if started:
                raise
            await problem.response()(scope, receive, answer)

    async def _whole_body(self, scope: Scope, receive: Receive) -> Receive:
        """Reads the body before the routes see it, so that its size is bounded in one place."""
        headers = Headers(scope=scope)
        length = headers.get("content-length", "")
        too_large = Problem(
            413, f"the body is larger than {BODY_LIMIT} bytes", headers={"Connection": "close"}
        )
        if length.isascii() and length.isdigit() and int(length) > BODY_LIMIT:
            raise too_large
        chunks: list[bytes] = []
        size = 0
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                break
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > BODY_LIMIT:
                raise too_large
            more = message.get("more_body", False)
        kind = headers.get("content-type", "").split(";")[0].strip().lower()
        if size and scope["path"].startswith(self.prefix) and kind != "application/json":
            raise Problem(415, "the body must be application/json")
        body = b"".join(chunks)
        told = False

        async def replay() -> Message:
            nonlocal told
            if told:
                return await receive()
            told = True
            return {"type": "http.request", "body": body, "more_body": False}

        return replay

    def _dress(self, scope: Scope, message: Message) -> None:
        headers = MutableHeaders(raw=message["headers"])
        message["headers"] = headers.raw
        for name, value in _HEADERS:
            headers.setdefault(name, value)
        if scope["path"].startswith(self.prefix):
            headers.setdefault("Cache-Control", "no-store")
            headers.setdefault("Content-Security-Policy", _API_POLICY)
        REQUESTS.labels(scope["method"], str(message["status"])).inc()
