"""What Slurm shows now, or what a step answers where it cannot be read."""

from collections.abc import Callable
from typing import TypeVar

from healer.actions.base import Again, Context, Done, Failed, Skipped
from healer.actions.reason import holder_of, own_words
from healer.model import SlurmJob, SlurmNode
from healer.ports.slurm import SchedulerUnavailable, UnknownNode

LOOK_AGAIN_S = 2.0

T = TypeVar("T")


def look(read: Callable[[], T], after_s: float = LOOK_AGAIN_S) -> T | Failed | Again:
    """What `read` gives. A node that Slurm does not know fails for good; no answer is asked for again."""
    try:
        return read()
    except UnknownNode as error:
        return Failed(text=str(error), final=True)
    except SchedulerUnavailable as error:
        return Again(text=f"Slurm did not answer: {error}", after_s=after_s)


def at_node(ctx: Context, after_s: float = LOOK_AGAIN_S) -> SlurmNode | Failed | Again:
    return look(lambda: ctx.scheduler.node(ctx.node), after_s)


def at_free_node(ctx: Context, after_s: float = LOOK_AGAIN_S) -> SlurmNode | Failed | Again:
    """The node, where nobody else holds it: what somebody holds is theirs."""
    node = at_node(ctx, after_s)
    if isinstance(node, SlurmNode) and (holder := holder_of(node, own_words(ctx.log))):
        return Failed(text=f"{holder} {node.name}: {node.reason or 'no reason given'}", final=True)
    return node


def at_node_and_jobs(
    ctx: Context, after_s: float = LOOK_AGAIN_S
) -> tuple[SlurmNode, list[SlurmJob]] | Failed | Again:
    return look(lambda: (ctx.scheduler.node(ctx.node), ctx.scheduler.jobs_on(ctx.node)), after_s)


def at_job(ctx: Context) -> SlurmJob | Skipped | Failed | Again:
    """The job of this step; one that Slurm has forgotten is nothing to do."""
    job = look(lambda: ctx.scheduler.job(ctx.job))
    return job if job is not None else Skipped(text=f"Slurm no longer knows job {ctx.job}")


def at_job_of_run(ctx: Context) -> SlurmJob | Done | Failed | Again:
    """The job that the run is about; forgotten, the run is over. It has to be known which life is meant."""
    job = at_job(ctx)
    if isinstance(job, Skipped):
        return Done(text=job.text, data={"ends_run": True})
    if isinstance(job, SlurmJob) and ctx.restarts is None:
        return Failed(text=f"the restart count of job {ctx.job} is not known", final=True)
    return job
