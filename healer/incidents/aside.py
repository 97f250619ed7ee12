"""What was considered and did not carry, noted on the incident it stands beside."""

import msgspec

from healer.model import Incident, SetAside

#: What is told beyond these is not kept: a person reads the first few, and the evidence has the rest.
SET_ASIDE_KEPT = 20


def with_aside(incident: Incident, new: SetAside) -> Incident:
    """The incident with `new` noted; the same thing told again (by `what`) only counts.

    Told of several components it stands for none of them alone.
    """
    known = {one.what: one for one in incident.set_aside}
    before = known.get(new.what)
    if before is None:
        if len(known) >= SET_ASIDE_KEPT:
            return incident
        return msgspec.structs.replace(incident, set_aside=(*incident.set_aside, new))
    known[new.what] = msgspec.structs.replace(
        before,
        count=before.count + new.count,
        component=before.component if before.component == new.component else None,
    )
    return msgspec.structs.replace(incident, set_aside=tuple(known.values()))
