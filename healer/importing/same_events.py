"""Clock offsets: the same event in two sources at different times."""

import statistics
from collections.abc import Mapping
from itertools import combinations

import msgspec

#: Events remembered of one source, and differences compared of two.
MARKS_MOST = 50_000
#: A smaller offset is not reported: logs write when they hear.
LEAST_S = 2.0
#: The share of common events that must agree, within this many seconds.
AGREE, WITHIN_S = 0.6, 2.0
_QUARTER_S = 900
#: Sources of one event that are compared with each other.
SOURCES_MOST = 8
#: No two clocks in wrong zones are further apart; the same words further apart are two events.
MOST_S = 26 * 3600


class Marks:
    """When events that other sources may show too happened, in µs. An event that comes again says nothing."""

    def __init__(self) -> None:
        self._at: dict[int, int] = {}
        self._again: set[int] = set()

    def saw(self, name: str, at_us: int) -> None:
        key = _number(name)
        if key in self._at:
            self._again.add(key)
        elif len(self._at) < MARKS_MOST:
            self._at[key] = at_us

    def once(self) -> Mapping[int, int]:
        return {key: at for key, at in self._at.items() if key not in self._again}


def _number(name: str) -> int:
    """The same in every process, which Python's own hash is not."""
    from zlib import crc32

    raw = name.encode("utf-8", "replace")
    return crc32(raw) << 32 | crc32(raw[::-1])


class Offset(msgspec.Struct, frozen=True, kw_only=True):
    """`second` is `seconds` ahead of `first`, by `events` that both show."""

    first: str
    second: str
    seconds: float
    events: int

    @property
    def looks_like_a_zone(self) -> bool:
        rest = abs(self.seconds) % _QUARTER_S
        return abs(self.seconds) > _QUARTER_S / 2 and min(rest, _QUARTER_S - rest) < 5


def offsets(marks: Mapping[str, Marks]) -> list[Offset]:
    """By source. Only where most of the common events agree."""
    seen: dict[int, list[tuple[str, int]]] = {}
    for name in sorted(marks):
        for key, at_us in marks[name].once().items():
            seen.setdefault(key, []).append((name, at_us))
    apart_s: dict[tuple[str, str], list[float]] = {}
    for places in seen.values():
        for (first, first_us), (second, second_us) in combinations(places[:SOURCES_MOST], 2):
            if abs(second_us - first_us) <= MOST_S * 1e6:
                apart_s.setdefault((first, second), []).append((second_us - first_us) / 1e6)
    found = (_offset(*pair, sorted(apart)) for pair, apart in sorted(apart_s.items()))
    return [offset for offset in found if offset is not None]


def _offset(first: str, second: str, apart_s: list[float]) -> Offset | None:
    middle_s = statistics.median(apart_s)
    agreeing = sum(abs(each - middle_s) <= WITHIN_S for each in apart_s)
    if abs(middle_s) < LEAST_S or agreeing < AGREE * len(apart_s):
        return None
    return Offset(first=first, second=second, seconds=round(middle_s, 3), events=len(apart_s))
