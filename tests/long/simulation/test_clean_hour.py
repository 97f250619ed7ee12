"""An hour in which nothing is broken: every sense listens, every rule may act, and nothing happens."""

from healer.model import Severity
from healer.sim.fleet_steps import Pace
from tests.support.fleet import Fleet


def test_clean_hour_pages_no_one_and_touches_no_node() -> None:
    fleet = Fleet(48, jobs=(16, 8, 4, 2), pace=Pace(stages=2))
    fleet.run(3600)
    assert fleet.unrecognised == {}
    assert fleet.pages == []
    assert [one.title for one in fleet.incidents if one.severity < Severity.P3] == []
    assert fleet.drained == []
    assert fleet.runs == []
    assert [job.restarts for job in fleet.slurm.snapshot().jobs.values()] == [0, 0, 0, 0]


def test_hour_of_uneven_work_blames_no_node() -> None:
    """Sequences of different lengths: the noise of one rank is thirty times larger (published_figures 4)."""
    fleet = Fleet(16, jobs=(8, 4), pace=Pace(noise=0.12))
    fleet.run(1800)
    assert [one.title for one in fleet.incidents if one.severity < Severity.P3] == []
    assert fleet.drained == []
