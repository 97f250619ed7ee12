"""The simulated Slurm: nodes, jobs and a scheduler in memory, under the contract suite of the real one.

It does what Slurm 22.05 was seen to do: a flag such as COMPLETING hides a job's base state, a requeued job
waits `cred_expire` + 1 s, a second drain with other words replaces the reason. Time passes only through the
clock: every call first does what was due by then.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from healer.model import SlurmJob, SlurmNode, SlurmSnapshot
from healer.ports import Clock, SchedulerRefused, UnknownNode

#: slurmctld's default for a node that does not answer (SlurmdTimeout, d.7 of the facts).
SLURMD_TIMEOUT_S = 300.0
#: cred_expire's default; a requeued job starts one second later at the earliest.
CRED_EXPIRE_S = 120.0

_UNCHANGED_SPEC = (
    "gpus",
    "gpu_model",
    "driver",
    "rack",
    "switch",
    "pod",
    "partitions",
    "features",
    "boot_id",
)


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


@dataclass
class _Node:
    spec: SlurmNode
    boot_at: datetime
    down: bool = False
    drain: bool = False
    maintenance: bool = False
    silent_since: datetime | None = None
    reason: str = ""
    reason_user: str = ""
    reason_at: datetime | None = None
    free: set[int] = field(default_factory=set)
    #: Ids of jobs that hold the node now.
    jobs: set[str] = field(default_factory=set)

    @property
    def usable(self) -> bool:
        return not (self.down or self.drain or self.maintenance or self.silent_since)


@dataclass
class _Job:
    id: str
    want_nodes: int
    want_gpus: int
    runtime_s: float | None
    requeue: bool
    batch: bool
    name: str
    user: str
    partition: str
    qos: str
    comment: str
    required: tuple[str, ...]
    excluded: tuple[str, ...]
    state: str = "PENDING"
    held: bool = False
    reason: str = "Priority"
    restarts: int = 0
    nodes: tuple[str, ...] = ()
    gpus: dict[str, tuple[int, ...]] = field(default_factory=dict)
    start_at: datetime | None = None
    begin_at: datetime | None = None
    ended_at: datetime | None = None
    completing_until: datetime | None = None


class SimScheduler:
    """`ports.Scheduler` over a cluster in memory, and what a test or a demo needs to drive it.

    `nodes` is a number or the nodes themselves, whose names, GPUs, racks, partitions … are taken over.
    Safe to call from several threads.
    """

    name = "sim"

    def __init__(
        self,
        cluster: str,
        clock: Clock,
        nodes: int | Iterable[SlurmNode] = 32,
        *,
        cred_expire_s: float = CRED_EXPIRE_S,
        completing_s: float = 0.5,
        slurmd_timeout_s: float = SLURMD_TIMEOUT_S,
        min_job_age_s: float = 300.0,
        user: str = "root",
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._user = user
        self._begin_delay = timedelta(seconds=cred_expire_s + 1)
        self._completing = timedelta(seconds=completing_s)
        self._slurmd_timeout = timedelta(seconds=slurmd_timeout_s)
        self._min_job_age = timedelta(seconds=min_job_age_s)
        self._lock = threading.RLock()
        specs = sim_nodes(nodes) if isinstance(nodes, int) else list(nodes)
        self._nodes = {
            spec.name: _Node(
                spec, spec.boot_at or clock.now() - timedelta(days=1), free=set(range(spec.gpus))
            )
            for spec in specs
        }
        if not self._nodes:
            raise ValueError("a cluster needs a node")
        self._jobs: dict[str, _Job] = {}
        self._last_id = 0
        self._changed = True
        self._next_due: datetime | None = None

    # --- ports.Scheduler

    def describe(self) -> str:
        return f"sim, {len(self._nodes)} simulated nodes"

    def cluster_name(self) -> str:
        return self._cluster

    def snapshot(self) -> SlurmSnapshot:
        with self._lock:
            now = self.tick()
            return SlurmSnapshot(
                cluster=self._cluster,
                taken_at=now,
                nodes={name: self._show_node(node) for name, node in self._nodes.items()},
                jobs={job.id: _show_job(job) for job in self._jobs.values()},
            )

    def node(self, name: str) -> SlurmNode:
        with self._lock:
            self.tick()
            return self._show_node(self._node(name))

    def job(self, job: str) -> SlurmJob | None:
        with self._lock:
            self.tick()
            _check_job_id(job)
            found = self._jobs.get(job)
            return _show_job(found) if found else None

    def jobs_on(self, node: str) -> list[SlurmJob]:
        with self._lock:
            self.tick()
            held = self._node(node).jobs
            return [_show_job(job) for job in self._jobs.values() if job.id in held]

    def drain(self, node: str, reason: str) -> None:
        if not reason.strip():
            raise ValueError("a drain needs a reason")
        self._set_drain(node, reason, self._user)

    def resume(self, node: str) -> None:
        with self._lock:
            self.tick()
            found = self._node(node)
            if not (found.drain or found.down):
                raise SchedulerRefused(f"Slurm did not resume {node}: Invalid node state specified", 2180)
            found.drain = found.down = False
            found.reason, found.reason_user, found.reason_at = "", "", None
            self._changed = True
            self.tick()

    def requeue(self, job: str) -> None:
        with self._lock:
            now = self.tick()
            found = self._known(job)
            if found.state not in {"RUNNING", "SUSPENDED"} or found.completing_until:
                return
            if not found.batch:
                raise SchedulerRefused(f"Job {job}: Only batch jobs are accepted or processed", 2039)
            if not found.requeue:
                raise SchedulerRefused(f"Job {job}: Requested operation is presently disabled", 2037)
            self._requeue(found, now)
            self.tick()

    def start_now(self, job: str) -> None:
        with self._lock:
            now = self.tick()
            found = self._known(job)
            if found.completing_until:
                return
            if found.state != "PENDING":
                raise SchedulerRefused(f"Job {job}: Job is no longer pending execution")
            if found.begin_at:
                found.begin_at = min(found.begin_at, now + timedelta(seconds=2))
            self._changed = True

    # --- driving it

    def submit(
        self,
        *,
        nodes: int = 1,
        gpus: int = 8,
        runtime_s: float | None = None,
        requeue: bool = True,
        batch: bool = True,
        held: bool = False,
        name: str = "train",
        user: str = "user",
        partition: str = "train",
        qos: str = "normal",
        comment: str = "",
        required: Iterable[str] = (),
        excluded: Iterable[str] = (),
    ) -> str:
        """A job of `gpus` GPUs on each of `nodes` nodes; without `runtime_s` it runs until told. Its id."""
        with self._lock:
            self.tick()
            self._last_id += 1
            job = _Job(
                id=str(self._last_id), want_nodes=nodes, want_gpus=gpus, runtime_s=runtime_s, requeue=requeue,
                batch=batch, held=held, name=name, user=user, partition=partition, qos=qos, comment=comment,
                required=tuple(required), excluded=tuple(excluded),
            )  # fmt: skip
            self._jobs[job.id] = job
            self._changed = True
            self.tick()
            return job.id

    def cancel(self, job: str) -> None:
        self._end_now(job, "CANCELLED")

    def complete(self, job: str) -> None:
        self._end_now(job, "COMPLETED")

    def fail_job(self, job: str) -> None:
        """The job's own program ends with a failure."""
        self._end_now(job, "FAILED")

    def person_drain(self, name: str, reason: str, user: str) -> None:
        self._set_drain(name, reason, user)

    def set_node_down(self, name: str, reason: str = "Not responding", user: str = "slurm") -> None:
        """State=DOWN: its jobs are requeued, or end as NODE_FAIL where they may not be."""
        with self._lock:
            now = self.tick()
            self._down(self._node(name), reason, user, now)
            self.tick()

    def silence(self, name: str) -> None:
        """The node stops answering; after SlurmdTimeout it is DOWN."""
        with self._lock:
            self._node(name).silent_since = self.tick()
            self._changed = True

    def revive(self, name: str) -> None:
        """The node answers again; DOWN for not responding ends (ReturnToService=1)."""
        with self._lock:
            self.tick()
            node = self._node(name)
            node.silent_since = None
            if node.down and node.reason == "Not responding":
                node.down = False
                node.reason, node.reason_user, node.reason_at = "", "", None
            self._changed = True

    def set_maintenance(self, name: str, on: bool) -> None:
        """A maintenance reservation begins or ends."""
        with self._lock:
            self.tick()
            self._node(name).maintenance = on
            self._changed = True

    def reboot(self, name: str, *, planned: bool = False) -> None:
        """The node boots anew and loses its jobs. Not planned, Slurm sets it DOWN for that."""
        with self._lock:
            now = self.tick()
            node = self._node(name)
            if planned:
                self._drop_jobs(node, now)
            else:
                self._down(node, "Node unexpectedly rebooted", "slurm", now)
            node.boot_at = now
            node.silent_since = None
            self._changed = True

    def tick(self) -> datetime:
        """Does all that is due by now, and starts the jobs that can start. Returns now."""
        with self._lock:
            now = self._clock.now()
            if not self._changed and (self._next_due is None or now < self._next_due):
                return now
            self._silent_nodes(now)
            self._ends(now)
            self._starts(now)
            self._changed = False
            self._next_due = min(self._dues(now), default=None)
            return now

    # --- inside

    def _node(self, name: str) -> _Node:
        node = self._nodes.get(name)
        if node is None:
            raise UnknownNode(f"Slurm has no node {name[:80]!r}.", 2018)
        return node

    def _known(self, job: str) -> _Job:
        _check_job_id(job)
        found = self._jobs.get(job)
        if found is None:
            raise SchedulerRefused(f"Slurm no longer knows job {job}.", 2017)
        return found

    def _set_drain(self, name: str, reason: str, user: str) -> None:
        with self._lock:
            now = self.tick()
            node = self._node(name)
            if node.drain and node.reason == reason:
                return
            node.drain = True
            node.reason, node.reason_user, node.reason_at = reason, user, now.replace(microsecond=0)
            self._changed = True

    def _down(self, node: _Node, reason: str, user: str, now: datetime) -> None:
        node.down = True
        # Slurm itself replaces no reason that somebody gave.
        if user != "slurm" or not node.reason:
            node.reason, node.reason_user, node.reason_at = reason, user, now.replace(microsecond=0)
        self._drop_jobs(node, now)
        self._changed = True

    def _drop_jobs(self, node: _Node, now: datetime) -> None:
        for job_id in sorted(node.jobs, key=int):
            job = self._jobs[job_id]
            if job.completing_until:
                job.completing_until = now
            elif job.requeue and job.batch:
                self._requeue(job, now)
                job.completing_until = now
            else:
                self._end(job, "NODE_FAIL", now)
                job.completing_until = now

    def _requeue(self, job: _Job, now: datetime) -> None:
        job.restarts += 1
        job.state = "PENDING"
        job.reason = "BeginTime"
        job.begin_at = now + self._begin_delay
        job.completing_until = now + self._completing
        self._changed = True

    def _end_now(self, job: str, state: str) -> None:
        with self._lock:
            now = self.tick()
            found = self._known(job)
            if found.completing_until or found.ended_at:
                raise SchedulerRefused(f"Job {job}: Job/step already completing or completed", 2021)
            self._end(found, state, now)
            self.tick()

    def _end(self, job: _Job, state: str, now: datetime) -> None:
        if job.state == "RUNNING":
            job.completing_until = now + self._completing
        job.state = state
        job.reason = ""
        job.ended_at = now
        self._changed = True

    def _silent_nodes(self, now: datetime) -> None:
        for node in self._nodes.values():
            if node.silent_since and not node.down and now - node.silent_since >= self._slurmd_timeout:
                self._down(node, "Not responding", "slurm", now)

    def _ends(self, now: datetime) -> None:
        for job in list(self._jobs.values()):
            if job.state == "RUNNING" and job.runtime_s is not None and job.start_at:
                over = job.start_at + timedelta(seconds=job.runtime_s)
                if over <= now:
                    self._end(job, "COMPLETED", over)
            if job.completing_until and job.completing_until <= now:
                self._free(job)
            elif job.ended_at and not job.completing_until and job.ended_at + self._min_job_age <= now:
                del self._jobs[job.id]

    def _free(self, job: _Job) -> None:
        job.completing_until = None
        for name in job.nodes:
            node = self._nodes[name]
            node.jobs.discard(job.id)
            node.free.update(job.gpus.get(name, ()))
        if job.state == "PENDING":
            job.nodes, job.gpus, job.start_at = (), {}, None

    def _starts(self, now: datetime) -> None:
        """First come, first served; a job that does not fit holds nobody up."""
        waiting = [job for job in self._jobs.values() if job.state == "PENDING" and not job.completing_until]
        if not waiting:
            return
        usable = [node for node in self._nodes.values() if node.usable]
        for job in waiting:
            if job.held:
                job.reason = "JobHeldUser"
            elif job.begin_at and job.begin_at > now:
                job.reason = "BeginTime"
            else:
                self._place(job, usable, now)

    def _place(self, job: _Job, usable: list[_Node], now: datetime) -> None:
        fitting = [
            node
            for node in usable
            if job.partition in node.spec.partitions
            and len(node.free) >= job.want_gpus
            and node.spec.name not in job.excluded
        ]
        names = [node.spec.name for node in fitting]
        if not set(job.required) <= set(names) or len(names) < job.want_nodes:
            job.reason = "Resources"
            return
        rest = [name for name in names if name not in job.required]
        chosen = [*job.required, *rest[: max(0, job.want_nodes - len(job.required))]]
        job.nodes = tuple(sorted(chosen))
        for name in job.nodes:
            node = self._nodes[name]
            job.gpus[name] = tuple(sorted(node.free)[: job.want_gpus])
            node.free.difference_update(job.gpus[name])
            node.jobs.add(job.id)
        job.state, job.reason, job.start_at, job.begin_at = "RUNNING", "", now, None

    def _dues(self, now: datetime) -> list[datetime]:
        """When something happens next by itself."""
        dues: list[datetime] = []
        for job in self._jobs.values():
            if job.completing_until:
                dues.append(job.completing_until)
            elif job.state == "PENDING" and job.begin_at and job.begin_at > now:
                dues.append(job.begin_at)
            elif job.state == "RUNNING" and job.runtime_s is not None and job.start_at:
                dues.append(job.start_at + timedelta(seconds=job.runtime_s))
            elif job.ended_at:
                dues.append(job.ended_at + self._min_job_age)
        silent = (node.silent_since for node in self._nodes.values() if node.silent_since and not node.down)
        return dues + [since + self._slurmd_timeout for since in silent]

    def _show_node(self, node: _Node) -> SlurmNode:
        running = [job for job in node.jobs if not self._jobs[job].completing_until]
        if node.down:
            base = "DOWN"
        elif running:
            base = "MIXED" if node.free or len(running) < len(node.jobs) else "ALLOCATED"
        else:
            base = "IDLE"
        flags = (
            ("COMPLETING", len(running) < len(node.jobs)),
            ("DRAIN", node.drain),
            ("MAINTENANCE", node.maintenance),
            ("NOT_RESPONDING", node.silent_since is not None),
        )
        return SlurmNode(
            name=node.spec.name,
            state=(base, *(flag for flag, on in flags if on)),
            reason=node.reason,
            reason_user=node.reason_user,
            reason_at=node.reason_at,
            boot_at=node.boot_at,
            **{name: getattr(node.spec, name) for name in _UNCHANGED_SPEC},
        )


def _show_job(job: _Job) -> SlurmJob:
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
        partition=job.partition,
        qos=job.qos,
        comment=job.comment,
        reason="" if completing else job.reason,
        start_at=job.start_at or job.begin_at,
        excluded=job.excluded,
    )


def _check_job_id(job: str) -> None:
    if not job.isdecimal():
        raise SchedulerRefused(f"{job[:80]!r} is not the id of a Slurm job.", 2017)
