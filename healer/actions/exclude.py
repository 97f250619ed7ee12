"""Exclude: a job that is put back is kept off nodes that are known bad and must stay in service (law 2).

A drained node is never chosen, so nothing is excluded there. Slurm's list can be changed only while the job
is PENDING, and each change replaces it (d.8, 14): it is read, ours is added, later exactly ours is taken
back. Which are ours stands in the job's admin comment first, so that nothing is lost with a worker.
"""

from collections.abc import Sequence

from healer.actions.base import Action, Again, Context, Done, Failed, Result, Skipped
from healer.actions.look import at_job
from healer.decisions.remarks import Remark, remark_in, with_remark
from healer.model import SlurmJob
from healer.ports.slurm import NotAvailable, SchedulerRefused, SchedulerUnavailable


def missing(ctx: Context, job: SlurmJob) -> list[str]:
    """Known bad nodes in service that the job may still be given, unless Slurm would not take them before."""
    if any(one.step == ctx.part and one.data.get("not_kept_off") for one in ctx.log):
        return []
    return sorted(set(ctx.known_bad()) - set(job.excluded))


def keep_off(ctx: Context, job: SlurmJob) -> Again | None:
    bad = missing(ctx, job)
    if not bad:
        return None
    named = ", ".join(bad)
    ours = remark_in(job.admin_comment)
    try:
        _remark(ctx, job, Remark(text=ours.text, off=tuple(dict.fromkeys((*ours.off, *bad)))))
        ctx.fence()
        ctx.scheduler.exclude(job.id, (*job.excluded, *bad))
    except (NotAvailable, SchedulerRefused) as error:
        text = f"Job {job.title} could not be kept off {named}: {error}"
        return Again(text=text, after_s=0, data={"not_kept_off": bad})
    text = f"Job {job.title} is kept off {named}: known bad, in service"
    return Again(text=text, after_s=0, data={"off": bad})


def _remark(ctx: Context, job: SlurmJob, remark: Remark) -> None:
    wanted = with_remark(job.admin_comment, remark)
    if wanted != job.admin_comment:
        ctx.fence()
        ctx.scheduler.remark(job.id, wanted)


# --- taking it back ---


def left(job: SlurmJob, known_bad: Sequence[str] = ()) -> list[str]:
    """Nodes that healer keeps the job off and that are not bad any more."""
    return [node for node in remark_in(job.admin_comment).off if node not in known_bad]


def probe(ctx: Context) -> Result | None:
    job = at_job(ctx)
    if not isinstance(job, SlurmJob):
        return job
    back = left(job, sorted(ctx.known_bad()))
    if not back:
        rest = remark_in(job.admin_comment).off
        still = f"; still kept off {', '.join(rest)}, known bad" if rest else ""
        return Done(text=f"Nothing of healer's is left on job {job.title}{still}")
    if job.active:
        # Slurm changes the list of a pending job alone: this one needs no other node now. Once it is pending
        # again the walk starts another run.
        return Skipped(text=f"Job {job.title} runs: what healer left on it is taken back when it waits again")
    if job.state != "PENDING":
        return Skipped(text=f"Job {job.title} has ended: its exclusions went with it")
    return None


def take_back(ctx: Context) -> Result | None:
    job = at_job(ctx)
    if not isinstance(job, SlurmJob) or job.state != "PENDING":
        return job if not isinstance(job, SlurmJob) else None
    ours = remark_in(job.admin_comment)
    back = left(job, sorted(ctx.known_bad()))
    try:
        rest = [node for node in job.excluded if node not in back]
        if rest != list(job.excluded):
            ctx.fence()
            ctx.scheduler.exclude(job.id, rest)
        kept = tuple(node for node in ours.off if node not in back)
        _remark(ctx, job, Remark(text=ours.text, off=kept))
    except SchedulerRefused as error:
        return Failed(text=str(error))
    except SchedulerUnavailable:
        return None
    return Done(text=f"Job {job.title} may use {', '.join(back)} again", data={"back": back})


def verify(ctx: Context) -> Result:
    return probe(ctx) or Again(text=f"Job {ctx.job} still shows what healer left on it", after_s=1.0)


RELEASE = Action(probe=probe, do=take_back, verify=verify)
