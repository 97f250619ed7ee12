"""What a job's owner is told in Slurm itself: one short line of what broke and what became of the job.

A job with a terminal (srun, salloc) gets it there, a batch job and one whose terminal takes nothing in its
admin comment. It is a courtesy: where Slurm does not take it, nothing is held up and nobody is woken.
"""

from healer.actions.base import Again, Context, Done, Result, Skipped
from healer.decisions.remarks import Remark, plain, remark_in, with_remark
from healer.decisions.wishes import wish_of
from healer.model import LogEntry, SlurmJob, StepEvent
from healer.ports.slurm import NotAvailable, SchedulerRefused, SchedulerUnavailable

_OVER = frozenset({StepEvent.done, StepEvent.skipped, StepEvent.failed})


def outcome_of(log: tuple[LogEntry, ...], job: str, but: str = "") -> str:
    """The last word of this run on the job; empty where it did nothing about it. `but`: a step left out."""
    ended = (one for one in reversed(log) if one.event in _OVER and one.step != but)
    return next((one.text for one in ended if one.step.partition(":")[2] == job), "")


def line_for(ctx: Context, job: SlurmJob) -> str:
    """`Xid 79: GPU fell off the bus on gpu0001. Job 4711 was requeued (restart 1) … (incident 0a1b2c3d)`."""
    cause = ctx.incident.title if ctx.incident is not None else ctx.run.reason
    did = outcome_of(ctx.log, ctx.job, ctx.part) or "Nothing was done to the job"
    unknown = wish_of(job).unknown
    asked = f". Not understood: {', '.join(unknown)}" if unknown else ""
    incident = f" (incident {ctx.incident.short_id})" if ctx.incident is not None else ""
    return plain(f"{cause} on {ctx.node}. {did}{asked}{incident}")


def tell(ctx: Context) -> Result:
    """The owner of this step's job. The same line again is nothing."""
    try:
        job = ctx.scheduler.job(ctx.job)
        if job is None:
            return Skipped(text=f"Slurm no longer knows job {ctx.job}: its owner could not be told there")
        text = line_for(ctx, job)
        if not job.batch and _notified(ctx, job, text):
            return Done(text=f"Told {job.user or 'the owner'} on the job's terminal: {text}")
        return _remarked(ctx, job, text)
    except SchedulerUnavailable as error:
        return Again(text=f"Slurm did not answer: {error}", after_s=2.0)
    except (NotAvailable, SchedulerRefused) as error:
        return Skipped(text=f"The owner of job {ctx.job} could not be told in Slurm: {error}")


def _notified(ctx: Context, job: SlurmJob, text: str) -> bool:
    """Slurm refuses where no program of the job listens, as after `salloc --no-shell`."""
    ctx.fence()
    try:
        ctx.scheduler.notify(job.id, f"healer: {text}")
    except (NotAvailable, SchedulerRefused):
        return False
    return True


def _remarked(ctx: Context, job: SlurmJob, text: str) -> Result:
    wanted = with_remark(job.admin_comment, Remark(text=text, off=remark_in(job.admin_comment).off))
    if wanted != job.admin_comment:
        ctx.fence()
        ctx.scheduler.remark(job.id, wanted)
    read = ctx.scheduler.job(job.id)
    if read is None or remark_in(read.admin_comment).text != text:
        return Again(text=f"The remark does not show on job {job.id} yet", after_s=1.0)
    return Done(text=f"Told {job.user or 'the owner'} in the job's admin comment: {text}")
