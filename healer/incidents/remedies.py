"""Which rule takes a finding, how strong it is, and what is to be done first."""

from collections.abc import Mapping

from healer.detection import rule_for
from healer.model import REMEDY_LADDER, Finding, Mode, Remedy, Rule, Ruleset

#: What the driver itself asks for, as a rung of the ladder.
_ASKED = {
    "reset": Remedy.drain_then_reset,
    "drain_and_reset": Remedy.drain_then_reset,
    "reboot": Remedy.reboot_node,
}


class Policies:
    """The rules with the modes that were set while running."""

    def __init__(self, rules: Ruleset) -> None:
        self.rules = rules
        self.modes: Mapping[str, Mode] = {}

    def of(self, finding: Finding) -> Rule:
        rule = self.rules.by_name.get(finding.rule)
        rule = rule or rule_for(self.rules, finding.fault, finding.fault_class)
        if rule is None:
            raise LookupError(f"no rule takes the fault {finding.fault} ({finding.fault_class})")
        return rule

    def strength(self, name: str) -> int:
        """2: healer may act; 1: it is only watched; 0: nothing is ever done for it."""
        rule = self.rules.by_name.get(name)
        if rule is None or rule.playbook is None:
            return 0
        return 1 if self.is_watched(rule) else 2

    def is_watched(self, rule: Rule) -> bool:
        return (self.modes.get(rule.name) or self.rules.mode_of(rule)) in {Mode.off, Mode.shadow}

    def weaker(self, one: str, other: str) -> bool:
        """Nothing is ever done for `one`, and more may be for `other`: no playbook, only watched, acts."""
        strength = self.strength(one)
        return strength < 2 and strength < self.strength(other)


def remedy_of(rule: Rule, finding: Finding) -> tuple[Remedy, ...]:
    """The driver's own ask first, then the rule's, else that of the line's row in its catalogue."""
    asked = _ASKED.get(finding.asked or "")
    beside = tuple(one for one in rule.remedy if one not in REMEDY_LADDER)
    if asked is not None:
        return (asked, *beside)
    ladder = tuple(one for one in rule.remedy if one in REMEDY_LADDER)
    row = finding.remedy
    if not ladder and row is not None and row in REMEDY_LADDER:
        ladder = (row,)
    elif not ladder and row is not None:
        beside = (row, *(one for one in beside if one is not row))
    told = (*ladder, *beside)
    return tuple(one for one in told if one is not Remedy.none) or told[:1]


def higher(known: tuple[Remedy, ...], new: tuple[Remedy, ...]) -> tuple[Remedy, ...]:
    """The higher rung of the two ladders, and all that stands beside it; that nothing is to be done stands
    alone."""
    rungs = [one for one in (*known, *new) if one in REMEDY_LADDER]
    top = max(rungs, key=REMEDY_LADDER.index, default=None)
    beside = tuple(dict.fromkeys(one for one in (*known, *new) if one not in REMEDY_LADDER))
    if top is Remedy.none and beside:
        return beside
    return ((top,) if top else ()) + beside


def rung_of(remedy: tuple[Remedy, ...]) -> Remedy:
    """What of it stands on the ladder; none where all of it stands beside."""
    return next((one for one in remedy if one in REMEDY_LADDER), Remedy.none)
