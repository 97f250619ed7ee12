"""What healer tells people by itself, outside of playbooks. A stable id each: a repeat is no second page."""

from datetime import datetime
from hashlib import sha256

from healer.incidents.verdict import said
from healer.model import APPROVAL_LASTS, About, Breaker, Incident, Message, Run, RunState, Severity
from healer.telling.news import about


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
    """For rules whose remedy is to tell somebody. P0 and P1 wake them."""
    nodes = ", ".join(sorted(incident.nodes)) or "none"
    return Message(
        id=f"{incident.id}:opened",
        cluster=incident.cluster,
        title=f"{incident.severity} {incident.root}: {incident.title}",
        text=f"{said(incident)}\nNodes: {nodes}\nhealer does nothing by itself here.",
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
        text=f"{said(incident)}\nWhere: {incident.root}\nJobs hit: {jobs}\nhealer: {why}",
        severity=Severity.P0,
        page=True,
        incident=incident.id,
        about=about(incident),
    )


def fell_back(cluster: str, rule: str, why: str, incident: str, request: str) -> Message:
    """A rule was wrong too often to act alone any longer. Nobody is woken: it asks first from now on."""
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
    """Nobody approved in time, before the run or at a step of it; nothing is done for that (law 8)."""
    begun = run.state is RunState.waiting and run.approve_until is not None
    asked_at = run.approve_until - APPROVAL_LASTS if begun and run.approve_until else run.created_at
    what = run.question if begun and run.question else run.reason
    return Message(
        id=f"{run.id}:approval:{asked_at:%Y%m%dT%H%M%S}" if begun else f"{run.id}:approval",
        cluster=run.cluster,
        title=f"Nobody has approved {run.playbook} on {run.node or run.job}",
        text=f"{what}\nIt was asked at {asked_at:%H:%M} UTC and waits. Nothing is done before "
        "somebody approves or rejects it.",
        # A run that has begun has done what is urgent: nobody is woken for the rest.
        severity=Severity.P1 if begun else Severity.P0,
        page=not begun,
        incident=run.incident,
        about=About(rule=run.rule, node=run.node or "", run=run.id),
    )
