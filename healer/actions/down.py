"""Down: frees a node of ours whose jobs cannot end, because an epilog hangs. Its jobs lose the node at once.

Without a person only where every job on it has been completing for so long that none will lose anything
(law 8). DRAIN stays beside DOWN, so the node stays out also where Slurm brings DOWN nodes back by itself.
"""

from datetime import datetime

from healer.actions.base import Action, Again, Context, Done, Failed, Result, Skipped
from healer.actions.look import LOOK_AGAIN_S, at_node_and_jobs
from healer.actions.reason import is_ours
from healer.decisions.irreversible import STUCK_FOR
from healer.model import SlurmJob, SlurmNode, StepEvent
from healer.ports.slurm import SchedulerRefused, SchedulerUnavailable

#: Jobs that still run may do so for hours.
RUN_ON_S = 5.0


def _names(jobs: list[SlurmJob]) -> str:
    return ", ".join(sorted(job.id for job in jobs))


def _probe(ctx: Context) -> Result | None:
    read = at_node_and_jobs(ctx)
    if not isinstance(read, tuple):
        return read
    return _judge(ctx, *read)


def _judge(ctx: Context, node: SlurmNode, jobs: list[SlurmJob]) -> Result | None:
    if not (node.drain and is_ours(node.reason)):
        return Failed(text=f"{node.name} is not drained by healer: it is set DOWN by nobody", final=True)
    if not jobs:
        if node.base == "DOWN":
            return Done(text=f"{node.name} is DOWN and free", data={"state": list(node.state)})
        return Skipped(text=f"No job is stuck on {node.name}")
    alive = [job for job in jobs if "COMPLETING" not in job.flags]
    if alive and ctx.run.by == "healer" and ctx.run.approved_by is None:
        return Failed(text=f"Job {_names(alive)} still runs on {node.name}: a person decides", final=True)
    if node.base == "DOWN":
        return Again(text=f"Slurm frees {node.name} of job {_names(jobs)}", after_s=LOOK_AGAIN_S)
    return None


def _do(ctx: Context) -> Result | None:
    read = at_node_and_jobs(ctx)
    if not isinstance(read, tuple):
        return read
    node, jobs = read
    if (seen := _judge(ctx, node, jobs)) is not None:  # a person may have been faster
        return seen
    ctx.fence()
    try:
        # The very words that stand: they are ours, maybe another incident's.
        ctx.scheduler.down(node.name, node.reason)
    except SchedulerRefused as error:
        return Failed(text=str(error))
    except SchedulerUnavailable:
        return None
    return None


def _verify(ctx: Context) -> Result:
    return _probe(ctx) or Again(text=f"{ctx.node} is not DOWN yet", after_s=LOOK_AGAIN_S)


# --- check: jobs_left ---


def jobs_left(ctx: Context) -> Result:
    """Whether the node's jobs leave it. No: all that are left were completing, the same ones, for 30 s.

    Jobs that still run are waited for `input.run_on_s` seconds; after that nothing is stuck as far as this
    step can tell. Since when the same jobs complete stands in the step's own log, so a death changes nothing.
    """
    read = at_node_and_jobs(ctx)
    if not isinstance(read, tuple):
        return read
    node, jobs = read
    if not jobs:
        return Done(text=f"No job is left on {node.name}", data={"passed": True})
    alive = [job for job in jobs if "COMPLETING" not in job.flags]
    if alive:
        text = f"Job {_names(alive)} still runs on {node.name}"
        if (ctx.now() - ctx.began_at).total_seconds() < float(ctx.step.input.get("run_on_s", 0)):
            return Again(text=text, after_s=RUN_ON_S)
        return Done(text=f"{text}: nothing is stuck", data={"passed": True})
    lives = ", ".join(f"{job.id} (restart {job.restarts})" for job in sorted(jobs, key=lambda one: one.id))
    text = f"On {node.name} completes: job {lives}"
    since = _since(ctx, text)
    if ctx.now() - since < STUCK_FOR:
        return Again(text=text, after_s=LOOK_AGAIN_S)
    told = f"On {node.name} hangs since {since:%H:%M:%S} UTC at its end: job {lives}"
    return Done(text=told, data={"passed": False, "stuck_since": since.isoformat()})


def _since(ctx: Context, text: str) -> datetime:
    """When this was seen first without anything else in between: what is seen again writes no line."""
    last = ctx.lines[-1] if ctx.lines else None
    same = last is not None and last.event is StepEvent.waiting and last.text == text
    return last.at if last is not None and same else ctx.now()


DOWN = Action(probe=_probe, do=_do, verify=_verify)
JOBS_LEFT = Action(probe=lambda _: None, do=lambda _: None, verify=jobs_left, effect=False)
