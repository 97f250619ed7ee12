"""A job continues without its bad node: it has left the node by itself, and Slurm removes the node from the
job.

healer does not make the job leave: its own launcher does (elastic agents). Slurm kills whatever runs on a
node that it removes, and `srun --kill-on-bad-exit` then ends the whole step (docs/slurm.md, "Shrink"). So no
node is removed before the node itself reports that no process of the job is left there, and another node
reports that the job is running.
"""

from datetime import datetime, timedelta

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
    read_node,
    read_node_and_jobs,
    read_slurm,
    restarts_known,
)
from healer.actions.hang import gpus_of_job, is_quiet
from healer.actions.waits import saved_at
from healer.decisions.consent import why_not_without
from healer.model import HARDWARE, SlurmCall, SlurmJob, SlurmNode, StepEvent
from healer.playbooks.advance import jobs_hit
from healer.ports.node_exec import NodeError, NodeUnavailable
from healer.text import Said, quoted, said_by, say

LOOK_AGAIN_S = 2.0
#: A node that has not answered for this long will not report in time that the job has left it. One call may
#: hang for 7.5 s, and a busy worker or network loses one or two.
SILENT_FOR = timedelta(seconds=20)
_SILENT_SINCE = "silent_since"


def spare_inside(ctx: Context) -> Result:
    """Whether the node's job agreed to continue without it and has a node to spare, and what that costs
    compared with a requeue. Skipped otherwise: the job is then restarted like any other.

    A requeue loses the work since the checkpoint, and so does a launcher that restarts from there. Only a
    requeue adds the start and the time in the queue; only a failed swap adds the time limit of the wait.
    """
    if ctx.tools.nodes is None:
        return Skipped(say("actions.swap_no_way"))
    if ctx.incident is not None and ctx.incident.fault_class not in HARDWARE:
        return Skipped(say("actions.swap_wrong_fault", node=ctx.node))
    lacking = ctx.tools.scheduler.unavailable().get(SlurmCall.shrink)
    if lacking is not None:
        return Skipped(say("slurm.not_available", why=lacking))
    node, jobs = read_node_and_jobs(ctx)
    if len(jobs) != 1:
        return Skipped(say("actions.swap_jobs", node=ctx.node, n=len(jobs)))
    if not node.responding:
        return Skipped(_silent_for_slurm(node))
    (job,) = jobs
    if why := why_not_without(job, ctx.node):
        return Skipped(why)
    if jobs_hit(ctx.log).get(job.id) != job.restarts:
        return Skipped(say("actions.swap_restarted", job=job.title))
    return _costs(ctx, job)


def _costs(ctx: Context, job: SlurmJob) -> Done:
    seen = read_slurm(ctx.tools.scheduler.snapshot)
    idle = sum(
        job.partition in node.partitions and node.in_service and not node.busy for node in seen.nodes.values()
    )
    kept = [at for at in (job.start_at, saved_at(ctx, job)) if at is not None]
    lost = ctx.tools.now() - max(kept) if kept else None
    text = say(
        "actions.swap_costs",
        job=job.title,
        node=ctx.node,
        nodes=len(job.nodes),
        left=len(job.nodes) - 1,
        work=_minutes(lost),
        idle=idle,
        partition=job.partition,
        limit_s=int(ctx.step.input["limit_s"]),
    )
    data = {"swap": job.id, "lost_s": lost.total_seconds() if lost is not None else None, "idle": idle}
    return Done(text, data)


def _minutes(lost: timedelta | None) -> str:
    return "? min" if lost is None else f"{lost.total_seconds() / 60:.0f} min"


def goes_on_without(ctx: Context) -> Result:
    """Waits until the job has left the node by itself and runs on its others. Unknown does not count as
    left."""
    name = next((entry.data["swap"] for entry in reversed(ctx.log) if entry.data.get("swap")), None)
    job = read_slurm(lambda: ctx.tools.scheduler.job(name)) if name is not None else None
    if job is None or jobs_hit(ctx.log).get(job.id) != job.restarts:
        return Skipped(say("actions.swap_restarted", job=str(name)))
    if why := why_not_without(job, ctx.node):
        return Skipped(why)
    try:
        why = _why_still_there(ctx, job)
    except NodeUnavailable as error:
        return _waits_for_answer(ctx, job, error)
    if why:
        return Again(why, LOOK_AGAIN_S)
    others = [node for node in job.nodes if node != ctx.node]
    working = [node for node in dict.fromkeys((others[0], others[-1])) if _is_at_work(ctx, job, node)]
    if not working:
        return Again(say("actions.swap_not_at_work", job=job.title, node=ctx.node), LOOK_AGAIN_S)
    text = say("actions.swap_goes_on", job=job.title, node=ctx.node, others=", ".join(working))
    return Done(text, {"passed": True})


def _waits_for_answer(ctx: Context, job: SlurmJob, error: NodeUnavailable) -> Result:
    """No node is removed from a job before it has reported that nothing of the job is left there. Without
    that report the job may make no step: it is requeued immediately if Slurm does not reach the node either,
    otherwise after a while."""
    node = read_node(ctx)
    if not node.responding:
        return Skipped(_silent_for_slurm(node))
    now, last = ctx.tools.now(), ctx.lines[-1] if ctx.lines else None
    kept = last.data.get(_SILENT_SINCE) if last is not None and last.event is StepEvent.waiting else None
    since = datetime.fromisoformat(kept) if isinstance(kept, str) else now
    if now - since >= SILENT_FOR:
        seconds = int((now - since).total_seconds())
        return Skipped(say("actions.swap_silent", node=ctx.node, seconds=seconds, error=said_by(error)))
    return Again(_unknown(ctx, job, said_by(error)), LOOK_AGAIN_S, data={_SILENT_SINCE: since.isoformat()})


def _silent_for_slurm(node: SlurmNode) -> Said:
    return say("actions.swap_not_responding", node=node.name)


def _unknown(ctx: Context, job: SlurmJob, why: Said) -> Said:
    return say("actions.swap_unknown", why=why, job=job.title, node=ctx.node)


def _why_still_there(ctx: Context, job: SlurmJob) -> Said | None:
    """Why the job may still run something on the node; None: the node reports that it does not. Raises
    NodeUnavailable."""
    if ctx.tools.nodes is None:
        return say("actions.swap_no_way")
    ctx.fence()
    try:
        seen = ctx.tools.nodes.job_on_node(ctx.node, job.id)
    except NodeUnavailable:
        raise
    except NodeError as error:
        return _unknown(ctx, job, said_by(error))
    if seen.processes:
        return say("actions.swap_still_there", n=seen.processes, job=job.title, node=ctx.node)
    if not seen.counted:
        return _unknown(ctx, job, quoted(say("actions.swap_not_counted")))
    return None


def _is_at_work(ctx: Context, job: SlurmJob, node: str) -> bool:
    if ctx.tools.nodes is None:
        return False
    ctx.fence()
    try:
        seen = ctx.tools.nodes.job_on_node(node, job.id)
    except NodeError:
        return False
    return seen.processes > 0 and is_quiet(gpus_of_job(job, node, seen.gpus)) is False


def _probe(ctx: Context) -> Result | None:
    job = read_job(ctx)
    if job.restarts != restarts_known(ctx):
        return Skipped(say("actions.swap_restarted", job=job.title))
    if job.state != "RUNNING" or job.flags:
        return Skipped(say("actions.shrink_not_running", job=job.title, state=job.state))
    if ctx.node in job.nodes:
        return None
    text = say("actions.shrink_done", job=job.title, n=len(job.nodes), node=ctx.node)
    return Done(text, {"nodes": list(job.nodes), "restarts": job.restarts})


def _do(ctx: Context) -> Result | None:
    """Checks again, because an approval or a pause may have delayed the step for hours."""
    job = read_job(ctx)
    if why := why_not_without(job, ctx.node):
        return Failed(why, final=True)
    try:
        why = _why_still_there(ctx, job)
    except NodeUnavailable as error:
        why = _unknown(ctx, job, said_by(error))
    if why:
        return Again(why, LOOK_AGAIN_S)
    return cause(ctx, lambda: ctx.tools.scheduler.shrink(job.id, ctx.node), needs_right=True)


SHRINK = Action(
    probe=_probe,
    do=_do,
    verify=read_back(
        _probe, lambda ctx: say("actions.shrink_not_yet", job=ctx.job, node=ctx.node), LOOK_AGAIN_S / 8
    ),
)
