"""The time in which a job saves its work on a signal, by a clock that does not always go forward."""

from datetime import timedelta

import msgspec

from healer.actions import VERBS, Again
from healer.model import LogEntry, StepEvent, Verb
from tests.unit.actions.test_verbs import RUN, Desk

REQUEUE = VERBS[Verb.requeue]


class Saving(Desk):
    """A run that restarts a job of 40 s of grace; `off` is by how much the worker's clock is wrong."""

    def __init__(self) -> None:
        super().__init__(run=msgspec.structs.replace(RUN, node=None), restarts=0)
        self.job = self.slurm.add_job(comment="healer:signal=USR1@40")
        self.off = timedelta(0)
        self.ctx = msgspec.structs.replace(self.ctx, run=msgspec.structs.replace(self.ctx.run, job=self.job))
        self.use(now=lambda: self.clock.now() + self.off)

    def look(self, after_s: float) -> None:
        """One more look of the run, logged as the driver logs it."""
        self.clock.advance(after_s)
        answer = self.act(REQUEUE)
        last = self.ctx.log[-1] if self.ctx.log else None
        if isinstance(answer, Again) and (last is None or last.text != answer.text):
            entry = LogEntry(
                run=RUN.id,
                at=self.ctx.tools.now(),
                epoch=1,
                step=self.ctx.part,
                event=StepEvent.waiting,
                text=answer.text,
                data=answer.data,
            )
            self.ctx = msgspec.structs.replace(self.ctx, log=(*self.ctx.log, entry))

    @property
    def restarts(self) -> int:
        job = self.slurm.job(self.job)
        return job.restarts if job is not None else -1


def test_a_clock_that_is_set_back_gives_the_job_its_time_once_more_and_no_longer() -> None:
    desk = Saving()
    desk.look(0)
    desk.look(20)
    desk.off = timedelta(hours=-1)
    for _ in range(3):
        desk.look(10)
    assert desk.restarts == 0, "how much of its time was over is unknown"
    for _ in range(3):
        desk.look(10)
    assert desk.restarts == 1
    assert desk.slurm.heard(desk.job).count("signal USR1") == 1


def test_a_clock_that_goes_forward_gives_the_job_its_time() -> None:
    desk = Saving()
    for after_s in (0, 20, 19):
        desk.look(after_s)
    assert desk.restarts == 0
    desk.look(2)
    assert desk.restarts == 1
