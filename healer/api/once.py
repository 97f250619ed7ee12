"""Acting exactly once: the Idempotency-Key, and the id by which everything below recognises a repeat."""

import hashlib
import re
import secrets
from collections.abc import Callable

from fastapi import Request
from pydantic import BaseModel
from starlette.responses import Response

from healer.api.metrics import REFUSALS
from healer.api.problems import field_error, problem_of
from healer.api.services import Services
from healer.ports.callers import Caller
from healer.ports.request_errors import GuardRefused
from healer.ports.request_keys import Kept

_KEY = re.compile(r"[\x21-\x7e]{1,255}")
#: Errors that say nothing lasting: a repeat with the same key asks again.
_PASSING = frozenset({401, 429})


def once(request: Request, caller: Caller, body: BaseModel, act: Callable[[str], Response]) -> Response:
    """Runs `act(request id)`; with an Idempotency-Key at most once in 24 h, and a repeat gets its answer.

    The id follows from the caller and the key, so a repeat after a crash of this process is recognised by
    the rows that its first try left.
    """
    key = request.headers.get("idempotency-key")
    if key is None:
        return act(secrets.token_hex(16))
    if not _KEY.fullmatch(key):
        raise field_error("Idempotency-Key", "1 to 255 printable ASCII characters without spaces")
    services: Services = request.app.state.services
    identity = hashlib.sha256(f"{caller.id}\0{key}".encode()).hexdigest()[:32]
    told = "\0".join((request.method, request.url.path, request.url.query, body.model_dump_json()))

    def kept() -> Kept:
        try:
            made = act(identity)
        except Exception as error:
            problem = problem_of(error)
            if problem.status >= 500 or problem.status in _PASSING:
                raise
            count_refusal(error)
            made = problem.response()
        headers = {name: value for name, value in made.headers.items() if name != "content-length"}
        return Kept(made.status_code, headers, bytes(made.body))

    digest = hashlib.sha256(told.encode("utf-8", "surrogatepass")).digest()
    answer = services.idempotency.once(key, caller.id, digest, services.clock.now(), kept)
    return Response(answer.body, answer.status, headers=answer.headers)


def count_refusal(error: Exception) -> None:
    if isinstance(error, GuardRefused):
        REFUSALS.labels(error.answer.guard.value).inc()
