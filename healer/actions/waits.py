"""Steps that wait for jobs and people: the end of a job, its checkpoint, an approval, a repair, a time."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from healer.actions.base import (
    Again,
    Context,
    Done,
    Failed,
    Result,
    Skipped,
    holder_of,
    jobs_pictured,
    read_job,
    read_job_of_run,
    read_node_and_jobs,
    slurm_silent,
    tried,
)
from healer.actions.checks import LOOK_AGAIN_S, cleared, who_holds
from healer.actions.spares import logged_of
from healer.decisions.comments import restart_consent, wish_of
from healer.decisions.consent import why_not_restartable
from healer.model import SlurmJob, SlurmNode
from healer.ports.scheduling import SchedulerUnavailable
from healer.text import Said, joined, quoted, say

#: How long a checkpoint counts as a good moment, in seconds: the job keeps computing after it.
MOMENT_S = 60


def job_end_or_checkpoint(ctx: Context) -> Result:
    """The moment at which taking the node costs its jobs least: each has ended, or has just saved its work.

    A checkpoint only helps a job that consented to be requeued (law 8); for the others, their end is awaited.
    It must be durable, of the job's present restart count (or without one), and newer than this wait by the
    job's clock and ours. A job that saves its work on a signal is ready at any time. Waits for at most
    `input.limit_s`.
    """
    if over := cleared(ctx):
        return over
    pictured = _waiting_for(ctx, jobs_pictured(ctx))
    if pictured and not _is_late(ctx):
        return Again(joined(pictured[:5], "semicolon"), LOOK_AGAIN_S)
    node, jobs = read_node_and_jobs(ctx, LOOK_AGAIN_S)
    if holder := holder_of(node):
        return Again(who_holds(holder, node), LOOK_AGAIN_S)
    alive = _alive(jobs)
    waits = _waiting_for(ctx, jobs)
    if waits and _is_late(ctx):
        hours = int(ctx.step.input["limit_s"]) // 3600
        text = say("actions.waits_no_moment", hours=hours, why=joined(waits[:5], "semicolon"))
        return Done(text, {"moment_s": MOMENT_S, "jobs_then": [job.id for job in alive]})
    if waits:
        return Again(joined(waits[:5], "semicolon"), LOOK_AGAIN_S)
    if not alive:
        return _no_job_on(node)
    text = say("actions.waits_saved", jobs=", ".join(job.title for job in alive))
    return Done(text, {"moment_s": MOMENT_S, "jobs_then": [job.id for job in alive]})


def _alive(jobs: Iterable[SlurmJob]) -> list[SlurmJob]:
    return [job for job in jobs if "COMPLETING" not in job.flags]


def _waiting_for(ctx: Context, jobs: Iterable[SlurmJob]) -> list[Said]:
    """What each of these jobs must do first, if its work is not safe."""
    return [why for job in _alive(jobs) if (why := _not_yet(ctx, job)) is not None]


def _no_job_on(node: SlurmNode) -> Done:
    return Done(say("actions.no_job_on", node=node.name), {"moment_s": MOMENT_S, "jobs_then": []})


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
    if pictured := _alive(jobs_pictured(ctx)):
        return _job_end_of(pictured)
    node, jobs = read_node_and_jobs(ctx, LOOK_AGAIN_S)
    alive = _alive(jobs)
    return _job_end_of(alive) if alive else _no_job_on(node)


def _job_end_of(alive: Sequence[SlurmJob]) -> Again:
    names = ", ".join(job.title for job in alive[:5])
    return Again(say("actions.waits_job_end", jobs=names), LOOK_AGAIN_S)


def _not_yet(ctx: Context, job: SlurmJob) -> Said | None:
    """What this job must do first; None if its work is safe."""
    if not (job.batch and job.requeue and restart_consent(job, ctx.tools.guards.consent)):
        return say("actions.waits_no_consent", job=job.title)
    if wish_of(job).signal:
        return None  # it saves its work on a signal
    return None if is_saved(ctx, job) else say("actions.next_checkpoint", job=job.title)


def is_saved(ctx: Context, job: SlurmJob) -> bool:
    """It has reported a durable checkpoint of its present restart count since this step began."""
    at = saved_at(ctx, job)
    return at is not None and at > ctx.began_at


def saved_at(ctx: Context, job: SlurmJob) -> datetime | None:
    """When the job's newest durable checkpoint was saved, by the earlier of the job's clock and ours."""
    book = ctx.tools.checkpoints
    # Checkpoints from before this life may be of an earlier job with the same number.
    saved = book.newest_durable(job.id, job.start_at) if book is not None else None
    # A job that does not count restarts reports 0.
    if saved is None or saved.restart not in {0, job.restarts}:
        return None
    return min(saved.at, saved.arrived_at)


def far_from_checkpoint(ctx: Context, lasts: timedelta) -> Again | None:
    """Why the job of this step is not requeued now: more than `lasts` of its work would be lost.

    None if it no longer runs, was already restarted, or has just begun.
    """
    try:
        job = ctx.tools.scheduler.job(ctx.job)
    except SchedulerUnavailable as error:
        return slurm_silent(error, LOOK_AGAIN_S)
    if job is None or not job.active or "COMPLETING" in job.flags or job.restarts != ctx.restarts:
        return None
    if wish_of(job).signal:
        return None
    kept = (job.start_at, saved_at(ctx, job))
    if any(at is not None and ctx.tools.now() - at <= lasts for at in kept):
        return None
    return Again(say("actions.next_checkpoint", job=job.title), LOOK_AGAIN_S)


def repair(ctx: Context) -> Result:
    """Waits for a person to repair the node: their `resume` takes over this run."""
    return Again(say("actions.waits_repair", node=ctx.node), None)


def time(ctx: Context) -> Result:
    """`input.lasts_s` seconds after this step began."""
    until = ctx.began_at + timedelta(seconds=int(ctx.step.input["lasts_s"]))
    left_s = (until - ctx.tools.now()).total_seconds()
    if left_s <= 0:
        return Done(say("actions.waits_time_over"))
    return Again(say("actions.waits_until", until=f"{until:%Y-%m-%d %H:%M:%S}"), left_s)


def approval(ctx: Context) -> Result:
    """Waits for a person to approve the next step. The question names the jobs that may lose their work."""
    what = quoted(ctx.step.title) or say(
        "actions.waits_playbook_on", playbook=ctx.run.playbook, where=ctx.run.node or ctx.run.job
    )
    read = tried(lambda: read_node_and_jobs(ctx, LOOK_AGAIN_S)) if ctx.run.node else None
    jobs = [job.title for job in read[1]] if read is not None else []
    text = say("actions.waits_approval", what=what)
    if jobs:
        named = ", ".join([*jobs[:5], "…"] if len(jobs) > 5 else jobs)
        text = say("actions.waits_approval_jobs", what=what, jobs=named)
    return Again(text, None, data={"approval": True})


def checkpoint(ctx: Context) -> Result:
    """A durable checkpoint of the run's job that is newer than this wait, by the job's clock and by ours.

    A job that saves its work on a signal is ready at any time: its restart sends the signal. A job that has
    ended or was restarted ends the run. Failed if Slurm would refuse the restart.
    """
    job, restarts = read_job_of_run(ctx)
    if job.restarts > restarts:
        return Done(say("actions.waits_job_restarted", job=job.title), {"ends_run": True})
    if not job.active or "COMPLETING" in job.flags:
        return Done(say("actions.waits_job_over", job=job.title, state=job.state), {"ends_run": True})
    if why := why_not_restartable(job):
        return Failed(why, final=True)
    if wish := wish_of(job).signal:
        return Done(say("actions.waits_job_saves", job=job.title, signal=wish), {"moment_s": MOMENT_S})
    if is_saved(ctx, job):
        return Done(say("actions.waits_job_saved", job=job.title), {"moment_s": MOMENT_S})
    return Again(say("actions.next_checkpoint", job=job.title), LOOK_AGAIN_S)


def job_runs(ctx: Context) -> Result:
    """A requeued job runs again; Skipped for a job that was not requeued."""
    job = read_job(ctx)
    if ctx.restarts is None or job.restarts <= ctx.restarts:
        return Skipped(say("actions.waits_not_put_back", job=job.title))
    if job.state == "RUNNING" and "COMPLETING" not in job.flags:
        return Done(_runs_again(ctx, job), {"nodes": list(job.nodes), "restarts": job.restarts})
    if job.state == "PENDING" or "COMPLETING" in job.flags:
        why = job.reason or say("actions.waits_its_turn")
        return Again(say("actions.waits_job_pending", job=job.title, why=why), LOOK_AGAIN_S)
    return Done(say("actions.waits_put_back", job=job.title, state=job.state), {"state": job.state})


def _runs_again(ctx: Context, job: SlurmJob) -> Said:
    """Includes whether the job got the spare that this run handed over, if any."""
    text = say("actions.waits_job_runs", job=job.title, restarts=job.restarts, nodes=len(job.nodes))
    spare = logged_of(ctx, ctx.run.node, "spare")
    if spare is None:
        return text
    if spare in job.nodes:
        return say("actions.waits_job_runs_spare", text=text, spare=spare, node=ctx.node)
    return say("actions.waits_job_runs_no_spare", text=text, spare=spare)
