"""Sweep: tests an idle node with one job of healer's that yields to others, without drain and reservation.

The job has the lowest priority that a user may request, this node alone, a short limit, and is never
requeued. While it is queued or runs, the gate is asked every second whether it may stay; if not, it is
cancelled, and nothing else is. A job that was cancelled, preempted or killed gives no verdict on its node.
"""

from collections.abc import Iterator

from healer.actions import test_job
from healer.actions.base import Action, Again, Context, Done, Result, first_logged, read_back, read_slurm
from healer.actions.test_form import TestOutcome
from healer.decisions.sweeps import sweep_job
from healer.model import SlurmJob
from healer.ports.scheduling import SchedulerUnavailable
from healer.text import Said, joined, quoted, read_said, say, to_stored, unstopped

LOOK_AGAIN_S = 1.0


def _submitted(ctx: Context) -> str | None:
    return first_logged(ctx.lines, "submitted")


def _job(ctx: Context) -> SlurmJob | None:
    """healer's job by Slurm's number; if a worker died before logging it, by name, comment and user. Name and
    comment alone could be forged."""
    number = _submitted(ctx)
    if number is not None:
        job = ctx.tools.scheduler.job(number)
        return job if job is not None and job.name == sweep_job(ctx.run.id) else None
    return next(_by_name(ctx), None)


def _by_name(ctx: Context) -> Iterator[SlurmJob]:
    users = ctx.tools.users()
    for job in ctx.tools.scheduler.snapshot().jobs.values():
        if (job.name, job.comment) == (sweep_job(ctx.run.id), ctx.key) and job.user in users:
            yield job


def _gives_way(ctx: Context) -> Said | None:
    """Why the job yields, as logged before it was cancelled."""
    why = first_logged(ctx.lines, "gives_way")
    return read_said(Said, why) if why is not None else None


def _probe(ctx: Context) -> Result | None:
    job = read_slurm(lambda: _job(ctx), LOOK_AGAIN_S)
    if job is None:
        number = _submitted(ctx)
        return _no_verdict(ctx, say("actions.job_forgotten", job=number)) if number is not None else None
    if not job.active and job.state != "PENDING":
        return _verdict(ctx, job)
    if _gives_way(ctx) is not None:
        return _cancelled(ctx, job)
    if (why := ctx.claim.stays() or test_job.not_started(ctx, job, ctx.began_at)) is not None:
        # Logged first: from here on the tests may fail because they are being ended.
        noted = {"gives_way": to_stored(quoted(why)), "submitted": job.id}
        return Again(say("actions.sweep_gives_way", why=quoted(why)), 0, data=noted)
    return test_job.under_way(ctx, job, LOOK_AGAIN_S)


def _cancelled(ctx: Context, job: SlurmJob) -> Result:
    """Cancels this step's own job."""
    if (failed := test_job.cancel(ctx, job)) is not None:
        return failed
    return Again(say("actions.sweep_cancelled", job=job.id), LOOK_AGAIN_S)


def _no_verdict(ctx: Context, why: Said) -> Done:
    return Done(say("actions.sweep_no_verdict", why=why, node=ctx.node), {"verdict": "none"})


def _verdict(ctx: Context, job: SlurmJob) -> Result:
    """The result of the tests; no verdict if the job was ended from outside."""
    why, answer = _gives_way(ctx), test_job.judge_job(ctx, job)
    if why is not None:
        return _no_verdict(ctx, say("actions.sweep_gave_way", why=unstopped(why)))
    failed = [name for name, ended in answer.report.tests.items() if ended is TestOutcome.failed]
    has_answer = job.state == "COMPLETED" or (job.state == "FAILED" and bool(failed))
    if not has_answer:
        return _no_verdict(ctx, answer.head)
    if not answer.data["passed"]:
        test = failed[0] if failed else "compared"
        says = answer.report.says.get(test, "") if failed else joined(answer.worse, "semicolon")
        ctx.claim.tell_detector(test_job.failed_test_command(ctx, ctx.node, test, says or answer.head))
    return Done(answer.text, answer.data)


def _do(ctx: Context) -> Result | None:
    asked = test_job.runnable_tests(ctx)
    try:
        node = ctx.tools.scheduler.node(ctx.node)
    except SchedulerUnavailable:
        return None  # nothing was submitted
    settings = ctx.tools.guards.sweep
    partition = settings.partition or next(iter(node.partitions), "")
    job = test_job.submission(
        [node],
        test_job.script_of(ctx, asked.tests, asked.depth),
        name=sweep_job(ctx.run.id),
        time_limit_s=asked.limit_s,
        comment=ctx.key,
        partition=partition,
        qos=settings.qos,
        nice=test_job.NICE,
    )
    return test_job.submit_job(ctx, asked, job, look_again_s=LOOK_AGAIN_S)


def _undo(ctx: Context) -> Result:
    job = read_slurm(lambda: _job(ctx), LOOK_AGAIN_S)
    if job is None or not job.unfinished:
        return Done(say("actions.test_job_none_left"))
    return _cancelled(ctx, job)


SWEEP = Action(
    probe=_probe,
    do=_do,
    verify=read_back(_probe, lambda ctx: say("actions.test_job_begins", node=ctx.node), LOOK_AGAIN_S),
    undo=_undo,
)
