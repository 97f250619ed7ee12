"""What an incident's ticket is told after it was opened: news, its end with the proof, that it is back."""

from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256

import msgspec

from healer.incidents.incident_verdict import verdict_sentence
from healer.model import REMEDY_LADDER, Incident, LogEntry, Remedy, StepEvent, Ticket, TicketStage

#: Steps that are told; a long story keeps its beginning and its end.
_STEPS_MAX = 40
_STEP_LENGTH = 300
_EVENTS = {StepEvent.done: "", StepEvent.failed: "failed: ", StepEvent.undone: "undone: "}


def stage_after(before: Incident | None, after: Incident) -> TicketStage | None:
    """What its ticket has to be told, if it has one; None: nothing.

    News is what changes the verdict's sentence. Only a run files a ticket.
    """
    if before is None or not after.run_count:
        return None
    if before.is_open and not after.is_open:
        return TicketStage.closed
    if after.is_open and not before.is_open:
        return TicketStage.reopened
    if after.is_open and verdict_sentence(before) != verdict_sentence(after):
        return TicketStage.updated
    return None


def first_ticket(incident: Incident) -> str:
    """The id of the delivery that opens it."""
    return f"{incident.id}:ticket"


def ticket_after(incident: Incident, stage: TicketStage, steps: Sequence[LogEntry], now: datetime) -> Ticket:
    """`steps`: the logs of the runs that worked on it, oldest first."""
    told = verdict_sentence(incident)
    if stage is TicketStage.updated:
        occasion = sha256(told.encode()).hexdigest()[:12]  # the same words are told once
        text = f"{told}\n{_jobs(incident)}"
    else:
        at = (incident.closed or now) if stage is TicketStage.closed else now
        occasion = f"{stage}:{at:%Y%m%dT%H%M%S}"
        text = proof(incident, steps) if stage is TicketStage.closed else f"It is open again. {told}"
    return Ticket(
        id=f"{first_ticket(incident)}:{occasion}",
        cluster=incident.cluster,
        node=incident.root.node,
        incident=incident.id,
        title=f"{incident.severity} {incident.root}: {incident.title}",
        text=text,
        stage=stage,
        severity=incident.severity,
        since=incident.opened,
    )


def linked(ticket: Ticket, console_url: str) -> Ticket:
    """What opens a ticket ends with the incident's page, where the site says how people reach healer."""
    if not console_url or ticket.incident is None or ticket.stage is not TicketStage.opened:
        return ticket
    link = f"{console_url.rstrip('/')}/incidents/{ticket.incident}"
    return msgspec.structs.replace(ticket, text=f"{ticket.text}\n\n{link}")


def proof(incident: Incident, steps: Sequence[LogEntry]) -> str:
    """Why it is over, what was done and what was seen of it: each step was read back before it was logged."""
    lines = [verdict_sentence(incident)]
    if incident.closed is not None:
        lines.append(f"Over since {incident.closed:%Y-%m-%d %H:%M:%S} UTC: {incident.closed_why or 'closed'}")
    if incident.merged_into:
        lines.append(f"It goes on as incident {incident.merged_into}")
    if incident.tried is not Remedy.none and incident.tried in REMEDY_LADDER:
        lines.append(f"Tried for it: {incident.tried}")
    lines.append(_jobs(incident))
    return "\n".join([*lines, *_told(steps)])


def _jobs(incident: Incident) -> str:
    return f"Jobs hit: {', '.join(incident.jobs_hit) or 'none'}"


def _told(steps: Sequence[LogEntry]) -> list[str]:
    rows = [
        f"{one.at:%m-%d %H:%M:%S} {one.step}: {_EVENTS[one.event]}{' '.join(one.text.split())[:_STEP_LENGTH]}"
        for one in steps
        if one.event in _EVENTS
    ]
    if not rows:
        return ["healer did nothing itself"]
    left_out = len(rows) - _STEPS_MAX
    if left_out > 0:
        half = _STEPS_MAX // 2
        rows = [*rows[:half], f"… {left_out} more", *rows[-half:]]
    return ["What was done and seen (UTC):", *rows]
