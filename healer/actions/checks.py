"""Steps that only look."""

from datetime import datetime, timedelta

import msgspec

from healer.actions.base import Action, Again, Context, Done, Failed, Result
from healer.actions.look import at_node
from healer.actions.reason import holder_of
from healer.incidents.jobs import crashed_among, hit_among, moments_of
from healer.incidents.lifecycle import CLEAR_FOR
from healer.incidents.senses import MEASURED, not_looked, senses_of, spoken, too_few
from healer.model import CommandKind, Component, Evidence, Incident, SlurmJob, SlurmNode
from healer.model.reasons import slurm_kind
from healer.ports.slurm import SchedulerUnavailable, UnknownNode, whole_jobs


def _nothing(_: Context) -> None:
    return None


def list_jobs(ctx: Context) -> Result:
    """The jobs hit, with restart counts. Taken after the drain was read back: none can start any more."""
    try:
        on_node = ctx.scheduler.jobs_on(ctx.node)
        hit, certain = _hit(ctx, on_node)
        hit = whole_jobs(ctx.scheduler, hit)
        crashed = _crashed(ctx, {job.id for job in (*on_node, *hit)})
    except UnknownNode as error:
        return Failed(text=str(error), final=True)
    except SchedulerUnavailable as error:
        return Again(text=f"Slurm did not answer: {error}", after_s=2.0)
    data: dict[str, object] = {
        "jobs": {job.id: job.restarts for job in hit} if certain else {},
        "crashed": {job.id: job.restarts for job in crashed},
        "titles": {job.id: job.title for job in (*hit, *crashed) if job.title != job.id},
        "on_node": [job.id for job in on_node],
    }
    told = sorted(job.id for job in (*hit, *crashed)) if certain else sorted(job.id for job in crashed)
    if ctx.run.incident is not None:
        ctx.tell_detector(ctx.command(CommandKind.jobs_hit, jobs=told))
    return Done(text=_listed(ctx, hit, crashed, on_node, certain=certain), data=data)


def _listed(
    ctx: Context, hit: list[SlurmJob], crashed: list[SlurmJob], on_node: list[SlurmJob], *, certain: bool
) -> str:
    before = f"Ended before anybody looked: {', '.join(f'{job.title} ({job.state})' for job in crashed)}"
    if not certain:
        listed = ", ".join(sorted(job.title for job in on_node))
        pci = ctx.incident.root.pci if ctx.incident else None
        unsure = (
            f"Which GPU {pci or 'it'} is cannot be told, so nobody can say which of the jobs {listed} "
            "it hits: none is requeued"
        )
        return f"{unsure}. {before}" if crashed else unsure
    if not hit:
        return before if crashed else "No job was hit"
    text = f"Jobs hit: {', '.join(job.title for job in hit)}"
    return f"{text}. {before}" if crashed else text


def _crashed(ctx: Context, at_work: set[str]) -> list[SlurmJob]:
    """Of the jobs that the incident names: those whose work had ended when the list was taken."""
    incident = ctx.incident
    if incident is None:
        return []
    known = (ctx.scheduler.job(name) for name in incident.jobs_hit if name not in at_work)
    gone = whole_jobs(ctx.scheduler, (job for job in known if job is not None and job.crashed))
    where = msgspec.structs.replace(incident.root, node=ctx.node)
    return crashed_among(gone, where, moments_of(incident))


def _hit(ctx: Context, on_node: list[SlurmJob]) -> tuple[list[SlurmJob], bool]:
    """Jobs on the GPUs that the incident's own evidence names; what was only counted names none.

    Fatal faults that were told come first, then whatever was told. Where all is measured the root alone
    counts: what joined it is another matter. One that names no GPU is taken for one unknown GPU's fault.
    """
    incident = ctx.incident
    if incident is None or not on_node:
        return on_node, True
    node_gpus = ctx.scheduler.node(ctx.node).gpus
    here = [one for one in incident.evidence if one.component.node == ctx.node]
    told = [one for one in here if one.fatal] or [one for one in here if one.sense not in MEASURED]
    # A line of the kernel speaks of one GPU, also where its address is lost.
    places = {(one.component, bool(one.line)) for one in told}
    if here and not told:
        places = {(incident.root, True)}
        told = [one for one in here if one.component == incident.root]
    hit: dict[str, SlurmJob] = {}
    for where, one_gpu in places or {(Component(cluster=ctx.run.cluster, node=ctx.node), False)}:
        jobs, certain = hit_among(on_node, where, node_gpus=node_gpus, one_gpu=one_gpu)
        if not certain:
            # Which GPU it is cannot be told; the signal itself may have named the job. The incident's own
            # list does not count: it is a guess from Slurm's picture, which may be older than these jobs.
            jobs_told = {one.job for one in told}
            named = [job for job in on_node if job.id in jobs_told]
            return named, bool(named)
        hit |= {job.id: job for job in jobs}
    return list(hit.values()), True


#: A line that came so shortly before the return speaks against it.
LATELY = timedelta(minutes=1)


def node_answers(ctx: Context) -> Result:
    """Fit to return as far as Slurm and its kernel tell: it answers, and no new fault line came."""
    node = at_node(ctx)
    if not isinstance(node, SlurmNode):
        return node
    if holder := holder_of(node):
        return Failed(text=f"{holder} it: {node.reason or 'no reason given'}", final=True)
    if "NOT_RESPONDING" in node.state:
        return Failed(text=f"Slurm does not reach {node.name} ({'+'.join(node.state)})")
    if since := _told_lately(ctx):
        return Failed(text=f"A new fault line came since: {since[-1].text}", final=True)
    return Done(
        text=f"{node.name} answers Slurm ({'+'.join(node.state)}); no new fault line",
        data={"state": list(node.state), "gpus": node.gpus},
    )


def reached(ctx: Context) -> Result:
    """Waits until Slurm reaches a node that it took out itself. Back in service by then: the run is over."""
    node = at_node(ctx, after_s=5.0)
    if not isinstance(node, SlurmNode):
        return node
    state = "+".join(node.state)
    if not node.held:
        return Done(text=f"{node.name} is {state}: there is nothing to take over", data={"ends_run": True})
    if slurm_kind(node.reason) is None and (holder := holder_of(node)):
        return Failed(text=f"{holder} {node.name}: {node.reason or 'no reason given'}", final=True)
    if "NOT_RESPONDING" in node.state:
        return Again(text=f"Slurm does not reach {node.name} ({state})", after_s=5.0)
    return Done(text=f"Slurm reaches {node.name} ({state})", data={"state": list(node.state)})


def _told_lately(ctx: Context) -> list[Evidence]:
    """Fault lines since this check began; for a minute also those since the drain.

    A `resume` looks milliseconds after a person asked for it, so what came since then is nothing to rest on,
    while a GPU that is still broken goes on to tell so. What came before the drain was its cause. By arrival:
    the host's clock may be wrong. What was measured lags behind, and under tests it is no sign of a fault:
    whoever measures tells again what goes on. A run that tests its node counts from the begin of its tests.
    """
    incident = ctx.incident
    if incident is None:
        return []
    since = ctx.began_at if ctx.tested_at is None else min(ctx.began_at, ctx.tested_at)
    if incident.drained_at is not None:
        since = min(since, max(incident.drained_at, ctx.now() - LATELY))
    return told_since(incident, since)


def told_since(incident: Incident, since: datetime) -> list[Evidence]:
    """What was told since then, and not measured."""
    told = (one for one in incident.evidence if one.sense not in MEASURED)
    return [one for one in told if (one.arrived_at or one.at) > since]


def still_slow(ctx: Context) -> Result:
    """Whether the cause still stands and enough senses tell of it: `senses` of the step's input (1).

    A person who asks for it or approves it needs no senses: theirs is one.
    """
    one = ctx.incident
    if one is None or ctx.run.by != "healer":
        return Done(text=f"{ctx.run.by} asks for it")
    if over := cleared(ctx):
        return over
    if ctx.run.approved_by:
        return Done(text=f"{ctx.run.approved_by} approved it")
    needed = int(ctx.step.input.get("senses", 1))
    told = senses_of(one, ctx.now())
    if len(told) < needed:
        return Failed(text=too_few(one, needed, ctx.now()), final=True)
    return Done(text=f"{spoken(told)} tell of {ctx.node}", data={"senses": [str(sense) for sense in told]})


def still_silent(ctx: Context) -> Result:
    """Whether nothing is heard of the node and Slurm does not reach it either: one alone takes no node.

    Reached again: the run is over, once the stored picture shows so too, for by that the incident ends. A
    person who asks for it needs neither.
    """
    one = ctx.incident
    if one is None or ctx.run.by != "healer":
        return Done(text=f"{ctx.run.by} asks for it")
    node = at_node(ctx, after_s=5.0)
    if not isinstance(node, SlurmNode):
        return node
    state = "+".join(node.state)
    if node.responding:
        picture = ctx.picture()
        shown = picture.nodes.get(node.name) if picture is not None else None
        text = f"Slurm reaches {node.name} again ({state}): nothing is done"
        if shown is not None and shown.responding:
            return Done(text=text, data={"ends_run": True})
        return Again(text=text, after_s=1.0)
    if one.clear_since is not None:
        heard = f"{node.name} speaks again since {one.clear_since:%H:%M:%S} UTC"
        return Done(text=f"{heard}: nothing is done, though Slurm does not reach it", data={"ends_run": True})
    return Done(text=f"Nothing is heard of {node.name}, and Slurm does not reach it ({state})")


def cleared(ctx: Context) -> Done | Again | None:
    """What to do where the senses say that the cause is gone: nothing for a while, then the run is over.

    Where nobody has looked of late nobody knows: nothing is done on that either.
    """
    if ctx.incident is None or ctx.run.by != "healer":
        return None
    if why := not_looked(ctx.incident, ctx.now()):
        return Again(text=why, after_s=5.0)
    since = ctx.incident.clear_since
    if since is None:
        return None
    if ctx.now() - since < CLEAR_FOR:
        return Again(text=f"{ctx.node} is well again since {since:%H:%M:%S} UTC: waits to see", after_s=5.0)
    text = f"{ctx.node} is well again since {since:%H:%M:%S} UTC: nothing is done"
    return Done(text=text, data={"ends_run": True})


JOBS_HIT = Action(probe=_nothing, do=_nothing, verify=list_jobs, effect=False)
REACHED = Action(probe=_nothing, do=_nothing, verify=reached, effect=False)
NODE_ANSWERS = Action(probe=_nothing, do=_nothing, verify=node_answers, effect=False)
STILL_SILENT = Action(probe=_nothing, do=_nothing, verify=still_silent, effect=False)
STILL_SLOW = Action(probe=_nothing, do=_nothing, verify=still_slow, effect=False)
