"""Law 7 for the slow node: the worker dies after each commit of a story that waits, drains, tests, returns.

Whatever the moment, there was one drain, one restart of the job and one return, no veto, and no slot is left.
"""

import pytest

from healer.model import IncidentState, RunState
from tests.support.deaths import CountingSlurm, MortalWorker
from tests.support.loop import name
from tests.support.slow import SlowSite

NODE = name(1)
#: More than the story has; the test says so if it ever has more.
MOMENTS = 30


class Story(MortalWorker[SlowSite]):
    dead_s = 11

    def __init__(self, dies_after: int | None) -> None:
        super().__init__(SlowSite(scheduler=CountingSlurm))
        self.ledger.dies_after = dies_after

    def run(self) -> None:
        site = self.site
        self.job = site.agreed(required=[NODE])
        site.find("straggler", "gpu-hot", gpu=3, job=self.job)
        for second in range(240):
            if second % 30 == 29:
                site.checkpoint(self.job, second)
            site.clock.advance(1)
            site.tick()
            self.drive()
            site.tick()

    def assert_good(self) -> None:
        site = self.site
        job = site.slurm.job(self.job)
        assert job is not None and job.restarts == 1
        assert [run.state for run in site.runs] == [RunState.done]
        assert [one.state for one in site.incidents] == [IncidentState.resolved]
        assert site.node(1).in_service
        tables = self.ledger.tables
        assert (tables.slots, tables.vetoes) == ({}, [])
        assert len(tables.granted) == 1
        writes = site.scheduler.writes
        assert [writes.count(one) for one in ("drain", "requeue", "resume")] == [1, 1, 1]
        assert len(site.nodes.diagnoses(NODE)) == 1


def test_the_story_without_a_death() -> None:
    story = Story(None)
    story.run()
    story.assert_good()
    assert 15 < story.ledger.commits < MOMENTS


@pytest.mark.parametrize("moment", range(1, MOMENTS))
def test_a_death_after_any_commit(moment: int) -> None:
    story = Story(moment)
    story.run()
    assert story.deaths == (story.ledger.commits >= moment)
    story.assert_good()
