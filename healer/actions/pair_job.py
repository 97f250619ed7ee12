"""Tests of two nodes: the one in our reservation, and an idle one in service that is borrowed for minutes.

One job of both, in the node's reservation (made with FLEX, so a job of it may use nodes outside). The partner
stays in service and is borrowed under the guard of sweeps: what that guard says no more ends the job. Two
nodes that are bad together do not say which of them it is, so a failure is looked at with a second partner:
well with that one clears the node and speaks against the first; bad again fails the node.

The step's own log is its memory: a partner is noted before its job is submitted, and a job is known by the id
that Slurm gave, or by its name and comment.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from healer.actions import test_job
from healer.actions.base import Again, Context, Done, Failed, Result
from healer.actions.test_results import Ended
from healer.actions.test_script import batch
from healer.model import Command, CommandKind, SlurmJob, SlurmSnapshot, Submission, kind_of
from healer.model.reserved import our_reservation
from healer.ports.slurm import SchedulerRefused, SchedulerUnavailable

LOOK_AGAIN_S = 1.0
#: No idle node may be borrowed now.
NONE_FREE_AGAIN_S = 15.0
#: After so long without a partner the node is taken as it is: how well it is alone was tested.
PARTNER_WITHIN_S = 600
#: Of the job, which borrows a node that is in service.
LIMIT_S = 1200
#: Partners that were lost to somebody's job, or could not be tested with.
VOIDS_MAX = 4
#: So many candidates the gate is asked about at once.
_ASKED_AT_ONCE = 8


class Round(msgspec.Struct, frozen=True):
    """One partner: the job once it was submitted, and `failed` or `void` once that is over."""

    partner: str
    job: str | None = None
    outcome: str | None = None
    says: str = ""


def rounds(ctx: Context) -> list[Round]:
    found: list[Round] = []
    for line in ctx.lines:
        if partner := line.data.get("partner"):
            found.append(Round(partner=str(partner)))
        if found and (told := line.data.get("pair")):
            found[-1] = msgspec.structs.replace(found[-1], **told)
    return found


def look(ctx: Context, alone: Done) -> Result | None:
    """The verdict on both counts once the node passed `alone`; None: the next job is to be submitted."""
    asked = test_job.pair_of(ctx)
    if not asked:
        return alone
    try:
        picture = ctx.scheduler.snapshot()
    except SchedulerUnavailable as error:
        return Again(text=f"Slurm did not answer: {error}", after_s=LOOK_AGAIN_S)
    told = rounds(ctx)
    if not told or told[-1].outcome is not None:
        return _next(ctx, alone, told, picture)
    job = _job(ctx, told[-1], picture)
    if job is None:
        return None if told[-1].job is None else _over(told[-1], "void", "Slurm no longer knows its job")
    if job.active or job.state == "PENDING":
        return _under_way(ctx, told[-1], job)
    return _ended(ctx, alone, told, job)


def _next(ctx: Context, alone: Done, told: list[Round], picture: SlurmSnapshot) -> Result:
    failed = [one for one in told if one.outcome == "failed"]
    if len(failed) > 1:
        both = f"{failed[0].partner} and {failed[1].partner}"
        text = f"{alone.text}; not well together with {both}: {failed[1].says}"
        partners = [one.partner for one in failed]
        return Done(text=text, data=alone.data | {"passed": False, "partners": partners})
    if (why := _too_late(ctx, told)) is not None:
        return _without(alone, failed, why)
    partner = next(_candidates(ctx, picture, {one.partner for one in told}), None)
    if partner is None:
        text = f"No idle node may be borrowed to test {ctx.node} with"
        return Again(text=text, after_s=NONE_FREE_AGAIN_S, data={"pair_since": _since(ctx)})
    text = f"{partner} is the partner of {ctx.node}"
    return Again(text=text, after_s=0, data={"partner": partner, "pair_since": _since(ctx)})


def _since(ctx: Context) -> float:
    """When a partner was first looked for, as seconds since the epoch."""
    told = (one.data["pair_since"] for one in ctx.lines if one.data.get("pair_since"))
    return next(told, ctx.now().timestamp())


def _too_late(ctx: Context, told: list[Round]) -> str | None:
    if sum(one.outcome == "void" for one in told) >= VOIDS_MAX:
        return f"{VOIDS_MAX} partners were lost: {told[-1].says}"
    if ctx.now().timestamp() - _since(ctx) > PARTNER_WITHIN_S:
        return f"no partner was free within {PARTNER_WITHIN_S} s"
    return None


def _without(alone: Done, failed: list[Round], why: str) -> Result:
    """How a node is alone decides where nobody could be its partner; a failure that no second one explained
    is a question."""
    if failed:
        text = f"Not well together with {failed[0].partner} ({failed[0].says}), and {why}"
        return Failed(text=f"{text}: which of the two it is, is not known", final=True)
    return Done(text=f"{alone.text}; not tested with a second node: {why}", data=alone.data)


def _candidates(ctx: Context, picture: SlurmSnapshot, tried: set[str]) -> Iterator[str]:
    """Idle nodes of its kind that the gate lets be borrowed, those of another switch first: the way to them
    is the longer one."""
    node = picture.nodes[ctx.node]
    alike = [
        one
        for one in picture.gpu_nodes
        if one.name not in tried | {ctx.node}
        and one.state == ("IDLE",)
        and kind_of(one.gpu_model) == kind_of(node.gpu_model)
        and one.gpus == node.gpus
        and test_job.shared_partition((node, one))
    ]
    alike.sort(key=lambda one: (one.switch == node.switch, one.name))
    for one in alike[:_ASKED_AT_ONCE]:
        if not ctx.may_borrow([one.name], False):
            yield one.name


# --- its job ---


def _comment(ctx: Context, partner: str) -> str:
    return f"{ctx.key}/{partner}"


def _job(ctx: Context, now: Round, picture: SlurmSnapshot) -> SlurmJob | None:
    if now.job is not None:
        return picture.jobs.get(now.job)
    kept, name = our_reservation(picture, ctx.node), test_job.name_of(ctx)
    mine = (
        job
        for job in picture.jobs.values()
        if kept is not None
        and (job.reservation, job.name, job.comment) == (kept.name, name, _comment(ctx, now.partner))
    )
    return next(mine, None)


def submit(ctx: Context) -> Result | None:
    told, asked = rounds(ctx), test_job.pair_of(ctx)
    if not told or told[-1].outcome is not None or told[-1].job is not None:
        return None  # nothing is due
    partner = told[-1].partner
    try:
        picture = ctx.scheduler.snapshot()
    except SchedulerUnavailable:
        return None  # nothing was submitted
    kept = our_reservation(picture, ctx.node)
    node, other = picture.nodes[ctx.node], picture.nodes.get(partner)
    if kept is None:
        return Failed(text=f"{ctx.node} is in no reservation of ours", final=True)
    if other is None:
        return _over(told[-1], "void", "Slurm does not know it any more")
    if why := ctx.may_borrow([partner], False).get(partner):
        return _over(told[-1], "void", why)
    job = Submission(
        name=test_job.name_of(ctx),
        script=batch({one: ctx.scripts[one] for one in asked}, "pair"),
        nodes=(ctx.node, partner),
        time_limit_s=LIMIT_S,
        reservation=kept.name,
        partition=test_job.shared_partition((node, other)),
        comment=_comment(ctx, partner),
        gpus_per_node=0 if node.gpus_shared else node.gpus,
        nice=test_job.NICE,
    )
    ctx.fence()
    try:
        number = ctx.scheduler.submit(job)
    except SchedulerRefused as error:
        return _over(told[-1], "void", str(error))
    except SchedulerUnavailable as error:
        if not error.sent:
            return None
        return Failed(text=f"Slurm did not say whether it took the test job with {partner}: {error}")
    text = f"The test job {number} of {ctx.node} and {partner} was submitted"
    return Again(text=text, after_s=LOOK_AGAIN_S, data={"pair": {"job": number}})


def _over(now: Round, outcome: str, says: str) -> Again:
    """Noted before the next partner is looked for."""
    text = f"With {now.partner}: {says}"
    return Again(text=text, after_s=0, data={"pair": {"outcome": outcome, "says": says}})


def _under_way(ctx: Context, now: Round, job: SlurmJob) -> Result:
    """It gives way: to whoever wants the partner, and to its own patience."""
    why = ctx.may_borrow([now.partner], True).get(now.partner) or test_job.not_started(
        ctx, job, job.submit_at
    )
    noted = {"pair": {"job": job.id}}
    if why is None:
        text = f"The test job {job.id} of {ctx.node} and {now.partner} {test_job.does(job)}"
        return Again(text=text, after_s=LOOK_AGAIN_S, data=noted)
    if (failed := test_job.cancel(ctx, job)) is not None:
        return failed
    return Again(text=f"Job {job.id} gives way: {why}", after_s=LOOK_AGAIN_S, data=noted)


def _ended(ctx: Context, alone: Done, told: list[Round], job: SlurmJob) -> Result:
    """What a test told is an answer; a job that was cancelled or killed has none."""
    now, answer = told[-1], test_job.judged(ctx, job)
    failed = [name for name, one in answer.told.tests.items() if one is Ended.failed]
    worse = job.state == "COMPLETED" and bool(answer.data["worse"])
    if worse or (job.state == "FAILED" and failed):
        says = "; ".join(answer.data["worse"]) if worse else answer.told.says.get(failed[0], failed[0])
        return _over(now, "failed", says)
    if job.state != "COMPLETED":
        return _over(now, "void", f"job {job.id} was {job.state}")
    for one in told:
        if one.outcome == "failed":
            ctx.tell_detector(_against(ctx, one, now.partner))
    merged: dict[str, Any] = dict(alone.data)
    for part in ("tests", "took_s", "says", "results"):
        merged[part] = {**alone.data[part], **answer.data[part]}
    merged["compared"] = [*alone.data["compared"], *answer.data["compared"]]
    merged["partners"] = [now.partner]
    return Done(text=f"{alone.text}; well together with {now.partner}", data=merged)


def _against(ctx: Context, bad: Round, good: str) -> Command:
    """A finding of the first partner. Told twice after a death, it is one."""
    says = f"not well together with {ctx.node}, which is well with {good}: {bad.says}"
    return Command(
        kind=CommandKind.test_failed,
        cluster=ctx.run.cluster,
        at=ctx.now(),
        by=ctx.run.by,
        data={"run": ctx.run.id, "node": bad.partner, "test": "pair", "says": says[:300]},
    )
