"""Steps that only look, and the wait for a repair."""

from healer.actions.base import Action, Again, Context, Done, Failed, Result
from healer.actions.reason import is_ours
from healer.incidents.jobs import hit_among
from healer.model import CommandKind, Component
from healer.ports import SchedulerUnavailable, UnknownNode


def _nothing(_: Context) -> None:
    return None


def list_jobs(ctx: Context) -> Result:
    """The jobs hit, with restart counts. Taken after the drain was read back: none can start any more."""
    try:
        on_node = ctx.scheduler.jobs_on(ctx.node)
    except SchedulerUnavailable as error:
        return Again(text=f"Slurm did not answer: {error}", after_s=2.0)
    where = ctx.incident.root if ctx.incident else Component(cluster=ctx.run.cluster, node=ctx.node)
    if ctx.incident and any(one.node == ctx.node and one != where for one in ctx.incident.affected):
        where = Component(cluster=ctx.run.cluster, node=ctx.node)  # more than one GPU of it is hit
    hit, certain = hit_among(on_node, where)
    if not certain and ctx.incident and ctx.incident.jobs_hit:
        # Which GPU it is cannot be told, but the signal itself named the job.
        hit, certain = [job for job in on_node if job.id in ctx.incident.jobs_hit], True
    if not certain:
        listed = ", ".join(sorted(job.id for job in on_node))
        ctx.tell_detector(ctx.command(CommandKind.jobs_hit, jobs=[]))
        return Done(
            text=f"Which GPU {where.pci} is cannot be told, so nobody can say which of the jobs {listed} it "
            "hits: none is requeued",
            data={"jobs": {}, "on_node": [job.id for job in on_node]},
        )
    jobs = {job.id: job.restarts for job in sorted(hit, key=lambda one: one.id)}
    ctx.tell_detector(ctx.command(CommandKind.jobs_hit, jobs=sorted(jobs)))
    text = f"Jobs hit: {', '.join(jobs)}" if jobs else "No job was hit"
    return Done(text=text, data={"jobs": jobs, "on_node": [job.id for job in on_node]})


def node_answers(ctx: Context) -> Result:
    """Fit to return as far as Slurm and its kernel tell: it answers, and no new fault line came."""
    try:
        node = ctx.scheduler.node(ctx.node)
    except UnknownNode as error:
        return Failed(text=str(error), final=True)
    except SchedulerUnavailable as error:
        return Again(text=f"Slurm did not answer: {error}", after_s=2.0)
    if node.drain and node.reason and not is_ours(node.reason):
        return Failed(text=f"{node.reason_user or 'Somebody'} holds it: {node.reason}", final=True)
    if "NOT_RESPONDING" in node.state:
        return Failed(text=f"Slurm does not reach {node.name} ({'+'.join(node.state)})")
    since = [one for one in (ctx.incident.evidence if ctx.incident else ()) if one.at > ctx.run.created_at]
    if since:
        return Failed(text=f"A new fault line came since: {since[-1].text}", final=True)
    return Done(
        text=f"{node.name} answers Slurm ({'+'.join(node.state)}); no new fault line",
        data={"state": list(node.state), "gpus": node.gpus},
    )


def repair(ctx: Context) -> Result:
    """Waits for a person to say that the node is repaired: their `resume` takes this run over."""
    return Again(text=f"Waits for the repair of {ctx.node}; `resume` ends the wait", after_s=None)


JOBS_HIT = Action(probe=_nothing, do=_nothing, verify=list_jobs, effect=False)
NODE_ANSWERS = Action(probe=_nothing, do=_nothing, verify=node_answers, effect=False)
REPAIR = Action(probe=_nothing, do=_nothing, verify=repair, effect=False)
