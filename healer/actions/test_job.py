"""A test of a node by a batch job of ours inside its reservation: its exit code is the verdict, and no result
may be worse than on the good node of its kind.

The job is known by the id that Slurm gave for it, which is logged at once. A worker that died before that
line leaves its name and comment in Slurm's own list, by which the next one finds it. A node whose test could
not run has not passed: that asks a person.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from healer.actions import under_test
from healer.actions.base import Again, Context, Done, Failed, Result, read_slurm
from healer.actions.test_form import NOT_TESTED, Told, batch, compared, sentence, told_in
from healer.model import (
    FIT,
    REMEDY_LADDER,
    Command,
    CommandKind,
    Reference,
    Remedy,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
    Submission,
    node_kind,
)
from healer.model.run import highest_remedy
from healer.model.slurm import our_reservation
from healer.ports.scheduling import SchedulerRefused, SchedulerUnavailable

LOOK_AGAIN_S = 5.0
#: The job's own limit where the step gives none (`input.limit_s`).
LIMIT_S = 600
#: Of jobs that give way: below the priority that the site's own reckoning gives; a user may ask for that too.
NICE = 1_000_000
#: One that gives way and has not started by then has lost a node to another job.
STARTS_WITHIN_S = 60
#: How Slurm ends a job that speaks against its node, or against what ran on it.
_FAILED = frozenset({"FAILED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "DEADLINE"})


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Tests of `rules/validation` in their order; `depth` is empty where a step names one script."""

    tests: tuple[str, ...]
    limit_s: int
    depth: str = ""
    same_facts: bool = False
    pair: tuple[str, ...] = ()


def wanted(ctx: Context) -> Wanted | None:
    """What this step runs as a job; None where it runs none."""
    limit_s = int(ctx.step.input.get("limit_s", 0))
    script, depth = ctx.step.input.get("script"), ctx.step.input.get("depth")
    if script is not None:
        return Wanted(tests=(str(script),), limit_s=limit_s or LIMIT_S)
    if depth is None:
        return None
    name = ctx.tools.validation.depth_for(_done_to_it(ctx)) if depth == FIT else str(depth)
    found = ctx.tools.validation.depths.get(name)
    if found is None:
        return Wanted(tests=(), limit_s=LIMIT_S, depth=name)
    limit_s = limit_s or found.limit_s
    return Wanted(
        tests=found.tests, limit_s=limit_s, depth=name, same_facts=found.same_facts, pair=found.pair
    )


def pair_of(ctx: Context) -> tuple[str, ...]:
    """The tests of two nodes that belong to what was submitted."""
    return _submitted(ctx).pair


def _done_to_it(ctx: Context) -> Remedy | None:
    """The highest rung of what the incident asks for and what was carried out: its tests have to fit that."""
    asked = ctx.run.input.get("remedy")
    known = [Remedy(str(asked))] if asked else []
    known += [Remedy(one) for one in highest_remedy(ctx.log).values()]
    if ctx.incident is not None:
        known += [*ctx.incident.remedy, ctx.incident.tried]
    return max((one for one in known if one in REMEDY_LADDER), key=REMEDY_LADDER.index, default=None)


def look(ctx: Context) -> Result | None:
    """The verdict; None: it was never submitted."""
    picture = read_slurm(ctx.tools.scheduler.snapshot, LOOK_AGAIN_S)
    if not isinstance(picture, SlurmSnapshot):
        return picture
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
        if kept is not None and (job.reservation, job.name, job.comment) == (kept.name, name_of(ctx), ctx.key)
    )
    return next(mine, None)


def name_of(ctx: Context) -> str:
    return f"{under_test.TEST_JOBS}{(ctx.run.incident or ctx.run.id)[:8]}"


def _verdict(ctx: Context, job: SlurmJob) -> Result:
    if job.active or job.state == "PENDING":
        return Again(text=f"The test job {job.id} on {ctx.node} {does(job)}", after_s=LOOK_AGAIN_S)
    answer = judged(ctx, job)
    untested = job.state == "FAILED" and exit_status(job) == NOT_TESTED
    if untested or (job.state != "COMPLETED" and job.state not in _FAILED):
        return Failed(text=f"{answer.head}: the node is not tested", final=True)
    return Done(text=answer.text, data=answer.data)


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What a job that has ended told: `head` alone, with `text` what is compared with the good node."""

    head: str
    text: str
    data: dict[str, Any]
    told: Told


def judged(ctx: Context, job: SlurmJob) -> Judged:
    """`data["passed"]`: it ended well, and nothing is worse than on the good node of its kind."""
    asked = _submitted(ctx)
    told = told_in(job.admin_comment) or Told()
    head = f"{asked.depth or asked.tests[0]} on {ctx.node}, job {job.id}: {job.state}"
    said = sentence(told, asked.tests) if told.tests else ""
    head = f"{head}; {said}" if said else head
    reference = _reference(ctx)
    held = compared(told.results, reference)
    text = head
    if job.state != "COMPLETED":
        text = f"{text}, exit code {job.exit_code or 'unknown'}"
    worse = (*held.worse, *(held.other if asked.same_facts else ()))
    data: dict[str, Any] = {
        "passed": job.state == "COMPLETED" and not worse,
        "job": job.id,
        "exit_code": job.exit_code,
        "tests": {name: str(one) for name, one in told.tests.items()},
        "took_s": told.took_s,
        "says": told.says,
        "results": told.results,
        "whole": told.whole,
        "worse": list(worse),
        "other": list(held.other),
        "compared": list(held.alike),
        "depth": asked.depth,
        "reference": reference.node if reference is not None else None,
    }
    return Judged(head=head, text="; ".join([text, *held.worse, *held.other]), data=data, told=told)


def exit_status(job: SlurmJob) -> int | None:
    status = (job.exit_code or "").partition(":")[0]
    return int(status) if status.isdecimal() else None


def _submitted(ctx: Context) -> Wanted:
    """What the job was asked for; where a worker died before it could note that, what would be asked now."""
    noted = next((one.data["wanted"] for one in ctx.lines if one.data.get("wanted")), None)
    found = msgspec.convert(noted, Wanted) if noted else wanted(ctx)
    return found or Wanted(tests=("test",), limit_s=LIMIT_S)


def _reference(ctx: Context) -> Reference | None:
    """The good node of its kind; none of a node that Slurm does not show."""
    picture = ctx.tools.picture()
    node = picture.nodes.get(ctx.node) if picture is not None else None
    if node is None:
        return None
    kind = node_kind(node.gpu_model)
    return next((one for one in ctx.claim.references() if one.kind == kind), None)


def asked_for(ctx: Context) -> Wanted | Failed:
    """What this step runs as a job; Failed where `rules/validation` does not have it."""
    asked = wanted(ctx)
    if asked is None or not asked.tests:
        return Failed(text=f"There is no depth {asked.depth if asked else ''} of tests in rules", final=True)
    lacks = next((one for one in asked.tests if one not in ctx.tools.scripts), None)
    if lacks is not None:
        return Failed(text=f"There is no script {lacks} in rules/validation", final=True)
    return asked


def submit(ctx: Context) -> Result | None:
    """Whole nodes, with all the GPUs that Slurm believes in: the script compares them with those it sees."""
    asked = asked_for(ctx)
    if isinstance(asked, Failed):
        return asked
    try:
        node = ctx.tools.scheduler.node(ctx.node)
        kept = under_test.reservation(ctx)
        if kept is None:
            return Failed(text=f"{ctx.node} is in no reservation of ours", final=True)
    except SchedulerUnavailable:
        return None  # nothing was submitted
    return hand_in(ctx, asked, submission(ctx, asked, node, name=name_of(ctx), reservation=kept.name))


def submission(ctx: Context, asked: Wanted, node: SlurmNode, *, name: str, **more: Any) -> Submission:
    return Submission(
        name=name,
        script=batch({one: ctx.tools.scripts[one] for one in asked.tests}, asked.depth),
        nodes=(ctx.node,),
        time_limit_s=asked.limit_s,
        comment=ctx.key,
        gpus_per_node=0 if node.gpus_shared else node.gpus,
        **more,
    )


def hand_in(
    ctx: Context, asked: Wanted, job: Submission, *, look_again_s: float = LOOK_AGAIN_S
) -> Result | None:
    ctx.fence()
    try:
        number = ctx.tools.scheduler.submit(job)
    except SchedulerUnavailable as error:
        if not error.sent:
            return None
        # Unknown whether it was taken: the next attempt looks for its name first, and attempts are few.
        return Failed(text=f"Slurm did not say whether it took the test job of {ctx.node}: {error}")
    text = f"The test job {number} on {ctx.node} was submitted"
    data = {"submitted": number, "wanted": msgspec.to_builtins(asked)}
    return Again(text=text, after_s=look_again_s, data=data)


def failed_test(ctx: Context, node: str, test: str, says: str, **more: str) -> Command:
    """A finding of this node, for no incident that there is. Told twice after a death, it is one."""
    return Command(
        kind=CommandKind.test_failed,
        cluster=ctx.run.cluster,
        at=ctx.tools.now(),
        by=ctx.run.by,
        data={"run": ctx.run.id, "node": node, "test": test, "says": says, **more},
    )


def shared_partition(nodes: Sequence[SlurmNode]) -> str:
    """One that has all of them; empty: none."""
    first, *rest = (one.partitions for one in nodes)
    return next((name for name in first if all(name in one for one in rest)), "")


def does(job: SlurmJob) -> str:
    if job.state != "PENDING":
        return "runs"
    return f"waits: {job.reason}" if job.reason else "waits"


def not_started(ctx: Context, job: SlurmJob, since: datetime | None) -> str | None:
    """Why a job that gives way is given up before it began; `since`: from when its patience counts."""
    if (
        job.state != "PENDING"
        or since is None
        or (ctx.tools.now() - since).total_seconds() <= STARTS_WITHIN_S
    ):
        return None
    return f"it did not start within {STARTS_WITHIN_S} s ({job.reason or 'no reason given'})"


def cancel(ctx: Context, job: SlurmJob) -> Failed | None:
    """Asks Slurm to end a job of ours. None: asked, or it comes to its end by itself; the next look tells."""
    if "COMPLETING" in job.flags:
        return None
    ctx.fence()
    try:
        ctx.tools.scheduler.cancel(job.id)
    except SchedulerRefused as error:
        if error.code not in under_test.JOB_OVER:
            return Failed(text=f"Job {job.id} could not be cancelled: {error}", final=error.no_right)
    except SchedulerUnavailable:
        pass  # unknown whether it happened
    return None
