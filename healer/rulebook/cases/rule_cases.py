"""Cases of the rules: given these lines or series, expect this rule. `healer rules test` runs them.

A case has a `name` and `lines` of one node's kernel log, or a `fault` with its `class` as another detector
reports it, or the labels of an `alert` of another system. `expect` names the findings in order; a field it
leaves out may be anything. An empty list: no finding at all. `must_not` names what none of the findings may
be. Each rule of `policies.yaml`, `escalations.yaml` and `forecasts.yaml` needs a case that expects it and
one in which it must not be. Cases of forecasts are in `forecast-*.yaml` (docs/detection.md), judged by the
same arithmetic as production. Cases of detection rules and of faults over time have modules of their own.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from healer.detection import WalkInput, read_all
from healer.detection.forecasts import likely, sentence
from healer.detection.reported import entry_for, finding_of, line_findings
from healer.model import FORECAST_FAULT, Cause, FaultClass, Finding, ForecastRule, Remedy, Ruleset, SlurmNode
from healer.model.vocabulary import did_you_mean
from healer.observations import Picture
from healer.observations.trends import POINT_S, POINTS
from healer.rulebook.cases.detection_cases import DETECTION_CASES, CaseWrong, run_detection_cases
from healer.rulebook.cases.history_cases import (
    HISTORY_CASES,
    ExpectedIncident,
    HistoryCase,
    run_history_cases,
)
from healer.rulebook.ruleset import RulesInvalid, case_sources, load
from healer.rulebook.source import Problem, Source, Where
from healer.signals.alert_bodies import Enveloped, Site, enveloped_observations
from healer.signals.wire import NodeBoot, kernel_text_observations
from healer.text import Said, joined, say

_AT = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
#: What marks an entry of `context.yaml` among the names that cases have to prove.
_CONTEXT = "context:"


FORECAST_CASES = "forecast-*.yaml"
_PER_DAY = round(86400 / POINT_S)


class ForecastCase(msgspec.Struct, frozen=True, kw_only=True):
    """`days`: a value for each day, the newest last, or null if unknown; interpolated linearly between days.
    `likely` to fail, within `from_days` to `to_days`."""

    name: str
    rule: str
    days: tuple[float | None, ...]
    likely: bool
    from_days: float = 0.0
    to_days: float | None = None


def run_forecast_cases(sources: Iterable[Source], rules: Ruleset) -> list[tuple[Where, ForecastCase, str]]:
    """(where, case, why it does not hold). Cases that cannot be run are problems of their source."""
    by_name = {forecast.rule: forecast for forecast in rules.forecasts}
    results = []
    for source in sources:
        for at, case in source.entries(ForecastCase):
            rule = by_name.get(case.rule)
            if rule is None:
                text = say("cases.no_forecast", name=case.rule)
                at.wrong("rule", text, did_you_mean(case.rule, list(by_name)))
                continue
            try:
                results.append((at, case, _why_not_forecast(rule, case)))
            except CaseWrong as error:
                at.at(*error.path).problem(
                    say("words.labelled", label=case.name, text=error.text), error.hint
                )
    return results


def _why_not_forecast(rule: ForecastRule, case: ForecastCase) -> str:
    seen = likely(rule, _series(case))[0]
    if (seen is not None) is not case.likely:
        return (
            say("cases.forecast_came", text=sentence(rule, seen)) if seen else say("cases.no_forecast_came")
        )
    to_days = rule.within_days if case.to_days is None else case.to_days
    if seen is None or case.from_days <= seen.days <= to_days:
        return ""
    return say("cases.forecast_in_days", days=seen.days, text=sentence(rule, seen))


def _series(case: ForecastCase) -> NDArray[np.float64]:
    """(POINTS, 1), as the trends have it."""
    most = POINTS // _PER_DAY
    if not 0 < len(case.days) <= most:
        raise CaseWrong(("days",), say("rulebook.field", field="days", text=say("cases.days", most=most)))
    values = np.array([np.nan if day is None else day for day in case.days], np.float64)
    at = np.arange(len(values) * _PER_DAY) / _PER_DAY
    even = np.interp(at, np.arange(len(values)), values)  # a NaN makes its neighbours unknown too
    points = np.full((POINTS, 1), np.nan)
    points[POINTS - len(even) :, 0] = even
    return points


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
    evidence_only: bool | None = msgspec.field(default=None, name="beside")
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
    """`why` says what came instead; empty if the case holds."""

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
    of_kind = (DETECTION_CASES, HISTORY_CASES, FORECAST_CASES)
    measured, over_time, forecasts = (case_sources(rules_dir, problems, kind) for kind in of_kind)

    def note(at: Where, name: str, why: str) -> None:
        results.append(CaseResult(file=at.source.name, line=at.line, name=name, why=why))

    names = {source.name for source in (*measured, *over_time, *forecasts)}
    proving: list[Case | HistoryCase] = []
    for source in case_sources(rules_dir, problems, "*.yaml"):
        for at, case in source.entries(Case) if source.name not in names else ():
            if wrong := _wrong(case):
                at.problem(say("words.labelled", label=case.name, text=wrong))
                continue
            proving.append(case)
            note(at, case.name, _why_not(rules, case))
    by_name = {rule.name: rule for rule in rules.detection}
    for outcome in run_detection_cases(measured, by_name, rules.catalogue, rules.gpu_models):
        note(outcome.at, outcome.case.name, outcome.why)
    for at, case, why in run_history_cases(over_time, rules):
        proving.append(case)
        note(at, case.name, why)
    days: list[ForecastCase] = []
    for at, case, why in run_forecast_cases(forecasts, rules):
        days.append(case)
        note(at, case.name, why)
    if problems:
        raise RulesInvalid(problems)
    return results + _unproven(rules_dir, rules, proving, days)


def _wrong(case: Case) -> str:
    forms = (case.lines, case.fault is not None and case.fault_class is not None, case.alert)
    if sum(map(bool, forms)) != 1:
        return say("cases.one_kind")
    nothing = case.expect is None and not case.must_not
    return say("cases.expects_nothing") if nothing else ""


def _unproven(
    rules_dir: Path, rules: Ruleset, cases: Sequence[Case | HistoryCase], days: Sequence[ForecastCase]
) -> list[CaseResult]:
    """A result that fails for each rule that the cases leave open."""
    expected = {name for case in cases for incident in case.expect or () for name in _named(incident)}
    forbidden = {name for case in cases for incident in case.must_not for name in _named(incident)}
    over_time = [case for case in cases if isinstance(case, HistoryCase)]
    expected |= {name for case in over_time for name in _by_context(case.expect, case.passed)}
    forbidden |= {name for case in over_time for name in _by_context(case.must_not, case.not_passed)}
    expected |= {case.rule for case in days if case.likely}
    forbidden |= {case.rule for case in days if not case.likely}
    found = []
    for at, name in _to_prove(rules_dir):
        lacks = [
            text
            for text, named in (
                (say("cases.has_no_expect"), expected),
                (say("cases.has_no_must_not"), forbidden),
            )
            if name not in named
        ]
        if lacks:
            why = joined(lacks, "semicolon")
            found.append(CaseResult(file=at.source.name, line=at.line, name=name, why=why))
    return found


def _named(expected: Expected | ExpectedIncident) -> tuple[str | None, ...]:
    return (expected.rule, expected.finding) if isinstance(expected, ExpectedIncident) else (expected.rule,)


def _by_context(incidents: Sequence[ExpectedIncident], passed: Sequence[str]) -> Iterator[str]:
    """Entries of `context.yaml` have no policy: a case proves them by what they suppress or make less
    urgent."""
    yield from (f"{_CONTEXT}{name}" for name in passed)
    yield from (f"{_CONTEXT}{incident.plan}" for incident in incidents if incident.plan)


def _to_prove(rules_dir: Path) -> Iterator[tuple[Where, str]]:
    """(where, name) of the rules that cases have to prove."""
    problems: list[Problem] = []  # reported already when the rules were loaded
    for file, kind, before in (
        ("policies.yaml", "", ""),
        ("escalations.yaml", "repeats", ""),
        ("escalations.yaml", "combinations", ""),
        ("sharing.yaml", "", ""),
        ("context.yaml", "", _CONTEXT),
        ("forecasts.yaml", "", FORECAST_FAULT),
    ):
        source = Source.if_there(rules_dir / file, file, problems)
        items = (source.data or {}).get(kind, ()) if kind else source.items()
        for index, item in enumerate(items):
            at = source.at(kind, index) if kind else source.at(index)
            yield at, f"{before}{item.get('name')}"


def _why_not(rules: Ruleset, case: Case) -> str:
    seen = _seen(rules, case)
    for want in case.must_not:
        for got in seen:
            if _differs(want, got) is None:
                return say("cases.finding_forbidden", finding=_named_finding(got))
    return "" if case.expect is None else _compare(case.expect, seen)


def _seen(rules: Ruleset, case: Case) -> list[dict[str, Any]]:
    """What the case leads to."""
    if case.fault is not None and case.fault_class is not None:
        rule = rules.rule_for(case.fault, case.fault_class)
        return [] if rule is None else [{"rule": rule.name, "fault": case.fault, "class": case.fault_class}]
    if case.alert:
        return [_shown(finding) for finding in _of_alert(rules, case.alert)]
    text = "\n".join(case.lines)
    accepted = kernel_text_observations(
        text, lambda _c, _n: True, _AT, NodeBoot("case", "node"), book=rules.kernel_lines
    )
    shown = {"node": SlurmNode(name="node", gpu_model=case.gpu_model, driver=case.driver)}
    lines = read_all(rules, accepted.observations, shown)
    picture = Picture("case", watching_since=_AT)
    return [_shown(finding) for finding in line_findings(WalkInput(rules, picture, _AT, lines))]


def _of_alert(rules: Ruleset, labels: dict[str, str]) -> list[Finding]:
    """What an alert with these labels opens."""
    item = {"status": "firing", "labels": labels, "startsAt": _AT.isoformat()}
    site = Site("case", ("case",), lambda _c, _n: True, lambda _c, _n: True)
    alerts = enveloped_observations([Enveloped(index=0, alert=item, source="case", id="1")], site, _AT)
    found = (
        finding_of(alert, entry_for(rules, alert), digest=alert.digest, now=_AT)
        for alert in alerts.observations
    )
    return [finding for finding in found if not finding.evidence_only]


def _shown(finding: Finding) -> dict[str, Any]:
    """The values of `Expected`'s fields: of the finding, or else of its component."""
    where = finding.component
    return {
        field.encode_name: getattr(finding if hasattr(finding, field.name) else where, field.name)
        for field in msgspec.structs.fields(Expected)
    }


def _compare(expected: Sequence[Expected], seen: Sequence[dict[str, Any]]) -> str:
    if len(expected) != len(seen):
        came = joined(map(_named_finding, seen), "comma") if seen else say("cases.none")
        return say("cases.findings_count", wanted=len(expected), got=len(seen), came=came)
    for number, (want, got) in enumerate(zip(expected, seen, strict=True), start=1):
        if (why := _differs(want, got)) is not None:
            return say("cases.of_finding", number=number, text=why)
    return ""


def _named_finding(finding: dict[str, Any]) -> Said:
    return say("cases.finding_by", fault=finding["fault"], rule=finding["rule"])


def _differs(want: Expected, got: dict[str, Any]) -> str | None:
    """The first field that differs; None if the finding is as expected."""
    for field, value in msgspec.to_builtins(want).items():
        if value is not None and str(got.get(field)) != str(value):
            return say("cases.field_differs", field=field, wanted=str(value), got=str(got.get(field)))
    return None
