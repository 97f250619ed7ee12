"""Reads recordings: JSON Lines by time. Errors name the line."""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from healer.text import Said, said_by, say

#: A replay would walk to there.
YEAR_MOST = 2100


class BadRecording(ValueError):
    """The text names the line and the problem."""


class Entry(msgspec.Struct, frozen=True):
    """One line of a recording: time, route with query, body as the API takes it, line number; `file` if there
    are several.

    `raw` is the body's JSON: samples have decoders of their own.
    """

    at: datetime
    route: str
    query: dict[str, str]
    raw: bytes
    line: int = 0
    file: str = ""
    #: Digests of its observations in production, in order.
    known_as: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return f"{self.file} line {self.line}".lstrip()

    @property
    def body(self) -> Any:
        """The body, decoded at each access."""
        return msgspec.json.decode(self.raw)


class _Line(msgspec.Struct, frozen=True):
    at: datetime
    route: str
    body: msgspec.Raw = msgspec.Raw(b"null")
    known_as: tuple[str, ...] = ()


@lru_cache(maxsize=1024)
def _routed(text: str) -> tuple[str, dict[str, str]]:
    """The route without the API's prefix, and its query. Cached: a recording has few."""
    parts = urlsplit(text)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    return parts.path.strip("/").removeprefix("api/v1/"), query


class Source(msgspec.Struct, frozen=True):
    """One file of a recording. Files of one `track` follow each other; tracks are merged by time."""

    name: str
    track: str
    lines: Iterable[str]


def merged(sources: Sequence[Source]) -> Iterator[Entry]:
    """Entries of all files by time. Files of one track are read in order, and opened when due."""
    tracks = dict.fromkeys(source.track for source in sources)
    return heapq.merge(
        *(_chained([source for source in sources if source.track == track]) for track in tracks),
        key=lambda entry: entry.at,
    )


def _chained(sources: Sequence[Source]) -> Iterator[Entry]:
    last: datetime | None = None
    for source in sources:
        for entry in read(source.lines, source.name, last):
            last = entry.at
            yield entry


def _of_line(file: str, number: int, text: str) -> Said:
    if file:
        return say("simulation.of_line_in_file", file=file, number=number, text=text)
    return say("simulation.of_line", number=number, text=text)


def read(lines: Iterable[str], file: str = "", last: datetime | None = None) -> Iterator[Entry]:
    """Yields entries; skips empty lines. Raises BadRecording for a line that is no entry or goes back in
    time, or to before `last`."""
    decoder = msgspec.json.Decoder(_Line)
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            line = decoder.decode(text)
            route, query = _routed(line.route)
        except UnicodeError as error:
            raise BadRecording(_of_line(file, number, say("simulation.not_utf8"))) from error
        except (ValueError, RecursionError) as error:
            raise BadRecording(_of_line(file, number, said_by(error))) from error
        if not 1970 <= line.at.year < YEAR_MOST:
            why = say("words.implausible_year", year=line.at.year)
            raise BadRecording(_of_line(file, number, why))
        if line.at.tzinfo is None:
            raise BadRecording(_of_line(file, number, say("simulation.no_zone")))
        at = line.at.astimezone(UTC)
        if last is not None and at < last:
            raise BadRecording(_of_line(file, number, say("simulation.not_sorted", time=f"{at:%H:%M:%S}")))
        last = at
        yield Entry(
            at=at,
            route=route,
            query=query,
            raw=bytes(line.body),
            line=number,
            file=file,
            known_as=line.known_as,
        )


def of_entry(entry: Entry, text: str) -> Said:
    """What is wrong with an entry, with its place."""
    return _of_line(entry.file, entry.line, say("words.labelled", label=entry.route, text=text))
