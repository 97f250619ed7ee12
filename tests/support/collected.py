"""OTLP's messages as the collector and SDKs write them, made by the published protobuf package."""

from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.json_format import MessageToJson
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, NumberDataPoint

CUMULATIVE, DELTA = 2, 1


def value(content: Any) -> AnyValue:
    if isinstance(content, bool):
        return AnyValue(bool_value=content)
    if isinstance(content, str):
        return AnyValue(string_value=content)
    if isinstance(content, bytes):
        return AnyValue(bytes_value=content)
    if isinstance(content, int):
        return AnyValue(int_value=content)
    if isinstance(content, float):
        return AnyValue(double_value=content)
    if isinstance(content, list):
        return AnyValue(array_value=ArrayValue(values=map(value, content)))
    if isinstance(content, dict):
        return AnyValue(kvlist_value=KeyValueList(values=pairs(content)))
    return AnyValue()


def pairs(attributes: Mapping[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=name, value=value(one)) for name, one in attributes.items()]


def point(
    number: float, labels: Mapping[str, Any] | None = None, at_ns: int = 0, **more: Any
) -> NumberDataPoint:
    number_field = {"as_int": number} if isinstance(number, int) else {"as_double": number}
    return NumberDataPoint(attributes=pairs(labels or {}), time_unix_nano=at_ns, **number_field, **more)


def gauge(name: str, *points: NumberDataPoint, unit: str = "") -> Metric:
    metric = Metric(name=name, unit=unit, description="Something that is measured.")
    metric.gauge.data_points.extend(points)
    return metric


def total(
    name: str, *points: NumberDataPoint, unit: str = "", temporality: int = CUMULATIVE, grows: bool = True
) -> Metric:
    metric = Metric(name=name, unit=unit)
    metric.sum.data_points.extend(points)
    metric.sum.aggregation_temporality, metric.sum.is_monotonic = temporality, grows
    return metric


def histogram(name: str, points: int = 1) -> Metric:
    metric = Metric(name=name)
    for _ in range(points):
        metric.histogram.data_points.add(count=3, sum=1.5)
    return metric


def metrics(resource: Mapping[str, Any], *series: Metric) -> ExportMetricsServiceRequest:
    request = ExportMetricsServiceRequest()
    one = request.resource_metrics.add()
    one.resource.attributes.extend(pairs(resource))
    scope = one.scope_metrics.add()
    scope.scope.name = "github.com/open-telemetry/opentelemetry-collector-contrib/receiver/prometheusreceiver"
    scope.metrics.extend(series)
    return request


def record(body: Any, attributes: Mapping[str, Any] | None = None, **more: Any) -> LogRecord:
    return LogRecord(body=value(body), attributes=pairs(attributes or {}), severity_text="ERROR", **more)


def logs(resource: Mapping[str, Any], records: Iterable[LogRecord]) -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    one = request.resource_logs.add()
    one.resource.attributes.extend(pairs(resource))
    one.scope_logs.add().log_records.extend(records)
    return request


def as_json(message: Any) -> bytes:
    """Protobuf's JSON; OTLP's differs in the ids of traces alone, which are not read here."""
    return MessageToJson(message, indent=None).encode()
