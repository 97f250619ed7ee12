"""What healer tells people by itself, outside of playbooks: pages, news of an incident, digests, tickets.

Pure; the time is given. Each message has a stable id, so that a repeat is no second page, and all messages of
an incident are one thread.
"""

import hashlib
import hmac
from collections.abc import Sequence
from datetime import datetime, timedelta
from hashlib import sha256

import msgspec

from healer.incidents.incident_verdict import place, verdict_sentence
from healer.model import (
    APPROVAL_LASTS,
    REMEDY_LADDER,
    About,
    Breaker,
    Guard,
    Incident,
    LogEntry,
    Message,
    Remedy,
    Run,
    RunState,
    Severity,
    Stage,
    StepEvent,
    Ticket,
    TicketStage,
)
from healer.ports.outbound import BACK_OFF, FORGOTTEN, Notice, Raised

#: Lines of a closing notice about what was done, and incidents in one digest.
PROOF_MAX = 8
DIGEST_MAX = 40
_LINE_MAX = 200


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
    """What counts when the one that waited for its time was over before it, so that it was never sent."""
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
    """`again`: when it was opened again, or grew worse."""
    jobs = ", ".join(incident.jobs_hit) or "none"
    lines = [
        verdict_sentence(incident),
        f"Where: {place(incident.root)}",
        f"Jobs hit: {jobs}",
        f"healer: {_does(incident)}",
    ]
    stamp = f":{again:%Y%m%dT%H%M%S}" if again else ""
    return _message(incident, f"{incident.id}:told:{incident.severity}{stamp}", Stage.opened, lines)


def acknowledged(incident: Incident) -> Message:
    lines = [f"{incident.acknowledged_by} looks after it.", verdict_sentence(incident)]
    return _message(incident, f"{incident.id}:ack", Stage.acknowledged, lines)


def resolved(incident: Incident, work: Sequence[tuple[Run, Sequence[LogEntry]]]) -> Message:
    """With the proof: what was done, and how it was seen."""
    stamp = f"{incident.closed or incident.updated:%Y%m%dT%H%M%S}"
    lines = [verdict_sentence(incident), *proof(work), f"Closed: {incident.closed_why or 'by a person'}"]
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


def notice_of(
    message: Message,
    at: datetime,
    *,
    page: bool,
    console_url: str = "",
    link_secret: str | None = None,
    buttons: bool = False,
) -> Notice:
    """As channels write it. An approval is a link to the run, where a person signs in and approves; with a
    secret it shows the run for a day without that. Buttons where the channel has them."""
    about, console_url = message.about, console_url.rstrip("/")
    run = f"/runs/{about.run}" if about.run else ""
    path = f"/incidents/{message.incident}" if message.incident else run
    approve = sign_link(run, link_secret, at) if run and link_secret else run
    return Notice(
        id=message.id,
        thread=message.incident or message.id,
        cluster=message.cluster,
        title=" ".join(message.title.split()),
        lines=tuple(line for line in message.text.split("\n") if line.strip()),
        severity=message.severity,
        page=page,
        stage=about.stage,
        node=about.node,
        at=at,
        console=f"{console_url}{path}" if console_url and path else "",
        run=about.run if buttons else "",
        preview=about.preview,
        approve=f"{console_url}{approve}" if console_url and approve else "",
    )


# --- pages of healer's own


def breaker_page(breaker: Breaker, now: datetime) -> Message:
    nodes = sorted({root.node for root in breaker.roots})
    return Message(
        id=f"breaker:{breaker.cluster}:{now.isoformat()}",
        cluster=breaker.cluster,
        title=f"The breaker of {breaker.cluster} is open: {breaker.why}",
        text=f"{breaker.why}\nNodes: {', '.join(nodes[:50]) or 'none'}\nNothing more is taken out of "
        "service until a named person resets the breaker. Detection, tickets and returns go on.",
        severity=Severity.P0,
        page=True,
        about=About(alarm=f"breaker@{breaker.cluster}"),
    )


def opened_message(incident: Incident) -> Message:
    """For rules whose remedy is to tell people. P0 and P1 wake them."""
    nodes = ", ".join(sorted(incident.nodes)) or "none"
    return Message(
        id=f"{incident.id}:opened",
        cluster=incident.cluster,
        title=f"{incident.severity} {incident.root}: {incident.title}",
        text=f"{verdict_sentence(incident)}\nNodes: {nodes}\nhealer does nothing by itself here.",
        severity=incident.severity,
        page=incident.severity in {Severity.P0, Severity.P1},
        incident=incident.id,
        about=about(incident),
    )


def p0_page(incident: Incident, why: str) -> Message:
    jobs = ", ".join(incident.jobs_hit) or "none"
    return Message(
        # Urgent again after it was over is a page of its own, but one an hour at most.
        id=f"{incident.id}:p0:{incident.p0_since:%Y%m%dT%H}",
        cluster=incident.cluster,
        title=f"P0 {incident.root}: {incident.title}",
        text=f"{verdict_sentence(incident)}\nWhere: {incident.root}\nJobs hit: {jobs}\nhealer: {why}",
        severity=Severity.P0,
        page=True,
        incident=incident.id,
        about=about(incident),
    )


def fell_back(cluster: str, rule: str, why: str, incident: str, request: str) -> Message:
    """A rule was wrong too often to act alone any longer. It wakes no one: the rule asks first now."""
    return Message(
        id=f"rule:{rule}:{request}",
        cluster=cluster,
        title=f"Rule {rule} acts alone no longer",
        text=f"{why}.\nThe last one: incident {incident[:8]}, which a person called a false alarm.\n"
        "Each run of it waits for an approval now; auto has to be earned anew, or set in rules/.",
        severity=Severity.P2,
        page=False,
        about=About(alarm=f"rule:{rule}@{cluster}", rule=rule),
    )


def blind_page(cluster: str, problem: str, now: datetime) -> Message:
    """healer looks at nothing that is measured; kernel lines and silence are walked as ever."""
    told = sha256(problem.encode()).hexdigest()[:12]
    return Message(
        id=f"senses:{cluster}:{told}:{now:%Y%m%d}",  # the same again is a page of the next day
        cluster=cluster,
        title=f"healer looks at no metrics and no step times of {cluster}",
        text=f"{problem}\nKernel lines and silence are heard as ever. `healer rules test` says what is wrong "
        "with rules; what else fails stands in the detector's log.",
        severity=Severity.P1,
        page=True,
        about=About(alarm=f"senses:{told}@{cluster}"),
    )


def approval_page(run: Run) -> Message:
    """No one approved in time, before the run or at a step of it; nothing is done for that (law 8)."""
    begun = run.state is RunState.waiting and run.approve_until is not None
    asked_at = run.approve_until - APPROVAL_LASTS if begun and run.approve_until else run.created_at
    what = run.question if begun and run.question else run.reason
    return Message(
        id=f"{run.id}:approval:{asked_at:%Y%m%dT%H%M%S}" if begun else f"{run.id}:approval",
        cluster=run.cluster,
        title=f"Nobody has approved {run.playbook} on {run.node or run.job}",
        text=f"{what}\nIt was asked at {asked_at:%H:%M} UTC and waits. Nothing is done before "
        "somebody approves or rejects it.",
        # A run that has begun has done what is urgent: no one is woken for the rest.
        severity=Severity.P1 if begun else Severity.P0,
        page=not begun,
        incident=run.incident,
        about=About(rule=run.rule, node=run.node or "", run=run.id),
    )


# --- links that show one page without signing in, for a day: they show, and allow nothing
#
# `?look=UNTIL.SIGNATURE`: the second until which it opens, and the first 32 hex digits of HMAC-SHA256 over
# `PATH|UNTIL` with the site's secret (HEALER_LINK_SECRET).


LINK_LASTS = timedelta(hours=24)
LINK_NAME = "look"


def sign_link(path: str, secret: str, since: datetime) -> str:
    """The path with what opens it, the same each time for the same moment."""
    until = int((since + LINK_LASTS).timestamp())
    return f"{path}?{LINK_NAME}={until}.{_signature(path, until, secret)}"


def link_opens(path: str, look: str, secret: str, now: datetime) -> bool:
    """Whether this is ours, for this page, and not over."""
    stamp, _, given = look.partition(".")
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) < 12):
        return False
    until = int(stamp)
    return hmac.compare_digest(_signature(path, until, secret).encode(), given.encode()) and (
        now.timestamp() < until
    )


def _signature(path: str, until: int, secret: str) -> str:
    return hmac.new(secret.encode(), f"{path}|{until}".encode(), hashlib.sha256).hexdigest()[:32]


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
        text = proof_text(incident, steps) if stage is TicketStage.closed else f"It is open again. {told}"
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


def proof_text(incident: Incident, steps: Sequence[LogEntry]) -> str:
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
