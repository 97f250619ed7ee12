"""Sweep: the tests of an idle node by one job of ours, with no drain and no reservation. It gives way.

Slurm decides when the job starts: it is submitted with the lowest priority that a user may ask for, for this
node alone, with a short limit, and is never requeued. While it is there the gate is asked again every second
whether it may stay; where it may not, it is cancelled, and nothing else ever is. A job that was cancelled,
preempted or killed says nothing of its node: the verdict is what its tests told.
"""

from collections.abc import Iterator

from healer.actions import test_job
from healer.actions.base import Action, Again, Context, Done, Failed, Result
from healer.actions.test_form import Ended
from healer.decisions.sweeps import SWEEP_JOBS
from healer.model import SlurmJob
from healer.ports.scheduling import SchedulerUnavailable

LOOK_AGAIN_S = 1.0


def _name(ctx: Context) -> str:
    return f"{SWEEP_JOBS}{ctx.run.id[:8]}"


def _submitted(ctx: Context) -> str | None:
    return next((one.data["submitted"] for one in ctx.lines if one.data.get("submitted")), None)


def _job(ctx: Context) -> SlurmJob | None:
    """Our job by the id that Slurm gave for it. Where a worker died before it could note that: by its name,
    comment and user, of which anybody can give the first two."""
    number = _submitted(ctx)
    if number is not None:
        job = ctx.tools.scheduler.job(number)
        return job if job is not None and job.name == _name(ctx) else None
    return next(_by_name(ctx), None)


def _by_name(ctx: Context) -> Iterator[SlurmJob]:
    users = ctx.tools.users()
    for job in ctx.tools.scheduler.snapshot().jobs.values():
        if (job.name, job.comment) == (_name(ctx), ctx.key) and job.user in users:
            yield job


def _gives_way(ctx: Context) -> str | None:
    """Why it gave way, as it was noted before the job was cancelled."""
    return next((str(one.data["gives_way"]) for one in ctx.lines if one.data.get("gives_way")), None)


def _probe(ctx: Context) -> Result | None:
    try:
        job = _job(ctx)
    except SchedulerUnavailable as error:
        return Again(text=f"Slurm did not answer: {error}", after_s=LOOK_AGAIN_S)
    if job is None:
        number = _submitted(ctx)
        return _no_verdict(ctx, f"Slurm no longer knows job {number}") if number is not None else None
    if not job.active and job.state != "PENDING":
        return _verdict(ctx, job)
    if _gives_way(ctx) is not None:
        return _cancelled(ctx, job)
    if (why := ctx.claim.stays() or test_job.not_started(ctx, job, ctx.began_at)) is not None:
        # Noted first: what the tests say from here on comes of their end.
        return Again(text=f"Gives way: {why}", after_s=0, data={"gives_way": why, "submitted": job.id})
    return Again(text=f"The test job {job.id} on {ctx.node} {test_job.does(job)}", after_s=LOOK_AGAIN_S)


def _cancelled(ctx: Context, job: SlurmJob) -> Result:
    """Its own job and no other: by the id that Slurm gave, under the name that we gave."""
    if (failed := test_job.cancel(ctx, job)) is not None:
        return failed
    return Again(text=f"Job {job.id} was cancelled and comes to its end", after_s=LOOK_AGAIN_S)


def _no_verdict(ctx: Context, why: str) -> Done:
    return Done(text=f"{why}: no verdict on {ctx.node}", data={"verdict": "none"})


def _verdict(ctx: Context, job: SlurmJob) -> Result:
    """An answer is what a test told; whatever ended the job from outside is none."""
    why, answer = _gives_way(ctx), test_job.judged(ctx, job)
    if why is not None:
        return _no_verdict(ctx, f"Gave way: {why.rstrip('.')}")
    failed = [name for name, one in answer.told.tests.items() if one is Ended.failed]
    told = job.state == "COMPLETED" or (job.state == "FAILED" and bool(failed))
    if not told:
        return _no_verdict(ctx, answer.head)
    if not answer.data["passed"]:
        test = failed[0] if failed else "compared"
        says = answer.told.says.get(test, "") if failed else "; ".join(answer.data["worse"])
        ctx.claim.tell_detector(test_job.failed_test(ctx, ctx.node, test, says or answer.head))
    return Done(text=answer.text, data=answer.data)


def _do(ctx: Context) -> Result | None:
    asked = test_job.asked_for(ctx)
    if isinstance(asked, Failed):
        return asked
    try:
        node = ctx.tools.scheduler.node(ctx.node)
    except SchedulerUnavailable:
        return None  # nothing was submitted
    settings = ctx.tools.guards.sweep
    partition = settings.partition or next(iter(node.partitions), "")
    job = test_job.submission(
        ctx, asked, node, name=_name(ctx), partition=partition, qos=settings.qos, nice=test_job.NICE
    )
    return test_job.hand_in(ctx, asked, job, look_again_s=LOOK_AGAIN_S)


def _verify(ctx: Context) -> Result:
    return _probe(ctx) or Again(text=f"The tests of {ctx.node} begin", after_s=LOOK_AGAIN_S)


def _undo(ctx: Context) -> Result:
    try:
        job = _job(ctx)
    except SchedulerUnavailable as error:
        return Again(text=f"Slurm did not answer: {error}", after_s=LOOK_AGAIN_S)
    if job is None or not (job.active or job.state == "PENDING"):
        return Done(text="No job of ours is left")
    return _cancelled(ctx, job)


SWEEP = Action(probe=_probe, do=_do, verify=_verify, undo=_undo)
