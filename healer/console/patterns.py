"""English sentences with names in braces, held against finished text. Pure.

Not by a regular expression: one with several holes tries all ways to cut a text, and a sender's text could be
made so that these are billions. Here a place that led nowhere is not tried again, and all steps are counted.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

HOLE = re.compile(r"\{(\w+)(\|t!?|\|nt?|\|w)?\}")
#: `1,290 MHz`, `60 °C to 70 °C`: the comma of a list and what follows are no part of a figure.
_FIGURE = re.compile(r"[-+−]?\d(?:[^,(]|,\d)*", re.DOTALL)
_BEGINS_WITH_FIGURE = re.compile(r"[-+−]?\d")
_SPACE = re.compile(r"\s")
#: No name ends with one of these: with it ends the sentence's part in which the name stands.
_ENDS = (":", ",", ";")
_TAKES: dict[str, Callable[[str], bool]] = {
    "|n": lambda part: _FIGURE.fullmatch(part) is not None,
    "|nt": lambda part: _BEGINS_WITH_FIGURE.match(part) is not None,
    "|w": lambda part: _SPACE.search(part) is None and part[-1:] not in _ENDS,
}
#: What a part that has to be known says, in characters.
_KNOWN_SAYS = 10


class Spent(Exception):
    """A text took more steps than any sentence of healer's."""


@dataclass(slots=True)
class Steps:
    """What may still be tried."""

    left: int

    def take(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Spent


@dataclass(frozen=True, slots=True)
class Pattern:
    """`plain` stands before, between and behind the holes."""

    plain: tuple[str, ...]
    holes: tuple[tuple[str, str], ...]
    said: str
    #: Names whose text is translated in turn, and those of them that have to be known.
    inner: frozenset[str]
    sure: frozenset[str]
    #: The longest run of plain characters: a text without it cannot fit.
    core: str = field(compare=False)

    def fits(self, text: str, steps: Steps) -> dict[str, str] | None:
        """The parts of a text that is this sentence: each hole as short as it can be. Raises Spent."""
        first, last = self.plain[0], self.plain[-1]
        if not text.startswith(first) or not text.endswith(last):
            return None
        fit = _Fit(self, text, len(text) - len(last), steps)
        return fit.parts if fit.rest(0, len(first)) else None


class _Fit:
    """One pattern on one text, whose last hole ends at `end`."""

    def __init__(self, one: Pattern, text: str, end: int, steps: Steps) -> None:
        self.parts: dict[str, str] = {}
        self._one, self._text, self._end, self._steps = one, text, end, steps
        self._failed: set[tuple[int, int]] = set()
        # A name that stands twice makes it matter how a place was come to.
        self._remembers = len({name for name, _ in one.holes}) == len(one.holes)

    def rest(self, at: int, begin: int) -> bool:
        """Whether the holes from this one on fit what stands from `begin` on; fills `parts`."""
        if (at, begin) in self._failed:
            return False
        is_last = at + 1 == len(self._one.holes)
        for stop in self._stops(at, begin):
            self._steps.take()
            name, before = self._one.holes[at][0], dict(self.parts)
            if self._takes(at, self._text[begin:stop]):
                self.parts[name] = self._text[begin:stop]
                if is_last or self.rest(at + 1, stop + len(self._one.plain[at + 1])):
                    return True
                self.parts = before
        if self._remembers:
            self._failed.add((at, begin))
        return False

    def _stops(self, at: int, begin: int) -> Iterator[int]:
        """Where this hole may end: before each place at which the next plain characters stand."""
        if at + 1 == len(self._one.holes):
            yield from (self._end,) if begin < self._end else ()
            return
        plain, stop = self._one.plain[at + 1], begin
        while (stop := self._text.find(plain, stop + 1, self._end)) > begin:
            yield stop

    def _takes(self, at: int, part: str) -> bool:
        name, kind = self._one.holes[at]
        takes = _TAKES.get(kind)
        return (takes is None or takes(part)) and self.parts.get(name, part) == part


def pattern(key: str, said: str) -> Pattern:
    found = list(HOLE.finditer(key))
    plain = HOLE.sub("\0", key).split("\0")
    return Pattern(
        plain=tuple(plain),
        holes=tuple((hole[1], hole[2] or "") for hole in found),
        said=said,
        inner=frozenset(hole[1] for hole in found if hole[2] not in (None, "|w")),
        sure=frozenset(hole[1] for hole in found if hole[2] == "|t!"),
        core=max(plain, key=len),
    )


def weight(key: str) -> int:
    """How much of it is plain or known: the sentence that says most fits first."""
    return len(HOLE.sub("", key)) + (_KNOWN_SAYS if "|t!}" in key else 0)


def start(key: str) -> str:
    return "" if HOLE.match(key) else key[0]
