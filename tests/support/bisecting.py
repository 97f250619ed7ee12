"""A job whose nodes are searched by halves: the groups' jobs end with the figures that their nodes have."""

from collections.abc import Callable, Sequence
from typing import Any

from healer.decisions.sweeps import SWEEP_JOBS
from healer.model import SlurmJob, SlurmNode
from tests.support.asked import ask_job
from tests.support.loop import name
from tests.support.under_test import TestSite

FULL, SLOW = 700.0, 560.0
#: A group's tests take so long.
TAKES_S = 3


class Grouped(TestSite):
    """Groups' jobs answer after some seconds: those with a node of `bad` compute less."""

    def __init__(self, nodes: int | Sequence[SlurmNode], **fields: Any) -> None:
        super().__init__(nodes, **fields)
        self.bad: set[str] = set()
        self.answers: Callable[[SlurmJob], str] = self.speed

    def speed(self, job: SlurmJob) -> str:
        figure = SLOW if self.bad & set(job.nodes) else FULL
        return f"healer-test/1; pair:passed:1; speed:passed:12; gemm_tflop_per_s={figure:g}"

    def groups(self) -> list[SlurmJob]:
        jobs = self.slurm.snapshot().jobs.values()
        return [one for one in jobs if one.name.startswith(SWEEP_JOBS)]

    def running_group(self) -> SlurmJob | None:
        return next((one for one in self.groups() if one.state == "RUNNING"), None)

    def answer(self) -> None:
        job = self.running_group()
        if job is None or job.start_at is None or (self.now - job.start_at).total_seconds() < TAKES_S:
            return
        if report := self.answers(job):
            self.slurm.remark(job.id, report)
            self.slurm.fail_job(job.id, "1:0") if ":failed:" in report else self.slurm.complete(job.id)

    def verdict(self, run: str) -> dict[str, Any]:
        return next(one.data for one in self.log(run, "halves") if one.event == "done")

    def says(self, run: str) -> str:
        return next(one.text for one in self.log(run, "halves") if one.event == "done")


class Bisecting(Grouped):
    """`job` runs on the first `of` nodes."""

    def __init__(self, of: int = 8, bad: tuple[int, ...] = (), nodes: int = 0, **fields: Any) -> None:
        super().__init__(nodes or of, **fields)
        self.bad = {name(one) for one in bad}
        self.job = self.slurm.add_job(nodes=of, name="train")
        self.look()

    def search(self, **fields: Any) -> str:
        return ask_job(self, "bisect", self.job, **fields)

    def walk(self, *batch: Any, **fields: Any) -> list[str]:
        self.answer()
        return super().walk(*batch, **fields)
