"""Slurm's JSON, from the hand-written form of 22.05 (v0.0.38) to the data_parser forms v0.0.39 to v0.0.45.

One set of shapes reads them all: where a release changed a field's form (d.2 and d.3 of the facts), the field
takes both. Fields that are not named here are ignored.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import msgspec
import structlog

from healer.adapters.slurm import job_words
from healer.adapters.slurm import slurm_words as words
from healer.adapters.slurm import strict_hostlist as hostlist
from healer.model import SlurmJob, SlurmNode

log = structlog.get_logger()

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


class _Signal(msgspec.Struct, frozen=True):
    """`signal_id` in v0.0.39, `id` since."""

    id: _Int = None
    signal_id: _Int = None


class _Exit(msgspec.Struct, frozen=True):
    return_code: _Int = None
    signal: _Signal | None = None


class Problem(msgspec.Struct, frozen=True):
    error: _Text = None
    description: _Text = None
    error_number: _Int = None
    errno: _Int = None


# Wide: one field for each field of Slurm's JSON that is read.
class _Node(msgspec.Struct, frozen=True):
    name: str
    address: _Text = None
    hostname: _Text = None
    state: _Words = None
    state_flags: list[str] = []
    reason: _Text = None
    reason_changed_at: _Int = None
    reason_set_by_user: _Text = None
    boot_time: _Int = None
    gres: _Text = None
    partitions: _Words = None
    active_features: _Words = None
    comment: _Text = None
    extra: _Text = None
    next_state_after_reboot: _Words = None
    next_state_after_reboot_flags: list[str] = []


# Wide: one field for each field of Slurm's JSON that is read.
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
    user_id: _Int = None
    partition: _Text = None
    qos: _Text = None
    comment: _Text = None
    state_reason: _Text = None
    start_time: _Int = None
    excluded_nodes: _Text = None
    submit_time: _Int = None
    eligible_time: _Int = None
    end_time: _Int = None
    exit_code: int | _Exit | None = None
    account: _Text = None
    extra: _Text = None
    admin_comment: _Text = None
    resv_name: _Text = None
    dependency: _Text = None
    submit_line: _Text = None
    priority: _Int = None
    het_job_id: _Int = None
    het_job_offset: _Int = None
    federation_origin: _Text = None
    federation_siblings_active: _Text = None
    federation_siblings_viable: _Text = None
    failed_node: _Text = None
    state_description: _Text = None


class _Sketch(msgspec.Struct, frozen=True):
    """What Slurm itself writes of a job: no word of its owner's is in it."""

    job_id: int
    job_state: str | list[str]
    nodes: _Text = None


class _Nodes(msgspec.Struct, frozen=True):
    errors: list[Problem] = []
    nodes: list[_Node] = []


class _Jobs(msgspec.Struct, frozen=True):
    errors: list[Problem] = []
    jobs: list[_Job] = []


class _JobsApart(msgspec.Struct, frozen=True):
    errors: list[Problem] = []
    jobs: list[msgspec.Raw] = []


def nodes(raw: bytes) -> dict[str, SlurmNode]:
    """Of `sinfo --json` (22.05) or `scontrol show node --json`. NotUnderstood on anything else."""
    with _understood():
        answer = msgspec.json.decode(_text(raw), type=_Nodes)
        check_errors(answer.errors)
        return {node.name: _node(node) for node in answer.nodes}


def jobs(raw: bytes) -> dict[str, SlurmJob]:
    """Of `squeue --json` or `scontrol show job --json`, by raw job id. NotUnderstood on anything else.

    Much of a job is its owner's, and one that cannot be read must not hide the others: it is carried with
    what Slurm itself says of it, and as one that nobody may restart.
    """
    found: dict[str, SlurmJob] = {}
    unread: dict[str, str] = {}
    with _understood():
        for told in _jobs(raw):
            job = _job_or_sketch(told)
            found[job.id] = job
            if job.why.startswith(_UNREAD):
                unread[job.id] = job.why
    if unread:
        log.warning("jobs that cannot be read", count=len(unread), jobs=dict(list(unread.items())[:5]))
    return found


def command_ids(raw: bytes) -> Mapping[str, str]:
    """Raw job id -> what a command must say for it: `5_1` for a task of an array."""
    found: dict[str, str] = {}
    with _understood():
        told = _jobs(raw)
    for job in told:
        if isinstance(job, _Unread):
            # Whether it is a task of an array is not known: refused as a command.
            found[str(job.sketch.job_id)] = f"{job.sketch.job_id}_[]"
            continue
        array, task = _number(job.array_job_id), _number(job.array_task_id, absent=-1)
        waiting = bool(array) and (task < 0 or job.array_task_id is None)
        # A record that stands for tasks still waiting has no single id; the form is refused as a command.
        found[str(job.job_id)] = f"{array}_[]" if waiting else f"{array}_{task}" if array else str(job.job_id)
    return found


def check_errors(errors: Sequence[Problem]) -> None:
    """NotUnderstood where Slurm told any: what stands beside an error may be a part of the whole."""
    if errors:
        said = "; ".join(problem.description or problem.error or "an error" for problem in errors)
        raise NotUnderstood(f"Slurm answered with errors: {said[:300]}")


class _Unread(msgspec.Struct, frozen=True):
    sketch: _Sketch
    why: str


#: How `SlurmJob.why` begins of a job that could not be read.
_UNREAD = "healer cannot read this job: "


def _jobs(raw: bytes) -> Sequence[_Job | _Unread]:
    """DecodeError where not even the sketch of a job can be read."""
    text = _text(raw)
    try:
        answer = msgspec.json.decode(text, type=_Jobs)
    except msgspec.DecodeError:
        apart = msgspec.json.decode(text, type=_JobsApart)
        check_errors(apart.errors)
        return [_one_job(each) for each in apart.jobs]
    check_errors(answer.errors)
    return answer.jobs


def _one_job(raw: msgspec.Raw) -> _Job | _Unread:
    try:
        return msgspec.json.decode(raw, type=_Job)
    except msgspec.DecodeError as error:
        return _Unread(msgspec.json.decode(raw, type=_Sketch), str(error))


def _job_or_sketch(told: _Job | _Unread) -> SlurmJob:
    if isinstance(told, _Unread):
        return _sketched(told.sketch, told.why)
    try:
        return _job(told)
    except ValueError as error:
        return _sketched(_Sketch(told.job_id, told.job_state, told.nodes), str(error))


def _sketched(sketch: _Sketch, why: str) -> SlurmJob:
    state, flags = words.job_state(sketch.job_state)
    return SlurmJob(
        id=str(sketch.job_id),
        state=state,
        flags=flags,
        nodes=hostlist.expand(sketch.nodes or ""),
        requeue=False,
        batch=False,
        why=f"{_UNREAD}{why}"[:300],
    )


def _text(raw: bytes) -> bytes:
    """A user's job name may hold any bytes; it must not hide the whole cluster."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace").encode()
    return raw


@contextlib.contextmanager
def _understood() -> Iterator[None]:
    try:
        yield
    except ValueError as error:  # also msgspec.DecodeError
        raise NotUnderstood(f"Slurm's JSON could not be read: {error}.") from error


def _node(node: _Node) -> SlurmNode:
    gres = node.gres or ""
    gpus, model = words.gpus_of_gres(gres)
    state = _state(node.state, node.state_flags)
    after = _state(node.next_state_after_reboot, node.next_state_after_reboot_flags)
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
        comment=node.comment or "",
        extra=node.extra or "",
        # A node that is not to be rebooted has a next state all the same: none at all, or INVALID.
        after_reboot=() if after[0] in ("UNKNOWN", "INVALID") else after,
        address=_other(node.address, node.name),
        hostname=_other(node.hostname, node.name),
    )


def _other(text: str | None, name: str) -> str:
    """An address or host name, where it is not the node's own name."""
    return "" if text is None or text == name else text


def _state(base: _Words, flags: list[str]) -> tuple[str, ...]:
    parts = [base] if isinstance(base, str) else base or []
    return words.node_state("+".join([*parts, *flags]) or "UNKNOWN")


def _job(job: _Job) -> SlurmJob:
    state, flags = words.job_state(job.job_state)
    on = hostlist.expand(job.nodes or "")
    reason, why = "" if job.state_reason in (None, "None") else job.state_reason, job.state_description or ""
    priority = _number(job.priority, absent=-1)
    array, het = _number(job.array_job_id), _number(job.het_job_id)
    task = _number(job.array_task_id, absent=-1)
    ended = job_words.has_ended(state)
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
        uid=None if (uid := _number(job.user_id, absent=-1)) < 0 else uid,
        partition=job.partition or "",
        qos=job.qos or "",
        comment=job.comment or "",
        reason=reason,
        start_at=_time(job.start_time),
        excluded=hostlist.expand(job.excluded_nodes or ""),
        submit_at=_time(job.submit_time),
        eligible_at=_time(job.eligible_time),
        end_at=_time(job.end_time) if ended else None,
        exit_code=_exit_code(job.exit_code) if ended else None,
        account=job.account or "",
        extra=job.extra or "",
        admin_comment=job.admin_comment or "",
        reservation=job.resv_name or "",
        dependency=job.dependency or "",
        submit_line=job.submit_line or "",
        priority=priority if priority >= 0 else None,
        held_by=job_words.held_by(state, priority, reason, why),
        array_job=str(array) if array else "",
        array_task=task if array and task >= 0 else None,
        het_job=str(het) if het else "",
        het_offset=_number(job.het_job_offset) if het else None,
        origin=job.federation_origin or "",
        siblings=_names(job.federation_siblings_active) or _names(job.federation_siblings_viable),
        no_kill=job_words.no_kill(job.submit_line) if job.submit_line else None,
        failed_node=job.failed_node or "",
        why=why,
    )


def _exit_code(told: int | _Exit | None) -> str | None:
    """From 23.02 on an object; before it wait(2)'s status, the signal in its low seven bits."""
    if told is None:
        return None
    if isinstance(told, int):
        return job_words.exit_code(told >> 8 & 0xFF, told & 0x7F)
    signal = told.signal or _Signal()
    number = _number(signal.id) or _number(signal.signal_id)
    return job_words.exit_code(_number(told.return_code), number)


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
    return words.moment(_number(value))


def _names(value: _Words) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value or []
    return tuple(part for part in parts if part)
