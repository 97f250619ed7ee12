"""Law 7 for sweeps, exhaustively: the worker dies after each commit and around each effect of a sweep that
has to give way. Whatever the moment: one job of ours, ended by us alone, and the user's job has the node."""

from collections.abc import Callable

import pytest

from healer.decisions.sweeps import SWEEP_JOBS
from healer.model import RunState
from healer.processes.worker import leftover_jobs
from tests.support.deaths import MortalWorker
from tests.support.loop import name
from tests.support.under_test import TestSite

#: The story has fewer moments than this; the test says so if it ever has more.
COMMITS, CHECKPOINTS = 20, 5
NODE = name(1)


class Story(MortalWorker[TestSite]):
    """A sweep of node 1; `event` befalls it after 10 s."""

    def __init__(self, event: Callable[[TestSite], object]) -> None:
        super().__init__(TestSite(2))
        self.site.on_checkpoint = self.checkpoint
        self.event = event
        self.duty = leftover_jobs(self.site.scheduler, self.ledger, self, lambda: ("root",))  # type: ignore[arg-type]

    def latest(self, _: str) -> object:
        return self.ledger.snapshot

    def run(self) -> None:
        self.asked = self.site.ask("sweep", 1)
        self._pass(10)
        self.event(self.site)
        self._pass(60)

    def _pass(self, seconds: int) -> None:
        for _ in range(seconds):
            self.site.clock.advance(1)
            self.site.walk()
            self.drive()
            self.duty()

    def ours(self) -> list[str]:
        jobs = self.site.slurm.snapshot().jobs.values()
        return [job.state for job in jobs if job.name.startswith(SWEEP_JOBS)]

    def assert_given_back(self) -> None:
        """The death may come before the job was submitted, and the user's before that: then there is none."""
        assert self.site.runs_theirs()
        assert self.ours() in ([], ["CANCELLED"])
        assert self.site.run_named(self.asked).state in {RunState.done, RunState.running}
        assert self.site.scheduler.writes in ([], ["submit", "cancel"])
        assert self.site.open_incidents == []


def test_the_story_without_a_death() -> None:
    story = Story(TestSite.want)
    story.run()
    story.assert_given_back()
    assert story.ours() == ["CANCELLED"]
    assert story.site.run_named(story.asked).state is RunState.done
    assert 3 < story.ledger.commits < COMMITS and 1 < story.checkpoints < CHECKPOINTS


@pytest.mark.parametrize("moment", range(1, COMMITS))
def test_a_death_after_any_commit(moment: int) -> None:
    story = Story(TestSite.want)
    story.ledger.dies_after = moment
    story.run()
    assert story.deaths == (story.ledger.commits >= moment)
    story.assert_given_back()


@pytest.mark.parametrize("moment", range(1, CHECKPOINTS))
def test_a_death_around_any_effect(moment: int) -> None:
    story = Story(TestSite.want)
    story.dies_at = moment
    story.run()
    assert story.deaths == (story.checkpoints >= moment)
    story.assert_given_back()


@pytest.mark.parametrize("moment", range(1, COMMITS))
def test_a_wrong_answer_is_one_finding_whenever_its_worker_dies(moment: int) -> None:
    def fails(site: TestSite) -> None:
        job = next(iter(site.slurm.snapshot().jobs.values()), None)
        if job is not None:
            site.slurm.remark(job.id, "healer-test/1; answers:failed:9; says answers GPU 3: a wrong answer")
            site.slurm.fail_job(job.id, "1:0")

    story = Story(fails)
    story.ledger.dies_after = moment
    story.run()
    if story.site.open_incidents:
        assert [one.fault for one in story.site.open_incidents] == ["node-test:answers"]
        assert len(story.site.incident.evidence) == 1
    else:
        assert moment == 1 or story.ours() == ["RUNNING"], "its job came after the failure"
    assert story.site.scheduler.writes == ["submit"] and story.site.node(1).in_service
