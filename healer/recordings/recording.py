"""Recordings: JSON Lines by time, as the contract has them. Reading, with errors that name the line."""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec


class BadRecording(ValueError):
    """The text names the line and what is wrong with it."""


class Entry(msgspec.Struct, frozen=True):
    """One line: when, which route with which query, its body as the API takes it, and its number; `file`
    where a recording is of several.

    `raw` is the body's JSON as it stands in the line: samples are read by their own decoders.
    """

    at: datetime
    route: str
    query: dict[str, str]
    raw: bytes
    line: int = 0
    file: str = ""
    #: The names under which production knew what it tells, in its order.
    known_as: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return f"{self.file} line {self.line}".lstrip()

    @property
    def body(self) -> Any:
        """The body as Python values, decoded anew each time."""
        return msgspec.json.decode(self.raw)


class _Line(msgspec.Struct, frozen=True):
    at: datetime
    route: str
    body: msgspec.Raw = msgspec.Raw(b"null")
    known_as: tuple[str, ...] = ()


@lru_cache(maxsize=1024)
def _routed(text: str) -> tuple[str, dict[str, str]]:
    """The route without what stands before it at a server, and its query. A recording has few."""
    parts = urlsplit(text)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    return parts.path.strip("/").removeprefix("api/v1/"), query


class Source(msgspec.Struct, frozen=True):
    """One file of a recording. `kind`: those of one kind follow each other, kinds run side by side."""

    name: str
    kind: str
    lines: Iterable[str]


def merged(sources: Sequence[Source]) -> Iterator[Entry]:
    """The entries of all files by time. Those of one kind stand in their order, and are opened when due."""
    kinds = dict.fromkeys(source.kind for source in sources)
    return heapq.merge(
        *(_chained([source for source in sources if source.kind == kind]) for kind in kinds),
        key=lambda entry: entry.at,
    )


def _chained(sources: Sequence[Source]) -> Iterator[Entry]:
    last: datetime | None = None
    for source in sources:
        for entry in read(source.lines, source.name, last):
            last = entry.at
            yield entry


def read(lines: Iterable[str], file: str = "", last: datetime | None = None) -> Iterator[Entry]:
    """Raises BadRecording for a line that is no entry or goes back in time, or to before `last`. Empty lines
    are nothing."""
    decoder = msgspec.json.Decoder(_Line)
    where = f"{file} line".lstrip()
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            line = decoder.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadRecording(f"{where} {number}: {error}") from error
        if line.at.tzinfo is None:
            raise BadRecording(f"{where} {number}: `at` has no zone")
        at = line.at.astimezone(UTC)
        if last is not None and at < last:
            raise BadRecording(f"{where} {number}: {at:%H:%M:%S} is before the line above; sort it by time")
        last = at
        route, query = _routed(line.route)
        yield Entry(
            at=at,
            route=route,
            query=query,
            raw=bytes(line.body),
            line=number,
            file=file,
            known_as=line.known_as,
        )
