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
from healer.rulebook.rule_checks import RULE_NAME, check_globs, check_name, check_policy, is_glob, policy_of
from healer.rulebook.source import Source, Where
from healer.text import say

#: Faults that accuse no hardware: naming a process so that its line reads like one of these gains nothing.
_HARMLESS = frozenset({FaultClass.application, FaultClass.informational})
#: Possible faults of a line: the names of other detectors are theirs.
_TAKEN = re.compile(r"xid-|sxid-|driver-asks|gpu-lost$|slurm-drain:|foreign-drain:|hook:|alert:")

#: Nothing that a kernel prints.
_NO_LINE = "~" * 40


def read_lines(source: Source) -> LineBook:
    """The entries in the order of the file. What is wrong goes to the source's problems."""
    found: dict[str, KernelLine] = {}
    for at, entry in source.entries(KernelLine, unique=True):
        check_name(at, entry.name)
        if not RULE_NAME.fullmatch(entry.fault) or _TAKEN.match(entry.fault):
            text = say("rulebook.name_its_own_small", fault=entry.fault)
            at.wrong("fault", text)
        if entry.fault_class is FaultClass.unknown:
            at.wrong("fault_class", say("rulebook.line_that_named_here"))
        if _check_pattern(at, entry):
            found[entry.name] = entry
    return LineBook(tuple(found.values()))


def _check_pattern(at: Where, entry: KernelLine) -> bool:
    """Whether it can be used: it compiles, and begins with text if it accuses hardware."""
    pattern = entry.pattern

    def wrong(text: str, hint: str = "") -> bool:
        at.wrong("pattern", text, hint)
        return False

    if re.search(r"\(\?(?!:|P<)", pattern):
        return wrong(say("rulebook.only_p_name_are"))
    try:
        compiled = compile_pattern(pattern)
    except re2.error as error:
        return wrong(say("rulebook.no_regular_expression", words_of=_words_of(error)))
    if unknown := sorted(set(compiled.groupindex) - GROUPS):
        return wrong(
            say("rulebook.strange_group", group=unknown[0]),
            say("rulebook.one_of", words=", ".join(sorted(GROUPS))),
        )
    if entry.fault_class not in _HARMLESS and not begins_with_text(pattern):
        # A process may have any name, and the kernel begins a line of its crash with it.
        return wrong(say("rulebook.begin_with_fixed_text"))
    if compiled.fullmatch(_NO_LINE):
        return wrong(say("rulebook.hold_fixed_text_fits"))
    return True


def _words_of(error: Exception) -> str:
    """The text of RE2's error, which is bytes."""
    message = error.args[0] if error.args else ""
    return message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message)


def read_alerts(
    source: Source, policies: Sequence[Rule], check_playbook: Callable[[Where, str], None]
) -> tuple[AlertRule, ...]:
    """The entries in the order of the file. What is wrong goes to the source's problems."""
    found: dict[str, AlertRule] = {}
    for at, entry in source.entries(AlertRule):
        check_name(at, entry.name, {*found, *(rule.name for rule in policies)})
        check_policy(at, entry)
        _check_globs(at, entry)
        at.check_above_0("stays_h", entry.stays_h, ALERT_STAYS_MAX_H)
        if entry.playbook is not None:
            check_playbook(at, entry.playbook)
            if not entry.opens:
                at.wrong("playbook", say("rulebook.with_opens_false_would"))
            elif entry.fault_class not in (FaultClass.fatal, FaultClass.degraded):
                at.wrong("playbook", say("rulebook.only_fault_class_fatal"))
        found[entry.name] = entry
    return tuple(found.values())


def policy_of_alert(entry: AlertRule) -> Rule:
    """What is to be done when it fires."""
    return policy_of(entry, f"{ALERT_FAULT}{entry.name}")


def _check_globs(at: Where, entry: AlertRule) -> None:
    if not entry.alert:
        at.wrong("alert", say("rulebook.list_empty"))
    check_globs(at, "alert", entry.alert)
    for name, glob in entry.labels.items():
        if not is_glob(glob):
            at.at("labels", name).problem(say("rulebook.not_name_or_glob", field="labels", glob=glob))
    if any(fnmatchcase(ALERT_FAULT, glob) and not entry.labels for glob in entry.alert):
        text = say("rulebook.this_takes_every_alert")
        at.wrong("alert", text, say("rulebook.name_alerts"))
