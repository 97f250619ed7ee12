"""The account of a large job: hand-made days with a known effective time, and nothing gets lost."""

import random
from datetime import UTC, datetime, timedelta

import pytest

from healer.model.goodput import Spent
from healer.sim.fleet.scenario import JobSpec
from healer.sim.fleet.site import NOBODY, Work

START = datetime(2026, 1, 5, tzinfo=UTC)
SPEC = JobSpec(nodes=4, checkpoint_s=300, checkpoint_stall_s=0, startup_s=100)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_a_day_made_by_hand_has_the_effective_time_that_was_counted_by_hand() -> None:
    work = Work(SPEC, START)
    work.be(Spent.starting, "start", at(0))
    work.be(Spent.productive, NOBODY, at(100))
    # Three checkpoints (900 s) are durable; 200 s after the last one a GPU is gone.
    work.be(Spent.hung, "GPU", at(1200))
    work.be(Spent.queued, "GPU", at(1210))
    work.be(Spent.starting, "GPU", at(1215))
    work.be(Spent.productive, NOBODY, at(1315))
    work.close(at(2000))
    assert work.total(Spent.productive) == 900 + 600
    assert work.spent[Spent.lost, "GPU"] == 200
    assert work.spent[Spent.hung, "GPU"] == 10
    assert work.spent[Spent.queued, "GPU"] == 5
    assert work.total(Spent.starting) == 200
    assert work.total(Spent.unsaved) == 85
    assert work.by_cause() == {"start": 100, "GPU": 200 + 10 + 5 + 100}


def test_a_slow_node_takes_its_share_of_every_step() -> None:
    work = Work(SPEC, START)
    work.be(Spent.productive, NOBODY, at(0), slower=1.25, slow_cause="clock")
    work.close(at(600))
    assert work.total(Spent.productive) == pytest.approx(480)
    assert work.by_cause() == {"clock": pytest.approx(120)}


def test_a_checkpoint_stops_the_work_and_is_durable_at_its_end() -> None:
    work = Work(JobSpec(nodes=4, checkpoint_s=90, checkpoint_stall_s=10, startup_s=0), START)
    work.be(Spent.productive, NOBODY, at(0))
    work.pass_to(at(95))
    assert work.saved == 0
    work.be(Spent.hung, "GPU", at(95))
    assert work.spent[Spent.lost, "GPU"] == 95  # the checkpoint was not whole
    work.be(Spent.productive, NOBODY, at(95))
    work.close(at(295))
    assert (work.saved, work.saved_at) == (2, at(295))
    assert work.total(Spent.productive) == 180
    assert work.total(Spent.checkpointing) == 20


def test_a_planned_stop_loses_nothing() -> None:
    work = Work(SPEC, START)
    work.be(Spent.productive, NOBODY, at(0))
    work.save(at(120))
    work.be(Spent.hung, "planned", at(120))
    work.close(at(200))
    assert work.total(Spent.productive) == 120
    assert work.total(Spent.lost) == 0


@pytest.mark.parametrize("seed", range(20))
def test_every_second_is_counted_exactly_once(seed: int) -> None:
    chance = random.Random(seed)
    work, now = Work(JobSpec(nodes=1, checkpoint_s=77, checkpoint_stall_s=3, startup_s=9), START), 0.0
    for _ in range(200):
        now += chance.uniform(0, 500)
        doing = chance.choice([Spent.productive, Spent.productive, Spent.hung, Spent.queued, Spent.starting])
        slower = chance.choice([1.0, 1.18])
        work.be(doing, chance.choice("abc"), at(now), slower=slower, slow_cause="slow")
    work.close(at(now))
    assert sum(work.spent.values()) == pytest.approx(now, abs=0.01)
    assert all(seconds >= 0 for seconds in work.spent.values())
