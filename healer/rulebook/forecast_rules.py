"""Loads and checks `rules/forecasts.yaml`: parts that are likely to fail. Format: docs/detection.md."""

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

from healer.detection.language import parse
from healer.detection.language.expr import ExpressionError
from healer.model import (
    FORECAST_FAULT,
    MEASURED_SCOPES,
    OF_DEVICES,
    Cause,
    ForecastRule,
    GpuModel,
    Mode,
    Playbook,
    Remedy,
    Rule,
    Severity,
    Signal,
    SignalKind,
)
from healer.model.vocabulary import did_you_mean
from healer.rulebook.rule_checks import RULE_NAME, at_column, check_known_fault, check_runbook, policy_of
from healer.rulebook.source import Source, Where
from healer.text import say

#: Longest time ahead: only two weeks of history are kept.
_MOST_DAYS = 30
#: At most a ticket, a message, a test: everything else waits for the fault.
_REMEDIES = frozenset({Remedy.none, Remedy.diagnose, Remedy.ticket, Remedy.notify})
#: The drain of a forecast waits for one of these first.
_MOMENT = "job_end_or_checkpoint"


def read_forecasts(
    source: Source,
    signals: Mapping[str, Signal],
    models: Sequence[GpuModel],
    known_faults: Sequence[str],
    playbooks: Mapping[str, Playbook],
    check_playbook: Callable[[Where, str], None],
) -> tuple[ForecastRule, ...]:
    """The entries in the order of the file; `known` are faults. What is wrong goes to the source."""
    found: dict[str, ForecastRule] = {}
    specs = {name for model in models for name in model.values}
    for at, entry in source.entries(ForecastRule, unique=True):
        if not RULE_NAME.fullmatch(entry.rule):
            at.wrong("name", say("rulebook.name_characters_at_most", name=entry.name))
        check_runbook(at, entry.runbook)
        _check_what(at, entry, signals, specs)
        _check_figures(at, entry)
        _check_faults(at, entry.fails, known_faults)
        _check_act(at, entry, playbooks, check_playbook)
        names = [model.name for model in models]
        for glob in entry.models:
            if not any(fnmatchcase(name, glob) for name in names):
                at.wrong("models", say("rulebook.there_no_gpu_model", glob=glob))
        found[entry.name] = entry
    return tuple(found.values())


def policy_of_forecast(entry: ForecastRule) -> Rule:
    """Its policy: people are notified; anything else waits for their approval."""
    fields = {"name": entry.rule, "cause": Cause.unclear, "detection": True, "forecast": True}
    return policy_of(entry, entry.rule, **fields)


def _check_what(at: Where, entry: ForecastRule, signals: Mapping[str, Signal], specs: set[str]) -> None:
    if entry.scope not in MEASURED_SCOPES:
        words = ", ".join(MEASURED_SCOPES)
        at.wrong(
            "scope", say("rulebook.nothing_followed", scope=entry.scope), say("rulebook.one_of", words=words)
        )
        return
    if bool(entry.counts) is bool(entry.value):
        at.problem(say("rulebook.counts_counters_or_value"))
    for name in entry.counts:
        signal = signals.get(name)
        if signal is None:
            hint = did_you_mean(name, list(signals))
            at.wrong("counts", say("rulebook.there_no_signal", name=name), hint)
        elif signal.kind is not SignalKind.counter or signal.scope is not entry.scope:
            at.wrong("counts", say("rulebook.no_counter", name=name, scope=entry.scope))
    for field, text, read in (("value", entry.value, parse.number), ("only", entry.only, parse.condition)):
        if not text:
            continue
        try:
            expr = read(text, signals, entry.scope)
        except ExpressionError as error:
            at.at(field).problem(at_column(field, error), error.hint)
            continue
        for node in expr.walk():
            if node.op == "spec" and node.name not in specs:
                at.at(field).problem(say("rulebook.no_gpu_model_tells", field=field, name=node.name))


def _check_figures(at: Where, entry: ForecastRule) -> None:
    check = at.check
    if entry.falls:
        check("least", entry.least > entry.limit, say("rulebook.with_falls_lies_above"))
    else:
        check("least", entry.least < entry.limit, say("rulebook.lie_below_limit"))
    rises = entry.limit > 0 and entry.least > 0 and not entry.falls
    check("decades", rises or not entry.decades, say("rulebook.limit_least_have_above"))
    at.check_above_0("within_days", entry.within_days, _MOST_DAYS)
    check("severity", entry.severity >= Severity.P2, say("rulebook.p_or_p_nothing"))


def _check_faults(at: Where, faults: Sequence[str], known_faults: Sequence[str]) -> None:
    if not faults:
        at.wrong("fails", say("rulebook.list_empty_nothing_could"))
    for fault in faults:
        if fault.startswith(FORECAST_FAULT):
            at.wrong("fails", say("rulebook.forecast_itself", fault=fault))
        else:
            check_known_fault(at.at("fails"), fault, known_faults)


def _check_act(
    at: Where,
    entry: ForecastRule,
    playbooks: Mapping[str, Playbook],
    check_playbook: Callable[[Where, str], None],
) -> None:
    if entry.mode is Mode.auto:
        at.wrong("mode", say("rulebook.nothing_failed_yet_so"))
    if wrong := [remedy for remedy in entry.remedy if remedy not in _REMEDIES]:
        at.wrong("remedy", say("rulebook.for_what_failed", wrong=wrong[0]))
    if entry.playbook is None:
        return
    check_playbook(at, entry.playbook)
    if entry.scope in OF_DEVICES:
        at.wrong("playbook", say("rulebook.device_no_node_people_are"))
    playbook = playbooks.get(entry.playbook)
    if playbook is not None and not any(step.wait == _MOMENT for step in playbook.steps[:1]):
        at.wrong("playbook", say("rulebook.begin_by_waiting_for", playbook=entry.playbook, moment=_MOMENT))
