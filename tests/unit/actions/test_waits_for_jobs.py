"""Waits for the end of a node's jobs, which may last for days: the stored picture of Slurm answers them."""

import msgspec
import pytest

from healer.actions import WAITS, Again, Done
from healer.model import SlurmSnapshot
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


@pytest.mark.parametrize("wait", FOR_JOBS)
@pytest.mark.parametrize(
    "picture_after_s", [pytest.param(0, id="from before the wait"), pytest.param(5, id="old")]
)
def test_another_picture_is_no_answer(wait: str, picture_after_s: float) -> None:
    desk, job = waiting(picture_after_s)
    desk.slurm.complete(job)
    desk.clock.advance(60)
    assert isinstance(desk.act(WAITS[wait]), Done)
