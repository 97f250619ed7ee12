"""Whether an earlier fault is over: the driver took it back, the node booted, another GPU stands there."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from healer.incidents.entries import fits, ladder_for, model_on
from healer.incidents.noting import part_of
from healer.model import FaultBurst, FaultClass, Finding, GoneAfter, Incident, Ladder, Remedy, Ruleset
from healer.observations import Picture
from healer.observations.history import ONE_MOMENT, REPLACED, SETTLED, Noted

#: The fault name of Xid 154 back to None.
ASKS_NOTHING = "driver-asks-none"
#: A node that has got another GPU runs at most so long before that is told here.
STARTS_WITHIN = timedelta(minutes=5)
_HARDWARE = frozenset({FaultClass.fatal, FaultClass.degraded})
_ENDED_BY_BOOT = frozenset({GoneAfter.reset, GoneAfter.boot})


class Over(msgspec.Struct, frozen=True, kw_only=True):
    """Why it is over. `proven`: the fault itself cannot have outlived that; else a test has to tell.
    `replaced`: by another part. `done`: the highest rung of the ladder that somebody must have done."""

    why: str
    proven: bool = True
    replaced: bool = False
    done: Remedy = Remedy.none


def is_late(rules: Ruleset, picture: Picture, finding: Finding) -> bool:
    """A line that comes after the word that took it back: it opens nothing again."""
    where = finding.component
    if where.node is None or not finding.evidence or not finding.evidence[0].line:
        return False
    hardware = finding.fault_class in _HARDWARE
    if not hardware and not any(fits(finding.fault, one.faults) for one in rules.escalations.cancels):
        return False  # a storm of teardowns: nothing takes them back
    at = picture.node(where.node).moment(finding.at, finding.arrived_at)
    part = part_of(picture, where)
    told = FaultBurst(
        cluster=where.cluster,
        node=where.node,
        part=part,
        fault=finding.fault,
        fault_class=finding.fault_class,
        began_at=at,
        last_at=_as_noted(picture.history.of(where.node, part, finding.fault), at),
        pci=where.pci,
    )
    found = _taken_back(rules, picture, part, told)
    if (found is not None and found.proven) or _is_settled(picture, part, told):
        return True
    return _is_of_the_one_before(picture, part, told)


def _is_of_the_one_before(picture: Picture, part: str, told: FaultBurst) -> bool:
    """A line of the GPU that stood at the address until another one took its place.

    What says that it is the new one's: it belongs to the present boot, or it is younger than the last word
    of the old one, and than the time before the new one was told in which that may have run already.
    """
    swapped = picture.history.of(told.node, part, REPLACED)
    if not swapped or told.pci is None:
        return False
    noted = picture.history.of(told.node, part, told.fault)
    boot = next((one.boot_id for one in noted if one.began_at <= told.last_at <= one.last_at), None)
    if boot is not None and boot == picture.node(told.node).boot_id:
        return False
    others = (one for key, one in picture.history.on(told.node) if key[0] != part and one.pci == told.pci)
    last_word = max((one.last_at for one in others), default=None)
    at, since = told.last_at, swapped[-1].began_at
    return at < since - STARTS_WITHIN or (last_word is not None and at <= last_word < since)


def note_settled(picture: Picture, incident: Incident, by: str, at: datetime) -> None:
    """A person resolved it: what was logged of this fault before that and comes late is no news. For repeats
    it counts all the same."""
    root = incident.root
    if root.node is None:
        return
    noted = Noted(
        node=root.node,
        part=part_of(picture, root),
        fault=f"{SETTLED}{incident.fault}",
        fault_class=FaultClass.informational,
        at=at,
        component=root,
        users=(by,),
    )
    picture.history.note(noted)


def _is_settled(picture: Picture, part: str, burst: FaultBurst) -> bool:
    told = picture.history.of(burst.node, part, f"{SETTLED}{burst.fault}")
    return any(burst.last_at <= one.last_at for one in told)


def _as_noted(bursts: Sequence[FaultBurst], at: datetime) -> datetime:
    """The history tells lines of one moment apart by a hair."""
    return next((one.last_at for one in bursts if at <= one.last_at < at + ONE_MOMENT), at)


def over(rules: Ruleset, picture: Picture, part: str, burst: FaultBurst) -> Over | None:
    """None: as far as anybody knows it still stands."""
    return (
        _replaced(picture, burst)
        or _taken_back(rules, picture, part, burst)
        or _booted(rules, picture, burst)
    )


def _replaced(picture: Picture, burst: FaultBurst) -> Over | None:
    if burst.pci is None:
        return None
    now = picture.history.gpu_at(burst.node, burst.pci)
    if now is None or now == burst.part:
        return None
    told = picture.history.of(burst.node, now, REPLACED)
    if not told or told[-1].last_at <= burst.last_at:
        return None
    return Over(why=f"another GPU stands at {burst.pci} now ({now})", replaced=True, done=Remedy.replace)


def _taken_back(rules: Ruleset, picture: Picture, part: str, burst: FaultBurst) -> Over | None:
    def is_later(by: str) -> bool:
        told = picture.history.of(burst.node, part, by)
        return bool(told) and told[-1].last_at > burst.last_at

    for cancel in rules.escalations.cancels:
        if fits(burst.fault, cancel.faults) and is_later(cancel.by):
            done = Remedy.drain_then_reset if cancel.by == ASKS_NOTHING else Remedy.none
            return Over(why=cancel.text, done=done)
    if burst.fault_class in _HARDWARE and is_later(ASKS_NOTHING):
        ladder = _ladder(rules, picture, burst)
        proven = ladder is not None and ladder.gone_after is GoneAfter.reset
        return Over(why="the driver asks for nothing any more", proven=proven, done=Remedy.drain_then_reset)
    return None


def _booted(rules: Ruleset, picture: Picture, burst: FaultBurst) -> Over | None:
    node = picture.node(burst.node)
    anew = node.booted_at is not None and node.booted_at > burst.last_at
    if burst.boot_id is not None and node.boot_id is not None:
        heard = node.boot_heard_at
        anew = burst.boot_id != node.boot_id and heard is not None and heard >= burst.last_at
    if not anew:
        return None
    ladder = _ladder(rules, picture, burst)
    gone_after = ladder.gone_after if ladder is not None else GoneAfter.test
    if gone_after in _ENDED_BY_BOOT:
        return Over(why="the node has booted anew", done=Remedy.reboot_node)
    seen = burst.pci and node.boot_id and node.gpus.is_seen(burst.pci, node.boot_id)
    if gone_after is GoneAfter.seen and seen:
        return Over(why="the node has booted anew, and the GPU is there again", done=Remedy.reboot_node)
    return Over(why="the node has booted anew", proven=False, done=Remedy.reboot_node)


def _ladder(rules: Ruleset, picture: Picture, burst: FaultBurst) -> Ladder | None:
    return ladder_for(rules, burst.fault, burst.fault_class, model_on(rules, picture, burst.node))
