"""The link of an incident, and the check of its error counters: do they stand still?"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from healer.actions.base import Action, Again, Context, Done, Failed, Result
from healer.model import DEVICE_MARK, Column, Component, Incident, Part

LOOK_AGAIN_S = 15.0
STILL_S = 600
#: Samples are kept for an hour; a longer wait could never be known to be over.
STILL_MOST_S = 3000
#: Values older than this say nothing of now: three missed readings of the slowest usual cadence (60 s).
STALE = timedelta(seconds=180)
#: Words in the names of counters that count errors; traffic, waits and pauses are none.
_ERRORS = (
    "error", "crc", "ecc", "replay", "recovery", "down", "integrity", "physical", "malformed",
    "uncorrectable",
)  # fmt: skip

#: (when it arrived, value), oldest first.
Points = Sequence[tuple[datetime, float]]


class Link(msgspec.Struct, frozen=True):
    """`subject`: the node, or `@` and the device, whose counters tell of it; `parts` are its ends there."""

    subject: str
    parts: tuple[Part, ...]


def link_of(incident: Incident) -> Link | None:
    """The port or NVLink that the incident is about. One of a whole switch has the ports of its evidence."""
    root = incident.root
    at = [root, *(one.component for one in incident.evidence if _same(one.component, root))]
    parts = tuple(dict.fromkeys(part for one in at if (part := _part(one)) is not None))
    subject = root.node or (f"{DEVICE_MARK}{root.device}" if root.device else "")
    return Link(subject, parts) if subject and parts else None


def port_of(incident: Incident) -> str | None:
    """The port's name, where it is one alone."""
    found = link_of(incident)
    ports = {part.port for part in found.parts} if found is not None else set()
    return ports.pop() if len(ports) == 1 else None


def _same(one: Component, root: Component) -> bool:
    return one.node == root.node if root.node else one.device is not None and one.device == root.device


def _part(where: Component) -> Part | None:
    if where.link is not None:
        return Part(gpu=where.gpu, link=where.link)
    name = where.nic or (where.part if where.device and not where.node else None)
    return Part(port=name) if name else None


def counts_errors(signal: str) -> bool:
    return signal.endswith("_total") and any(word in signal for word in _ERRORS)


def stood_still(points: Points, now: datetime, still: timedelta) -> bool | None:
    """Whether the counter kept its value for so long until now; None: nobody can tell yet.

    A counter that fell was reset, which is a change too.
    """
    if not points or now - points[-1][0] > STALE:
        return None
    last = points[-1][1]
    changed = next((at for at, value in reversed(points) if value != last), None)
    since = points[0][0] if changed is None else next(at for at, _ in points if at > changed)
    if points[-1][0] - since >= still:
        return True
    return None if changed is None else False


def _check(ctx: Context) -> Result:
    """Counts from when this check began: what stood still before the link was rerouted says nothing.

    Moving when its time is over: no. Not known then: a person is asked.
    """
    if ctx.incident is None or (link := link_of(ctx.incident)) is None:
        return Failed(text="The run's incident names no link, so no counter can be looked at.", final=True)
    if ctx.readings is None:
        return Failed(text="healer reads no counters here.", final=True)
    still = timedelta(seconds=min(int(ctx.step.input.get("still_s", STILL_S)), STILL_MOST_S))
    now = ctx.now()
    told = ctx.readings.counters(link.subject, ctx.began_at)
    mine = {
        one: points for one, points in told.items() if one.part in link.parts and counts_errors(one.signal)
    }
    answers = {one: stood_still(points, now, still) for one, points in mine.items()}
    where = f"{link.subject.removeprefix(DEVICE_MARK)} {_named(link.parts)}"
    over = (now - ctx.began_at).total_seconds() >= ctx.step.timeout_s
    if answers and all(answers.values()):
        text = f"{where}: {len(answers)} error counters stood still for {still.total_seconds():.0f} s"
        return Done(text=text, data={"passed": True, "counters": sorted(one.signal for one in answers)})
    moving = sorted({one.signal for one, answer in answers.items() if answer is False})
    if moving:
        text = f"{where}: errors go on ({', '.join(f'{name} {_last(mine, name)}' for name in moving[:4])})"
        return Done(text=text, data={"passed": False, "counters": moving}) if over else _again(text)
    if not answers:
        text = f"Nobody tells error counters of {where} since {ctx.began_at:%H:%M:%S} UTC"
    else:
        text = f"{where}: whether its {len(answers)} error counters stand still is not known yet"
    return Failed(text=f"{text}. Look at the link yourself.", final=True) if over else _again(text)


def _again(text: str) -> Again:
    return Again(text=text, after_s=LOOK_AGAIN_S)


def _named(parts: Sequence[Part]) -> str:
    names = [one.port or f"GPU {one.gpu} link {one.link}" for one in parts]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _last(mine: Mapping[Column, Points], signal: str) -> str:
    return f"{max(points[-1][1] for one, points in mine.items() if one.signal == signal):.0f}"


def _nothing(_: Context) -> None:
    return None


LINK_COUNTERS = Action(probe=_nothing, do=_nothing, verify=_check, effect=False)
