"""`POST /signals/otlp/v1/{logs|metrics}`: OTLP over HTTP, protobuf and JSON (OpenTelemetry protocol 1.x).

Answers are OTLP's own: 200 with what was not stored under `partial_success`, errors as google.rpc.Status, in
the encoding of the request. 429 and 503 are what its senders repeat, with `Retry-After`.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from healer.api.event_routes import LogRoutes
from healer.api.problems import Problem, problem_of
from healer.api.request_preamble import Endpoint, Preamble, known_query, media_type
from healer.api.sample_routes import MeasuringRoutes
from healer.model import Role
from healer.signals import otlp_logs
from healer.signals.otlp_values import message, status
from healer.signals.wire import Rejected
from healer.text import NO_WORDS, Said, joined, say, to_text

_JSON, _PROTOBUF = "application/json", "application/x-protobuf"
_KINDS = frozenset({_JSON, _PROTOBUF})
#: Reasons that an answer names.
_REASONS = 5
#: HTTP status -> code of google.rpc.Status; 2 is "unknown", 3 "invalid argument".
_CODES = {401: 16, 403: 7, 404: 5, 408: 4, 413: 8, 429: 8, 500: 13, 503: 14, 507: 8}
_encode = msgspec.json.Encoder(enc_hook=to_text).encode


class OtlpProblem(Problem):
    """A problem as OTLP reports it; losses are counted as of the original one."""

    def __init__(self, problem: Problem, *, json: bool) -> None:
        super().__init__(problem.status, problem.detail)
        self.__dict__.update(problem.__dict__)
        if problem.status == 422:
            self.status = 400  # the specification's word for what cannot be read
        self._json = json

    def response(self) -> Response:
        code = _CODES.get(self.status, 3 if self.status < 500 else 2)
        body = _encode({"code": code, "message": self.detail}) if self._json else status(code, self.detail)
        return Response(
            body, self.status, headers=self.headers, media_type=_JSON if self._json else _PROTOBUF
        )


class OtlpRoutes:
    """Log records are stored by `LogRoutes`, samples by `MeasuringRoutes`."""

    role = Role.signals

    def __init__(self, preamble: Preamble, logs: LogRoutes, measuring: MeasuringRoutes) -> None:
        self._preamble, self._logs, self._measuring = preamble, logs, measuring

    def endpoints(self) -> dict[str, Endpoint]:
        return {"otlp/v1/logs": self.logs, "otlp/v1/metrics": self.metrics}

    async def logs(self, request: Request) -> Response:
        return await _answered(request, "rejectedLogRecords", self._take_logs)

    async def metrics(self, request: Request) -> Response:
        return await _answered(request, "rejectedDataPoints", self._take_metrics)

    async def _take_logs(self, request: Request, json: bool) -> tuple[int, Said]:
        caller, has_node = await self._preamble.enter(request)
        known_query(request, {"cluster", "node"})
        raw = await self._preamble.body(request)
        read = otlp_logs.json_records if json else otlp_logs.records
        answer, logged = await self._logs.take(
            "otlp/v1/logs", request, caller, has_node, len(raw), lambda: read(raw)
        )
        count = len(logged.accepted.rejected) + logged.accepted.rejected_more
        not_kernel, no_fault = logged.not_kernel, answer.unrecognised - logged.not_kernel
        others = [
            (not_kernel, say("api.otlp_not_kernel", n=not_kernel)),
            (no_fault, say("api.otlp_no_fault", n=no_fault)),
        ]
        return _not_stored(count, logged.accepted.rejected, others)

    async def _take_metrics(self, request: Request, json: bool) -> tuple[int, Said]:
        measured = await self._measuring.otlp(request, json=json)
        count = len(measured.rejected) + measured.rejected_more
        unknown = Counter[Said]()
        for series in measured.unknown.values():
            unknown[series.why] += series.count
        others = [(n, say("api.otlp_of_reason", n=n, why=why)) for why, n in unknown.most_common()]
        n = measured.unrecognised - unknown.total()
        return _not_stored(count, measured.rejected, [*others, (n, say("api.otlp_other_names", n=n))])


async def _answered(
    request: Request, name: str, take: Callable[[Request, bool], Awaitable[tuple[int, str]]]
) -> Response:
    """The answer to a request that `take` stores; it returns (how many are not stored, why)."""
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
    count: int, rejected: Sequence[Rejected], others: Sequence[tuple[int, Said]]
) -> tuple[int, Said]:
    """(how many, a sentence with the first reasons). `count`: of the rejected entries, listed or not."""
    count += sum(n for n, _ in others)
    reasons = Counter(entry.reason for entry in rejected).most_common(_REASONS)
    words = [text for n, text in others if n > 0]
    words += [say("api.otlp_rejected", n=n, why=why) for why, n in reasons]
    first = joined(words[:_REASONS], "semicolon")
    return count, say("api.otlp_not_stored", n=count, reasons=first) if count else NO_WORDS
