"""A job that may hang: evidence from its ranks and GPUs, and whether both prove a hang.

Nodes are asked one after the other, and each answer is an entry of the run's log, so that a worker's death
costs only one look.
"""

from datetime import datetime, timedelta
from typing import Any

import msgspec

from healer.actions.base import (
    Again,
    Answered,
    Context,
    Done,
    Failed,
    Result,
    Skipped,
    read_job,
    read_job_of_run,
    tried,
)
from healer.detection.flight_recorder import Group, RecorderError, Stall, describe_stall, find_stall, read
from healer.model import GpuActivity, JobOnNode, LogEntry, Sense, SlurmJob, StepEvent
from healer.model.node import IDLE_PERCENT, WAITING_OF_LIMIT
from healer.ports.node_exec import NodeError
from healer.text import Said, joined, quoted, said_by, say

#: The most nodes that are asked; for a larger job a person decides whether it hangs.
MOST_NODES = 32
#: How many nodes are asked for stacks, those of missing ranks first.
STACKS_OF = 4
#: Time between the two looks at the GPUs: a single one may coincide with a pause of a working job.
APART = timedelta(seconds=60)
#: A report by the detector is fresh for this long.
REPORT_LASTS = timedelta(minutes=3)
#: How long a collective must have been stuck when it was dumped, and the oldest dump that counts.
STOOD_FOR, DUMP_LASTS = timedelta(seconds=60), timedelta(minutes=30)
#: The most bytes of a node's dumps in the run's log.
KEPT_BYTES = 512 * 1024
_GPUS = {None: "unknown", True: "quiet", False: "work"}


# --- the check `hung` ---


def hung(ctx: Context) -> Result:
    """Yes: the dumps of all ranks show the same stalled collective, and all GPUs of the job were quiet twice.
    No: a hang is not proven, which does not prove that the job is healthy."""
    job = _job(ctx)
    if ctx.tools.nodes is None:
        return Done(say("actions.hang_by_hand"), {"passed": False, "evidence": True})
    nodes = sorted(job.nodes)
    if len(nodes) > MOST_NODES:
        return _as_reported(ctx, job)
    first = [entry for entry in ctx.lines if "node" in entry.data]
    if (missing := _next(nodes, first)) is not None:
        return _look_at_node(ctx, job, missing, with_dumps=True)
    again = [entry for entry in ctx.lines if "again" in entry.data]
    if not again and (left_s := (first[-1].at + APART - ctx.tools.now()).total_seconds()) > 0:
        return Again(say("actions.hang_looks_again", job=job.title), left_s)
    if (missing := _next(nodes, again, "again")) is not None:
        return _look_at_node(ctx, job, missing, with_dumps=False)
    return _verdict(job, first, again)


def _as_reported(ctx: Context, job: SlurmJob) -> Result:
    """For too many nodes to ask: what its ranks and all its GPUs reported, twice, a minute apart."""
    incident, now = ctx.incident, ctx.tools.now()
    begun = job.start_at or ctx.began_at
    looks = [
        sign.at
        for sign in (incident.evidence if incident is not None else ())
        if sign.sense is Sense.metrics and sign.job == job.id and sign.at >= begun
    ]
    over = incident is None or incident.clear_since is not None
    if looks and not over and looks[-1] - looks[0] >= APART and now - looks[-1] <= REPORT_LASTS:
        return Done(say("actions.hang_reported", job=job.title), {"passed": True, "evidence": True})
    if not over and now - ctx.began_at < REPORT_LASTS:
        return Again(say("actions.hang_waits_for_reports", job=job.title), 5)
    text = say("actions.hang_too_large", job=job.title, nodes=len(job.nodes))
    return Done(text, {"passed": False, "evidence": True})


def _next(nodes: list[str], lines: list[LogEntry], name: str = "node") -> str | None:
    asked = {entry.data[name] for entry in lines}
    return next((node for node in nodes if node not in asked), None)


def _look_at_node(ctx: Context, job: SlurmJob, node: str, *, with_dumps: bool) -> Again:
    """Asks one node; its answer becomes a log entry."""
    assert ctx.tools.nodes is not None
    name = "node" if with_dumps else "again"
    ctx.fence()  # many nodes take long: renew the claim
    try:
        seen = ctx.tools.nodes.job_on_node(node, job.id)
    except NodeError as error:
        data: dict[str, Any] = {name: node, "quiet": None}
        text = say(
            "actions.hang_no_answer" if with_dumps else "actions.hang_no_answer_again",
            node=node,
            error=said_by(error),
        )
        return Again(text, 0, data=data)
    quiet = is_quiet(gpus_of_job(job, node, seen.gpus))
    data = {name: node, "quiet": quiet}
    words = [say(f"actions.hang_gpus_{_GPUS[quiet]}")]
    if with_dumps:
        ranks, unread = _dumps(ctx, seen)
        data["ranks"] = ranks
        words.append(say("actions.hang_dumps", n=len(ranks)))
        words += unread
    text = say(
        "actions.hang_node" if with_dumps else "actions.hang_node_again",
        node=node,
        what=joined(words, "comma"),
    )
    return Again(text, 0, data=data)


def gpus_of_job(job: SlurmJob, node: str, gpus: tuple[GpuActivity, ...]) -> tuple[GpuActivity, ...]:
    """The job's GPUs, if Slurm reports which; nvidia-smi lists GPUs by index. A GPU that it does not list is
    unknown."""
    indices, unknown = job.gpus.get(node), GpuActivity(pci="")
    if indices is None:
        return gpus
    return tuple(gpus[index] if index < len(gpus) else unknown for index in indices)


def is_quiet(gpus: tuple[GpuActivity, ...]) -> bool | None:
    """Whether no GPU computes; None: there are no GPUs, or one does not report."""
    found = [_is_quiet(gpu) for gpu in gpus]
    if False in found:
        return False
    return None if None in found or not found else True


def _is_quiet(gpu: GpuActivity) -> bool | None:
    if gpu.util_percent is None:
        return None
    if gpu.util_percent < IDLE_PERCENT:
        return True
    if gpu.power_w is None or not gpu.power_limit_w:
        return None
    return gpu.power_w < WAITING_OF_LIMIT * gpu.power_limit_w


def _dumps(ctx: Context, seen: JobOnNode) -> tuple[dict[str, Any], list[Said]]:
    """Rank -> summary of its newest dump; and why others are left out."""
    found: dict[str, Any] = {}
    unread = [seen.text] if seen.text else []
    for dump in sorted(seen.dumps, key=lambda dump: dump.at):
        ctx.fence()  # a large dump takes a second
        if ctx.tools.now() - dump.at > DUMP_LASTS:
            unread.append(say("actions.hang_dump_old", rank=dump.rank))
        elif dump.data is None:
            unread.append(say("actions.hang_dump_large", rank=dump.rank))
        else:
            try:
                groups = read(dump.data)
            except RecorderError as error:
                unread.append(say("actions.hang_dump_unread", rank=dump.rank, error=said_by(error)))
            else:
                kept = {name: _summary_of(group) for name, group in groups.items()}
                found[str(dump.rank)] = {"at": dump.at.isoformat(), "groups": kept}
    if len(msgspec.json.encode(found)) > KEPT_BYTES:
        return {}, [say("actions.hang_dumps_large")]
    return found, unread[:5]


def _summary_of(group: Group) -> dict[str, Any]:
    """The part of a dump that the verdict needs, for the log: only the newest few calls."""
    last = dict(sorted(group.ops.items())[-8:])
    short = msgspec.structs.replace(group, ops=last)
    return msgspec.to_builtins(short, str_keys=True)


def _verdict(job: SlurmJob, first: list[LogEntry], again: list[LogEntry]) -> Done:
    nodes: dict[int, str] = {}
    ranks: dict[int, dict[str, Group]] = {}
    dumped: dict[int, str] = {}
    twice = False
    for line in first:
        for rank, dump in line.data.get("ranks", {}).items():
            twice = twice or int(rank) in nodes
            nodes[int(rank)] = line.data["node"]
            dumped[int(rank)] = dump["at"]
            groups = dump["groups"].items()
            ranks[int(rank)] = {name: msgspec.convert(group, Group, strict=False) for name, group in groups}
    stand = find_stall(ranks)
    quiet = [line.data["quiet"] for line in (*first, *again)]
    stalled_s = [
        datetime.fromisoformat(dumped[rank]).timestamp() - group.open.created_ns / 1e9
        for rank, groups in ranks.items()
        if stand is not None and (group := groups.get(stand.group)) is not None
        if group.open is not None and group.open.seq == stand.seq
    ]
    why = _why_unproven(stand, quiet, max(stalled_s, default=0.0))
    if why is None and twice:
        why = say("actions.hang_rank_twice")
    text = say(
        "actions.hang_verdict",
        job=job.title,
        stall=quoted(describe_stall(stand, nodes)) if stand is not None else say("actions.hang_no_stall"),
        why=why or say("actions.hang_proven"),
    )
    missing = sorted({nodes[rank] for rank in (stand.missing if stand else ()) if rank in nodes})
    data = {"passed": why is None, "evidence": True, "missing": missing}
    return Done(text, data)


def _why_unproven(stand: Stall | None, quiet: list[bool | None], stalled_s: float) -> Said | None:
    """What is missing for a proof; None: nothing. `stood_s`: how long a rank had waited at its dump, in
    seconds by its node's clock."""
    if False in quiet:
        return say("actions.hang_at_work")
    if None in quiet:
        return say("actions.hang_not_known")
    if stand is None:
        return say("actions.hang_no_reason")
    if stand.differs:
        return say("actions.hang_program_wrong")
    if not stand.whole:
        return say("actions.hang_dumps_missing")
    if stalled_s < STOOD_FOR.total_seconds():
        return say("actions.hang_too_short")
    return None


# --- the check `job_works` ---


def job_works(ctx: Context) -> Result:
    """Immediately before a requeue, which a pause or an approval may have delayed for hours: a job whose GPUs
    compute again is left alone. Checked once, before any effect on the job; unknown does not stop the
    requeue."""
    job = tried(lambda: read_job(ctx))
    if ctx.asked or ctx.tools.nodes is None or job is None:
        return Failed(say("actions.job_works_no_look"))
    if job.restarts != ctx.restarts or job.state != "RUNNING" or "COMPLETING" in job.flags:
        return Failed(say("actions.job_works_state", job=job.title, state=job.state))
    for node in dict.fromkeys((min(job.nodes), max(job.nodes))):
        ctx.fence()
        try:
            seen = ctx.tools.nodes.job_on_node(node, job.id)
        except NodeError:
            continue
        if is_quiet(gpus_of_job(job, node, seen.gpus)) is False:
            return Skipped(say("actions.job_works", job=job.title, node=node, id=job.id))
    return Failed(say("actions.job_works_unseen", job=job.title))


# --- the check `stacks` ---


def stacks(ctx: Context) -> Result:
    """Collects stacks as evidence; never fails the run."""
    job = _job(ctx)
    if ctx.tools.nodes is None:
        return Skipped(say("actions.stacks_no_way"))
    asked = {entry.data["node"] for entry in ctx.lines if "node" in entry.data}
    node = next((name for name in _sample(ctx, job) if name not in asked), None)
    if node is None:
        found = [entry.text for entry in ctx.lines if entry.data.get("stacks")]
        text = joined(found, "semicolon") if found else say("actions.stacks_none", job=job.title)
        return Done(text, {"evidence": True})
    ctx.fence()
    try:
        seen = ctx.tools.nodes.job_stacks(node, job.id)
    except NodeError as error:
        return Again(say("actions.hang_node", node=node, what=said_by(error)), 0, data={"node": node})
    shown = [
        say("actions.stacks_process", pid=stack.pid, frames=_where(stack.threads)) for stack in seen.stacks
    ]
    if seen.text:
        shown.append(seen.text)
    data = {"node": node, "stacks": msgspec.to_builtins(seen.stacks)} if seen.stacks else {"node": node}
    what = joined(shown, "comma") if shown else say("actions.stacks_nothing")
    return Again(say("actions.hang_node", node=node, what=what), 0, data=data)


def _where(threads: dict[str, tuple[str, ...]]) -> str:
    """The innermost frames of the main thread."""
    frames = threads.get("MainThread") or next(iter(threads.values()), ())
    return " < ".join(frames[:3]) or say("actions.stacks_no_frame")


def _sample(ctx: Context, job: SlurmJob) -> list[str]:
    """Up to `STACKS_OF` nodes: those of missing ranks first, then some across the job."""
    missing_lists = (entry.data.get("missing", []) for entry in ctx.log if entry.event is StepEvent.done)
    first = [node for missing in missing_lists for node in missing if node in job.nodes]
    nodes = sorted(job.nodes)
    evenly = nodes[:: max(1, len(nodes) // STACKS_OF)]
    return list(dict.fromkeys([*first[: STACKS_OF - 1], *evenly]))[:STACKS_OF]


def _job(ctx: Context) -> SlurmJob:
    """The job while it runs under the restart count that the run is about; otherwise the run is over."""
    job, restarts = read_job_of_run(ctx)
    if job.restarts > restarts or job.state != "RUNNING" or "COMPLETING" in job.flags:
        text = say("actions.hang_over", job=job.title, state=job.state, restarts=job.restarts)
        raise Answered(Done(text, {"ends_run": True}))
    return job
