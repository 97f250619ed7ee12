"""Revive: a job that a fault had ended before anybody could requeue it runs again.

Slurm's plain `requeue` would run a job again that ended well, so this is a verb of its own: FAILED and
NODE_FAIL alone, within 2 minutes of the fault, once per life (restart count), as long as slurmctld knows the
job (MinJobAge). Between look and call somebody else might revive it too: then it is pending, and Slurm
refuses the second one, or running, and is restarted once more: a window of milliseconds.
"""

from healer.actions import restart
from healer.actions.base import Action, Again, Context, Result, Skipped
from healer.incidents.jobs import crashed_among, moments_of
from healer.model import SlurmJob

_WORD = "revived"


def probe(ctx: Context) -> Result | None:
    job = restart.read(ctx)
    if not isinstance(job, SlurmJob):
        return job
    if restart.is_restarted(ctx, job):
        return restart.outcome(ctx, job, _WORD)
    if job.crashed and _by_the_fault(ctx, job):
        return None
    if job.crashed:
        return Skipped(text=f"Job {job.title} ended {job.state}, but not within 2 minutes of the fault")
    if restart.is_stuck(ctx, job):
        return Skipped(text=f"Job {job.title} is ending and does not end: it cannot be revived yet")
    if "COMPLETING" in job.flags:
        return Again(text=f"Job {job.title} is completing", after_s=1.0)
    if job.active or job.state == "PENDING":
        return Skipped(text=f"Job {job.title} is {job.state}; there is nothing to revive")
    return Skipped(
        text=f"Job {job.title} ended {job.state}: only what ended FAILED or NODE_FAIL is revived",
        data={"state": job.state},
    )


def _by_the_fault(ctx: Context, job: SlurmJob) -> bool:
    """A person who asks for this very job has looked themselves."""
    if ctx.incident is None or ctx.item is None:
        return True
    return bool(crashed_among([job], ctx.incident.root, moments_of(ctx.incident)))


def do(ctx: Context) -> Result | None:
    return restart.put_back(ctx, _WORD, _revive)


def _revive(ctx: Context, job: SlurmJob) -> Result | None:
    if job.crashed:
        ctx.fence()
        ctx.scheduler.revive(job.id)
    return None


def verify(ctx: Context) -> Result:
    return probe(ctx) or Again(text=f"Job {ctx.job} is being revived", after_s=0.25)


ACTION = Action(probe=probe, do=do, verify=verify)
