"""A site on which nodes are tested in reservations: what was written to Slurm, and the test jobs of ours."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from healer.actions.under_test import TEST_JOBS
from healer.model import LogEntry, Reservation, Run, SlurmJob, SlurmNode, StepEvent
from healer.sim.sim_slurm import SimScheduler
from tests.support.loop import Crash, Site, name

WRITES = frozenset(
    {
        "drain", "undrain", "resume", "down", "reboot", "cancel_reboot", "reserve", "unreserve", "shrink",
        "requeue", "submit", "cancel",
    }
)  # fmt: skip


class Written:
    """The simulated Slurm, with a list of what was changed in it; `annotate` and `start_now` apart. The
    caller of `dies_after` dies once right after it, before writing anything of it."""

    def __init__(self, slurm: SimScheduler) -> None:
        self.slurm = slurm
        self.writes: list[str] = []
        self.dies_after = ""

    def __getattr__(self, call: str) -> Any:
        if call in WRITES:
            self.writes.append(call)
        does = getattr(self.slurm, call)
        return partial(self._deadly, does, call) if call == self.dies_after else does

    def _deadly(self, does: Callable[..., object], call: str, *given: object) -> None:
        does(*given)
        self.dies_after = ""
        raise Crash(call)


class TestSite(Site):
    """`node` 1 is tested; a user's job that wants it waits from the begin, and may start when it is back."""

    __test__ = False

    def __init__(self, nodes: int | Sequence[SlurmNode] = 32, **fields: Any) -> None:
        given: dict[str, Any] = {"scheduler": Written}
        super().__init__(nodes, **(given | fields))
        self.theirs = ""

    def want(self) -> str:
        """A user's job that may run on node 1 alone."""
        self.theirs = self.slurm.add_job(required=[name(1)], comment="")
        return self.theirs

    def runs_theirs(self) -> bool:
        job = self.slurm.job(self.theirs) if self.theirs else None
        return job is not None and job.state == "RUNNING"

    def test_jobs(self) -> list[SlurmJob]:
        return [job for job in self.slurm.snapshot().jobs.values() if job.name.startswith(TEST_JOBS)]

    def running_test(self) -> str:
        """The one test job that runs now."""
        (job,) = (job for job in self.test_jobs() if job.state == "RUNNING")
        return job.id

    def reservations(self) -> dict[str, Reservation]:
        return dict(self.slurm.snapshot().reservations)

    def run_named(self, run: str) -> Run:
        return self.ledger.tables.runs[run]

    def done(self, run: str) -> list[str]:
        return [one.step for one in self.log(run) if one.event is StepEvent.done]

    def last(self, run: str) -> LogEntry:
        return self.log(run)[-1]
