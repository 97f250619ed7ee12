"""A test of a node by a batch job of ours inside its reservation: its exit code is the verdict.

The job is known by the id that Slurm gave for it, which is logged at once. A worker that died before that
line leaves its name and comment in Slurm's own list, by which the next one finds it. A node whose test could
not run has not passed: that asks a person.
"""

from healer.actions import under_test
from healer.actions.base import Again, Context, Done, Failed, Result
from healer.model import SlurmJob, SlurmSnapshot, Submission
from healer.model.reserved import our_reservation
from healer.ports import SchedulerUnavailable

LOOK_AGAIN_S = 5.0
#: The job's own limit where the step gives none (`input.limit_s`).
LIMIT_S = 600
#: How Slurm ends a job that speaks against its node, or against what ran on it.
_FAILED = frozenset({"FAILED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "DEADLINE"})


def script(ctx: Context) -> str | None:
    """The name of the script that this step runs as a job; None where it runs none."""
    named = ctx.step.input.get("script")
    return str(named) if named is not None else None


def look(ctx: Context) -> Result | None:
    """The verdict; None: it was never submitted."""
    try:
        picture = ctx.scheduler.snapshot()
    except SchedulerUnavailable as error:
        return Again(text=f"Slurm did not answer: {error}", after_s=LOOK_AGAIN_S)
    if our_reservation(picture, ctx.node) is None:
        text = f"The reservation for the tests of {ctx.node} is gone: somebody ended it"
        return Failed(text=text, final=True)
    submitted = next((one.data["submitted"] for one in ctx.lines if one.data.get("submitted")), None)
    job = picture.jobs.get(submitted) if submitted is not None else _find(ctx, picture)
    if job is not None:
        return _verdict(ctx, job)
    if submitted is None:
        return None
    text = f"Slurm no longer knows the test job {submitted} of {ctx.node}: how it ended is not known"
    return Failed(text=text, final=True)


def _find(ctx: Context, picture: SlurmSnapshot) -> SlurmJob | None:
    # Only our own user may submit into the reservation: a name and a comment anybody can give.
    kept = our_reservation(picture, ctx.node)
    mine = (
        job
        for job in picture.jobs.values()
        if kept is not None and (job.reservation, job.name, job.comment) == (kept.name, _name(ctx), ctx.key)
    )
    return next(mine, None)


def _name(ctx: Context) -> str:
    return f"{under_test.TEST_JOBS}{(ctx.run.incident or ctx.run.id)[:8]}"


def _verdict(ctx: Context, job: SlurmJob) -> Result:
    if job.active or job.state == "PENDING":
        waits = f" waits: {job.reason}" if job.state == "PENDING" and job.reason else " runs"
        return Again(text=f"The test job {job.id} on {ctx.node}{waits}", after_s=LOOK_AGAIN_S)
    data = {"passed": job.state == "COMPLETED", "job": job.id, "exit_code": job.exit_code}
    told = f"{script(ctx)} on {ctx.node}, job {job.id}: {job.state}"
    if job.state == "COMPLETED":
        return Done(text=told, data=data)
    if job.state in _FAILED:
        return Done(text=f"{told}, exit code {job.exit_code or 'unknown'}", data=data)
    return Failed(text=f"{told}: the node is not tested", final=True)


def submit(ctx: Context) -> Result | None:
    """Whole nodes, with all the GPUs that Slurm believes in: the script compares them with those it sees."""
    name = script(ctx) or ""
    body = ctx.scripts.get(name)
    if body is None:
        return Failed(text=f"There is no script {name} in rules/validation", final=True)
    try:
        node = ctx.scheduler.node(ctx.node)
        kept = under_test.reservation(ctx)
        if kept is None:
            return Failed(text=f"{ctx.node} is in no reservation of ours", final=True)
    except SchedulerUnavailable:
        return None  # nothing was submitted
    ctx.fence()
    try:
        job = ctx.scheduler.submit(
            Submission(
                name=_name(ctx),
                script=body,
                nodes=(ctx.node,),
                time_limit_s=int(ctx.step.input.get("limit_s", LIMIT_S)),
                reservation=kept.name,
                comment=ctx.key,
                gpus_per_node=0 if node.gpus_shared else node.gpus,
            )
        )
    except SchedulerUnavailable as error:
        if not error.sent:
            return None
        # Unknown whether it was taken: the next attempt looks for its name first, and attempts are few.
        return Failed(text=f"Slurm did not say whether it took the test job of {ctx.node}: {error}")
    text = f"The test job {job} on {ctx.node} was submitted"
    return Again(text=text, after_s=LOOK_AGAIN_S, data={"submitted": job})
