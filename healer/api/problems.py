"""Every error as an RFC 9457 problem: `application/problem+json` with a `code` that programs may test.

To a person's browser, outside of the API, it is a page, where the application has one for it.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response

from healer.model import SlurmSnapshot
from healer.model.shown import sent_json
from healer.ports.callers import KeyInFlight, KeyReused
from healer.ports.request_errors import (
    Conflict,
    Forbidden,
    GuardRefused,
    Invalid,
    NoRoom,
    NotFound,
    TooMany,
    Unavailable,
    Unstorable,
)
from healer.signals.wire import BadBody
from healer.text import Said, joined, quoted, said_by, say, to_text

log = logging.getLogger("healer.api")
MEDIA_TYPE = "application/problem+json"
#: `code` where a status has only one.
_CODES = {
    400: "bad_request",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "stalled",
    409: "conflict",
    413: "too_large",
    415: "unsupported_media_type",
    422: "invalid",
    429: "too_many",
    500: "internal",
    503: "unavailable",
}


class Problem(Exception):
    """An answer that is an error. `detail` is a sentence for people; `lost` entries are not stored, and the
    answer waits `delay_s`. `heading` is that of its page, where a page of the console ends so."""

    lost = 1
    #: Before it is answered.
    delay_s = 0.0

    def __init__(
        self,
        status: int,
        detail: Said,
        *,
        code: str | None = None,
        errors: list[dict[str, str]] | None = None,
        headers: Mapping[str, str] | None = None,
        heading: str = "",
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.code = code or _CODES.get(status, "error")
        self.heading = heading
        self.errors = errors or []
        self.headers = dict(headers or {})
        #: What else the body holds.
        self.more: dict[str, Any] = {}

    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "type": "about:blank",
            "title": quoted(HTTPStatus(self.status).phrase),
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
        }
        if self.errors:
            body["errors"] = self.errors
        return body | self.more

    def response(self) -> Response:
        return Response(
            sent_json(msgspec.json.encode(self.body(), enc_hook=to_text)),
            self.status,
            headers=self.headers,
            media_type=MEDIA_TYPE,
        )


def not_in_slurm(snapshot: SlurmSnapshot | None, kind: str, name: str, cluster: str) -> Said:
    """Why there is no such node or job (`kind`), as far as it is known: either may be newer than the
    snapshot."""
    if snapshot is None:
        return say("engine.no_picture", cluster=cluster)
    when = f"{snapshot.taken_at:%H:%M:%S} UTC"
    return say(f"api.no_{kind}_in_snapshot", name=name, cluster=cluster, when=when)


def field_error(field: str, text: Said) -> Problem:
    """422 for one field."""
    return Problem(422, say("api.field", field=field, text=text), errors=[{"field": field, "detail": text}])


def unauthenticated(*, given: bool = False) -> Problem:
    """`given`: a token or session was sent and is not valid (RFC 6750, 3.1)."""
    realm = 'Bearer realm="healer"'
    challenge = f'{realm}, error="invalid_token"' if given else realm
    text = say("api.token_not_valid") if given else say("api.needs_token")
    return Problem(401, text, headers={"WWW-Authenticate": challenge})


def ending() -> Problem:
    """For a request that the stop of this process cuts off."""
    return Problem(503, say("api.shutting_down"), headers={"Retry-After": "5"})


def problem_of(error: Exception) -> Problem:
    """The problem that an error raised by a route is to the caller."""
    for kind, make in _MAKERS:
        if isinstance(error, kind):
            return make(error)
    return Problem(500, say("api.internal_error"))


async def held_back(problem: Problem) -> None:
    """Waits as long as this problem's answer is to be delayed."""
    if problem.delay_s:
        await asyncio.sleep(problem.delay_s)


def _guard_refused(error: GuardRefused) -> Problem:
    answer = error.answer
    problem = Problem(409, answer.why, code="guard_refused")
    problem.more = {
        "guard": answer.guard,
        "limit": answer.limit,
        "used": answer.used,
        "frees_at": answer.frees_at,
    }
    return problem


def _invalid(error: RequestValidationError) -> Problem:
    errors = []
    for found in error.errors():
        if found.get("type") == "json_invalid":
            return Problem(
                422,
                say("api.body_not_json"),
                errors=[{"field": "body", "detail": say("signals.line_not_json")}],
            )
        place = [str(part) for part in found.get("loc", ())]
        if place[:1] == ["query"]:
            place = place[:2]  # `state.0` is no parameter
        field = ".".join(place[1:] if len(place) > 1 and place[0] in {"body", "query", "path"} else place)
        field = field.encode("utf-8", "replace").decode()[:200]
        errors.append({"field": field, "detail": _wanted(found)})
    first = errors[0] if errors else {"field": "request", "detail": say("api.not_valid")}
    return Problem(422, say("api.field", field=first["field"], text=first["detail"]), errors=errors)


#: What pydantic expected, by the beginning of its error's type, with its bound where there is one.
_WANTED = {
    "missing": ("required", ""),
    "extra_forbidden": ("not_known", ""),
    "greater_than_equal": ("at_least", "ge"),
    "less_than_equal": ("at_most", "le"),
    "string_too_short": ("longer", "min_length"),
    "string_too_long": ("shorter", "max_length"),
    "string_type": ("text", ""),
    "int_": ("whole", ""),
    "float_": ("number", ""),
    "bool_": ("bool", ""),
    "date": ("time", ""),
    "list_type": ("list", ""),
    "dict_type": ("object", ""),
    "model_": ("object", ""),
}


def _wanted(found: Mapping[str, Any]) -> Said | str:
    """What is wrong with a value, in our words where they are among `_WANTED`, else in pydantic's."""
    kind, context = str(found.get("type", "")), found.get("ctx", {})
    if kind in ("enum", "literal_error"):
        return say("api.wants_one_of", known=joined(re.findall(r"'([^']*)'", context["expected"]), "or"))
    for begin, (word, bound) in _WANTED.items():
        if kind.startswith(begin):
            return say(f"api.wants_{word}", **({"bound": context[bound]} if bound else {}))
    return str(found.get("msg", say("api.not_valid")))


def _bad_body(error: BadBody) -> Problem:
    why = said_by(error)
    return Problem(422, why, errors=[{"field": "body", "detail": why}])


_IN_FLIGHT = say("api.idempotency_key_in_progress")
_REUSED = say("api.idempotency_key_used")


#: The errors that mean something to the caller; the first that fits counts.
_MAKERS: tuple[tuple[type[Exception], Callable[[Any], Problem]], ...] = (
    (Problem, lambda error: error),
    (GuardRefused, _guard_refused),
    (NotFound, lambda error: Problem(404, said_by(error))),
    (Conflict, lambda error: Problem(409, said_by(error))),
    (Forbidden, lambda error: Problem(403, said_by(error))),
    (Invalid, lambda error: field_error(error.field, said_by(error))),
    (KeyInFlight, lambda _: Problem(409, _IN_FLIGHT, code="in_flight")),
    (KeyReused, lambda _: Problem(422, _REUSED, code="idempotency_key_reused")),
    (Unavailable, lambda error: Problem(503, said_by(error), headers={"Retry-After": "1"})),
    (Unstorable, lambda error: Problem(422, said_by(error))),
    (NoRoom, lambda error: Problem(503, said_by(error), headers={"Retry-After": "5"})),
    (TooMany, lambda error: Problem(429, said_by(error), headers={"Retry-After": str(error.retry_after_s)})),
    (BadBody, _bad_body),
    (RequestValidationError, _invalid),
    (
        HTTPException,
        lambda error: Problem(error.status_code, quoted(str(error.detail)), headers=error.headers),
    ),
)
#: The answer to a person's browser; None if a program asks.
Page = Callable[[Request, Problem], Response | None]


class Errors:
    """How an application answers errors. Addresses under `api` are only for programs."""

    def __init__(self, api: str) -> None:
        self._api = api
        #: Runs in a thread: it may ask the database for the session.
        self.page: Page | None = None

    async def answer(self, request: Request, error: Exception) -> Response:
        """The one place where an error of a route, or of none, becomes an answer."""
        problem = problem_of(error)
        await held_back(problem)
        path: str = request.scope["path"]
        if problem.status == 500:
            log.error("%s %s failed", request.method, path, exc_info=error)
        if self.page is None or f"{path}/".startswith(f"{self._api}/"):
            return problem.response()
        return await run_in_threadpool(self.page, request, problem) or problem.response()


def install(app: FastAPI, api: str) -> Errors:
    """Makes every error of `app` a problem, and a page where one is set."""
    errors = Errors(api)
    for kind, _ in _MAKERS:
        app.add_exception_handler(kind, errors.answer)
    app.add_exception_handler(Exception, errors.answer)
    return errors
