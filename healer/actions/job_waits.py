"""Waits for one job: for the moment at which a restart costs it least, and until it runs again."""

from healer.actions.base import Action, Again, Context, Done, Failed, Result, Skipped
from healer.actions.look import at_job, at_job_of_run
from healer.actions.waits import LOOK_AGAIN_S, MOMENT_S, is_saved
from healer.decisions.consent import impossible
from healer.decisions.wishes import wish_of
from healer.model import SlurmJob


def _nothing(_: Context) -> None:
    return None


def checkpoint(ctx: Context) -> Result:
    """A durable checkpoint of the run's job that is newer than this wait, by the job's clock and by ours.

    A job that saves its work on a signal is ready at any time: its restart sends the signal. One that ended
    or was restarted meanwhile needs nothing any more. Where Slurm would refuse the restart a person is asked.
    """
    job = at_job_of_run(ctx)
    if not isinstance(job, SlurmJob):
        return job
    assert ctx.restarts is not None  # that look has seen to it
    if job.restarts > ctx.restarts:
        return Done(text=f"Job {job.title} was restarted meanwhile", data={"ends_run": True})
    if not job.active or "COMPLETING" in job.flags:
        return Done(text=f"Job {job.title} is {job.state}: nothing to requeue", data={"ends_run": True})
    if why := impossible(job):
        return Failed(text=why, final=True)
    if wish := wish_of(job).signal:
        return Done(text=f"Job {job.title} saves its work on {wish}", data={"moment_s": MOMENT_S})
    if is_saved(ctx, job):
        return Done(text=f"Job {job.title} has saved a checkpoint", data={"moment_s": MOMENT_S})
    return Again(text=f"job {job.title}: its next durable checkpoint, or its end", after_s=LOOK_AGAIN_S)


def job_runs(ctx: Context) -> Result:
    """A job that was put back runs again. One that was not is no matter of this wait."""
    job = at_job(ctx)
    if not isinstance(job, SlurmJob):
        return job
    if ctx.restarts is None or job.restarts <= ctx.restarts:
        return Skipped(text=f"Job {job.title} was not put back")
    if job.state == "RUNNING" and "COMPLETING" not in job.flags:
        text = (
            f"Job {job.title} runs again (restart {job.restarts}) on {len(job.nodes)} nodes{_spare(ctx, job)}"
        )
        return Done(text=text, data={"nodes": list(job.nodes), "restarts": job.restarts})
    if job.state == "PENDING" or "COMPLETING" in job.flags:
        why = job.reason or "its turn"
        return Again(text=f"Job {job.title} waits: {why}", after_s=LOOK_AGAIN_S)
    return Done(text=f"Job {job.title} was put back and is {job.state}", data={"state": job.state})


def _spare(ctx: Context, job: SlurmJob) -> str:
    """What became of the spare that this run handed over."""
    spare = next((one.data["spare"] for one in reversed(ctx.log) if one.data.get("spare")), None)
    if spare is None:
        return ""
    return f", {spare} in the place of {ctx.node}" if spare in job.nodes else f", without the spare {spare}"


CHECKPOINT = Action(probe=_nothing, do=_nothing, verify=checkpoint, effect=False)
JOB_RUNS = Action(probe=_nothing, do=_nothing, verify=job_runs, effect=False)
