"""Loads and checks `rules/sharing.yaml`: what nodes share, and which faults of several mean it. Format:
docs/rules.md."""

from collections.abc import Sequence

from healer.model import Rule, Sharing
from healer.rulebook.detection_rules import RULE_NAME
from healer.rulebook.source import Source

#: Most nodes, and the longest time, that an entry may ask for.
_NODES_MAX = 1000
_WITHIN_MAX_S = 3600


def read_sharings(source: Source | None, policies: Sequence[Rule]) -> tuple[Sharing, ...]:
    """The entries in the order of the file: of two places that explain as many nodes the first is it. What is
    wrong goes to the source's problems."""
    found: dict[str, Sharing] = {}
    taken = {rule.name for rule in policies}
    for index, item in enumerate(source.items("entries") if source else []):
        entry = source.convert((index,), item, Sharing) if source else None
        if entry is None or source is None:
            continue
        if not RULE_NAME.fullmatch(entry.name):
            text = f"name: {entry.name!r} has to be small letters, digits and dashes"
            source.problem((index, "name"), text)
        if entry.name in found or entry.name in taken:
            source.problem((index, "name"), f"there is a rule {entry.name} already", "give it another name")
        _check_numbers(source, index, entry)
        for field in ("faults", "itself"):
            for number, fault in enumerate(getattr(entry, field)):
                if not fault.strip() or fault.count("[") != fault.count("]"):
                    source.problem((index, field, number), f"{field}: {fault!r} is not a name or a glob")
        if not entry.faults:
            source.problem((index, "faults"), "faults: the list is empty")
        found[entry.name] = entry
    return tuple(found.values())


def _check_numbers(source: Source, index: int, entry: Sharing) -> None:
    if not 1 <= entry.at_least <= _NODES_MAX:
        source.problem((index, "at_least"), f"at_least: has to be from 1 to {_NODES_MAX}")
    if not 0 <= entry.share <= 1:
        source.problem((index, "share"), "share: has to be from 0 to 1")
    if not 0 < entry.within_s <= _WITHIN_MAX_S:
        source.problem((index, "within_s"), f"within_s: has to be above 0, and at most {_WITHIN_MAX_S}")


def policy_of_sharing(entry: Sharing) -> Rule:
    """What is to be done: people are told; no playbook ever takes a node for it."""
    return Rule(
        name=entry.name,
        title=entry.title,
        faults=(entry.fault,),
        severity=entry.severity,
        cause=entry.cause,
        remedy=entry.remedy,
        runbook=entry.runbook,
    )
