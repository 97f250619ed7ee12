"""Loads and checks `rules/context.yaml`: what is no fault while something else goes on.

Format: docs/rules.md.
"""

from collections.abc import Sequence
from datetime import timedelta
from fnmatch import fnmatchcase

from healer.model import CONTEXT_LONGEST, ContextKind, ContextRule
from healer.rulebook.source import Source

#: They begin with a moment, so they need an end.
_BOUNDED = frozenset({ContextKind.booted, ContextKind.new_driver, ContextKind.job_start})
#: Told by the kernel and certain whatever goes on: they may be made less urgent, never passed over.
CERTAIN = ("xid-79", "xid-64", "xid-95", "xid-48", "gpu-lost")
_LONGEST_MIN = CONTEXT_LONGEST / timedelta(minutes=1)


def read_context(source: Source | None) -> tuple[ContextRule, ...]:
    """The entries in the order of the file; what is wrong goes to the source's problems."""
    found: dict[str, ContextRule] = {}
    for index, item in enumerate(source.items("entries") if source else []):
        entry = source.convert((index,), item, ContextRule) if source else None
        if entry is None or source is None:
            continue
        if entry.name in found:
            source.problem((index, "name"), f"name: {entry.name} stands twice")
        _check(source, index, entry)
        found[entry.name] = entry
    return tuple(found.values())


def _check(source: Source, index: int, entry: ContextRule) -> None:
    if not entry.faults:
        source.problem((index, "faults"), "faults: the list is empty")
    bounded = entry.when in _BOUNDED
    if bounded and not 0 < entry.for_min <= _LONGEST_MIN:
        text = f"for_min: `{entry.when}` needs one, above 0 and at most {_LONGEST_MIN:g}"
        source.problem((index, "for_min"), text)
    if not bounded and entry.for_min:
        source.problem((index, "for_min"), f"for_min: `{entry.when}` lasts as long as Slurm shows it")
    if entry.cause is not None and not entry.tells:
        source.problem((index, "cause"), "cause: what is not told has none", "give a `severity` too")
    if entry.tells:
        return
    if passed := _passed_over(entry.faults, entry.but):
        text = f"faults: {', '.join(passed)} are certain whatever goes on"
        source.problem((index, "faults"), text, "name them in `but`, or give a `severity`")


def _passed_over(faults: Sequence[str], but: Sequence[str]) -> list[str]:
    def named(fault: str, globs: Sequence[str]) -> bool:
        return any(fnmatchcase(fault, glob) for glob in globs)

    return [one for one in CERTAIN if named(one, faults) and not named(one, but)]
