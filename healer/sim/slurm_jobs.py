"""A job of the simulated Slurm, and how Slurm shows it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from healer.model import SlurmJob
from healer.ports.slurm import SchedulerRefused

_JOB_ID = re.compile(r"([0-9]{1,10})(?:_([0-9]{1,10})|\+([0-9]{1,4}))?", re.ASCII)
#: What Slurm calls a hold, by who set it.
_HOLDS = {"user": "JobHeldUser", "admin": "JobHeldAdmin"}


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
    #: The signal at which its program ends well.
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


def show_job(job: Job) -> SlurmJob:
    # As on 22.05: while a job is completing, its base state is not shown.
    completing = job.completing_until is not None
    return SlurmJob(
        id=job.id,
        state="COMPLETING" if completing else job.state,
        flags=("COMPLETING",) if completing else (),
        nodes=job.nodes,
        gpus=dict(job.gpus),
        restarts=job.restarts,
        requeue=job.requeue,
        batch=job.batch,
        name=job.name,
        user=job.user,
        account=job.account,
        partition=job.partition,
        qos=job.qos,
        comment=job.comment,
        reason="" if completing else job.reason,
        why=job.why,
        submit_at=job.submit_at,
        start_at=job.start_at or job.begin_at,
        end_at=job.ended_at,
        exit_code=job.exit_code,
        excluded=job.excluded,
        admin_comment=job.admin_comment,
        reservation=job.reservation,
        dependency=job.dependency,
        submit_line=job.submit_line,
        priority=0 if job.held_by else max(1, 1000 - job.nice),
        held_by=job.held_by if job.state == "PENDING" else "",
        array_job=job.array_job,
        array_task=job.array_task,
        het_job=job.het_job,
        het_offset=job.het_offset,
        origin=job.origin,
        siblings=job.siblings,
        no_kill=job.no_kill,
        failed_node=job.failed_node,
    )


def number_jobs(jobs: Sequence[Job], first: int, *, array: bool, het: bool) -> None:
    """Ids from `first` on. Of an array the last task has the array's own id, as in Slurm; of a heterogeneous
    job the first component, its leader."""
    base = str(first)
    ids = [str(first + place) for place in range(len(jobs))]
    for place, (job, number) in enumerate(zip(jobs, [*ids[1:], base] if array else ids, strict=True)):
        job.id = number
        if array:
            job.array_job, job.array_task = base, place
        if het:
            job.het_job, job.het_offset = base, place


def find_job(jobs: Mapping[str, Job], text: str) -> Job | None:
    """By raw id, `5_1` (a task of an array) or `7+1` (a component). SchedulerRefused: no id at all."""
    match = _JOB_ID.fullmatch(text)
    if match is None:
        raise SchedulerRefused(f"{text[:80]!r} is not the id of a Slurm job.", 2017)
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
    """A dependency (`singleton`, `afterany:ID`, `afterok:ID`) keeps it waiting."""
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
