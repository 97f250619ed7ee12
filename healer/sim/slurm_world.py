"""Nodes of the simulated Slurm, how it shows them, and its events: jobs start and end, nodes stop responding
and boot.

Not thread-safe; `sim_slurm.SimScheduler` is.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec

from healer.model import Reservation, SlurmJob, SlurmNode
from healer.ports.scheduling import SchedulerRefused, UnknownNode
from healer.sim.slurm_jobs import Job, find_job, show_job, waits_for
from healer.text import quoted, say


class SlurmTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Slurm's own waits, in seconds. `cred_expire_s`: a requeued job starts one second after it at the
    earliest; `slurmd_timeout_s`: a node that does not respond is DOWN after it (d.7 of the facts).
    `in_order`: a job that waits for nodes keeps those behind it waiting, except jobs in a reservation.
    `resume_timeout_s`: ResumeTimeout, after which Slurm no longer waits for a reboot; `returns`: a node that
    is DOWN is in service once it registers (ReturnToService=2)."""

    cred_expire_s: float = 120.0
    completing_s: float = 0.5
    slurmd_timeout_s: float = 300.0
    min_job_age_s: float = 300.0
    boot_s: float = 30.0
    resume_timeout_s: float = 86_400.0
    returns: bool = False
    in_order: bool = False


#: Fields that a node takes over from its specification.
_UNCHANGED_SPEC = (
    "gpus", "gpu_model", "driver", "rack", "switch", "switches", "pod", "partitions", "features", "boot_id",
)  # fmt: skip


_SHOWN_OF_NODE = ("reason", "reason_user", "reason_at", "boot_at", "comment", "extra")
#: States without flags.
_PLAIN = {base: (base,) for base in ("DOWN", "MIXED", "ALLOCATED", "IDLE")}


def sim_nodes(count: int, *, gpus: int = 8) -> list[SlurmNode]:
    """`gpu0001` … with H100 in the partition `train`."""
    h100 = SlurmNode(name="", gpus=gpus, gpu_model="h100", partitions=("train",), features=("h100",))
    return [msgspec.structs.replace(h100, name=f"gpu{number:04d}") for number in range(1, count + 1)]


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
    #: A reboot was asked for; it begins when the node is idle and ends at `boots_at`. Slurm may have given
    #: it up before.
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
        ("REBOOT_ISSUED", node.reboot and node.boots_at is not None),
    )
    return (base, *(flag for flag, on in flags if on))


# Wide: nodes, jobs and reservations of a cluster affect each other: a node that goes DOWN ends jobs.
class World:
    """Nodes, jobs and reservations. A caller that changes one sets `changed`; `pass_to` does what is due."""

    def __init__(self, specs: Iterable[SlurmNode], now: datetime, times: SlurmTimes) -> None:
        self._begin_delay = timedelta(seconds=times.cred_expire_s + 1)
        self._completing = timedelta(seconds=times.completing_s)
        self._slurmd_timeout = timedelta(seconds=times.slurmd_timeout_s)
        self._min_job_age = timedelta(seconds=times.min_job_age_s)
        self._boot = timedelta(seconds=times.boot_s)
        self._resume_timeout, self._returns = timedelta(seconds=times.resume_timeout_s), times.returns
        self._in_order = times.in_order
        self.nodes = {
            spec.name: Node(spec, spec.boot_at or now - timedelta(days=1), free=set(range(spec.gpus)))
            for spec in specs
        }
        if not self.nodes:
            raise ValueError("a cluster needs a node")
        self.jobs: dict[str, Job] = {}
        self.reservations: dict[str, Reservation] = {}
        self.changed = True
        #: Time of the next event, as far as known; None if there is none.
        self.next_due: datetime | None = None
        #: The last snapshot, None after a change; and the traits that each node was shown from.
        self._shown: tuple[dict[str, SlurmNode], dict[str, SlurmJob]] | None = None
        self._traits: dict[str, Traits] = {}
        self._shown_nodes: dict[str, SlurmNode] = {}

    # --- lookups

    def node(self, name: str) -> Node:
        node = self.nodes.get(name)
        if node is None:
            raise UnknownNode(quoted(f"Slurm has no node {name[:80]!r}."), 2018)
        return node

    def named(self, nodes: str | Sequence[str]) -> list[Node]:
        """All of these nodes. Raises UnknownNode before anything is done to the others."""
        found = [self.node(name) for name in ([nodes] if isinstance(nodes, str) else nodes)]
        if not found:
            raise ValueError("no node is named")
        return found

    def reservation(self, name: str) -> Reservation:
        found = self.reservations.get(name)
        if found is None:
            raise SchedulerRefused(
                quoted(f"Slurm has no reservation {name[:80]!r}: Invalid reservation"), 2053
            )
        return found

    def job(self, job: str) -> Job:
        found = find_job(self.jobs, job)
        if found is None:
            raise SchedulerRefused(say("slurm.no_job", job=job), 2017)
        return found

    def parts(self, job: Job) -> list[Job]:
        """The job, or all components of its heterogeneous job, the leader first."""
        if not job.het_job:
            return [job]
        return [other for other in self.jobs.values() if other.het_job == job.het_job]

    def held_for(self, now: datetime) -> Mapping[str, list[Reservation]]:
        """Node -> the reservations that hold it now."""
        found: dict[str, list[Reservation]] = {}
        for reservation in self.reservations.values():
            if reservation.since is None or reservation.since <= now:
                for name in reservation.nodes:
                    found.setdefault(name, []).append(reservation)
        return found

    def show(self, node: Node, now: datetime) -> SlurmNode:
        held = self.held_for(now).get(node.spec.name, ())
        return show_node(node, sum(self.jobs[job].completing_until is not None for job in node.jobs), held)

    def show_all(self, now: datetime) -> tuple[dict[str, SlurmNode], dict[str, SlurmJob]]:
        """Returns the same objects while nothing changes: a fleet of thousands is read each second, and
        little of it changes."""
        if self._shown is None:
            self._shown = self._show_nodes(now), {job.id: show_job(job) for job in self.jobs.values()}
        return self._shown

    def _show_nodes(self, now: datetime) -> dict[str, SlurmNode]:
        held = self.held_for(now)
        completing = Counter(
            name for job in self.jobs.values() if job.completing_until is not None for name in job.nodes
        )
        last_traits, changed = self._traits, dict[str, SlurmNode]()
        for name, node in self.nodes.items():
            many = completing[name] if node.jobs else 0
            traits = traits_of(node, many, kept := held.get(name, ()))
            if last_traits.get(name) != traits:
                last_traits[name] = traits
                changed[name] = show_node(node, many, kept)
        if changed or not self._shown_nodes:
            self._shown_nodes = self._shown_nodes | changed
        return self._shown_nodes

    # --- events of nodes

    def down(self, node: Node, reason: str, user: str, now: datetime) -> None:
        """State=DOWN: its jobs are requeued, or end as NODE_FAIL where they may not be."""
        node.down, node.lost = True, False
        # Slurm does not replace a given reason.
        if user != "slurm" or not node.reason:
            node.because(reason, user, now)
        self.drop_jobs(node, now)

    def drop_jobs(self, node: Node, now: datetime) -> None:
        for job_id in sorted(node.jobs, key=int):
            job = self.jobs[job_id]
            if job.completing_until:
                job.completing_until = now
            elif job.no_kill and len(job.nodes) > 1:
                self.shrink(job, node)
            else:
                self._lose(job, node, now)

    def shrink(self, job: Job, node: Node) -> None:
        """The job continues without the node; its next life asks for as many nodes as before."""
        job.nodes = tuple(name for name in job.nodes if name != node.spec.name)
        node.free.update(job.gpus.pop(node.spec.name, ()))
        node.jobs.discard(job.id)
        node.exclusive.discard(job.id)

    def _lose(self, job: Job, node: Node, now: datetime) -> None:
        for part in self.parts(job):
            if not part.running:
                continue
            part.failed_node = node.spec.name
            if part.requeue and part.batch:
                self.put_back(part, now)
            else:
                self.end(part, "NODE_FAIL", now)
            part.completing_until = now

    # --- events of jobs

    def put_back(self, job: Job, now: datetime) -> None:
        """Requeues the job: it is pending until the begin time that a requeue sets."""
        running, completing = job.running, job.completing_until
        job.restarts += 1
        job.state, job.reason, job.why = "PENDING", "BeginTime", ""
        job.submit_at, job.begin_at = now, now + self._begin_delay
        job.ended_at = job.exit_code = None
        if running:
            job.completing_until = now + self._completing
        elif not completing:
            self._free(job)

    def fail_launch(self, job: Job, node: Node, now: datetime) -> None:
        """The Prolog fails: Slurm drains the node, requeues the job and holds it (d.6)."""
        node.drain = True
        node.because("Prolog error", "root", now)
        if job.requeue:
            self.put_back(job, now)
            job.hold("admin", why="launch failed requeued held")
            job.reason = "JobHeldUser"
        else:
            self.end(job, "CANCELLED", now)

    def end(self, job: Job, state: str, now: datetime, exit_code: str = "0") -> None:
        if job.state == "RUNNING":
            job.completing_until = now + self._completing
        job.state, job.reason, job.ended_at, job.exit_code = state, "", now, exit_code
        self.changed = True

    def _free(self, job: Job) -> None:
        job.completing_until = None
        for name in job.nodes:
            node = self.nodes[name]
            node.jobs.discard(job.id)
            node.exclusive.discard(job.id)
            node.free.update(job.gpus.get(name, ()))
        if job.state == "PENDING":
            job.nodes, job.gpus, job.start_at = (), {}, None

    # --- time

    def pass_to(self, now: datetime) -> None:
        """Does what is due, and starts the jobs that can start."""
        if not self.changed and (self.next_due is None or now < self.next_due):
            return
        self._shown = None
        self._silent_nodes(now)
        self._ends(now)
        self._boots(now)
        self._reservations(now)
        self._starts(now)
        self.changed = False
        self.next_due = min(self._dues(now), default=None)

    def _silent_nodes(self, now: datetime) -> None:
        for node in self.nodes.values():
            if node.silent_since and not node.down and now - node.silent_since >= self._slurmd_timeout:
                self.down(node, "Not responding", "slurm", now)
                node.lost = True

    def _ends(self, now: datetime) -> None:
        for job in list(self.jobs.values()):
            if job.state == "RUNNING" and job.runtime_s is not None and job.start_at:
                over = job.start_at + timedelta(seconds=job.runtime_s)
                if over <= now:
                    self.end(job, "COMPLETED", over)
            if job.completing_until and job.completing_until <= now and not self._stuck(job):
                self._free(job)
            elif job.ended_at and not job.completing_until and job.ended_at + self._min_job_age <= now:
                del self.jobs[job.id]

    def _stuck(self, job: Job) -> bool:
        return any(self.nodes[name].stuck and not self.nodes[name].down for name in job.nodes)

    def _boots(self, now: datetime) -> None:
        """A node reboots when it is idle. Afterwards it is DOWN and no longer drained: nextstate replaces
        both (d.8, 7; seen on 22.05 and 24.11)."""
        for node in self.nodes.values():
            if node.reboot and node.boots_at is None and not node.jobs:
                node.boots_at = now + self._boot
                node.down = True
                node.append("reboot issued", now)
            if node.reboot and node.boots_at and self._given_up_at(node.boots_at) <= now:
                node.drain = node.reboot = node.reboot_drained = False
                node.append("reboot timed out", now)
            if node.boots_at and node.boots_at <= now:
                node.boot_at, node.silent_since, node.boots_at = node.boots_at, None, None
                self._register(node, now)

    def _given_up_at(self, boots_at: datetime) -> datetime:
        return boots_at - self._boot + self._resume_timeout

    def _register(self, node: Node, now: datetime) -> None:
        """After a boot. Slurm drops the drain of a reboot that it waited for, and of one that it gave up."""
        if node.reboot:
            node.drain = node.reboot = node.reboot_drained = False
            node.append("reboot complete", now)
        elif self._returns:
            node.down = False
            if not node.drain:
                node.forget_reason()

    def _reservations(self, now: datetime) -> None:
        for name, reservation in list(self.reservations.items()):
            if reservation.until and reservation.until <= now:
                del self.reservations[name]

    def _starts(self, now: datetime) -> None:
        """Starts pending jobs in order of nice value and submission. One that does not fit blocks no other,
        unless they start in order."""
        waiting = [job for job in self.jobs.values() if job.state == "PENDING" and not job.completing_until]
        waiting.sort(key=lambda job: job.nice)
        if not waiting:
            return
        usable = [node for node in self.nodes.values() if node.usable]
        held = self.held_for(now)
        waits = False
        for job in waiting:
            if job.held_by:
                continue
            if job.begin_at and job.begin_at > now:
                job.reason = "BeginTime"
            elif job.dependency and waits_for(self.jobs, job):
                job.reason = "Dependency"
            elif waits and not job.reservation:
                job.reason = "Priority"
            elif not job.het_offset:
                starts = self._place(self.parts(job), usable, held, now)
                waits = self._in_order and not starts

    def _place(
        self, parts: list[Job], usable: list[Node], held: Mapping[str, list[Reservation]], now: datetime
    ) -> bool:
        """Starts all parts at once, or none. Returns whether they started."""
        found: dict[str, list[str]] = {}
        taken: set[str] = set()
        for job in parts:
            names = [
                node.spec.name
                for node in usable
                if node.spec.name not in taken and self._fits(job, node, held.get(node.spec.name, []))
            ]
            if not set(job.required) <= set(names) or len(names) < job.want_nodes:
                for part in parts:
                    part.reason = "Resources"
                return False
            rest = [name for name in names if name not in job.required]
            found[job.id] = [*job.required, *rest[: max(0, job.want_nodes - len(job.required))]]
            taken.update(found[job.id] if len(parts) > 1 else ())
        for job in parts:
            self._start(job, found[job.id], now)
        return True

    def _fits(self, job: Job, node: Node, held: list[Reservation]) -> bool:
        return (
            job.partition in node.spec.partitions
            and len(node.free) >= job.want_gpus
            and not node.exclusive
            and not (job.exclusive and node.jobs)
            and node.spec.name not in job.excluded
            and bool(held or not job.reservation or self._flexible(job.reservation))
            and self._is_admitted(job, held)
        )

    def _flexible(self, reservation: str) -> bool:
        """Whether its jobs may use nodes outside of it too."""
        found = self.reservations.get(reservation)
        return found is not None and "FLEX" in found.flags

    def _is_admitted(self, job: Job, held: list[Reservation]) -> bool:
        """Whether reservations admit the job. A job in a MAINT reservation ignores others on the node."""
        wanted = next((reservation for reservation in held if reservation.name == job.reservation), None)
        return wanted is not None and (wanted.maintenance or len(held) == 1) if held else True

    def _start(self, job: Job, names: list[str], now: datetime) -> None:
        job.nodes = tuple(sorted(names))
        job.gpus = {}
        for name in job.nodes:
            node = self.nodes[name]
            job.gpus[name] = tuple(sorted(node.free)[: job.want_gpus])
            node.free.difference_update(job.gpus[name])
            node.jobs.add(job.id)
            if job.exclusive:
                node.exclusive.add(job.id)
        job.state, job.reason, job.start_at, job.begin_at = "RUNNING", "", now, None
        for name in job.nodes:
            if self.nodes[name].launch_fails:
                self.fail_launch(job, self.nodes[name], now)
                return

    def _dues(self, now: datetime) -> list[datetime]:
        """Times of future events."""
        dues: list[datetime] = []
        for job in self.jobs.values():
            if job.completing_until:
                dues.append(job.completing_until)
            elif job.state == "PENDING" and job.begin_at and job.begin_at > now:
                dues.append(job.begin_at)
            elif job.state == "RUNNING" and job.runtime_s is not None and job.start_at:
                dues.append(job.start_at + timedelta(seconds=job.runtime_s))
            elif job.ended_at:
                dues.append(job.ended_at + self._min_job_age)
        for node in self.nodes.values():
            if node.boots_at:
                dues += [node.boots_at, *([self._given_up_at(node.boots_at)] if node.reboot else [])]
        for reservation in self.reservations.values():
            dues += [at for at in (reservation.since, reservation.until) if at and at > now]
        silent = (node.silent_since for node in self.nodes.values() if node.silent_since and not node.down)
        return dues + [since + self._slurmd_timeout for since in silent]
