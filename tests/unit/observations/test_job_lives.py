"""Lives of jobs from Slurm's pictures: by Slurm's own times, whatever the looks miss."""

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from healer.model import SlurmJob, SlurmNode, SlurmSnapshot
from healer.model.goodput import Held, LifeSeen
from healer.observations.job_lives import changed_lives, with_spares

START = datetime(2026, 1, 5, tzinfo=UTC)
NODES = {name: SlurmNode(name=name, gpus=8, rack=f"r{name[-1]}") for name in ("n1", "n2")}
RUNS = SlurmJob(
    id="7", state="RUNNING", nodes=("n1", "n2"), submit_at=START, start_at=START + timedelta(seconds=60),
    user="ann", account="lab", partition="train",
)  # fmt: skip


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def look(before: dict[str, LifeSeen], seconds: float, *jobs: SlurmJob) -> dict[str, LifeSeen]:
    """The newest lives after this look; `written` gets what changed."""
    shown = {job.id: job for job in jobs}
    snapshot = SlurmSnapshot(cluster="c", taken_at=at(seconds), nodes=NODES, jobs=shown)
    changed = changed_lives(snapshot, before)
    return before | {life.job: life for life in sorted(changed, key=lambda life: life.restart)}


def test_a_job_is_recorded_by_slurms_own_times() -> None:
    seen = look({}, 90, RUNS)
    over = replace(RUNS, state="COMPLETED", end_at=at(600))
    life = look(seen, 615, over)["7"]
    assert (life.queued_at, life.started_at, life.ended_at) == (at(0), at(60), at(600))
    assert (life.user, life.account, life.partition, life.state) == ("ann", "lab", "train", "COMPLETED")
    assert life.held == (Held(at(60), 16, None, {"r1": 8, "r2": 8}),)


def test_a_job_that_came_and_went_between_two_looks_counts() -> None:
    life = look({}, 900, replace(RUNS, state="FAILED", end_at=at(70)))["7"]
    assert (life.started_at, life.ended_at, life.held[0].gpus) == (at(60), at(70), 16)


def test_a_requeue_ends_one_life_and_begins_the_next() -> None:
    first = look({}, 90, RUNS)
    waits = replace(RUNS, state="PENDING", nodes=(), restarts=1, submit_at=at(300), start_at=None)
    snapshot = SlurmSnapshot(cluster="c", taken_at=at(315), nodes=NODES, jobs={"7": waits})
    ended, begun = changed_lives(snapshot, first)
    assert (ended.restart, ended.ended_at, ended.state) == (0, at(300), "REQUEUED")
    assert (begun.restart, begun.queued_at, begun.started_at, begun.held) == (1, at(300), None, ())


def test_a_job_that_completes_after_a_requeue_has_no_end_in_2163() -> None:
    """As Slurm 22.05 shows it for some seconds after `scontrol requeuehold`."""
    first = look({}, 90, RUNS)
    completing = replace(RUNS, state="COMPLETING", restarts=1, end_at=at(137 * 365 * 86_400))
    snapshot = SlurmSnapshot(cluster="c", taken_at=at(315), nodes=NODES, jobs={"7": completing})
    (ended,) = changed_lives(snapshot, first)
    assert (ended.restart, ended.state) == (0, "REQUEUED") and ended.ended_at <= at(315)


def test_nothing_is_written_while_nothing_changes() -> None:
    seen = look({}, 90, RUNS)
    assert look(seen, 105, RUNS) == seen
    over = replace(RUNS, state="COMPLETED", end_at=at(600))
    ended = look(seen, 615, over)
    assert look(ended, 630, over) == ended


def test_a_job_that_slurm_forgot_ended_when_it_was_last_seen() -> None:
    seen = {"7": replace(look({}, 90, RUNS)["7"], seen_at=at(400))}
    assert look(seen, 9000)["7"].ended_at == at(400)


def test_nodes_that_leave_a_running_job_end_its_hold_on_them() -> None:
    seen = look({}, 90, RUNS)
    life = look(seen, 500, replace(RUNS, nodes=("n1",)))["7"]
    assert [(held.since, held.gpus) for held in life.held] == [(at(60), 16), (at(500), 8)]


def test_a_waiting_job_that_never_ran_holds_nothing_to_count() -> None:
    assert look({}, 90, replace(RUNS, state="PENDING", nodes=(), start_at=None)) == {}


def test_spares_hold_from_the_start_of_the_life_and_change_later() -> None:
    life = with_spares(look({}, 90, RUNS)["7"], 8, at(200))
    assert [(held.since, held.spare) for held in life.held] == [(at(60), 8)]
    assert [(held.since, held.spare) for held in with_spares(life, 0, at(900)).held] == [
        (at(60), 8),
        (at(900), 0),
    ]


def test_nodes_that_were_at_work_until_now_were_no_spares_before() -> None:
    """A node that left the work stays in the allocation until Slurm takes it out, or to the job's end."""
    all_work = with_spares(look({}, 90, RUNS)["7"], 0, at(200))
    assert [(held.since, held.spare) for held in with_spares(all_work, 8, at(900)).held] == [
        (at(60), 0),
        (at(900), 8),
    ]


def test_the_first_word_on_spares_after_nodes_left_holds_from_then_on() -> None:
    one_left = with_spares(look({}, 90, RUNS)["7"], 8, at(200))
    shrunk = look({"7": one_left}, 500, replace(RUNS, nodes=("n1",)))["7"]
    assert [(held.since, held.spare) for held in with_spares(shrunk, 0, at(560)).held] == [
        (at(60), 8),
        (at(500), 0),
    ]


@pytest.mark.parametrize("restarts", [0, 2])
def test_a_number_that_slurm_uses_again_is_another_job(restarts: int) -> None:
    """slurmctld lost its state, and healer went on: it never saw the number without a job."""
    before = replace(RUNS, restarts=restarts)
    seen = look({}, 90, before)
    another = replace(RUNS, user="bob", submit_at=at(300), start_at=at(330))
    (*ended, begun) = changed_lives(picture(345, another), seen)
    assert (begun.restart, begun.user, begun.queued_at, begun.started_at) == (0, "bob", at(300), at(330))
    assert [life.held[0].since for life in (begun,)] == [at(330)]
    assert [(life.restart, life.ended_at) for life in ended] == ([(2, at(90))] if restarts else [])
    waits = replace(another, state="PENDING", nodes=(), start_at=None)
    assert [life.user for life in changed_lives(picture(345, waits), seen)] == (["ann"] if restarts else [])


def picture(seconds: float, *jobs: SlurmJob) -> SlurmSnapshot:
    return SlurmSnapshot(cluster="c", taken_at=at(seconds), nodes=NODES, jobs={job.id: job for job in jobs})
