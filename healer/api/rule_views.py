"""Rules, playbooks and the breaker as shown by the API: from the files, with run-time changes."""

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from healer.api.problems import field_error
from healer.decisions.consent import open_trial
from healer.model import (
    Breaker,
    BreakerState,
    DetectionRule,
    ForecastRule,
    ForecastScore,
    Mode,
    Playbook,
    Review,
    Rule,
    Ruleset,
    Trial,
)
from healer.ports.answers import RuleRecord
from healer.ports.request_errors import NotFound
from healer.text import say


class BreakerView(Breaker, frozen=True, kw_only=True):
    """The breaker as the API answers it: its state is always given."""

    state: BreakerState  # pyright: ignore[reportGeneralTypeIssues] - all of its fields are named


class ForecastCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a rule's forecasts; `healer.model.ForecastScore` with what follows from it."""

    open: int
    hits: int
    misses: int
    void: int
    unforeseen: int
    precision: float | None
    recall: float | None


class RuleView(msgspec.Struct, frozen=True, kw_only=True):
    """`precision` = true faults / (true faults + false alarms) of the reviews, None before the first.

    `recall` is None: faults that no rule saw are not counted. For a forecast both follow from what then
    happened, counted in `forecasts`. `measured`: what a detection rule watches, `follows`: what a forecast
    does; None for the rules of policies.yaml. `last_incident_at`: when it last opened an incident.
    `first_runs`: so many more runs wait for a person, as the rule or its playbook is new or changed (only in
    mode auto).
    """

    rule: Rule
    mode: Mode
    mode_from: str
    incidents: int
    reviews: dict[Review, int]
    precision: float | None
    recall: float | None = None
    mode_by: str | None = None
    mode_reason: str | None = None
    mode_at: datetime | None = None
    measured: DetectionRule | None = None
    last_incident_at: datetime | None = None
    follows: ForecastRule | None = None
    forecasts: ForecastCounts | None = None
    first_runs: int = 0


def rule_list(rules: Ruleset, records: Mapping[str, RuleRecord], trials: Sequence[Trial]) -> list[RuleView]:
    return [rule_view(rules, rule, records.get(rule.name, RuleRecord()), trials) for rule in rules.rules]


def rule_view(rules: Ruleset, rule: Rule, record: RuleRecord, trials: Sequence[Trial]) -> RuleView:
    """The mode in force: set while running, else the file's, else HEALER_MODE; `mode_from` says which."""
    if record.mode is not None:
        mode, source = record.mode, "running"
    else:
        mode = rules.mode_of(rule)
        source = "file" if mode is rule.mode else "default"
    trial = open_trial(rule.name, rule.playbook, trials, rules)
    score = record.forecasts or ForecastScore() if rule.forecast else None
    return RuleView(
        rule=rule,
        mode=mode,
        mode_from=source,
        incidents=record.incidents,
        reviews=record.reviews,
        precision=score.precision if score else record.precision,
        recall=score.recall if score else None,
        mode_by=record.mode_by,
        mode_reason=record.mode_reason,
        mode_at=record.mode_at,
        measured=next((measured for measured in rules.detection if measured.name == rule.name), None),
        last_incident_at=record.last_at,
        follows=next((forecast for forecast in rules.forecasts if forecast.rule == rule.name), None),
        forecasts=msgspec.convert(score, ForecastCounts, from_attributes=True) if score else None,
        first_runs=trial.left if trial else 0,
    )


def check_mode(rule: Rule, mode: Mode) -> None:
    """Problem 422: nothing has failed yet in a forecast, so a person approves its runs."""
    if rule.forecast and mode is Mode.auto:
        raise field_error("mode", say("api.forecast_highest_mode", name=rule.name))


def rule_named(rules: Ruleset, name: str) -> Rule:
    rule = next((rule for rule in rules.rules if rule.name == name), None)
    if rule is None:
        raise NotFound(say("api.no_rule", name=name))
    return rule


def playbook_named(rules: Ruleset, name: str) -> Playbook:
    if name not in rules.playbooks:
        raise NotFound(say("rulebook.there_no_playbook", name=name))
    return rules.playbooks[name]
