"""What ends an incident by itself: the driver takes its word back, a new boot, another part in its place.

Where nothing was done yet it closes; where a run is at work its tests decide, and the incident only notes it.
"""

from datetime import datetime

import msgspec

from healer.incidents.aside import with_aside
from healer.incidents.lifecycle import is_measured
from healer.incidents.over import Over, over
from healer.incidents.remedies import rung_of
from healer.model import REMEDY_LADDER, Cause, Incident, IncidentState, Remedy, Ruleset, SetAside
from healer.observations import Picture


def heal_of(rules: Ruleset, picture: Picture, incident: Incident) -> Over | None:
    """Why all that was told of it is over, by what was told last; None: some of it still stands, for all that
    anybody knows."""
    bursts = picture.history.placed_in(incident.id)
    if not incident.is_open or not bursts or is_measured(rules, incident):
        return None
    found = [over(rules, picture, part, burst) for part, burst in bursts]
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return None
    return msgspec.structs.replace(known[-1], proven=all(one.proven for one in known))


def nothing_done(incident: Incident) -> bool:
    """Then nothing is left to be proven or given back."""
    return incident.state is IncidentState.open and incident.drained_at is None


def ended_by(incident: Incident, heal: Over, now: datetime) -> Incident:
    cause = incident.cause
    if heal.replaced:
        cause = Cause.permanent
    elif cause is Cause.unclear:
        cause = Cause.transient
    return msgspec.structs.replace(
        incident,
        state=IncidentState.resolved,
        cause=cause,
        closed=now,
        updated=now,
        closed_why=heal.why,
        clear_since=now,
        tried=_tried(incident, heal),
        held_by=None,
        run=None,
        p0_since=None,
        known_bad_in_service=False,
    )


def _tried(incident: Incident, heal: Over) -> Remedy:
    """Of what was asked for, as much as must have been done. A boot that nobody asked for is none of it."""
    asked = min(rung_of(incident.remedy), heal.done, key=REMEDY_LADDER.index)
    return max(incident.tried, asked, key=REMEDY_LADDER.index)


def noted(incident: Incident, heal: Over, now: datetime) -> Incident:
    """Once each: a person reads why it is still open."""
    if any(one.what == heal.why for one in incident.set_aside):
        return incident
    if not heal.proven:
        why = "the fault may have outlived that: a test has to tell"
    else:
        why = "healer is at work on it: its tests decide"
    return with_aside(incident, SetAside(at=now, what=heal.why, why=why, component=incident.root))
