"""Spans of healer's own processing of a signal, for a collector of traces."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol


class Span(NamedTuple):
    """`key` identifies it within its trace, `parent` is the key of another one. Times are nanoseconds since
    1970; `kind` is one of OpenTelemetry's, `failed`: why it failed."""

    trace: str
    key: str
    name: str
    begun: int
    ended: int
    parent: str = ""
    kind: str = "INTERNAL"
    failed: str = ""
    about: Mapping[str, str | int] = {}


class Traces(Protocol):
    def put(self, span: Span) -> None:
        """Only queues it: nothing waits for the collector."""
        ...
