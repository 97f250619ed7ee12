"""What every wire form says of what it does not take: whole bodies, and entries by index and reason."""

from datetime import UTC, datetime

import msgspec

#: Entries told as rejected, of one request; the rest is only counted.
REJECTED_TOLD = 1000
#: Small bodies are read as they are; of larger ones their marks are counted first (`check_marks`).
_SMALL_BYTES = 2**20


class BadBody(ValueError):
    """The outer shape of a request is wrong. The text names the field."""


class BadEntry(ValueError):
    """One entry of a request is wrong. The text is the reason."""


class Rejected(msgspec.Struct, frozen=True):
    index: int
    reason: str


class Rejects:
    """Entries that are wrong: the first `REJECTED_TOLD` with their reason, the rest as a number.

    A body may hold millions of them, and each reason is a text: so no more are kept, nor even written.
    """

    __slots__ = ("count", "told")

    def __init__(self) -> None:
        self.told: list[Rejected] = []
        self.count = 0

    def add(self, index: int, why: str | Exception) -> None:
        self.count += 1
        if len(self.told) < REJECTED_TOLD:
            self.told.append(Rejected(index, why if isinstance(why, str) else sentence(why)))

    def sorted(self) -> tuple[Rejected, ...]:
        return tuple(sorted(self.told, key=lambda one: one.index))

    @property
    def more(self) -> int:
        """Those that are only counted."""
        return self.count - len(self.told)


def check_marks(raw: bytes, **most: tuple[bytes, int]) -> None:
    """Raises BadBody for a large body with more of some byte than any honest one has.

    JSON's smallest values become objects of thirty times their size, so what bounds the bytes bounds no
    memory. `most`: what is counted -> (its byte, how many are taken).
    """
    if len(raw) <= _SMALL_BYTES:
        return
    for name, (mark, limit) in most.items():
        if raw.count(mark) > limit:
            raise BadBody(f"the body has more than {limit} {name}: send it in several requests")


def sentence(error: Exception) -> str:
    """msgspec's `Expected `int`, got `str` - at `$.seq`` -> `seq: Expected `int`, got `str``."""
    text, _, path = str(error).rpartition(" - at `")
    return f"{path.strip('`').removeprefix('$').removeprefix('.')}: {text}" if text else str(error)


def utc_time(text: str) -> datetime:
    """An RFC 3339 time with its zone, in UTC. Raises BadEntry."""
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is not None:
            return at if at.tzinfo is UTC else at.astimezone(UTC)
    except (ValueError, OverflowError):  # the first and the last day of the calendar have no UTC everywhere
        raise BadEntry("time: not an RFC 3339 time, such as 2026-11-20T03:00:00Z") from None
    raise BadEntry("time: has no time zone; write Z or an offset")
