"""A job that may hang: evidence from its ranks and GPUs, and whether both prove a hang.

Nodes are asked one after the other, and each answer is an entry of the run's log, so that a worker's death
costs one look.
"""

from datetime import datetime, timedelta
from typing import Any

import msgspec

from healer.actions.base import (
    Action,
    Again,
    Context,
    Done,
    Failed,
    Result,
    Skipped,
    read_job,
    read_job_of_run,
)
from healer.detection.flight_recorder import Group, RecorderError, Stall, describe_stall, find_stall, read
from healer.model import GpuActivity, JobOnNode, LogEntry, Sense, SlurmJob, StepEvent
from healer.model.node import IDLE_PERCENT, WAITING_OF_LIMIT
from healer.ports.node_exec import NodeError

#: The most nodes of a job that are asked; whether a larger job hangs a person decides.
MOST_NODES = 32
#: How many nodes are asked for stacks, those of missing ranks first.
STACKS_OF = 4
#: Time between the two looks at the GPUs: a single one may meet a pause of a working job.
APART = timedelta(seconds=60)
#: A report of the detector is news for so long.
REPORT_LASTS = timedelta(minutes=3)
#: How long a collective must have been stuck when it was dumped, and the oldest dump that counts.
STOOD_FOR, DUMP_LASTS = timedelta(seconds=60), timedelta(minutes=30)
#: The most bytes of a node's dumps in the run's log.
KEPT_BYTES = 512 * 1024


# --- the check `hung` ---


def hung(ctx: Context) -> Result:
    """Yes: the dumps of all ranks show the same stalled collective, and all GPUs of the job were quiet twice.
    No: a hang is not proven, which does not prove that the job is well."""
    job = _job(ctx)
    if not isinstance(job, SlurmJob):
        return job
    if ctx.tools.nodes is None:
        text = "healer has no way to work on nodes: by hand, `py-spy dump --pid PID` for ranks on each"
        return Done(text=text, data={"passed": False, "evidence": True})
    nodes = sorted(job.nodes)
    if len(nodes) > MOST_NODES:
        return _as_reported(ctx, job)
    first = [entry for entry in ctx.lines if "node" in entry.data]
    if (missing := _next(nodes, first)) is not None:
        return _look_at_node(ctx, job, missing, with_dumps=True)
    again = [entry for entry in ctx.lines if "again" in entry.data]
    if not again and (left_s := (first[-1].at + APART - ctx.tools.now()).total_seconds()) > 0:
        return Again(text=f"Looks again at the GPUs of job {job.title}", after_s=left_s)
    if (missing := _next(nodes, again, "again")) is not None:
        return _look_at_node(ctx, job, missing, with_dumps=False)
    return _verdict(job, first, again)


def _as_reported(ctx: Context, job: SlurmJob) -> Result:
    """Too many nodes to ask each: what its ranks and all its GPUs reported, twice and a minute apart."""
    incident, now = ctx.incident, ctx.tools.now()
    begun = job.start_at or ctx.began_at
    looks = [
        sign.at
        for sign in (incident.evidence if incident is not None else ())
        if sign.sense is Sense.metrics and sign.job == job.id and sign.at >= begun
    ]
    over = incident is None or incident.clear_since is not None
    if looks and not over and looks[-1] - looks[0] >= APART and now - looks[-1] <= REPORT_LASTS:
        text = f"Job {job.title}: its ranks wait for each other and all its GPUs were quiet, twice: it hangs"
        return Done(text=text, data={"passed": True, "evidence": True})
    if not over and now - ctx.began_at < REPORT_LASTS:
        return Again(text=f"Waits for two reports of the GPUs of job {job.title}", after_s=5)
    text = f"Job {job.title} has {len(job.nodes)} nodes: only a person can tell whether it hangs"
    return Done(text=text, data={"passed": False, "evidence": True})


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
        return Again(
            text=f"{node} tells nothing{'' if with_dumps else ' any more'}: {error}", after_s=0, data=data
        )
    quiet = is_quiet(_gpus_of_job(job, node, seen.gpus))
    data = {name: node, "quiet": quiet}
    words = [{None: "its GPUs cannot be told", True: "its GPUs are quiet", False: "its GPUs work"}[quiet]]
    if with_dumps:
        ranks, unread = _dumps(ctx, seen)
        data["ranks"] = ranks
        words.append(f"{len(ranks)} dumps of the recorder")
        words += unread
    return Again(text=f"{node}{'' if with_dumps else ' again'}: {', '.join(words)}", after_s=0, data=data)


def _gpus_of_job(job: SlurmJob, node: str, gpus: tuple[GpuActivity, ...]) -> tuple[GpuActivity, ...]:
    """The job's GPUs, where Slurm reports which; nvidia-smi lists GPUs by index. One that it does not list is
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


def _dumps(ctx: Context, seen: JobOnNode) -> tuple[dict[str, Any], list[str]]:
    """Rank -> summary of its newest dump; and why others are left out."""
    found: dict[str, Any] = {}
    unread = [seen.text] if seen.text else []
    for dump in sorted(seen.dumps, key=lambda dump: dump.at):
        ctx.fence()  # a large dump takes a second
        if ctx.tools.now() - dump.at > DUMP_LASTS:
            unread.append(f"that of rank {dump.rank} is old")
        elif dump.data is None:
            unread.append(f"that of rank {dump.rank} is too large")
        else:
            try:
                groups = read(dump.data)
            except RecorderError as error:
                unread.append(f"that of rank {dump.rank} is not read: {error}")
            else:
                kept = {name: _summary_of(group) for name, group in groups.items()}
                found[str(dump.rank)] = {"at": dump.at.isoformat(), "groups": kept}
    if len(msgspec.json.encode(found)) > KEPT_BYTES:
        return {}, ["the recorder's dumps hold too much to be kept"]
    return found, unread[:5]


def _summary_of(group: Group) -> dict[str, Any]:
    """The part of a dump that the verdict needs, for the log: of the calls the newest few."""
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
    stood_s = [
        datetime.fromisoformat(dumped[rank]).timestamp() - group.open.created_ns / 1e9
        for rank, groups in ranks.items()
        if stand is not None and (group := groups.get(stand.group)) is not None
        if group.open is not None and group.open.seq == stand.seq
    ]
    why = _why_unproven(stand, quiet, max(stood_s, default=0.0))
    if why is None and twice:
        why = "Two nodes tell of the same rank: dumps of another job may be among them"
    text = (
        describe_stall(stand, nodes)
        if stand is not None
        else "No dump of the recorder shows a collective that stands"
    )
    words = f"Job {job.title}: {text}. {why or 'All its GPUs were quiet, twice: it hangs'}"
    missing = sorted({nodes[rank] for rank in (stand.missing if stand else ()) if rank in nodes})
    data = {"passed": why is None, "evidence": True, "missing": missing}
    return Done(text=words, data=data)


def _why_unproven(stand: Stall | None, quiet: list[bool | None], stood_s: float) -> str | None:
    """What is missing for a proof; None: nothing. `stood_s`: how long a rank had waited at its dump, in
    seconds by its node's clock."""
    if False in quiet:
        return "Its GPUs work, so it may go on"
    if None in quiet:
        return "What its GPUs do is not known of all nodes"
    if stand is None:
        return "Its GPUs are quiet, and nothing says why"
    if stand.differs:
        return "A restart would not mend that"
    if not stand.whole:
        return "Not every rank has left a dump, so it is not proven"
    if stood_s < STOOD_FOR.total_seconds():
        return "It had stood for less than a minute when the dumps were written"
    return None


# --- the check `job_works` ---


def job_works(ctx: Context) -> Result:
    """Right before a requeue, which a pause or an approval may have delayed for hours: a job whose GPUs work
    again is left alone. Asked once, before any effect on the job; unknown does not stop the requeue."""
    job = read_job(ctx)
    if ctx.asked or ctx.tools.nodes is None or not isinstance(job, SlurmJob):
        return Failed(text="Nobody has looked")
    if job.restarts != ctx.restarts or job.state != "RUNNING" or "COMPLETING" in job.flags:
        return Failed(text=f"Job {job.title} is {job.state}")
    for node in dict.fromkeys((min(job.nodes), max(job.nodes))):
        ctx.fence()
        try:
            seen = ctx.tools.nodes.job_on_node(node, job.id)
        except NodeError:
            continue
        if is_quiet(_gpus_of_job(job, node, seen.gpus)) is False:
            by_hand = f"`healer run requeue --job {job.id}` does it all the same"
            return Skipped(text=f"The GPUs of job {job.title} work on {node}: not requeued; {by_hand}")
    return Failed(text=f"No GPU of job {job.title} is seen to work")


# --- the check `stacks` ---


def stacks(ctx: Context) -> Result:
    """Collects stacks as evidence; it never fails the run."""
    job = _job(ctx)
    if not isinstance(job, SlurmJob):
        return job
    if ctx.tools.nodes is None:
        return Skipped(text="healer has no way to work on nodes: no stacks were read")
    asked = {entry.data["node"] for entry in ctx.lines if "node" in entry.data}
    node = next((name for name in _sample(ctx, job) if name not in asked), None)
    if node is None:
        found = [entry.text for entry in ctx.lines if entry.data.get("stacks")]
        text = "; ".join(found) or f"No stack of job {job.title} could be read"
        return Done(text=text, data={"evidence": True})
    ctx.fence()
    try:
        seen = ctx.tools.nodes.job_stacks(node, job.id)
    except NodeError as error:
        return Again(text=f"{node}: {error}", after_s=0, data={"node": node})
    shown = [f"process {stack.pid} stands in {_where(stack.threads)}" for stack in seen.stacks]
    if seen.text:
        shown.append(seen.text)
    data = {"node": node, "stacks": msgspec.to_builtins(seen.stacks)} if seen.stacks else {"node": node}
    return Again(text=f"{node}: {', '.join(shown) or 'nothing told'}", after_s=0, data=data)


def _where(threads: dict[str, tuple[str, ...]]) -> str:
    """The innermost frames of the main thread."""
    frames = threads.get("MainThread") or next(iter(threads.values()), ())
    return " < ".join(frames[:3]) or "no frame"


def _sample(ctx: Context, job: SlurmJob) -> list[str]:
    """Up to `STACKS_OF` nodes: those of missing ranks first, then some across the job."""
    missing_lists = (entry.data.get("missing", []) for entry in ctx.log if entry.event is StepEvent.done)
    first = [node for missing in missing_lists for node in missing if node in job.nodes]
    nodes = sorted(job.nodes)
    evenly = nodes[:: max(1, len(nodes) // STACKS_OF)]
    return list(dict.fromkeys([*first[: STACKS_OF - 1], *evenly]))[:STACKS_OF]


def _job(ctx: Context) -> SlurmJob | Result:
    """The job while it runs under the restart count that the run is about; else the run is over."""
    job = read_job_of_run(ctx)
    if not isinstance(job, SlurmJob):
        return job
    assert ctx.restarts is not None  # read_job_of_run checked it
    if job.restarts > ctx.restarts or job.state != "RUNNING" or "COMPLETING" in job.flags:
        text = f"Job {job.title} is {job.state}, restart {job.restarts}: it does not hang any more"
        return Done(text=text, data={"ends_run": True})
    return job


HUNG = Action(verify=hung, effect=False)
JOB_WORKS = Action(verify=job_works, effect=False)
STACKS = Action(verify=stacks, effect=False)
