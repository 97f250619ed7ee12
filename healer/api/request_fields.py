"""Bodies of the acting routes, strict; and acting exactly once: the Idempotency-Key, and the request id by
which everything below recognises a repeat."""

import hashlib
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import Path, Query, Request
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, Strict, StringConstraints
from starlette.responses import Response

from healer.api.metrics import REFUSALS
from healer.api.problems import field_error, problem_of
from healer.api.services import services_of
from healer.model.shown import shown
from healer.model.vocabulary import WORDS_MAX
from healer.ports.callers import Caller, StoredResponse
from healer.ports.request_errors import GuardRefused
from healer.text import say

#: Text of people: at least one visible character, no NUL.
Text = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=WORDS_MAX, pattern=r"^[^\x00]*$"),
]


def _seen(word: str) -> str:
    """Two names must not look alike: each character of a name can be seen."""
    if shown(word) != word:
        raise ValueError("holds a character that cannot be seen")
    return word


Word = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]*$"),
    AfterValidator(_seen),
]


def _without_nul(words: str) -> str:
    if "\0" in words:
        raise ValueError("holds a NUL")
    return words.strip()


def _in_utc(moment: datetime) -> datetime:
    """The database stores UTC. Of a later year than 9999 it answers text that no part can read."""
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("lies outside the years 1 to 9999 in UTC") from None


Moment = Annotated[AwareDatetime, Strict(False), AfterValidator(_in_utc)]

#: `Text` in the query, where it may be empty.
TextInQuery = Annotated[str, Query(max_length=WORDS_MAX), AfterValidator(_without_nul)]
Limit = Annotated[int, Query(ge=1, le=500)]
Cursor = Annotated[str | None, Query(max_length=500)]
Name = Annotated[str | None, Query(max_length=256)]
Id = Annotated[str, Path(max_length=128)]
Verdicts = Literal["healthy", "watch", "suspect", "isolate"]


@dataclass
class NodeFilter:
    """`q` is a part of the name."""

    cluster: Name = None
    verdict: Annotated[list[Verdicts] | None, Query()] = None
    q: Name = None
    limit: Limit = 50
    cursor: Cursor = None


#: Jobs on the node whose restart the person agrees to with the run; `JOB:RESTARTS` is this very life of one.
Restart = Annotated[list[Word], Field(max_length=100)]


class Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class Nothing(Body):
    """No field is needed."""

    reason: Text | None = None


class Reason(Body):
    reason: Text


class NoteBody(Body):
    note: Text


class ReviewBody(Body):
    """What a person found out: feeds the precision of the incident's rule."""

    review: Literal["true_fault", "false_alarm", "unclear"]
    cause: Text | None = None
    reason: Text | None = None


class AssignBody(Reason):
    """`to` is the person who looks after it."""

    to: Word


class MergeBody(Body):
    """`into` is the incident that stays."""

    into: Word
    reason: Text


class SplitBody(Body):
    """`incidents` are those that were merged into it and become their own again; left out: all of them."""

    incidents: Annotated[list[Word], Field(min_length=1, max_length=1000)] | None = None
    reason: Text


class RunBody(Body):
    """`cluster` may be left out where there is one. `reason` is needed unless `dry_run`."""

    cluster: Word | None = None
    node: Word | None = None
    job: Word | None = None
    incident: Word | None = None
    reason: Text | None = None
    dry_run: bool = False
    inputs: Annotated[dict[Word, bool | int | Word], Field(max_length=50)] = {}
    restart: Restart = []


class ApproveBody(Reason):
    """`approve_until`, as the run showed it, names the question that is answered: 409 where the run asks
    another by now."""

    restart: Restart = []
    approve_until: Moment | None = None


class RetryBody(Reason):
    """`step`: go back to this step, and repeat it and all after it. `epoch`, as the run showed it, names the
    failure that you saw: 409 if the run has gone on since."""

    # Part of its name in the OpenAPI document, from which clients are generated: there are two of this name.
    __module__ = "healer.api.bodies"

    step: Word | None = None
    epoch: int | None = None


class ModeBody(Body):
    mode: Literal["off", "shadow", "suggest", "approve", "auto"]
    reason: Text


class PauseBody(Body):
    """`name` is what is paused (not for the scope all); `until` ends it by itself."""

    scope: Literal["all", "cluster", "partition", "node", "rule", "playbook"] = "all"
    name: Word | None = None
    cluster: Word | None = None
    reason: Text
    until: Moment | None = None


class BreakerBody(Body):
    """`since`, as the breaker showed it, names the storm that is over: 409 if it has opened again."""

    cluster: Word | None = None
    reason: Text
    since: Moment | None = None


#: The form of an Idempotency-Key.
KEY_FORM = "[!-~]{1,255}"
_KEY = re.compile(KEY_FORM)
#: Temporary errors: a repeat with the same key tries again.
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
        raise field_error("Idempotency-Key", say("api.key_form"))
    services = services_of(request)
    identity = hashlib.sha256(f"{caller.id}\0{key}".encode()).hexdigest()[:32]
    content = "\0".join((request.method, request.url.path, request.url.query, body.model_dump_json()))

    def kept() -> StoredResponse:
        try:
            made = act(identity)
        except Exception as error:
            problem = problem_of(error)
            if problem.status >= 500 or problem.status in _PASSING:
                raise
            count_refusal(error)
            made = problem.response()
        headers = {name: value for name, value in made.headers.items() if name != "content-length"}
        return StoredResponse(made.status_code, headers, bytes(made.body))

    digest = hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()
    answer = services.idempotency.once(key, caller.id, digest, services.clock.now(), kept)
    return Response(answer.body, answer.status, headers=answer.headers)


def count_refusal(error: Exception) -> None:
    if isinstance(error, GuardRefused):
        REFUSALS.labels(error.answer.guard.value).inc()
