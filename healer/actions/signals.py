"""A job that saves its work on a signal gets that signal, and the time that its owner named (d.8, 17)."""

from datetime import datetime, timedelta

from healer.actions.base import Again, Context
from healer.decisions.wishes import wish_of
from healer.model import LogEntry, SlurmJob
from healer.ports.slurm import NotAvailable, SchedulerRefused, SchedulerUnavailable

LOOK_AGAIN_S = 1.0


def save_first(ctx: Context, job: SlurmJob) -> Again | None:
    """Tells the job to save its work, once; None when there is nothing (more) to wait for.

    A signal whose answer never came counts as sent: the job has its time, and none is sent after it. Only a
    worker that dies between the signal and its line in the log lets the next one send it again: a job that
    saves on a signal saves twice then.
    """
    told = _told(ctx)
    if told is not None:
        return _waits(ctx, told.text, told.data) if _until(told.data) > ctx.now() else None
    wish = wish_of(job)
    if not wish.signal:
        return None
    until = ctx.now() + timedelta(seconds=wish.grace_s)
    text = f"Job {job.title} got {wish.signal} to save its work, and has until {until:%H:%M:%S} UTC"
    ctx.fence()
    try:
        ctx.scheduler.signal(job.id, wish.signal)
    except SchedulerUnavailable as error:
        if not error.sent:
            raise
        text = f"Job {job.title} may have got {wish.signal}, has until {until:%H:%M:%S} UTC ({error})"
    except (NotAvailable, SchedulerRefused) as error:
        until, text = ctx.now(), f"Job {job.title} could not be told to save its work ({error})"
        return Again(text=text, after_s=0, data={"signal": wish.signal, "until": until.isoformat()})
    return _waits(ctx, text, {"signal": wish.signal, "until": until.isoformat()})


def time_is_over(ctx: Context) -> datetime | None:
    """When the time for saving ends or ended; None where no signal was sent."""
    told = _told(ctx)
    return _until(told.data) if told is not None else None


def _told(ctx: Context) -> LogEntry | None:
    return next((one for one in ctx.log if one.step == ctx.part and one.data.get("signal")), None)


def _until(data: dict[str, str]) -> datetime:
    return datetime.fromisoformat(data["until"])


def _waits(ctx: Context, text: str, data: dict[str, str]) -> Again:
    until = _until(data)
    left_s = (until - ctx.now()).total_seconds()
    return Again(text=text, after_s=min(LOOK_AGAIN_S, left_s), since=until, data=data)
