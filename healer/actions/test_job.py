"""A test of a node by healer's batch job inside its reservation: it passes by its exit code, and if no result
is worse than on the reference node of its kind.

The job is identified by Slurm's number, which is logged immediately. If a worker dies before that, the next
one finds the job by its name and comment. A node whose test could not run has not passed: a person is asked.
"""

import contextlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from healer.actions import under_test
from healer.actions.base import (
    Again,
    Answered,
    Context,
    Done,
    Failed,
    Result,
    first_logged,
    holder_of,
    last_drain_reason,
    read_slurm,
    recent_picture,
)
from healer.actions.test_form import NOT_TESTED, TestReport, batch, compare, parse_report, report_text
from healer.model import (
    FIT,
    REMEDY_LADDER,
    Command,
    CommandKind,
    LogEntry,
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
from healer.text import Said, joined, said_by, say

LOOK_AGAIN_S = 5.0
#: The job's own limit if the step gives none (`input.limit_s`).
LIMIT_S = 600
#: Nice value of jobs that yield: below all priorities of the site, and allowed for every user.
NICE = 1_000_000
#: A job that yields and has not started by then has lost a node to another job.
STARTS_WITHIN_S = 60
#: States of an ended job that count against its node, or against the test.
_FAILED = frozenset({"FAILED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "DEADLINE"})


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Tests of `rules/validation` in order; `depth` is empty if a step names one script."""

    tests: tuple[str, ...]
    limit_s: int
    depth: str = ""
    same_facts: bool = False
    pair: tuple[str, ...] = ()


def wanted_tests(ctx: Context) -> Wanted | None:
    """The tests that this step runs as a job; None if it runs none."""
    limit_s = int(ctx.step.input.get("limit_s", 0))
    script, depth = ctx.step.input.get("script"), ctx.step.input.get("depth")
    if script is not None:
        return Wanted(tests=(str(script),), limit_s=limit_s or LIMIT_S)
    if depth is None:
        return None
    name = ctx.tools.validation.depth_for(_highest_remedy(ctx)) if depth == FIT else str(depth)
    found = ctx.tools.validation.depths.get(name)
    if found is None:
        return Wanted(tests=(), limit_s=LIMIT_S, depth=name)
    limit_s = limit_s or found.limit_s
    return Wanted(
        tests=found.tests, limit_s=limit_s, depth=name, same_facts=found.same_facts, pair=found.pair
    )


def pair_tests(ctx: Context) -> tuple[str, ...]:
    """The two-node tests of the submitted depth."""
    return _submitted(ctx).pair


def _highest_remedy(ctx: Context) -> Remedy | None:
    """The highest remedy on the ladder that was requested or carried out; the tests must fit it."""
    asked = ctx.run.input.get("remedy")
    remedies = [Remedy(str(asked))] if asked else []
    remedies += [Remedy(remedy) for remedy in highest_remedy(ctx.log).values()]
    if ctx.incident is not None:
        remedies += [*ctx.incident.remedy, ctx.incident.tried]
    return max(
        (remedy for remedy in remedies if remedy in REMEDY_LADDER), key=REMEDY_LADDER.index, default=None
    )


def look(ctx: Context) -> Result | None:
    """The result of the test job; None: it was never submitted."""
    sent = next((line for line in ctx.lines if line.data.get("submitted")), None)
    if sent is not None and (job := _still_running(ctx, sent)) is not None:
        return under_way(ctx, job)
    picture = read_slurm(ctx.tools.scheduler.snapshot, LOOK_AGAIN_S)
    if our_reservation(picture, ctx.node) is None:
        return Failed(say("actions.test_job_reservation_gone", node=ctx.node), final=True)
    job = picture.jobs.get(sent.data["submitted"]) if sent is not None else _find(ctx, picture)
    if job is not None:
        return _verdict(ctx, job)
    if sent is None:
        return None
    text = say("actions.test_job_forgotten", job=sent.data["submitted"], node=ctx.node)
    return Failed(text, final=True)


def _still_running(ctx: Context, sent: LogEntry) -> SlurmJob | None:
    """The test job, if a snapshot from after its submission shows that it has not ended."""
    picture = recent_picture(ctx, sent.at)
    if picture is None or our_reservation(picture, ctx.node) is None:
        return None
    job = picture.jobs.get(sent.data["submitted"])
    return job if job is not None and job.unfinished else None


def waits_for_others(ctx: Context) -> bool:
    """The test job cannot start: by the stored snapshot, someone else has taken its node out meanwhile."""
    picture, number = ctx.tools.picture(), first_logged(ctx.lines, "submitted")
    job = picture.jobs.get(number) if picture is not None and number is not None else None
    node = picture.nodes.get(ctx.node) if picture is not None else None
    if job is None or node is None or job.state != "PENDING":
        return False
    return holder_of(node, last_drain_reason(ctx.log)) is not None


def _find(ctx: Context, picture: SlurmSnapshot) -> SlurmJob | None:
    # Names and comments can be forged, but only healer's user may submit into the reservation.
    kept = our_reservation(picture, ctx.node)
    ours = (
        job
        for job in picture.jobs.values()
        if kept is not None
        and (job.reservation, job.name, job.comment) == (kept.name, job_name(ctx), ctx.key)
    )
    return next(ours, None)


def job_name(ctx: Context) -> str:
    return f"{under_test.TEST_JOBS}{(ctx.run.incident or ctx.run.id)[:8]}"


def _verdict(ctx: Context, job: SlurmJob) -> Result:
    if job.unfinished:
        return under_way(ctx, job)
    answer = judge_job(ctx, job)
    untested = job.state == "FAILED" and exit_status(job) == NOT_TESTED
    if untested or (job.state != "COMPLETED" and job.state not in _FAILED):
        return Failed(say("actions.test_job_not_tested", head=answer.head), final=True)
    return Done(answer.text, answer.data)


class JobVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an ended job: `head` is its summary, `text` adds the comparison with the reference node;
    `worse`: what counts against the node."""

    head: Said
    text: Said
    data: dict[str, Any]
    report: TestReport
    worse: tuple[Said, ...]


def judge_job(ctx: Context, job: SlurmJob) -> JobVerdict:
    """`data["passed"]`: the job completed, and no result is worse than on the reference node of its kind."""
    asked = _submitted(ctx)
    report = parse_report(job.admin_comment) or TestReport()
    head = say(
        "actions.test_job_head",
        depth=asked.depth or asked.tests[0],
        node=ctx.node,
        job=job.id,
        state=job.state,
    )
    if report.tests:
        head = joined([head, *report_text(report, asked.tests)], "semicolon")
    reference = reference_for(ctx, ctx.node)
    held = compare(report.results, reference)
    text = head
    if job.state != "COMPLETED":
        code = job.exit_code or say("actions.test_job_no_code")
        text = say("actions.test_job_exit_code", head=head, code=code)
    worse = (*held.worse, *(held.other if asked.same_facts else ()))
    data: dict[str, Any] = {
        "passed": job.state == "COMPLETED" and not worse,
        "job": job.id,
        "exit_code": job.exit_code,
        "tests": {name: str(ended) for name, ended in report.tests.items()},
        "took_s": report.took_s,
        "says": report.says,
        "results": report.results,
        "whole": report.whole,
        "worse": [str(sentence) for sentence in worse],
        "other": [str(sentence) for sentence in held.other],
        "compared": list(held.alike),
        "depth": asked.depth,
        "reference": reference.node if reference is not None else None,
    }
    text = joined([text, *held.worse, *held.other], "semicolon")
    return JobVerdict(head=head, text=text, data=data, report=report, worse=worse)


def exit_status(job: SlurmJob) -> int | None:
    status = (job.exit_code or "").partition(":")[0]
    return int(status) if status.isdecimal() else None


def _submitted(ctx: Context) -> Wanted:
    """The tests of the submitted job; without a log entry (a worker died) those that would be submitted
    now."""
    noted = first_logged(ctx.lines, "wanted")
    found = msgspec.convert(noted, Wanted) if noted else wanted_tests(ctx)
    return found or Wanted(tests=("test",), limit_s=LIMIT_S)


def reference_for(ctx: Context, name: str) -> Reference | None:
    """The reference node of this node's kind; None for a node that Slurm does not show."""
    picture = ctx.tools.picture()
    node = picture.nodes.get(name) if picture is not None else None
    if node is None:
        return None
    kind = node_kind(node.gpu_model)
    return next((reference for reference in ctx.claim.references() if reference.kind == kind), None)


def runnable_tests(ctx: Context) -> Wanted:
    """The tests that this step runs as a job; Failed if `rules/validation` lacks one."""
    asked = wanted_tests(ctx)
    if asked is None or not asked.tests:
        text = say("actions.test_job_no_depth", depth=asked.depth if asked else "")
        raise Answered(Failed(text, final=True))
    lacks = next((name for name in asked.tests if name not in ctx.tools.scripts), None)
    if lacks is not None:
        raise Answered(Failed(say("actions.test_job_no_script", name=lacks), final=True))
    return asked


def submit(ctx: Context) -> Result | None:
    """Submits the job for the whole node, with all GPUs that Slurm knows: the script compares their
    number."""
    asked = runnable_tests(ctx)
    try:
        node = ctx.tools.scheduler.node(ctx.node)
        kept = under_test.reservation(ctx)
        if kept is None:
            return Failed(say("actions.test_job_not_reserved", node=ctx.node), final=True)
    except SchedulerUnavailable:
        return None  # nothing was submitted
    script = script_of(ctx, asked.tests, asked.depth)
    job = submission(
        [node], script, name=job_name(ctx), time_limit_s=asked.limit_s, comment=ctx.key, reservation=kept.name
    )
    *others, last = _partitions_for(ctx, node)
    for partition in others:
        with contextlib.suppress(SchedulerRefused):  # the node may be in a different one
            return submit_job(ctx, asked, msgspec.structs.replace(job, partition=partition))
    return submit_job(ctx, asked, msgspec.structs.replace(job, partition=last))


def _partitions_for(ctx: Context, node: SlurmNode) -> list[str]:
    """Where to submit the node's test, in order: the site's partition for sweeps, Slurm's default (empty),
    and the node's own. Slurm refuses a job in a partition without the node, even in a reservation."""
    chosen = ctx.tools.guards.sweep.partition
    first = [chosen] if chosen in node.partitions else []
    return list(dict.fromkeys([*first, "", *node.partitions]))


def script_of(ctx: Context, tests: Iterable[str], depth: str) -> str:
    return batch({name: ctx.tools.scripts[name] for name in tests}, depth)


def submission(nodes: Sequence[SlurmNode], script: str, **more: Any) -> Submission:
    """A job on all GPUs of these nodes, which are alike."""
    gpus = 0 if nodes[0].gpus_shared else nodes[0].gpus
    return Submission(nodes=tuple(node.name for node in nodes), script=script, gpus_per_node=gpus, **more)


def submit_job(
    ctx: Context, asked: Wanted, job: Submission, *, look_again_s: float = LOOK_AGAIN_S
) -> Result | None:
    ctx.fence()
    try:
        number = ctx.tools.scheduler.submit(job)
    except SchedulerUnavailable as error:
        if not error.sent:
            return None
        # Unknown whether Slurm took it: the next attempt looks for the job's name first.
        why = said_by(error)
        return Failed(say("actions.test_job_unanswered", nodes=ctx.node, error=why))
    text = say("actions.test_job_submitted", job=number, node=ctx.node)
    data = {"submitted": number, "wanted": msgspec.to_builtins(asked)}
    return Again(text, look_again_s, data=data)


def failed_test_command(ctx: Context, node: str, test: str, says: str, **more: str) -> Command:
    """Reports a failed test of the node as a finding of its own; a repeat after a worker's death is
    identical."""
    return Command(
        kind=CommandKind.test_failed,
        cluster=ctx.run.cluster,
        at=ctx.tools.now(),
        by=ctx.run.by,
        data={"run": ctx.run.id, "node": node, "test": test, "says": str(says), **more},
    )


def shared_partition(nodes: Sequence[SlurmNode]) -> str:
    """A partition that contains all of these nodes; empty: none."""
    first, *rest = (node.partitions for node in nodes)
    return next((name for name in first if all(name in partitions for partitions in rest)), "")


def under_way(ctx: Context, job: SlurmJob, look_again_s: float = LOOK_AGAIN_S) -> Again:
    text = say("actions.test_job_under_way", job=job.id, node=ctx.node, state=state_text(job))
    return Again(text, look_again_s)


def state_text(job: SlurmJob) -> Said:
    if job.state != "PENDING":
        return say("actions.test_job_runs")
    return (
        say("actions.test_job_waits_for", reason=job.reason) if job.reason else say("actions.test_job_waits")
    )


def not_started(ctx: Context, job: SlurmJob, since: datetime | None) -> Said | None:
    """Why a yielding job is cancelled before it began; None if it may wait. `since`: start of its wait."""
    if (
        job.state != "PENDING"
        or since is None
        or (ctx.tools.now() - since).total_seconds() <= STARTS_WITHIN_S
    ):
        return None
    reason = job.reason or say("actions.no_reason_given")
    return say("actions.test_job_not_started", seconds=STARTS_WITHIN_S, reason=reason)


def cancel(ctx: Context, job: SlurmJob) -> Failed | None:
    """Cancels healer's job. None: requested, or the job is ending; read it back."""
    if "COMPLETING" in job.flags:
        return None
    ctx.fence()
    try:
        ctx.tools.scheduler.cancel(job.id)
    except SchedulerRefused as error:
        if error.code not in under_test.JOB_OVER:
            text = say("actions.test_job_not_cancelled", job=job.id, error=said_by(error))
            return Failed(text, final=error.no_right)
    except SchedulerUnavailable:
        pass  # unknown whether it happened
    return None
