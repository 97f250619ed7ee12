"""Bisect: finds the node that makes a job slow, by testing halves of its nodes after the job has ended.

The GPUs of a running job are never used: only idle nodes are tested, after its end. They stay in service
without a reservation. Each group is one job like a sweep's, under the sweep guard, and yields to every other.
The step's log holds its state: the nodes, each group before its job is submitted, and the job's number and
result. The job is found by that number, or by its name and comment.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from healer.actions import group_job, test_job
from healer.actions.base import Action, Again, Context, Done, Failed, Result, answering, read_back, read_slurm
from healer.actions.group_job import LEAST, LOOK_AGAIN_S, WAITS_AGAIN_S, Found, Round, few, search
from healer.model import SlurmJob, SlurmNode, SlurmSnapshot, node_kind
from healer.model.hostlist import expand
from healer.text import Said, from_stored, joined, quoted, say, to_stored

#: How long after the job's end its nodes may take to become idle; later ones are left out.
GATHER = timedelta(minutes=5)
#: Time limit for all groups together, from the end of the job.
LASTS = timedelta(hours=2)
#: The most groups that may be preempted, or fail to be tested.
VOIDS_MAX = 4


class Doubt(msgspec.Struct, frozen=True):
    """The nodes to search, the suspects among them, and those left out."""

    nodes: tuple[str, ...]
    named: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


class Progress(msgspec.Struct, frozen=True):
    """The state of the search, from the step's log."""

    of: tuple[str, ...] = ()
    free_at: datetime | None = None
    doubt: Doubt | None = None
    rounds: tuple[Round, ...] = ()

    @property
    def open(self) -> Round | None:
        """The group under test."""
        return self.rounds[-1] if self.rounds and self.rounds[-1].outcome is None else None


def read_progress(ctx: Context) -> Progress:
    # The list of nodes survives a person's retry, because Slurm has forgotten the job by then.
    named = (line.data["of"] for line in ctx.log if line.step == ctx.part and "of" in line.data)
    progress, rounds = Progress(of=tuple(next(named, ()))), list[Round]()
    for line in ctx.lines:
        if found := line.data.get("free_at"):
            progress = msgspec.structs.replace(progress, free_at=datetime.fromisoformat(found))
        if found := line.data.get("doubt"):
            progress = msgspec.structs.replace(progress, doubt=msgspec.convert(found, Doubt))
        if found := line.data.get("group"):
            rounds.append(Round(nodes=tuple(found)))
        if rounds and (more := line.data.get("told")):
            rounds[-1] = from_stored(to_stored(rounds[-1]) | more, Round)
    return msgspec.structs.replace(progress, rounds=tuple(rounds))


def _state(ctx: Context) -> Result | None:
    """The step's result; None: the job of a group must be submitted."""
    picture = read_slurm(ctx.tools.scheduler.snapshot, LOOK_AGAIN_S)
    progress = read_progress(ctx)
    if progress.doubt is None:
        return _gather(ctx, progress, picture)
    if progress.open is not None:
        return group_job.look(ctx, len(progress.rounds), progress.open, picture, late=_is_late(ctx, progress))
    return _next(ctx, progress, progress.doubt)


def _is_late(ctx: Context, progress: Progress) -> bool:
    return progress.free_at is not None and ctx.tools.now() - progress.free_at > LASTS


# --- the nodes ---


def _gather(ctx: Context, progress: Progress, picture: SlurmSnapshot) -> Result:
    """Waits for the job's end, then for idle nodes; logs the nodes to search."""
    job = picture.jobs.get(ctx.job)
    if not progress.of:
        return _list_nodes(ctx, job)
    runs = job is not None and job.active and "COMPLETING" not in job.flags
    if progress.free_at is None and job is not None and runs and set(progress.of) & set(job.nodes):
        return Again(say("actions.bisect_job_runs", job=job.title), WAITS_AGAIN_S, since=ctx.tools.now())
    if progress.free_at is None:
        data = {"free_at": ctx.tools.now().isoformat()}
        return Again(say("actions.bisect_job_over", job=ctx.job), 0, data=data)
    nodes = _of_commonest_kind(progress.of, picture)
    idle = _testable(ctx, nodes)
    left = [name for name in progress.of if name not in idle]
    waited = ctx.tools.now() - progress.free_at
    if left and waited < GATHER:
        text = say("actions.bisect_waits", nodes=few(left), idle=len(idle), all=len(progress.of))
        return Again(text, WAITS_AGAIN_S)
    if idle and len(idle) < LEAST:
        idle += _fill_up_nodes(ctx, idle, picture)[: LEAST - len(idle)]
    if len(idle) < LEAST:
        text = say("actions.bisect_few_idle", n=len(idle), least=LEAST)
        if waited < LASTS:
            return Again(text, WAITS_AGAIN_S)
        return _no_verdict(say("actions.bisect_none_free", text=text, time=str(LASTS)), idle)
    doubt = Doubt(nodes=tuple(idle), named=tuple(_suspects(ctx, idle)), left_out=tuple(left))
    text = say("actions.bisect_halves", n=len(idle))
    if left:
        text = say("actions.bisect_halves_without", n=len(idle), left=few(left))
    return Again(text, 0, data={"doubt": msgspec.to_builtins(doubt)})


def _list_nodes(ctx: Context, job: SlurmJob | None) -> Result:
    """Logs the job's nodes immediately, because Slurm forgets a job minutes after its end."""
    given = str(ctx.step.input.get("nodes") or "")
    try:
        nodes = expand(given) if given else sorted(job.nodes if job is not None else ())
    except ValueError as error:
        return Failed(say("actions.bisect_nodes_wrong", error=quoted(str(error))), final=True)
    if not nodes:
        return Failed(say("actions.bisect_no_nodes", job=ctx.job), final=True)
    text = say("actions.bisect_nodes", n=len(nodes), job=ctx.job, nodes=few(nodes))
    return Again(text, 0, data={"of": list(dict.fromkeys(nodes))})


def _of_commonest_kind(names: Sequence[str], picture: SlurmSnapshot) -> list[str]:
    """The nodes of the most frequent kind, because figures of different kinds cannot be compared."""
    nodes = [picture.nodes[name] for name in names if name in picture.nodes]
    kinds = Counter(_kind(node) for node in nodes)
    return [node.name for node in nodes if _kind(node) == max(kinds, key=kinds.__getitem__)]


def _kind(node: SlurmNode) -> tuple[str, int]:
    return node_kind(node.gpu_model), node.gpus


def _testable(ctx: Context, nodes: Sequence[str]) -> list[str]:
    against = ctx.claim.may_borrow(nodes, False)
    return [node for node in nodes if node not in against]


def _fill_up_nodes(ctx: Context, idle: Sequence[str], picture: SlurmSnapshot) -> list[str]:
    """Idle nodes of the same kind and partition that were not in the job, to fill up a small group."""
    first = picture.nodes[idle[0]]
    alike = [
        node
        for node in picture.gpu_nodes
        if node.name not in idle and node.state == ("IDLE",) and _kind(node) == _kind(first)
    ]
    ours = [picture.nodes[name] for name in idle]
    near = [node.name for node in alike if test_job.shared_partition([*ours, node])]
    return _testable(ctx, near[: 4 * LEAST])


def _suspects(ctx: Context, nodes: Sequence[str]) -> list[str]:
    """The incident's suspects, the likeliest first."""
    affected = ctx.incident.affected if ctx.incident is not None else ()
    return [name for component in affected if (name := component.node) in nodes and name is not None]


# --- groups and the verdict ---


def _next(ctx: Context, progress: Progress, doubt: Doubt) -> Result:
    answers = {
        tuple(sorted(group.nodes)): group.answer for group in progress.rounds if group.outcome == "answered"
    }
    reference = test_job.reference_for(ctx, doubt.nodes[0])
    found = search(doubt.nodes, doubt.named, answers, reference.figures if reference is not None else {})
    if isinstance(found, Found):
        return _verdict(ctx, doubt, found)
    voids = [group.says for group in progress.rounds if group.outcome == "void"]
    if len(voids) >= VOIDS_MAX:
        return _no_verdict(say("actions.bisect_voids", n=len(voids), says=voids[-1]), found.nodes)
    if _is_late(ctx, progress):
        return _no_verdict(say("actions.bisect_late", time=str(LASTS)), found.nodes)
    number = len(progress.rounds) + 1
    text = say("actions.bisect_group", number=number, n=len(found.nodes), nodes=few(found.nodes))
    return Again(text, 0, data={"group": list(found.nodes)})


def _verdict(ctx: Context, doubt: Doubt, found: Found) -> Done:
    for node, why in found.slow.items():
        says = say("actions.bisect_says", why=why, n=len(doubt.nodes), job=ctx.job, groups=found.tested)
        ctx.claim.tell_detector(test_job.failed_test_command(ctx, node, "together", says[:300], job=ctx.job))
    text = say(
        "actions.bisect_verdict",
        n=len(doubt.nodes),
        job=ctx.job,
        groups=found.tested,
        found=joined(_found(doubt, found), "semicolon"),
    )
    data: dict[str, Any] = {
        "passed": found.clean,
        "evidence": True,
        "slow": sorted(found.slow),
        "between": msgspec.to_builtins(found.between),
        "open": msgspec.to_builtins(found.open),
        "left_out": list(doubt.left_out),
    }
    return Done(text, data)


def _found(doubt: Doubt, found: Found) -> list[Said]:
    parts = [say("actions.bisect_slow", node=node, why=why) for node, why in found.slow.items()]
    parts += [
        say("actions.bisect_between", group=few(group), other=few(other)) for group, other in found.between
    ]
    parts += [say("actions.bisect_open", group=few(group)) for group in found.open]
    if found.clean:
        parts = [say("actions.bisect_clean")]
    if doubt.left_out:
        parts.append(say("actions.bisect_left_out", nodes=few(doubt.left_out)))
    return parts


def _no_verdict(why: Said, left: Sequence[str]) -> Done:
    """Unknown is never bad: the step has neither passed nor failed."""
    text = say("actions.bisect_no_verdict", why=why)
    if left:
        text = say("actions.bisect_no_verdict_open", why=why, nodes=few(left))
    return Done(text, {"verdict": "none", "evidence": True, "left_out": list(left)})


# --- its steps ---


def _probe(ctx: Context) -> Result | None:
    return _timed(ctx, answering(_state)(ctx))


def _do(ctx: Context) -> Result | None:
    progress = read_progress(ctx)
    if progress.open is None or progress.open.job is not None:
        return None  # nothing to submit
    return _timed(ctx, group_job.submit(ctx, len(progress.rounds), progress.open))


def _timed(ctx: Context, result: Result | None) -> Result | None:
    """The step's time-out counts from the end of the job."""
    if not isinstance(result, Again) or result.since is not None:
        return result
    return msgspec.structs.replace(result, since=read_progress(ctx).free_at or ctx.tools.now())


def _undo(ctx: Context) -> Result:
    progress = read_progress(ctx)
    picture = read_slurm(ctx.tools.scheduler.snapshot, LOOK_AGAIN_S)
    job = group_job.find(ctx, len(progress.rounds), progress.rounds[-1], picture) if progress.rounds else None
    if job is None or not job.unfinished:
        return Done(say("actions.test_job_none_left"))
    failed = test_job.cancel(ctx, job)
    return failed or Again(say("actions.bisect_cancelled", job=job.id), LOOK_AGAIN_S)


BISECT = Action(
    probe=_probe,
    do=_do,
    verify=read_back(_probe, lambda _: say("actions.bisect_begins"), LOOK_AGAIN_S),
    undo=_undo,
)
