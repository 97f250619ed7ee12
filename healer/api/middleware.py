"""The outermost layer: size and kind of bodies, headers on every answer, and nothing escapes as a trace."""

import asyncio
import logging

from prometheus_client import Counter
from starlette import datastructures
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from healer.api.at_once import Answers, Headers
from healer.api.metrics import REQUESTS
from healer.api.problems import Errors, Problem, ending, problem_of
from healer.api.receiving import whole
from healer.api.unpacking import check_encoding, encoding_of, too_large, unpacked

log = logging.getLogger("healer.api")

#: Bodies of everything but signals.
BODY_LIMIT = 64 * 1024

_HEADERS = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Frame-Options", "DENY"),
)
#: What Slack sends, which has no session here: no form of another site can do anything by it.
FORMS = {"chat/slack": "application/x-www-form-urlencoded"}
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
#: What an answer of the API may do in a browser: nothing. Pages set their own policy.
_API_POLICY = "default-src 'none'; frame-ancestors 'none'"


_PLAIN = tuple((name.lower().encode(), value.encode()) for name, value in _HEADERS)
_STRICT = (
    *_PLAIN,
    (b"cache-control", b"private, no-cache"),
    (b"content-security-policy", _API_POLICY.encode()),
)


class Edge:
    """ASGI middleware, outside of everything. `prefix` is where the API begins; pages lie beside it.

    The routes of signals bound and unpack their bodies themselves, and use `tell` and `failed` alone."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self.app = app
        self.prefix = prefix + "/"
        self.signals = prefix + "/signals/"
        self._answers = Answers(self._dressed)
        self._counters: dict[tuple[str, int], Counter] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        told = {"started": False, "complete": False}

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                told["started"] = True
                more = _STRICT if scope["path"].startswith(self.prefix) else _PLAIN
                message["headers"] = self._dressed(message["headers"], more)
                self._count(scope, message["status"])
            elif message["type"] == "http.response.body" and not message.get("more_body", False):
                told["complete"] = True
            await send(message)

        try:
            if "\x00" in scope["path"]:
                raise Problem(404, "no such address")
            if not scope["path"].startswith(self.signals) and scope["method"] not in {"GET", "HEAD"}:
                receive = await self._whole_body(scope, receive)
            await self.app(scope, receive, answer)
        except asyncio.CancelledError:  # by uvicorn alone, which would answer 500 as text
            if told["started"]:
                raise
            await ending().response()(scope, receive, answer)
        except Exception as error:
            if told["complete"]:
                # The handler of last resort has answered and logged; Starlette raises it once more.
                return
            if told["started"]:
                raise
            errors: Errors = scope["app"].state.errors
            await (await errors.answer(Request(scope, receive), error))(scope, receive, answer)

    async def tell(self, scope: Scope, answer: Response, send: Send) -> None:
        """Sends a whole answer of the API to a POST, dressed as all others are."""
        status, headers = answer.status_code, answer.raw_headers
        self._count(scope, status)
        if self._answers.give(send, status, headers, bytes(answer.body)):
            return
        headers = [*self._dressed(headers)]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    def failed(self, scope: Scope, error: Exception) -> Response:
        """The answer of the API that an error is."""
        problem = problem_of(error)
        if problem.status == 500:
            log.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
        return problem.response()

    async def _whole_body(self, scope: Scope, receive: Receive) -> Receive:
        """Reads the body before the routes see it, so that its size is bounded in one place."""
        headers = datastructures.Headers(scope=scope)
        length = headers.get("content-length", "")
        packed = encoding_of(headers)
        check_encoding(packed)
        if length.isascii() and length.isdigit() and int(length) > BODY_LIMIT:
            raise too_large(BODY_LIMIT)
        raw = await whole(receive, BODY_LIMIT)
        kind = headers.get("content-type", "").split(";")[0].strip().lower()
        wanted = FORMS.get(scope["path"].removeprefix(self.prefix), "application/json")
        if raw and scope["path"].startswith(self.prefix) and kind != wanted:
            raise Problem(415, f"the body must be {wanted}")
        body = unpacked(raw, packed, BODY_LIMIT) if raw else b""
        told = False

        async def replay() -> Message:
            nonlocal told
            if told:
                return await receive()
            told = True
            return {"type": "http.request", "body": body, "more_body": False}

        return replay

    def _dressed(self, headers: Headers, more: Headers = _STRICT) -> Headers:
        own = {name for name, _ in headers}
        return [*headers, *(one for one in more if one[0] not in own)]

    def _count(self, scope: Scope, status: int) -> None:
        key = (scope["method"], status)
        counter = self._counters.get(key)
        if counter is None:
            # An invented method must not become a series.
            method = key[0] if key[0] in _METHODS else "other"
            counter = self._counters[key] = REQUESTS.labels(method, str(key[1]))
        counter.inc()
