"""Waits for the end of a node's jobs, which may last for days: the stored picture of Slurm answers them."""

import msgspec
import pytest

from healer.actions import CHECKS, WAITS, Action, Again, Done, Failed, test_job
from healer.model import LogEntry, Reservation, SlurmSnapshot, StepEvent, Submission
from healer.model.slurm import reservation_name
from healer.sim.sim_slurm import USER
from tests.unit.actions.test_verbs import NODE, REASON, RUN, Away, Desk

FOR_JOBS = ("empty", "job_end", "job_end_or_checkpoint")


def waiting(picture_after_s: float) -> tuple[Desk, str]:
    """A drained node with a job; the picture was taken so long after the wait began. And the job."""
    desk = Desk(run=msgspec.structs.replace(RUN, by="ann"))
    job = desk.slurm.add_job(required=[NODE])
    desk.slurm.drain(NODE, REASON)
    desk.clock.advance(picture_after_s)
    picture: SlurmSnapshot = desk.slurm.snapshot()
    desk.use(picture=lambda: picture)
    return desk, job


@pytest.mark.parametrize("wait", FOR_JOBS)
def test_slurm_is_not_asked_while_the_picture_shows_a_job_there(wait: str) -> None:
    desk, job = waiting(picture_after_s=5)
    before = desk.act(WAITS[wait])
    desk.use(scheduler=Away())
    answer = desk.act(WAITS[wait])
    assert answer == before
    assert isinstance(answer, Again) and job in answer.text


def array_of_two() -> tuple[Desk, list[str]]:
    """A drained node with both tasks of an array; their titles."""
    desk = Desk(run=msgspec.structs.replace(RUN, by="ann"))
    desk.slurm.add_job(required=[NODE], array=2, gpus=1)
    desk.slurm.drain(NODE, REASON)
    tasks = desk.slurm.jobs_on(NODE)
    assert sorted(task.array_task or 0 for task in tasks) == [0, 1]
    return desk, [task.title for task in tasks]


#: Steps that name the jobs on their node.
NAMING = [*(WAITS[wait] for wait in (*FOR_JOBS, "approval")), CHECKS["jobs_left"]]


@pytest.mark.parametrize("action", NAMING)
def test_the_tasks_of_an_array_are_named_as_their_owner_knows_them(action: Action) -> None:
    """Slurm numbers the tasks apart: `5` says nothing to the owner of array 4."""
    desk, titles = array_of_two()
    assert all(title in desk.act(action).text for title in titles)


def test_stuck_tasks_of_an_array_are_named_as_their_owner_knows_them() -> None:
    desk, titles = array_of_two()
    desk.slurm.stick(NODE)
    for task in desk.slurm.jobs_on(NODE):
        desk.slurm.complete(task.id)
    shown = desk.act(CHECKS["jobs_left"])
    assert isinstance(shown, Again) and all(title in shown.text for title in titles), shown.text


@pytest.mark.parametrize("wait", FOR_JOBS)
@pytest.mark.parametrize(
    "picture_after_s", [pytest.param(0, id="from before the wait"), pytest.param(5, id="old")]
)
def test_another_picture_is_no_answer(wait: str, picture_after_s: float) -> None:
    desk, job = waiting(picture_after_s)
    desk.slurm.complete(job)
    desk.clock.advance(60)
    assert isinstance(desk.act(WAITS[wait]), Done)


def under_test() -> Desk:
    """A node whose test job has been running for 10 s, with a picture of 5 s ago."""
    desk = Desk(run=RUN)
    name = reservation_name(RUN.incident or RUN.id)
    desk.slurm.reserve(Reservation(name=name, nodes=(NODE,), users=(USER,), maintenance=True))
    test = Submission(nodes=(NODE,), script="#!/bin/sh", name="t", time_limit_s=60, reservation=name)
    job = desk.slurm.submit(test)
    sent = LogEntry(
        run=RUN.id,
        at=desk.clock.now(),
        epoch=1,
        step=desk.ctx.part,
        event=StepEvent.waiting,
        data={"submitted": job},
    )
    desk.ctx = msgspec.structs.replace(desk.ctx, log=(sent,))
    desk.clock.advance(5)
    picture: SlurmSnapshot = desk.slurm.snapshot()
    desk.use(picture=lambda: picture)
    desk.clock.advance(5)
    return desk


def test_slurm_is_not_asked_while_the_picture_shows_the_test_under_way() -> None:
    desk = under_test()
    before = test_job.look(desk.ctx)
    desk.use(scheduler=Away())
    answer = test_job.look(desk.ctx)
    assert isinstance(answer, Again) and answer == before


def test_a_test_is_judged_and_its_reservation_missed_by_slurms_word_alone() -> None:
    desk = under_test()
    desk.slurm.unreserve(reservation_name(RUN.incident or RUN.id))
    picture = desk.slurm.snapshot()
    desk.use(picture=lambda: picture)
    assert isinstance(test_job.look(desk.ctx), Failed)
    desk = under_test()
    desk.slurm.complete(desk.ctx.log[0].data["submitted"])
    desk.clock.advance(60)
    assert isinstance(test_job.look(desk.ctx), Done)
