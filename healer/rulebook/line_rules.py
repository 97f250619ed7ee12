"""Loads and checks `rules/kernel_lines.yaml`: lines of the kernel without a code. Format: docs/rules.md."""

import re

from healer.model import FaultClass, KernelLine, LineBook
from healer.model.kernel_lines import GROUPS, LITERAL_MIN, STEPS_MAX, begins_with_text, literal_of, steps_of
from healer.rulebook.detection_rules import RULE_NAME
from healer.rulebook.source import Source

#: What accuses no hardware: who names a process so that its line reads like one of these gains nothing.
_HARMLESS = frozenset({FaultClass.application, FaultClass.informational})
#: What a line may make of a fault: the names of other detectors are theirs.
_TAKEN = re.compile(r"xid-|sxid-|driver-asks|gpu-lost$|slurm-drain:|foreign-drain:|hook:|alert:")


def read_lines(source: Source | None) -> LineBook:
    """The entries in the order of the file. What is wrong goes to the source's problems."""
    found: dict[str, KernelLine] = {}
    for index, item in enumerate(source.items("lines") if source else []):
        entry = source.convert((index,), item, KernelLine) if source else None
        if entry is None or source is None:
            continue
        if not RULE_NAME.fullmatch(entry.name):
            source.problem(
                (index, "name"), f"name: {entry.name!r} has to be small letters, digits and dashes"
            )
        if entry.name in found:
            source.problem((index, "name"), f"the line {entry.name} stands here twice")
        if not RULE_NAME.fullmatch(entry.fault) or _TAKEN.match(entry.fault):
            text = f"fault: {entry.fault!r} has to be a name of its own: small letters, digits and dashes"
            source.problem((index, "fault"), text)
        if entry.fault_class is FaultClass.unknown:
            source.problem((index, "fault_class"), "fault_class: a line that is named here is known")
        if _check_pattern(source, index, entry):
            found[entry.name] = entry
    return LineBook(tuple(found.values()))


def _check_pattern(source: Source, index: int, entry: KernelLine) -> bool:
    """Whether it can be used: it compiles, begins with text, and no line can make it slow."""
    pattern = entry.pattern

    def wrong(text: str, hint: str = "") -> bool:
        source.problem((index, "pattern"), f"pattern: {text}", hint)
        return False

    try:
        compiled = re.compile(pattern)
        literal, steps = literal_of(pattern), steps_of(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return wrong(f"no regular expression: {error}")
    if compiled.flags & ~re.UNICODE or "(?i" in pattern:
        return wrong("flags such as (?i) are not taken: the line is searched for its letters as they stand")
    if unknown := sorted(set(compiled.groupindex) - GROUPS):
        return wrong(
            f"the group {unknown[0]} is none that healer knows", f"one of {' '.join(sorted(GROUPS))}"
        )
    if entry.fault_class not in _HARMLESS and not begins_with_text(pattern):
        # A process may have any name, and the kernel begins a line of its crash with it.
        return wrong("has to begin with fixed text: it has to fit the whole line from its first letter")
    if len(literal) < LITERAL_MIN:
        return wrong(f"has to hold at least {LITERAL_MIN} letters in one piece: they are looked for first")
    if steps > STEPS_MAX:
        return wrong(
            "could take more than a million steps on one line",
            "at most two parts without a bound (.* \\S+), none within another",
        )
    return True
