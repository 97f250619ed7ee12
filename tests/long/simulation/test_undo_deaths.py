"""A run is taken back while its worker dies: after each commit, and around each effect. Law 7 holds for the
way back too: in the end the node is in service, its reservation gone and its slot free."""

import pytest

from healer.model import LogEntry, Run, RunState, StepEvent
from healer.playbooks import UNDO
from tests.support.deaths import MortalWorker
from tests.support.loop import CLUSTER, Site, name
from tests.support.under_test import Written

#: The way back has fewer moments than this; the test says so if it ever has more.
COMMITS, CHECKPOINTS = 10, 8


class WayBack(MortalWorker[Site]):
    """`validate` has drained and reserved a node, and waits for its test to end."""

    def __init__(self) -> None:
        super().__init__(Site(scheduler=Written))
        self.dies_after: int | None = None
        self.dies_at_effect = ""

    def run(self) -> None:
        site = self.site
        site.look()
        with self.ledger.transaction() as tx:
            tx.create_run(
                Run(
                    id="r-back", cluster=CLUSTER, playbook="validate", state=RunState.held, by="ann",
                    reason="noisy", created_at=site.now, node=name(1), rule="validate",
                )
            )  # fmt: skip
        for _ in range(60):
            self._pass(1)
            if site.slurm.snapshot().reservations:
                break
        self._pass(1)
        assert site.slurm.snapshot().reservations, [one.text for one in self.ledger.tables.log["r-back"]]
        entry = LogEntry(run="r-back", at=site.now, epoch=99, step=UNDO, event=StepEvent.done, text="bob: no")
        self.ledger.tables.log["r-back"].append(entry)
        with self.ledger.transaction() as tx:
            tx.set_run_state("r-back", RunState.running, why="bob: no", at=site.now)
        site.on_checkpoint = self.checkpoint
        assert isinstance(site.driver.tools.scheduler, Written)
        site.driver.tools.scheduler.dies_after = self.dies_at_effect
        self.ledger.commits = 0
        self.ledger.dies_after = self.dies_after
        self._pass(90)

    def _pass(self, seconds: int) -> None:
        for _ in range(seconds):
            self.site.clock.advance(1)
            self.site.walk()
            self.drive()

    def assert_good(self) -> None:
        (run,) = self.site.runs
        assert run.state is RunState.undone, run.question
        shown = self.site.slurm.node(name(1))
        assert shown.in_service
        assert self.site.slurm.snapshot().reservations == {}
        assert self.ledger.tables.slots == {}
        assert self.ledger.tables.vetoes == []


def test_the_way_back_without_a_death() -> None:
    story = WayBack()
    story.run()
    story.assert_good()
    assert 4 <= story.checkpoints < CHECKPOINTS
    assert 4 <= story.ledger.commits < COMMITS


@pytest.mark.parametrize("moment", range(1, COMMITS))
def test_a_death_after_any_commit(moment: int) -> None:
    story = WayBack()
    story.dies_after = moment
    story.run()
    story.assert_good()
    assert story.deaths == (moment <= story.ledger.commits)


@pytest.mark.parametrize("moment", range(1, CHECKPOINTS))
def test_a_death_around_any_effect(moment: int) -> None:
    story = WayBack()
    story.dies_at = moment
    story.run()
    story.assert_good()
    assert story.deaths == (moment <= story.checkpoints)


@pytest.mark.parametrize("effect", ["drain", "unreserve", "undrain"])
def test_a_death_right_after_the_effect(effect: str) -> None:
    """Found by seed 326 of the schedules: an undrain whose slot was not freed."""
    story = WayBack()
    story.dies_at_effect = effect
    story.run()
    story.assert_good()
    assert story.deaths == 1
