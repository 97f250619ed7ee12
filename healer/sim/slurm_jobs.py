"""Jobs of the simulated Slurm, how it shows them, and what it refuses, with the messages and error codes of
Slurm 22.05 and 24.11."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from healer.model import Reservation, SlurmJob
from healer.ports.scheduling import SchedulerRefused
from healer.text import quoted, say

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
    "why", "submit_at", "exit_code", "required", "excluded", "admin_comment", "reservation", "dependency",
    "submit_line",
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


# --- refusals by Slurm

_RESERVATION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]*")
_WHO = re.compile(r"[\w.\-]+", re.ASCII)


def check_names(*given: str) -> None:
    """Checks names of a partition or QOS; empty is Slurm's default. Raises ValueError."""
    for name in given:
        if name and not _WHO.fullmatch(name):
            raise ValueError(f"{name[:80]!r} is no name of Slurm's")


def require_pending(job: Job) -> Job:
    if job.state != "PENDING" or job.completing_until:
        raise SchedulerRefused(quoted(f"Job {job.id}: Job is no longer pending execution"), 2073)
    return job


def require_running(job: Job) -> Job:
    if job.state == "PENDING":
        raise SchedulerRefused(quoted(f"Job {job.id}: Job can not be altered now, try again later"), 2020)
    if not job.running:
        raise SchedulerRefused(quoted(f"Job {job.id}: Job/step already completing or completed"), 2021)
    return job


def require_unfinished(job: Job) -> Job:
    if job.ended_at:
        raise SchedulerRefused(quoted(f"Job {job.id}: Job has already finished"), 2084)
    return job


def require_requeueable(job: Job) -> Job:
    if not job.batch:
        raise SchedulerRefused(quoted(f"Job {job.id}: Only batch jobs are accepted or processed"), 2039)
    if not job.requeue:
        raise SchedulerRefused(quoted(f"Job {job.id}: Requested operation is presently disabled"), 2037)
    if job.het_offset:
        raise SchedulerRefused(quoted(f"Job {job.id}: Job ID is not heterogeneous job leader"), 2107)
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
        raise SchedulerRefused(quoted(f"{job.name}: Access denied to requested reservation"), 2052)
