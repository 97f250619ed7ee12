"""The verdict on an incident: nodes, cause, how sure, in one sentence, and why. Pure.

It is reckoned from the incident and the rules alone, so that the same incident gives the same verdict
wherever it is read, and so that whether it changed can be seen from the incident before and after.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from healer.incidents.entries import ladder_for
from healer.incidents.repeats import REPEATS
from healer.incidents.senses import apart, spoken
from healer.incidents.sentence import begun, code_of, sentence_of
from healer.model import (
    CatalogueEntry,
    Cause,
    Evidence,
    FaultClass,
    Incident,
    IncidentVerdict,
    Retest,
    Ruleset,
    Sense,
    SetAside,
    VerdictAt,
)

#: Where an earlier version opened the incident, its findings' confidence is not known.
_UNTOLD = 0.8
#: A code that no catalogue explains, however often it is told.
_UNEXPLAINED_AT_MOST = 0.5
#: That a line is the program's doing is the vendor's rule of thumb: hardware may look the same once.
_APPLICATION_AT_MOST = 0.8
#: Only other systems' alerts tell of it: nobody here has seen what they were drawn from.
_ALERT_AT_MOST = 0.6
#: Lines and figures that are told in full, and how long each may be.
_LINES = 4
_LINE_LENGTH = 240


def verdict_of(incident: Incident, rules: Ruleset, model: str = "") -> IncidentVerdict:
    """`model`: the GPU model of the root's node, where it is known: its re-test may differ."""
    certainty = certainty_of(incident)
    return IncidentVerdict(
        nodes=dict(sorted(incident.nodes.items())),
        cause=incident.cause,
        certainty=certainty,
        sentence=sentence_of(incident, certainty),
        why=tuple(_why(incident, rules)),
        set_aside=set_aside_of(incident, rules),
        retest=_retest(incident, rules, model),
    )


def newest_verdict(kept: Sequence[VerdictAt], incident: Incident, rules: Ruleset) -> IncidentVerdict:
    """As it was kept last, with what was counted since; reckoned where an earlier version kept none."""
    if not kept:
        return verdict_of(incident, rules)
    return msgspec.structs.replace(kept[-1].verdict, set_aside=set_aside_of(incident, rules))


def said(incident: Incident) -> str:
    """The verdict's sentence alone: what a page or a ticket begins with."""
    return sentence_of(incident, certainty_of(incident))


#: All that a verdict is reckoned from, but for what is only counted and who told of it last.
_INPUTS = (
    "nodes", "cause", "rule", "fault", "fault_class", "title", "root", "remedy", "unusable", "confidence",
    "hit", "jobs_hit", "evidence", "state", "closed_why", "set_aside",
)  # fmt: skip


def news(
    before: Incident | None, after: Incident, rules: Ruleset, model_of: Callable[[str], str] = lambda _: ""
) -> IncidentVerdict | None:
    """The verdict, where it is worth a row of its own; a count that only grew is none.

    A storm changes counts alone, thousands of times: then nothing is reckoned. `model_of` gives the GPU model
    of a node, empty where it is not known.
    """
    if before is not None and not _may_differ(before, after):
        return None
    model = model_of(after.root.node) if after.root.node else ""
    verdict = verdict_of(after, rules, model)
    if before is None or _without_counts(verdict_of(before, rules, model)) != _without_counts(verdict):
        return verdict
    return None


def _may_differ(before: Incident, after: Incident) -> bool:
    if any(getattr(before, name) != getattr(after, name) for name in _INPUTS):
        return True
    return before.counted.keys() != after.counted.keys() or _senses(before) != _senses(after)


def _without_counts(verdict: IncidentVerdict) -> IncidentVerdict:
    aside = tuple(msgspec.structs.replace(one, count=1) for one in verdict.set_aside)
    return msgspec.structs.replace(verdict, set_aside=aside)


def certainty_of(incident: Incident) -> float:
    """0..1, two digits: the surest finding; each further sense that agrees halves the doubt.

    Surely unusable (law 2) is 1. What nobody explains, what other systems alone tell, and that a fault is the
    program's own are never sure.
    """
    if incident.unusable:
        return 1.0
    senses = _senses(incident)
    doubt = 1 - (_UNTOLD if incident.confidence is None else incident.confidence)
    sure = 1 - doubt * 0.5 ** max(0, len(senses) - 1)
    if incident.fault_class is FaultClass.unknown:
        sure = min(sure, _UNEXPLAINED_AT_MOST)
    if incident.fault_class is FaultClass.application or incident.cause is Cause.application:
        sure = min(sure, _APPLICATION_AT_MOST)
    if senses == (Sense.alert,):
        sure = min(sure, _ALERT_AT_MOST)
    return round(sure, 2)


def _senses(incident: Incident) -> tuple[Sense, ...]:
    """Those that ever told of it."""
    return apart({one.sense for one in (*incident.heard, *incident.evidence)})


# --- why ---------------------------------------------------------------------------------------------------


def _why(incident: Incident, rules: Ruleset) -> Iterator[str]:
    """Lines and figures, then who agrees, then what the catalogue and the rule say, each with its source."""
    senses = _senses(incident)
    yield from (_told(one) for one in _speaking(incident))
    if len(senses) > 1:
        agreed = spoken(senses)
        yield f"{agreed[:1].upper()}{agreed[1:]} agree"
    yield from _catalogue(incident, rules)
    yield from _rule(incident, rules)
    if incident.unusable and incident.is_open:
        yield "Surely unusable: it is no capacity any more, so the caps on slots do not bind (law 2)"


def _speaking(incident: Incident) -> list[Evidence]:
    """How it began, the first word of each sense, and the first that is fatal: never the newest, which would
    change with every line."""
    found: dict[tuple[Sense, bool, str], Evidence] = {}
    for one in incident.evidence:
        found.setdefault((one.sense, one.fatal, one.text), one)
    first = sorted(found.values(), key=lambda one: (one is not incident.evidence[0], not one.fatal))
    senses = {one.sense for one in first[:_LINES]}
    more = [one for one in first[_LINES:] if one.sense not in senses]
    return [*first[:_LINES], *more[:2]]


def _told(one: Evidence) -> str:
    text = one.line or one.text
    cut = text if len(text) <= _LINE_LENGTH else f"{text[: _LINE_LENGTH - 1]}…"
    where = "" if one.component.node and one.component.node in text else f" of {one.component}"
    return f"{_HEARD[one.sense]}{where}, {one.at:%H:%M:%S} UTC: {' '.join(cut.split())}"


_HEARD = {
    Sense.kernel: "Kernel line",
    Sense.metrics: "Metrics",
    Sense.step_times: "Step times",
    Sense.forest: "Model of its class",
    Sense.silence: "Silence",
    Sense.slurm: "Slurm's view",
    Sense.hook: "The node's own check",
    Sense.alert: "Alert of another system",
    Sense.history: "healer's own record",
}


def _entry(fault: str, rules: Ruleset) -> tuple[str, CatalogueEntry] | None:
    """The catalogue's row of a fault and the file that it stands in."""
    word, _, number = code_of(fault).partition(" ")
    rows = {"Xid": rules.xids, "SXid": rules.sxids}.get(word, {})
    entry = rows.get(int(number)) if number else None
    return (f"{word.lower()}.yaml", entry) if entry is not None else None


def _catalogue(incident: Incident, rules: Ruleset) -> Iterator[str]:
    if incident.fault.startswith("driver-asks"):
        ask = next((one for one in rules.driver_asks.values() if one.fault == incident.fault), None)
        if ask is not None:
            yield f"The driver's own word wins over every catalogue: {ask.text} (xid154.yaml, row {ask.code})"
        return
    found = _entry(incident.fault, rules)
    if found is None:
        return
    file, entry = found
    other = next((one for one in entry.by_model if one.text and one.text in incident.title), None)
    note = f" {entry.note.partition('. ')[0].rstrip('.')}." if entry.note else ""
    yield (
        f"{code_of(incident.fault)} ({entry.name}) is {entry.fault_class}: {entry.text}. "
        f"{entry.source}; {file}, row {entry.code}.{note}"
    )
    if other is not None:
        yield f"On this GPU model: {other.text} ({other.source}; {file}, row {entry.code})"
    elif entry.fault_class is not incident.fault_class:
        yield f"What this line itself says makes it {incident.fault_class}"


def _rule(incident: Incident, rules: Ruleset) -> Iterator[str]:
    rule = rules.by_name.get(incident.rule)
    if rule is None:
        return
    measured = next((one for one in rules.detection if one.name == rule.name), None)
    alert = next((one for one in rules.alerts if one.name == rule.name), None)
    source = measured.source if measured else alert.source if alert else "policies.yaml"
    when = f": {' '.join(measured.when.split())}" if measured else ""
    yield f"Rule {rule.name}, {rule.title}{when} ({source})"


# --- what was set aside, what decides ----------------------------------------------------------------------


def aside_words(one: SetAside) -> str:
    """`1,203 × Xid 45: teardown of job 4711 after Xid 95`"""
    times = f"{one.count:,} × " if one.count > 1 else ""
    return begun(f"{times}{one.what}: {one.why}")


def set_aside_of(incident: Incident, rules: Ruleset) -> tuple[SetAside, ...]:
    """What was noted as set aside, and what was only counted: 1,203 × Xid 45."""
    told = {one.what for one in incident.set_aside}
    counted = (_counted(fault, count, incident, rules) for fault, count in sorted(incident.counted.items()))
    return (*incident.set_aside, *(one for one in counted if one.what not in told))


def _counted(fault: str, count: int, incident: Incident, rules: Ruleset) -> SetAside:
    found = _entry(fault, rules)
    teardown = found is not None and found[1].teardown
    after = code_of(incident.fault) or incident.title.partition(": ")[0]
    jobs = ", ".join(incident.jobs_hit[:3])
    if teardown and jobs:
        why = f"teardown of job {jobs} after {after}"
    elif teardown:
        why = f"teardown after {after}"
    else:
        why = f"follows from {after}"
    return SetAside(at=incident.opened, what=code_of(fault) or fault, why=why, count=count)


def _retest(incident: Incident, rules: Ruleset, model: str) -> Retest | None:
    """What decides whether it is transient or permanent; None where nobody has written that down."""
    fault = incident.fault.removeprefix(REPEATS)
    ladder = ladder_for(rules, fault, incident.fault_class, model)
    return ladder.retest if ladder is not None else None
