"""Messages that healer sends outside of playbooks: pages, news of an incident, digests, tickets.

Pure; the time is given. Each message has a stable id, so that a repeat is no second page. All messages of an
incident are one thread.
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
from healer.model.shown import one_line, shown
from healer.ports.answers import SEAL
from healer.ports.outbound import BACK_OFF, FORGOTTEN, Notice, Raised

#: Lines of a closing notice about what was done, and incidents in one digest.
PROOF_MAX = 8
DIGEST_MAX = 40
_LINE_MAX = 200


def schedule_alarm(raised: Raised | None, now: datetime) -> Raised:
    """When to send an alarm that is raised now: `last_at`, now or later, with the new count of repeats.

    The first one, and one after a long silence, at once; else 5, 10, 20, 40, 80, 80 … min after the last one.
    It never waits longer than that, even if the clock was set back.
    """
    if raised is None or now - raised.last_at >= FORGOTTEN:
        return Raised(0, now)
    wait = BACK_OFF[min(raised.again, len(BACK_OFF) - 1)]
    due = min(raised.last_at + wait, now + wait)
    return Raised(raised.again + 1, max(due, now))


def withdraw_alarm(raised: Raised) -> Raised | None:
    """The state before the last `schedule_alarm`, for an alarm that ended before it was sent; None: no
    alarm."""
    if raised.again == 0:
        return None
    wait = BACK_OFF[min(raised.again, len(BACK_OFF)) - 1]
    return Raised(raised.again - 1, raised.last_at - wait)


def about_incident(incident: Incident, stage: Stage = Stage.opened) -> About:
    """What routes and channels need of an incident. `run`: set where a person may approve or reject it."""
    asks = stage is not Stage.resolved and incident.held_by is Guard.approval
    return About(
        rule=incident.rule,
        fault=incident.fault,
        node=incident.root.node or "",
        alarm=f"{incident.rule}@{incident.root}",
        stage=stage,
        run=incident.run if asks and incident.run else "",
    )


def opened_news(incident: Incident, again: datetime | None = None) -> Message:
    """`again`: when the incident was reopened, or its severity rose."""
    lines = [
        verdict_sentence(incident),
        f"Where: {place(incident.root)}",
        _jobs(incident),
        f"healer: {_what_healer_does(incident)}",
    ]
    stamp = f":{again:%Y%m%dT%H%M%S}" if again else ""
    return _message(incident, f"{incident.id}:told:{incident.severity}{stamp}", Stage.opened, lines)


def acknowledged_news(incident: Incident) -> Message:
    lines = [f"{incident.acknowledged_by} looks after it.", verdict_sentence(incident)]
    return _message(incident, f"{incident.id}:ack", Stage.acknowledged, lines)


def resolved_news(incident: Incident, work: Sequence[tuple[Run, Sequence[LogEntry]]]) -> Message:
    """News of a resolved incident, with a proof line for each step that was done."""
    stamp = f"{incident.closed or incident.updated:%Y%m%dT%H%M%S}"
    lines = [
        verdict_sentence(incident),
        *proof_lines(work),
        f"Closed: {incident.closed_why or 'by a person'}",
    ]
    return _message(incident, f"{incident.id}:over:{stamp}", Stage.resolved, lines)


def proof_lines(work: Sequence[tuple[Run, Sequence[LogEntry]]]) -> list[str]:
    """A line for each step that was done, with what was read back after it; for a repeated step its last
    entry. Shadow runs did nothing."""
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
    """A line of a digest: the present state of an incident, or a message without an incident."""

    message: Message
    incident: Incident | None = None


def digest(name: str, cluster: str, items: Sequence[Item], console_url: str) -> Message:
    """One message for many, by severity, each incident once and in its present state."""
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
    incident = item.incident
    if incident is None:
        return f"{item.message.severity} {item.message.title}"[:_LINE_MAX]
    how = "open" if incident.is_open else f"over: {incident.closed_why or 'by a person'}"
    link = f" {console_url.rstrip('/')}/incidents/{incident.id}" if console_url else ""
    return f"{incident.severity} {place(incident.root)}: {incident.title}; {how}"[:_LINE_MAX] + link


def _message(incident: Incident, name: str, stage: Stage, lines: Sequence[str]) -> Message:
    head = {Stage.opened: "", Stage.acknowledged: "acknowledged: ", Stage.resolved: "over: "}[stage]
    return Message(
        id=name,
        cluster=incident.cluster,
        title=f"{incident.severity} {head}{place(incident.root)}: {incident.title}",
        text="\n".join(lines),
        severity=incident.severity,
        incident=incident.id,
        about=about_incident(incident, stage),
    )


def _what_healer_does(incident: Incident) -> str:
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
    """The message for channels. An approval is a link to the run, where a person signs in and approves; with
    a secret the link shows the run for a day without signing in. `buttons`: the channel has buttons."""
    about, console_url = message.about, console_url.rstrip("/")
    run = f"/runs/{about.run}" if about.run else ""
    path = f"/incidents/{message.incident}" if message.incident else run
    approve = sign_link(run, link_secret, at) if run and link_secret else run
    return Notice(
        id=message.id,
        thread=message.incident or message.id,
        cluster=message.cluster,
        title=one_line(message.title),
        lines=tuple(shown(line) for line in message.text.split("\n") if line.strip()),
        severity=message.severity,
        page=page,
        stage=about.stage,
        node=about.node,
        at=at,
        console=f"{console_url}{path}" if console_url and path else "",
        run=about.run if buttons else "",
        preview=tuple(map(shown, about.preview)),
        approve=f"{console_url}{approve}" if console_url and approve else "",
    )


# --- pages about healer itself


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


def notify_message(incident: Incident) -> Message:
    """For rules whose remedy is `notify`. P0 and P1 page."""
    nodes = ", ".join(sorted(incident.nodes)) or "none"
    return Message(
        id=f"{incident.id}:opened",
        cluster=incident.cluster,
        title=f"{incident.severity} {incident.root}: {incident.title}",
        text=f"{verdict_sentence(incident)}\nNodes: {nodes}\nhealer does nothing by itself here.",
        severity=incident.severity,
        page=incident.severity in {Severity.P0, Severity.P1},
        incident=incident.id,
        about=about_incident(incident),
    )


def sender_page(cluster: str, sender: str, why: str, now: datetime) -> Message:
    """Once a day for each sender: its claims are held as long as a person leaves them so."""
    return Message(
        id=f"sender:{cluster}:{sender}:{now:%Y%m%d}",
        cluster=cluster,
        title=f"A relay of {cluster} is suspect: {sender}",
        text=f"{why}.\nWhat it says is held until a person approves, or a second sense agrees. "
        "Look at the relay, and revoke its token where it lies: healer token revoke.",
        severity=Severity.P1,
        page=True,
        about=About(alarm=f"sender@{cluster}/{sender}"),
    )


def p0_page(incident: Incident, why: str) -> Message:
    return Message(
        # An incident that is P0 again gets another page, one an hour at most.
        id=f"{incident.id}:p0:{incident.p0_since:%Y%m%dT%H}",
        cluster=incident.cluster,
        title=f"P0 {incident.root}: {incident.title}",
        text=f"{verdict_sentence(incident)}\nWhere: {incident.root}\n{_jobs(incident)}\nhealer: {why}",
        severity=Severity.P0,
        page=True,
        incident=incident.id,
        about=about_incident(incident),
    )


def demotion_message(cluster: str, rule: str, why: str, incident: str, request: str) -> Message:
    """A rule was wrong too often to stay in mode auto. No page: the rule asks first now."""
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


def enrolled_again_page(cluster: str, nodes: Sequence[str], who: Sequence[str], at: datetime) -> Message:
    """`at`: the beginning of the minutes in which they enrolled."""
    named = ", ".join(nodes[:DIGEST_MAX])
    if len(nodes) > DIGEST_MAX:
        named += f" and {len(nodes) - DIGEST_MAX} more"
    askers = ", ".join(sorted(set(who))[:DIGEST_MAX])
    return Message(
        id=f"enrolled-again:{cluster}:{at:%Y%m%dT%H%M}",
        cluster=cluster,
        title=f"Nodes of {cluster} enrolled again without their token: {len(nodes)}",
        text=f"{named}, by {askers}.\nTheir earlier tokens ended. A node that was installed again does so, "
        "and so does root on another node that speaks in its name: if nobody installed it, look who asked, "
        "and revoke its token: healer token revoke.",
        severity=Severity.P1,
        page=True,
        about=About(node=nodes[0] if len(nodes) == 1 else "", alarm=f"enrolled-again@{cluster}"),
    )


def seal_page(cluster: str, problem: str, text: str, now: datetime) -> Message:
    digest = sha256(problem.encode()).hexdigest()[:12]
    return Message(
        id=f"seal:{cluster}:{digest}:{now:%Y%m%d}",  # the same problem pages once a day
        cluster=cluster,
        title=f"The audit of {cluster} is not {'sealed' if problem == SEAL else 'witnessed'}",
        text=f"{text}\nWhat happens now can be changed unseen until this is repaired: see the worker's log, "
        "and `healer audit verify --against`.",
        severity=Severity.P1,
        page=True,
        about=About(alarm=f"seal:{digest}@{cluster}"),
    )


def blind_page(cluster: str, problem: str, now: datetime) -> Message:
    """healer evaluates no metrics and step times; kernel lines and silence still work."""
    digest = sha256(problem.encode()).hexdigest()[:12]
    return Message(
        id=f"senses:{cluster}:{digest}:{now:%Y%m%d}",  # the same problem pages once a day
        cluster=cluster,
        title=f"healer looks at no metrics and no step times of {cluster}",
        text=f"{problem}\nKernel lines and silence are heard as ever. `healer rules test` says what is wrong "
        "with rules; what else fails stands in the detector's log.",
        severity=Severity.P1,
        page=True,
        about=About(alarm=f"senses:{digest}@{cluster}"),
    )


def approval_page(run: Run) -> Message:
    """An approval timed out, for the run or one of its steps; a time-out never approves (law 8)."""
    begun = run.state is RunState.waiting and run.approve_until is not None
    asked_at = run.approve_until - APPROVAL_LASTS if begun and run.approve_until else run.created_at
    what = run.question if begun and run.question else run.reason
    return Message(
        id=f"{run.id}:approval:{asked_at:%Y%m%dT%H%M%S}" if begun else f"{run.id}:approval",
        cluster=run.cluster,
        title=f"Nobody has approved {run.playbook} on {run.node or run.job}",
        text=f"{what}\nIt was asked at {asked_at:%H:%M} UTC and waits. Nothing is done before "
        "somebody approves or rejects it.",
        # A run that has begun has done what is urgent: the rest does not page.
        severity=Severity.P1 if begun else Severity.P0,
        page=not begun,
        incident=run.incident,
        about=About(rule=run.rule, node=run.node or "", run=run.id),
    )


# --- links that show one page without signing in, for a day; they only show
#
# `?look=UNTIL.SIGNATURE`: the second until which it opens, and the first 32 hex digits of HMAC-SHA256 over
# `PATH|UNTIL` with the site's secret (HEALER_LINK_SECRET).


LINK_LASTS = timedelta(hours=24)
LINK_NAME = "look"


def sign_link(path: str, secret: str, since: datetime) -> str:
    """The path with its signature; the same for the same `since`."""
    until = int((since + LINK_LASTS).timestamp())
    return f"{path}?{LINK_NAME}={until}.{_signature(path, until, secret)}"


def is_valid_link(path: str, look: str, secret: str, now: datetime) -> bool:
    """Whether the link was signed for this page and has not expired."""
    stamp, _, given = look.partition(".")
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) < 12):
        return False
    until = int(stamp)
    return hmac.compare_digest(_signature(path, until, secret).encode(), given.encode()) and (
        now.timestamp() < until
    )


def _signature(path: str, until: int, secret: str) -> str:
    return hmac.new(secret.encode(), f"{path}|{until}".encode(), hashlib.sha256).hexdigest()[:32]


#: Steps in a ticket's closing text; of more, the first and last are kept.
_STEPS_MAX = 40
_STEP_LENGTH = 300
_EVENTS = {StepEvent.done: "", StepEvent.failed: "failed: ", StepEvent.undone: "undone: "}


def ticket_stage(before: Incident | None, after: Incident) -> TicketStage | None:
    """The stage of an update of the incident's ticket; None: no update.

    An open incident is updated when its verdict's sentence changes. Only a run files a ticket.
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


def ticket_id(incident: Incident) -> str:
    """The id of the delivery that opens the incident's ticket."""
    return f"{incident.id}:ticket"


def ticket_update(incident: Incident, stage: TicketStage, steps: Sequence[LogEntry], now: datetime) -> Ticket:
    """An update of the incident's ticket. `steps`: the logs of its runs, oldest first."""
    verdict = verdict_sentence(incident)
    if stage is TicketStage.updated:
        occasion = sha256(verdict.encode()).hexdigest()[:12]  # the same text is sent once
        text = f"{verdict}\n{_jobs(incident)}"
    else:
        at = (incident.closed or now) if stage is TicketStage.closed else now
        occasion = f"{stage}:{at:%Y%m%dT%H%M%S}"
        text = proof_text(incident, steps) if stage is TicketStage.closed else f"It is open again. {verdict}"
    return Ticket(
        id=f"{ticket_id(incident)}:{occasion}",
        cluster=incident.cluster,
        node=incident.root.node,
        incident=incident.id,
        title=f"{incident.severity} {incident.root}: {incident.title}",
        text=text,
        stage=stage,
        severity=incident.severity,
        since=incident.opened,
    )


def with_incident_link(ticket: Ticket, console_url: str) -> Ticket:
    """A ticket that is opened, with a link to the incident's page if the site has a console URL."""
    if not console_url or ticket.incident is None or ticket.stage is not TicketStage.opened:
        return ticket
    link = f"{console_url.rstrip('/')}/incidents/{ticket.incident}"
    return msgspec.structs.replace(ticket, text=f"{ticket.text}\n\n{link}")


def proof_text(incident: Incident, steps: Sequence[LogEntry]) -> str:
    """Why the incident is over and what was done; each step was read back before it was logged."""
    lines = [verdict_sentence(incident)]
    if incident.closed is not None:
        lines.append(f"Over since {incident.closed:%Y-%m-%d %H:%M:%S} UTC: {incident.closed_why or 'closed'}")
    if incident.merged_into:
        lines.append(f"It goes on as incident {incident.merged_into}")
    if incident.tried is not Remedy.none and incident.tried in REMEDY_LADDER:
        lines.append(f"Tried for it: {incident.tried}")
    lines.append(_jobs(incident))
    return "\n".join([*lines, *_work_done(steps)])


def _jobs(incident: Incident) -> str:
    return f"Jobs hit: {', '.join(incident.jobs_hit) or 'none'}"


def _work_done(steps: Sequence[LogEntry]) -> list[str]:
    def row(entry: LogEntry) -> str:
        text = " ".join(entry.text.split())[:_STEP_LENGTH]
        return f"{entry.at:%m-%d %H:%M:%S} {entry.step}: {_EVENTS[entry.event]}{text}"

    rows = [row(entry) for entry in steps if entry.event in _EVENTS]
    if not rows:
        return ["healer did nothing itself"]
    left_out = len(rows) - _STEPS_MAX
    if left_out > 0:
        half = _STEPS_MAX // 2
        rows = [*rows[:half], f"… {left_out} more", *rows[-half:]]
    return ["What was done and seen (UTC):", *rows]
