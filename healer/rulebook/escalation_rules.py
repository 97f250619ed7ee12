"""Loads and checks `rules/sharing.yaml` (what nodes share, and which faults of several mean it),
`rules/escalations.yaml`, `rules/ladders.yaml` and `rules/context.yaml` (what is no fault while something else
continues). Format: docs/rules.md."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from fnmatch import fnmatchcase

from healer.model import (
    CONTEXT_LONGEST,
    REMEDY_LADDER,
    ContextKind,
    ContextRule,
    Escalations,
    FaultClass,
    GpuModel,
    Ladder,
    Repeat,
    Rule,
    Sharing,
)
from healer.model.faults import REPEATS, Trait, fault_is
from healer.rulebook.rule_checks import (
    check_globs,
    check_known_fault,
    check_models,
    check_name,
    check_policy,
    is_glob,
    policy_of,
)
from healer.rulebook.source import Source, Where
from healer.text import say

#: Most nodes, and the longest time, that an entry may ask for.
_NODES_MAX = 1000
_WITHIN_MAX_S = 3600


def read_sharings(source: Source, policies: Sequence[Rule]) -> tuple[Sharing, ...]:
    """The entries in the order of the file: of two places that explain equally many nodes the first is
    chosen. Problems go to the source's list."""
    found: dict[str, Sharing] = {}
    taken = {rule.name for rule in policies}
    for at, entry in source.entries(Sharing):
        check_name(at, entry.name, {*found, *taken})
        check_policy(at, entry)
        at.check_between("at_least", entry.at_least, 1, _NODES_MAX)
        at.check_between("share", entry.share, 0, 1)
        at.check_above_0("within_s", entry.within_s, _WITHIN_MAX_S)
        check_globs(at, "faults", entry.faults)
        check_globs(at, "itself", entry.itself)
        check_globs(at, "explains", entry.explains)
        if not entry.faults:
            at.wrong("faults", say("rulebook.list_empty"))
        found[entry.name] = entry
    return tuple(found.values())


def policy_of_sharing(entry: Sharing) -> Rule:
    """Its policy: people are notified; no playbook ever takes a node for it."""
    return policy_of(entry, entry.fault)


#: How long bursts are remembered.
_MOST_H = 7 * 24
BROKEN = (FaultClass.fatal, FaultClass.degraded)


def read_escalations(
    source: Source,
    known_faults: Sequence[str],
    taken: Sequence[str],
    models: Sequence[GpuModel],
    check_playbook: Callable[[Where, str], None],
) -> Escalations:
    """`known` are faults, `taken` names of rules. What is wrong goes to the source's problems."""
    found = source.whole(Escalations)
    names = set(taken)
    for kind, entries in (("repeats", found.repeats), ("combinations", found.combinations)):
        for index, entry in enumerate(entries):
            at = source.at(kind, index)
            check_name(at, entry.name, names)
            check_policy(at, entry)
            names.add(entry.name)
            if entry.playbook is not None:
                check_playbook(at, entry.playbook)
            if entry.fault_class not in BROKEN:
                at.problem(say("rulebook.fault_class_fatal_or"))
    for index, entry in enumerate(found.repeats):
        _check_repeat(source.at("repeats", index), entry, known_faults, models)
    for index, entry in enumerate(found.combinations):
        at = source.at("combinations", index)
        if len(entry.faults) < 2 or not all(entry.faults):
            at.wrong("faults", say("rulebook.at_least_two_lists"))
        for group in entry.faults:
            _check_faults(at.at("faults"), group, known_faults)
        if not 0 < entry.within_s <= _MOST_H * 3600:
            at.wrong("within_s", say("rulebook.above_at_most_days"))
    for index, entry in enumerate(found.cancels):
        _check_faults(source.at("cancels", index, "faults"), (entry.by, *entry.faults), known_faults)
    return found


def read_ladders(
    source: Source, known_faults: Sequence[str], models: Sequence[GpuModel]
) -> tuple[Ladder, ...]:
    found: dict[str, Ladder] = {}
    for at, entry in source.entries(Ladder):
        check_name(at, entry.name, found)
        _check_faults(at.at("faults"), entry.faults, known_faults)
        check_models(at, entry.models, models)
        rungs = [REMEDY_LADDER.index(remedy) for remedy in entry.rungs if remedy in REMEDY_LADDER]
        if not rungs or len(rungs) < len(entry.rungs) or rungs != sorted(set(rungs)):
            words = ", ".join(REMEDY_LADDER[1:])
            at.wrong("rungs", say("rulebook.remedies_ladder_mildest_first"), words)
        at.check_above_0("repeat_h", entry.repeat_h, _MOST_H)
        at.check("lemon", entry.lemon == 0 or entry.lemon >= 2, say("rulebook.never_or_at_least"))
        at.check_above_0("lemon_days", entry.lemon_days, _MOST_H // 24)
        found[entry.name] = entry
    return tuple(found.values())


def policies_of(found: Escalations) -> list[Rule]:
    """The policies for what repeats, and for what combines."""
    repeats = [
        policy_of(repeat, *(f"{REPEATS}{fault}" for fault in repeat.faults)) for repeat in found.repeats
    ]
    return [*repeats, *(policy_of(combination, combination.name) for combination in found.combinations)]


def _check_repeat(at: Where, entry: Repeat, known_faults: Sequence[str], models: Sequence[GpuModel]) -> None:
    _check_faults(at.at("faults"), entry.faults, known_faults)
    check_models(at, entry.models, models)
    for rate in entry.rates:
        if max(rate.bursts, rate.lines) < 2:
            at.wrong("bursts", say("rulebook.at_least_one_of"))
        if not 0 < rate.within_h <= _MOST_H:
            at.wrong("within_h", say("rulebook.above_at_most_week", most=_MOST_H))
    for name, number in (("jobs", entry.jobs), ("users", entry.users), ("nodes", entry.nodes)):
        if not 0 <= number <= entry.bursts:
            at.wrong(name, say("rulebook.from_number_bursts"))
    if entry.place is None:
        at.check("nodes", entry.nodes == 0, say("rulebook.only_with_place_that"))
        return
    at.check("nodes", entry.nodes >= 2, say("rulebook.at_least_what_one"))
    at.check("playbook", entry.playbook is None, say("rulebook.place_none_people_are"))
    for name in ("jobs", "users", "alone", "one_boot"):
        at.check(name, not getattr(entry, name), say("rulebook.not_with_place_that"))
    at.check("bursts", all(rate.bursts for rate in entry.rates), say("rulebook.each_rate_place_counts"))


def _check_faults(at: Where, faults: Sequence[str], known_faults: Sequence[str]) -> None:
    if not faults:
        at.problem(say("rulebook.faults_list_empty"))
    for fault in faults:
        if not is_glob(fault):
            at.problem(say("rulebook.faults_not_name_or", fault=fault))
        # Asks of the driver are named in xid154.yaml, which may be left out.
        elif not fault_is(fault, Trait.driver_ask):
            check_known_fault(at, fault, known_faults)


#: They have only a start, so they need an end.
_BOUNDED = frozenset(
    {ContextKind.worked_on, ContextKind.booted, ContextKind.new_driver, ContextKind.job_start}
)
#: Reported by the kernel and certain in any context: they may be made less urgent, never suppressed.
CERTAIN = ("xid-79", "xid-64", "xid-95", "xid-48", "gpu-lost")
_LONGEST_MIN = CONTEXT_LONGEST / timedelta(minutes=1)


def read_context(source: Source) -> tuple[ContextRule, ...]:
    """The entries in the order of the file; problems go to the source's list."""
    found: dict[str, ContextRule] = {}
    for at, entry in source.entries(ContextRule):
        if entry.name in found:
            at.wrong("name", say("rulebook.twice", name=entry.name))
        _check(at, entry)
        found[entry.name] = entry
    return tuple(found.values())


def _check(at: Where, entry: ContextRule) -> None:
    if not entry.faults:
        at.wrong("faults", say("rulebook.list_empty"))
    bounded = entry.when in _BOUNDED
    if bounded and not 0 < entry.for_min <= _LONGEST_MIN:
        at.wrong("for_min", say("rulebook.needs_one_above_at", when=entry.when, longest_min=_LONGEST_MIN))
    if not bounded and entry.for_min:
        at.wrong("for_min", say("rulebook.lasts_as_long_as", when=entry.when))
    if entry.cause is not None and not entry.is_reported:
        at.wrong("cause", say("rulebook.not_given_is_none"), say("rulebook.give_severity_too"))
    if entry.is_reported:
        return
    if passed := _passed_over(entry.faults, entry.but):
        text = say("rulebook.are_certain_whatever_goes", passed=", ".join(passed))
        at.wrong("faults", text, say("rulebook.name_them_in_but"))


def _passed_over(faults: Sequence[str], but: Sequence[str]) -> list[str]:
    def named(fault: str, globs: Sequence[str]) -> bool:
        return any(fnmatchcase(fault, glob) for glob in globs)

    return [fault for fault in CERTAIN if named(fault, faults) and not named(fault, but)]
