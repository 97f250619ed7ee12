"""Which senses tell of an incident's node. Two that fail apart from each other are worth more than one."""

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta

from healer.model import Component, Finding, Heard, Incident, Sense

#: They conclude from what the others told: the first of them counts, where nothing else speaks.
CONCLUDED = (Sense.alert, Sense.history)
#: They compare what was measured, or conclude from it; the others are told of what has happened.
MEASURED = frozenset({Sense.metrics, Sense.step_times, Sense.forest, Sense.alert})
#: What was told longer ago speaks of then and not of now. Whatever stands is told again every 5 min.
AGREE_WITHIN = timedelta(minutes=15)
#: What a node's own check said agrees with another sense for so long, however often it is told again.
CHECK_LASTS = timedelta(days=1)
#: A look at the fleet that is older says nothing of now.
LOOK_LASTS = timedelta(seconds=60)
#: The senses' last words that an incident keeps: each sense of each GPU and of the node as a whole.
_HEARD_KEPT = 64
_WORDS = {
    Sense.kernel: "kernel lines",
    Sense.metrics: "metrics",
    Sense.step_times: "step times",
    Sense.forest: "the model of its class",
    Sense.silence: "silence",
    Sense.slurm: "Slurm",
    Sense.hook: "the node's own checks",
    Sense.alert: "an alert",
    Sense.history: "healer's own record",
}


def apart(told: Collection[Sense]) -> tuple[Sense, ...]:
    """Of the senses that told, those that count: they fail apart from each other. In the order of `Sense`."""
    own = tuple(one for one in Sense if one in told and one not in CONCLUDED)
    return own or tuple(one for one in CONCLUDED if one in told)[:1]


def heard_with(incident: Incident, finding: Finding) -> tuple[Heard, ...]:
    """The senses' last words, with this finding's: only what is told of the root's own node counts."""
    told = (one for one in finding.evidence if one.component.node == incident.root.node)
    more = [
        Heard(sense=one.sense, at=finding.arrived_at, part=_part(one.component))
        for one in told
        if one.sense is not Sense.hook or finding.arrived_at - one.at <= CHECK_LASTS
    ]
    return newest((*incident.heard, *more))


def newest(heard: Iterable[Heard]) -> tuple[Heard, ...]:
    """The last word of each sense on each part."""
    last: dict[tuple[Sense, str], Heard] = {}
    for one in heard:
        known = last.get((one.sense, one.part))
        if known is None or one.at > known.at:
            last[one.sense, one.part] = one
    kept = sorted(last.values(), key=lambda one: (one.at, one.sense, one.part))
    return tuple(kept[-_HEARD_KEPT:])


def _part(where: Component) -> str:
    return str(where.gpu) if where.gpu is not None else where.pci or ""


def senses_of(incident: Incident, now: datetime) -> tuple[Sense, ...]:
    """The senses that told lately of the same part of the root's own node, in the order of `Sense`.

    Those that name a GPU have to name the same one; one that names none agrees with any. An alert counts only
    where nothing else speaks: what it was drawn from, a metric or a line, healer mostly hears itself, and the
    same figure told twice is no second sense. So does what healer remembers.
    """
    fresh = _counted(_fresh(incident, now))
    found: set[Sense] = set()
    for part in sorted({one.part for one in fresh}):
        agreed = {one.sense for one in fresh if one.part in ("", part)}
        found = max(found, agreed, key=len)
    return tuple(sense for sense in Sense if sense in found)


def _fresh(incident: Incident, now: datetime) -> list[Heard]:
    if incident.root.node is None:
        return []
    return [one for one in incident.heard if now - one.at <= AGREE_WITHIN]


def _counted(heard: list[Heard]) -> list[Heard]:
    counted = apart({one.sense for one in heard})
    return [one for one in heard if one.sense in counted]


def last_heard(incident: Incident) -> datetime:
    return max((one.at for one in incident.heard), default=incident.opened)


def spoken(senses: tuple[Sense, ...]) -> str:
    """`metrics and step times`"""
    words = [_WORDS[sense] for sense in senses]
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def too_few(incident: Incident, needed: int, now: datetime) -> str:
    """Why nothing is done yet."""
    fresh = {one.sense for one in _counted(_fresh(incident, now))}
    told = tuple(sense for sense in Sense if sense in fresh)
    node = incident.root.node
    agree = "a second sense" if needed == 2 else f"{needed} senses"
    if not told:
        who = f"Nothing speaks of {node} now"
    elif len(told) < needed:
        who = f"Only {spoken(told)} speak of {node} so far"
    else:
        words = spoken(told)
        who = f"{words[0].upper()}{words[1:]} speak of different GPUs of {node}"
    return f"{who}: {agree} must agree before anything is done."


def ended_work(incident: Incident) -> bool:
    """A fatal fault was told: it has ended the work on its GPU. What is only measured is a level."""
    return any(one.fatal for one in incident.evidence)


def not_looked(incident: Incident, now: datetime) -> str | None:
    """Why nobody knows whether the cause still stands; None for what is not measured."""
    if incident.ticked_at is None or now - incident.ticked_at <= LOOK_LASTS:
        return None
    return f"The senses looked last at {incident.ticked_at:%H:%M:%S} UTC: waits until they look again"
