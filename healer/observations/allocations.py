"""Which nodes jobs hold, and which they left within the last hour. State owned by its caller."""

from collections import deque
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from healer.model import SlurmJob, SlurmSnapshot

ALLOCATION_KEPT = timedelta(hours=1)
#: Errors that follow from the end of a job's work come within this, and are the job's.
AFTER_ITS_END = timedelta(minutes=1)
ENDED_KEPT = 10_000


class Allocation(NamedTuple):
    """The nodes of one life of a job; `leader` is the job, or that of its heterogeneous job."""

    leader: str
    restarts: int
    nodes: tuple[str, ...]
    start_at: datetime | None
    #: Node -> its GPUs, where Slurm reports them.
    gpus: Mapping[str, tuple[int, ...]]

    def holds(self, node: str, gpu: int | None) -> bool:
        return gpu is None or node not in self.gpus or gpu in self.gpus[node]

    def had_begun(self, at: datetime) -> bool:
        return self.start_at is None or self.start_at <= at


class PutBack(NamedTuple):
    """A job that waits again after a life that was seen: its restart count now, the nodes of that life, and
    the begin time that it had when it was first seen to wait."""

    restarts: int
    nodes: tuple[str, ...]
    begin_at: datetime


def _ended_at(before: Allocation, shown: SlurmJob | None, now: datetime) -> datetime:
    """The end that Slurm reports of this life of a job; `now` where it no longer shows it."""
    if shown is None or shown.active or shown.restarts != before.restarts or shown.end_at is None:
        return now
    return min(shown.end_at, now)


class Allocations:
    """Those that Slurm shows now, by job, and those that ended within the last hour."""

    def __init__(self) -> None:
        self.running: dict[str, Allocation] = {}
        #: Jobs that wait again after a life that was seen.
        self.put_back: dict[str, PutBack] = {}
        #: The first seen to have ended first, with the time of its end.
        self._ended: deque[tuple[datetime, Allocation]] = deque(maxlen=ENDED_KEPT)
        #: The same by node, made when the first finding asks: a storm asks with each line.
        self._ended_on: dict[str, list[tuple[datetime, Allocation]]] | None = None
        #: Running allocations by leader; made likewise.
        self._lives: dict[str, list[Allocation]] | None = None

    def note(self, snapshot: SlurmSnapshot) -> None:
        jobs = (job for job in snapshot.jobs.values() if job.state == "RUNNING")
        running = {
            job.id: Allocation(job.leader, job.restarts, job.nodes, job.start_at, job.gpus) for job in jobs
        }
        for job, before in self.running.items():
            if running.get(job) != before:
                self._ended.append((_ended_at(before, snapshot.jobs.get(job), snapshot.taken_at), before))
        while self._ended and snapshot.taken_at - self._ended[0][0] > ALLOCATION_KEPT:
            self._ended.popleft()
        self.running, self._ended_on, self._lives = running, None, None

    def note_put_back(
        self, snapshot: SlurmSnapshot, ran_on: Mapping[str, tuple[int, tuple[str, ...]]]
    ) -> None:
        """`ran_on`: job -> restart count and nodes of the life in which it was last seen to run. The first
        begin time after it is Slurm's own; one that its owner sets comes later."""
        found: dict[str, PutBack] = {}
        for job, (restarts, nodes) in ran_on.items():
            shown = snapshot.jobs[job]
            waits = shown.state == "PENDING" and "COMPLETING" not in shown.flags
            if waits and shown.restarts == restarts + 1 and shown.eligible_at is not None:
                before = self.put_back.get(job)
                kept = before is not None and before.restarts == shown.restarts
                found[job] = (
                    before
                    if before is not None and kept
                    else PutBack(shown.restarts, nodes, shown.eligible_at)
                )
        self.put_back = found

    def ended_on(
        self, node: str, at: datetime, gpu: int | None = None, *, grace: timedelta = AFTER_ITS_END
    ) -> frozenset[str]:
        """Leaders of jobs that are gone, and were on the node (on this GPU of it) then or had left it at most
        `grace` before."""
        if self._ended_on is None:
            self._ended_on = {}
            for ended_at, allocation in self._ended:
                for name in allocation.nodes:
                    self._ended_on.setdefault(name, []).append((ended_at, allocation))
        there = self._ended_on.get(node, ())
        return frozenset(
            allocation.leader
            for ended_at, allocation in there
            if at - ended_at <= grace and allocation.had_begun(at) and allocation.holds(node, gpu)
        )

    def had_begun(self, leader: str, at: datetime) -> bool:
        """Whether a job that runs now ran at that time; True for an unknown job."""
        if self._lives is None:
            self._lives = {}
            for allocation in self.running.values():
                self._lives.setdefault(allocation.leader, []).append(allocation)
        lives = self._lives.get(leader, ())
        return not lives or any(allocation.had_begun(at) for allocation in lives)
