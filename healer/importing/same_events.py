"""Clock offsets: the same event in two sources at different times."""

import statistics
from collections.abc import Mapping
from itertools import combinations

import msgspec

#: Events remembered of one source, and differences compared of two.
MARKS_MOST = 50_000
#: A smaller offset is not reported: logs write when they hear.
LEAST_S = 2.0
#: The share of common events that has to agree, within so many seconds.
AGREE, WITHIN_S = 0.6, 2.0
_QUARTER_S = 900
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
    events = {name: its.once() for name, its in marks.items()}
    found: list[Offset] = []
    for first, second in combinations(sorted(events), 2):
        common = events[first].keys() & events[second].keys()
        differences_s = ((events[second][key] - events[first][key]) / 1e6 for key in common)
        apart_s = sorted(each for each in differences_s if abs(each) <= MOST_S)
        if not apart_s:
            continue
        middle_s = statistics.median(apart_s)
        agreeing = sum(abs(each - middle_s) <= WITHIN_S for each in apart_s)
        if abs(middle_s) >= LEAST_S and agreeing >= AGREE * len(apart_s):
            found.append(Offset(first=first, second=second, seconds=round(middle_s, 3), events=len(apart_s)))
    return found
