"""Law 7, exhaustively: the worker dies after each commit and around each effect of a whole story.

A GPU is lost under a job, the node is drained, the job requeued, a ticket opened; a person gives the node
back. While no worker lives the detector walks on, on fresh pictures of Slurm. Whatever the moment, in the end
there was one drain, one restart and one return, nothing is stuck, and the node is in service.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from healer.model import IncidentState, Run, RunState
from healer.sim.ledger import MemoryLedger, MemoryTx
from healer.sim.slurm_core import SimScheduler
from tests.support.loop import CLUSTER, LOST, Crash, Site

#: The story has fewer moments than this; the test says so if it ever has more.
MOMENTS = 60
#: A dead worker's lease lasts 15 s; so long nobody drives.
DEAD_S = 15


class MortalLedger(MemoryLedger):
    """Counts what the worker commits, and dies right after one of them."""

    dies_after: int | None = None
    commits = 0
    driving = False

    @contextmanager
    def transaction(self) -> Iterator[MemoryTx]:
        with super().transaction() as tx:
            yield tx
        if self.driving:
            self.commits += 1
            if self.commits == self.dies_after:
                raise Crash(f"commit {self.commits}")


class CountingSlurm:
    """The simulated Slurm, with a count of what healer changed in it."""

    def __init__(self, slurm: SimScheduler) -> None:
        self.slurm = slurm
        self.writes: list[str] = []

    def __getattr__(self, verb: str) -> object:
        if verb in {"drain", "resume", "requeue"}:
            self.writes.append(verb)
        return getattr(self.slurm, verb)


class Story:
    def __init__(self) -> None:
        self.site = Site(scheduler=CountingSlurm)
        self.site.ledger = MortalLedger(CLUSTER, self.site.clock)
        self.site.driver.ledger = self.site.ledger
        self.ledger: MortalLedger = self.site.ledger
        self.deaths = 0
        self.checkpoints = 0
        self.dies_at: int | None = None
        self.site.on_checkpoint = self._checkpoint

    def _checkpoint(self, where: str) -> None:
        self.checkpoints += 1
        if self.checkpoints == self.dies_at:
            raise Crash(where)

    def run(self) -> None:
        site = self.site
        self.job = site.slurm.add_job(nodes=2, gpus=8)
        site.look()
        self.node = site.slurm.job(self.job).nodes[0]  # type: ignore[union-attr]
        site.walk(*site.say(self.node, LOST))
        self._pass(90)
        self._person_returns_it()
        self._pass(60)

    def _pass(self, seconds: int) -> None:
        """Second by second: the detector walks; a worker drives unless it has just died."""
        dead = 0
        for _ in range(seconds):
            self.site.clock.advance(1)
            self.site.walk()
            if dead:
                dead -= 1
            elif not self._drive():
                self.deaths += 1
                dead = DEAD_S
            self.site.walk()

    def _drive(self) -> bool:
        self.ledger.driving = True
        try:
            self.site.drive()
        except Crash:
            return False
        finally:
            self.ledger.driving = False
        return True

    def _person_returns_it(self) -> None:
        site = self.site
        waiting = next(run for run in site.runs if run.state is RunState.waiting)
        with site.ledger.transaction() as tx:
            tx.set_run_state(waiting.id, RunState.done, why="taken over", at=site.now)
            tx.create_run(
                Run(
                    id="r-resume",
                    cluster=CLUSTER,
                    playbook="resume",
                    state=RunState.running,
                    by="ann",
                    reason="board replaced",
                    created_at=site.now,
                    node=self.node,
                    incident=waiting.incident,
                    rule=waiting.rule,
                )
            )

    def assert_good(self) -> None:
        site = self.site
        job = site.slurm.job(self.job)
        assert job is not None and (job.state, job.restarts) == ("RUNNING", 1)
        assert site.slurm.node(self.node).in_service
        assert {run.state for run in site.runs} == {RunState.done}
        assert [one.state for one in site.incidents] == [IncidentState.resolved]
        assert len(site.runs) == 2, "one to take it out, one to bring it back"
        assert site.ledger.tables.slots == {}
        writes = site.scheduler.writes
        assert writes.count("drain") == 1 and writes.count("requeue") == 1
        assert writes.count("resume") == 1


def test_the_story_without_a_death() -> None:
    story = Story()
    story.run()
    story.assert_good()
    assert 15 < story.ledger.commits < MOMENTS
    assert 15 < story.checkpoints < MOMENTS


@pytest.mark.parametrize("moment", range(1, MOMENTS))
def test_a_death_after_any_commit(moment: int) -> None:
    story = Story()
    story.ledger.dies_after = moment
    story.run()
    assert story.deaths == (story.ledger.commits >= moment)
    story.assert_good()


@pytest.mark.parametrize("moment", range(1, MOMENTS))
def test_a_death_around_any_effect(moment: int) -> None:
    story = Story()
    story.dies_at = moment
    story.run()
    assert story.deaths == (story.checkpoints >= moment)
    story.assert_good()
