"""Host and index lists as Slurm prints them: strict. `healer.model.hostlist` also takes a site's globs."""

from healer.model import hostlist


def expand(text: str) -> tuple[str, ...]:
    """Every host named, in order. Empty for `""`, `(null)` and `None`. ValueError on anything malformed."""
    if text in ("", "(null)", "None"):
        return ()
    names = tuple(hostlist.expand(text))
    if any(char in name for name in names for char in "[], "):
        raise ValueError(f"not a hostlist: {text[:200]!r}")
    return names


def indices(text: str) -> tuple[int, ...]:
    """`0-2,5` -> (0, 1, 2, 5). ValueError on anything malformed."""
    numbers = hostlist.expand(f"[{text}]")
    if not all(number.isdecimal() for number in numbers):
        raise ValueError(f"not a list of numbers: {text[:200]!r}")
    return tuple(int(number) for number in numbers)
