"""Law 7, exhaustively: the worker dies after each commit and around each effect of a whole story.

A GPU is lost under a job, the node is drained, the job requeued, a ticket opened; a person gives the node
back. While no worker lives the detector walks on, on fresh pictures of Slurm. Whatever the moment, in the end
there was one drain, one restart and one return, nothing is stuck, and the node is in service.
"""

import pytest

from healer.model import IncidentState, Run, RunState
from tests.support.deaths import CountingSlurm, MortalWorker
from tests.support.loop import CLUSTER, LOST, Site

#: The story has fewer moments than this; the test says so if it ever has more.
COMMITS, CHECKPOINTS = 22, 38


class Story(MortalWorker[Site]):
    def __init__(self) -> None:
        super().__init__(Site(scheduler=CountingSlurm))
        self.site.on_checkpoint = self.checkpoint

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
        for _ in range(seconds):
            self.site.clock.advance(1)
            self.site.walk()
            self.drive()
            self.site.walk()

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
    assert 15 < story.ledger.commits < COMMITS
    assert 15 < story.checkpoints < CHECKPOINTS


@pytest.mark.parametrize("moment", range(1, COMMITS))
def test_a_death_after_any_commit(moment: int) -> None:
    story = Story()
    story.ledger.dies_after = moment
    story.run()
    assert story.deaths == (story.ledger.commits >= moment)
    story.assert_good()


@pytest.mark.parametrize("moment", range(1, CHECKPOINTS))
def test_a_death_around_any_effect(moment: int) -> None:
    story = Story()
    story.dies_at = moment
    story.run()
    assert story.deaths == (story.checkpoints >= moment)
    story.assert_good()
