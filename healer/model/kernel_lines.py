"""Lines of the kernel and of the fabric manager without a code: which ones exist, and fast matching.

Their meaning is in `rules/kernel_lines.yaml`, so that a site can add its own. RE2 matches all patterns in one
pass, in time linear in the line and independent of the pattern: no site's pattern can make it slow.
"""

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import msgspec
import re2

from healer.model.vocabulary import Cause, FaultClass, Remedy

#: A record of the kernel's log is at most 1 KiB; no pattern looks further.
CONTENT_MAX = 1024
#: Groups that a pattern may name. `pci`: the address of a GPU or another device; `nic`: a network card's
#: device or address; `server`: a remote machine, which is then the root, with the node only affected.
GROUPS = frozenset({"pci", "nic", "server", "device", "process", "pid", "code", "value"})


#: Memory for the automaton of all patterns. RE2 reserves what it needs of it.
AUTOMATON_BYTES = 64 << 20
Pattern = Any  # RE2's compiled pattern has no public name
_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]])*\]|.")
_GROUP = re.compile(r"\((?:\?:|\?P<\w+>)?")
_LETTER = re.compile(r"[^\\.^$*+?{}\[\]|()]|\\[^\w]")
_MAY_BE_LEFT_OUT = re.compile(r"[?*]\??|\{0[^}]*\}\??")


class KernelLine(msgspec.Struct, frozen=True, kw_only=True):
    """One shape of line. `pattern` has to fit the whole line behind its prefix, from the first letter.

    `opens` false: evidence for an open incident, never one of its own. The other fields as in the Xid
    catalogue.
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
    """The shapes, in the order of the file: the first that matches takes the line."""

    lines: tuple[KernelLine, ...] = ()

    @cached_property
    def by_name(self) -> dict[str, KernelLine]:
        return {line.name: line for line in self.lines}

    @cached_property
    def _patterns(self) -> tuple[re2.Set, tuple[tuple[str, Pattern], ...]]:
        """All patterns as one automaton, and each by itself."""
        options = pattern_options()
        options.max_mem = AUTOMATON_BYTES
        every = re2.Set.SearchSet(options)
        for line in self.lines:
            every.Add(line.pattern)
        every.Compile()
        return every, tuple((line.name, compile_pattern(line.pattern)) for line in self.lines)

    def candidates(self, line: str) -> list[tuple[str, Pattern]]:
        """The patterns that match somewhere in the line: usually none."""
        if not self.lines:
            return []
        every, patterns = self._patterns
        return [patterns[index] for index in sorted(every.Match(encodable(line)) or ())]


NO_LINES = LineBook()


def pattern_options() -> re2.Options:
    """Makes RE2 report errors by exceptions, not on standard error."""
    options = re2.Options()
    options.log_errors = False
    return options


def compile_pattern(pattern: str) -> Pattern:
    """Raises re2.error. Matching is linear in the line: RE2 has no backtracking."""
    return re2.compile(pattern, pattern_options())


def begins_with_text(pattern: str) -> bool:
    """Whether every matching line begins with literal text of the pattern. `pattern` must be valid."""
    return all(_names_text(branch) for branch in _split(pattern))


def _names_text(branch: str) -> bool:
    if group := _GROUP.match(branch):
        end = _end_of(branch, group.end())
        first, rest = begins_with_text(branch[group.end() : end]), branch[end + 1 :]
    else:
        letter = _LETTER.match(branch)
        first, rest = letter is not None, branch[letter.end() if letter else 0 :]
    left_out = _MAY_BE_LEFT_OUT.match(rest)
    return first and (left_out is None or _names_text(rest[left_out.end() :]))


def _end_of(pattern: str, begin: int) -> int:
    """The end of the group that begins there."""
    return next(place for place, depth, piece in _walk(pattern[begin:]) if depth < 0 and piece == ")") + begin


def _split(pattern: str) -> list[str]:
    """The branches of its outermost alternation."""
    bars = [place for place, depth, piece in _walk(pattern) if depth == 0 and piece == "|"]
    return [pattern[a + 1 : b] for a, b in zip([-1, *bars], [*bars, len(pattern)], strict=True)]


def _walk(pattern: str) -> Iterator[tuple[int, int, str]]:
    """Each piece of a pattern with its position and the depth of groups behind it."""
    depth = 0
    for piece in _PIECE.finditer(pattern):
        depth += {"(": 1, ")": -1}.get(piece[0], 0)
        yield piece.start(), depth, piece[0]


def encodable(line: str) -> str:
    """The line in a form that RE2 accepts: without lone surrogates."""
    return line if line.isascii() else line.encode("utf-8", "replace").decode()
