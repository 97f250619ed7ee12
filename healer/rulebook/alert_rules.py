"""Loads and checks `rules/alerts.yaml`: what alerts of other systems mean. Format: docs/rules.md."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from healer.model import AlertRule, FaultClass, Rule
from healer.model.detection import ALERT_FAULT, ALERT_STAYS_MAX_H
from healer.rulebook.detection_rules import RULE_NAME
from healer.rulebook.source import Source


def read_alerts(
    source: Source | None, policies: Sequence[Rule], check_playbook: Callable[[Source, int, str], None]
) -> tuple[AlertRule, ...]:
    """The entries in the order of the file. What is wrong goes to the source's problems."""
    found: dict[str, AlertRule] = {}
    for index, item in enumerate(source.items("entries") if source else []):
        entry = source.convert((index,), item, AlertRule) if source else None
        if entry is None or source is None:
            continue
        _check_name(source, index, entry, [*found, *(rule.name for rule in policies)])
        _check_globs(source, index, entry)
        if not 0 < entry.stays_h <= ALERT_STAYS_MAX_H:
            source.problem(
                (index, "stays_h"), f"stays_h: has to be above 0, and at most {ALERT_STAYS_MAX_H:g}"
            )
        if entry.playbook is not None:
            check_playbook(source, index, entry.playbook)
            _check_acting(source, index, entry)
        found[entry.name] = entry
    return tuple(found.values())


def policy_of_alert(entry: AlertRule) -> Rule:
    """What is to be done when it fires."""
    return Rule(
        name=entry.name,
        title=entry.title,
        faults=(f"{ALERT_FAULT}{entry.name}",),
        severity=entry.severity,
        cause=entry.cause,
        remedy=entry.remedy,
        playbook=entry.playbook,
        mode=entry.mode,
        runbook=entry.runbook,
    )


def _check_name(source: Source, index: int, entry: AlertRule, taken: Sequence[str]) -> None:
    path = (index, "name")
    if not RULE_NAME.fullmatch(entry.name):
        source.problem(path, f"name: {entry.name!r} has to be small letters, digits and dashes")
    if entry.name in taken:
        source.problem(path, f"there is a rule {entry.name} already", "give it another name")


def _check_globs(source: Source, index: int, entry: AlertRule) -> None:
    if not entry.alert:
        source.problem((index, "alert"), "alert: the list is empty")
    globs = [(("alert", number), glob) for number, glob in enumerate(entry.alert)]
    for path, glob in [*globs, *((("labels", name), glob) for name, glob in entry.labels.items())]:
        if not glob.strip() or glob.count("[") != glob.count("]"):
            source.problem((index, *path), f"{path[0]}: {glob!r} is not a name or a glob")
    if any(fnmatchcase(ALERT_FAULT, glob) and not entry.labels for glob in entry.alert):
        text = "alert: this takes every alert there is; an alert that no entry names is kept as evidence"
        source.problem((index, "alert"), text, "name the alerts")


def _check_acting(source: Source, index: int, entry: AlertRule) -> None:
    """What may act has to open incidents, and to be about something that is broken."""
    path = (index, "playbook")
    if not entry.opens:
        source.problem(path, "playbook: with `opens: false` it would never start")
    elif entry.fault_class not in (FaultClass.fatal, FaultClass.degraded):
        source.problem(path, "playbook: only a fault_class of fatal or degraded may lead to one")
