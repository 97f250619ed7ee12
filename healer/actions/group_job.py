"""One group of nodes of a bisection: a job of ours on all of them, like that of a sweep.

The nodes are idle, stay in service and in no reservation. The job has the lowest priority; each second the
gate is asked whether it may stay. It is known by the number that Slurm gave, or by its name and comment.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from healer.actions import test_job
from healer.actions.base import Again, Context, Failed, Result
from healer.actions.halving import Answer
from healer.actions.test_results import Ended, told_in
from healer.actions.test_script import batch
from healer.decisions.sweeps import SWEEP_JOBS
from healer.model import SlurmJob, SlurmSnapshot, Submission, rates_in
from healer.ports.slurm import SchedulerRefused, SchedulerUnavailable

LOOK_AGAIN_S = 1.0
#: Nodes of a group are not idle.
WAITS_AGAIN_S = 10.0
#: A controller that did not answer in time may still take what it was sent.
APPEARS_WITHIN = timedelta(minutes=1)
_NAMED = 8


class Round(msgspec.Struct, frozen=True, omit_defaults=True):
    """One group: the number of its job once it was submitted, and `answered` or `void` once that is over."""

    nodes: tuple[str, ...]
    job: str | None = None
    #: When it was submitted, and Slurm did not say whether it took it.
    asked_at: datetime | None = None
    outcome: str | None = None
    answer: Answer = Answer()
    says: str = ""


def look(ctx: Context, number: int, now: Round, picture: SlurmSnapshot, *, late: bool) -> Result | None:
    """How it stands with the group, the `number`th of its run; None: its job is to be submitted. `late`: the
    run's time is over."""
    job = find(ctx, number, now, picture)
    if job is None and now.job is not None:
        return _over(now, "void", "Slurm no longer knows its job")
    if job is None and now.asked_at is not None:
        return _unanswered(ctx, now, now.asked_at)
    if job is None:
        left = list(ctx.may_borrow(now.nodes, False))
        if left and late:
            return _over(now, "void", f"{few(left)} did not come free")
        return Again(text=f"Waits for {few(left)}", after_s=WAITS_AGAIN_S) if left else None
    if job.active or job.state == "PENDING":
        return _under_way(ctx, now, job, late=late)
    return _ended(now, job)


def _unanswered(ctx: Context, now: Round, asked_at: datetime) -> Again:
    """Its name is looked for, so that it gives way like any other; it is not submitted a second time."""
    if ctx.now() - asked_at > APPEARS_WITHIN:
        return _over(now, "void", "Slurm did not say whether it took its job, and shows none")
    return Again(text=f"The test job of {few(now.nodes)} is looked for", after_s=LOOK_AGAIN_S)


def find(ctx: Context, number: int, now: Round, picture: SlurmSnapshot) -> SlurmJob | None:
    if now.job is not None:
        found = picture.jobs.get(now.job)
        return found if found is not None and found.name == _name(ctx) else None
    users, comment = ctx.users(), _comment(ctx, number)
    mine = (
        job
        for job in picture.jobs.values()
        if (job.name, job.comment) == (_name(ctx), comment) and job.user in users
    )
    return next(mine, None)


def _name(ctx: Context) -> str:
    """As a sweep's: whoever looks after those, after a run that was cancelled too, looks after this."""
    return f"{SWEEP_JOBS}{ctx.run.id[:8]}"


def _comment(ctx: Context, number: int) -> str:
    return f"{ctx.key}/{number}"


def _under_way(ctx: Context, now: Round, job: SlurmJob, *, late: bool) -> Result:
    """It gives way: to whoever wants one of its nodes, and to its own patience."""
    why = next(iter(ctx.may_borrow(now.nodes, True).values()), None)
    why = why or test_job.not_started(ctx, job, job.submit_at) or ("its time is over" if late else None)
    noted = {"told": {"job": job.id}}
    if why is None:
        text = f"The test job {job.id} of {len(now.nodes)} nodes ({few(now.nodes)}) {test_job.does(job)}"
        return Again(text=text, after_s=LOOK_AGAIN_S, data=noted)
    if (failed := test_job.cancel(ctx, job)) is not None:
        return failed
    return Again(text=f"Job {job.id} gives way: {why}", after_s=LOOK_AGAIN_S, data=noted)


def _ended(now: Round, job: SlurmJob) -> Result:
    """What a test told is an answer; a job that was cancelled or killed has none."""
    told = told_in(job.admin_comment)
    tests = told.tests if told is not None else {}
    failed = next((name for name, one in tests.items() if one is Ended.failed), None)
    if told is not None and job.state == "FAILED" and failed is not None:
        return _over(now, "answered", "", Answer(failed=f"{failed}: {told.says.get(failed, 'failed')}"))
    rates = rates_in(told.results) if told is not None else {}
    if job.state != "COMPLETED" or not rates:
        says = "; ".join(told.says.values()) if told is not None else ""
        return _over(now, "void", f"job {job.id} was {job.state}" + (f" ({says})" if says else ""))
    return _over(now, "answered", "", Answer(figures=rates))


def _over(now: Round, outcome: str, says: str, answer: Answer = Answer()) -> Again:
    figures = ", ".join(f"{name} {one:g}" for name, one in answer.figures.items())
    text = f"{len(now.nodes)} nodes ({few(now.nodes)}): {says or answer.failed or figures}"
    told = {"outcome": outcome, "says": says, "answer": msgspec.to_builtins(answer)}
    return Again(text=text, after_s=0, data={"told": told})


def submit(ctx: Context, number: int, now: Round) -> Result | None:
    depth = ctx.validation.depths.get(str(ctx.step.input.get("depth")))
    lacks = [one for one in depth.tests if one not in ctx.scripts] if depth is not None else []
    if depth is None or lacks:
        text = f"There is no depth {ctx.step.input.get('depth')} of tests in rules, or a script is missing"
        return Failed(text=text, final=True)
    try:
        picture = ctx.scheduler.snapshot()
    except SchedulerUnavailable:
        return None  # nothing was submitted
    node, settings = picture.nodes[now.nodes[0]], ctx.guards.sweep
    job = Submission(
        name=_name(ctx),
        script=batch({one: ctx.scripts[one] for one in depth.tests}, "together"),
        nodes=now.nodes,
        time_limit_s=depth.limit_s,
        partition=settings.partition or test_job.shared_partition([picture.nodes[one] for one in now.nodes]),
        qos=settings.qos,
        comment=_comment(ctx, number),
        gpus_per_node=0 if node.gpus_shared else node.gpus,
        nice=test_job.NICE,
    )
    ctx.fence()
    try:
        taken = ctx.scheduler.submit(job)
    except SchedulerRefused as error:
        return _over(now, "void", str(error))
    except SchedulerUnavailable as error:
        if not error.sent:
            return None
        text = f"Slurm did not say whether it took the test job of {few(now.nodes)}: {error}"
        return Again(text=text, after_s=LOOK_AGAIN_S, data={"told": {"asked_at": ctx.now().isoformat()}})
    text = f"The test job {taken} of {len(now.nodes)} nodes was submitted"
    return Again(text=text, after_s=LOOK_AGAIN_S, data={"told": {"job": taken}})


def few(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    return ", ".join(nodes[:_NAMED]) + more
