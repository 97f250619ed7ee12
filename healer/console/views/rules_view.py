"""The rules as a table, and the rehearsal of a changed rule: what would be new, lost or different."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from healer.console import words
from healer.console.views import Shown
from healer.console.views.buttons import Button, may_act, worded
from healer.decisions.consent import open_trial
from healer.model import ForecastRule, Mode, Role, Rule, Scope
from healer.model.detection import DetectionRule
from healer.model.run import ACTIVE_REHEARSALS, Outcomes, Rehearsal, RehearsalState
from healer.ports.answers import RuleBook, RuleRecord
from healer.text import Said, joined, quoted, read_said, say


def rule_rows(book: RuleBook) -> list[Shown]:
    """In the order in which they are asked: policies as in their file, then the detection rules. `watches` is
    printed in mono; `mode_from` says whose word the mode is; `first_runs`: so many more runs wait for a
    person, as the rule or its playbook is new or changed."""
    detection = {rule.name: rule for rule in book.rules.detection}
    forecasts = {forecast.rule: forecast for forecast in book.rules.forecasts}
    return [_row(rule, detection.get(rule.name), forecasts.get(rule.name), book) for rule in book.rules.rules]


def _row(rule: Rule, measured: DetectionRule | None, follows: ForecastRule | None, book: RuleBook) -> Shown:
    record = book.records.get(rule.name, RuleRecord())
    mode, mode_from = _mode(rule, book, record)
    trial = open_trial(rule.name, rule.playbook, book.trials, book.rules)
    followed = follows or measured
    return Shown(
        rule=rule,
        record=record,
        mode=mode,
        mode_from=mode_from,
        first_runs=trial.left if trial is not None and mode is Mode.auto else 0,
        kind="forecast" if follows else "measured" if measured else "reported",
        scope=_scope(rule, followed),
        watches=_watches(rule, measured, follows),
        held_for=words.span(measured.for_s) if measured and measured.for_s else "",
        models=", ".join(measured.models) if measured else "",
        remedy=", ".join(remedy.value for remedy in rule.remedy),
        source=measured.source if measured else follows.source if follows else "",
        cases=book.cases.get(rule.name, 0),
        precision=_precision(record),
    )


def _precision(record: RuleRecord) -> str:
    """For a forecast by what happened then; otherwise by people's reviews."""
    if (score := record.forecasts) is not None:
        came = say("console.rules_came", hits=score.hits, hits2=score.hits + score.misses)
        return (
            say("console.rules_unforeseen", came=came, unforeseen=score.unforeseen)
            if score.unforeseen
            else came
        )
    reviewed = record.true_faults + record.false_alarms
    return say("console.rules_true", true_faults=record.true_faults, reviewed=reviewed) if reviewed else ""


def _watches(rule: Rule, measured: DetectionRule | None, follows: ForecastRule | None) -> str:
    if follows is not None:
        return follows.value or ", ".join(follows.counts)
    return measured.when if measured else ", ".join(rule.faults)


def _scope(rule: Rule, followed: DetectionRule | ForecastRule | None) -> str:
    if followed is None:
        return ", ".join(fault_class.value for fault_class in rule.classes)
    return "GPU" if followed.scope is Scope.gpu else followed.scope.value


def _mode(rule: Rule, book: RuleBook, record: RuleRecord) -> tuple[Mode, str]:
    if record.mode is not None:
        return record.mode, say("console.rules_set_by", mode_by=record.mode_by) if record.mode_by else say(
            "console.rules_set_while_running"
        )
    if rule.mode is not None and rule.mode is book.rules.mode_of(rule):
        return rule.mode, say("console.rules_by_file")
    return book.rules.mode_of(rule), say("console.rules_by_default")


def fitting(rows: Sequence[Shown], *, text: str, mode: str, kind: str, state: str) -> list[Shown]:
    """`state` is open (has open incidents) or fired (fired in 7 days); every word of `text` must be found."""
    wanted = text.lower().split()
    return [
        row
        for row in rows
        if (not mode or row.mode.value == mode)
        and (not kind or row.kind == kind)
        and (state != "open" or row.record.open)
        and (state != "fired" or row.record.fired)
        and all(word in _haystack(row) for word in wanted)
    ]


def _haystack(row: Shown) -> str:
    rule = row.rule
    parts = (
        rule.name,
        rule.title,
        rule.severity.value,
        row.watches,
        rule.playbook or "",
        row.scope,
        row.remedy,
    )
    return " ".join(parts).lower()


# --- a change that was tried: what it would make new, lost or other ---

Row = Mapping[str, Any]

_PLACE = ("node", "gpu", "link", "nic", "switch")

REHEARSAL_TONES = {
    RehearsalState.queued: "plain",
    RehearsalState.running: "ask",
    RehearsalState.done: "good",
    RehearsalState.failed: "bad",
    RehearsalState.cancelled: "plain",
}


def differences(result: Row, real: Mapping[str, bool | None]) -> dict[str, list[Shown]]:
    """By heading, those without a row left out."""
    incidents, actions = result["incidents"], result["actions"]
    found = {
        say("console.rules_incidents_new"): [_incident("new", row, real) for row in incidents["new"]],
        say("console.rules_incidents_lost"): [_incident("lost", row, real) for row in incidents["lost"]],
        say("console.rules_incidents_changed"): [_changed(row, real) for row in incidents["changed"]],
        say("console.rules_actions_new"): [_action("new", row, real) for row in actions["new"]],
        say("console.rules_actions_lost"): [_action("lost", row, real) for row in actions["lost"]],
        say("console.rules_actions_moved"): [_moved(row, real) for row in actions["moved"]],
        say("console.rules_held_otherwise"): [_held(row, real) for row in result["held"]],
    }
    return {title: rows for title, rows in found.items() if rows}


def incidents_in(result: Row) -> list[str]:
    """All ids that the page may link."""
    rows = [row for part in ("incidents", "actions") for rows in result[part].values() for row in rows]
    ids = (row.get("incident") or row.get("before_id") or row.get("id") for row in [*rows, *result["held"]])
    return sorted({name for name in ids if name})


def _incident(kind: str, row: Row, real: Mapping[str, bool | None], **more: Any) -> Shown:
    note = say("console.queue_part", merged_into=row["part_of"][:8]) if row.get("part_of") else ""
    fields = {"kind": kind, "rule": row["rule"], "what": _sentence(row["title"]), "note": note} | more
    root = row["root"]
    place = joined(
        (joined((quoted(name), str(root[name])), "space") for name in _PLACE if root.get(name) is not None),
        "comma",
    )
    at = datetime.fromisoformat(row["opened"])
    name = row.get("before_id") or row["id"]
    return Shown(
        **fields,
        where=place,
        node=root.get("node") or "",
        jobs=tuple(row["jobs_hit"]),
        at=at,
        **_review(name, real),
    )


def _changed(row: Row, real: Mapping[str, bool | None]) -> Shown:
    changes = (
        say("console.rules_changed", name=quoted(name), before=_value_words(before), now=_value_words(now))
        for name, (before, now) in row["changes"].items()
    )
    return _incident("changed", row, real, note=joined(changes, "semicolon"))


def _action(kind: str, row: Row, real: Mapping[str, bool | None], note: str = "") -> Shown:
    held = row.get("held")
    if held and not note:
        note = say(
            "console.rules_held_before" if kind == "new" else "console.rules_held_with_change",
            guard=held["guard"],
            why=_sentence(held["why"]),
        )
    return Shown(
        kind=kind,
        rule=row["rule"],
        what=quoted(row["action"]),
        where=say("console.runs_job", job=row["job"])
        if row["job"]
        else say("console.rules_node", node=row["node"])
        if row["node"]
        else "",
        node=row["node"] or "",
        jobs=(row["job"],) if row["job"] else (),
        at=datetime.fromisoformat(row["at"]),
        note=note,
        **_review(row["incident"], real),
    )


def _moved(row: Row, real: Mapping[str, bool | None]) -> Shown:
    seconds = row["later_s"]
    moved = say("console.rules_later" if seconds > 0 else "console.rules_earlier", seconds=abs(seconds))
    return _action("moved", row, real, moved)


def _held(row: Row, real: Mapping[str, bool | None]) -> Shown:
    before, now = row["before"], row["guard"]
    if before and now:
        return _action("held", row, real, words.labelled(f"{before['guard']} → {now}", _sentence(row["why"])))
    side = row if now else before
    named = {"guard": side["guard"], "why": _sentence(side["why"])}
    kept = say("console.rules_held_with_change" if now else "console.rules_held_before", **named)
    return _action("held", row, real, kept)


def _sentence(stored: Any) -> Said:
    """A sentence of a result, as read from the store."""
    return read_said(Said, stored)


def _review(incident: str | None, real: Mapping[str, bool | None]) -> dict[str, str]:
    """The incident, linked if it is a real one, and its outcome."""
    if not incident or incident not in real:
        return {"incident": "", "review": ""}
    judgements = {
        True: say("console.rules_true_fault"),
        False: say("console.rules_false_alarm"),
        None: say("console.reports_not_judged"),
    }
    return {"incident": incident, "review": judgements[real[incident]]}


def _value_words(value: Any) -> Said:
    if isinstance(value, dict):
        parts = (joined((quoted(name), quoted(str(part))), "space") for name, part in value.items())
        return joined(parts, "space") or say("console.none")
    if isinstance(value, list):
        return joined((quoted(str(part)) for part in value), "comma") or say("console.none")
    return _sentence(value) if isinstance(value, dict) else quoted(str(value))


def rehearsal_buttons(tried: Rehearsal, outcomes: Sequence[Outcomes], role: Role) -> tuple[Button, ...]:
    """Cancel while it is in progress; afterwards, for an admin, count what it opened as proof."""
    base = f"/api/v1/rehearsals/{tried.id}"
    if tried.state in ACTIVE_REHEARSALS and may_act(role):
        return (Button(**worded("stop_replay"), action=f"{base}/cancel"),)
    judged = [outcome for outcome in outcomes if outcome.right + outcome.wrong and not outcome.counted_by]
    if role is not Role.admin or not judged:
        return ()
    found = (
        say(
            "console.rules_true_faults_false_alarms",
            rule=outcome.rule,
            right=outcome.right,
            wrong=outcome.wrong,
        )
        for outcome in judged
    )
    words = worded("proof", words=joined(found, "semicolon"))
    body = {"rules": [outcome.rule for outcome in judged]}
    return (Button(**words, action=f"{base}/proof", body=body),)
