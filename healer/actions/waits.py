"""Waits: for a good moment, for an empty node, for a person."""

from datetime import timedelta

from healer.actions.base import Action, Again, Context, Done, Result
from healer.actions.checks import cleared
from healer.actions.look import at_node_and_jobs
from healer.actions.reason import holder_of
from healer.decisions.wishes import agreed, wish_of
from healer.model import SlurmJob
from healer.ports.slurm import SchedulerUnavailable

LOOK_AGAIN_S = 5.0
#: A checkpoint is worth so much less the longer the job goes on after it.
MOMENT_S = 60


def _nothing(_: Context) -> None:
    return None


def job_end_or_checkpoint(ctx: Context) -> Result:
    """The moment at which taking the node costs its jobs least: each ended, or has just saved its work.

    A checkpoint helps only a job that agreed to be requeued (law 8): the others are waited for. It must be
    durable, of the job's present life (or tell none), and newer than this wait by both clocks, the job's and
    ours. A job that saves its work on a signal is ready at any time.
    """
    if over := cleared(ctx):
        return over
    read = at_node_and_jobs(ctx, LOOK_AGAIN_S)
    if not isinstance(read, tuple):
        return read
    node, jobs = read
    if holder := holder_of(node):
        return Again(text=f"{holder} {node.name} ({node.reason or 'no reason given'})", after_s=LOOK_AGAIN_S)
    alive = [job for job in jobs if "COMPLETING" not in job.flags]
    waits = [why for job in alive if (why := _not_yet(ctx, job)) is not None]
    if waits:
        return Again(text="; ".join(waits[:5]), after_s=LOOK_AGAIN_S)
    if not alive:
        return Done(text=f"No job runs on {node.name}", data={"moment_s": MOMENT_S, "jobs_then": []})
    names = [job.id for job in alive]
    text = f"Checkpoints are saved: {', '.join(names)}"
    return Done(text=text, data={"moment_s": MOMENT_S, "jobs_then": names})


def job_end(ctx: Context) -> Result:
    """No job runs on the node; one that is ending counts as ended. New ones may start all the same."""
    if over := cleared(ctx):
        return over
    read = at_node_and_jobs(ctx, LOOK_AGAIN_S)
    if not isinstance(read, tuple):
        return read
    node, jobs = read
    alive = [job.id for job in jobs if "COMPLETING" not in job.flags]
    if alive:
        return Again(text=f"job {', '.join(alive[:5])}: its end", after_s=LOOK_AGAIN_S)
    return Done(text=f"No job runs on {node.name}", data={"moment_s": MOMENT_S, "jobs_then": []})


def _not_yet(ctx: Context, job: SlurmJob) -> str | None:
    """What this job is waited for; None where its work is safe."""
    if not (job.batch and job.requeue and agreed(job, ctx.guards.consent)):
        return f"job {job.id} has not agreed to be requeued: its end"
    if wish_of(job).signal:
        return None  # it saves its work when it is told to
    return None if is_saved(ctx, job) else f"job {job.id}: its next durable checkpoint, or its end"


def is_saved(ctx: Context, job: SlurmJob) -> bool:
    """It has told of a durable checkpoint of its present life since this step began."""
    told = ctx.checkpoints.newest_durable(job.id) if ctx.checkpoints is not None else None
    return (
        told is not None
        and min(told.at, told.arrived_at) > ctx.began_at
        and told.restart in {0, job.restarts}  # 0 is also what a job tells that counts no lives
    )


def far_from_checkpoint(ctx: Context, lasts: timedelta) -> Again | None:
    """Why the job of this step is not requeued now: more than `lasts` of its work would be lost.

    None where it is no longer at work, was restarted already, or has just begun.
    """
    told = ctx.checkpoints.newest_durable(ctx.job) if ctx.checkpoints is not None else None
    try:
        job = ctx.scheduler.job(ctx.job)
    except SchedulerUnavailable as error:
        return Again(text=f"Slurm did not answer: {error}", after_s=LOOK_AGAIN_S)
    if job is None or not job.active or "COMPLETING" in job.flags or job.restarts != ctx.restarts:
        return None
    if wish_of(job).signal:
        return None
    kept = [job.start_at] if job.start_at is not None else []
    if told is not None and told.restart in {0, job.restarts}:
        kept.append(min(told.at, told.arrived_at))
    if any(ctx.now() - at <= lasts for at in kept):
        return None
    return Again(text=f"job {job.id}: its next durable checkpoint, or its end", after_s=LOOK_AGAIN_S)


def empty(ctx: Context) -> Result:
    """No job holds the node, and none can come."""
    read = at_node_and_jobs(ctx, LOOK_AGAIN_S)
    if not isinstance(read, tuple):
        return read
    node, jobs = read
    if jobs or node.busy:
        named = f"Job {', '.join(job.id for job in jobs)} is" if jobs else "Slurm shows work"
        return Again(text=f"{named} still on {node.name}", after_s=LOOK_AGAIN_S)
    if not node.drain:
        return Again(text=f"{node.name} is not drained any more", after_s=LOOK_AGAIN_S)
    return Done(text=f"{node.name} is drained and empty")


def repair(ctx: Context) -> Result:
    """Waits for a person to say that the node is repaired: their `resume` takes this run over."""
    return Again(text=f"Waits for the repair of {ctx.node}; `resume` ends the wait", after_s=None)


def time(ctx: Context) -> Result:
    """`input.lasts_s` seconds after this step began."""
    until = ctx.began_at + timedelta(seconds=int(ctx.step.input["lasts_s"]))
    left_s = (until - ctx.now()).total_seconds()
    if left_s <= 0:
        return Done(text="The time is over")
    return Again(text=f"Until {until:%Y-%m-%d %H:%M:%S} UTC", after_s=left_s)


def approval(ctx: Context) -> Result:
    """Waits for a person to approve what comes next."""
    what = ctx.step.title or f"{ctx.run.playbook} on {ctx.run.node or ctx.run.job}"
    return Again(text=f"Waits for an approval: {what}", after_s=None, data={"approval": True})


MOMENT = Action(probe=_nothing, do=_nothing, verify=job_end_or_checkpoint, effect=False)
EMPTY = Action(probe=_nothing, do=_nothing, verify=empty, effect=False)
REPAIR = Action(probe=_nothing, do=_nothing, verify=repair, effect=False)
JOB_END = Action(probe=_nothing, do=_nothing, verify=job_end, effect=False)
TIME = Action(probe=_nothing, do=_nothing, verify=time, effect=False)
APPROVAL = Action(probe=_nothing, do=_nothing, verify=approval, effect=False)
