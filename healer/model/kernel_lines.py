"""Lines of the kernel and of the fabric manager that carry no code: which there are, and finding one fast.

What they mean stands in `rules/kernel_lines.yaml`, so that a site can add its own. The search is part of the
path of each line, so it costs one look for a few words before any pattern is tried.
"""

import re
from collections.abc import Iterator
from functools import cached_property
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as sre_parser  # type: ignore[attr-defined]
from typing import Any

import msgspec

from healer.model.words import Cause, FaultClass, Remedy

#: A record of the kernel's log is at most 1 KiB; no pattern looks further.
CONTENT_MAX = 1024
#: Steps that a pattern may take on the worst line, and the least literal text that it has to hold.
STEPS_MAX = 1 << 20
LITERAL_MIN = 5
#: What a pattern may name. `pci` is a GPU's or another device's address, `nic` a network card's device or
#: address, `server` what stands elsewhere: the root is then that, and the node only affected.
GROUPS = frozenset({"pci", "nic", "server", "device", "process", "pid", "code", "value"})


class KernelLine(msgspec.Struct, frozen=True, kw_only=True):
    """One shape of line. `pattern` has to fit the whole line behind its prefix, from the first letter.

    `opens`: false makes it evidence beside an incident, and none of its own. The other fields as in the
    Xid catalogue.
    """

    name: str
    pattern: str
    text: str
    fault: str
    fault_class: FaultClass
    component: str
    remedy: Remedy
    cause: Cause
    source: str
    note: str = ""
    opens: bool = True


class LineBook(msgspec.Struct, frozen=True, dict=True):
    """The shapes, in the order of the file: the first that fits has the line."""

    lines: tuple[KernelLine, ...] = ()

    @cached_property
    def by_name(self) -> dict[str, KernelLine]:
        return {one.name: one for one in self.lines}

    @cached_property
    def _compiled(self) -> tuple[tuple[str, tuple[tuple[str, re.Pattern[str]], ...]], ...]:
        """Patterns by the literal that each line of theirs holds."""
        found: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
        for one in self.lines:
            found.setdefault(literal_of(one.pattern), []).append((one.name, re.compile(one.pattern)))
        return tuple((literal, tuple(group)) for literal, group in found.items())

    def candidates(self, line: str) -> list[tuple[str, re.Pattern[str]]]:
        """The patterns whose literal the line holds: mostly none."""
        return [one for literal, group in self._compiled if literal in line for one in group]


NO_LINES = LineBook()


def literal_of(pattern: str) -> str:
    """The longest text that every line has which fits. Raises re.error."""
    return max(_literals(sre_parser.parse(pattern)), key=len, default="")


def _literals(parsed: Any) -> Iterator[str]:
    text = ""
    for kind, value in parsed:
        if kind is sre.LITERAL:
            text += chr(value)
            continue
        yield text
        text = ""
        if kind is sre.SUBPATTERN:
            yield from _literals(value[3])
    yield text


def begins_with_text(pattern: str) -> bool:
    """Whether every line that fits begins with text that the pattern names."""
    return _begins(sre_parser.parse(pattern))


def _begins(parsed: Any) -> bool:
    if not len(parsed):
        return False
    kind, value = parsed[0]
    if kind is sre.MAX_REPEAT:  # what may stand before it begins with text too
        return _begins(value[2]) and (value[0] > 0 or _begins(parsed[1:]))
    if kind is sre.SUBPATTERN:
        return _begins(value[3])
    if kind is sre.BRANCH:
        return all(_begins(branch) for branch in value[1])
    return kind is sre.LITERAL


def steps_of(pattern: str) -> float:
    """Steps of the worst line, from above: the product of all that may match more or less.

    Infinite where a repeat with a choice stands within another: its steps grow without bound.
    """
    return _steps(sre_parser.parse(pattern))


#: As what stands behind a part whose follower nobody knows.
_ANYTHING = ((sre.ANY, None),)


def _steps(parsed: Any, then: Any = ()) -> float:
    """`then` is what stands behind it."""
    steps = 1.0
    for place, (kind, value) in enumerate(parsed):
        rest = [*parsed[place + 1 :], *then]
        if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            least, most, inner = value
            # Behind what comes again its own begin may follow, and not only what stands behind the repeat.
            within = _steps(inner, rest if most <= 1 else _ANYTHING)
            choices = min(float(most), CONTENT_MAX) - least + 1
            if within > 1 and most > 1:
                return float("inf")
            steps *= (1 if _ends_itself(inner, rest) else choices) * within
        elif kind is sre.SUBPATTERN:
            steps *= _steps(value[3], rest)
        elif kind is sre.BRANCH:
            steps *= sum(_steps(branch, rest) for branch in value[1])
        elif kind in (sre.ASSERT, sre.ASSERT_NOT, sre.GROUPREF, sre.GROUPREF_EXISTS):
            return float("inf")
    return steps


def _ends_itself(inner: Any, rest: Any) -> bool:
    """Whether a repeat of one letter has one end only: a letter follows that it does not hold, or nothing."""
    if len(inner) != 1:
        return False
    if not rest:
        return True
    kind, value = rest[0]
    if kind is not sre.LITERAL:
        return False
    return re.fullmatch(_source_of(inner[0]), chr(value)) is None


def _source_of(letter: tuple[Any, Any]) -> str:
    """One letter's pattern as text again; one that takes anything where it is of an unknown kind."""
    kind, value = letter
    if kind is sre.LITERAL:
        return re.escape(chr(value))
    if kind is sre.IN:
        parts = [_part_of(*one) for one in value]
        return "[" + "".join(parts) + "]" if all(parts) else "."
    return "."


def _part_of(kind: Any, value: Any) -> str:
    if kind is sre.NEGATE:
        return "^"
    if kind is sre.LITERAL:
        return re.escape(chr(value))
    if kind is sre.RANGE:
        return f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
    return _CATEGORIES.get(value, "") if kind is sre.CATEGORY else ""


_CATEGORIES = {
    sre.CATEGORY_DIGIT: r"\d",
    sre.CATEGORY_SPACE: r"\s",
    sre.CATEGORY_WORD: r"\w",
    sre.CATEGORY_NOT_DIGIT: r"\D",
    sre.CATEGORY_NOT_SPACE: r"\S",
    sre.CATEGORY_NOT_WORD: r"\W",
}
