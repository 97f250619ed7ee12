"""What comes again: a part that had it before climbs the ladder of remedies, or is a lemon."""

from collections.abc import Container, Sequence
from datetime import datetime
from hashlib import sha256

import msgspec

from healer.incidents.book import Book
from healer.incidents.correlate import take_finding
from healer.incidents.part_history import (
    label,
    ladder_for,
    model_on,
    part_of,
    rung_of,
)
from healer.model import (
    HARDWARE,
    REMEDY_LADDER,
    Cause,
    Evidence,
    FaultClass,
    Finding,
    Incident,
    Ladder,
    Remedy,
    Review,
    Ruleset,
    Sense,
    Severity,
)
from healer.model.faults import LEMON, once
from healer.observations import Picture

#: So many faults of any kind on one part make it a lemon too.
LEMON_OF_ANY = 3
#: A fault of a part that its node is on probation for.
_ONE_UP = {Severity.P3: Severity.P2, Severity.P2: Severity.P1}
#: What an incident is merged into may be merged itself.
_MERGED_MOST = 4
#: What a rule takes a cause for at first; a test decides.
_OPEN = frozenset({Cause.unclear, Cause.transient})


def place_and_climb(
    rules: Ruleset, picture: Picture, work: Book, known: Container[str], now: datetime
) -> None:
    """Notes where the walk's findings went. What is open anew on a part that had it before climbs the ladder
    or is a lemon. `known`: incidents of earlier walks."""
    placed = list(work.placed)

    def is_over(name: str) -> bool:
        one = work.by_id.get(name) or work.find(name)
        return one is not None and not one.is_open and one.merged_into is None

    for name, finding in placed:
        node = finding.component.node
        if node is not None:
            fault = once(finding.fault)
            picture.history.place(node, part_of(picture, finding.component), fault, name, is_over)
    for name in dict.fromkeys(name for name, _ in placed if name not in known):
        incident = work.by_id[name]
        if incident.is_open and incident.fault_class in HARDWARE and incident.root.node is not None:
            _climb(rules, picture, work, incident, now)


def _ladder_of(rules: Ruleset, picture: Picture, incident: Incident) -> Ladder | None:
    fault = once(incident.fault)
    model = model_on(rules, picture, incident.root.node) if incident.root.node else ""
    return ladder_for(rules, fault, incident.fault_class, model)


def _climb(rules: Ruleset, picture: Picture, work: Book, incident: Incident, now: datetime) -> None:
    ladder = _ladder_of(rules, picture, incident)
    if ladder is None:
        return
    before = _before(rules, picture, work, incident, ladder)
    alike = [one for one in before if ladder in _ladders(rules, picture, one)]
    on_probation = [one for one in before if _on_probation(one, incident)]
    if on_probation:
        work.put(_judged_strictly(incident, on_probation))
    again = [one for one in alike if one.closed and incident.opened - one.closed <= ladder.repeat]
    if again:
        work.put(_next_rung(rules, work.by_id[incident.id], again, ladder))
    before, alike = _failures(before), _failures(alike)
    if ladder.lemon and (len(alike) + 1 >= ladder.lemon or len(before) + 1 >= LEMON_OF_ANY):
        take_finding(work, _lemon(rules, incident, before, ladder, now))
        work.put(msgspec.structs.replace(work.by_id[incident.id], cause=Cause.permanent))


def _on_probation(before: Incident, incident: Incident) -> bool:
    return before.probation_until is not None and incident.opened < before.probation_until


def _judged_strictly(incident: Incident, before: Sequence[Incident]) -> Incident:
    """A relapse is one step more urgent: what was done did not last. P0 stays what healer cannot do, and what
    goes on at the node bounds it."""
    severity = _ONE_UP.get(incident.severity)
    if severity is None or incident.plan:
        return incident
    last = max(before, key=lambda one: (one.opened, one.id))
    text = f"A relapse, the node is on probation since {last.short_id}: {severity}, not {incident.severity}"
    changed = msgspec.structs.replace(incident, severity=severity)
    return _with(changed, _evidence(incident, "probation", text))


def _before(
    rules: Ruleset, picture: Picture, work: Book, incident: Incident, ladder: Ladder
) -> list[Incident]:
    """Incidents of the same part that have ended within the days of a lemon, the oldest first; not those that
    were no fault of it."""
    part, since = part_of(picture, incident.root), incident.opened - ladder.lemon_within
    had = picture.history.on(incident.root.node or "", part)
    names = dict.fromkeys(one.incident for _, one in had if one.incident and one.last_at >= since)
    found = {one.id: one for name in names if (one := _root_of(work, name)) is not None}
    ended = [
        one for one in found.values() if one.id != incident.id and not one.is_open and one.opened >= since
    ]
    ended = [one for one in ended if one.review is not Review.false_alarm and one.fault_class in HARDWARE]
    lemons = [one for one in ended if any(other.lemon for other in _ladders(rules, picture, one))]
    return sorted(lemons, key=lambda one: (one.opened, one.id))


def _ladders(rules: Ruleset, picture: Picture, incident: Incident) -> list[Ladder]:
    """Of all that was told of it: which line came first is chance."""
    model = model_on(rules, picture, incident.root.node or "")
    told = [(one.fault, one.fault_class) for _, one in picture.history.placed_in(incident.id)]
    told.append((once(incident.fault), incident.fault_class))
    found = (ladder_for(rules, fault, fault_class, model) for fault, fault_class in dict.fromkeys(told))
    return [one for one in found if one is not None]


def _root_of(work: Book, name: str) -> Incident | None:
    """The incident itself, or that which explains it."""
    for _ in range(_MERGED_MOST):
        one = work.by_id.get(name) or work.find(name)
        if one is None or one.merged_into is None:
            return one
        name = one.merged_into
    return None


def _failures(before: Sequence[Incident]) -> list[Incident]:
    """Without those that ended with our drain lifted and nothing done, as by a person's veto: what comes
    again then is the same failure still, and no second one."""
    return [one for one in before if one.tried is not Remedy.none or one.drained_at is None or _is_well(one)]


def _is_well(incident: Incident) -> bool:
    return incident.clear_since is not None or incident.probation_until is not None


def _next_rung(rules: Ruleset, incident: Incident, again: Sequence[Incident], ladder: Ladder) -> Incident:
    """One above the highest remedy that was carried out of late and did not last: the fault is permanent.
    What was only asked for, and held, vetoed or cancelled, was no attempt: it is asked for once more."""
    before = max(again, key=lambda one: (REMEDY_LADDER.index(one.tried), one.opened))
    wanted, tried = rung_of(incident.remedy), before.tried
    later = _span((incident.opened - (before.closed or before.updated)).total_seconds())
    what = f"{label(rules, once(incident.fault))} again, {later} after {before.short_id} ended"
    if tried is Remedy.none:
        asked = rung_of(before.remedy)
        if asked is Remedy.none:
            return incident
        text = f"{what}: {asked} is not known to have been done then, so no higher rung"
        return _with(incident, _evidence(incident, "again", text))
    above = (one for one in ladder.rungs if REMEDY_LADDER.index(one) > REMEDY_LADDER.index(tried))
    rung = max(next(above, ladder.rungs[-1]), wanted, key=REMEDY_LADDER.index)
    beside = tuple(one for one in incident.remedy if one not in REMEDY_LADDER)
    cause = Cause.permanent if incident.cause in _OPEN else incident.cause
    text = f"{what} ({tried}): the next rung is {rung}"
    changed = msgspec.structs.replace(incident, remedy=(rung, *beside), cause=cause)
    return _with(changed, _evidence(incident, "again", text))


def _with(incident: Incident, evidence: Evidence) -> Incident:
    count = incident.evidence_count + 1
    return msgspec.structs.replace(incident, evidence=(*incident.evidence, evidence), evidence_count=count)


def _lemon(
    rules: Ruleset, incident: Incident, before: Sequence[Incident], ladder: Ladder, now: datetime
) -> Finding:
    faults = [label(rules, once(one.fault)) for one in (*before, incident)]
    number = len(faults)
    text = f"A lemon: {number} faults of this part within {ladder.lemon_days:g} days ({', '.join(faults)})"
    return Finding(
        rule=LEMON,
        fault=LEMON,
        fault_class=FaultClass.degraded,
        component=incident.root,
        at=incident.evidence[0].at,
        arrived_at=now,
        text=text,
        title=f"A lemon: {number} faults within {ladder.lemon_days:g} days",
        confidence=1.0,
        evidence=(_evidence(incident, LEMON, text),),
    )


def _evidence(incident: Incident, what: str, text: str) -> Evidence:
    first = incident.evidence[0]
    digest = sha256(f"{what}|{incident.id}".encode()).hexdigest()
    return Evidence(
        digest=digest,
        at=first.at,
        component=incident.root,
        text=text,
        sense=Sense.history,
        arrived_at=first.arrived_at,
    )


def _span(seconds: float) -> str:
    if seconds < 3600:
        return f"{max(seconds, 0) / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
