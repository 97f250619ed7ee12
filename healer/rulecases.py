"""The cases beside the rules: given these lines or series, expect this rule. `healer rules test` runs them.

A case has a `name` and `lines` of one node's kernel log, or a `fault` with its `class` as another detector
tells it, or the labels of an `alert` of another system. `expect` names the findings in order; a field it
leaves out may be anything. An empty list: no finding at all. Cases of detection rules:
`healer.detectioncases`.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from healer.detection import rule_for
from healer.detection.alerts import entry_for, finding_of
from healer.detection.kernel import findings
from healer.detectioncases import DETECTION_CASES, run_detection_cases
from healer.model import FaultClass, Finding, Ruleset
from healer.rulefiles import Problem
from healer.ruleset import RulesInvalid, case_sources, load
from healer.signals.alerts import Enveloped, Site, enveloped_observations
from healer.signals.wire import kernel_text_observations

_AT = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)


class Expected(msgspec.Struct, frozen=True, kw_only=True, rename={"fault_class": "class"}):
    """What is compared; None is not."""

    rule: str | None = None
    fault: str | None = None
    fault_class: FaultClass | None = None
    pci: str | None = None
    link: int | None = None
    switch: str | None = None
    unusable: bool | None = None
    teardown: bool | None = None
    asked: str | None = None


class Case(msgspec.Struct, frozen=True, kw_only=True, rename={"fault_class": "class"}):
    name: str
    expect: tuple[Expected, ...]
    lines: tuple[str, ...] = ()
    fault: str | None = None
    fault_class: FaultClass | None = None
    alert: dict[str, str] = {}


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """`why` says what came instead; empty when the case holds."""

    file: str
    line: int
    name: str
    why: str = ""

    @property
    def ok(self) -> bool:
        return not self.why


def run_cases(rules_dir: Path) -> list[CaseResult]:
    """Runs `cases/*.yaml` of the folder. Raises RulesInvalid when the rules or a case file are wrong."""
    rules = load(rules_dir, prove=False)
    problems: list[Problem] = []
    results: list[CaseResult] = []
    measured = case_sources(rules_dir, problems, DETECTION_CASES)
    names = {source.name for source in measured}
    for source in case_sources(rules_dir, problems, "*.yaml"):
        if source.name in names:
            continue
        for index, item in enumerate(source.items("cases")):
            case = source.convert((index,), item, Case)
            if case is None:
                continue
            forms = (case.lines, case.fault is not None and case.fault_class is not None, case.alert)
            if sum(map(bool, forms)) != 1:
                text = f"{case.name}: a case has either lines, or fault and class, or an alert"
                source.problem((index,), text)
                continue
            why = _why_not(rules, case)
            results.append(CaseResult(file=source.name, line=source.line((index,)), name=case.name, why=why))
    by_name = {rule.name: rule for rule in rules.detection}
    for one in run_detection_cases(measured, by_name, rules.catalogue, rules.gpu_models):
        line = one.source.line((one.index,))
        results.append(CaseResult(file=one.source.name, line=line, name=one.case.name, why=one.why))
    if problems:
        raise RulesInvalid(problems)
    return results


def _why_not(rules: Ruleset, case: Case) -> str:
    if case.fault is not None and case.fault_class is not None:
        rule = rule_for(rules, case.fault, case.fault_class)
        seen = [] if rule is None else [{"rule": rule.name, "fault": case.fault, "class": case.fault_class}]
        return _compare(case.expect, seen)
    if case.alert:
        return _compare(case.expect, [_shown(one) for one in _of_alert(rules, case.alert)])
    text = "\n".join(case.lines)
    accepted = kernel_text_observations(text, lambda _c, _n: True, _AT, cluster="case", node="node")
    return _compare(case.expect, [_shown(one) for one in findings(rules, accepted.observations)])


def _of_alert(rules: Ruleset, labels: dict[str, str]) -> list[Finding]:
    """What an alert with these labels opens."""
    item = {"status": "firing", "labels": labels, "startsAt": _AT.isoformat()}
    site = Site("case", ("case",), lambda _c, _n: True, lambda _c, _n: True)
    told = enveloped_observations([Enveloped(index=0, alert=item, source="case", id="1")], site, _AT)
    found = (finding_of(one, entry_for(rules, one), digest=one.digest, now=_AT) for one in told.observations)
    return [one for one in found if not one.beside]


def _shown(finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "fault": finding.fault,
        "class": finding.fault_class,
        "pci": finding.component.pci,
        "link": finding.component.link,
        "switch": finding.component.switch,
        "unusable": finding.unusable,
        "teardown": finding.teardown,
        "asked": finding.asked,
    }


def _compare(expected: Sequence[Expected], seen: Sequence[dict[str, Any]]) -> str:
    if len(expected) != len(seen):
        came = ", ".join(f"{one['fault']} by {one['rule']}" for one in seen) or "none"
        return f"expected {len(expected)} findings, came {len(seen)}: {came}"
    for number, (want, got) in enumerate(zip(expected, seen, strict=True), start=1):
        for field, value in msgspec.to_builtins(want).items():
            if value is not None and str(got.get(field)) != str(value):
                return f"finding {number}: expected {field} {value}, came {got.get(field)}"
    return ""
