"""Law 7 for a bisection: the worker dies after each commit and around each effect. Whatever the moment: one
job of ours at a time and one for a group, the slow node is named once, and no other is touched."""

import pytest

from healer.model import RunState
from tests.support.bisecting import Bisecting
from tests.support.deaths import MortalWorker
from tests.support.loop import name

#: The story has fewer moments than this; the test says so if it ever has more.
COMMITS, CHECKPOINTS = 51, 19


class Story(MortalWorker[Bisecting]):
    """Four nodes, the second of which is slow; with `wanted` a user's job wants the first group's nodes."""

    def __init__(self, *, wanted: bool = False) -> None:
        super().__init__(Bisecting(4, (2,)))
        self.site.on_checkpoint = self.checkpoint
        self.wanted = wanted

    def run(self) -> None:
        self.asked = self.site.search()
        self._pass(2)
        self.site.slurm.complete(self.site.job)
        self._pass(15)
        if self.wanted:
            theirs = self.site.slurm.add_job(required=[name(1), name(2)])
            self._pass(20)
            job = self.site.slurm.job(theirs)
            assert job is not None and job.state == "RUNNING", "users' jobs go before ours"
            self.site.slurm.complete(theirs)
        self._pass(75)

    def _pass(self, seconds: int) -> None:
        for _ in range(seconds):
            self.site.clock.advance(1)
            self.site.walk()
            assert sum(one.active for one in self.site.groups()) <= 1
            self.drive()

    def assert_found_once(self) -> None:
        assert self.site.run_named(self.asked).state is RunState.done
        assert self.site.verdict(self.asked)["slow"] == [name(2)]
        (incident,) = self.site.open_incidents
        assert (incident.root.node, len(incident.evidence)) == (name(2), 1)
        comments = [one.comment for one in self.site.groups()]
        assert len(comments) == len(set(comments)) == 4
        assert set(self.site.scheduler.writes) <= {"submit", "cancel"}
        assert all(one.in_service for one in self.site.slurm.snapshot().nodes.values())


def test_the_story_without_a_death() -> None:
    story = Story()
    story.run()
    story.assert_found_once()
    assert story.site.scheduler.writes == ["submit"] * 4
    assert 10 < story.ledger.commits < COMMITS and 10 < story.checkpoints < CHECKPOINTS


@pytest.mark.parametrize("moment", range(1, COMMITS))
def test_a_death_after_any_commit(moment: int) -> None:
    story = Story()
    story.ledger.dies_after = moment
    story.run()
    assert story.deaths == (story.ledger.commits >= moment)
    story.assert_found_once()
    assert "cancel" not in story.site.scheduler.writes


@pytest.mark.parametrize("moment", range(1, CHECKPOINTS))
def test_a_death_around_any_effect(moment: int) -> None:
    story = Story()
    story.dies_at = moment
    story.run()
    assert story.deaths == (story.checkpoints >= moment)
    story.assert_found_once()


@pytest.mark.parametrize("moment", range(1, COMMITS, 3))
def test_crash_while_another_job_wants_its_nodes(moment: int) -> None:
    story = Story(wanted=True)
    story.ledger.dies_after = moment
    story.run()
    assert story.site.verdict(story.asked)["slow"] == [name(2)]
