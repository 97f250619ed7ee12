"""Loads and checks `rules/kernel_lines.yaml` (lines of the kernel without a code) and `rules/alerts.yaml`
(what alerts of other systems mean). Format: docs/rules.md."""

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

import re2

from healer.model import AlertRule, FaultClass, KernelLine, LineBook, Rule
from healer.model.detection import ALERT_STAYS_MAX_H
from healer.model.faults import ALERT_FAULT
from healer.model.kernel_lines import GROUPS, begins_with_text, compile_pattern
from healer.rulebook.rule_checks import RULE_NAME, check_name, is_glob, policy_of
from healer.rulebook.source import Source, Where

#: What accuses no hardware: who names a process so that its line reads like one of these gains nothing.
_HARMLESS = frozenset({FaultClass.application, FaultClass.informational})
#: What a line may make of a fault: the names of other detectors are theirs.
_TAKEN = re.compile(r"xid-|sxid-|driver-asks|gpu-lost$|slurm-drain:|foreign-drain:|hook:|alert:")

#: Nothing that a kernel prints.
_NO_LINE = "~" * 40


def read_lines(source: Source) -> LineBook:
    """The entries in the order of the file. What is wrong goes to the source's problems."""
    found: dict[str, KernelLine] = {}
    for at, entry in source.entries("lines", KernelLine, "line"):
        check_name(at, entry.name)
        if not RULE_NAME.fullmatch(entry.fault) or _TAKEN.match(entry.fault):
            text = f"{entry.fault!r} has to be a name of its own: small letters, digits and dashes"
            at.wrong("fault", text)
        if entry.fault_class is FaultClass.unknown:
            at.wrong("fault_class", "a line that is named here is known")
        if _check_pattern(at, entry):
            found[entry.name] = entry
    return LineBook(tuple(found.values()))


def _check_pattern(at: Where, entry: KernelLine) -> bool:
    """Whether it can be used: it compiles, and begins with text where it accuses hardware."""
    pattern = entry.pattern

    def wrong(text: str, hint: str = "") -> bool:
        at.wrong("pattern", f"{text}", hint)
        return False

    if re.search(r"\(\?(?!:|P<)", pattern):
        return wrong("only (?:…) and (?P<name>…) are taken: no flags such as (?i), no look ahead or back")
    try:
        compiled = compile_pattern(pattern)
    except re2.error as error:
        return wrong(f"no regular expression: {_words_of(error)}")
    if unknown := sorted(set(compiled.groupindex) - GROUPS):
        return wrong(
            f"the group {unknown[0]} is none that healer knows", f"one of {' '.join(sorted(GROUPS))}"
        )
    if entry.fault_class not in _HARMLESS and not begins_with_text(pattern):
        # A process may have any name, and the kernel begins a line of its crash with it.
        return wrong("has to begin with fixed text: it has to fit the whole line from its first letter")
    if compiled.fullmatch(_NO_LINE):
        return wrong("has to hold fixed text: it fits any line")
    return True


def _words_of(error: Exception) -> str:
    """RE2 says it in bytes."""
    message = error.args[0] if error.args else ""
    return message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message)


def read_alerts(
    source: Source, policies: Sequence[Rule], check_playbook: Callable[[Where, str], None]
) -> tuple[AlertRule, ...]:
    """The entries in the order of the file. What is wrong goes to the source's problems."""
    found: dict[str, AlertRule] = {}
    for at, entry in source.entries("entries", AlertRule):
        check_name(at, entry.name, {*found, *(rule.name for rule in policies)})
        _check_globs(at, entry)
        if not 0 < entry.stays_h <= ALERT_STAYS_MAX_H:
            at.wrong("stays_h", f"has to be above 0, and at most {ALERT_STAYS_MAX_H:g}")
        if entry.playbook is not None:
            check_playbook(at, entry.playbook)
            if not entry.opens:
                at.wrong("playbook", "with `opens: false` it would never start")
            elif entry.fault_class not in (FaultClass.fatal, FaultClass.degraded):
                at.wrong("playbook", "only a fault_class of fatal or degraded may lead to one")
        found[entry.name] = entry
    return tuple(found.values())


def policy_of_alert(entry: AlertRule) -> Rule:
    """What is to be done when it fires."""
    return policy_of(entry, f"{ALERT_FAULT}{entry.name}")


def _check_globs(at: Where, entry: AlertRule) -> None:
    if not entry.alert:
        at.wrong("alert", "the list is empty")
    globs = [(("alert", number), glob) for number, glob in enumerate(entry.alert)]
    for path, glob in [*globs, *((("labels", name), glob) for name, glob in entry.labels.items())]:
        if not is_glob(glob):
            at.at(*path).problem(f"{path[0]}: {glob!r} is not a name or a glob")
    if any(fnmatchcase(ALERT_FAULT, glob) and not entry.labels for glob in entry.alert):
        text = "this takes every alert there is; an alert that no entry names is kept as evidence"
        at.wrong("alert", text, "name the alerts")
