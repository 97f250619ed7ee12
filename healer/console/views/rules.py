"""The rules as a table: what each watches, what it would do, in which mode, and when it last fired."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from healer.console import words
from healer.decisions.trials import standing
from healer.model import ForecastRule, Mode, Rule, Scope, Severity
from healer.model.detection import DetectionRule
from healer.ports.console_answers import RuleBook, RuleRecord


class RuleRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rule. `watches` is printed in mono; `mode_from` says whose word the mode is."""

    name: str
    title: str
    severity: Severity
    mode: Mode
    mode_from: str
    #: So many more runs wait for a person, as the rule or its playbook is new or changed.
    first_runs: int
    kind: str
    scope: str
    watches: str
    held_for: str
    models: str
    playbook: str
    remedy: str
    senses: int
    source: str
    runbook: str
    cases: int
    open: int
    fired: int
    last_at: datetime | None
    last_incident: str | None
    precision: str


def rule_rows(book: RuleBook) -> list[RuleRow]:
    """In the order in which they are asked: policies as in their file, then the detection rules."""
    detection = {one.name: one for one in book.rules.detection}
    forecasts = {one.rule: one for one in book.rules.forecasts}
    return [_row(rule, detection.get(rule.name), forecasts.get(rule.name), book) for rule in book.rules.rules]


def _row(rule: Rule, measured: DetectionRule | None, follows: ForecastRule | None, book: RuleBook) -> RuleRow:
    record = book.records.get(rule.name, RuleRecord())
    mode, mode_from = _mode(rule, book, record)
    trial = standing(rule.name, rule.playbook, book.trials, book.rules)
    return RuleRow(
        name=rule.name,
        title=rule.title,
        severity=rule.severity,
        mode=mode,
        mode_from=mode_from,
        first_runs=trial.left if trial is not None and mode is Mode.auto else 0,
        kind="foretold" if follows else "measured" if measured else "told",
        scope=_scope(rule, measured, follows),
        watches=_watches(rule, measured, follows),
        held_for=words.span(measured.for_s) if measured and measured.for_s else "",
        models=", ".join(measured.models) if measured else "",
        playbook=rule.playbook or "",
        remedy=", ".join(one.value for one in rule.remedy),
        senses=rule.senses,
        source=measured.source if measured else follows.source if follows else "",
        runbook=rule.runbook,
        cases=book.cases.get(rule.name, 0),
        open=record.open,
        fired=record.fired,
        last_at=record.last_at,
        last_incident=record.last_incident,
        precision=_precision(record),
    )


def _precision(record: RuleRecord) -> str:
    """By what then happened, where something was foretold; else by people's reviews."""
    if (score := record.forecasts) is not None:
        told = f"{score.hits} of {score.hits + score.misses} came"
        return f"{told}, {score.unforeseen} unforeseen" if score.unforeseen else told
    reviewed = record.true_faults + record.false_alarms
    return f"{record.true_faults} of {reviewed} true" if reviewed else ""


def _watches(rule: Rule, measured: DetectionRule | None, follows: ForecastRule | None) -> str:
    if follows is not None:
        return follows.value or ", ".join(follows.counts)
    return measured.when if measured else ", ".join(rule.faults)


def _scope(rule: Rule, measured: DetectionRule | None, follows: ForecastRule | None) -> str:
    if follows is not None:
        return "GPU" if follows.scope is Scope.gpu else follows.scope.value
    if measured is None:
        return ", ".join(one.value for one in rule.classes)
    return "GPU" if measured.scope is Scope.gpu else measured.scope.value


def _mode(rule: Rule, book: RuleBook, record: RuleRecord) -> tuple[Mode, str]:
    if record.mode is not None:
        return record.mode, f"set by {record.mode_by}" if record.mode_by else "set while running"
    if rule.mode is not None and rule.mode is book.rules.mode_of(rule):
        return rule.mode, "by its file"
    return book.rules.mode_of(rule), "by default"


def fitting(rows: Sequence[RuleRow], *, text: str, mode: str, kind: str, state: str) -> list[RuleRow]:
    """`state` is open (has open incidents) or fired (fired in 7 days); every word of `text` must be found."""
    wanted = text.lower().split()
    return [
        row
        for row in rows
        if (not mode or row.mode.value == mode)
        and (not kind or row.kind == kind)
        and (state != "open" or row.open)
        and (state != "fired" or row.fired)
        and all(word in _haystack(row) for word in wanted)
    ]


def _haystack(row: RuleRow) -> str:
    parts = (row.name, row.title, row.severity.value, row.watches, row.playbook, row.scope, row.remedy)
    return " ".join(parts).lower()
