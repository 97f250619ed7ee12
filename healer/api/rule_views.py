"""Rules, playbooks and the breaker as the API shows them: what the files say, and what running has added."""

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
    Root,
    Rule,
    Ruleset,
    Trial,
)
from healer.ports.answers import RuleRecord
from healer.ports.request_errors import NotFound


class BreakerView(msgspec.Struct, frozen=True, kw_only=True):
    cluster: str
    state: BreakerState
    roots: list[Root] = []
    since: datetime | None = None
    why: str = ""
    canary: str | None = None
    reset_by: str | None = None
    reset_reason: str | None = None


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

    `recall` is None: nobody counts faults that no rule saw. Of a forecast both are by what then happened, and
    `forecasts` counts it. `measured`: what a detection rule watches, `follows`: what a forecast does; None
    for the rules of policies.yaml. `last_incident_at`: when it last opened an incident. `first_runs`: so many
    more runs wait for a person, as the rule or its playbook is new or changed (mode auto alone asks for it).
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


def breaker_view(breaker: Breaker) -> BreakerView:
    return msgspec.convert(breaker, BreakerView, from_attributes=True)


def rule_list(rules: Ruleset, records: Mapping[str, RuleRecord], trials: Sequence[Trial]) -> list[RuleView]:
    return [rule_view(rules, rule, records.get(rule.name, RuleRecord()), trials) for rule in rules.rules]


def rule_view(rules: Ruleset, rule: Rule, record: RuleRecord, trials: Sequence[Trial]) -> RuleView:
    """The mode in force: set while running, else the file's, else HEALER_MODE; `mode_from` says which."""
    if record.mode is not None:
        mode, source = record.mode, "running"
    else:
        mode = rules.mode_of(rule)
        source = "file" if mode is rule.mode else "default"
    true = record.reviews.get(Review.true_fault, 0)
    false = record.reviews.get(Review.false_alarm, 0)
    trial = open_trial(rule.name, rule.playbook, trials, rules)
    score = record.forecasts or ForecastScore() if rule.forecast else None
    return RuleView(
        rule=rule,
        mode=mode,
        mode_from=source,
        incidents=record.incidents,
        reviews=record.reviews,
        precision=score.precision if score else true / (true + false) if true + false else None,
        recall=score.recall if score else None,
        mode_by=record.mode_by,
        mode_reason=record.mode_reason,
        mode_at=record.mode_at,
        measured=next((one for one in rules.detection if one.name == rule.name), None),
        last_incident_at=record.last_at,
        follows=next((one for one in rules.forecasts if one.rule == rule.name), None),
        forecasts=_counts(score) if score else None,
        first_runs=trial.left if trial else 0,
    )


def _counts(score: ForecastScore) -> ForecastCounts:
    return ForecastCounts(**msgspec.structs.asdict(score), precision=score.precision, recall=score.recall)


def check_mode(rule: Rule, mode: Mode) -> None:
    """Problem 422: what a forecast speaks of has not failed, so a person approves what is done."""
    if rule.forecast and mode is Mode.auto:
        raise field_error("mode", f"{rule.name} is a forecast: its mode is approve at most")


def rule_named(rules: Ruleset, name: str) -> Rule:
    for rule in rules.rules:
        if rule.name == name:
            return rule
    raise NotFound(f"there is no rule {name}")


def playbook_list(rules: Ruleset) -> list[Playbook]:
    return [rules.playbooks[name] for name in sorted(rules.playbooks)]


def playbook_named(rules: Ruleset, name: str) -> Playbook:
    try:
        return rules.playbooks[name]
    except KeyError:
        raise NotFound(f"there is no playbook {name}") from None
