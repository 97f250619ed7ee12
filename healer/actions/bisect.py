"""Bisect: which node makes a job slow, by tests of halves of its nodes (`halving`) after the job has ended.

A running job's GPUs are never taken: its end is waited for, and then only idle nodes are tested. They stay in
service, in no reservation; each group is one job like that of a sweep, under the guard of sweeps, which gives
way to everybody's. The step's own log is its memory: the nodes, each group before its job is submitted, what
Slurm called the job, what it told. A job is known by that number, or by its name and comment.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from healer.actions import group_job, test_job
from healer.actions.base import Action, Again, Context, Done, Failed, Result, read_slurm
from healer.actions.group_job import LEAST, LOOK_AGAIN_S, WAITS_AGAIN_S, Found, Round, few, search
from healer.model import SlurmJob, SlurmNode, SlurmSnapshot, node_kind
from healer.model.hostlist import expand

#: After its end the job's nodes have so long to come to rest; what is not idle then is left out.
GATHER = timedelta(minutes=5)
#: All groups together, from the end of the job.
LASTS = timedelta(hours=2)
#: Groups that were lost to another job, or could not be tested.
VOIDS_MAX = 4


class Doubt(msgspec.Struct, frozen=True):
    """The nodes that are searched, those against which something speaks already, and who was left out."""

    nodes: tuple[str, ...]
    named: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


class Told(msgspec.Struct, frozen=True):
    """What the step's log holds."""

    of: tuple[str, ...] = ()
    free_at: datetime | None = None
    doubt: Doubt | None = None
    rounds: tuple[Round, ...] = ()

    @property
    def open(self) -> Round | None:
        """The group that is not over."""
        return self.rounds[-1] if self.rounds and self.rounds[-1].outcome is None else None


def told_by(ctx: Context) -> Told:
    # Which nodes it is about stays known when a person lets it go on: Slurm has forgotten the job by then.
    named = (line.data["of"] for line in ctx.log if line.step == ctx.part and "of" in line.data)
    told, rounds = Told(of=tuple(next(named, ()))), list[Round]()
    for line in ctx.lines:
        if found := line.data.get("free_at"):
            told = msgspec.structs.replace(told, free_at=datetime.fromisoformat(found))
        if found := line.data.get("doubt"):
            told = msgspec.structs.replace(told, doubt=msgspec.convert(found, Doubt))
        if found := line.data.get("group"):
            rounds.append(Round(nodes=tuple(found)))
        if rounds and (more := line.data.get("told")):
            rounds[-1] = msgspec.convert(msgspec.to_builtins(rounds[-1]) | more, Round)
    return msgspec.structs.replace(told, rounds=tuple(rounds))


def _look(ctx: Context) -> Result | None:
    """None: the job of a group is to be submitted."""
    picture = read_slurm(ctx.tools.scheduler.snapshot, LOOK_AGAIN_S)
    if not isinstance(picture, SlurmSnapshot):
        return picture
    told = told_by(ctx)
    if told.doubt is None:
        return _gather(ctx, told, picture)
    if told.open is not None:
        return group_job.look(ctx, len(told.rounds), told.open, picture, late=_is_late(ctx, told))
    return _next(ctx, told, told.doubt)


def _is_late(ctx: Context, told: Told) -> bool:
    return told.free_at is not None and ctx.tools.now() - told.free_at > LASTS


# --- the nodes ---


def _gather(ctx: Context, told: Told, picture: SlurmSnapshot) -> Result:
    """Waits for the job's end, then for its nodes; notes those that are to be searched."""
    job = picture.jobs.get(ctx.job)
    if not told.of:
        return _of(ctx, job)
    if told.free_at is None and job is not None and _works_on(job, told.of):
        text = f"Job {job.title} runs: its end is waited for, nothing is taken from it"
        return Again(text=text, after_s=WAITS_AGAIN_S, since=ctx.tools.now())
    if told.free_at is None:
        data = {"free_at": ctx.tools.now().isoformat()}
        return Again(text=f"Job {ctx.job} does not run on them", after_s=0, data=data)
    nodes = _alike(told.of, picture)
    idle = _may(ctx, nodes)
    left = [one for one in told.of if one not in idle]
    waited = ctx.tools.now() - told.free_at
    if left and waited < GATHER:
        text = f"Waits for {few(left)}: {len(idle)} of {len(told.of)} nodes may be tested"
        return Again(text=text, after_s=WAITS_AGAIN_S)
    if idle and len(idle) < LEAST:
        idle += _others(ctx, idle, picture)[: LEAST - len(idle)]
    if len(idle) < LEAST:
        return _too_few(ctx, idle, waited)
    doubt = Doubt(nodes=tuple(idle), named=tuple(_named(ctx, idle)), left_out=tuple(left))
    text = f"{len(idle)} nodes are tested by halves" + (f", not {few(left)}" if left else "")
    return Again(text=text, after_s=0, data={"doubt": msgspec.to_builtins(doubt)})


def _of(ctx: Context, job: SlurmJob | None) -> Result:
    """Noted at once: Slurm forgets a job minutes after its end."""
    given = str(ctx.step.input.get("nodes") or "")
    try:
        nodes = expand(given) if given else sorted(job.nodes if job is not None else ())
    except ValueError as error:
        return Failed(text=f"nodes: {error}", final=True)
    if not nodes:
        text = f"Slurm shows no nodes of job {ctx.job}: name them (--input nodes=gpu[0001-0016])"
        return Failed(text=text, final=True)
    text = f"{len(nodes)} nodes of job {ctx.job}: {few(nodes)}"
    return Again(text=text, after_s=0, data={"of": list(dict.fromkeys(nodes))})


def _works_on(job: SlurmJob, nodes: Sequence[str]) -> bool:
    return job.active and "COMPLETING" not in job.flags and not set(nodes).isdisjoint(job.nodes)


def _alike(names: Sequence[str], picture: SlurmSnapshot) -> list[str]:
    """Those of the kind that most of them are: figures of different kinds are no measure of each other."""
    known = [picture.nodes[one] for one in names if one in picture.nodes]
    kinds = Counter(_kind(one) for one in known)
    return [one.name for one in known if _kind(one) == max(kinds, key=kinds.__getitem__)]


def _kind(node: SlurmNode) -> tuple[str, int]:
    return node_kind(node.gpu_model), node.gpus


def _may(ctx: Context, nodes: Sequence[str]) -> list[str]:
    against = ctx.claim.may_borrow(nodes, False)
    return [one for one in nodes if one not in against]


def _others(ctx: Context, idle: Sequence[str], picture: SlurmSnapshot) -> list[str]:
    """Idle nodes of the same kind and partition that were not in the job: few nodes need more beside them."""
    first = picture.nodes[idle[0]]
    alike = [
        one
        for one in picture.gpu_nodes
        if one.name not in idle and one.state == ("IDLE",) and _kind(one) == _kind(first)
    ]
    ours = [picture.nodes[one] for one in idle]
    near = [one.name for one in alike if test_job.shared_partition([*ours, one])]
    return _may(ctx, near[: 4 * LEAST])


def _too_few(ctx: Context, idle: Sequence[str], waited: timedelta) -> Result:
    text = f"{len(idle)} idle nodes, and {LEAST} are needed to compare"
    if waited < LASTS:
        return Again(text=text, after_s=WAITS_AGAIN_S)
    return _no_verdict(f"{text}; none came free in {LASTS}", idle)


def _named(ctx: Context, nodes: Sequence[str]) -> list[str]:
    """What the incident lists as suspects, the likeliest first."""
    affected = ctx.incident.affected if ctx.incident is not None else ()
    return [name for one in affected if (name := one.node) in nodes and name is not None]


# --- what comes of it ---


def _next(ctx: Context, told: Told, doubt: Doubt) -> Result:
    answers = {tuple(sorted(one.nodes)): one.answer for one in told.rounds if one.outcome == "answered"}
    found = search(doubt.nodes, doubt.named, answers, _standard(ctx, doubt))
    if isinstance(found, Found):
        return _verdict(ctx, doubt, found)
    voids = [one.says for one in told.rounds if one.outcome == "void"]
    if len(voids) >= VOIDS_MAX:
        return _no_verdict(f"{len(voids)} groups came to no answer: {voids[-1]}", found.nodes)
    if _is_late(ctx, told):
        return _no_verdict(f"{LASTS} are over", found.nodes)
    text = f"Group {len(told.rounds) + 1}: {len(found.nodes)} nodes, {few(found.nodes)}"
    return Again(text=text, after_s=0, data={"group": list(found.nodes)})


def _standard(ctx: Context, doubt: Doubt) -> dict[str, float]:
    """The figures of the good node of their kind."""
    picture = ctx.tools.picture()
    node = picture.nodes.get(doubt.nodes[0]) if picture is not None else None
    kind = node_kind(node.gpu_model) if node is not None else None
    return next((one.figures for one in ctx.claim.references() if one.kind == kind), {})


def _verdict(ctx: Context, doubt: Doubt, found: Found) -> Done:
    for node, why in found.slow.items():
        says = f"{why}, among {len(doubt.nodes)} nodes of job {ctx.job} in {found.tested} groups"
        ctx.claim.tell_detector(test_job.failed_test(ctx, node, "together", says[:300], job=ctx.job))
    said = [f"{node} is slow ({why})" for node, why in found.slow.items()]
    said += [
        f"{few(one)} and {few(other)} are well apart and slow together: what lies between them"
        for one, other in found.between
    ]
    said += [f"{few(one)} are slow, and nothing tells them apart" for one in found.open]
    if found.clean:
        said = ["none is slow, alone or with the others"]
    if doubt.left_out:
        said.append(f"not tested: {few(doubt.left_out)}")
    text = f"{len(doubt.nodes)} nodes of job {ctx.job} in {found.tested} groups: {'; '.join(said)}"
    data: dict[str, Any] = {
        "passed": found.clean,
        "evidence": True,
        "slow": sorted(found.slow),
        "between": msgspec.to_builtins(found.between),
        "open": msgspec.to_builtins(found.open),
        "left_out": list(doubt.left_out),
    }
    return Done(text=text, data=data)


def _no_verdict(why: str, left: Sequence[str]) -> Done:
    """Unknown is never bad: it has neither passed nor failed."""
    text = f"No verdict: {why}" + (f". Still open: {few(left)}" if left else "")
    return Done(text=text, data={"verdict": "none", "evidence": True, "left_out": list(left)})


# --- its steps ---


def _probe(ctx: Context) -> Result | None:
    return _timed(ctx, _look(ctx))


def _do(ctx: Context) -> Result | None:
    told = told_by(ctx)
    if told.open is None or told.open.job is not None:
        return None  # nothing is due
    return _timed(ctx, group_job.submit(ctx, len(told.rounds), told.open))


def _verify(ctx: Context) -> Result:
    return _probe(ctx) or Again(text="A group of nodes is to be tested", after_s=LOOK_AGAIN_S)


def _timed(ctx: Context, result: Result | None) -> Result | None:
    """The step's time-out counts from the end of the job."""
    if not isinstance(result, Again) or result.since is not None:
        return result
    return msgspec.structs.replace(result, since=told_by(ctx).free_at or ctx.tools.now())


def _undo(ctx: Context) -> Result:
    told = told_by(ctx)
    picture = read_slurm(ctx.tools.scheduler.snapshot, LOOK_AGAIN_S)
    if not isinstance(picture, SlurmSnapshot):
        return picture
    job = group_job.find(ctx, len(told.rounds), told.rounds[-1], picture) if told.rounds else None
    if job is None or not (job.active or job.state == "PENDING"):
        return Done(text="No job of ours is left")
    failed = test_job.cancel(ctx, job)
    return failed or Again(text=f"Job {job.id} was cancelled", after_s=LOOK_AGAIN_S)


BISECT = Action(probe=_probe, do=_do, verify=_verify, undo=_undo)
