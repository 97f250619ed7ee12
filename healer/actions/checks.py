"""Steps that check the node and its fault, once or repeatedly: the jobs hit; whether the node answers, is
empty or freed; whether the fault is still present or still reported."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

import msgspec

from healer.actions.base import (
    Again,
    Context,
    Done,
    Failed,
    Result,
    held_by,
    holder_of,
    holds,
    is_fresh,
    jobs_pictured,
    read_node,
    read_node_and_jobs,
    reason_given,
    slurm_silent,
    whole_jobs,
)
from healer.actions.spares import places_of
from healer.incidents.certainty import MEASURED, senses_of, senses_text, why_not_looked, why_too_few_senses
from healer.incidents.impact import CRASH_WINDOW, PICTURE_AGE, crashed_among, hit_by_evidence, moments_of
from healer.incidents.lifecycle import CLEAR_FOR
from healer.incidents.node_history import out_of_service, summarize_node
from healer.model import (
    HARDWARE,
    CommandKind,
    Evidence,
    FaultClass,
    Incident,
    Remedy,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
)
from healer.model.slurm import NodeStatus, is_empty_reason, is_ours, slurm_kind
from healer.ports.scheduling import SchedulerUnavailable, UnknownNode
from healer.text import Said, quoted, said_by, say

LOOK_AGAIN_S = 5.0


def list_jobs(ctx: Context) -> Result:
    """The jobs hit, with restart counts. Listed after the drain was read back, when no new job can start."""
    try:
        on_node = ctx.tools.scheduler.jobs_on(ctx.node)
        node_gpus = ctx.tools.scheduler.node(ctx.node).gpus if on_node else 0
        hit, certain = hit_by_evidence(ctx.incident, on_node, ctx.node, node_gpus)
        hit = whole_jobs(ctx.tools.scheduler, hit)
        crashed = _crashed(ctx, {job.id for job in (*on_node, *hit)})
    except UnknownNode as error:
        return Failed(said_by(error), final=True)
    except SchedulerUnavailable as error:
        return slurm_silent(error, after_s=2.0)
    data: dict[str, object] = {
        "jobs": {job.id: job.restarts for job in hit} if certain else {},
        "crashed": {job.id: job.restarts for job in crashed},
        "titles": {job.id: job.title for job in (*hit, *crashed) if job.title != job.id},
        "on_node": [job.id for job in on_node],
    }
    if ctx.tools.guards.spares is not None:
        data["places"] = {job.id: places_of(job, on_node) for job in (*hit, *crashed)}
    listed = [*hit, *crashed] if certain else crashed
    if ctx.run.incident is not None:
        data["hit"] = jobs = sorted({job.id for job in listed} | _hit_and_ended(ctx, on_node))
        seen = ctx.incident.evidence_count if ctx.incident is not None else 0
        ctx.claim.tell_detector(ctx.command(CommandKind.jobs_hit, jobs=jobs, evidence_count=seen))
    return Done(_listed(ctx, hit, crashed, on_node, certain=certain), data)


def _hit_and_ended(ctx: Context, on_node: list[SlurmJob]) -> set[str]:
    """Jobs that a hardware fault hit when it began and that have ended since: a plan waited for them, the
    fault was reported late, or they were restarted off a node that had to stay. A job that was restarted
    elsewhere before the fault was known is not included."""
    incident = ctx.incident
    if incident is None or incident.fault_class not in HARDWARE:
        return set()
    left = set(incident.jobs_hit) - {job.leader for job in on_node}
    if Remedy.requeue_job in incident.remedy:
        return left  # they lost data, whatever happened to them since
    shown = {name: ctx.tools.scheduler.job(name) for name in left}
    moved = _moved_on(incident, shown)
    return {
        name
        for name, job in shown.items()
        if job is None or name in moved or _ended_after(incident, job, ctx.tools.now())
    }


def _moved_on(incident: Incident, shown: Mapping[str, SlurmJob | None]) -> set[str]:
    """Jobs whose life at the time of the fault is over. A fault that was reported immediately may rest on a
    Slurm snapshot that is older than their restart, unless they were queued again after it."""
    first = min((evidence.at for evidence in incident.evidence), default=incident.opened)
    is_late = incident.opened - first > PICTURE_AGE
    lives = {hit.job: hit.restart for hit in incident.hit}
    return {
        name
        for name, job in shown.items()
        if job is not None
        and job.restarts > lives.get(name, job.restarts)
        and (is_late or (job.submit_at is not None and job.submit_at > incident.opened))
    }


def _ended_after(incident: Incident, job: SlurmJob, now: datetime) -> bool:
    """The job ended after the fault. If the incident has just begun, its list may rest on a snapshot in which
    the job was still running."""
    if job.unfinished:
        return False
    first = min((evidence.at for evidence in incident.evidence), default=incident.opened)
    return now - incident.opened > CRASH_WINDOW or (job.end_at is not None and job.end_at >= first)


def _listed(
    ctx: Context, hit: list[SlurmJob], crashed: list[SlurmJob], on_node: list[SlurmJob], *, certain: bool
) -> Said:
    names = ", ".join(f"{job.title} ({job.state})" for job in crashed)
    ended = say("actions.jobs_hit_ended", jobs=names)
    if certain and not hit:
        return ended if crashed else say("actions.jobs_hit_none")
    first = _hit(hit) if certain else _unsure(ctx, on_node)
    return say("actions.jobs_hit_and_ended", first=first, ended=ended) if crashed else first


def _hit(hit: list[SlurmJob]) -> Said:
    return say("actions.jobs_hit", jobs=", ".join(job.title for job in hit))


def _unsure(ctx: Context, on_node: list[SlurmJob]) -> Said:
    listed = ", ".join(sorted(job.title for job in on_node))
    pci = ctx.incident.root.pci if ctx.incident else None
    if not pci:
        return say("actions.jobs_hit_some_gpu", jobs=listed)
    return say("actions.jobs_hit_which_gpu", pci=pci, jobs=listed)


def _crashed(ctx: Context, at_work: set[str]) -> list[SlurmJob]:
    """The incident's jobs that a fault had ended before the list was made."""
    incident = ctx.incident
    if incident is None:
        return []
    named = (ctx.tools.scheduler.job(name) for name in incident.jobs_hit if name not in at_work)
    gone = whole_jobs(ctx.tools.scheduler, (job for job in named if job is not None and job.crashed))
    where = msgspec.structs.replace(incident.root, node=ctx.node)
    return crashed_among(gone, where, moments_of(incident))


#: A fault line within this time before the return keeps the node out.
LATELY = timedelta(minutes=1)


def node_answers(ctx: Context) -> Result:
    """Fit to return by Slurm and the kernel log: the node responds, and there was no new fault line."""
    node = read_node(ctx)
    if holder := holder_of(node):
        return Failed(say("actions.answers_holder", holder=holder, reason=reason_given(node)), final=True)
    state = "+".join(node.state)
    if "NOT_RESPONDING" in node.state:
        return Failed(say("actions.not_reached", node=node.name, state=state))
    if since := _recent_reports(ctx):
        return Failed(say("actions.answers_new_line", text=quoted(since[-1].text)), final=True)
    asleep = node.status is NodeStatus.power_saving
    text = say("actions.answers_off" if asleep else "actions.answers_well", node=node.name, state=state)
    return Done(text, {"state": list(node.state), "gpus": node.gpus})


def _recent_reports(ctx: Context) -> list[Evidence]:
    """Fault lines since this check or the run's tests began; for the first minute also those since the drain.

    A `resume` checks milliseconds after a person requested it, too soon for a broken GPU to log again. Lines
    before the drain were its cause. Counted by arrival, as the host's clock may be wrong. Measurements are
    excluded, because they lag behind; a lasting one is reported again.
    """
    incident = ctx.incident
    since = ctx.began_at if ctx.tested_at is None else min(ctx.began_at, ctx.tested_at)
    if incident is not None and incident.drained_at is not None:
        since = min(since, max(incident.drained_at, ctx.tools.now() - LATELY))
    return lines_since(ctx, since)


def lines_since(ctx: Context, since: datetime) -> list[Evidence]:
    """What speaks against returning the run's node since then: lines of its incident, and of other fatal
    faults of the node, which came after the remedy and which no test of that remedy is meant to find. Without
    those of the worse incident to which healer's own run leaves the node at its return."""
    found = ctx.claim.history(since).incidents
    treated = next((incident for incident in found if incident.id == ctx.run.incident), ctx.incident)
    worse = treated.worse if treated is not None and ctx.run.by == "healer" else None
    others = (
        other
        for other in found
        if other.id not in (ctx.run.incident, worse)
        and other.is_open
        and other.fault_class is FaultClass.fatal
    )
    reporting = (*others, treated) if treated is not None else others
    return [line for incident in reporting for line in reported_since(incident, ctx.node, since)]


def reported_since(incident: Incident, node: str | None, since: datetime) -> list[Evidence]:
    """The incident's evidence against the node that arrived after `since`, without measurements.

    An incident of a job keeps collecting reports from the job's other nodes."""
    reported = (evidence for evidence in incident.evidence if evidence.sense not in MEASURED)
    against = (evidence for evidence in reported if evidence.component.node in (None, node))
    return [evidence for evidence in against if (evidence.arrived_at or evidence.at) > since]


def still_slow(ctx: Context) -> Result:
    """Whether the cause is still present and enough senses report it: `senses` of the step's input (1).

    A person's request or approval needs no senses.
    """
    incident = ctx.incident
    if incident is None or ctx.run.by != "healer":
        return Done(say("actions.asks_for_it", who=ctx.run.by))
    if over := cleared(ctx):
        return over
    if ctx.run.approved_by:
        return Done(say("actions.slow_approved", who=ctx.run.approved_by))
    needed = int(ctx.step.input.get("senses", 1))
    senses = senses_of(incident, ctx.tools.now())
    if len(senses) < needed:
        return Failed(why_too_few_senses(incident, needed, ctx.tools.now()), final=True)
    text = say("actions.slow_senses", senses=senses_text(senses), node=ctx.node)
    return Done(text, {"senses": [str(sense) for sense in senses]})


def still_silent(ctx: Context) -> Result:
    """Whether the node is silent and Slurm does not reach it either: one of the two alone takes no node.
    Waits while Slurm does not reach other nodes of its places, which is an outage of the place.

    A node that is reached again ends the run, once the stored snapshot, by which the incident ends, shows it
    too. A person's request needs neither.
    """
    incident = ctx.incident
    if incident is None or ctx.run.by != "healer":
        return Done(say("actions.asks_for_it", who=ctx.run.by))
    node = read_node(ctx, after_s=5.0)
    state = "+".join(node.state)
    picture = ctx.tools.picture()
    if node.responding:
        shown = picture.nodes.get(node.name) if picture is not None else None
        text = say("actions.silent_reached", node=node.name, state=state)
        if shown is not None and shown.responding:
            return Done(text, {"ends_run": True})
        return Again(text, 1.0)
    if incident.clear_since is not None:
        text = say("actions.silent_heard", node=node.name, since=f"{incident.clear_since:%H:%M:%S}")
        return Done(text, {"ends_run": True})
    if others := unreached_neighbours(node.name, picture):
        return Again(say("actions.silent_others", nodes=", ".join(others[:3])), 5.0)
    return Done(say("actions.silent_still", node=node.name, state=state))


def unreached_neighbours(name: str, picture: SlurmSnapshot | None) -> list[str]:
    """Nodes of its switch, rack, PDU or NVLink domain that Slurm does not reach, and that no person
    drained."""
    return [
        other.name
        for other in (picture.neighbours_of(name) if picture is not None else ())
        if not (other.responding or other.planned)
        and (is_empty_reason(other.reason) or slurm_kind(other.reason))
    ]


def cleared(ctx: Context) -> Done | Again | None:
    """The result if the senses see that the cause is gone: wait for `CLEAR_FOR`, then end the run. None: not
    gone.

    Also waits if the senses have not ticked recently, because the state is unknown then.
    """
    if ctx.incident is None or ctx.run.by != "healer":
        return None
    if why := why_not_looked(ctx.incident, ctx.tools.now()):
        return Again(why, 5.0)
    since = ctx.incident.clear_since
    if since is None:
        return None
    clear = f"{since:%H:%M:%S}"
    if ctx.tools.now() - since < CLEAR_FOR:
        return Again(say("actions.cleared_waits", node=ctx.node, since=clear), 5.0)
    return Done(say("actions.cleared_over", node=ctx.node, since=clear), {"ends_run": True})


DAYS = 14


def history(ctx: Context) -> Result:
    now = ctx.tools.now()
    since = now - timedelta(days=int(ctx.step.input.get("days", DAYS)))
    found = ctx.claim.history(since)
    text = summarize_node(found, ctx.node, since, now, but=ctx.run.incident or "")
    data = {
        "evidence": True,
        "incidents": [incident.id for incident in found.incidents],
        "tickets": len(found.ticketed),
        "out_s": round(out_of_service(found, since, now).total_seconds()),
    }
    return Done(text, data)


def who_holds(holder: Said, node: SlurmNode) -> Said:
    return say("actions.waits_holder", holder=holder, node=node.name, reason=reason_given(node))


# --- waits for the node


def empty(ctx: Context) -> Result:
    """The node is drained, and no job is on it."""
    if pictured := jobs_pictured(ctx):
        return _jobs_on(ctx, pictured)
    node, jobs = read_node_and_jobs(ctx, LOOK_AGAIN_S)
    if jobs:
        return _jobs_on(ctx, jobs)
    if node.busy:
        return Again(say("actions.waits_work_on", node=node.name), LOOK_AGAIN_S)
    if not node.drain:
        return Again(say("actions.not_drained", node=node.name), LOOK_AGAIN_S)
    return Done(say("actions.waits_empty", node=node.name))


def _jobs_on(ctx: Context, jobs: Iterable[SlurmJob]) -> Again:
    text = say("actions.waits_jobs_on", jobs=", ".join(job.title for job in jobs), node=ctx.node)
    return Again(text, LOOK_AGAIN_S)


#: The longest wait for a broken GPU to stop logging.
LONGEST_REPORTS = timedelta(minutes=15)


def reports_ended(ctx: Context) -> Result:
    """A failure logs its lines over minutes, and all of them together select the remedy. Passes once nothing
    new came for `input.still_s` from this step's begin; no host's wrong clock ends the wait."""
    incident, now = ctx.incident, ctx.claim.earlier_now()
    still = timedelta(seconds=int(ctx.step.input["still_s"]))
    if incident is None:
        return Done(say("actions.waits_no_incident"))
    waited = ctx.waited(now)
    lines = reported_since(incident, ctx.node, incident.opened)
    last = max([incident.opened, now - waited, *(line.arrived_at or line.at for line in lines)])
    left_s = (last + still - now).total_seconds()
    if left_s <= 0 or waited >= LONGEST_REPORTS:
        picture = ctx.tools.picture()  # dated by the poller: a third clock, where hosts are three
        if picture is not None and not is_fresh(ctx, picture):
            return Again(say("actions.waits_reports_clock"), LOOK_AGAIN_S)
        return Done(say("actions.waits_reports_over" if left_s <= 0 else "actions.waits_reports_last"))
    return Again(say("actions.waits_reports_more", node=ctx.node), max(1.0, left_s))


def reached(ctx: Context) -> Result:
    """Waits until Slurm reaches a node that it took out itself. A node back in service ends the run."""
    node = read_node(ctx, after_s=5.0)
    state = "+".join(node.state)
    if not node.held:
        return Done(say("actions.waits_nothing_to_take", node=node.name, state=state), {"ends_run": True})
    if slurm_kind(node.reason) is None and (holder := holder_of(node)):
        return held_by(holder, node)
    if "NOT_RESPONDING" in node.state:
        return Again(say("actions.not_reached", node=node.name, state=state), 5.0)
    return Done(say("actions.waits_reached", node=node.name, state=state), {"state": list(node.state)})


# --- another owner's drain: healer waits for its end and never lifts it (law 5)


OWNER_AGAIN_S = 30.0


def lifted(ctx: Context) -> Result:
    """The drain is over, or it has become healer's or Slurm's own, which ends the run. `input.lasts_s`: the
    time until the owner is asked again; without it the wait has no end.

    A new reason counts as the owner's answer and restarts the time. An owner who acknowledged the incident is
    not asked again.
    """
    # From the stored snapshot: hundreds of drains that last for weeks must not query Slurm all the time.
    shown = ctx.tools.picture()
    if shown is None:
        return Again(say("actions.waits_no_picture"), OWNER_AGAIN_S)
    node = shown.nodes.get(ctx.node)
    if node is None:
        return Done(say("actions.waits_node_forgotten", node=ctx.node), {"ends_run": True})
    if not node.held:
        return Done(say("actions.waits_not_held", node=node.name), {"ends_run": True})
    if is_ours(node.reason) or slurm_kind(node.reason):
        return Done(say("actions.waits_held_by_none", node=node.name, reason=node.reason), {"ends_run": True})
    taken = ctx.incident.acknowledged_by if ctx.incident is not None else None
    if taken is not None:
        return Again(say("actions.waits_taken", who=taken), OWNER_AGAIN_S)
    lasts_s = ctx.step.input.get("lasts_s")
    text = who_holds(holds(node), node)
    if lasts_s is None:
        return Again(text, OWNER_AGAIN_S)
    since = max(ctx.began_at, node.reason_at) if node.reason_at is not None else ctx.began_at
    until = since + timedelta(seconds=int(lasts_s))
    left_s = (until - ctx.tools.now()).total_seconds()
    if left_s <= 0:
        return Done(say("actions.waits_no_answer", text=text, since=f"{since:%Y-%m-%d %H:%M}"))
    return Again(text, min(OWNER_AGAIN_S, left_s))
