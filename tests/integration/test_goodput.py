"""The goodput ledger on a real PostgreSQL: from Slurm's pictures and step times to sums."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from healer.adapters.postgres.goodput_rows import PostgresGoodput, goodput_buckets, goodput_sums, job_goodput
from healer.adapters.postgres.retention import EVENTS, tidy
from healer.adapters.postgres.tables import goodput, incidents, job_lives, job_stretches
from healer.model import HitBasis, JobHit, Review, SlurmJob, SlurmNode, SlurmSnapshot
from healer.model.goodput import HOURS_KEPT, Spent
from healer.model.telemetry import StepBatch
from healer.ports.answers import Buckets
from healer.ports.goodput_book import GoodputBy
from healer.processes.goodput_duty import GoodputDuty
from tests.support.api import incident as an_incident
from tests.support.api import save_incident

START = datetime(2026, 11, 20, 2, 0, tzinfo=UTC)
CLUSTER = "pod1"
NODES = {f"n{at}": SlurmNode(name=f"n{at}", gpus=8, rack=f"r{at}") for at in (1, 2)}


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


class Clock:
    """Moved by hand."""

    moment = START

    def now(self) -> datetime:
        return self.moment


class Steps:
    """Step times of one job, as they are read from the samples."""

    def __init__(self) -> None:
        self.batches: list[StepBatch] = []

    def job_steps(self, cluster: str, job: str, since: datetime) -> list[StepBatch]:
        return [batch for batch in self.batches if batch.job == job and batch.arrived_at > since]

    def send(self, minutes: float, first: int, count: int, step_s: float = 30.0) -> None:
        """`count` steps that end at this minute."""
        ends = at(minutes).timestamp() - step_s * np.arange(count - 1, -1, -1)
        none, unset = np.full(count, -1, np.int32), np.full(count, np.nan)
        numbers, zero = np.arange(first, first + count), np.zeros(count, np.int32)
        sent = CLUSTER, "7", 0, at(minutes), (), zero, numbers, ends, none, none, none
        self.batches.append(StepBatch(*sent, np.full(count, step_s), *(unset,) * 6))


def job(state: str = "RUNNING", **fields: object) -> SlurmJob:
    given: dict[str, object] = {
        "nodes": ("n1", "n2"), "submit_at": at(0), "start_at": at(10), "user": "ann", "account": "lab",
        "partition": "train",
    }  # fmt: skip
    return SlurmJob(id="7", state=state, **(given | fields))  # type: ignore[arg-type]


@pytest.fixture
def ran(fresh_database: sa.Engine) -> Callable[[], GoodputDuty]:
    """The job waited 10 min and ran 60, of which it made steps for 45; the duty ran each minute."""
    clock, steps = Clock(), Steps()
    duty = GoodputDuty(PostgresGoodput(fresh_database, CLUSTER), steps, CLUSTER, clock)
    for minute in range(11, 73):
        clock.moment = at(minute)
        shown = job() if minute < 70 else job("COMPLETED", end_at=at(70))
        duty.follow(SlurmSnapshot(cluster=CLUSTER, taken_at=at(minute), nodes=NODES, jobs={"7": shown}))
        if 16 <= minute <= 60:
            steps.send(minute, 2 * (minute - 15) - 1, 2)
        duty.count()
    return lambda: duty


def hours(engine: sa.Engine, by: GoodputBy, until: float = 180) -> dict[tuple[str, str], float]:
    with engine.connect() as conn:
        found = goodput_sums(conn, [CLUSTER], START, at(until), by)
    return {(each.name, each.spent.value): round(each.gpu_hours, 4) for each in found}


EXPECTED = {"queued": 16 / 6, "starting": 16 * 5 / 60, "productive": 12.0, "unknown": 16 / 6}


def test_hours_are_counted_by_class_and_sum_to_the_allocation(fresh_database: sa.Engine, ran: object) -> None:
    for by, name in ((GoodputBy.user, "ann"), (GoodputBy.account, "lab"), (GoodputBy.partition, "train"),
                     (GoodputBy.job, "7"), (GoodputBy.month, "2026-11")):  # fmt: skip
        assert hours(fresh_database, by) == {
            (name, spent): pytest.approx(value, abs=1e-3) for spent, value in EXPECTED.items()
        }, by


def test_components_of_a_heterogeneous_job_share_its_steps_and_incidents(fresh_database: sa.Engine) -> None:
    """Every rank reports under the leader's id, and so does an incident name the job."""
    clock, steps = Clock(), Steps()
    duty = GoodputDuty(PostgresGoodput(fresh_database, CLUSTER), steps, CLUSTER, clock)
    leader = job(nodes=("n1",), het_job="7", het_offset=0)
    parts = leader, replace(leader, id="8", nodes=("n2",), het_offset=1)
    for minute in (11, 40, 71):
        over = {"state": "FAILED", "end_at": at(70)} if minute > 70 else {}
        steps.send(minute - 1, 2 * minute - 21, 2)
        follow(duty, clock, minute, *(replace(part, **over) for part in parts))
        duty.count()
    found = hours(fresh_database, GoodputBy.job)
    its = {name: {spent: value for (of, spent), value in found.items() if of == name} for name in ("7", "8")}
    assert its["7"] == its["8"] and its["8"]["unsaved"] > 0
    hit = JobHit(job="7", basis=HitBasis.runs_on, started_at=at(10))
    hit_by(fresh_database, hit, opened=at(45), closed=at(60), updated=at(75))
    clock.moment = at(110)
    duty.count()
    found = hours(fresh_database, GoodputBy.job)
    assert found["7", "hung"] == found["8", "hung"] == pytest.approx(8 * 21 / 60)  # since the last step


def test_a_rack_has_its_share_and_the_queue_has_none(fresh_database: sa.Engine, ran: object) -> None:
    found = hours(fresh_database, GoodputBy.rack)
    assert found["r1", "productive"] == found["r2", "productive"] == pytest.approx(6.0, abs=1e-3)
    assert found["", "queued"] == pytest.approx(16 / 6, abs=1e-3)


def test_the_chart_leaves_out_the_queue(fresh_database: sa.Engine, ran: object) -> None:
    with fresh_database.connect() as conn:
        found = goodput_buckets(conn, CLUSTER, Buckets(start=START, step_s=3600, count=2))
        its = job_goodput(conn, CLUSTER, "7")
    assert sum(figure.value for figure in found) == pytest.approx(16.0, abs=1e-3)
    assert sum(each.gpu_hours for each in its if each.spent is Spent.queued) == pytest.approx(
        16 / 6, abs=1e-3
    )


def test_a_restarted_scheduler_counts_the_same(
    fresh_database: sa.Engine, ran: Callable[[], GoodputDuty]
) -> None:
    before = hours(fresh_database, GoodputBy.job)
    clock = Clock()
    clock.moment = at(110)
    again = GoodputDuty(PostgresGoodput(fresh_database, CLUSTER), Steps(), CLUSTER, clock)
    shown = {"7": job("COMPLETED", end_at=at(70))}
    again.follow(SlurmSnapshot(cluster=CLUSTER, taken_at=at(110), nodes=NODES, jobs=shown))
    again.count()
    assert hours(fresh_database, GoodputBy.job) == before


def test_a_day_is_one_of_the_clock_that_lives_are_dated_by(fresh_database: sa.Engine, ran: object) -> None:
    """A life that ended an hour ago is known after a restart, wherever the database's clock is."""
    book = PostgresGoodput(fresh_database, CLUSTER)
    assert [life.ended_at for life in book.latest_lives(at(130))] == [at(70)]
    assert book.latest_lives(at(71 + 24 * 60)) == []


def follow(duty: GoodputDuty, clock: Clock, minutes: float, *jobs: SlurmJob) -> None:
    clock.moment = at(minutes)
    shown = {each.id: each for each in jobs}
    duty.follow(SlurmSnapshot(cluster=CLUSTER, taken_at=at(minutes), nodes=NODES, jobs=shown))


def test_hours_of_a_job_stay_where_slurm_uses_its_number_again(
    fresh_database: sa.Engine, ran: Callable[[], GoodputDuty]
) -> None:
    """slurmctld lost its state, and counts jobs from the first number again."""
    before, clock, day = hours(fresh_database, GoodputBy.user), Clock(), 24 * 60
    duty = GoodputDuty(PostgresGoodput(fresh_database, CLUSTER), Steps(), CLUSTER, clock)
    another = job(user="bob", submit_at=at(2 * day), start_at=at(2 * day))
    follow(duty, clock, 2 * day + 60, another)
    duty.count()
    found = hours(fresh_database, GoodputBy.user, until=3 * day)
    assert {key: value for key, value in found.items() if key[0] == "ann"} == before
    assert found["bob", "unknown"] == pytest.approx(16.0, abs=1e-3)


def test_hours_past_the_end_of_a_job_that_slurm_forgot_while_it_was_away_are_taken_back(
    fresh_database: sa.Engine,
) -> None:
    clock = Clock()
    duty = GoodputDuty(PostgresGoodput(fresh_database, CLUSTER), Steps(), CLUSTER, clock)
    follow(duty, clock, 70, job())
    clock.moment = at(250)
    duty.count()  # it may still run, for all that is known
    follow(duty, clock, 251)
    duty.count()
    assert sum(hours(fresh_database, GoodputBy.job, 300).values()) == pytest.approx(16 * 70 / 60, abs=1e-3)


@pytest.mark.parametrize("restarted", [False, True])
def test_hours_that_a_clock_that_was_ahead_counted_are_counted_again(
    fresh_database: sa.Engine, restarted: bool
) -> None:
    """After a restart Slurm has forgotten the job, which ended when it was seen last."""
    clock = Clock()
    duty = GoodputDuty(PostgresGoodput(fresh_database, CLUSTER), Steps(), CLUSTER, clock)
    follow(duty, clock, 40, job())
    clock.moment = at(24 * 60)
    duty.count()
    assert sum(hours(fresh_database, GoodputBy.job, 25 * 60).values()) > 300
    if restarted:
        duty = GoodputDuty(PostgresGoodput(fresh_database, CLUSTER), Steps(), CLUSTER, clock)
    follow(duty, clock, 41, *(() if restarted else (job(),)))
    duty.count()
    if restarted:  # nor has it ended only then
        clock.moment = at(25 * 60)
        duty.count()
    found = sum(hours(fresh_database, GoodputBy.job, 25 * 60).values())
    assert found == pytest.approx(16 * 41 / 60, abs=1e-3)


def test_jobs_of_one_gpu_are_counted_as_often_as_large_ones(fresh_database: sa.Engine) -> None:
    """10,000 GPUs may run a job each, and then a thousand of them are due each minute."""
    clock = Clock()
    duty = GoodputDuty(PostgresGoodput(fresh_database, CLUSTER), Steps(), CLUSTER, clock)
    follow(duty, clock, 40, *(replace(job(), id=str(number)) for number in range(300)))
    duty.count()
    assert len({name for name, _ in hours(fresh_database, GoodputBy.job)}) == 300


def test_each_life_is_of_the_partition_and_account_that_it_ran_in(fresh_database: sa.Engine) -> None:
    clock = Clock()
    duty = GoodputDuty(PostgresGoodput(fresh_database, CLUSTER), Steps(), CLUSTER, clock)
    follow(duty, clock, 40, job())
    waits = job("PENDING", restarts=1, submit_at=at(70), start_at=None, nodes=(), partition="train,debug")
    follow(duty, clock, 71, waits)
    duty.count()
    ran = {("train", "queued"): 16 / 6, ("train", "unknown"): 16.0}
    found = hours(fresh_database, GoodputBy.partition)
    assert {key: value for key, value in found.items() if key[0] == "train"} == pytest.approx(ran, abs=1e-3)
    again = job(restarts=1, submit_at=at(70), start_at=at(80), partition="debug", account="other")
    follow(duty, clock, 100, again)
    clock.moment = at(110)
    duty.count()
    then = {("debug", "queued"): 16 / 6, ("debug", "unknown"): 8.0}
    assert hours(fresh_database, GoodputBy.partition) == pytest.approx(ran | then, abs=1e-3)
    assert hours(fresh_database, GoodputBy.account)["lab", "unknown"] == pytest.approx(16.0, abs=1e-3)


def test_hours_stay_as_they_were_counted_after_their_steps_were_deleted(fresh_database: sa.Engine) -> None:
    """Of a job that goes on: it is counted again and again."""
    clock, steps = Clock(), Steps()
    duty = GoodputDuty(PostgresGoodput(fresh_database, CLUSTER), steps, CLUSTER, clock)
    follow(duty, clock, 11, job(start_at=at(0)))
    clock.moment = at(61)
    steps.send(60, 1, 120)
    duty.count()
    before = hours(fresh_database, GoodputBy.job, 60)
    assert before == {("7", "unsaved"): 16.0}
    late = (EVENTS + timedelta(days=2)) / timedelta(minutes=1)
    tidy(fresh_database, at(late))
    follow(duty, clock, late, job(start_at=at(0)))
    duty.count()
    assert hours(fresh_database, GoodputBy.job, 60) == before
    assert hours(fresh_database, GoodputBy.job, late)["7", "unknown"] > 16 * 24 * 85


def test_old_rows_are_deleted(fresh_database: sa.Engine, ran: object) -> None:
    tidy(fresh_database, at(60) + HOURS_KEPT + timedelta(days=1))
    with fresh_database.connect() as conn:
        for table in (goodput, job_lives, job_stretches):
            assert conn.scalar(sa.select(sa.func.count()).select_from(table)) == 0


def hit_by(engine: sa.Engine, hit: JobHit, **fields: object) -> None:
    """An incident of the job is stored as it is now."""
    given: dict[str, object] = {"opened": at(60), "updated": at(60), "closed": at(75), "jobs_hit": ("7",)}
    with engine.begin() as conn:
        conn.execute(sa.delete(incidents))
        save_incident(conn, replace(an_incident(1), hit=(hit,), **(given | fields)))


def test_a_review_counts_though_the_job_ended_long_ago(
    fresh_database: sa.Engine, ran: Callable[[], GoodputDuty]
) -> None:
    """The person on call looks at it in the morning."""
    hit = JobHit(job="7", basis=HitBasis.runs_on, started_at=at(10))
    hit_by(fresh_database, hit, opened=at(60.5), closed=at(65), updated=at(65))
    clock = Clock()
    duty = GoodputDuty(PostgresGoodput(fresh_database, CLUSTER), Steps(), CLUSTER, clock)
    clock.moment = at(101)
    duty.count()
    assert hours(fresh_database, GoodputBy.cause)["xid-79", "hung"] > 0
    night = 8 * 60
    hit_by(fresh_database, hit, review=Review.false_alarm, opened=at(60.5), closed=at(65), updated=at(night))
    clock.moment = at(night + 1)
    duty.count()
    assert {cause for cause, _ in hours(fresh_database, GoodputBy.cause)} == {""}
    clock.moment = at(night + 12)
    duty.count()
    assert PostgresGoodput(fresh_database, CLUSTER).to_count(at(night + 60)) == []


def test_an_incident_of_an_earlier_job_of_that_number_hits_no_later_one(fresh_database: sa.Engine) -> None:
    """slurmctld lost its state, and counts jobs from the first number again."""
    ended = JobHit(job="7", basis=HitBasis.start, started_at=at(10), ended_at=at(60))
    hit_by(fresh_database, ended, closed=None)  # its node is still being repaired
    clock, day = Clock(), 24 * 60
    duty = GoodputDuty(PostgresGoodput(fresh_database, CLUSTER), Steps(), CLUSTER, clock)
    follow(duty, clock, day + 60, job(submit_at=at(day), start_at=at(day)))
    duty.count()
    assert hours(fresh_database, GoodputBy.cause, 2 * day) == {("", "unknown"): 16.0}


def test_later_lives_of_an_earlier_job_of_that_number_are_none_of_this_one(fresh_database: sa.Engine) -> None:
    clock, day = Clock(), 24 * 60
    duty = GoodputDuty(PostgresGoodput(fresh_database, CLUSTER), Steps(), CLUSTER, clock)
    follow(duty, clock, 20, job())
    follow(duty, clock, 80, job(restarts=1, submit_at=at(70), start_at=at(70)))
    duty.count()
    before = hours(fresh_database, GoodputBy.user, day)
    another = job(user="bob", submit_at=at(day), start_at=at(day))
    follow(duty, clock, day + 60, another)
    duty.count()
    found = hours(fresh_database, GoodputBy.user, 2 * day)
    assert {spent: value for (who, spent), value in found.items() if who == "bob"} == {"unknown": 16.0}
    assert sum(value for (who, _), value in found.items() if who == "ann") >= sum(before.values())
    assert PostgresGoodput(fresh_database, CLUSTER).to_count(at(day + 61)) == []


@pytest.mark.parametrize(("by", "name"), [(GoodputBy.job, "7"), (GoodputBy.rack, "r1")])
def test_jobs_and_racks_of_two_clusters_are_not_one(
    fresh_database: sa.Engine, by: GoodputBy, name: str
) -> None:
    """Each cluster counts its jobs from 1, and has a rack of that name."""
    clock = Clock()
    for cluster in (CLUSTER, "pod2"):
        duty = GoodputDuty(PostgresGoodput(fresh_database, cluster), Steps(), cluster, clock)
        follow(duty, clock, 70, job(start_at=at(0)))
        duty.count()
    with fresh_database.connect() as conn:
        alone, both = (goodput_sums(conn, of, START, at(60), by) for of in (["pod2"], None))
    assert name in {each.name for each in alone}
    assert {f"{CLUSTER}/{name}", f"pod2/{name}"} <= {each.name for each in both}
    assert sum(each.gpu_hours for each in both) == pytest.approx(32.0)
