"""Requeue: a job is restarted exactly once and asked to start at once.

Fenced by its restart count: the list of jobs hit was taken with it, and a job whose count has grown since
has been restarted, by us or by Slurm. `requeue Incomplete` does nothing to a job that is not running. Tasks
of an array are jobs of their own; a heterogeneous job goes as a whole, by its leader.
"""

from healer.actions import restart
from healer.actions.base import Action, Again, Context, Result, Skipped
from healer.actions.reason import is_ours
from healer.actions.signals import save_first, time_is_over
from healer.model import SlurmJob, StepEvent

_WORD = "requeued"


def probe(ctx: Context) -> Result | None:
    agreed = ctx.item in ctx.run.input.get("restart", {})
    return _seen(ctx, may_be_ours=_begun(ctx) or not agreed)


def _seen(ctx: Context, *, may_be_ours: bool = True) -> Result | None:
    job = restart.read(ctx)
    if not isinstance(job, SlurmJob):
        return job
    if restart.is_restarted(ctx, job):
        if may_be_ours:
            return restart.outcome(ctx, job, _WORD)
        return Skipped(text=f"Job {job.title} was restarted since: nobody agreed to a restart of this life")
    if restart.is_stuck(ctx, job, time_is_over(ctx)):
        return Skipped(text=f"Job {job.title} is ending and does not end", data={"crashed": True})
    if job.active:
        return None
    if job.state == "PENDING":
        return Skipped(text=f"Job {job.title} is pending; there is nothing to requeue")
    return Skipped(
        text=f"Job {job.title} had ended {job.state} before it could be requeued",
        data={"state": job.state, "crashed": job.crashed},
    )


def _begun(ctx: Context) -> bool:
    """This step was at work before: the restart may be its own."""
    return any(one.event is StepEvent.started for one in ctx.lines)


def do(ctx: Context) -> Result | None:
    return restart.put_back(ctx, _WORD, _requeue)


def _requeue(ctx: Context, job: SlurmJob) -> Result | None:
    if "COMPLETING" in job.flags:
        return None
    if ctx.item is not None and not _still_ours(ctx):
        return Skipped(text=f"{ctx.node} was given back: job {job.title} stays where it runs")
    if (saves := save_first(ctx, job)) is not None:
        return saves
    ctx.fence()
    ctx.scheduler.requeue(job.id)
    return None


def _still_ours(ctx: Context) -> bool:
    """The node that the jobs are taken from is still drained by us; a person may have given it back."""
    node = ctx.scheduler.node(ctx.node)
    return node.drain and is_ours(node.reason)


def verify(ctx: Context) -> Result:
    text = f"Job {ctx.job} is being requeued"
    return _seen(ctx) or Again(text=text, after_s=0.25, since=time_is_over(ctx))


ACTION = Action(probe=probe, do=do, verify=verify)
