"""Faults that come back: a part that fails again climbs the ladder of remedies, is judged more strictly on
probation, or becomes a lemon; and harmless signs add up at a place.
"""

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from datetime import datetime, timedelta
from hashlib import sha256

import msgspec

from healer.incidents.book import Book
from healer.incidents.context import Context
from healer.incidents.correlate import take_finding
from healer.incidents.part_history import fault_label, history_finding, ladder_for, model_on, part_of, rung_of
from healer.incidents.shared import Places
from healer.model import (
    HARDWARE,
    REMEDY_LADDER,
    Cause,
    Component,
    ContextKind,
    Evidence,
    FaultBurst,
    FaultClass,
    Finding,
    Incident,
    Ladder,
    PlaceKind,
    Remedy,
    Repeat,
    Review,
    Ruleset,
    Sense,
    Severity,
    by_opening,
)
from healer.model.faults import LEMON, fits, once
from healer.observations import Picture
from healer.text import Said, joined, say

#: This many faults of any kind also make a part a lemon.
LEMON_OF_ANY = 3
#: The severity of a fault on a node on probation.
_ONE_UP = {Severity.P3: Severity.P2, Severity.P2: Severity.P1}
#: Causes that a rule only assumes, until a test decides.
_OPEN = frozenset({Cause.unclear, Cause.transient})
#: The most bursts of one part that count for its place.
OF_ONE_PART = 2
#: Activity on a node that makes its links drop.
_DISTURBS = frozenset(
    {ContextKind.maintenance, ContextKind.rebooting, ContextKind.power_saving, ContextKind.drained}
)
#: Links drop and come back during the first minutes of a boot.
AFTER_BOOT = timedelta(minutes=10)


def place_and_climb(
    rules: Ruleset, picture: Picture, work: Book, earlier: Container[str], now: datetime
) -> None:
    """Records the incident of each finding of the walk. A fault that recurs on a part climbs the ladder or
    makes it a lemon. `earlier`: ids of incidents of earlier walks."""
    placed = list(work.placed)

    def is_over(name: str) -> bool:
        incident = work.by_id.get(name) or work.find(name)
        return incident is not None and not incident.is_open and incident.merged_into is None

    for name, finding in placed:
        node = finding.component.node
        if node is not None:
            fault = once(finding.fault)
            picture.history.place(node, part_of(picture, finding.component), fault, name, is_over)
    for name in dict.fromkeys(name for name, _ in placed if name not in earlier):
        incident = work.by_id[name]
        if incident.is_open and incident.fault_class in HARDWARE and incident.root.node is not None:
            _climb_ladder(rules, picture, work, incident, now)


def _ladder_of(rules: Ruleset, picture: Picture, incident: Incident) -> Ladder | None:
    fault = once(incident.fault)
    model = model_on(rules, picture, incident.root.node) if incident.root.node else ""
    return ladder_for(rules, fault, incident.fault_class, model)


def _climb_ladder(rules: Ruleset, picture: Picture, work: Book, incident: Incident, now: datetime) -> None:
    ladder = _ladder_of(rules, picture, incident)
    if ladder is None:
        return
    before = _earlier_incidents(rules, picture, work, incident, ladder)
    alike = [other for other in before if ladder in _ladders(rules, picture, other)]
    on_probation = [other for other in before if _on_probation(other, incident)]
    if on_probation:
        work.put(_raise_on_probation(incident, on_probation))
    again = [
        earlier for earlier in alike if earlier.closed and incident.opened - earlier.closed <= ladder.repeat
    ]
    if again:
        work.put(_next_rung(rules, work.by_id[incident.id], again, ladder))
    before, alike = _failures(before), _failures(alike)
    if ladder.lemon and (len(alike) + 1 >= ladder.lemon or len(before) + 1 >= LEMON_OF_ANY):
        take_finding(work, _lemon(rules, incident, before, ladder, now))
        if (still := work.by_id.get(incident.id)) is not None:  # the lemon may have absorbed it
            work.put(msgspec.structs.replace(still, cause=Cause.permanent))


def _on_probation(before: Incident, incident: Incident) -> bool:
    return before.probation_until is not None and incident.opened < before.probation_until


def _raise_on_probation(incident: Incident, before: Sequence[Incident]) -> Incident:
    """A relapse is one severity higher, because the repair did not last. Never raises to P0, and leaves
    incidents under planned work alone."""
    severity = _ONE_UP.get(incident.severity)
    if severity is None or incident.plan:
        return incident
    last = max(before, key=by_opening)
    grade = {"severity": str(severity), "before": str(incident.severity)}
    text = say("incidents.relapse", incident=last.short_id, **grade)
    changed = msgspec.structs.replace(incident, severity=severity)
    return _add_evidence(changed, _evidence(incident, "probation", text))


def _earlier_incidents(
    rules: Ruleset, picture: Picture, work: Book, incident: Incident, ladder: Ladder
) -> list[Incident]:
    """Ended incidents of the same part within a lemon's days, oldest first; without false alarms."""
    part, since = part_of(picture, incident.root), incident.opened - ladder.lemon_within
    had = picture.history.of_part(incident.root.node or "", part)
    names = {burst.incident: burst.node for _, burst in had if burst.incident and burst.last_at >= since}
    roots = ((work.root_of(name), node) for name, node in names.items())
    # A fault that a place, a wave or another node explains is no failure of the part.
    found = {root.id: root for root, node in roots if root is not None and root.root.node == node}
    ended = [
        earlier
        for earlier in found.values()
        if earlier.id != incident.id and not earlier.is_open and earlier.opened >= since
    ]
    ended = [
        other for other in ended if other.review is not Review.false_alarm and other.fault_class in HARDWARE
    ]
    lemons = [member for member in ended if any(other.lemon for other in _ladders(rules, picture, member))]
    return sorted(lemons, key=by_opening)


def _ladders(rules: Ruleset, picture: Picture, incident: Incident) -> list[Ladder]:
    """The ladders of all faults of the incident: which line came first is chance."""
    model = model_on(rules, picture, incident.root.node or "")
    faults = [(burst.fault, burst.fault_class) for _, burst in picture.history.placed_in(incident.id)]
    faults.append((once(incident.fault), incident.fault_class))
    found = (ladder_for(rules, fault, fault_class, model) for fault, fault_class in dict.fromkeys(faults))
    return [ladder for ladder in found if ladder is not None]


def _failures(before: Sequence[Incident]) -> list[Incident]:
    """The incidents, without those whose drain was lifted before any remedy, such as by a veto: a failure
    afterwards is still the same one."""
    return [
        incident
        for incident in before
        if incident.tried is not Remedy.none or incident.drained_at is None or _is_well(incident)
    ]


def _is_well(incident: Incident) -> bool:
    return incident.clear_since is not None or incident.probation_until is not None


def _next_rung(rules: Ruleset, incident: Incident, again: Sequence[Incident], ladder: Ladder) -> Incident:
    """The incident with a remedy one above the highest that was recently carried out and did not last: the
    fault is permanent. A remedy that was only requested, but held, vetoed or cancelled, is requested
    again."""
    before = max(again, key=lambda incident: (REMEDY_LADDER.index(incident.tried), incident.opened))
    wanted, tried = rung_of(incident.remedy), before.tried
    later = _span((incident.opened - (before.closed or before.updated)).total_seconds())
    fault = fault_label(rules, once(incident.fault))
    what = say("incidents.again", fault=fault, later=later, before=before.short_id)
    if tried is Remedy.none:
        asked = rung_of(before.remedy)
        if asked is Remedy.none:
            return incident
        text = say("incidents.again_no_higher", what=what, asked=say(f"incidents.remedy_{asked}"))
        return _add_evidence(incident, _evidence(incident, "again", text))
    above = (rung for rung in ladder.rungs if REMEDY_LADDER.index(rung) > REMEDY_LADDER.index(tried))
    rung = max(next(above, ladder.rungs[-1]), wanted, key=REMEDY_LADDER.index)
    others = tuple(remedy for remedy in incident.remedy if remedy is not wanted)
    cause = Cause.permanent if incident.cause in _OPEN else incident.cause
    done, next_ = say(f"incidents.remedy_{tried}"), say(f"incidents.remedy_{rung}")
    text = say("incidents.again_next", what=what, tried=done, rung=next_)
    changed = msgspec.structs.replace(incident, remedy=(rung, *others), cause=cause)
    return _add_evidence(changed, _evidence(incident, "again", text))


def _add_evidence(incident: Incident, evidence: Evidence) -> Incident:
    count = incident.evidence_count + 1
    return msgspec.structs.replace(incident, evidence=(*incident.evidence, evidence), evidence_count=count)


def _lemon(
    rules: Ruleset, incident: Incident, before: Sequence[Incident], ladder: Ladder, now: datetime
) -> Finding:
    faults = [fault_label(rules, once(other.fault)) for other in (*before, incident)]
    number = len(faults)
    days, named = ladder.lemon_days, joined(faults, "comma")
    text = say("incidents.lemon_faults", n=number, days=days, faults=named)
    return Finding(
        rule=LEMON,
        fault=LEMON,
        fault_class=FaultClass.degraded,
        component=incident.root,
        at=incident.evidence[0].at,
        arrived_at=now,
        text=text,
        title=say("incidents.lemon", n=number, days=days),
        confidence=1.0,
        evidence=(_evidence(incident, LEMON, text),),
    )


def _evidence(incident: Incident, what: str, text: Said) -> Evidence:
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


def _span(seconds: float) -> Said:
    if seconds < 3600:
        return say("words.minutes", n=f"{max(seconds, 0) / 60:.0f}")
    return say("words.hours", n=f"{seconds / 3600:.1f}")


# --- harmless signs of a place: each part has one or two, and the nodes under one switch have many. Signs
# caused by a boot or planned work on a node do not count for a place. Nor does a part with most of the signs:
# that is a fault of the part. Configured in `rules/escalations.yaml`, by entries whose `same` is a place.


def find_place_repeats(rules: Ruleset, context: Context) -> list[Finding]:
    """The places at which a burst recorded in this walk reached a rate's limit."""
    found: dict[tuple[str, str], Finding | None] = {}
    places = Places(rules, context.picture)
    for key, burst in context.picture.history.touched:
        for entry in rules.escalations.repeats:
            if not fits(burst.fault, entry.faults) or (kind := entry.place) is None:
                continue
            place = _place_of(places, kind, key[0], burst)
            if place and (entry.name, place) not in found:
                found[entry.name, place] = _place_repeat(rules, context, places, entry, place, burst)
    return [finding for finding in found.values() if finding is not None]


def _place_of(places: Places, kind: PlaceKind, part: str, burst: FaultBurst) -> str:
    """The place; a card may have a leaf switch of its own."""
    return places.of(Component(cluster=burst.cluster, node=burst.node, nic=part or None), kind)


def _place_repeat(
    rules: Ruleset, context: Context, places: Places, entry: Repeat, place: str, burst: FaultBurst
) -> Finding | None:
    assert entry.place is not None
    longest = burst.last_at - max(rate.within for rate in entry.rates)
    counted = list(_counted_at(context, places, entry, place, longest))
    for rate in entry.rates:
        within = [other for other in counted if burst.last_at - rate.within <= other.last_at]
        nodes = sorted({other.node for other in within})
        if len(within) < rate.bursts or len(nodes) < entry.nodes:
            continue
        text = say(
            "incidents.repeat",
            fault=fault_label(rules, burst.fault),
            where=say(f"incidents.spot_{entry.place}", place=place),
            figures=joined(
                (say("incidents.times", n=len(within)), say("incidents.on_nodes", n=len(nodes))), "nothing"
            ),
            hours=rate.within_h,
        )
        root = places.root(entry.place, place)
        name = (str(root), burst.node, burst.fault, str(burst.began_at))
        found = history_finding(entry, root, burst, text, name=name, now=context.now)
        affected = tuple(Component(cluster=burst.cluster, node=node) for node in nodes)
        return msgspec.structs.replace(found, affected=affected)
    return None


def _counted_at(
    context: Context, places: Places, entry: Repeat, place: str, since: datetime
) -> Iterator[FaultBurst]:
    assert entry.place is not None
    history = context.picture.history
    for node in history.nodes():
        well_since = _undisturbed_since(context, node, since)
        of_part: Counter[str] = Counter()
        if well_since is None:
            continue
        for (part, fault), burst in history.on(node):
            alike = fits(fault, entry.faults) and burst.last_at >= since and burst.began_at > well_since
            if not alike or of_part[part] >= OF_ONE_PART or history.is_explained(burst):
                continue
            if _place_of(places, entry.place, part, burst) == place:
                of_part[part] += 1
                yield burst


def _undisturbed_since(context: Context, node: str, since: datetime) -> datetime | None:
    """When a boot, work or a repair of the node was over; None while any of them is going on."""
    if any(activity.kind in _DISTURBS for activity in context.of(node)):
        return None
    picture, state = context.picture, context.picture.node(node)
    booted = state.booted_at + AFTER_BOOT if state.booted_at is not None else None
    moments = (since, state.cleared_at, picture.changes.work_ended.get(node), booted)
    return max(at for at in moments if at is not None)
