"""Tickets and messages. They stand in healer's own list with a stable id; delivery is never waited for."""

from datetime import datetime, timedelta

from healer.actions import owners
from healer.actions.base import Action, Context, Done, Result
from healer.incidents.verdict import said
from healer.model import About, Incident, Message, Severity, StepEvent, Ticket, TicketStage
from healer.telling.news import about


def _found(ctx: Context) -> list[str]:
    """What steps of this run have brought up for people, each once."""
    over = (one for one in ctx.log if one.event is StepEvent.done and one.data.get("evidence"))
    return [f"Found: {text}" for text in dict.fromkeys(one.text for one in over)]


def _held(one: Incident, now: datetime) -> list[str]:
    """Whose drain it is about, and how long it has stood."""
    if one.owner is None:
        return []
    since = one.owner_since or one.opened
    hours = (now - since) / timedelta(hours=1)
    age = f"{hours / 24:.0f} days" if hours >= 48 else f"{hours:.0f} h"
    return [f"Held by {one.owner} since {since:%Y-%m-%d %H:%M} UTC ({age})"]


def _story(ctx: Context) -> tuple[str, str]:
    one = ctx.incident
    if one is None:
        title = f"{ctx.run.playbook} on {ctx.run.node or ctx.run.job}"
        return title, "\n".join([ctx.run.reason, *_found(ctx)])
    jobs = ", ".join(one.jobs_hit) or "none"
    lines = [
        said(one),
        f"Where: {one.root}",
        *_held(one, ctx.now()),
        *_found(ctx),
        f"Jobs hit: {jobs}",
        f"Remedy: {', '.join(one.remedy) or 'none'}",
        *(f"Evidence: {evidence.line or evidence.text}" for evidence in one.evidence[:5]),
    ]
    return f"{one.severity} {one.root}: {one.title}", "\n".join(lines)


def open_ticket(ctx: Context) -> Result:
    """One for the incident: what a later run of it files is a note in the ticket that stands."""
    title, text = _story(ctx)
    one = ctx.incident
    name = f"{ctx.run.incident or ctx.run.id}:ticket"
    again = one is not None and one.run_count > 1
    if again:
        name = f"{name}:{ctx.run.id}"
    ctx.queue(
        Ticket(
            id=name,
            cluster=ctx.run.cluster,
            node=ctx.run.node,
            incident=ctx.run.incident,
            title=title,
            text=text,
            stage=TicketStage.updated if again else TicketStage.opened,
            severity=one.severity if one else Severity.P3,
            since=one.opened if one else ctx.run.created_at,
        )
    )
    return Done(text=f"Ticket filed: {title}", data={"id": name})


def notify(ctx: Context) -> Result:
    """People, by the site's sinks; for each job its owner, in Slurm."""
    if ctx.item is not None:
        return owners.tell(ctx)
    title, text = _story(ctx)
    name = f"{ctx.run.incident or ctx.run.id}:{ctx.step.id}"
    severity = ctx.incident.severity if ctx.incident else Severity.P3
    ctx.queue(
        Message(
            id=name,
            cluster=ctx.run.cluster,
            title=title,
            text=text,
            severity=severity,
            incident=ctx.run.incident,
            about=about(ctx.incident) if ctx.incident else About(node=ctx.run.node or ""),
        )
    )
    return Done(text=f"Message queued: {title}", data={"id": name})


def _nothing(_: Context) -> None:
    return None


TICKET = Action(probe=_nothing, do=_nothing, verify=open_ticket)
NOTIFY = Action(probe=_nothing, do=_nothing, verify=notify)
