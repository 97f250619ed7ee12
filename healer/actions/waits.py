"""Steps that wait: for a good moment, an empty node, a person."""

from datetime import datetime, timedelta

from healer.actions.base import (
    Action,
    Again,
    Context,
    Done,
    Failed,
    Result,
    Skipped,
    first_logged,
    holder_of,
    read_job,
    read_job_of_run,
    read_node,
    read_node_and_jobs,
)
from healer.actions.checks import cleared, reported_since
from healer.decisions.comments import restart_consent, wish_of
from healer.decisions.consent import why_not_restartable
from healer.model import SlurmJob, SlurmNode
from healer.model.slurm import is_ours, slurm_kind
from healer.ports.scheduling import SchedulerUnavailable

LOOK_AGAIN_S = 5.0
#: How long a checkpoint counts as a good moment, in seconds: the job goes on computing after it.
MOMENT_S = 60


def job_end_or_checkpoint(ctx: Context) -> Result:
    """The moment at which taking the node costs its jobs least: each has ended, or has just saved its work.

    A checkpoint helps only a job that agreed to be requeued (law 8); the end of others is awaited. It must be
    durable, of the job's present restart count (or without one), and newer than this wait by the job's clock
    and ours. A job that saves its work on a signal is ready at any time. It waits for `input.limit_s` at
    most.
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
    """`input.limit_s` is over, counted from the first wait: a guard that holds the drain does not restart
    it."""
    limit_s = ctx.step.input.get("limit_s")
    first = next((entry.at for entry in ctx.log if entry.step == ctx.part), ctx.began_at)
    return limit_s is not None and ctx.tools.now() - first > timedelta(seconds=int(limit_s))


def job_end(ctx: Context) -> Result:
    """No job runs on the node; a completing one counts as ended. New jobs may still start."""
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
    """What this job has to do first; None where its work is safe."""
    if not (job.batch and job.requeue and restart_consent(job, ctx.tools.guards.consent)):
        return f"job {job.id} has not agreed to be requeued: its end"
    if wish_of(job).signal:
        return None  # it saves its work on a signal
    return None if is_saved(ctx, job) else f"job {job.id}: its next durable checkpoint, or its end"


def is_saved(ctx: Context, job: SlurmJob) -> bool:
    """It has reported a durable checkpoint of its present restart count since this step began."""
    at = _saved_at(ctx, job)
    return at is not None and at > ctx.began_at


def _saved_at(ctx: Context, job: SlurmJob) -> datetime | None:
    """When the job's newest durable checkpoint was saved, by the earlier of the job's clock and ours."""
    saved = ctx.tools.checkpoints.newest_durable(job.id) if ctx.tools.checkpoints is not None else None
    # A job that does not count restarts reports 0.
    if saved is None or saved.restart not in {0, job.restarts}:
        return None
    return min(saved.at, saved.arrived_at)


def far_from_checkpoint(ctx: Context, lasts: timedelta) -> Again | None:
    """Why the job of this step is not requeued now: more than `lasts` of its work would be lost.

    None where it no longer runs, was restarted already, or has just begun.
    """
    try:
        job = ctx.tools.scheduler.job(ctx.job)
    except SchedulerUnavailable as error:
        return Again(text=f"Slurm did not answer: {error}", after_s=LOOK_AGAIN_S)
    if job is None or not job.active or "COMPLETING" in job.flags or job.restarts != ctx.restarts:
        return None
    if wish_of(job).signal:
        return None
    kept = (job.start_at, _saved_at(ctx, job))
    if any(at is not None and ctx.tools.now() - at <= lasts for at in kept):
        return None
    return Again(text=f"job {job.id}: its next durable checkpoint, or its end", after_s=LOOK_AGAIN_S)


def empty(ctx: Context) -> Result:
    """The node is drained, and no job is on it."""
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


#: The longest wait for a broken GPU to stop logging.
LONGEST_REPORTS = timedelta(minutes=15)


def reports_ended(ctx: Context) -> Result:
    """A failure logs its lines over minutes, and all of them together select the remedy. Over once nothing
    new came for `input.still_s`."""
    incident, now = ctx.incident, ctx.tools.now()
    still = timedelta(seconds=int(ctx.step.input["still_s"]))
    if incident is None:
        return Done(text="No incident tells of it")
    lines = reported_since(incident, incident.opened)
    last = max([incident.opened, *(line.arrived_at or line.at for line in lines)])
    left_s = (last + still - now).total_seconds()
    if left_s <= 0 or now - ctx.began_at >= LONGEST_REPORTS:
        return Done(text="Nothing new is told of it" if left_s <= 0 else "It is told all the time")
    return Again(text=f"More may be told of {ctx.node}", after_s=max(1.0, left_s))


def repair(ctx: Context) -> Result:
    """Waits for a person's repair of the node: their `resume` takes this run over."""
    return Again(text=f"Waits for the repair of {ctx.node}; `resume` ends the wait", after_s=None)


def time(ctx: Context) -> Result:
    """`input.lasts_s` seconds after this step began."""
    until = ctx.began_at + timedelta(seconds=int(ctx.step.input["lasts_s"]))
    left_s = (until - ctx.tools.now()).total_seconds()
    if left_s <= 0:
        return Done(text="The time is over")
    return Again(text=f"Until {until:%Y-%m-%d %H:%M:%S} UTC", after_s=left_s)


def approval(ctx: Context) -> Result:
    """Waits for a person to approve what comes next. The question names the jobs that may lose their work."""
    what = ctx.step.title or f"{ctx.run.playbook} on {ctx.run.node or ctx.run.job}"
    read = read_node_and_jobs(ctx, LOOK_AGAIN_S) if ctx.run.node else None
    jobs = [job.id for job in read[1]] if isinstance(read, tuple) else []
    text = f"Waits for an approval: {what}"
    if jobs:
        named = ", ".join([*jobs[:5], "…"] if len(jobs) > 5 else jobs)
        text = f"Waits for an approval: {what}. Jobs at work there: {named}"
    return Again(text=text, after_s=None, data={"approval": True})


MOMENT = Action(verify=job_end_or_checkpoint, effect=False)
EMPTY = Action(verify=empty, effect=False)
REPORTS_ENDED = Action(verify=reports_ended, effect=False)
REPAIR = Action(verify=repair, effect=False)
JOB_END = Action(verify=job_end, effect=False)
TIME = Action(verify=time, effect=False)
APPROVAL = Action(verify=approval, effect=False)


def checkpoint(ctx: Context) -> Result:
    """A durable checkpoint of the run's job that is newer than this wait, by the job's clock and by ours.

    A job that saves its work on a signal is ready at any time: its restart sends the signal. One that ended
    or was restarted meanwhile ends the run. Failed where Slurm would refuse the restart.
    """
    job = read_job_of_run(ctx)
    if not isinstance(job, SlurmJob):
        return job
    assert ctx.restarts is not None  # read_job_of_run checked it
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
    """A job that was put back runs again; Skipped for one that was not."""
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
    """Whether the job got the spare that this run handed over; empty without a spare."""
    spare = first_logged(reversed(ctx.log), "spare")
    if spare is None:
        return ""
    return f", {spare} in the place of {ctx.node}" if spare in job.nodes else f", without the spare {spare}"


CHECKPOINT = Action(verify=checkpoint, effect=False)
JOB_RUNS = Action(verify=job_runs, effect=False)


def reached(ctx: Context) -> Result:
    """Waits until Slurm reaches a node that it took out itself. A node back in service ends the run."""
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


REACHED = Action(verify=reached, effect=False)


# --- another owner's drain: healer waits for its end and never lifts it (law 5)


OWNER_AGAIN_S = 30.0


def lifted(ctx: Context) -> Result:
    """The drain is over, or it is healer's or Slurm's own by now, which ends the run. `input.lasts_s`: the
    wait before the owner is asked again; without it the wait has no end.

    A new reason counts as the owner's answer: the time starts again. An owner who acknowledged the incident
    is not asked again.
    """
    # From the stored picture: hundreds of drains that last for weeks must not query Slurm all the time.
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
