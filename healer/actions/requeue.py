"""Requeue: a job is restarted exactly once and asked to start at once.

Fenced by its restart count: the list of jobs hit was taken with it, and a job whose count has grown since
has been restarted, by us or by Slurm. `requeue Incomplete` does nothing to a job that is not running.
"""

from healer.actions.base import Action, Again, Context, Done, Failed, Result, Skipped
from healer.actions.reason import is_ours
from healer.model import SlurmJob
from healer.ports import SchedulerRefused, SchedulerUnavailable

#: Slurm's error numbers (facts, d.4) that mean: this job cannot be requeued, whoever asks.
_NEVER = {2037: "the job forbids it (--no-requeue)", 2039: "it is no batch job", 2107: "not the leader"}
_PENDING = 2024


def _read(ctx: Context) -> SlurmJob | Result:
    try:
        job = ctx.scheduler.job(ctx.job)
    except SchedulerUnavailable as error:
        return Again(text=f"Slurm did not answer: {error}", after_s=2.0)
    return job if job is not None else Skipped(text=f"Slurm no longer knows job {ctx.job}")


def probe(ctx: Context) -> Result | None:
    job = _read(ctx)
    if not isinstance(job, SlurmJob):
        return job
    if ctx.restarts is None:
        return Failed(text=f"the restart count of job {ctx.job} is not known", final=True)
    if job.restarts > ctx.restarts:
        return _restarted(job)
    if job.active:
        return None
    if job.state == "PENDING":
        return Skipped(text=f"Job {job.id} is pending; there is nothing to requeue")
    return Skipped(
        text=f"Job {job.id} had ended {job.state} before it could be requeued",
        data={"state": job.state},
    )


def _restarted(job: SlurmJob) -> Result | None:
    """After the restart: done once nothing but the scheduler's own order keeps it from starting."""
    if job.state == "RUNNING":
        return Done(
            text=f"Job {job.id} runs again on {','.join(job.nodes)} (restart {job.restarts})",
            data={"restarts": job.restarts, "nodes": list(job.nodes), "state": job.state},
        )
    if job.state == "PENDING" and "COMPLETING" not in job.flags and job.reason != "BeginTime":
        return Done(
            text=f"Job {job.id} was requeued (restart {job.restarts}), waits: {job.reason or 'scheduling'}",
            data={"restarts": job.restarts, "state": job.state, "reason": job.reason},
        )
    if job.state in {"PENDING", "COMPLETING"} or job.active:
        return None
    return Done(text=f"Job {job.id} was restarted and is {job.state}", data={"restarts": job.restarts})


def do(ctx: Context) -> Result | None:
    job = _read(ctx)
    if not isinstance(job, SlurmJob):
        return job
    try:
        if job.restarts > (ctx.restarts or 0):
            # A begin time of `cred_expire` keeps a requeued job back; it can be lifted after COMPLETING only.
            if "COMPLETING" not in job.flags and job.reason == "BeginTime":
                ctx.fence()
                ctx.scheduler.start_now(job.id)
        elif "COMPLETING" not in job.flags:
            if ctx.item is not None and not _still_ours(ctx):
                return Skipped(text=f"{ctx.node} was given back: job {job.id} stays where it runs")
            ctx.fence()
            ctx.scheduler.requeue(job.id)
    except SchedulerRefused as error:
        if error.code in _NEVER:
            return Skipped(
                text=f"Job {job.id} is not requeued: {_NEVER[error.code]}", data={"code": error.code}
            )
        if error.code != _PENDING:
            return Failed(text=str(error))
    except SchedulerUnavailable:
        return None
    return None


def _still_ours(ctx: Context) -> bool:
    """The node that the jobs are taken from is still drained by us; a person may have given it back."""
    node = ctx.scheduler.node(ctx.node)
    return node.drain and is_ours(node.reason)


def verify(ctx: Context) -> Result:
    return probe(ctx) or Again(text=f"Job {ctx.job} is being requeued", after_s=0.25)


ACTION = Action(probe=probe, do=do, verify=verify)
