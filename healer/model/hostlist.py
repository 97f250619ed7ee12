"""Slurm's hostlist brackets: `gpu[0001-0016,0020]` -> names. Pure."""

import re
from collections.abc import Iterable

#: More than the largest Slurm cluster; a typing error must not use up the memory.
MOST_NAMES = 100_000
#: Brackets in one name; each multiplies.
_MOST_BRACKETS = 16

_BRACKET = re.compile(r"\[([0-9,\- ]+)\]")
#: Up to a comma outside brackets. Users write such lists too, so this takes linear time on any input.
_PART = re.compile(r"(?:\[[^\[\]]*\]|[^,])+")
#: 9 digits at most: anything longer is not a number to count by.
_NUMBERED = re.compile(r"(.*?[^0-9]|)([0-9]{1,9})")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def expand(text: str) -> list[str]:
    """The names of one hostlist, in its order. Several brackets multiply; commas outside separate.

    A bracket that holds anything but digits, commas and dashes stays as it is: it may be a glob.
    Raises ValueError with a sentence.
    """
    names: list[str] = []
    for part in _PART.findall(text):
        if part.count("[") > _MOST_BRACKETS:
            raise ValueError(f"{part[:80]} has more than {_MOST_BRACKETS} brackets")
        if part.strip():
            names.extend(_expand_one(part.strip()))
        if len(names) > MOST_NAMES:
            raise ValueError(f"the hostlist names more than {MOST_NAMES} nodes")
    if not names:
        raise ValueError("the hostlist is empty")
    return names


def _expand_one(part: str) -> list[str]:
    match = _BRACKET.search(part)
    if match is None:
        return [part]
    head, tail = part[: match.start()], part[match.end() :]
    tails = _expand_one(tail)
    numbers = _numbers(match[1])
    if len(numbers) * len(tails) > MOST_NAMES:
        raise ValueError(f"{part} names more than {MOST_NAMES} nodes")
    return [f"{head}{number}{rest}" for number in numbers for rest in tails]


def _numbers(text: str) -> list[str]:
    numbers: list[str] = []
    for piece in text.split(","):
        match = _RANGE.fullmatch(piece.strip())
        if match is None:
            raise ValueError(f"[{text}]: {piece!r} is neither a number nor a range such as 0001-0016")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise ValueError(f"[{text}]: the range {piece} runs backwards")
        if int(last) - int(first) >= MOST_NAMES:
            raise ValueError(f"[{text}]: the range {piece} names more than {MOST_NAMES} nodes")
        numbers.extend(str(n).zfill(len(first)) for n in range(int(first), int(last) + 1))
        if len(numbers) > MOST_NAMES:
            raise ValueError(f"[{text[:80]}] names more than {MOST_NAMES} nodes")
    return numbers


def compact(names: Iterable[str]) -> str:
    """`gpu[0001-0003,0007]` of names that end with a number of equal width; others are kept as they are."""
    by_head: dict[tuple[str, int], list[int]] = {}
    plain: list[str] = []
    for name in sorted(set(names)):
        match = _NUMBERED.fullmatch(name)
        if match is None:
            plain.append(name)
        else:
            by_head.setdefault((match[1], len(match[2])), []).append(int(match[2]))
    found = [_bracketed(head, width, sorted(numbers)) for (head, width), numbers in by_head.items()]
    return ",".join(sorted(found) + plain)


def _bracketed(head: str, width: int, numbers: list[int]) -> str:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    if len(numbers) == 1:
        return f"{head}{numbers[0]:0{width}}"
    pieces = [f"{a:0{width}}" if a == b else f"{a:0{width}}-{b:0{width}}" for a, b in runs]
    return f"{head}[{','.join(pieces)}]"
