"""Reporting of rejected input, shared by every wire form: whole bodies, and entries by index and reason."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec

from healer.text import Said, SaidError, said_by, say
from healer.text.decoder_errors import decoder_error

#: Entries listed as rejected per request; the rest is only counted.
REJECTED_LISTED = 1000
#: RFC 3339, 5.6: capitals or not, a blank for the T, any number of digits of a second. Its offsets have a
#: colon and its fractions a point; `date +%z` writes no colon, PostgreSQL no minutes,
#: `dmesg --time-format iso` a comma, and no fault is to be lost for that.
_RFC_3339 = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ](?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)(?:[.,]\d+)?"
    r"(?P<zone>[Zz]|[-+]\d\d(?::?[0-5]\d)?)?",
    re.ASCII,
)
_SECOND = slice(17, 19)
#: Small bodies are decoded directly; in larger ones the marks are counted first (`check_marks`).
_SMALL_BYTES = 2**20

#: Errors of msgspec's JSON decoder, for any bytes.
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class BadBody(SaidError, ValueError):
    """The outer structure of a request is wrong. The sentence names the field."""


class BadEntry(SaidError, ValueError):
    """One entry of a request is wrong. The sentence is the reason."""


class Rejected(msgspec.Struct, frozen=True):
    index: int
    reason: Said


@dataclass(slots=True)
class Rejects:
    """Invalid entries: the first `REJECTED_LISTED` with their reason, the rest as a number.

    A body may contain millions of them, and each reason is a text: so no more are kept, or even written.
    """

    listed: list[Rejected] = field(default_factory=list)
    count: int = 0

    def add(self, index: int, why: Said | Exception) -> None:
        self.count += 1
        if len(self.listed) < REJECTED_LISTED:
            self.listed.append(Rejected(index, why if isinstance(why, Said) else sentence(why)))

    def sorted(self) -> tuple[Rejected, ...]:
        return tuple(sorted(self.listed, key=lambda entry: entry.index))

    @property
    def more(self) -> int:
        """Invalid entries that are only counted."""
        return self.count - len(self.listed)


def python_json(raw: bytes, error: Exception) -> Any:
    """The decoded body, where it is not JSON only for a bare NaN or Infinity, as Python's json writes them.
    `error`: why it is not JSON. Raises BadBody."""
    if b"NaN" in raw or b"Infinity" in raw:
        with suppress(ValueError, RecursionError):
            decoded = json.loads(raw)
            msgspec.json.encode(decoded)  # half a letter, which no answer could name, is not JSON either
            return decoded
    raise BadBody(say("signals.not_json", error=said_by(error))) from None


def check_marks(raw: bytes, **most: tuple[bytes, int]) -> None:
    """Raises BadBody for a large body with more of some byte than any valid one has.

    JSON's smallest values become objects of thirty times their size, so a limit on the bytes does not limit
    the memory. `most`: what is counted -> (its byte, the allowed number).
    """
    if len(raw) <= _SMALL_BYTES:
        return
    for name, (mark, limit) in most.items():
        if raw.count(mark) > limit:
            raise BadBody(say("signals.too_many_marks", limit=limit, what=say(f"signals.marks_{name}")))


def sentence(error: Exception) -> Said:
    """msgspec's `Expected `int`, got `str` - at `$.seq`` -> `seq: Expected `int`, got `str``."""
    text, _, path = str(error).rpartition(" - at `")
    if not text:
        return said_by(error)
    field = path.strip("`").removeprefix("$").removeprefix(".")
    return say("signals.field", field=field, text=decoder_error(text))


def utc_time(text: str, field: str = "time") -> datetime:
    """An RFC 3339 time with its zone, in UTC. Raises BadEntry, which names the field.

    A leap second counts as the last instant of its minute, so that the order of events is kept.
    """
    match = _RFC_3339.fullmatch(text)
    if match is None:
        raise BadEntry(_not_rfc3339(field))
    if match["zone"] is None:
        raise BadEntry(say("signals.no_zone", field=field))
    leap = text[_SECOND] == "60"
    plain = text[: _SECOND.start] + "59" + text[_SECOND.stop :] if leap else text
    try:
        at = datetime.fromisoformat(plain.upper())
        at = at if at.tzinfo is UTC else at.astimezone(UTC)
        return _in_leap_second(at) if leap else at
    except (ValueError, OverflowError):  # some zones have no UTC on the calendar's first or last day
        raise BadEntry(_not_rfc3339(field)) from None


@lru_cache(maxsize=64)
def _not_rfc3339(field: str) -> Said:
    """The same of each entry whose sender writes times in a form of its own."""
    return say("signals.not_rfc3339", field=field)


def _in_leap_second(at: datetime) -> datetime:
    """The last instant of the second before it. Raises ValueError: only the last minute of a month in UTC has
    a leap second."""
    after = at.replace(microsecond=0) + timedelta(seconds=1)
    if (after.day, after.hour, after.minute, after.second) != (1, 0, 0, 0):
        raise ValueError
    return at.replace(microsecond=999_999)


# --- repeated -----------------------------------------------------------------------------------------------
# Maps in which a name may occur more than once, as JSON and protobuf allow.
#
# A plain dict keeps only the last value. Where a later value must not override an earlier one (`logs`), all
# of them are read.


class Repeated(dict[Any, Any]):
    """A map in which some name occurs more than once. `pairs`: all of it, in order."""

    def __init__(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


def map_of(pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    """The map of these pairs; a Repeated where a name occurs more than once."""
    plain = dict(pairs)
    return plain if len(plain) == len(pairs) else Repeated(pairs)


def pairs_of(mapping: Mapping[Any, Any]) -> Collection[tuple[Any, Any]]:
    """All pairs, repeated names included."""
    return mapping.pairs if isinstance(mapping, Repeated) else mapping.items()
