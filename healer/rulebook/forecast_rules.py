"""Loads and checks `rules/forecasts.yaml`: parts that are likely to fail. Format: docs/forecasts.md."""

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

from healer.detection.language import parse
from healer.detection.language.expr import ExpressionError
from healer.model import (
    FORECAST_FAULT,
    OF_DEVICES,
    Cause,
    ForecastRule,
    GpuModel,
    Mode,
    Playbook,
    Remedy,
    Rule,
    Scope,
    Severity,
    Signal,
    SignalKind,
)
from healer.model.vocabulary import did_you_mean
from healer.rulebook.rule_checks import RULE_NAME, check_known_fault, policy_of
from healer.rulebook.source import Source, Where

#: What has a series: parts that stay.
SCOPES = (Scope.gpu, Scope.node, Scope.link, Scope.device, Scope.device_part)
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
    for at, entry in source.entries("forecasts", ForecastRule, "forecast"):
        if not RULE_NAME.fullmatch(entry.rule):
            at.wrong("name", f"{entry.name!r} has to be small letters, digits and dashes, 31 at most")
        _check_what(at, entry, signals, specs)
        _check_figures(at, entry)
        _check_faults(at, entry.fails, known_faults)
        _check_act(at, entry, playbooks, check_playbook)
        names = [model.name for model in models]
        for glob in entry.models:
            if not any(fnmatchcase(name, glob) for name in names):
                at.wrong("models", f"there is no GPU model {glob}")
        found[entry.name] = entry
    return tuple(found.values())


def policy_of_forecast(entry: ForecastRule) -> Rule:
    """Its policy: people are notified; anything else waits for their approval."""
    fields = {"name": entry.rule, "cause": Cause.unclear, "detection": True, "forecast": True}
    return policy_of(entry, entry.rule, **fields)


def _check_what(at: Where, entry: ForecastRule, signals: Mapping[str, Signal], specs: set[str]) -> None:
    if entry.scope not in SCOPES:
        words = " ".join(SCOPES)
        at.wrong("scope", f"nothing is followed of a {entry.scope}", f"one of {words}")
        return
    if bool(entry.counts) is bool(entry.value):
        at.problem("counts (counters) or value (an expression): one of the two")
    for name in entry.counts:
        signal = signals.get(name)
        if signal is None:
            at.wrong("counts", f"there is no signal {name}", did_you_mean(name, list(signals)))
        elif signal.kind is not SignalKind.counter or signal.scope is not entry.scope:
            at.wrong("counts", f"{name} is no counter of a {entry.scope}")
    for field, text, read in (
        ("value", entry.value, parse.number),
        ("only", entry.only, parse.condition),
    ):
        if not text:
            continue
        try:
            expr = read(text, signals, entry.scope)
        except ExpressionError as error:
            at.at(field).problem(f"{field}: {error}")
            continue
        for node in expr.walk():
            if node.op == "spec" and node.name not in specs:
                at.at(field).problem(f"{field}: no GPU model tells {node.name}")


def _check_figures(at: Where, entry: ForecastRule) -> None:
    check = at.check
    if entry.falls:
        check("least", entry.least > entry.limit, "with falls it lies above limit")
    else:
        check("least", entry.least < entry.limit, "has to lie below limit")
    rises = entry.limit > 0 and entry.least > 0 and not entry.falls
    check("decades", rises or not entry.decades, "limit and least have to be above 0, and it has to rise")
    check("within_days", 0 < entry.within_days <= _MOST_DAYS, f"above 0, and at most {_MOST_DAYS}")
    check("severity", entry.severity >= Severity.P2, "P2 or P3: nothing has failed yet")


def _check_faults(at: Where, faults: Sequence[str], known_faults: Sequence[str]) -> None:
    if not faults:
        at.wrong("fails", "the list is empty: nothing could prove it right")
    for fault in faults:
        if fault.startswith(FORECAST_FAULT):
            at.wrong("fails", f"{fault} is a forecast itself")
        else:
            check_known_fault(at.at("fails"), fault, known_faults)


def _check_act(
    at: Where,
    entry: ForecastRule,
    playbooks: Mapping[str, Playbook],
    check_playbook: Callable[[Where, str], None],
) -> None:
    if entry.mode is Mode.auto:
        at.wrong("mode", "nothing has failed yet, so a person approves what is done: at most approve")
    if wrong := [remedy for remedy in entry.remedy if remedy not in _REMEDIES]:
        at.wrong("remedy", f"{wrong[0]} is for what has failed")
    if entry.playbook is None:
        return
    check_playbook(at, entry.playbook)
    if entry.scope in OF_DEVICES:
        at.wrong("playbook", "a device is no node: people are told")
    playbook = playbooks.get(entry.playbook)
    if playbook is not None and not any(step.wait == _MOMENT for step in playbook.steps[:1]):
        at.wrong("playbook", f"{entry.playbook} has to begin by waiting for the end of the jobs ({_MOMENT})")
