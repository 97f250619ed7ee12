"""Parses Slurm's JSON, from the hand-written form of 22.05 (v0.0.38) to the data_parsers v0.0.39 to v0.0.45.

One set of structs reads all of them: a field whose form changed between releases (d.2 and d.3 of the facts)
accepts both forms. Other fields are ignored. The parsers of text and pyslurm fill the same records.
"""

import contextlib
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import msgspec
import structlog

from healer.adapters.slurm import slurm_words as words
from healer.model import Reservation, SlurmJob, SlurmNode
from healer.model.slurm_spelling import job_state, to_datetime
from healer.text import say

log = structlog.get_logger()

#: The data_parsers to which `--json=` may be pinned, newest first.
DATA_PARSERS = tuple(f"v0.0.{number}" for number in range(45, 38, -1))
#: Slurm stores "Duration=infinite" as a year from the start.
_ENDLESS = timedelta(days=364)
#: The prefix of `SlurmJob.why` for a job that could not be read.
UNREAD = "healer cannot read this job: "


class NotUnderstood(Exception):
    """Slurm's answer has a form that no known release prints; the text names the field."""


class _Number(msgspec.Struct, frozen=True):
    """Numbers from 23.11 on: `set: false` means absent, and `infinite: true` is not 0."""

    set: bool = False
    infinite: bool = False
    number: int | float = 0


_Int = int | _Number | None
_Text = str | None
_Words = str | list[str] | None


class Signal(msgspec.Struct, frozen=True):
    """`signal_id` in v0.0.39, `id` since."""

    id: _Int = None
    signal_id: _Int = None


class ExitCode(msgspec.Struct, frozen=True):
    return_code: _Int = None
    signal: Signal | None = None


class Problem(msgspec.Struct, frozen=True):
    error: _Text = None
    description: _Text = None
    error_number: int | None = None


# Wide: one field for each field of Slurm's JSON that is read.
class NodeRecord(msgspec.Struct, frozen=True):
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
    cpus: _Int = None
    partitions: _Words = None
    active_features: _Words = None
    comment: _Text = None
    extra: _Text = None
    next_state_after_reboot: _Words = None
    next_state_after_reboot_flags: list[str] = []


# Wide: one field for each field of Slurm's JSON that is read.
class JobRecord(msgspec.Struct, frozen=True):
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
    required_nodes: _Text = None
    excluded_nodes: _Text = None
    submit_time: _Int = None
    eligible_time: _Int = None
    end_time: _Int = None
    exit_code: int | ExitCode | None = None
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
    federation_siblings_active: _Words = None
    federation_siblings_viable: _Text = None
    failed_node: _Text = None
    state_description: _Text = None


class JobCore(msgspec.Struct, frozen=True):
    """The fields of a job that only Slurm writes, never its owner."""

    job_id: int
    job_state: str | list[str]
    nodes: _Text = None


class _Nodes(msgspec.Struct, frozen=True):
    errors: list[Problem] = []
    nodes: list[NodeRecord] = []


class _Jobs(msgspec.Struct, frozen=True):
    errors: list[Problem] = []
    jobs: list[JobRecord] = []


class _RawJobs(msgspec.Struct, frozen=True):
    errors: list[Problem] = []
    jobs: list[msgspec.Raw] = []


class ReservationRecord(msgspec.Struct, frozen=True):
    name: str
    node_list: _Text = None
    users: _Words = None
    accounts: _Words = None
    flags: _Words = None
    start_time: _Int = None
    end_time: _Int = None


class _Reservations(msgspec.Struct, frozen=True):
    errors: list[Problem] = []
    reservations: list[ReservationRecord] = []


class Server(msgspec.Struct, frozen=True):
    """One slurmctld of the configuration. `role`: `primary` or `backup`."""

    host: str
    role: str
    up: bool


class Queues(msgspec.Struct, frozen=True):
    """Counts in slurmctld: requests in progress, outgoing messages, and records queued for slurmdbd."""

    threads: int | None = None
    agent: int | None = None
    dbd: int | None = None


class _Ping(msgspec.Struct, frozen=True):
    """`ping` up to v0.0.39 and `pinged` from v0.0.40 are UP or DOWN; `responding` is there from v0.0.42."""

    hostname: str = ""
    mode: str = "primary"
    ping: _Text = None
    pinged: _Text = None
    responding: bool | None = None


class _Pings(msgspec.Struct, frozen=True):
    pings: list[_Ping] = []


class _Statistics(msgspec.Struct, frozen=True):
    server_thread_count: int | None = None
    agent_queue_size: int | None = None
    dbd_agent_queue_size: int | None = None


class _Diag(msgspec.Struct, frozen=True):
    statistics: _Statistics


def nodes(raw: bytes) -> dict[str, SlurmNode]:
    """By name, from `sinfo --json` (22.05) or `scontrol show node --json`. Raises NotUnderstood."""
    with _not_understood():
        answer = msgspec.json.decode(_text(raw), type=_Nodes)
        check_errors(answer.errors)
        return {record.name: node(record) for record in answer.nodes}


def jobs(raw: bytes) -> dict[str, SlurmJob]:
    """By raw job id, from `squeue --json` or `scontrol show job --json`. Raises NotUnderstood.

    Owners write parts of their jobs. A job that cannot be read must not hide the others: it is returned with
    the fields that Slurm writes, as not requeueable.
    """
    found: dict[str, SlurmJob] = {}
    unread: dict[str, str] = {}
    with _not_understood():
        for record in _jobs(raw):
            job = _job_or_core(record)
            found[job.id] = job
            if job.why.startswith(UNREAD):
                unread[job.id] = job.why
    if unread:
        log.warning(
            "unreadable jobs in Slurm's answer", count=len(unread), jobs=dict(list(unread.items())[:5])
        )
    return found


def reservations(raw: bytes) -> dict[str, Reservation]:
    """By name, from `scontrol show reservation --json` or `/reservations`. Raises NotUnderstood."""
    with _not_understood("reservations"):
        answer = msgspec.json.decode(raw, type=_Reservations)
        check_errors(answer.errors)
        return {record.name: reservation(record) for record in answer.reservations}


def servers(raw: bytes) -> list[Server]:
    """From `scontrol ping --json` or `/ping`. Raises NotUnderstood."""
    with _not_understood("ping"):
        pings = msgspec.json.decode(raw, type=_Pings).pings
    return [Server(ping.hostname, role_of(ping.mode), _is_up(ping)) for ping in pings]


def answering(servers: Sequence[Server]) -> Server | None:
    """The server in charge: the first one that is up, as Slurm tries them in this order."""
    return next((server for server in servers if server.up), None)


def role_of(mode: str) -> str:
    return "primary" if mode.lower() == "primary" else "backup"


def _is_up(ping: _Ping) -> bool:
    if ping.responding is not None:
        return ping.responding
    return (ping.pinged or ping.ping or "").upper() == "UP"


def queues(raw: bytes) -> Queues:
    """From `sdiag --json` or `/diag`. Raises NotUnderstood."""
    with _not_understood("diagnostics"):
        figures = msgspec.json.decode(raw, type=_Diag).statistics
    return Queues(figures.server_thread_count, figures.agent_queue_size, figures.dbd_agent_queue_size)


def check_errors(errors: Sequence[Problem]) -> None:
    """Raises NotUnderstood for an answer with errors: its data may be incomplete."""
    if errors:
        texts = "; ".join(problem.description or problem.error or "an error" for problem in errors)
        raise NotUnderstood(say("slurm.answered_errors", errors=texts[:300]))


class _UnreadJob(msgspec.Struct, frozen=True):
    core: JobCore
    why: str


def _jobs(raw: bytes) -> Sequence[JobRecord | _UnreadJob]:
    """Raises DecodeError if not even the core of a job can be read."""
    text = _text(raw)
    try:
        answer = msgspec.json.decode(text, type=_Jobs)
    except msgspec.DecodeError:
        raw_answer = msgspec.json.decode(text, type=_RawJobs)
        check_errors(raw_answer.errors)
        return [_decode_job(job) for job in raw_answer.jobs]
    check_errors(answer.errors)
    return answer.jobs


def _decode_job(raw: msgspec.Raw) -> JobRecord | _UnreadJob:
    try:
        return msgspec.json.decode(raw, type=JobRecord)
    except msgspec.DecodeError as error:
        return _UnreadJob(msgspec.json.decode(raw, type=JobCore), str(error))


def _job_or_core(record: JobRecord | _UnreadJob) -> SlurmJob:
    if isinstance(record, _UnreadJob):
        return unread_job(record.core, record.why)
    try:
        return job(record)
    except ValueError as error:
        return unread_job(JobCore(record.job_id, record.job_state, record.nodes), str(error))


def unread_job(core: JobCore, why: str) -> SlurmJob:
    """The job with the fields that Slurm writes, as not requeueable."""
    state, flags = job_state(core.job_state)
    return SlurmJob(
        id=str(core.job_id),
        state=state,
        flags=flags,
        nodes=words.expand_hosts(core.nodes or ""),
        requeue=False,
        batch=False,
        why=f"{UNREAD}{why}"[:300],
    )


def _text(raw: bytes) -> bytes:
    """The text as valid UTF-8: a user's job name may contain any bytes."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace").encode()
    return raw


@contextlib.contextmanager
def _not_understood(what: str = "json") -> Iterator[None]:
    try:
        yield
    except ValueError as error:  # also msgspec.DecodeError
        raise NotUnderstood(say(f"slurm.garbled_{what}", error=str(error))) from error


def node(record: NodeRecord) -> SlurmNode:
    gres = record.gres or ""
    gpus, model = words.gpus_of_gres(gres)
    state = _state(record.state, record.state_flags)
    after = _state(record.next_state_after_reboot, record.next_state_after_reboot_flags)
    reason = (record.reason or "") if words.reason_is_current(state) else ""
    return SlurmNode(
        name=record.name,
        state=state,
        reason=reason,
        # Before 26.05 a node without a reason still names a user.
        reason_user=(record.reason_set_by_user or "") if reason else "",
        reason_at=_time(record.reason_changed_at) if reason else None,
        gpus=gpus,
        gpu_model=model,
        gpus_shared=words.shares_gpus(gres),
        cpus=_number(record.cpus) or 0,
        partitions=_names(record.partitions),
        features=_names(record.active_features),
        boot_at=_time(record.boot_time),
        comment=record.comment or "",
        extra=record.extra or "",
        # Without a pending reboot the next state is empty or INVALID.
        after_reboot=() if after[0] in ("UNKNOWN", "INVALID") else after,
        address=_unless_name(record.address, record.name),
        hostname=_unless_name(record.hostname, record.name),
    )


def _unless_name(text: str | None, name: str) -> str:
    """An address or host name; empty if it equals the node's name."""
    return "" if text is None or text == name else text


def _state(base: _Words, flags: list[str]) -> tuple[str, ...]:
    parts = [base] if isinstance(base, str) else base or []
    return words.node_state("+".join([*parts, *flags]) or "UNKNOWN")


def job(record: JobRecord, gpus: dict[str, tuple[int, ...]] | None = None) -> SlurmJob:
    """`gpus`: the GPU indices by node, if they are not part of the record."""
    state, flags = job_state(record.job_state)
    on = words.expand_hosts(record.nodes or "")
    reason = "" if record.state_reason in (None, "None") else record.state_reason
    priority = _number(record.priority, absent=-1)
    array, het = _number(record.array_job_id), _number(record.het_job_id)
    task, uid = _number(record.array_task_id, absent=-1), _number(record.user_id, absent=-1)
    ended = words.has_ended(state)
    return SlurmJob(
        id=str(record.job_id),
        state=state,
        flags=flags,
        nodes=on,
        gpus=_gpus(record, on, words.shows_allocation(state, flags)) if gpus is None else gpus,
        restarts=_number(record.restart_cnt),
        requeue=record.requeue,
        batch=record.batch_flag,
        name=record.name or "",
        user=record.user_name or "",
        uid=uid if uid >= 0 else None,
        partition=record.partition or "",
        qos=record.qos or "",
        comment=record.comment or "",
        reason=reason,
        start_at=_time(record.start_time),
        required=words.expand_hosts(record.required_nodes or ""),
        excluded=words.expand_hosts(record.excluded_nodes or ""),
        submit_at=_time(record.submit_time),
        eligible_at=_time(record.eligible_time),
        end_at=_time(record.end_time) if ended else None,
        exit_code=_exit_code(record.exit_code) if ended else None,
        account=record.account or "",
        extra=record.extra or "",
        admin_comment=record.admin_comment or "",
        reservation=record.resv_name or "",
        dependency=record.dependency or "",
        submit_line=record.submit_line or "",
        priority=priority if priority >= 0 else None,
        held_by=words.held_by(state, priority, reason, record.state_description or ""),
        array_job=str(array) if array else "",
        array_task=task if array and task >= 0 else None,
        het_job=str(het) if het else "",
        het_offset=_number(record.het_job_offset) if het else None,
        origin=record.federation_origin or "",
        siblings=_names(record.federation_siblings_active) or _names(record.federation_siblings_viable),
        no_kill=words.no_kill(record.submit_line) if record.submit_line else None,
        failed_node=record.failed_node or "",
        why=record.state_description or "",
    )


def _exit_code(code: int | ExitCode | None) -> str | None:
    """From 23.02 on an object; before, the status of wait(2) with the signal in its low seven bits."""
    if code is None:
        return None
    if isinstance(code, int):
        return words.exit_code(code >> 8 & 0xFF, code & 0x7F)
    signal = code.signal or Signal()
    number = _number(signal.id) or _number(signal.signal_id)
    return words.exit_code(_number(code.return_code), number)


def _gpus(job: JobRecord, on: tuple[str, ...], running: bool) -> dict[str, tuple[int, ...]]:
    """GPU indices by node: () if the job has none, no entry if Slurm does not report them."""
    details = job.gres_detail or []
    if not details and running:
        # Slurm lists nothing for a running job without GRES, and for any job that is ending.
        asks = (job.tres_per_job, job.tres_per_node, job.tres_per_socket, job.tres_per_task)
        return {} if words.names_gpus(*asks, job.tres_alloc_str) else dict.fromkeys(on, ())
    # One entry for each node, in the order of the node list; otherwise the list is incomplete.
    if len(details) != len(on):
        return {}
    reported = zip(on, (words.gpu_indices(text or "") for text in details), strict=True)
    return {node: indices for node, indices in reported if indices is not None}


def _number(value: _Int, absent: int = 0) -> int:
    if isinstance(value, _Number):
        return int(value.number) if value.set and not value.infinite else absent
    return absent if value is None else value


def _time(value: _Int) -> datetime | None:
    return to_datetime(_number(value))


def _names(value: _Words) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value or []
    return tuple(part for part in parts if part)


def reservation(record: ReservationRecord) -> Reservation:
    """Raises ValueError for a malformed host list."""
    start, end = _time(record.start_time), _time(record.end_time)
    users, accounts, flags = (
        tuple(name for name in _names(field) if name != "(null)")
        for field in (record.users, record.accounts, record.flags)
    )
    return Reservation(
        name=record.name,
        nodes=words.expand_hosts(record.node_list or ""),
        users=users,
        accounts=accounts,
        maintenance="MAINT" in flags,
        since=start,
        until=None if start and end and end - start >= _ENDLESS else end,
        flags=flags,
    )
