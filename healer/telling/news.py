"""What channels are told of an incident as it goes on, and of many in a digest. Pure; the time is given.

Pages of healer's own (`messages.py`) go the same way: all messages of an incident are one thread.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from healer.incidents.sentence import place
from healer.incidents.verdict import said
from healer.model import About, Guard, Incident, LogEntry, Message, Run, Severity, Stage, StepEvent

#: How long after it was told an alarm that is raised again has to wait: the second time, the third, …
BACK_OFF = tuple(timedelta(minutes=minutes) for minutes in (5, 10, 20, 40, 80))
#: Quiet for twice the longest wait: the next one is told at once again.
FORGOTTEN = 2 * BACK_OFF[-1]
#: Lines of a closing notice about what was done, and incidents in one digest.
PROOF_MAX = 8
DIGEST_MAX = 40
_LINE_MAX = 200


class Raised(msgspec.Struct, frozen=True):
    """An alarm at one channel: how often it was told again, and when last."""

    again: int
    last_at: datetime


def told_next(raised: Raised | None, now: datetime) -> Raised:
    """When an alarm that is raised now is told (`last_at`: now or later), as what it then counts.

    A first alarm, and one after a long quiet, at once; else 5, 10, 20, 40, 80 min and ever 80 min after the
    last one. Also a clock that was set back never makes it wait longer than that.
    """
    if raised is None or now - raised.last_at >= FORGOTTEN:
        return Raised(0, now)
    wait = BACK_OFF[min(raised.again, len(BACK_OFF) - 1)]
    due = min(raised.last_at + wait, now + wait)
    return Raised(raised.again + 1, max(due, now))


def taken_back(raised: Raised) -> Raised | None:
    """What counts when the one that waited for its time was over before it, so that nobody was told."""
    if raised.again == 0:
        return None
    wait = BACK_OFF[min(raised.again, len(BACK_OFF)) - 1]
    return Raised(raised.again - 1, raised.last_at - wait)


def about(incident: Incident, stage: Stage = Stage.opened) -> About:
    """`run`: the one that a person may approve or reject, where it waits for that."""
    asks = stage is not Stage.resolved and incident.held_by is Guard.approval
    return About(
        rule=incident.rule,
        fault=incident.fault,
        node=incident.root.node or "",
        alarm=f"{incident.rule}@{incident.root}",
        stage=stage,
        run=incident.run if asks and incident.run else "",
    )


def opened(incident: Incident, again: datetime | None = None) -> Message:
    """`again`: when it was opened anew, or grew worse."""
    jobs = ", ".join(incident.jobs_hit) or "none"
    lines = [
        said(incident),
        f"Where: {place(incident.root)}",
        f"Jobs hit: {jobs}",
        f"healer: {_does(incident)}",
    ]
    stamp = f":{again:%Y%m%dT%H%M%S}" if again else ""
    return _message(incident, f"{incident.id}:told:{incident.severity}{stamp}", Stage.opened, lines)


def acknowledged(incident: Incident) -> Message:
    lines = [f"{incident.acknowledged_by} looks after it.", said(incident)]
    return _message(incident, f"{incident.id}:ack", Stage.acknowledged, lines)


def resolved(incident: Incident, work: Sequence[tuple[Run, Sequence[LogEntry]]]) -> Message:
    """With the proof: what was done, and how it was seen."""
    stamp = f"{incident.closed or incident.updated:%Y%m%dT%H%M%S}"
    lines = [said(incident), *proof(work), f"Closed: {incident.closed_why or 'by a person'}"]
    return _message(incident, f"{incident.id}:over:{stamp}", Stage.resolved, lines)


def proof(work: Sequence[tuple[Run, Sequence[LogEntry]]]) -> list[str]:
    """A line for each step that is done, in the words of what was read back after it; a step that was done
    several times by its last. Shadow runs did nothing."""
    lines = []
    for run, log in work:
        done = {entry.step: entry.text for entry in log if entry.event is StepEvent.done}
        if not run.shadow:
            lines += [
                f"Done: {step}: {text}"[:_LINE_MAX] if text else f"Done: {step}"
                for step, text in done.items()
            ]
    if len(lines) > PROOF_MAX:
        more = len(lines) - PROOF_MAX + 1
        lines = [*lines[: PROOF_MAX - 1], f"Done: {more} steps more, see the incident"]
    return lines or ["Done: nothing by healer"]


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """What a digest tells in one line: the incident as it is now, or a message without one."""

    message: Message
    incident: Incident | None = None


def digest(name: str, cluster: str, items: Sequence[Item], console_url: str) -> Message:
    """One message of many, the worst and newest first, each incident once and as it is now."""
    once = {item.message.incident or item.message.id: item for item in items}
    ordered = sorted(once.values(), key=lambda item: _severity(item).value)
    lines = [_in_digest(item, console_url) for item in ordered[:DIGEST_MAX]]
    if len(ordered) > DIGEST_MAX:
        lines.append(f"and {len(ordered) - DIGEST_MAX} more")
    still = sum(item.incident is None or item.incident.is_open for item in ordered)
    return Message(
        id=name,
        cluster=cluster,
        title=f"{cluster}: {len(ordered)} of lower urgency, {still} still open",
        text="\n".join(lines),
        severity=min((_severity(item) for item in ordered), default=Severity.P3),
        about=About(stage=Stage.opened),
    )


def _severity(item: Item) -> Severity:
    return item.incident.severity if item.incident else item.message.severity


def _in_digest(item: Item, console_url: str) -> str:
    one = item.incident
    if one is None:
        return f"{item.message.severity} {item.message.title}"[:_LINE_MAX]
    how = "open" if one.is_open else f"over: {one.closed_why or 'by a person'}"
    link = f" {console_url.rstrip('/')}/incidents/{one.id}" if console_url else ""
    return f"{one.severity} {place(one.root)}: {one.title}; {how}"[:_LINE_MAX] + link


def _message(incident: Incident, name: str, stage: Stage, lines: Sequence[str]) -> Message:
    head = {Stage.opened: "", Stage.acknowledged: "acknowledged: ", Stage.resolved: "over: "}[stage]
    return Message(
        id=name,
        cluster=incident.cluster,
        title=f"{incident.severity} {head}{place(incident.root)}: {incident.title}",
        text="\n".join(lines),
        severity=incident.severity,
        incident=incident.id,
        about=about(incident, stage),
    )


def _does(incident: Incident) -> str:
    if incident.held_by is not None:
        return f"the guard {incident.held_by} holds it back"
    if incident.known_bad_in_service:
        return "the node is known bad and stays in service"
    return "works on it" if incident.run else "does nothing yet"
