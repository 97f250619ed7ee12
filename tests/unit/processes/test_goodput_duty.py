"""The duty that follows lives of jobs and their steps for the goodput ledger."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np

from healer.model import SlurmJob, SlurmNode, SlurmSnapshot
from healer.model.goodput import HourSpent, LifeSeen, Stretch
from healer.model.telemetry import StepBatch
from healer.ports.goodput_book import PastJob
from healer.processes.goodput_duty import GoodputDuty

START = datetime(2026, 11, 20, 2, 0, tzinfo=UTC)
NODES = {f"n{at}": SlurmNode(name=f"n{at}", gpus=1) for at in (1, 2, 3)}


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


class Book:
    """Keeps lives and stretches."""

    def __init__(self) -> None:
        self.lives: dict[tuple[str, int], LifeSeen] = {}
        self.stretches: dict[tuple[str, int], list[Stretch]] = {}

    def latest_lives(self, now: datetime) -> list[LifeSeen]:
        return list(self.lives.values())

    def put_lives(self, lives: Sequence[LifeSeen]) -> None:
        self.lives |= {(life.job, life.restart): life for life in lives}

    def last_stretch(self, job: str, restart: int) -> Stretch | None:
        return next(reversed(self.stretches.get((job, restart), [])), None)

    def put_stretches(self, job: str, restart: int, stretches: Sequence[Stretch]) -> None:
        kept = {each.begin: each for each in (*self.stretches.get((job, restart), ()), *stretches)}
        self.stretches[job, restart] = list(kept.values())

    def to_count(self, now: datetime) -> list[str]:
        return []

    def past(self, job: str) -> PastJob:
        raise NotImplementedError

    def put_hours(self, lives: Sequence[LifeSeen], hours: Sequence[HourSpent], now: datetime) -> None: ...


class Site:
    """A job, its duty and its steps; time is set by hand."""

    def __init__(self) -> None:
        self.moment, self.book, self.batches = START, Book(), list[StepBatch]()
        self.duty = GoodputDuty(self.book, self, "c", self)

    def now(self) -> datetime:
        return self.moment

    def job_steps(self, cluster: str, job: str, since: datetime) -> list[StepBatch]:
        return [batch for batch in self.batches if batch.arrived_at > since]

    def steps(self, seconds: float, *nodes: str, restart: int = 0) -> None:
        """One step of each rank, one rank on each of these nodes."""
        count = len(nodes)
        numbers, none = np.arange(count, dtype=np.int32), np.full(count, -1, np.int32)
        unset = np.full(count, np.nan)
        step, ends = np.full(count, int(seconds)), np.full(count, at(seconds).timestamp())
        places = numbers, step, ends, numbers, none, none, np.ones(count)
        batch = StepBatch(
            "c", "7", restart, at(seconds), nodes, *places, unset, unset, unset, unset, unset, unset
        )
        self.batches.append(batch)

    def shows(self, seconds: float, *nodes: str, restarts: int = 0) -> None:
        begun = START if not restarts else at(seconds)
        job = SlurmJob(
            id="7", state="RUNNING", nodes=nodes, submit_at=begun, start_at=begun, restarts=restarts
        )
        self.moment = at(seconds)
        self.duty.follow(SlurmSnapshot(cluster="c", taken_at=at(seconds), nodes=NODES, jobs={"7": job}))

    def held(self) -> list[tuple[datetime, int, int | None]]:
        return [(held.since, held.gpus, held.spare) for held in self.book.lives["7", 0].held]


def test_a_spare_that_has_left_the_job_is_no_spare_of_the_rest() -> None:
    """The job makes no step any more, so nothing new is heard of its spares."""
    site = Site()
    site.shows(10, "n1", "n2", "n3")
    site.steps(20, "n1", "n2")
    site.duty.count()
    site.shows(30, "n1", "n2", "n3")
    assert site.held() == [(at(0), 3, 1)]
    site.shows(45, "n1", "n2")
    site.shows(600, "n1", "n2")
    assert site.held() == [(at(0), 3, 1), (at(45), 2, None)]


def test_the_last_steps_of_a_life_count_though_the_job_was_requeued_meanwhile() -> None:
    site = Site()
    site.shows(10, "n1", "n2")
    site.steps(20, "n1", "n2")
    site.duty.count()
    site.steps(40, "n1", "n2")
    site.shows(45, "n1", "n2", restarts=1)
    site.duty.count()
    assert site.book.stretches["7", 0][-1].end == at(40)


def test_what_is_noted_of_jobs_goes_with_them() -> None:
    """A site has a hundred thousand of them a day."""
    site = Site()
    site.shows(10, "n1", "n2", "n3")
    site.steps(20, "n1", "n2")
    site.duty.count()
    assert site.duty.noted == 2
    site.moment = at(60)
    site.duty.follow(SlurmSnapshot(cluster="c", taken_at=at(60), nodes=NODES, jobs={}))
    site.duty.count()
    assert site.duty.noted == 0
