"""Loads `rules/detection/*.yaml` and `rules/gpu_models.yaml`, and checks every expression.

Format: docs/rules.md. No numpy: expressions are compiled only in the detector.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from operator import eq, ge, gt, le, lt, ne

import msgspec

from healer.detection.language import parse, units
from healer.detection.language.expr import Expr, ExpressionError
from healer.model import (
    OF_DEVICES,
    Cause,
    DetectionRule,
    FaultClass,
    GpuModel,
    Mode,
    Remedy,
    Rule,
    Scope,
    Severity,
    Signal,
    SignalKind,
)
from healer.model.vocabulary import did_you_mean
from healer.rulebook.rule_checks import at_column, check_name, check_policy, policy_of
from healer.rulebook.source import Source, Where
from healer.text import said_by, say

_SPEC_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
#: A rule that acts must not depend on one sample.
LEAST_FOR_S = 30.0
#: Nothing is held for longer: after a restart only the windows are known.
LONGEST_FOR_S = 3600.0


# Wide: the fields of one entry of `rules/detection/*.yaml`.
class Entry(msgspec.Struct, frozen=True, kw_only=True, rename={"for_": "for"}):
    """One entry of a file: as `DetectionRule`, with `for` as a duration."""

    name: str
    title: str
    when: str
    scope: Scope
    severity: Severity
    fault_class: FaultClass
    cause: Cause
    source: str
    for_: str = ""
    signal: str = ""
    threshold: str | int | float = ""
    evidence: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    remedy: tuple[Remedy, ...] = ()
    playbook: str | None = None
    mode: Mode | None = None
    runbook: str = ""
    unusable: bool = False
    names_xid: bool = False
    sign: bool = False


@dataclass(frozen=True, slots=True)
class PlacedRule:
    """A rule, and its place in the files. `of_silence`: it holds while no signal is known."""

    rule: DetectionRule
    at: Where
    of_silence: bool = False


def read_models(source: Source) -> tuple[GpuModel, ...]:
    """GPU models in the order of the file: the first that fits a name is taken."""
    found: dict[str, GpuModel] = {}
    for at, model in source.entries(GpuModel, unique=True):
        at.check("match", bool(model.match), say("rulebook.list_empty"))
        for name in model.values:
            if not _SPEC_NAME.fullmatch(name):
                text = say("rulebook.values_small_letters_digits", name=name)
                at.at("values", name).problem(text)
        found[model.name] = model
    return tuple(found.values())


def read_rules(
    sources: Sequence[Source],
    signals: Mapping[str, Signal],
    models: Sequence[GpuModel],
    policies: Sequence[Rule],
    check_playbook: Callable[[Where, str], None],
) -> list[PlacedRule]:
    """The rules of all files, by file and order. What is wrong goes to the sources' problems."""
    found: dict[str, PlacedRule] = {}
    specs = {name for model in models for name in model.values}
    for source in sources:
        for at, entry in source.entries(Entry):
            before = len(source.problems)
            _check_name(at, entry, found, policies)
            check_policy(at, entry)
            for_s = _for_s(at, entry.for_)
            when = _check_expressions(at, entry, signals, specs)
            expanded = _models(at, entry.models, models)
            if entry.playbook is not None:
                check_playbook(at, entry.playbook)
                if entry.scope in OF_DEVICES:
                    at.wrong("playbook", say("rulebook.device_no_node_people"))
                _check_patience(at, for_s, when)
            if len(source.problems) == before:
                fields = {name: getattr(entry, name) for name in entry.__struct_fields__ if name != "for_"}
                fields |= {"for_s": for_s, "models": expanded, "threshold": str(entry.threshold)}
                rule = DetectionRule(**fields)
                of_silence = when is not None and _of_silence(when) is True
                found[entry.name] = PlacedRule(rule, at, of_silence)
    return list(found.values())


def as_policy(rule: DetectionRule) -> Rule:
    """The policy for when it fires."""
    return policy_of(rule, rule.name, detection=True, sign=rule.sign)


def _check_name(at: Where, entry: Entry, found: Collection[str], policies: Sequence[Rule]) -> None:
    check_name(at, entry.name)
    if entry.name in found:
        at.at("name").problem(say("rulebook.rule_in_rules", name=entry.name))
    for policy in policies:
        if policy.name == entry.name:
            at.at("name").problem(say("rulebook.rule_in_policies", name=entry.name))
        elif any(fnmatchcase(entry.name, fault) for fault in policy.faults):
            text = say("rulebook.matched_by_rule", detection=entry.name, rule=policy.name)
            at.at("name").problem(text, say("rulebook.give_another_name"))


def _for_s(at: Where, text: str) -> float:
    if not text:
        return 0.0
    try:
        seconds = parse.duration_s(text)
    except ValueError as error:
        at.wrong("for", said_by(error))
        return 0.0
    if seconds > LONGEST_FOR_S:
        at.wrong("for", say("rulebook.longer_than_h", text=text))
    return seconds


def _check_patience(at: Where, for_s: float, when: Expr | None) -> None:
    if when is None or for_s >= LEAST_FOR_S or any(node.seconds >= LEAST_FOR_S for node in when.walk()):
        return
    text = say("rulebook.rule_with_playbook_hold", least_for_s=LEAST_FOR_S)
    at.wrong("for", text, say("rulebook.one_sample_alone_must"))


_COMPARED = {"<": lt, "<=": le, ">": gt, ">=": ge, "==": eq, "!=": ne}


def _of_silence(node: Expr) -> bool | float | None:
    """The value while no part has ever sent a sample; None: unknown."""
    if node.op in ("number", "age"):
        return math.inf if node.op == "age" else node.number
    values = [_of_silence(arg) for arg in node.args]
    if node.op == "known":
        return False
    if node.op in ("and", "or"):
        deciding = node.op == "or"
        return deciding if deciding in values else None if None in values else not deciding
    if node.op == "first":
        return next((value for value in values if value is not None), None)
    if not values or None in values:
        return None
    if node.op == "not":
        return not values[0]
    if node.op in _COMPARED:
        return bool(_COMPARED[node.op](*values))
    if node.op in ("any_of", "down"):
        return values[0]
    if node.op in ("share", "share_of"):
        return float(values[0] or 0)
    if node.op in ("count_of", "count_over"):
        return math.inf if values[0] else 0.0
    return None


def _models(at: Where, globs: Sequence[str], models: Sequence[GpuModel]) -> tuple[str, ...]:
    """Globs over the names in gpu_models.yaml -> globs over the names that Slurm and exporters use."""
    expanded: dict[str, None] = {}
    for number, glob in enumerate(globs):
        fits = [model for model in models if fnmatchcase(model.name.lower(), glob.lower())]
        if not fits:
            names = [model.name for model in models]
            hint = did_you_mean(glob, names) or say("rulebook.one_of", words=", ".join(names))
            at.at("models", number).problem(say("rulebook.models_no_gpu_model", glob=glob), hint)
        expanded |= dict.fromkeys(pattern for model in fits for pattern in model.match)
    return tuple(expanded)


def _check_expressions(
    at: Where, entry: Entry, signals: Mapping[str, Signal], specs: Collection[str]
) -> Expr | None:
    """The condition, None if it is wrong."""

    def read(field: str, text: str, reader: Callable[..., Expr]) -> Expr | None:
        try:
            return reader(text, signals, entry.scope, specs)
        except ExpressionError as error:
            at.at(field).problem(at_column(field, error), error.hint)
            return None

    when = read("when", entry.when, parse.condition)
    threshold = None
    if entry.threshold != "":
        threshold = read("threshold", str(entry.threshold), parse.number)
    for number, name in enumerate((entry.signal, *entry.evidence)):
        if name and name not in signals:
            field, *which = ("evidence", number - 1) if number else ("signal",)
            text = say("rulebook.field", field=field, text=say("rulebook.there_no_signal", name=name))
            at.at(field, *which).problem(text, did_you_mean(name, signals))
    shown = signals.get(entry.signal)
    if threshold is None or when is None:
        return when
    if not entry.signal:
        at.wrong("threshold", say("rulebook.drawn_beside_signal"), say("rulebook.name_signal"))
    elif shown is not None and not _drawable(threshold, shown):
        at.wrong(
            "threshold", say("rulebook.in_in", unit=str(threshold.unit), name=shown.name, unit2=shown.unit)
        )
    return when


def _drawable(threshold: Expr, signal: Signal) -> bool:
    """Counters are drawn as a rate per second, or as growth if the threshold is in their own unit."""
    unit = units.UNIT_WORDS.get(signal.unit, units.PLAIN)
    if units.fits(threshold.unit, unit):
        return True
    return signal.kind is SignalKind.counter and units.fits(threshold.unit, unit / units.SECONDS)
