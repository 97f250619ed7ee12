"""Slurm's JSON, from the hand-written form of 22.05 (v0.0.38) to the data_parser forms v0.0.39 to v0.0.45.

One set of shapes reads them all: where a release changed a field's form (d.2 and d.3 of the facts), the field
takes both. Fields that are not named here are ignored.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from healer.adapters.slurm import hostlist, words
from healer.model import SlurmJob, SlurmNode

#: Newest first: what `--json=` may be pinned to.
DATA_PARSERS = tuple(f"v0.0.{number}" for number in range(45, 38, -1))


class NotUnderstood(Exception):
    """Slurm's answer has a shape that no known release prints; the text names the field."""


class _Number(msgspec.Struct, frozen=True):
    """From 23.11 on: `set: false` is absent, `infinite: true` is not 0."""

    set: bool = False
    infinite: bool = False
    number: int | float = 0


_Int = int | _Number | None
_Text = str | None
_Words = str | list[str] | None


class _Problem(msgspec.Struct, frozen=True):
    error: _Text = None
    description: _Text = None
    error_number: _Int = None
    errno: _Int = None


class _Node(msgspec.Struct, frozen=True):
    name: str
    state: _Words = None
    state_flags: list[str] = []
    reason: _Text = None
    reason_changed_at: _Int = None
    reason_set_by_user: _Text = None
    boot_time: _Int = None
    gres: _Text = None
    partitions: _Words = None
    active_features: _Words = None


class _Job(msgspec.Struct, frozen=True):
    job_id: int
    job_state: str | list[str]
    array_job_id: _Int = None
    array_task_id: _Int = None
    nodes: _Text = None
    gres_detail: list[str | None] | None = None
    tres_per_job: _Text = None
    tres_per_node: _Text = None
    tres_per_socket: _Text = None
    tres_per_task: _Text = None
    tres_alloc_str: _Text = None
    restart_cnt: _Int = None
    requeue: bool = True
    batch_flag: bool = True
    name: _Text = None
    user_name: _Text = None
    partition: _Text = None
    qos: _Text = None
    comment: _Text = None
    state_reason: _Text = None
    start_time: _Int = None
    excluded_nodes: _Text = None


class _Answer(msgspec.Struct, frozen=True):
    errors: list[_Problem] = []
    nodes: list[_Node] = []
    jobs: list[_Job] = []


_Noun = TypeVar("_Noun")


def nodes(raw: bytes) -> dict[str, SlurmNode]:
    """Of `sinfo --json` (22.05) or `scontrol show node --json`. NotUnderstood on anything else."""
    return {node.name: _reading(_node, node) for node in _answer(raw).nodes}


def jobs(raw: bytes) -> dict[str, SlurmJob]:
    """Of `squeue --json` or `scontrol show job --json`, by raw job id. NotUnderstood on anything else."""
    return {str(job.job_id): _reading(_job, job) for job in _answer(raw).jobs}


def command_ids(raw: bytes) -> Mapping[str, str]:
    """Raw job id -> what a command must say for it: `5_1` for a task of an array."""
    found: dict[str, str] = {}
    for job in _answer(raw).jobs:
        array, task = _number(job.array_job_id), _number(job.array_task_id, absent=-1)
        waiting = bool(array) and (task < 0 or job.array_task_id is None)
        # A record that stands for tasks still waiting has no single id; the form is refused as a command.
        found[str(job.job_id)] = f"{array}_[]" if waiting else f"{array}_{task}" if array else str(job.job_id)
    return found


def _answer(raw: bytes) -> _Answer:
    try:
        try:
            answer = msgspec.json.decode(raw, type=_Answer)
        except UnicodeDecodeError:
            # A user's job name may hold any bytes; it must not hide the whole cluster.
            answer = msgspec.json.decode(raw.decode("utf-8", "replace"), type=_Answer)
    except msgspec.DecodeError as error:
        raise NotUnderstood(f"Slurm's JSON could not be read: {error}.") from error
    if answer.errors and not answer.nodes and not answer.jobs:
        said = "; ".join(problem.description or problem.error or "an error" for problem in answer.errors)
        raise NotUnderstood(f"Slurm answered with errors: {said[:300]}")
    return answer


def _reading(make: Callable[..., _Noun], shape: object) -> _Noun:
    try:
        return make(shape)
    except ValueError as error:
        raise NotUnderstood(f"Slurm's JSON could not be read: {error}.") from error


def _node(node: _Node) -> SlurmNode:
    gres = node.gres or ""
    gpus, model = words.gpus_of_gres(gres)
    base = [node.state] if isinstance(node.state, str) else node.state or []
    state = words.node_state("+".join([*base, *node.state_flags]) or "UNKNOWN")
    reason = (node.reason or "") if words.reason_stands(state) else ""
    return SlurmNode(
        name=node.name,
        state=state,
        reason=reason,
        # Before 26.05 a node without a reason still names a user.
        reason_user=(node.reason_set_by_user or "") if reason else "",
        reason_at=_time(node.reason_changed_at) if reason else None,
        gpus=gpus,
        gpu_model=model,
        gpus_shared=words.shares_gpus(gres),
        partitions=_names(node.partitions),
        features=_names(node.active_features),
        boot_at=_time(node.boot_time),
    )


def _job(job: _Job) -> SlurmJob:
    state, flags = words.job_state(job.job_state)
    on = hostlist.expand(job.nodes or "")
    return SlurmJob(
        id=str(job.job_id),
        state=state,
        flags=flags,
        nodes=on,
        gpus=_gpus(job, on, running=state in {"RUNNING", "SUSPENDED"} and "COMPLETING" not in flags),
        restarts=_number(job.restart_cnt),
        requeue=job.requeue,
        batch=job.batch_flag,
        name=job.name or "",
        user=job.user_name or "",
        partition=job.partition or "",
        qos=job.qos or "",
        comment=job.comment or "",
        reason="" if job.state_reason in (None, "None") else job.state_reason or "",
        start_at=_time(job.start_time),
        excluded=hostlist.expand(job.excluded_nodes or ""),
    )


def _gpus(job: _Job, on: tuple[str, ...], *, running: bool) -> dict[str, tuple[int, ...]]:
    """GPU indices by node: () where the job has none there, no entry where Slurm does not tell."""
    details = job.gres_detail or []
    if not details and running:
        # Slurm lists nothing for a running job without GRES; for one that is ending it lists nothing at all.
        asks = (job.tres_per_job, job.tres_per_node, job.tres_per_socket, job.tres_per_task)
        return {} if words.names_gpus(*asks, job.tres_alloc_str) else dict.fromkeys(on, ())
    # One entry for each node, in the order of the node list; fewer means that it is not told.
    if len(details) != len(on):
        return {}
    told = zip(on, (words.gpu_indices(text or "") for text in details), strict=True)
    return {node: indices for node, indices in told if indices is not None}


def _number(value: _Int, absent: int = 0) -> int:
    if isinstance(value, _Number):
        return int(value.number) if value.set and not value.infinite else absent
    return absent if value is None else value


def _time(value: _Int) -> datetime | None:
    seconds = _number(value)
    return datetime.fromtimestamp(seconds, UTC) if seconds > 0 else None


def _names(value: _Words) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value or []
    return tuple(part for part in parts if part)
