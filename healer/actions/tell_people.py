"""Tickets and messages. They are queued with a stable id; no step waits for their delivery."""

from itertools import chain

from msgspec.structs import replace

from healer.actions.base import Action, Again, Context, Done, Result, Skipped, slurm_silent
from healer.decisions.comments import Remark, one_line, remark_in, wish_of, with_remark
from healer.decisions.decide import severity_of
from healer.incidents.lifecycle import jobs_listed
from healer.model import (
    About,
    Component,
    Incident,
    LogEntry,
    Message,
    Severity,
    SlurmJob,
    StepEvent,
    Ticket,
    TicketStage,
)
from healer.ports.scheduling import NotAvailable, SchedulerRefused, SchedulerUnavailable
from healer.telling.news import about_incident, ticket_words
from healer.text import NO_WORDS, Said, joined, said_by, say

#: The most jobs whose restart a ticket or message lists individually.
_JOBS_NAMED = 10
_OVER = frozenset({StepEvent.done, StepEvent.skipped, StepEvent.failed})


def outcome_of(log: tuple[LogEntry, ...], job: str, but: str = "") -> Said:
    """The last outcome of this run for the job; empty if it did nothing for it. `but`: a step to leave
    out."""
    ended = (entry for entry in reversed(log) if entry.event in _OVER and entry.step != but)
    return next((entry.text for entry in ended if entry.step.partition(":")[2] == job), NO_WORDS)


def line_for(ctx: Context, job: SlurmJob) -> str:
    """`Xid 79: GPU fell off the bus on gpu0001. Job 4711 was requeued (restart 1) … (incident 0a1b2c3d)`."""
    cause = ctx.incident.title if ctx.incident is not None else ctx.run.reason
    did = outcome_of(ctx.log, ctx.job, ctx.part) or "Nothing was done to the job"
    unknown = wish_of(job).unknown
    asked = f". Not understood: {', '.join(unknown)}" if unknown else ""
    incident = f" (incident {ctx.incident.short_id})" if ctx.incident is not None else ""
    return one_line(f"{cause} on {ctx.node}. {did}{asked}{incident}")


def notify_owner(ctx: Context) -> Result:
    """Notifies the owner of this step's job. Repeating the same text changes nothing."""
    try:
        job = ctx.tools.scheduler.job(ctx.job)
        if job is None:
            return Skipped(say("actions.notify_job_gone", job=ctx.job))
        text = line_for(ctx, job)
        if not job.batch and _notified(ctx, job, text):
            return Done(say("actions.notify_on_terminal", who=_owner(job), text=text))
        return _remarked(ctx, job, text)
    except SchedulerUnavailable as error:
        return slurm_silent(error, 2.0)
    except (NotAvailable, SchedulerRefused) as error:
        return Skipped(say("actions.notify_refused", job=ctx.job, error=said_by(error)))


def _owner(job: SlurmJob) -> str:
    return job.user or say("actions.notify_owner")


def _notified(ctx: Context, job: SlurmJob, text: str) -> bool:
    """Writes to the job's terminal. False if Slurm refuses, for example after `salloc --no-shell`."""
    ctx.fence()
    try:
        ctx.tools.scheduler.notify(job.id, f"healer: {text}")
    except (NotAvailable, SchedulerRefused):
        return False
    return True


def _remarked(ctx: Context, job: SlurmJob, text: str) -> Result:
    wanted = with_remark(job.admin_comment, Remark(text=text, off=remark_in(job.admin_comment).off))
    if wanted != job.admin_comment:
        ctx.fence()
        ctx.tools.scheduler.remark(job.id, wanted)
    read = ctx.tools.scheduler.job(job.id)
    if read is None or remark_in(read.admin_comment).text != text:
        return Again(say("actions.notify_not_shown", job=job.id), 1.0)
    return Done(say("actions.notify_in_comment", who=_owner(job), text=text))


def _found(ctx: Context) -> list[Said]:
    """The evidence found by steps of this run, without repeats."""
    over = (entry for entry in ctx.log if entry.event is StepEvent.done and entry.data.get("evidence"))
    return [say("actions.ticket_found", text=text) for text in dict.fromkeys(entry.text for entry in over)]


def _restarts(ctx: Context, jobs: tuple[str, ...]) -> list[Said]:
    """What this run did for each job hit, so that owners know whether it runs again."""
    did = ((job, outcome_of(ctx.log, job)) for job in jobs[:_JOBS_NAMED])
    return [text or say("actions.ticket_not_restarted", job=job) for job, text in did]


def _hardware(ctx: Context, root: Component) -> list[Said]:
    """Where the node is, and what is written on the GPU's board, for the person who goes there: a GPU that
    has fallen off the bus cannot be asked."""
    lines: list[Said] = []
    picture = ctx.tools.picture()
    node = picture.nodes.get(root.node or "") if picture is not None else None
    rack = say("actions.ticket_rack", rack=node.rack) if node is not None and node.rack else NO_WORDS
    switch = say("incidents.switch", switch=node.switch) if node is not None and node.switch else NO_WORDS
    if place := joined(filter(None, (rack, switch)), "comma"):
        lines.append(say("actions.ticket_place", place=place))
    gpu = ctx.claim.reported_gpu(root) if root.gpu is not None or root.pci else {}
    number = say("actions.ticket_serial", serial=gpu["serial"]) if gpu.get("serial") else NO_WORDS
    address = "" if root.pci else gpu.get("pci")  # else it is part of the place above
    if board := joined(filter(None, (number, gpu.get("uuid"), address)), "comma"):
        lines.append(say("actions.ticket_board", board=board))
    return lines


def _as_handled(ctx: Context) -> Incident | None:
    """The incident as the detector will read it: its run has come to this step, so no guard holds it, it
    waits for no approval, and it is not P0. The jobs are those that the run has listed."""
    incident = ctx.incident
    if incident is None or incident.run != ctx.run.id:
        return incident
    lists = [entry.data["hit"] for entry in ctx.log if "hit" in entry.data]
    if lists:
        jobs = jobs_listed(incident, chain.from_iterable(lists))
        incident = replace(incident, jobs_hit=jobs, jobs_hit_final=True)
    return replace(incident, held_by=None, severity=severity_of(incident, None, None))


def _describe(ctx: Context) -> tuple[Said, Said]:
    incident = _as_handled(ctx)
    if incident is None:
        title = say(
            "actions.ticket_title_of_run", playbook=ctx.run.playbook, where=ctx.run.node or ctx.run.job
        )
        return title, joined([ctx.run.reason, *_found(ctx)], "line")
    found = [*_hardware(ctx, incident.root), *_found(ctx)]
    return ticket_words(incident, ctx.tools.now(), found, _restarts(ctx, incident.jobs_hit))


def _is_later_run(ctx: Context) -> bool:
    return ctx.incident is not None and ctx.incident.run_count > 1


def _is_ticketed(ctx: Context) -> bool:
    """Whether its ticket was opened before this run: by an earlier one, or while a guard held this one."""
    return _is_later_run(ctx) or (ctx.incident is not None and ctx.incident.ticket_precedes_run)


def _id(ctx: Context, what: str, *, again: bool) -> str:
    """The same for each attempt of this run. `again`: the incident already has a delivery of this kind."""
    name = f"{ctx.run.incident or ctx.run.id}:{what}"
    return f"{name}:{ctx.run.id}" if again else name


def open_ticket(ctx: Context) -> Result:
    """Opens the incident's ticket; a later run of the incident updates it."""
    title, text = _describe(ctx)
    incident, is_open = _as_handled(ctx), _is_ticketed(ctx)
    name = _id(ctx, "ticket", again=is_open)
    ctx.claim.queue(
        Ticket(
            id=name,
            cluster=ctx.run.cluster,
            node=ctx.run.node,
            incident=ctx.run.incident,
            title=title,
            text=text,
            stage=TicketStage.updated if is_open else TicketStage.opened,
            severity=incident.severity if incident else Severity.P3,
            since=incident.opened if incident else ctx.run.created_at,
        )
    )
    return Done(say("actions.ticket_filed", title=title), {"id": name})


def notify(ctx: Context) -> Result:
    """Messages people through the site's channels; for a job also its owner in Slurm."""
    if ctx.item is not None:
        return notify_owner(ctx)
    title, text = _describe(ctx)
    incident, name = _as_handled(ctx), _id(ctx, ctx.step.id, again=_is_later_run(ctx))
    severity = incident.severity if incident else Severity.P3
    ctx.claim.queue(
        Message(
            id=name,
            cluster=ctx.run.cluster,
            title=title,
            text=text,
            severity=severity,
            incident=ctx.run.incident,
            about=about_incident(incident) if incident else About(node=ctx.run.node or ""),
        )
    )
    return Done(say("actions.notify_queued", title=title), {"id": name})


TICKET = Action(verify=open_ticket)
NOTIFY = Action(verify=notify)
