"""Loads and checks `rules/escalations.yaml` and `rules/ladders.yaml`. Format: docs/rules.md."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from healer.model import (
    REMEDY_LADDER,
    Combination,
    Escalations,
    FaultClass,
    GpuModel,
    Ladder,
    Repeat,
    Rule,
)
from healer.rulebook.detection_rules import RULE_NAME
from healer.rulebook.source import Source, did_you_mean

Path = tuple[str | int, ...]

#: What a repeat's fault begins with, and how long bursts are remembered.
REPEATS = "repeats:"
_MOST_H = 7 * 24
#: Their names stand in xid154.yaml, which may be left out; then nobody tells of them.
_ASKS = "driver-asks-"
_BROKEN = (FaultClass.fatal, FaultClass.degraded)


def read_escalations(
    source: Source | None,
    known: Sequence[str],
    taken: Sequence[str],
    models: Sequence[GpuModel],
    check_playbook: Callable[[Source, Path, str], None],
) -> Escalations:
    """`known` are faults, `taken` names of rules. What is wrong goes to the source's problems."""
    if source is None or source.data is None:
        return Escalations()
    found = source.convert((), source.data, Escalations)
    if found is None:
        return Escalations()
    names = set(taken)
    for kind, entries in (("repeats", found.repeats), ("combinations", found.combinations)):
        for index, entry in enumerate(entries):
            _check_name(source, (kind, index, "name"), entry.name, names)
            names.add(entry.name)
            if entry.playbook is not None:
                check_playbook(source, (kind, index), entry.playbook)
            if entry.fault_class not in _BROKEN:
                source.problem((kind, index), "fault_class: has to be fatal or degraded")
    for index, entry in enumerate(found.repeats):
        _check_repeat(source, index, entry, known, models)
    for index, entry in enumerate(found.combinations):
        path = ("combinations", index)
        if len(entry.faults) < 2 or not all(entry.faults):
            source.problem((*path, "faults"), "faults: at least two lists, none of them empty")
        for group in entry.faults:
            _check_faults(source, (*path, "faults"), group, known)
        if not 0 < entry.within_s <= _MOST_H * 3600:
            source.problem((*path, "within_s"), "within_s: has to be above 0, and at most 7 days")
    for index, entry in enumerate(found.cancels):
        _check_faults(source, ("cancels", index, "faults"), (entry.by, *entry.faults), known)
    return found


def read_ladders(
    source: Source | None, known: Sequence[str], models: Sequence[GpuModel]
) -> tuple[Ladder, ...]:
    found: dict[str, Ladder] = {}
    for index, item in enumerate(source.items("ladders") if source else []):
        entry = source.convert((index,), item, Ladder) if source else None
        if entry is None or source is None:
            continue
        _check_name(source, (index, "name"), entry.name, set(found))
        _check_faults(source, (index, "faults"), entry.faults, known)
        _check_models(source, (index, "models"), entry.models, models)
        rungs = [REMEDY_LADDER.index(one) for one in entry.rungs if one in REMEDY_LADDER]
        if not rungs or len(rungs) < len(entry.rungs) or rungs != sorted(set(rungs)):
            words = " ".join(REMEDY_LADDER[1:])
            source.problem((index, "rungs"), "rungs: remedies of the ladder, the mildest first", words)
        if not 0 < entry.repeat_h <= _MOST_H:
            source.problem((index, "repeat_h"), f"repeat_h: has to be above 0, and at most {_MOST_H}")
        if entry.lemon < 0 or entry.lemon == 1:
            source.problem((index, "lemon"), "lemon: 0 (never), or at least 2")
        if not 0 < entry.lemon_days <= _MOST_H / 24:
            source.problem((index, "lemon_days"), "lemon_days: has to be above 0, and at most 7")
        found[entry.name] = entry
    return tuple(found.values())


def policies_of(found: Escalations) -> list[Rule]:
    """What is to be done about what repeats, and about what goes together."""
    repeats = [_policy(one, tuple(f"{REPEATS}{fault}" for fault in one.faults)) for one in found.repeats]
    return [*repeats, *(_policy(one, (one.name,)) for one in found.combinations)]


def _policy(entry: Repeat | Combination, faults: tuple[str, ...]) -> Rule:
    return Rule(
        name=entry.name,
        title=entry.title,
        faults=faults,
        severity=entry.severity,
        cause=entry.cause,
        remedy=entry.remedy,
        playbook=entry.playbook,
        mode=entry.mode,
        runbook=entry.runbook,
    )


def _check_name(source: Source, path: Path, name: str, taken: set[str]) -> None:
    if not RULE_NAME.fullmatch(name):
        source.problem(path, f"name: {name!r} has to be small letters, digits and dashes")
    if name in taken:
        source.problem(path, f"there is a rule {name} already", "give it another name")


def _check_repeat(
    source: Source, index: int, entry: Repeat, known: Sequence[str], models: Sequence[GpuModel]
) -> None:
    path = ("repeats", index)
    _check_faults(source, (*path, "faults"), entry.faults, known)
    _check_models(source, (*path, "models"), entry.models, models)
    if entry.bursts < 2:
        source.problem((*path, "bursts"), "bursts: at least 2; a fault that is bad at once is a rule's")
    if not 0 < entry.within_h <= _MOST_H:
        source.problem((*path, "within_h"), f"within_h: has to be above 0, and at most {_MOST_H} (7 days)")
    for name, number in (("jobs", entry.jobs), ("users", entry.users)):
        if not 0 <= number <= entry.bursts:
            source.problem((*path, name), f"{name}: from 0 to the number of bursts")


def _check_faults(source: Source, path: Path, faults: Sequence[str], known: Sequence[str]) -> None:
    if not faults:
        source.problem(path, "faults: the list is empty")
    for fault in faults:
        if fault.count("[") != fault.count("]") or not fault.strip():
            source.problem(path, f"faults: {fault!r} is not a name or a glob")
        elif not fault.startswith(_ASKS) and not any(fnmatchcase(name, fault) for name in known):
            source.problem(path, f"faults: {fault} is no fault that healer knows", did_you_mean(fault, known))


def _check_models(source: Source, path: Path, globs: Sequence[str], models: Sequence[GpuModel]) -> None:
    names = [one.name for one in models]
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in names):
            source.problem(path, f"models: there is no GPU model {glob}", did_you_mean(glob, names))
