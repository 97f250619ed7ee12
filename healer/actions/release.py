"""Release: removes from a job what healer left on it, or what Slurm did because of healer.

With `input: {hold: true}` the hold of a job whose prolog failed with healer's permit; with `{begin: true}`
the begin time of a job that Slurm requeued, and a spare for its lost node; otherwise the exclusion of nodes.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from healer.actions import spares
from healer.actions.base import (
    Action,
    Again,
    Context,
    Done,
    Failed,
    Result,
    Skipped,
    cause,
    read_back,
    read_job,
)
from healer.decisions.book_mismatch import is_begin_chosen
from healer.decisions.comments import Remark, remark_in, with_remark
from healer.model import SlurmJob
from healer.model.gate import is_held_after_launch
from healer.ports.scheduling import NotAvailable, SchedulerRefused, SchedulerUnavailable
from healer.text import said_by, say


def missing(ctx: Context, job: SlurmJob) -> list[str]:
    """Known bad nodes in service that the job does not exclude; empty if Slurm refused to exclude them."""
    if any(entry.step == ctx.part and entry.data.get("not_kept_off") for entry in ctx.log):
        return []
    return sorted(set(ctx.claim.known_bad()) - set(job.excluded))


def keep_off(ctx: Context, job: SlurmJob) -> Again | None:
    bad = missing(ctx, job)
    if not bad:
        return None
    named = ", ".join(bad)
    ours = remark_in(job.admin_comment)
    try:
        _remark(ctx, job, Remark(text=ours.text, off=tuple(dict.fromkeys((*ours.off, *bad)))))
        ctx.fence()
        ctx.tools.scheduler.exclude(job.id, (*job.excluded, *bad))
    except (NotAvailable, SchedulerRefused) as error:
        text = say("actions.release_not_kept_off", job=job.title, nodes=named, error=said_by(error))
        return Again(text, 0, data={"not_kept_off": bad})
    return Again(say("actions.release_kept_off", job=job.title, nodes=named), 0, data={"off": bad})


def _remark(ctx: Context, job: SlurmJob, remark: Remark) -> None:
    wanted = with_remark(job.admin_comment, remark)
    if wanted != job.admin_comment:
        ctx.fence()
        ctx.tools.scheduler.remark(job.id, wanted)


#: Slurm's reasons for a job that waits for its begin time. A revived job shows the others from its end until
#: the next scheduling pass (seen on 22.05 and 24.11).
_BEFORE_BEGIN = ("BeginTime", "NonZeroExitCode", "RaisedSignal", "NodeDown", "JobLaunchFailure")
#: healer's own order to start sets a begin time two seconds ahead.
_STARTS_WITHIN = timedelta(seconds=3)


def is_put_back(ctx: Context, job: SlurmJob) -> bool:
    """Slurm alone makes the job wait after its requeue; a begin time that a person chose is kept.

    A change of the job, such as an exclusion, clears the reason until the next scheduling pass, but not the
    begin time (seen on 22.05)."""
    if is_begin_chosen(job):
        return False
    if job.reason.startswith(_BEFORE_BEGIN):
        return True
    begin_at = job.eligible_at
    return not job.reason and begin_at is not None and begin_at - ctx.tools.now() > _STARTS_WITHIN


# --- removing exclusions ---


def left(job: SlurmJob, known_bad: Sequence[str] = ()) -> list[str]:
    """Nodes that healer excludes from the job and that are no longer known bad."""
    return [node for node in remark_in(job.admin_comment).off if node not in known_bad]


def probe(ctx: Context) -> Result | None:
    job = read_job(ctx)
    back = left(job, sorted(ctx.claim.known_bad()))
    if not back:
        if rest := remark_in(job.admin_comment).off:
            return Done(say("actions.release_still_kept_off", job=job.title, nodes=", ".join(rest)))
        return Done(say("actions.release_nothing_left", job=job.title))
    if job.active:
        # Slurm changes the list only for pending jobs. Once the job is pending again, the walk starts another
        # run.
        return Skipped(say("actions.release_job_runs", job=job.title))
    if job.state != "PENDING":
        return Skipped(say("actions.release_job_ended", job=job.title))
    return None


def take_back(ctx: Context) -> Result | None:
    job = read_job(ctx)
    if job.state != "PENDING":
        return None
    ours = remark_in(job.admin_comment)
    back = left(job, sorted(ctx.claim.known_bad()))
    try:
        rest = [node for node in job.excluded if node not in back]
        if rest != list(job.excluded):
            ctx.fence()
            ctx.tools.scheduler.exclude(job.id, rest)
        kept = tuple(node for node in ours.off if node not in back)
        _remark(ctx, job, Remark(text=ours.text, off=kept))
    except SchedulerRefused as error:
        return Failed(said_by(error))
    except SchedulerUnavailable:
        return None
    return Done(say("actions.release_may_use", job=job.title, nodes=", ".join(back)), {"back": back})


RELEASE = Action(
    probe=probe,
    do=take_back,
    verify=read_back(probe, lambda ctx: say("actions.release_still_shown", job=ctx.job), 1.0),
)


def _probe(ctx: Context) -> Result | None:
    job = read_job(ctx)
    if ctx.restarts is not None and job.restarts != ctx.restarts:
        return Skipped(say("actions.release_other_hold", job=ctx.job))
    if not job.held_by and job.state == "PENDING":
        return Done(say("actions.release_not_held", job=ctx.job))
    if not is_held_after_launch(job):
        return Skipped(say("actions.release_hold_gone", job=ctx.job, state=job.state))
    return None


_HOLD = Action(
    probe=_probe,
    do=lambda ctx: cause(ctx, lambda: ctx.tools.scheduler.release(ctx.job)),
    verify=read_back(_probe, lambda ctx: say("actions.release_still_held", job=ctx.job), 1.0),
)


# --- the begin time of a job that Slurm itself requeued


def _probe_begin(ctx: Context) -> Result | None:
    job = read_job(ctx)
    begin_at = datetime.fromisoformat(ctx.run.input["begin_at"])
    if job.restarts != ctx.restarts or job.active:
        return Done(say("actions.release_restarted", job=job.title, state=job.state, restarts=job.restarts))
    if job.held_by:
        return Skipped(say("actions.release_held_by", job=job.title, who=job.held_by))
    if job.state != "PENDING":
        return Skipped(say("actions.release_job_is", job=job.title, state=job.state))
    if job.eligible_at is not None and job.eligible_at > begin_at:
        return Skipped(say("actions.release_other_begin", job=job.title))
    if not is_put_back(ctx, job):
        return Done(say("actions.release_its_turn", job=job.title), {"reason": job.reason})
    return None


def _begin(ctx: Context) -> Result | None:
    job = read_job(ctx)
    step = keep_off(ctx, job) or spares.hand_over(ctx, job, ctx.run.input["node"])
    return step or cause(ctx, lambda: ctx.tools.scheduler.start_now(ctx.job))


_BEGIN = Action(
    probe=_probe_begin,
    do=_begin,
    verify=read_back(_probe_begin, lambda ctx: say("actions.release_asked", job=ctx.job), 1.0),
)


def _of(ctx: Context) -> Action:
    if ctx.step.input.get("begin"):
        return _BEGIN
    return _HOLD if ctx.step.input.get("hold") else RELEASE


ACTION = Action(
    probe=lambda ctx: _of(ctx).probe(ctx),
    do=lambda ctx: _of(ctx).do(ctx),
    verify=lambda ctx: _of(ctx).verify(ctx),
)
