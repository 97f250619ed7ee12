"""Diagnose: the node's own tests, by `input.depth` or `input.script` a batch job on it, and where the depth
has tests of two nodes a job with a partner. All must pass."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from healer.actions import test_job
from healer.actions.base import Action, Again, Context, Done, Failed, Result, read_slurm
from healer.actions.node_work import OWN_TESTS
from healer.actions.test_form import Ended, batch
from healer.model import SlurmJob, SlurmSnapshot, Submission, node_kind
from healer.model.slurm import our_reservation
from healer.ports.scheduling import SchedulerRefused, SchedulerUnavailable

LOOK_AGAIN_S = 1.0
#: Before a test has begun.
BEGIN_AGAIN_S = 2.0
#: No idle node may be borrowed now.
NONE_FREE_AGAIN_S = 15.0
#: After so long without a partner the node is taken as it is: how well it is alone was tested.
PARTNER_WITHIN_S = 600
#: Of the job, which borrows a node that is in service.
LIMIT_S = 1200
#: Partners that were lost to another job, or could not be tested with.
VOIDS_MAX = 4
#: So many candidates the gate is asked about at once.
_ASKED_AT_ONCE = 8


class Round(msgspec.Struct, frozen=True):
    """One partner: the job once it was submitted, and `failed` or `void` once that is over."""

    partner: str
    job: str | None = None
    outcome: str | None = None
    says: str = ""


def pair_rounds(ctx: Context) -> list[Round]:
    found: list[Round] = []
    for line in ctx.lines:
        if partner := line.data.get("partner"):
            found.append(Round(partner=str(partner)))
        if found and (told := line.data.get("pair")):
            found[-1] = msgspec.structs.replace(found[-1], **told)
    return found


def look_with_partner(ctx: Context, alone: Done) -> Result | None:
    """The verdict on both counts once the node passed `alone`; None: the next job is to be submitted."""
    asked = test_job.pair_of(ctx)
    if not asked:
        return alone
    picture = read_slurm(ctx.tools.scheduler.snapshot, LOOK_AGAIN_S)
    if not isinstance(picture, SlurmSnapshot):
        return picture
    told = pair_rounds(ctx)
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
    return next(told, ctx.tools.now().timestamp())


def _too_late(ctx: Context, told: list[Round]) -> str | None:
    if sum(one.outcome == "void" for one in told) >= VOIDS_MAX:
        return f"{VOIDS_MAX} partners were lost: {told[-1].says}"
    if ctx.tools.now().timestamp() - _since(ctx) > PARTNER_WITHIN_S:
        return f"no partner was free within {PARTNER_WITHIN_S} s"
    return None


def _without(alone: Done, failed: list[Round], why: str) -> Result:
    """How a node is alone decides where no node could be its partner; a failure that no second one explained
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
        and node_kind(one.gpu_model) == node_kind(node.gpu_model)
        and one.gpus == node.gpus
        and test_job.shared_partition((node, one))
    ]
    alike.sort(key=lambda one: (one.switch == node.switch, one.name))
    for one in alike[:_ASKED_AT_ONCE]:
        if not ctx.claim.may_borrow([one.name], False):
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


def submit_pair(ctx: Context) -> Result | None:
    told, asked = pair_rounds(ctx), test_job.pair_of(ctx)
    if not told or told[-1].outcome is not None or told[-1].job is not None:
        return None  # nothing is due
    partner = told[-1].partner
    try:
        picture = ctx.tools.scheduler.snapshot()
    except SchedulerUnavailable:
        return None  # nothing was submitted
    kept = our_reservation(picture, ctx.node)
    node, other = picture.nodes[ctx.node], picture.nodes.get(partner)
    if kept is None:
        return Failed(text=f"{ctx.node} is in no reservation of ours", final=True)
    if other is None:
        return _over(told[-1], "void", "Slurm does not know it any more")
    if why := ctx.claim.may_borrow([partner], False).get(partner):
        return _over(told[-1], "void", why)
    job = Submission(
        name=test_job.name_of(ctx),
        script=batch({one: ctx.tools.scripts[one] for one in asked}, "pair"),
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
        number = ctx.tools.scheduler.submit(job)
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
    why = ctx.claim.may_borrow([now.partner], True).get(now.partner) or test_job.not_started(
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
            says = f"not well together with {ctx.node}, which is well with {now.partner}: {one.says}"
            ctx.claim.tell_detector(test_job.failed_test(ctx, one.partner, "pair", says[:300]))
    merged: dict[str, Any] = dict(alone.data)
    for part in ("tests", "took_s", "says", "results"):
        merged[part] = {**alone.data[part], **answer.data[part]}
    merged["compared"] = [*alone.data["compared"], *answer.data["compared"]]
    merged["partners"] = [now.partner]
    return Done(text=f"{alone.text}; well together with {now.partner}", data=merged)


def _on_node(ctx: Context) -> bool:
    """The tests on the node itself are made: not those of a job alone where nothing reaches nodes."""
    return ctx.tools.nodes is not None or test_job.wanted(ctx) is None


def _passed(result: Result | None) -> bool:
    return isinstance(result, Done) and bool(result.data["passed"])


def _look(ctx: Context, on_node: Callable[[Context], Result | None]) -> Result | None:
    told = on_node(ctx) if _on_node(ctx) else None
    if test_job.wanted(ctx) is None or (_on_node(ctx) and not _passed(told)):
        return told
    alone = _alone(ctx)
    if alone is not None:
        return look_with_partner(ctx, alone)
    told = test_job.look(ctx)
    if not isinstance(told, Done) or not _passed(told) or not test_job.pair_of(ctx):
        return told
    # Slurm forgets a job that has ended after some minutes, and a partner may take longer.
    return Again(text=told.text, after_s=0, data={"alone": {"text": told.text, "data": told.data}})


def _alone(ctx: Context) -> Done | None:
    """How it did by itself, noted before a partner is looked for."""
    noted = next((one.data["alone"] for one in ctx.lines if one.data.get("alone")), None)
    return Done(text=noted["text"], data=noted["data"]) if noted is not None else None


def _probe(ctx: Context) -> Result | None:
    return _look(ctx, OWN_TESTS.probe)


def _do(ctx: Context) -> Result | None:
    if _on_node(ctx) and not _passed(OWN_TESTS.probe(ctx)):
        return OWN_TESTS.do(ctx)
    return test_job.submit(ctx) if _alone(ctx) is None else submit_pair(ctx)


def _verify(ctx: Context) -> Result:
    return _look(ctx, OWN_TESTS.verify) or Again(text=f"The tests of {ctx.node} begin", after_s=BEGIN_AGAIN_S)


DIAGNOSE = Action(probe=_probe, do=_do, verify=_verify)
