"""The scheduler's goodput ledger: follows the lives of jobs and their steps, and counts their hours."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol

from msgspec.structs import replace

from healer.incidents.goodput_partition import by_hour, harms_of, partition
from healer.model import SlurmSnapshot
from healer.model.goodput import JobLife, LifeSeen
from healer.model.telemetry import StepBatch
from healer.observations.job_lives import changed_lives, spare_gpus, with_spares
from healer.observations.step_stretches import stretches
from healer.ports.clock import Clock
from healer.ports.goodput_book import GoodputBook, PastJob

#: Slurm forgets a job MinJobAge (300 s) after its end.
FOLLOW_S = 15.0
COUNT_S = 60.0
#: How far back step times are read after a start; samples are kept longer.
_BACK = timedelta(minutes=30)
#: And from a life that ended this long ago.
_LATE = timedelta(minutes=10)


class StepReads(Protocol):
    def job_steps(self, cluster: str, job: str, since: datetime) -> list[StepBatch]: ...


class GoodputDuty:
    """`follow` and `count` run in separate threads: only `follow` writes lives, `count` reads steps."""

    def __init__(self, book: GoodputBook, steps: StepReads, cluster: str, clock: Clock) -> None:
        self._book, self._steps, self._cluster, self._clock = book, steps, cluster, clock
        #: The newest life of each job that Slurm shows; None: not read yet.
        self._lives: dict[str, LifeSeen] | None = None
        #: Their earlier lives that ended recently: their last steps may not have been read yet.
        self._requeued: list[LifeSeen] = []
        #: The spare GPUs of a life, and the nodes of which that was said.
        self._spares: dict[tuple[str, int], tuple[tuple[str, ...], int]] = {}
        self._read: dict[tuple[str, int], datetime] = {}
        self._shown: SlurmSnapshot | None = None

    @property
    def noted(self) -> int:
        """Of how many lives the last steps, and the spares, are noted."""
        return len(self._read) + len(self._spares)

    def follow(self, snapshot: SlurmSnapshot | None) -> None:
        """Writes the lives that changed."""
        if snapshot is None:
            return
        if self._lives is None:
            self._lives = {life.job: life for life in self._book.latest_lives(snapshot.taken_at)}
        changed = {(life.job, life.restart): life for life in changed_lives(snapshot, self._lives)}
        for life in self._lives.values():
            key, job = (life.job, life.restart), snapshot.jobs.get(life.job)
            nodes, spare = self._spares.get(key, ((), 0))
            if job is not None and nodes and job.nodes == nodes:
                now = with_spares(changed.get(key, life), spare, snapshot.taken_at)
                if now != life:
                    changed[key] = now
        if changed:
            self._book.put_lives(list(changed.values()))
        newest = sorted(changed.values(), key=lambda life: (life.queued_at, life.restart))
        lives = self._lives | {life.job: life for life in newest}
        before = (life for life in self._lives.values() if lives[life.job].restart != life.restart)
        ended = (changed.get((life.job, life.restart), life) for life in before)
        self._requeued = [life for life in (*self._requeued, *ended) if self._still_reports(life)]
        at = snapshot.taken_at
        self._lives = {
            job: life if life.ended_at else replace(life, seen_at=at)
            for job, life in lives.items()
            if job in snapshot.jobs
        }
        self._shown = snapshot

    def count(self) -> None:
        """Keeps new steps of running jobs, then counts the hours of those that are due."""
        followed = (*self._requeued, *(self._lives or {}).values())
        for life in followed:
            if life.started_at is not None and self._still_reports(life):
                self._take_steps(life)
        keys = {(life.job, life.restart) for life in followed}
        self._read = {key: at for key, at in self._read.items() if key in keys}
        self._spares = {key: spare for key, spare in self._spares.items() if key in keys}
        now = self._clock.now()
        for job in self._book.to_count(now):
            past = self._book.past(job)
            if past.lives:
                self._book.put_hours(past.lives, by_hour(partition(lives_of(past), now)), now)

    def _still_reports(self, life: LifeSeen) -> bool:
        """The last steps of a life arrive after its end."""
        return life.ended_at is None or self._clock.now() - life.ended_at < _LATE

    def _take_steps(self, life: LifeSeen) -> None:
        key, now = (life.job, life.restart), self._clock.now()
        batches = self._steps.job_steps(self._cluster, life.job, self._read.get(key, now - _BACK))
        its = [batch for batch in batches if batch.restart == life.restart and batch.doing is None]
        if not its:
            return
        self._read[key] = max(batch.arrived_at for batch in its)
        last = self._book.last_stretch(*key)
        self._book.put_stretches(*key, stretches(last, its))
        job = self._shown.jobs.get(life.job) if self._shown is not None else None
        if job is not None and self._shown is not None and job.restarts == life.restart:
            spare = spare_gpus(job, self._shown.nodes, its)
            if spare is not None:
                self._spares[key] = job.nodes, spare


def lives_of(past: PastJob) -> Sequence[JobLife]:
    """What is kept of a job, as the partition takes it."""
    return [
        JobLife(
            restart=life.restart,
            queued_at=life.queued_at,
            started_at=life.started_at,
            ended_at=life.ended_at,
            state=life.state,
            held=life.held,
            stretches=tuple(past.stretches.get(life.restart, ())),
            saved=tuple(past.saved.get(life.restart, ())),
            harms=harms_of(
                life.reports_as,
                life.restart,
                past.incidents,
                is_cut=life.ended_at is not None and life.state != "COMPLETED",
            ),
        )
        for life in past.lives
    ]
