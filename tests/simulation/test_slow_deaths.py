"""Law 7 for the slow node: the worker dies after each commit of a story that waits, drains, tests, returns.

Whatever the moment, there was one drain, one restart of the job and one return, no veto, and no slot is left.
"""

import pytest

from healer.model import IncidentState, RunState
from tests.simulation.test_every_death import CountingSlurm, MortalLedger
from tests.support.loop import CLUSTER, Crash, name
from tests.support.slow import SlowSite

NODE = name(1)
#: More than the story has.
MOMENTS = 60
#: A dead worker's lease, and then some.
DEAD_S = 11


class Story:
    def __init__(self, dies_after: int | None) -> None:
        self.site = SlowSite(scheduler=CountingSlurm)
        self.ledger = MortalLedger(CLUSTER, self.site.clock)
        self.site.ledger = self.site.driver.ledger = self.ledger
        self.ledger.dies_after = dies_after
        self.deaths = 0

    def run(self) -> None:
        site, dead = self.site, 0
        self.job = site.agreed(required=[NODE])
        site.find("straggler", "gpu-hot", gpu=3, job=self.job)
        for second in range(240):
            if second % 30 == 29:
                site.checkpoint(self.job, second)
            site.clock.advance(1)
            site.tick()
            if dead:
                dead -= 1
            elif not self._drive():
                self.deaths += 1
                dead = DEAD_S
            site.tick()

    def _drive(self) -> bool:
        self.ledger.driving = True
        try:
            self.site.drive()
        except Crash:
            return False
        finally:
            self.ledger.driving = False
        return True

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
