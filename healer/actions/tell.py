"""Tickets and messages. They stand in healer's own list with a stable id; delivery is never waited for."""

from healer.actions import owners
from healer.actions.base import Action, Context, Done, Result
from healer.incidents.news import about
from healer.incidents.verdict import said
from healer.model import About, Message, Severity, Ticket, TicketStage


def _story(ctx: Context) -> tuple[str, str]:
    one = ctx.incident
    if one is None:
        return f"{ctx.run.playbook} on {ctx.run.node or ctx.run.job}", ctx.run.reason
    jobs = ", ".join(one.jobs_hit) or "none"
    lines = [
        said(one),
        f"Where: {one.root}",
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
