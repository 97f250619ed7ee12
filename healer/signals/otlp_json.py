"""The same as `otlp_points` of a body in JSON: names in camelCase, 64-bit numbers as text."""

from collections.abc import Iterator
from typing import Any

import msgspec

from healer.signals.otlp_points import (
    CUMULATIVE,
    DELTA,
    HISTOGRAMS,
    NO_VALUE,
    NOTHING,
    POINTS_MAX,
    Metric,
    Point,
    milliseconds,
    why_refused,
)
from healer.signals.otlp_values import JsonPair, json_attributes, real, whole
from healer.signals.protobuf import Torn
from healer.signals.rejects import BadBody, check_marks, sentence

#: Objects of a large body: a point has some 20.
OBJECTS_MAX = 2_000_000
_WORDS = {"AGGREGATION_TEMPORALITY_DELTA": DELTA, "AGGREGATION_TEMPORALITY_CUMULATIVE": CUMULATIVE}


class _Number(msgspec.Struct, rename="camel", gc=False):
    time_unix_nano: int | str | None = None
    as_double: float | str | None = None
    as_int: int | str | None = None
    flags: int | None = None
    attributes: msgspec.Raw = msgspec.Raw(b"")


class _Gauge(msgspec.Struct, rename="camel", gc=False):
    data_points: list[_Number] | None = None


class _Sum(msgspec.Struct, rename="camel", gc=False):
    data_points: list[_Number] | None = None
    aggregation_temporality: int | str | None = None
    is_monotonic: bool | None = None


class _Other(msgspec.Struct, rename="camel", gc=False):
    data_points: list[msgspec.Raw] | None = None


class _Metric(msgspec.Struct, rename="camel", gc=False):
    name: str | None = None
    unit: str | None = None
    gauge: _Gauge | None = None
    sum: _Sum | None = None
    histogram: _Other | None = None
    exponential_histogram: _Other | None = None
    summary: _Other | None = None


class _Resource(msgspec.Struct, gc=False):
    attributes: msgspec.Raw = msgspec.Raw(b"")


class _ScopeMetrics(msgspec.Struct, gc=False):
    metrics: list[_Metric] | None = None


class _ResourceMetrics(msgspec.Struct, rename="camel", gc=False):
    resource: _Resource | None = None
    scope_metrics: list[_ScopeMetrics] | None = None


class _Metrics(msgspec.Struct, rename="camel", gc=False):
    resource_metrics: list[_ResourceMetrics] | None = None


_decode = msgspec.json.Decoder(_Metrics).decode
_pairs = msgspec.json.Decoder(list[JsonPair] | None).decode


def read_json(raw: bytes) -> Iterator[Metric]:
    """The metrics of a body. Raises BadBody, also after some of them."""
    check_marks(raw, objects=(b"{", OBJECTS_MAX))
    try:
        body = _decode(raw)
        left = POINTS_MAX
        for resource in body.resource_metrics or ():
            block = bytes(resource.resource.attributes) if resource.resource else b""
            for scope in resource.scope_metrics or ():
                for one in scope.metrics or ():
                    metric = _metric(one, block)
                    left -= metric.held
                    if left < 0:
                        raise BadBody(f"the body has more than {POINTS_MAX} data points")
                    yield metric
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, Torn) as error:
        raise BadBody(f"the body is not OTLP in JSON: {sentence(error)}") from None


def read_block(block: bytes) -> dict[str, Any]:
    """Raises Torn and msgspec.DecodeError."""
    return json_attributes(_pairs(block)) if block else {}


def _metric(one: _Metric, resource: bytes) -> Metric:
    if one.gauge is not None:
        points, refused, grows = one.gauge.data_points or (), "", False
    elif one.sum is not None:
        told = one.sum.aggregation_temporality
        refused = why_refused(_WORDS.get(told, 0) if isinstance(told, str) else told or 0)
        points, grows = one.sum.data_points or (), bool(one.sum.is_monotonic)
    else:
        other = one.histogram or one.exponential_histogram or one.summary
        points, grows = (other.data_points or ()) if other else (), False
        refused = HISTOGRAMS if other else NOTHING
    taken = () if refused else (_point(point) for point in points if isinstance(point, _Number))
    return Metric(resource, read_block, one.name or "", one.unit or "", grows, refused, len(points), taken)


def _point(point: _Number) -> Point:
    if point.flags and point.flags & NO_VALUE:
        value = float("nan")
    elif point.as_double is not None:
        value = real(point.as_double)
    else:
        value = float("nan") if point.as_int is None else float(whole(point.as_int))
    return Point(bytes(point.attributes), value, milliseconds(whole(point.time_unix_nano)))
