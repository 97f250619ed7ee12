"""Release: what healer left on a job, or what Slurm did because of healer, is taken off it.

With `input: {hold: true}` that is the hold of a job whose prolog failed because healer permitted it to; else
the nodes that it was kept off.
"""

from healer.actions import exclude
from healer.actions.base import Action, Again, Context, Done, Failed, Result, Skipped
from healer.actions.look import at_job
from healer.model import SlurmJob
from healer.model.permits import held_after_launch
from healer.ports.slurm import SchedulerRefused, SchedulerUnavailable


def _probe(ctx: Context) -> Result | None:
    job = at_job(ctx)
    if not isinstance(job, SlurmJob):
        return job
    if ctx.restarts is not None and job.restarts != ctx.restarts:
        return Skipped(text=f"Job {ctx.job} has been started again since: its hold is another one's")
    if not job.held_by and job.state == "PENDING":
        return Done(text=f"Job {ctx.job} is not held")
    if not held_after_launch(job):
        return Skipped(text=f"Job {ctx.job} is {job.state}: the hold of its failed launch does not stand")
    return None


def _do(ctx: Context) -> Result | None:
    ctx.fence()
    try:
        ctx.scheduler.release(ctx.job)
    except SchedulerRefused as error:
        return Failed(text=str(error))
    except SchedulerUnavailable:
        return None  # unknown whether it happened: verify reads back
    return None


def _verify(ctx: Context) -> Result:
    return _probe(ctx) or Again(text=f"Job {ctx.job} is still held", after_s=1.0)


_HOLD = Action(probe=_probe, do=_do, verify=_verify)


def _of(ctx: Context) -> Action:
    return _HOLD if ctx.step.input.get("hold") else exclude.RELEASE


ACTION = Action(
    probe=lambda ctx: _of(ctx).probe(ctx),
    do=lambda ctx: _of(ctx).do(ctx),
    verify=lambda ctx: _of(ctx).verify(ctx),
)
