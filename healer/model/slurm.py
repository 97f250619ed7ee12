"""What Slurm shows: nodes and jobs at one moment, in one shape for every version and adapter."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Generic, TypeVar

import msgspec

from healer.model.slurm_node import SlurmNode

T = TypeVar("T")


class SlurmJob(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One job. `state` is the base state (`RUNNING`); `flags` the rest (`COMPLETING`).

    `gpus` maps node -> GPU indices where Slurm tells them: an empty tuple is a job without a GPU there, a
    node that is missing was not told. `requeue`: Slurm may requeue it; `batch`: it was
    submitted by sbatch (others cannot be requeued). `reason` is why it is pending.
    """

    id: str
    state: str
    nodes: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    gpus: dict[str, tuple[int, ...]] = {}
    restarts: int = 0
    requeue: bool = True
    batch: bool = True
    name: str = ""
    user: str = ""
    #: The number behind `user`; None where Slurm does not tell.
    uid: int | None = None
    partition: str = ""
    qos: str = ""
    comment: str = ""
    reason: str = ""
    start_at: datetime | None = None
    #: Nodes a pending job must not use (ExcNodeList).
    excluded: tuple[str, ...] = ()
    submit_at: datetime | None = None
    eligible_at: datetime | None = None
    #: When it ended, or began to complete; None before that.
    end_at: datetime | None = None
    #: `3`, `0:9` (signal 9) as Slurm's ExitCode; None where it has not ended or Slurm does not tell.
    exit_code: str | None = None
    account: str = ""
    #: What its owner wrote with `--extra` (23.11 and later); words for healer may stand there too.
    extra: str = ""
    admin_comment: str = ""
    reservation: str = ""
    dependency: str = ""
    submit_line: str = ""
    priority: int | None = None
    #: Who holds it, while it is held: `user` or `admin` (also Slurm itself after failed launches).
    held_by: str = ""
    #: The array and the task in it; the leader and the place in a heterogeneous job.
    array_job: str = ""
    array_task: int | None = None
    het_job: str = ""
    het_offset: int | None = None
    #: Federation: where it was submitted and which clusters have a copy of it.
    origin: str = ""
    siblings: tuple[str, ...] = ()
    #: A node that fails leaves the others of the job running (`--no-kill`); None where Slurm does not tell.
    no_kill: bool | None = None
    #: Node whose failure ended its last life, and the description that goes with `reason`.
    failed_node: str = ""
    why: str = ""

    @property
    def active(self) -> bool:
        """Holds nodes: running, suspended or completing."""
        return self.state in {"RUNNING", "SUSPENDED"} or "COMPLETING" in self.flags

    @property
    def crashed(self) -> bool:
        """Its work ended, and not by a word of its owner's or a limit; it may be revived."""
        return self.state in {"FAILED", "NODE_FAIL"} and "COMPLETING" not in self.flags

    @property
    def leader(self) -> str:
        """The id that commands need: a component of a heterogeneous job goes with its leader (2107)."""
        return self.het_job or self.id

    @property
    def title(self) -> str:
        """`4711`, `4700_3` (a task of an array), `4711+1` (a component), as its owner knows it."""
        if self.array_job and self.array_task is not None:
            return f"{self.array_job}_{self.array_task}"
        return f"{self.het_job}+{self.het_offset}" if self.het_job and self.het_offset else self.id


class Reservation(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Nodes kept for somebody. `maintenance`: Slurm's MAINT with IGNORE_JOBS, planned work.

    `until` None: without an end. `users` (or accounts) may run jobs in it.
    """

    name: str
    nodes: tuple[str, ...]
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    maintenance: bool = False
    since: datetime | None = None
    until: datetime | None = None
    flags: tuple[str, ...] = ()


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A batch job that healer submits itself. `script` is a whole script with its `#!` line."""

    name: str
    script: str
    nodes: tuple[str, ...]
    time_limit_s: int
    reservation: str = ""
    comment: str = ""
    gpus_per_node: int = 0
    exclusive: bool = True
    #: Empty: Slurm's default. `nice`: by so much below the priority that it would have.
    partition: str = ""
    qos: str = ""
    nice: int = 0


class Trouble(StrEnum):
    """What may be wrong with slurmctld, or with the way to it. A state to show, never a reason to act."""

    away = "away"
    other_cluster = "other_cluster"
    backup = "backup"
    slow = "slow"
    backlog = "backlog"
    accounting = "accounting"
    passed_over = "passed_over"


class Controller(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """slurmctld at `at`, as one poll found it. None of a figure: this way of asking does not tell it.

    `problem` is a sentence where it does not answer or answers badly; then the figures are the last known.
    `adapter` names who answered; `fallbacks` why those before it in the site's order did not.
    """

    cluster: str
    at: datetime
    adapter: str = ""
    host: str = ""
    #: `primary`, or `backup` after a take-over.
    role: str = ""
    version: str = ""
    answer_s: float | None = None
    problem: str = ""
    #: Requests in work, messages that wait to leave, records that wait for slurmdbd (sdiag).
    threads: int | None = None
    agent_queue: int | None = None
    dbd_queue: int | None = None
    fallbacks: tuple[str, ...] = ()
    #: What is not as it should be, and since when; the poller fills it in (healer.observations.controller).
    since: dict[Trouble, datetime] = {}


class SlurmCall(StrEnum):
    """What an adapter may be unable to do: the methods of `ports.Scheduler` that change or ask something."""

    snapshot = "snapshot"
    reserved = "reserved"
    node = "node"
    job = "job"
    jobs_on = "jobs_on"
    controller = "controller"
    topology = "topology"
    drain = "drain"
    undrain = "undrain"
    resume = "resume"
    down = "down"
    reboot = "reboot"
    cancel_reboot = "cancel_reboot"
    annotate = "annotate"
    reserve = "reserve"
    change_reservation = "change_reservation"
    unreserve = "unreserve"
    requeue = "requeue"
    revive = "revive"
    start_now = "start_now"
    hold = "hold"
    release = "release"
    exclude = "exclude"
    signal = "signal"
    notify = "notify"
    remark = "remark"
    submit = "submit"
    cancel = "cancel"


#: States that tell of nothing but work.
_PLAIN = frozenset({("IDLE",), ("ALLOCATED",), ("MIXED",)})


class SlurmSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The whole cluster at `taken_at`. `nodes`, `jobs` and `reservations` by name and id."""

    cluster: str
    taken_at: datetime
    nodes: Mapping[str, SlurmNode] = {}
    jobs: Mapping[str, SlurmJob] = {}
    reservations: Mapping[str, Reservation] = {}

    @property
    def gpu_nodes(self) -> Sequence[SlurmNode]:
        """What caps and the floor count; every node where Slurm names no GPUs at all."""
        return _counted(_Same(self.nodes))

    @property
    def held_nodes(self) -> Sequence[SlurmNode]:
        """Those that somebody keeps out and says why, in the order of `nodes`."""
        return _held(_Same(self.nodes))

    @property
    def odd_nodes(self) -> Sequence[SlurmNode]:
        """Those of which Slurm shows more than that they are idle or at work: mostly a few of thousands."""
        return _odd(_Same(self.nodes))

    def jobs_on(self, node: str) -> list[SlurmJob]:
        """Jobs that hold the node, in the order of `jobs`."""
        return list(_by_node(_Same(self.jobs)).get(node, ()))

    def failed_on(self, node: str) -> list[SlurmJob]:
        """Jobs that ended FAILED or NODE_FAIL there, as long as slurmctld knows them (MinJobAge)."""
        return list(_failed_by_node(_Same(self.jobs)).get(node, ()))

    def waiting_in(self, partition: str) -> list[SlurmJob]:
        """Jobs that wait in the partition, in the order of `jobs`."""
        return list(_waiting_by_partition(_Same(self.jobs)).get(partition, ()))


class _Same(Generic[T]):
    """A mapping as itself: equal to no other one, whatever it holds."""

    def __init__(self, rows: Mapping[str, T]) -> None:
        self.rows = rows

    def __hash__(self) -> int:
        return id(self.rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.rows is other.rows


# Each walk asks, and a walk for which nothing came must not look at a thousand nodes.
@lru_cache(maxsize=4)
def _counted(same: _Same[SlurmNode]) -> Sequence[SlurmNode]:
    with_gpus = tuple(node for node in same.rows.values() if node.gpus > 0)
    return with_gpus or tuple(same.rows.values())


@lru_cache(maxsize=4)
def _odd(same: _Same[SlurmNode]) -> Sequence[SlurmNode]:
    return tuple(node for node in same.rows.values() if node.state not in _PLAIN)


@lru_cache(maxsize=4)
def _held(same: _Same[SlurmNode]) -> Sequence[SlurmNode]:
    return tuple(node for node in _odd(same) if node.reason and node.held)


# A storm asks for the jobs of a thousand nodes: reading all jobs for each took minutes. By the mapping and
# not by the snapshot, because an unchanged picture is a new snapshot every two seconds with the same jobs.
@lru_cache(maxsize=4)
def _by_node(same: _Same[SlurmJob]) -> dict[str, list[SlurmJob]]:
    return _placed(job for job in same.rows.values() if job.active)


@lru_cache(maxsize=4)
def _failed_by_node(same: _Same[SlurmJob]) -> dict[str, list[SlurmJob]]:
    return _placed(job for job in same.rows.values() if job.crashed)


@lru_cache(maxsize=4)
def _waiting_by_partition(same: _Same[SlurmJob]) -> dict[str, list[SlurmJob]]:
    found: dict[str, list[SlurmJob]] = {}
    for job in same.rows.values():
        if job.state == "PENDING" and not job.active:
            for partition in job.partition.split(","):
                found.setdefault(partition, []).append(job)
    return found


def _placed(jobs: Iterable[SlurmJob]) -> dict[str, list[SlurmJob]]:
    found: dict[str, list[SlurmJob]] = {}
    for job in jobs:
        for node in dict.fromkeys(job.nodes):
            found.setdefault(node, []).append(job)
    return found
