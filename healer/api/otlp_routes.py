"""`POST /signals/otlp/v1/{logs|metrics}`: OTLP over HTTP, protobuf and JSON (OpenTelemetry protocol 1.x).

Answers are OTLP's own: 200 with what was not stored under `partial_success`, errors as google.rpc.Status, in
the encoding of the request. 429 and 503 are what its senders repeat, with `Retry-After`.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from healer.api.event_routes import LogRoutes
from healer.api.problems import Problem, problem_of
from healer.api.request_preamble import Preamble, known_query, media_type
from healer.api.sample_routes import MeasuringRoutes
from healer.model import Role
from healer.signals import otlp_logs
from healer.signals.otlp_values import message, status
from healer.signals.wire import Rejected

_JSON, _PROTOBUF = "application/json", "application/x-protobuf"
_KINDS = frozenset({_JSON, _PROTOBUF})
#: Reasons that are told of one request.
_TOLD = 5
#: HTTP status -> code of google.rpc.Status; 2 is "unknown", 3 "invalid argument".
_CODES = {401: 16, 403: 7, 404: 5, 408: 4, 413: 8, 429: 8, 500: 13, 503: 14, 507: 8}
_encode = msgspec.json.Encoder().encode


class OtlpProblem(Problem):
    """A problem as OTLP tells it; for the counting of losses it is the one that it was."""

    def __init__(self, problem: Problem, *, json: bool) -> None:
        super().__init__(problem.status, problem.detail)
        self.__dict__.update(problem.__dict__)
        if problem.status == 422:
            self.status = 400  # the specification's word for what cannot be read
        self._json = json

    def response(self) -> Response:
        code = _CODES.get(self.status, 3 if self.status < 500 else 2)
        body = _encode({"code": code, "message": self.detail}) if self._json else status(code, self.detail)
        return Response(body, self.status, headers=self.headers, media_type=_kind(self._json))


class OtlpRoutes:
    """Kernel lines go the way of other log records, samples that of other metrics."""

    role = Role.signals

    def __init__(self, preamble: Preamble, logs: LogRoutes, measuring: MeasuringRoutes) -> None:
        self._preamble, self._logs, self._measuring = preamble, logs, measuring

    def routes(self, prefix: str) -> list[Route]:
        return [
            Route(f"{prefix}/signals/otlp/v1/logs", self.logs, methods=["POST"]),
            Route(f"{prefix}/signals/otlp/v1/metrics", self.metrics, methods=["POST"]),
        ]

    async def logs(self, request: Request) -> Response:
        return await _told(request, "rejectedLogRecords", self._take_logs)

    async def metrics(self, request: Request) -> Response:
        return await _told(request, "rejectedDataPoints", self._take_metrics)

    async def _take_logs(self, request: Request, json: bool) -> tuple[int, str]:
        caller, known = await self._preamble.enter(request)
        known_query(request, {"cluster", "node"})
        raw = await self._preamble.body(request)
        read = otlp_logs.json_records if json else otlp_logs.records
        answer, logged = await self._logs.take(
            "otlp/v1/logs", request, caller, known, len(raw), lambda: read(raw)
        )
        count = len(logged.accepted.rejected) + logged.accepted.rejected_more
        unknown = [
            (logged.not_kernel, "not marked as the kernel's"),
            (answer.unrecognised - logged.not_kernel, "lines of the kernel that tell of no fault"),
        ]
        return _not_stored(count, logged.accepted.rejected, unknown)

    async def _take_metrics(self, request: Request, json: bool) -> tuple[int, str]:
        measured = await self._measuring.otlp(request, json=json)
        count = len(measured.rejected) + measured.rejected_more
        unknown = Counter[str]()
        for one in measured.unknown.values():
            unknown[one.why] += one.count
        unknown["of other names that are not kept"] += measured.unrecognised - unknown.total()
        return _not_stored(count, measured.rejected, [(many, why) for why, many in unknown.most_common()])


async def _told(
    request: Request, name: str, take: Callable[[Request, bool], Awaitable[tuple[int, str]]]
) -> Response:
    """The answer to what `take` makes of the request: (how many are not stored, why)."""
    json = request.headers.get("content-type", "").split(";")[0].strip().lower() == _JSON
    try:
        media_type(request, _KINDS, _PROTOBUF)
        count, why = await take(request, json)
    except Exception as error:
        raise OtlpProblem(problem_of(error), json=json) from error
    if not json:
        return Response(message(count, why), 200, media_type=_PROTOBUF)
    partial = {"partialSuccess": {name: str(count), "errorMessage": why}} if count else {}
    return Response(_encode(partial), 200, media_type=_JSON)


def _not_stored(
    rejected: int, told: Sequence[Rejected], unknown: Sequence[tuple[int, str]]
) -> tuple[int, str]:
    """(how many, a sentence with the first reasons)."""
    count = rejected + sum(many for many, _ in unknown)
    words = [f"{many} {why}" for many, why in unknown if many > 0]
    words += [f"{many} × {why}" for why, many in Counter(one.reason for one in told).most_common(_TOLD)]
    return count, f"{count} not stored: {'; '.join(words[:_TOLD])}" if count else ""


def _kind(json: bool) -> str:
    return _JSON if json else _PROTOBUF
