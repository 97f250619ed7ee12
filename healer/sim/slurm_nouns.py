"""Nodes and jobs of the simulated Slurm, how Slurm shows them, and what it refuses, with the messages and
error codes of Slurm 22.05 and 24.11."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from healer.model import Reservation, SlurmJob, SlurmNode
from healer.ports.scheduling import SchedulerRefused
from healer.text import say


class SlurmTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Slurm's own waits, in seconds. `cred_expire_s`: a requeued job starts one second after it at the
    earliest; `slurmd_timeout_s`: a node that does not respond is DOWN after it (d.7 of the facts)."""

    cred_expire_s: float = 120.0
    completing_s: float = 0.5
    slurmd_timeout_s: float = 300.0
    min_job_age_s: float = 300.0
    boot_s: float = 30.0


#: Fields that a node takes over from its specification.
_UNCHANGED_SPEC = (
    "gpus", "gpu_model", "driver", "rack", "switch", "switches", "pod", "partitions", "features", "boot_id",
)  # fmt: skip
_SHOWN_OF_NODE = ("reason", "reason_user", "reason_at", "boot_at", "comment", "extra")
#: States without flags.
_PLAIN = {base: (base,) for base in ("DOWN", "MIXED", "ALLOCATED", "IDLE")}


def sim_nodes(count: int, *, gpus: int = 8, gpu_model: str = "h100") -> list[SlurmNode]:
    """`gpu0001` … in the partition `train`."""
    return [
        SlurmNode(
            name=f"gpu{number:04d}",
            gpus=gpus,
            gpu_model=gpu_model,
            partitions=("train",),
            features=(gpu_model,),
        )
        for number in range(1, count + 1)
    ]


# Wide: what Slurm shows of a node, and the state behind it.
@dataclass
class Node:
    spec: SlurmNode
    boot_at: datetime
    down: bool = False
    drain: bool = False
    silent_since: datetime | None = None
    #: DOWN only because it did not respond.
    lost: bool = False
    reason: str = ""
    reason_user: str = ""
    reason_at: datetime | None = None
    comment: str = ""
    extra: str = ""
    #: A reboot was asked for; it begins when the node is idle and ends at `boots_at`.
    reboot: bool = False
    boots_at: datetime | None = None
    #: The reboot set DRAIN itself: cancelling the reboot clears it too.
    reboot_drained: bool = False
    #: An epilog that does not end: jobs stay COMPLETING until the node is DOWN.
    stuck: bool = False
    #: Its Prolog ends with an error.
    launch_fails: bool = False
    free: set[int] = field(default_factory=set)
    #: Ids of jobs that hold the node now, and of those that hold it exclusively.
    jobs: set[str] = field(default_factory=set)
    exclusive: set[str] = field(default_factory=set)

    @property
    def usable(self) -> bool:
        return not (self.down or self.drain or self.reboot or self.silent_since)

    def because(self, reason: str, user: str, now: datetime) -> None:
        self.reason, self.reason_user, self.reason_at = reason, user, now.replace(microsecond=0)

    def append(self, text: str, now: datetime) -> None:
        """Appends to the reason as Slurm does: each text once, with user slurm and the current time (d.9)."""
        if text not in self.reason:
            self.because(f"{self.reason} : {text}" if self.reason else text, "slurm", now)

    def forget_reason(self) -> None:
        self.reason, self.reason_user, self.reason_at = "", "", None


#: All that `show_node` depends on: cheaper to compare for each node of a fleet than to show it.
Traits = tuple[object, ...]


def traits_of(node: Node, completing: int, held_for: Sequence[Reservation]) -> Traits:
    return (
        node.down, node.drain, node.silent_since, node.reboot, node.boots_at, node.boot_at,
        node.reason, node.reason_user, node.reason_at, node.comment, node.extra,
        len(node.jobs), completing, not node.free, not node.exclusive, tuple(held_for),
    )  # fmt: skip


def show_node(node: Node, completing: int, held_for: Sequence[Reservation]) -> SlurmNode:
    """`completing`: the number of its jobs that are; `held_for`: the reservations that hold it now."""
    return SlurmNode(
        name=node.spec.name,
        state=_state(node, completing, held_for),
        after_reboot=("DOWN",) if node.reboot else (),
        **{name: getattr(node, name) for name in _SHOWN_OF_NODE},
        **{name: getattr(node.spec, name) for name in _UNCHANGED_SPEC},
    )


def _state(node: Node, completing: int, held_for: Sequence[Reservation]) -> tuple[str, ...]:
    running = len(node.jobs) - completing
    if node.down:
        base = "DOWN"
    elif running:
        base = "MIXED" if (node.free and not node.exclusive) or completing else "ALLOCATED"
    else:
        base = "IDLE"
    if not (completing or held_for or node.drain or node.silent_since or node.reboot or node.boots_at):
        return _PLAIN[base]
    maintenance = {reservation.maintenance for reservation in held_for}
    flags = (
        ("COMPLETING", completing > 0),
        ("DRAIN", node.drain),
        ("MAINTENANCE", True in maintenance),
        ("RESERVED", False in maintenance),
        ("NOT_RESPONDING", node.silent_since is not None),
        ("REBOOT_REQUESTED", node.reboot and node.boots_at is None),
        ("REBOOT_ISSUED", node.boots_at is not None),
    )
    return (base, *(flag for flag, on in flags if on))


_JOB_ID = re.compile(r"([0-9]{1,10})(?:_([0-9]{1,10})|\+([0-9]{1,4}))?", re.ASCII)
#: Slurm's reason of a hold, by who set it.
_HOLDS = {"user": "JobHeldUser", "admin": "JobHeldAdmin"}


# Wide: what Slurm shows of a job, what it requested, and what its program got.
@dataclass
class Job:
    id: str
    want_nodes: int
    want_gpus: int
    runtime_s: float | None = None
    requeue: bool = True
    batch: bool = True
    exclusive: bool = False
    no_kill: bool = False
    name: str = "train"
    user: str = "user"
    account: str = ""
    partition: str = "train"
    qos: str = "normal"
    comment: str = ""
    reservation: str = ""
    dependency: str = ""
    submit_line: str = ""
    origin: str = ""
    siblings: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    nice: int = 0
    array_job: str = ""
    array_task: int | None = None
    het_job: str = ""
    het_offset: int | None = None
    #: The signal at which its program completes.
    ends_on: str = ""
    submit_at: datetime | None = None
    state: str = "PENDING"
    held_by: str = ""
    reason: str = "Priority"
    why: str = ""
    admin_comment: str = ""
    failed_node: str = ""
    restarts: int = 0
    nodes: tuple[str, ...] = ()
    gpus: dict[str, tuple[int, ...]] = field(default_factory=dict)
    start_at: datetime | None = None
    begin_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: str | None = None
    completing_until: datetime | None = None
    #: Signals and notices that its program got, as `signal USR1` and `notify TEXT`.
    heard: list[str] = field(default_factory=list)

    @property
    def running(self) -> bool:
        return self.state in {"RUNNING", "SUSPENDED"} and not self.completing_until

    def hold(self, by: str, why: str = "") -> None:
        self.held_by, self.why = by, why
        if self.state == "PENDING":
            self.reason = _HOLDS[by]


#: Fields that Slurm shows unchanged.
_SHOWN = (
    "id", "nodes", "restarts", "requeue", "batch", "name", "user", "account", "partition", "qos", "comment",
    "why", "submit_at", "exit_code", "excluded", "admin_comment", "reservation", "dependency", "submit_line",
    "array_job", "array_task", "het_job", "het_offset", "origin", "siblings", "no_kill", "failed_node",
)  # fmt: skip


def show_job(job: Job) -> SlurmJob:
    # Slurm 22.05 does not show the base state of a completing job.
    completing = job.completing_until is not None
    return SlurmJob(
        **{name: getattr(job, name) for name in _SHOWN},
        state="COMPLETING" if completing else job.state,
        flags=("COMPLETING",) if completing else (),
        gpus=dict(job.gpus),
        reason="" if completing else job.reason,
        start_at=job.start_at or job.begin_at,
        eligible_at=job.begin_at or job.submit_at,
        end_at=job.ended_at,
        priority=0 if job.held_by else max(1, 1000 - job.nice),
        held_by=job.held_by if job.state == "PENDING" else "",
    )


def number_jobs(jobs: Sequence[Job], first: int, *, array: bool, het: bool) -> None:
    """Sets ids from `first` on. As in Slurm, the last task of an array has the array's id, and so has the
    leader of a heterogeneous job."""
    base = str(first)
    ids = [str(first + place) for place in range(len(jobs))]
    for place, (job, number) in enumerate(zip(jobs, [*ids[1:], base] if array else ids, strict=True)):
        job.id = number
        if array:
            job.array_job, job.array_task = base, place
        if het:
            job.het_job, job.het_offset = base, place


def find_job(jobs: Mapping[str, Job], text: str) -> Job | None:
    """Finds a job by raw id, `5_1` (a task of an array) or `7+1` (a component). Raises SchedulerRefused for
    text that is no id."""
    match = _JOB_ID.fullmatch(text)
    if match is None:
        raise SchedulerRefused(say("slurm.not_a_job", name=text[:80]), 2017)
    number, task, offset = match.groups()
    if task is None and offset is None:
        return jobs.get(text)
    for job in jobs.values():
        if task is not None and (job.array_job, job.array_task) == (number, int(task)):
            return job
        if offset is not None and (job.het_job, job.het_offset) == (number, int(offset)):
            return job
    return None


def waits_for(jobs: Mapping[str, Job], job: Job) -> bool:
    """Whether a dependency (`singleton`, `afterany:ID`, `afterok:ID`) keeps the job pending."""
    if job.dependency == "singleton":
        return any(
            other.id != job.id and (other.name, other.user) == (job.name, job.user)
            and (other.running or other.completing_until or int(other.id) < int(job.id))
            and not (other.ended_at and not other.completing_until)
            for other in jobs.values()
        )  # fmt: skip
    kind, _, number = job.dependency.partition(":")
    other = jobs.get(number)
    if other is None:
        return False
    over = other.ended_at is not None and not other.completing_until
    return not over or (kind == "afterok" and other.state != "COMPLETED")


# --- what Slurm refuses

_RESERVATION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]*")
_WHO = re.compile(r"[\w.\-]+", re.ASCII)


def check_names(*given: str) -> None:
    """Checks names of a partition or QOS; empty is Slurm's default. Raises ValueError."""
    for name in given:
        if name and not _WHO.fullmatch(name):
            raise ValueError(f"{name[:80]!r} is no name of Slurm's")


def require_pending(job: Job) -> Job:
    if job.state != "PENDING" or job.completing_until:
        raise SchedulerRefused(f"Job {job.id}: Job is no longer pending execution", 2073)
    return job


def require_running(job: Job) -> Job:
    if job.state == "PENDING":
        raise SchedulerRefused(f"Job {job.id}: Job can not be altered now, try again later", 2020)
    if not job.running:
        raise SchedulerRefused(f"Job {job.id}: Job/step already completing or completed", 2021)
    return job


def require_unfinished(job: Job) -> Job:
    if job.ended_at:
        raise SchedulerRefused(f"Job {job.id}: Job has already finished", 2084)
    return job


def require_requeueable(job: Job) -> Job:
    if not job.batch:
        raise SchedulerRefused(f"Job {job.id}: Only batch jobs are accepted or processed", 2039)
    if not job.requeue:
        raise SchedulerRefused(f"Job {job.id}: Requested operation is presently disabled", 2037)
    if job.het_offset:
        raise SchedulerRefused(f"Job {job.id}: Job ID is not heterogeneous job leader", 2107)
    return job


def check_reservation(wanted: Reservation) -> Reservation:
    if not _RESERVATION.fullmatch(wanted.name):
        raise SchedulerRefused(say("slurm.not_a_reservation", name=wanted.name[:80]), 2053)
    who = [*wanted.users, *wanted.accounts]
    if not who or not all(_WHO.fullmatch(name) for name in who):
        raise ValueError("a reservation needs users or accounts by their names")
    return wanted


def check_access(job: Job, found: Reservation) -> None:
    if job.user not in found.users and job.account not in found.accounts:
        raise SchedulerRefused(f"{job.name}: Access denied to requested reservation", 2052)


def check_line(what: str, text: str, *, empty: bool = False) -> str:
    if not (text.strip() or (empty and not text)) or not text.isprintable():
        raise ValueError(f"{what} is one line of printable characters")
    return text
