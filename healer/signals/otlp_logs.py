"""`POST /signals/otlp/v1/logs`: ExportLogsServiceRequest -> records (`logs.kernel_records`).

The fields of a record are in three places: attributes of its resource, its own attributes, and its body if
that is a map, as from the collector's journald receiver. A text body is the line.
"""

from collections.abc import Iterator
from struct import unpack_from
from typing import Any

import msgspec

from healer.signals.logs import Places, Record, relevant_fields, time_text
from healer.signals.otlp_values import (
    SCOPES_MAX,
    VALUES_MAX,
    JsonPair,
    JsonValue,
    TooDeep,
    any_value,
    attributes,
    json_attributes,
    json_value,
    parse_int64,
)
from healer.signals.protobuf import FIXED64, LENGTH, Torn, fields
from healer.signals.rejects import NOT_JSON, BadBody, BadEntry, check_marks, pairs_of, sentence
from healer.text import said_by, say

#: Log records of one request: a collector sends 8,192 at once.
RECORDS_MAX = 200_000
#: Objects of a large JSON body: an honest record has some 60.
OBJECTS_MAX = 500_000
#: Limit on a resource's attributes that matter for its records.
TELLING_MAX = 32


def records(raw: bytes) -> Iterator[Record]:
    """The records of a body in protobuf. Raises BadBody, also after some of them."""
    index = 0
    try:
        for field, kind, _, start, stop in fields(raw, 0, len(raw)):
            if field != 1 or kind != LENGTH:
                continue
            around, scopes = _resource(raw, start, stop)
            for begin, end in scopes:
                for f, k, _, b, e in fields(raw, begin, end):
                    if f == 2 and k == LENGTH:
                        _check(index)
                        try:
                            yield _record(index, raw, b, e, around)
                        except TooDeep as error:
                            yield Record(index, wrong=said_by(error))
                        index += 1
    except Torn as error:
        raise BadBody(say("signals.not_otlp_logs", error=said_by(error))) from None


def _check(index: int) -> None:
    if index >= RECORDS_MAX:
        raise BadBody(say("signals.too_many_log_records", most=RECORDS_MAX))


def _resource(raw: bytes, start: int, end: int) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """(attributes of the resource, positions of its scopes)."""
    resource: dict[str, Any] = {}
    scopes: list[tuple[int, int]] = []
    for field, kind, _, begin, stop in fields(raw, start, end):
        if field == 1 and kind == LENGTH:
            resource = _around(
                attributes(
                    raw, ((b, e) for f, k, _, b, e in fields(raw, begin, stop) if (f, k) == (1, LENGTH))
                )
            )
        elif field == 2 and kind == LENGTH:
            scopes.append((begin, stop))
            if len(scopes) > SCOPES_MAX:
                raise BadBody(say("signals.too_many_scopes", most=SCOPES_MAX))
    return resource, scopes


def _around(resource: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a resource that its records need. Raises BadBody."""
    kept = relevant_fields(resource)
    if len(pairs_of(kept)) > TELLING_MAX:
        raise BadBody(say("signals.too_many_origin_names", most=TELLING_MAX))
    return kept


def _record(index: int, raw: bytes, start: int, end: int, around: dict[str, Any]) -> Record:
    spans: list[tuple[int, int]] = []
    body: Any = None
    at = seen = 0
    for field, kind, _, begin, stop in fields(raw, start, end):
        if field == 6 and kind == LENGTH:
            spans.append((begin, stop))
            if len(spans) > VALUES_MAX:
                raise TooDeep
        elif field == 5 and kind == LENGTH:
            body = any_value(raw, begin, stop)
        elif field == 1 and kind == FIXED64:
            (at,) = unpack_from("<Q", raw, begin)
        elif field == 11 and kind == FIXED64:
            (seen,) = unpack_from("<Q", raw, begin)
    return _made(index, around, attributes(raw, spans), body, at or seen)


def _made(index: int, around: dict[str, Any], record: dict[str, Any], body: Any, nanos: int) -> Record:
    places: Places = (around, record, body if isinstance(body, dict) else {"body": body})
    try:
        return Record(index, places, time=time_text(nanos / 1e9) if nanos else None)
    except BadEntry as error:
        return Record(index, wrong=said_by(error))


class _Resource(msgspec.Struct, gc=False):
    attributes: list[JsonPair] | None = None


class _LogRecord(msgspec.Struct, rename="camel", gc=False):
    time_unix_nano: int | str | None = None
    observed_time_unix_nano: int | str | None = None
    body: JsonValue | None = None
    attributes: list[JsonPair] | None = None


class _ScopeLogs(msgspec.Struct, rename="camel", gc=False):
    log_records: list[_LogRecord] | None = None


class _ResourceLogs(msgspec.Struct, rename="camel", gc=False):
    resource: _Resource | None = None
    scope_logs: list[_ScopeLogs] | None = None


class _Logs(msgspec.Struct, rename="camel", gc=False):
    resource_logs: list[_ResourceLogs] | None = None


def _json_record(index: int, record: _LogRecord, around: dict[str, Any]) -> Record:
    try:
        nanos = parse_int64(record.time_unix_nano) or parse_int64(record.observed_time_unix_nano)
        return _made(index, around, json_attributes(record.attributes), json_value(record.body), nanos)
    except Torn as error:
        return Record(index, wrong=said_by(error))


_decoder = msgspec.json.Decoder(_Logs)


def json_records(raw: bytes) -> Iterator[Record]:
    """The same of a body in JSON. Raises BadBody, also after some of them."""
    check_marks(raw, objects=(b"{", OBJECTS_MAX))
    try:
        body = _decoder.decode(raw)
    except NOT_JSON as error:
        raise BadBody(say("signals.not_otlp_json", error=sentence(error))) from None
    index = 0
    try:
        for resource in body.resource_logs or ():
            pairs = resource.resource.attributes if resource.resource else None
            around = _around(json_attributes(pairs))
            for scope in resource.scope_logs or ():
                for record in scope.log_records or ():
                    _check(index)
                    yield _json_record(index, record, around)
                    index += 1
    except Torn as error:
        raise BadBody(say("signals.not_otlp_json", error=said_by(error))) from None
