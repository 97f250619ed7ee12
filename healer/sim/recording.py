"""Recordings: JSON Lines by time, as the contract has them. Reading, with errors that name the line."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

SNAPSHOT_ROUTES = ("slurm/nodes", "slurm/jobs")


class BadRecording(ValueError):
    """The text names the line and what is wrong with it."""


class Entry(msgspec.Struct, frozen=True):
    """One line: when, which route with which query, its body as the API takes it, and its number.

    `raw` is the body's JSON as it stands in the line: samples are read by their own decoders.
    """

    at: datetime
    route: str
    query: dict[str, str]
    raw: bytes
    line: int = 0

    @property
    def body(self) -> Any:
        """The body as Python values, decoded anew each time."""
        return msgspec.json.decode(self.raw)


class _Line(msgspec.Struct, frozen=True):
    at: datetime
    route: str
    body: msgspec.Raw = msgspec.Raw(b"null")


def read(lines: Iterable[str]) -> Iterator[Entry]:
    """Raises BadRecording for a line that is no entry or goes back in time. Empty lines are nothing."""
    last: datetime | None = None
    decoder = msgspec.json.Decoder(_Line)
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            line = decoder.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadRecording(f"line {number}: {error}") from error
        if line.at.tzinfo is None:
            raise BadRecording(f"line {number}: `at` has no zone")
        at = line.at.astimezone(UTC)
        if last is not None and at < last:
            raise BadRecording(f"line {number}: {at:%H:%M:%S} is before the line above; sort it by time")
        last = at
        parts = urlsplit(line.route)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        route = parts.path.strip("/").removeprefix("api/v1/")
        yield Entry(at=at, route=route, query=query, raw=bytes(line.body), line=number)
