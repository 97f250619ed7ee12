"""What `requeue` and `revive` share: reading the job, and bringing one that was put back to its start.

A job that was put back waits `cred_expire` + 1 s before Slurm starts it. In that time it is kept off nodes
that are known to be bad and stay in service, gets a spare for the node that it lost, and then is asked to
start at once. So no hold is needed, which would cost it its place; anybody else's stays (d.8, 15).
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from healer.actions import exclude, spares
from healer.actions.base import Again, Context, Done, Failed, Result, Skipped
from healer.actions.signals import time_is_over
from healer.model import SlurmJob
from healer.ports.slurm import SchedulerRefused, SchedulerUnavailable, whole_job

#: Slurm's error numbers (facts, d.4) that mean: this job cannot be restarted, whoever asks.
_NEVER = {2037: "the job forbids it (--no-requeue)", 2039: "it is no batch job", 2107: "not the leader"}
_PENDING = 2024
#: Until the next scheduling pass a revived job still shows why it ended (seen on 22.05 and 24.11).
_BEFORE_BEGIN = ("BeginTime", "NonZeroExitCode", "RaisedSignal", "NodeDown", "JobLaunchFailure")

#: A job that has been COMPLETING for longer is not waited for by the step that put it back.
ENDS_WITHIN = timedelta(seconds=30)


def read(ctx: Context) -> SlurmJob | Result:
    """The job of this step; the leader where it is a component of a heterogeneous job (2107)."""
    try:
        job = whole_job(ctx.scheduler, ctx.job)
    except SchedulerUnavailable as error:
        return Again(text=f"Slurm did not answer: {error}", after_s=2.0)
    if job is None:
        return Skipped(text=f"Slurm no longer knows job {ctx.job}")
    if ctx.restarts is None:
        return Failed(text=f"the restart count of job {ctx.job} is not known", final=True)
    return job


def is_restarted(ctx: Context, job: SlurmJob) -> bool:
    return job.restarts > (ctx.restarts or 0)


def is_stuck(ctx: Context, job: SlurmJob, since: datetime | None = None) -> bool:
    """Its end on some node goes on and on, as with an epilog that hangs: a later step frees the node."""
    began = max(ctx.began_at, since) if since is not None else ctx.began_at
    return "COMPLETING" in job.flags and ctx.now() - began > ENDS_WITHIN


def outcome(ctx: Context, job: SlurmJob, word: str) -> Result | None:
    """After the restart: done once nothing but the scheduler's own order keeps it from starting."""
    if "REVOKED" in {job.state, *job.flags}:
        where = ", ".join(one for one in (*job.siblings, job.origin) if one) or "another cluster"
        return Done(text=f"Job {job.title} was {word}; its federation runs it on {where}")
    if job.state == "RUNNING":
        return Done(
            text=f"Job {job.title} was {word} and runs again on {_named(job.nodes)} (restart {job.restarts})",
            data={"restarts": job.restarts, "nodes": list(job.nodes), "state": job.state},
        )
    if job.state == "PENDING" and "COMPLETING" not in job.flags:
        if job.reason.startswith(_BEFORE_BEGIN) or exclude.missing(ctx, job):
            return None
        held = f", stays held by its {job.held_by}" if job.held_by else _why(job)
        return Done(
            text=f"Job {job.title} was {word} (restart {job.restarts}){held}",
            data={"restarts": job.restarts, "state": job.state, "reason": job.reason},
        )
    if is_stuck(ctx, job, time_is_over(ctx)):
        text = f"Job {job.title} was {word}; it starts when its end on {_named(job.nodes)} is over"
        return Done(text=text, data={"restarts": job.restarts, "state": job.state})
    if job.state in {"PENDING", "COMPLETING"} or job.active:
        return None
    return Done(
        text=f"Job {job.title} was restarted and is {job.state}",
        data={"restarts": job.restarts, "state": job.state},
    )


def _named(nodes: Sequence[str]) -> str:
    """`gpu0001, gpu0002, gpu0003 and 125 more`"""
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    return f"{', '.join(nodes[:3])}{more}"


def _why(job: SlurmJob) -> str:
    if not job.reason and not job.dependency:
        return " and starts as soon as Slurm's scheduler comes to it"
    kept = f" ({job.dependency}, which a restart keeps)" if job.dependency else ""
    return f", waits: {job.reason or 'scheduling'}{kept}"


def put_back(ctx: Context, word: str, effect: Callable[[Context, SlurmJob], Result | None]) -> Result | None:
    """Puts the job back by `effect`, once; one that was put back is brought to its start."""
    job = read(ctx)
    if not isinstance(job, SlurmJob):
        return job
    try:
        return _go_on(ctx, job) if is_restarted(ctx, job) else effect(ctx, job)
    except SchedulerRefused as error:
        return _refused(error, job, word)
    except SchedulerUnavailable:
        return None  # it may have come through: the next look tells


def _go_on(ctx: Context, job: SlurmJob) -> Result | None:
    """The next effect on a job that was put back. Sent before it has left COMPLETING it has none."""
    if job.state != "PENDING" or "COMPLETING" in job.flags:
        return None
    step = exclude.keep_off(ctx, job) or spares.hand_over(ctx, job)
    if step is not None:
        return step
    if job.reason.startswith(_BEFORE_BEGIN):
        ctx.fence()
        ctx.scheduler.start_now(job.id)
    return None


def _refused(error: SchedulerRefused, job: SlurmJob, word: str) -> Result | None:
    if error.code in _NEVER:
        text = f"Job {job.title} is not {word}: {_NEVER[error.code]}"
        return Skipped(text=text, data={"code": error.code})
    return None if error.code == _PENDING else Failed(text=str(error), final=error.no_right)
