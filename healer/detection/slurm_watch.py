"""Watches over Slurm's own picture, and over drift: what should not last becomes an incident. They drain
nobody.

How long a condition has to stand, and how long it has to be gone before its incident ends, comes from
`rules/watches.yaml`.
"""

from datetime import datetime, timedelta
from hashlib import sha256
from itertools import chain

from healer.detection import drift
from healer.detection import slurm_conditions as conditions
from healer.detection.slurm_conditions import Condition
from healer.model import Component, Evidence, FaultClass, Finding, WatchSettings
from healer.observations import Picture, Standing

#: Slurm's picture is looked at when its nodes changed, and else this often.
LOOK = timedelta(seconds=5)
#: What still stands is told again: an incident that another one explained opens once that is over.
AGAIN = timedelta(minutes=1)

_OF_CONTROLLER = frozenset({conditions.BACKLOG, conditions.ACCOUNTING})
_WHOLE = _OF_CONTROLLER | {
    conditions.OFFLINE,
    *conditions.PLACES_OFFLINE,
    conditions.FLEET_OFFLINE,
    conditions.BELOW,
    conditions.COMPLETING,
}


def is_watched(fault: str) -> bool:
    """Whether a watch opens and ends incidents of this fault."""
    return fault in _WHOLE or fault == drift.FABRIC_MANAGER or each_its_own(fault)


def each_its_own(fault: str) -> bool:
    """Several of these stand at one place, the cluster: none of them takes another one in."""
    return fault.startswith((conditions.WAITING, conditions.HELD, drift.DRIFT))


def findings(picture: Picture, settings: WatchSettings, now: datetime) -> list[Finding]:
    """What has stood long enough and was not told lately. Notes in the picture what stands since when."""
    if picture.slurm is None or not (picture.nodes_changed or _is_due(picture, now)):
        return []
    picture.looked_at = now
    found = []
    told = conditions.conditions(picture, picture.slurm, settings)
    for one in chain(told, drift.conditions(picture, picture.slurm)):
        known = picture.standing.setdefault(
            (one.fault, one.where), Standing(one.since or picture.slurm.taken_at)
        )
        known.seen_at = now
        if (now - known.since).total_seconds() < one.for_s:
            continue
        if known.told_at is None or now - known.told_at >= AGAIN:
            found.append(_finding(one, known.since, now))
    _forget(picture, timedelta(seconds=settings.clear_s), now)
    return found


def _is_due(picture: Picture, now: datetime) -> bool:
    return picture.looked_at is None or now - picture.looked_at >= LOOK


def _forget(picture: Picture, clear: timedelta, now: datetime) -> None:
    for (fault, where), known in list(picture.standing.items()):
        if fault in _OF_CONTROLLER and picture.controller is None:
            known.seen_at = now  # nobody tells whether it still stands
        elif known.seen_at is None or now - known.seen_at >= clear:
            del picture.standing[fault, where]


def _finding(one: Condition, since: datetime, now: datetime) -> Finding:
    identity = f"watch|{one.fault}|{one.where}|{since.isoformat()}|{one.news}"
    evidence = Evidence(
        digest=sha256(identity.encode()).hexdigest(),
        at=since,
        component=one.where,
        text=one.text,
        arrived_at=now,
        sense=one.sense,
    )
    return Finding(
        rule="",
        fault=one.fault,
        fault_class=FaultClass.informational,
        component=one.where,
        at=since,
        arrived_at=now,
        text=one.text,
        title=one.title,
        confidence=1.0,
        evidence=(evidence,),
        jobs=one.jobs,
        affected=tuple(
            Component(cluster=one.where.cluster, node=name) for name in one.affected if name != one.where.node
        ),
    )
