"""A collector of OpenTelemetry's traces: OTLP over HTTP, read by OpenTelemetry's own messages."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass(frozen=True)
class Received:
    """A span, and the service that sent it."""

    service: str
    span: Span

    @property
    def about(self) -> dict[str, str]:
        """Its attributes that are texts."""
        return {each.key: each.value.string_value for each in self.span.attributes}


class Collector:
    def __init__(self) -> None:
        self.received: list[Received] = []

    def take(self, body: bytes) -> None:
        for part in ExportTraceServiceRequest.FromString(body).resource_spans:
            names = {each.key: each.value.string_value for each in part.resource.attributes}
            for scope in part.scope_spans:
                self.received += (Received(names["service.name"], span) for span in scope.spans)

    def trace_of(self, name: str, **about: str) -> list[Received]:
        """All spans of the trace with a span of this name and these attributes; empty where none came yet."""
        wanted = {f"healer.{key}": value for key, value in about.items()}.items()
        ids = {
            each.span.trace_id
            for each in self.received
            if each.span.name == name and wanted <= each.about.items()
        }
        return [each for each in self.received if each.span.trace_id in ids]


@contextmanager
def collector() -> Iterator[tuple[Collector, str]]:
    """It, and its address."""
    made = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made.take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.end_headers()
            self.wfile.write(ExportTraceServiceResponse().SerializeToString())

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made, f"http://127.0.0.1:{server.server_port}/v1/traces"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
