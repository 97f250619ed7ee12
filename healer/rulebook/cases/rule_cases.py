"""The cases beside the rules: given these lines or series, expect this rule. `healer rules test` runs them.

A case has a `name` and `lines` of one node's kernel log, or a `fault` with its `class` as another detector
tells it, or the labels of an `alert` of another system. `expect` names the findings in order; a field it
leaves out may be anything. An empty list: no finding at all. `must_not` names what none of the findings may
be. Each rule of `policies.yaml`, `escalations.yaml` and `forecasts.yaml` needs a case that expects it and
one in which it must not be. Cases of detection rules, of faults over time and of forecasts have modules of
their own beside this one.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from healer.detection import rule_for
from healer.detection.alerts import entry_for, finding_of
from healer.detection.kernel import findings
from healer.model import FORECAST_FAULT, Cause, FaultClass, Finding, Remedy, Ruleset, SlurmNode
from healer.rulebook.cases.detection_cases import DETECTION_CASES, run_detection_cases
from healer.rulebook.cases.forecast_cases import FORECAST_CASES, ForecastCase, run_forecast_cases
from healer.rulebook.cases.history_cases import HISTORY_CASES, HistoryCase, Told, run_history_cases
from healer.rulebook.ruleset import RulesInvalid, case_sources, load
from healer.rulebook.source import Problem, Source
from healer.signals.alerts import Enveloped, Site, enveloped_observations
from healer.signals.wire import kernel_text_observations

_AT = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
#: What marks an entry of `context.yaml` among the names that cases have to prove.
_CONTEXT = "context:"


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
    remedy: Remedy | None = None
    cause: Cause | None = None
    nic: str | None = None
    device: str | None = None
    beside: bool | None = None
    follows: bool | None = None


class Case(msgspec.Struct, frozen=True, kw_only=True, rename={"fault_class": "class"}):
    name: str
    expect: tuple[Expected, ...] | None = None
    must_not: tuple[Expected, ...] = ()
    lines: tuple[str, ...] = ()
    #: What Slurm shows of the node.
    gpu_model: str = ""
    driver: str = ""
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
    over_time = case_sources(rules_dir, problems, HISTORY_CASES)
    foretold = case_sources(rules_dir, problems, FORECAST_CASES)
    names = {source.name for source in (*measured, *over_time, *foretold)}
    told: list[Case | HistoryCase] = []
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
            if case.expect is None and not case.must_not:
                source.problem((index,), f"{case.name}: a case says what to expect, or what must not be")
                continue
            why = _why_not(rules, case)
            told.append(case)
            results.append(CaseResult(file=source.name, line=source.line((index,)), name=case.name, why=why))
    by_name = {rule.name: rule for rule in rules.detection}
    for one in run_detection_cases(measured, by_name, rules.catalogue, rules.gpu_models):
        line = one.source.line((one.index,))
        results.append(CaseResult(file=one.source.name, line=line, name=one.case.name, why=one.why))
    for source, index, case, why in run_history_cases(over_time, rules):
        told.append(case)
        results.append(CaseResult(file=source.name, line=source.line((index,)), name=case.name, why=why))
    days: list[ForecastCase] = []
    for source, index, case, why in run_forecast_cases(foretold, rules):
        days.append(case)
        results.append(CaseResult(file=source.name, line=source.line((index,)), name=case.name, why=why))
    if problems:
        raise RulesInvalid(problems)
    return results + _unproven(rules_dir, rules, told, days)


def _unproven(
    rules_dir: Path, rules: Ruleset, cases: Sequence[Case | HistoryCase], days: Sequence[ForecastCase]
) -> list[CaseResult]:
    """A result that fails for each rule that the cases leave open."""
    expected = {name for case in cases for one in case.expect or () for name in _named(one)}
    forbidden = {name for case in cases for one in case.must_not for name in _named(one)}
    over_time = [case for case in cases if isinstance(case, HistoryCase)]
    expected |= {name for case in over_time for name in _by_context(case.expect, case.passed)}
    forbidden |= {name for case in over_time for name in _by_context(case.must_not, case.not_passed)}
    expected |= {case.rule for case in days if case.likely}
    forbidden |= {case.rule for case in days if not case.likely}
    found = []
    for source, path, name in _to_prove(rules_dir):
        lacks = [
            text
            for text, named in (("expects it", expected), ("says where it must not be", forbidden))
            if name not in named
        ]
        if lacks:
            why = f"no case {' and none '.join(lacks)}"
            found.append(CaseResult(file=source.name, line=source.line(path), name=name, why=why))
    return found


def _named(one: Expected | Told) -> tuple[str | None, ...]:
    return (one.rule, one.finding) if isinstance(one, Told) else (one.rule,)


def _by_context(told: Sequence[Told], passed: Sequence[str]) -> Iterator[str]:
    """Entries of `context.yaml` carry no policy: what is passed over by them, or told with less urgency."""
    yield from (f"{_CONTEXT}{name}" for name in passed)
    yield from (f"{_CONTEXT}{one.plan}" for one in told if one.plan)


def _to_prove(rules_dir: Path) -> Iterator[tuple[Source, tuple[str | int, ...], str]]:
    """(file, place in it, name) of the rules that cases have to prove."""
    problems: list[Problem] = []  # told already when the rules were loaded
    source = Source(rules_dir / "policies.yaml", "policies.yaml", problems)
    for index, item in enumerate(source.items("rules")):
        yield source, (index,), str(item.get("name")) if isinstance(item, dict) else ""
    path = rules_dir / "escalations.yaml"
    if path.exists():
        source = Source(path, path.name, problems)
        for kind in ("repeats", "combinations"):
            for index, item in enumerate((source.data or {}).get(kind, ())):
                yield source, (kind, index), str(item.get("name"))
    for name, before in (("sharing.yaml", ""), ("context.yaml", _CONTEXT)):
        path = rules_dir / name
        if path.exists():
            source = Source(path, path.name, problems)
            for index, item in enumerate(source.items("entries")):
                yield source, (index,), f"{before}{item.get('name')}" if isinstance(item, dict) else before
    path = rules_dir / "forecasts.yaml"
    if path.exists():
        source = Source(path, path.name, problems)
        for index, item in enumerate(source.items("forecasts")):
            yield source, (index,), f"{FORECAST_FAULT}{item.get('name') if isinstance(item, dict) else ''}"


def _why_not(rules: Ruleset, case: Case) -> str:
    seen = _seen(rules, case)
    for want in case.must_not:
        for got in seen:
            if _differs(want, got) is None:
                return f"must not be: {got['fault']} by {got['rule']}"
    return "" if case.expect is None else _compare(case.expect, seen)


def _seen(rules: Ruleset, case: Case) -> list[dict[str, Any]]:
    """What the case leads to."""
    if case.fault is not None and case.fault_class is not None:
        rule = rule_for(rules, case.fault, case.fault_class)
        return [] if rule is None else [{"rule": rule.name, "fault": case.fault, "class": case.fault_class}]
    if case.alert:
        return [_shown(one) for one in _of_alert(rules, case.alert)]
    text = "\n".join(case.lines)
    accepted = kernel_text_observations(
        text, lambda _c, _n: True, _AT, cluster="case", node="node", book=rules.kernel_lines
    )
    shown = {"node": SlurmNode(name="node", gpu_model=case.gpu_model, driver=case.driver)}
    return [_shown(one) for one in findings(rules, accepted.observations, shown)]


def _of_alert(rules: Ruleset, labels: dict[str, str]) -> list[Finding]:
    """What an alert with these labels opens."""
    item = {"status": "firing", "labels": labels, "startsAt": _AT.isoformat()}
    site = Site("case", ("case",), lambda _c, _n: True, lambda _c, _n: True)
    told = enveloped_observations([Enveloped(index=0, alert=item, source="case", id="1")], site, _AT)
    found = (finding_of(one, entry_for(rules, one), digest=one.digest, now=_AT) for one in told.observations)
    return [one for one in found if not one.beside]


def _shown(finding: Finding) -> dict[str, Any]:
    where = finding.component
    return {
        "rule": finding.rule,
        "fault": finding.fault,
        "class": finding.fault_class,
        "pci": where.pci,
        "link": where.link,
        "switch": where.switch,
        "nic": where.nic,
        "device": where.device,
        "unusable": finding.unusable,
        "teardown": finding.teardown,
        "asked": finding.asked,
        "remedy": finding.remedy,
        "cause": finding.cause,
        "beside": finding.beside,
        "follows": finding.follows,
    }


def _compare(expected: Sequence[Expected], seen: Sequence[dict[str, Any]]) -> str:
    if len(expected) != len(seen):
        came = ", ".join(f"{one['fault']} by {one['rule']}" for one in seen) or "none"
        return f"expected {len(expected)} findings, came {len(seen)}: {came}"
    for number, (want, got) in enumerate(zip(expected, seen, strict=True), start=1):
        if (why := _differs(want, got)) is not None:
            return f"finding {number}: {why}"
    return ""


def _differs(want: Expected, got: dict[str, Any]) -> str | None:
    """The first field that is another one; None where the finding is as it says."""
    for field, value in msgspec.to_builtins(want).items():
        if value is not None and str(got.get(field)) != str(value):
            return f"expected {field} {value}, came {got.get(field)}"
    return None
