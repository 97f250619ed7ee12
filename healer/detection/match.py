"""Which rule takes a fault: the first of the file that matches its name and class."""

from fnmatch import fnmatchcase

from healer.model import FaultClass, Rule, Ruleset


def rule_for(rules: Ruleset, fault: str, fault_class: FaultClass) -> Rule | None:
    for rule in rules.rules:
        if rule.classes and fault_class not in rule.classes:
            continue
        if any(fnmatchcase(fault, pattern) for pattern in rule.faults):
            return rule
    return None
