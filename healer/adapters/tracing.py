"""Spans to a collector of OpenTelemetry's, by OTLP over HTTP. Needs the extra `healer[otel]`.

A trace is named by what began it: the digest of a signal, which its incident keeps as its first evidence, or
a run without one. So parts agree on a trace and on the ids of their spans without passing anything on.
"""

from hashlib import sha256

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from healer.ports.traces import Span

#: How long spans wait for others, and the collector may take for all that wait: a part that ends while it is
#: away ends only so much later.
_BATCH_MS, _TIMEOUT_S, _MOST = 1000, 2, 2048


class OtlpTraces:
    """`ports.Traces` of one part. Spans that the collector does not accept in time are dropped."""

    def __init__(self, url: str, part: str, cluster: str, version: str) -> None:
        names = {"service.name": f"healer-{part}", "service.version": version, "healer.cluster": cluster}
        self._resource = Resource.create(names)
        exporter = OTLPSpanExporter(endpoint=url, timeout=_TIMEOUT_S)
        self._out = BatchSpanProcessor(
            exporter, max_queue_size=_MOST, max_export_batch_size=_MOST, schedule_delay_millis=_BATCH_MS
        )

    def put(self, span: Span) -> None:
        made = ReadableSpan(
            span.name,
            context=_context(span.trace, span.key),
            parent=_context(span.trace, span.parent) if span.parent else None,
            resource=self._resource,
            attributes={f"healer.{name}": value for name, value in span.about.items()},
            kind=SpanKind[span.kind],
            status=Status(StatusCode.ERROR, span.failed) if span.failed else Status(),
            start_time=span.begun,
            end_time=max(span.begun, span.ended),
        )
        self._out.on_end(made)

    def close(self) -> None:
        """Sends what waits."""
        self._out.shutdown()


def _context(trace: str, key: str) -> SpanContext:
    trace_id, span_id = sha256(trace.encode()).digest(), sha256(f"{trace}:{key}".encode()).digest()
    flags = TraceFlags(TraceFlags.SAMPLED)
    numbers = int.from_bytes(trace_id[:16]), int.from_bytes(span_id[:8])
    return SpanContext(*numbers, is_remote=False, trace_flags=flags)
