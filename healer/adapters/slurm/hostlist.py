"""Slurm's hostlist form, `gpu[0001-0003,0007],login1`, as single names."""

import re

#: One answer never names more hosts than Slurm can hold (MaxNodeCount, 65,536).
MOST_HOSTS = 65_536

_BRACKETS = re.compile(r"\[([0-9,\-]*)\]")


def expand(text: str) -> tuple[str, ...]:
    """Every host named, in order. Empty for `""`, `(null)` and `None`. ValueError on anything malformed."""
    if text in ("", "(null)", "None"):
        return ()
    found: list[str] = []
    for part in _split(text):
        found += _expand_one(part, MOST_HOSTS - len(found))
    return tuple(found)


def indices(text: str) -> tuple[int, ...]:
    """`0-2,5` -> (0, 1, 2, 5). ValueError on anything malformed."""
    return tuple(int(number) for number in _numbers(text, MOST_HOSTS))


def _split(text: str) -> list[str]:
    """Cuts at the commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for position, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    parts.append(text[start:])
    if depth or not all(parts):
        raise ValueError(f"not a hostlist: {text[:200]!r}")
    return parts


def _expand_one(part: str, limit: int) -> list[str]:
    match = _BRACKETS.search(part)
    if match is None:
        if "[" in part or "]" in part or limit < 1:
            raise ValueError(f"not a hostlist, or too long: {part[:200]!r}")
        return [part]
    before, after = part[: match.start()], part[match.end() :]
    names: list[str] = []
    for number in _numbers(match[1], limit):
        names += _expand_one(before + number + after, limit - len(names))
    return names


def _numbers(text: str, limit: int) -> list[str]:
    found: list[str] = []
    for piece in text.split(","):
        low, dash, high = piece.partition("-")
        high = high if dash else low
        numbers = low.isdecimal() and high.isdecimal() and len(low + high) <= 18
        if not numbers or int(high) < int(low):
            raise ValueError(f"not a list of numbers: {text[:200]!r}")
        if len(found) + int(high) - int(low) >= limit:
            raise ValueError(f"more than {MOST_HOSTS} hosts: {text[:200]!r}")
        # Leading zeros are part of the name: gpu0001 is not gpu1.
        found += [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
    return found
