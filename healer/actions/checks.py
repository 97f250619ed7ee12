"""Steps that only look or wait: a fault that is still there, a good moment, an empty node, a person."""

from datetime import datetime, timedelta

import msgspec

from healer.actions.base import (
    Action,
    Again,
    Context,
    Done,
    Failed,
    Result,
    Skipped,
    holder_of,
    read_job,
    read_job_of_run,
    read_node,
    read_node_and_jobs,
    whole_jobs,
)
from healer.decisions.comments import restart_consent, wish_of
from healer.decisions.consent import why_not_restartable
from healer.incidents.growth import MEASURED, not_looked, senses_of, spoken, too_few
from healer.incidents.impact import CRASH_WINDOW, crashed_among, hit_by_evidence, moments_of
from healer.incidents.lifecycle import CLEAR_FOR
from healer.incidents.node_history import out_of_service, summarize_node
from healer.model import (
    HARDWARE,
    CommandKind,
    Evidence,
    Incident,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
)
from healer.model.slurm import is_empty_reason, is_ours, slurm_kind
from healer.ports.scheduling import SchedulerUnavailable, UnknownNode


def list_jobs(ctx: Context) -> Result:
    """The jobs hit, with restart counts. Taken after the drain was read back: none can start any more."""
    try:
        on_node = ctx.tools.scheduler.jobs_on(ctx.node)
        node_gpus = ctx.tools.scheduler.node(ctx.node).gpus if on_node else 0
        hit, certain = hit_by_evidence(ctx.incident, on_node, ctx.node, node_gpus)
        hit = whole_jobs(ctx.tools.scheduler, hit)
        crashed = _crashed(ctx, {job.id for job in (*on_node, *hit)})
    except UnknownNode as error:
        return Failed(text=str(error), final=True)
    except SchedulerUnavailable as error:
        return Again(text=f"Slurm did not answer: {error}", after_s=2.0)
    data: dict[str, object] = {
        "jobs": {job.id: job.restarts for job in hit} if certain else {},
        "crashed": {job.id: job.restarts for job in crashed},
        "titles": {job.id: job.title for job in (*hit, *crashed) if job.title != job.id},
        "on_node": [job.id for job in on_node],
    }
    listed = [*hit, *crashed] if certain else crashed
    if ctx.run.incident is not None:
        jobs = sorted({job.id for job in listed} | _gone(ctx, on_node))
        ctx.claim.tell_detector(ctx.command(CommandKind.jobs_hit, jobs=jobs))
    return Done(text=_listed(ctx, hit, crashed, on_node, certain=certain), data=data)


def _gone(ctx: Context, on_node: list[SlurmJob]) -> set[str]:
    """Jobs that a fault of hardware hit when it began, and that ended since: a plan waits for that. One that
    has another life elsewhere has left the fault behind."""
    incident = ctx.incident
    if incident is None or incident.fault_class not in HARDWARE:
        return set()
    if ctx.tools.now() - incident.opened <= CRASH_WINDOW:
        return set()  # so shortly after it the picture of then may have been older than these jobs
    left = set(incident.jobs_hit) - {job.leader for job in on_node}
    shown = {name: ctx.tools.scheduler.job(name) for name in left}
    return {name for name, job in shown.items() if job is None or not (job.active or job.state == "PENDING")}


def _listed(
    ctx: Context, hit: list[SlurmJob], crashed: list[SlurmJob], on_node: list[SlurmJob], *, certain: bool
) -> str:
    before = f"Ended before anybody looked: {', '.join(f'{job.title} ({job.state})' for job in crashed)}"
    if not certain:
        listed = ", ".join(sorted(job.title for job in on_node))
        pci = ctx.incident.root.pci if ctx.incident else None
        unsure = (
            f"Which GPU {pci or 'it'} is cannot be told, so nobody can say which of the jobs {listed} "
            "it hits: none is requeued"
        )
        return f"{unsure}. {before}" if crashed else unsure
    if not hit:
        return before if crashed else "No job was hit"
    text = f"Jobs hit: {', '.join(job.title for job in hit)}"
    return f"{text}. {before}" if crashed else text


def _crashed(ctx: Context, at_work: set[str]) -> list[SlurmJob]:
    """Of the jobs that the incident names: those whose work had ended when the list was taken."""
    incident = ctx.incident
    if incident is None:
        return []
    known = (ctx.tools.scheduler.job(name) for name in incident.jobs_hit if name not in at_work)
    gone = whole_jobs(ctx.tools.scheduler, (job for job in known if job is not None and job.crashed))
    where = msgspec.structs.replace(incident.root, node=ctx.node)
    return crashed_among(gone, where, moments_of(incident))


#: A line that came so shortly before the return speaks against it.
LATELY = timedelta(minutes=1)


def node_answers(ctx: Context) -> Result:
    """Fit to return as far as Slurm and its kernel tell: it answers, and no new fault line came."""
    node = read_node(ctx)
    if not isinstance(node, SlurmNode):
        return node
    if holder := holder_of(node):
        return Failed(text=f"{holder} it: {node.reason or 'no reason given'}", final=True)
    if "NOT_RESPONDING" in node.state:
        return Failed(text=f"Slurm does not reach {node.name} ({'+'.join(node.state)})")
    if since := _told_lately(ctx):
        return Failed(text=f"A new fault line came since: {since[-1].text}", final=True)
    return Done(
        text=f"{node.name} answers Slurm ({'+'.join(node.state)}); no new fault line",
        data={"state": list(node.state), "gpus": node.gpus},
    )


def reached(ctx: Context) -> Result:
    """Waits until Slurm reaches a node that it took out itself. Back in service by then: the run is over."""
    node = read_node(ctx, after_s=5.0)
    if not isinstance(node, SlurmNode):
        return node
    state = "+".join(node.state)
    if not node.held:
        return Done(text=f"{node.name} is {state}: there is nothing to take over", data={"ends_run": True})
    if slurm_kind(node.reason) is None and (holder := holder_of(node)):
        return Failed(text=f"{holder} {node.name}: {node.reason or 'no reason given'}", final=True)
    if "NOT_RESPONDING" in node.state:
        return Again(text=f"Slurm does not reach {node.name} ({state})", after_s=5.0)
    return Done(text=f"Slurm reaches {node.name} ({state})", data={"state": list(node.state)})


def _told_lately(ctx: Context) -> list[Evidence]:
    """Fault lines since this check began; for a minute also those since the drain.

    A `resume` looks milliseconds after a person asked for it, so what came since then is nothing to rest on,
    while a GPU that is still broken goes on to tell so. What came before the drain was its cause. By arrival:
    the host's clock may be wrong. What was measured lags behind, and under tests it is no sign of a fault:
    whoever measures tells again what goes on. A run that tests its node counts from the begin of its tests.
    """
    incident = ctx.incident
    if incident is None:
        return []
    since = ctx.began_at if ctx.tested_at is None else min(ctx.began_at, ctx.tested_at)
    if incident.drained_at is not None:
        since = min(since, max(incident.drained_at, ctx.tools.now() - LATELY))
    return told_since(incident, since)


def told_since(incident: Incident, since: datetime) -> list[Evidence]:
    """What was told since then, and not measured."""
    told = (one for one in incident.evidence if one.sense not in MEASURED)
    return [one for one in told if (one.arrived_at or one.at) > since]


def still_slow(ctx: Context) -> Result:
    """Whether the cause is still there and enough senses tell of it: `senses` of the step's input (1).

    A person who asks for it or approves it needs no senses: theirs is one.
    """
    one = ctx.incident
    if one is None or ctx.run.by != "healer":
        return Done(text=f"{ctx.run.by} asks for it")
    if over := cleared(ctx):
        return over
    if ctx.run.approved_by:
        return Done(text=f"{ctx.run.approved_by} approved it")
    needed = int(ctx.step.input.get("senses", 1))
    told = senses_of(one, ctx.tools.now())
    if len(told) < needed:
        return Failed(text=too_few(one, needed, ctx.tools.now()), final=True)
    return Done(text=f"{spoken(told)} tell of {ctx.node}", data={"senses": [str(sense) for sense in told]})


def still_silent(ctx: Context) -> Result:
    """Whether nothing is heard of the node and Slurm does not reach it either: one alone takes no node. It
    waits while Slurm does not reach others of its places: that is their outage.

    Reached again: the run is over, once the stored picture shows so too, for by that the incident ends. A
    person who asks for it needs neither.
    """
    one = ctx.incident
    if one is None or ctx.run.by != "healer":
        return Done(text=f"{ctx.run.by} asks for it")
    node = read_node(ctx, after_s=5.0)
    if not isinstance(node, SlurmNode):
        return node
    state = "+".join(node.state)
    picture = ctx.tools.picture()
    if node.responding:
        shown = picture.nodes.get(node.name) if picture is not None else None
        text = f"Slurm reaches {node.name} again ({state}): nothing is done"
        if shown is not None and shown.responding:
            return Done(text=text, data={"ends_run": True})
        return Again(text=text, after_s=1.0)
    if one.clear_since is not None:
        heard = f"{node.name} speaks again since {one.clear_since:%H:%M:%S} UTC"
        return Done(text=f"{heard}: nothing is done, though Slurm does not reach it", data={"ends_run": True})
    if others := unreached_beside(node.name, picture):
        named = ", ".join(others[:3])
        text = f"Slurm does not reach {named} of the same place either: waits for their outage to end"
        return Again(text=text, after_s=5.0)
    return Done(text=f"Nothing is heard of {node.name}, and Slurm does not reach it ({state})")


def unreached_beside(name: str, picture: SlurmSnapshot | None) -> list[str]:
    """Nodes of its switch, rack, PDU or NVLink domain that Slurm does not reach, and that nobody holds."""
    shown = picture.nodes.get(name) if picture is not None else None
    if picture is None or shown is None:
        return []
    places = set(shown.outage_places)
    return [
        other.name
        for other in picture.nodes.values()
        if other.name != name
        and not (other.responding or other.planned)
        and (is_empty_reason(other.reason) or slurm_kind(other.reason))
        and not places.isdisjoint(other.outage_places)
    ]


def cleared(ctx: Context) -> Done | Again | None:
    """What to do where the senses say that the cause is gone: nothing for a while, then the run is over.

    Where the senses have not looked of late it is not known: nothing is done on that either.
    """
    if ctx.incident is None or ctx.run.by != "healer":
        return None
    if why := not_looked(ctx.incident, ctx.tools.now()):
        return Again(text=why, after_s=5.0)
    since = ctx.incident.clear_since
    if since is None:
        return None
    if ctx.tools.now() - since < CLEAR_FOR:
        return Again(text=f"{ctx.node} is well again since {since:%H:%M:%S} UTC: waits to see", after_s=5.0)
    text = f"{ctx.node} is well again since {since:%H:%M:%S} UTC: nothing is done"
    return Done(text=text, data={"ends_run": True})


JOBS_HIT = Action(verify=list_jobs, effect=False)
REACHED = Action(verify=reached, effect=False)
NODE_ANSWERS = Action(verify=node_answers, effect=False)
STILL_SILENT = Action(verify=still_silent, effect=False)
STILL_SLOW = Action(verify=still_slow, effect=False)


DAYS = 14


def history(ctx: Context) -> Result:
    now = ctx.tools.now()
    since = now - timedelta(days=int(ctx.step.input.get("days", DAYS)))
    found = ctx.claim.history(since)
    text = summarize_node(found, ctx.node, since, now, but=ctx.run.incident or "")
    data = {
        "evidence": True,
        "incidents": [one.id for one in found.incidents],
        "tickets": len(found.ticketed),
        "out_s": round(out_of_service(found, since, now).total_seconds()),
    }
    return Done(text=text, data=data)


HISTORY = Action(verify=history, effect=False)


# --- waits


LOOK_AGAIN_S = 5.0
#: A checkpoint is worth so much less the longer the job goes on after it.
MOMENT_S = 60


def job_end_or_checkpoint(ctx: Context) -> Result:
    """The moment at which taking the node costs its jobs least: each ended, or has just saved its work.

    A checkpoint helps only a job that agreed to be requeued (law 8): the others are waited for. It must be
    durable, of the job's present life (or tell none), and newer than this wait by both clocks, the job's and
    ours. A job that saves its work on a signal is ready at any time. It waits for `input.limit_s` at most.
    """
    if over := cleared(ctx):
        return over
    read = read_node_and_jobs(ctx, LOOK_AGAIN_S)
    if not isinstance(read, tuple):
        return read
    node, jobs = read
    if holder := holder_of(node):
        return Again(text=f"{holder} {node.name} ({node.reason or 'no reason given'})", after_s=LOOK_AGAIN_S)
    alive = [job for job in jobs if "COMPLETING" not in job.flags]
    waits = [why for job in alive if (why := _not_yet(ctx, job)) is not None]
    if waits and _is_late(ctx):
        text = f"No such moment within {int(ctx.step.input['limit_s']) // 3600} h: {'; '.join(waits[:5])}"
        return Done(text=text, data={"moment_s": MOMENT_S, "jobs_then": [job.id for job in alive]})
    if waits:
        return Again(text="; ".join(waits[:5]), after_s=LOOK_AGAIN_S)
    if not alive:
        return Done(text=f"No job runs on {node.name}", data={"moment_s": MOMENT_S, "jobs_then": []})
    names = [job.id for job in alive]
    text = f"Checkpoints are saved: {', '.join(names)}"
    return Done(text=text, data={"moment_s": MOMENT_S, "jobs_then": names})


def _is_late(ctx: Context) -> bool:
    """Counted from the first wait: a moment that passed while a guard held the drain begins no new time."""
    limit_s = ctx.step.input.get("limit_s")
    first = next((one.at for one in ctx.log if one.step == ctx.part), ctx.began_at)
    return limit_s is not None and ctx.tools.now() - first > timedelta(seconds=int(limit_s))


def job_end(ctx: Context) -> Result:
    """No job runs on the node; one that is ending counts as ended. New ones may start all the same."""
    if over := cleared(ctx):
        return over
    read = read_node_and_jobs(ctx, LOOK_AGAIN_S)
    if not isinstance(read, tuple):
        return read
    node, jobs = read
    alive = [job.id for job in jobs if "COMPLETING" not in job.flags]
    if alive:
        return Again(text=f"job {', '.join(alive[:5])}: its end", after_s=LOOK_AGAIN_S)
    return Done(text=f"No job runs on {node.name}", data={"moment_s": MOMENT_S, "jobs_then": []})


def _not_yet(ctx: Context, job: SlurmJob) -> str | None:
    """What this job is waited for; None where its work is safe."""
    if not (job.batch and job.requeue and restart_consent(job, ctx.tools.guards.consent)):
        return f"job {job.id} has not agreed to be requeued: its end"
    if wish_of(job).signal:
        return None  # it saves its work when it is told to
    return None if is_saved(ctx, job) else f"job {job.id}: its next durable checkpoint, or its end"


def is_saved(ctx: Context, job: SlurmJob) -> bool:
    """It has told of a durable checkpoint of its present life since this step began."""
    told = ctx.tools.checkpoints.newest_durable(job.id) if ctx.tools.checkpoints is not None else None
    return (
        told is not None
        and min(told.at, told.arrived_at) > ctx.began_at
        and told.restart in {0, job.restarts}  # 0 is also what a job tells that counts no lives
    )


def far_from_checkpoint(ctx: Context, lasts: timedelta) -> Again | None:
    """Why the job of this step is not requeued now: more than `lasts` of its work would be lost.

    None where it is no longer at work, was restarted already, or has just begun.
    """
    told = ctx.tools.checkpoints.newest_durable(ctx.job) if ctx.tools.checkpoints is not None else None
    try:
        job = ctx.tools.scheduler.job(ctx.job)
    except SchedulerUnavailable as error:
        return Again(text=f"Slurm did not answer: {error}", after_s=LOOK_AGAIN_S)
    if job is None or not job.active or "COMPLETING" in job.flags or job.restarts != ctx.restarts:
        return None
    if wish_of(job).signal:
        return None
    kept = [job.start_at] if job.start_at is not None else []
    if told is not None and told.restart in {0, job.restarts}:
        kept.append(min(told.at, told.arrived_at))
    if any(ctx.tools.now() - at <= lasts for at in kept):
        return None
    return Again(text=f"job {job.id}: its next durable checkpoint, or its end", after_s=LOOK_AGAIN_S)


def empty(ctx: Context) -> Result:
    """No job holds the node, and none can come."""
    read = read_node_and_jobs(ctx, LOOK_AGAIN_S)
    if not isinstance(read, tuple):
        return read
    node, jobs = read
    if jobs or node.busy:
        named = f"Job {', '.join(job.id for job in jobs)} is" if jobs else "Slurm shows work"
        return Again(text=f"{named} still on {node.name}", after_s=LOOK_AGAIN_S)
    if not node.drain:
        return Again(text=f"{node.name} is not drained any more", after_s=LOOK_AGAIN_S)
    return Done(text=f"{node.name} is drained and empty")


#: Longer than this nobody waits for the end of what a broken GPU goes on to tell.
TOLD_OUT = timedelta(minutes=15)


def told_out(ctx: Context) -> Result:
    """A failure tells its lines over minutes: the remedy is what they together ask for. Over once nothing
    new came for `input.still_s`."""
    incident, now = ctx.incident, ctx.tools.now()
    still = timedelta(seconds=int(ctx.step.input["still_s"]))
    if incident is None:
        return Done(text="No incident tells of it")
    lines = told_since(incident, incident.opened)
    last = max([incident.opened, *(one.arrived_at or one.at for one in lines)])
    left_s = (last + still - now).total_seconds()
    if left_s <= 0 or now - ctx.began_at >= TOLD_OUT:
        return Done(text="Nothing new is told of it" if left_s <= 0 else "It is told all the time")
    return Again(text=f"More may be told of {ctx.node}", after_s=max(1.0, left_s))


def repair(ctx: Context) -> Result:
    """Waits for a person to say that the node is repaired: their `resume` takes this run over."""
    return Again(text=f"Waits for the repair of {ctx.node}; `resume` ends the wait", after_s=None)


def time(ctx: Context) -> Result:
    """`input.lasts_s` seconds after this step began."""
    until = ctx.began_at + timedelta(seconds=int(ctx.step.input["lasts_s"]))
    left_s = (until - ctx.tools.now()).total_seconds()
    if left_s <= 0:
        return Done(text="The time is over")
    return Again(text=f"Until {until:%Y-%m-%d %H:%M:%S} UTC", after_s=left_s)


def approval(ctx: Context) -> Result:
    """Waits for a person to approve what comes next."""
    what = ctx.step.title or f"{ctx.run.playbook} on {ctx.run.node or ctx.run.job}"
    return Again(text=f"Waits for an approval: {what}", after_s=None, data={"approval": True})


MOMENT = Action(verify=job_end_or_checkpoint, effect=False)
EMPTY = Action(verify=empty, effect=False)
TOLD_OUT_WAIT = Action(verify=told_out, effect=False)
REPAIR = Action(verify=repair, effect=False)
JOB_END = Action(verify=job_end, effect=False)
TIME = Action(verify=time, effect=False)
APPROVAL = Action(verify=approval, effect=False)


def checkpoint(ctx: Context) -> Result:
    """A durable checkpoint of the run's job that is newer than this wait, by the job's clock and by ours.

    A job that saves its work on a signal is ready at any time: its restart sends the signal. One that ended
    or was restarted meanwhile needs nothing any more. Where Slurm would refuse the restart a person is asked.
    """
    job = read_job_of_run(ctx)
    if not isinstance(job, SlurmJob):
        return job
    assert ctx.restarts is not None  # that look has seen to it
    if job.restarts > ctx.restarts:
        return Done(text=f"Job {job.title} was restarted meanwhile", data={"ends_run": True})
    if not job.active or "COMPLETING" in job.flags:
        return Done(text=f"Job {job.title} is {job.state}: nothing to requeue", data={"ends_run": True})
    if why := why_not_restartable(job):
        return Failed(text=why, final=True)
    if wish := wish_of(job).signal:
        return Done(text=f"Job {job.title} saves its work on {wish}", data={"moment_s": MOMENT_S})
    if is_saved(ctx, job):
        return Done(text=f"Job {job.title} has saved a checkpoint", data={"moment_s": MOMENT_S})
    return Again(text=f"job {job.title}: its next durable checkpoint, or its end", after_s=LOOK_AGAIN_S)


def job_runs(ctx: Context) -> Result:
    """A job that was put back runs again. One that was not is no matter of this wait."""
    job = read_job(ctx)
    if not isinstance(job, SlurmJob):
        return job
    if ctx.restarts is None or job.restarts <= ctx.restarts:
        return Skipped(text=f"Job {job.title} was not put back")
    if job.state == "RUNNING" and "COMPLETING" not in job.flags:
        text = (
            f"Job {job.title} runs again (restart {job.restarts}) on {len(job.nodes)} nodes{_spare(ctx, job)}"
        )
        return Done(text=text, data={"nodes": list(job.nodes), "restarts": job.restarts})
    if job.state == "PENDING" or "COMPLETING" in job.flags:
        why = job.reason or "its turn"
        return Again(text=f"Job {job.title} waits: {why}", after_s=LOOK_AGAIN_S)
    return Done(text=f"Job {job.title} was put back and is {job.state}", data={"state": job.state})


def _spare(ctx: Context, job: SlurmJob) -> str:
    """What became of the spare that this run handed over."""
    spare = next((one.data["spare"] for one in reversed(ctx.log) if one.data.get("spare")), None)
    if spare is None:
        return ""
    return f", {spare} in the place of {ctx.node}" if spare in job.nodes else f", without the spare {spare}"


CHECKPOINT = Action(verify=checkpoint, effect=False)
JOB_RUNS = Action(verify=job_runs, effect=False)


# --- somebody else's drain: healer waits for its end and never lifts it (law 5)


OWNER_AGAIN_S = 30.0


def lifted(ctx: Context) -> Result:
    """The drain is over, or it is healer's or Slurm's own by now: then the run ends. `input.lasts_s`: so long
    it is waited for before the owner is asked again; without it for good.

    An owner who gives a new reason has answered: the time counts from there. Who took the incident on is not
    asked again.
    """
    # The stored picture does: hundreds of drains, each for weeks, are no reason to ask Slurm all the time.
    shown = ctx.tools.picture()
    if shown is None:
        return Again(text="There is no picture of Slurm yet", after_s=OWNER_AGAIN_S)
    node = shown.nodes.get(ctx.node)
    if node is None:
        return Done(text=f"Slurm no longer knows {ctx.node}", data={"ends_run": True})
    if not node.held:
        return Done(text=f"{node.name} is not held any more", data={"ends_run": True})
    if is_ours(node.reason) or slurm_kind(node.reason):
        return Done(text=f"Nobody else holds {node.name} now: {node.reason}", data={"ends_run": True})
    taken = ctx.incident.acknowledged_by if ctx.incident is not None else None
    if taken is not None:
        return Again(text=f"{taken} has it: nobody is asked again", after_s=OWNER_AGAIN_S)
    lasts_s = ctx.step.input.get("lasts_s")
    text = f"{node.reason_user or 'Somebody'} holds {node.name} ({node.reason or 'no reason given'})"
    if lasts_s is None:
        return Again(text=text, after_s=OWNER_AGAIN_S)
    since = max(ctx.began_at, node.reason_at) if node.reason_at is not None else ctx.began_at
    until = since + timedelta(seconds=int(lasts_s))
    left_s = (until - ctx.tools.now()).total_seconds()
    if left_s <= 0:
        return Done(text=f"{text}, with no answer since {since:%Y-%m-%d %H:%M} UTC")
    return Again(text=text, after_s=min(OWNER_AGAIN_S, left_s))


LIFTED = Action(verify=lifted, effect=False)
