"""slurm.conf as text: its settings, and healer's hooks inserted and removed again byte for byte.

Each replaced line is kept as a comment between two marks, and added lines are between such marks too. So the
file is restored as it was, even if the site has changed other lines meanwhile.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from healer.model.vocabulary import UserError
from healer.text import say

BEGIN = "# >>> healer hook: `healer hook uninstall` gives back what stood here"
#: Used if the file did not end with a line feed, so that one was added before.
BEGIN_JOINED = "# >>> healer hook: added behind a last line without an end"
END = "# <<< healer hook"
_WAS = "#healer was: "

_SETTING = re.compile(r"""(?P<name>[A-Za-z_]\w*)\s*=\s*(?P<value>"[^"]*"|[^\s"]*)""")
_GLOB = re.compile(r"[*?\[]")


class ConfProblem(UserError):
    """The file cannot be changed. One sentence."""


@dataclass(frozen=True)
class Found:
    """One setting: its first and last line (a line may be continued) and the position of its value."""

    name: str
    value: str
    first: int
    last: int
    #: Line and columns of the value, quotes included.
    line: int
    begin: int
    end: int


def find(text: str, *names: str) -> list[Found]:
    """All occurrences of these settings in order, healer's own included."""
    wanted = {name.lower() for name in names}
    return [setting for setting in _settings(text) if setting.name.lower() in wanted]


def value_of(text: str, name: str) -> str | None:
    """The last value of a setting, which Slurm uses; None if it is not set."""
    found = find(text, name)
    return found[-1].value if found else None


def includes(text: str) -> list[str]:
    """Files that this one includes, as they are named there."""
    named = (re.match(r"\s*include\s+(\S+)", line, re.IGNORECASE) for line in text.split("\n"))
    return [match[1] for match in named if match]


def is_glob(path: str) -> bool:
    return _GLOB.search(path) is not None


def is_installed(text: str) -> bool:
    return BEGIN in text or BEGIN_JOINED in text


def changed(text: str, replaced: Sequence[tuple[Found, str]], added: Mapping[str, str]) -> str:
    """The text with these settings replaced, and others added at its end."""
    lines = text.split("\n")
    for first, last in sorted({(setting.first, setting.last) for setting, _ in replaced}, reverse=True):
        here = [(setting, value) for setting, value in replaced if setting.first == first]
        old = lines[first : last + 1]
        new = list(old)
        for setting, value in sorted(here, key=lambda pair: (pair[0].line, pair[0].begin), reverse=True):
            row = new[setting.line - first]
            new[setting.line - first] = row[: setting.begin] + value + row[setting.end :]
        lines[first : last + 1] = [BEGIN, *(_WAS + line for line in old), *new, END]
    text = "\n".join(lines)
    if added:
        begin = BEGIN if not text or text.endswith("\n") else f"\n{BEGIN_JOINED}"
        rows = [begin, *(f"{name}={value}" for name, value in added.items()), END]
        text += "\n".join(rows) + "\n"
    return text


def restored(text: str) -> str:
    """The text without healer's changes. Raises ConfProblem if the marks do not match."""
    kept: list[str] = []
    inside, joined = False, False
    lines = text.split("\n")
    for line in lines:
        mark = line.removesuffix("\r")  # the file may have been given other line ends meanwhile
        if mark in (BEGIN, BEGIN_JOINED) and not inside:
            inside, joined = True, mark == BEGIN_JOINED
        elif mark == END and inside:
            inside = False
        elif inside and line.startswith(_WAS):
            kept.append(line.removeprefix(_WAS))
        elif mark in (BEGIN, BEGIN_JOINED, END):
            raise ConfProblem(say("commands.hook_marks_changed"))
        elif not inside:
            kept.append(line)
    if inside:
        raise ConfProblem(say("commands.hook_mark_missing"))
    if joined and len(lines) > 1 and (lines[-2].removesuffix("\r"), lines[-1]) == (END, ""):
        kept.pop()
    return "\n".join(kept)


def _settings(text: str) -> Iterator[Found]:
    lines = text.split("\n")
    first = 0
    while first < len(lines):
        last = first
        while _bare(lines[last]).rstrip().endswith("\\") and last + 1 < len(lines):
            last += 1
        for number in range(first, last + 1):
            for match in _SETTING.finditer(_bare(lines[number])):
                name, value = match["name"], match["value"]
                yield Found(
                    name, value.strip('"'), first, last, number, match.start("value"), match.end("value")
                )
        first = last + 1


def _bare(line: str) -> str:
    """The line without its comment; `\\#` begins none."""
    match = re.search(r"(?<!\\)#", line)
    return line[: match.start()] if match else line
