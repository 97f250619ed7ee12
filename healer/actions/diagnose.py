"""Diagnose: the node's own tests; with `input.depth` or `input.script` also a batch job on the node; and if
the depth has tests of two nodes, a job with a partner. All must pass."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from healer.actions import test_job
from healer.actions.base import Action, Again, Context, Done, Failed, Result, first_logged, read_slurm
from healer.actions.node_work import OWN_TESTS
from healer.actions.test_form import TestOutcome
from healer.model import SlurmJob, SlurmSnapshot, node_kind
from healer.model.slurm import our_reservation
from healer.ports.scheduling import SchedulerRefused, SchedulerUnavailable
from healer.text import NO_WORDS, Said, from_stored, joined, quoted, read_said, said_by, say, to_stored

LOOK_AGAIN_S = 1.0
#: Before a test has begun.
BEGIN_AGAIN_S = 2.0
#: While no idle node may be borrowed.
NONE_FREE_AGAIN_S = 15.0
#: After this long without a partner, the node's own tests decide.
PARTNER_WITHIN_S = 600
#: Time limit of the job, which borrows a node in service.
LIMIT_S = 1200
#: The most partners that may be preempted, or fail to be tested.
VOIDS_MAX = 4
#: How many candidates the gate is asked about per look.
_ASKED_AT_ONCE = 8


class Round(msgspec.Struct, frozen=True):
    """A test with one partner: its job once submitted, and its outcome, `failed` or `void`, once over."""

    partner: str
    job: str | None = None
    outcome: str | None = None
    says: Said = NO_WORDS


def pair_rounds(ctx: Context) -> list[Round]:
    found: list[Round] = []
    for line in ctx.lines:
        if partner := line.data.get("partner"):
            found.append(Round(partner=str(partner)))
        if found and (update := line.data.get("pair")):
            found[-1] = from_stored(to_stored(found[-1]) | update, Round)
    return found


def look_with_partner(ctx: Context, alone: Done) -> Result | None:
    """The verdict on a node that passed `alone`, including its test with a partner; None: submit the next
    job."""
    asked = test_job.pair_tests(ctx)
    if not asked:
        return alone
    picture = read_slurm(ctx.tools.scheduler.snapshot, LOOK_AGAIN_S)
    rounds = pair_rounds(ctx)
    if not rounds or rounds[-1].outcome is not None:
        return _next(ctx, alone, rounds, picture)
    job = _job(ctx, rounds[-1], picture)
    if job is None:
        return (
            None if rounds[-1].job is None else _end_round(rounds[-1], "void", say("actions.test_job_gone"))
        )
    if job.unfinished:
        return _under_way(ctx, rounds[-1], job)
    return _ended(ctx, alone, rounds, job)


def _next(ctx: Context, alone: Done, rounds: list[Round], picture: SlurmSnapshot) -> Result:
    failed = [round_ for round_ in rounds if round_.outcome == "failed"]
    if len(failed) > 1:
        partners = [round_.partner for round_ in failed]
        text = say(
            "actions.pair_failed",
            alone=alone.text,
            first=failed[0].partner,
            second=failed[1].partner,
            says=failed[1].says,
        )
        return Done(text, alone.data | {"passed": False, "partners": partners})
    if (why := _too_late(ctx, rounds)) is not None:
        return _without_partner(alone, failed, why)
    partner = next(_candidates(ctx, picture, {round_.partner for round_ in rounds}), None)
    if partner is None:
        text = say("actions.pair_none_idle", node=ctx.node)
        return Again(text, NONE_FREE_AGAIN_S, data={"pair_since": _search_began_at(ctx)})
    text = say("actions.pair_partner", partner=partner, node=ctx.node)
    return Again(text, 0, data={"partner": partner, "pair_since": _search_began_at(ctx)})


def _search_began_at(ctx: Context) -> float:
    """When the search for a partner began, in Unix seconds."""
    return first_logged(ctx.lines, "pair_since") or ctx.tools.now().timestamp()


def _too_late(ctx: Context, rounds: list[Round]) -> Said | None:
    if sum(round_.outcome == "void" for round_ in rounds) >= VOIDS_MAX:
        return say("actions.pair_lost", n=VOIDS_MAX, says=rounds[-1].says)
    if ctx.tools.now().timestamp() - _search_began_at(ctx) > PARTNER_WITHIN_S:
        return say("actions.pair_none_free", seconds=PARTNER_WITHIN_S)
    return None


def _without_partner(alone: Done, failed: list[Round], why: Said) -> Result:
    """The result without a partner: the node's own tests decide, or a person after one failure with a
    partner."""
    if failed:
        text = say("actions.pair_unclear", partner=failed[0].partner, says=failed[0].says, why=why)
        return Failed(text, final=True)
    return Done(say("actions.pair_not_tested", alone=alone.text, why=why), alone.data)


def _candidates(ctx: Context, picture: SlurmSnapshot, tried: set[str]) -> Iterator[str]:
    """Idle nodes of the same kind that the gate allows to borrow, those under another switch first: the path
    to them is longer."""
    node = picture.nodes[ctx.node]
    alike = [
        other
        for other in picture.gpu_nodes
        if other.name not in tried | {ctx.node}
        and other.state == ("IDLE",)
        and node_kind(other.gpu_model) == node_kind(node.gpu_model)
        and other.gpus == node.gpus
        and test_job.shared_partition((node, other))
    ]
    alike.sort(key=lambda other: (other.switch == node.switch, other.name))
    for other in alike[:_ASKED_AT_ONCE]:
        if not ctx.claim.may_borrow([other.name], False):
            yield other.name


# --- its job ---


def _comment(ctx: Context, partner: str) -> str:
    return f"{ctx.key}/{partner}"


def _job(ctx: Context, now: Round, picture: SlurmSnapshot) -> SlurmJob | None:
    if now.job is not None:
        return picture.jobs.get(now.job)
    kept, name = our_reservation(picture, ctx.node), test_job.job_name(ctx)
    ours = (
        job
        for job in picture.jobs.values()
        if kept is not None
        and (job.reservation, job.name, job.comment) == (kept.name, name, _comment(ctx, now.partner))
    )
    return next(ours, None)


def submit_pair(ctx: Context) -> Result | None:
    rounds, asked = pair_rounds(ctx), test_job.pair_tests(ctx)
    if not rounds or rounds[-1].outcome is not None or rounds[-1].job is not None:
        return None  # nothing to submit
    partner = rounds[-1].partner
    try:
        picture = ctx.tools.scheduler.snapshot()
    except SchedulerUnavailable:
        return None  # nothing was submitted
    kept = our_reservation(picture, ctx.node)
    node, other = picture.nodes[ctx.node], picture.nodes.get(partner)
    if kept is None:
        return Failed(say("actions.test_job_not_reserved", node=ctx.node), final=True)
    if other is None:
        return _end_round(rounds[-1], "void", say("actions.pair_unknown"))
    if why := ctx.claim.may_borrow([partner], False).get(partner):
        return _end_round(rounds[-1], "void", quoted(why))
    job = test_job.submission(
        (node, other),
        test_job.script_of(ctx, asked, "pair"),
        name=test_job.job_name(ctx),
        time_limit_s=LIMIT_S,
        reservation=kept.name,
        partition=test_job.shared_partition((node, other)),
        comment=_comment(ctx, partner),
        nice=test_job.NICE,
    )
    ctx.fence()
    try:
        number = ctx.tools.scheduler.submit(job)
    except SchedulerRefused as error:
        return _end_round(rounds[-1], "void", said_by(error))
    except SchedulerUnavailable as error:
        if not error.sent:
            return None
        why = said_by(error)
        return Failed(say("actions.pair_unanswered", partner=partner, error=why))
    text = say("actions.pair_submitted", job=number, node=ctx.node, partner=partner)
    return Again(text, LOOK_AGAIN_S, data={"pair": {"job": number}})


def _end_round(now: Round, outcome: str, says: Said) -> Again:
    """Logs the end of this round before the search for the next partner."""
    text = say("actions.pair_over", partner=now.partner, says=says)
    return Again(text, 0, data={"pair": {"outcome": outcome, "says": to_stored(says)}})


def _under_way(ctx: Context, now: Round, job: SlurmJob) -> Result:
    """The job yields to any job that needs the partner, and ends if it does not start in time."""
    why = ctx.claim.may_borrow([now.partner], True).get(now.partner) or test_job.not_started(
        ctx, job, job.submit_at
    )
    noted = {"pair": {"job": job.id}}
    if why is None:
        state = test_job.state_text(job)
        text = say("actions.pair_under_way", job=job.id, node=ctx.node, partner=now.partner, state=state)
        return Again(text, LOOK_AGAIN_S, data=noted)
    if (failed := test_job.cancel(ctx, job)) is not None:
        return failed
    return Again(say("actions.test_job_gives_way", job=job.id, why=quoted(why)), LOOK_AGAIN_S, data=noted)


def _ended(ctx: Context, alone: Done, rounds: list[Round], job: SlurmJob) -> Result:
    """The result of an ended job; void for one that was cancelled or killed."""
    now, answer = rounds[-1], test_job.judge_job(ctx, job)
    failed = [name for name, ended in answer.report.tests.items() if ended is TestOutcome.failed]
    if job.state == "COMPLETED" and answer.worse:
        return _end_round(now, "failed", joined(answer.worse, "semicolon"))
    if job.state == "FAILED" and failed:
        return _end_round(now, "failed", quoted(answer.report.says.get(failed[0], failed[0])))
    if job.state != "COMPLETED":
        return _end_round(now, "void", say("actions.test_job_was", job=job.id, state=job.state))
    for earlier in rounds:
        if earlier.outcome == "failed":
            says = say("actions.pair_says", node=ctx.node, partner=now.partner, says=earlier.says)
            ctx.claim.tell_detector(test_job.failed_test_command(ctx, earlier.partner, "pair", says[:300]))
    merged: dict[str, Any] = dict(alone.data)
    for part in ("tests", "took_s", "says", "results"):
        merged[part] = {**alone.data[part], **answer.data[part]}
    merged["compared"] = [*alone.data["compared"], *answer.data["compared"]]
    merged["partners"] = [now.partner]
    return Done(say("actions.pair_passed", alone=alone.text, partner=now.partner), merged)


def _on_node(ctx: Context) -> bool:
    """Whether the node's own tests are run: without access to nodes, a step with a job runs only the job."""
    return ctx.tools.nodes is not None or test_job.wanted_tests(ctx) is None


def _passed(result: Result | None) -> bool:
    return isinstance(result, Done) and bool(result.data["passed"])


def _look(ctx: Context, on_node: Callable[[Context], Result | None]) -> Result | None:
    result = on_node(ctx) if _on_node(ctx) else None
    if test_job.wanted_tests(ctx) is None or (_on_node(ctx) and not _passed(result)):
        return result
    alone = _alone(ctx)
    if alone is not None:
        return look_with_partner(ctx, alone)
    result = test_job.look(ctx)
    if not isinstance(result, Done) or not _passed(result) or not test_job.pair_tests(ctx):
        return result
    # Logged, because Slurm forgets an ended job after some minutes, and finding a partner may take longer.
    alone_now = {"text": to_stored(result.text), "data": result.data}
    return Again(result.text, 0, data={"alone": alone_now})


def _alone(ctx: Context) -> Done | None:
    """The logged result of the tests of the node alone; None before that."""
    noted = first_logged(ctx.lines, "alone")
    return Done(read_said(Said, noted["text"]), noted["data"]) if noted is not None else None


def _probe(ctx: Context) -> Result | None:
    return _look(ctx, OWN_TESTS.probe)


def _do(ctx: Context) -> Result | None:
    if _on_node(ctx) and not _passed(OWN_TESTS.probe(ctx)):
        return OWN_TESTS.do(ctx)
    return test_job.submit(ctx) if _alone(ctx) is None else submit_pair(ctx)


def _verify(ctx: Context) -> Result:
    begins = Again(say("actions.test_job_begins", node=ctx.node), BEGIN_AGAIN_S)
    return _look(ctx, OWN_TESTS.verify) or begins


DIAGNOSE = Action(probe=_probe, do=_do, verify=_verify)
