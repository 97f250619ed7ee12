"""Two weeks of trends outlive the detector: written each hour and at the end, read at its start."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import sqlalchemy as sa

from healer.adapters.postgres.node_rows import PostgresTrends
from healer.detection.forecasts import Forecasts
from healer.detection.tick import Senses
from healer.model import Column, Part, Ruleset, SlurmNode, SlurmSnapshot
from healer.model.telemetry import Report, StepBatch
from healer.observations import Picture
from healer.ports.measurements import Samples
from healer.ports.transactions import LedgerAway
from healer.processes.senses_loop import KEEP_TRENDS, SensesLoop, SensesParts
from healer.sim.stores import MemoryColumns
from tests.support.loop import shipped

CLUSTER, START = "pod1", datetime(2026, 11, 20, 3, 0, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.at = START

    def now(self) -> datetime:
        return self.at


class Detector:
    """One life of the detector's tick, with one GPU that reports its replaced rows."""

    def __init__(self, trends: PostgresTrends, clock: Clock) -> None:
        self.clock, self.book = clock, MemoryColumns()
        self.ids = np.array(self.book.ids([Column("row_remap_uncorrectable_rows", Part(gpu=0))]), np.int32)
        self.chunks: list[list[Report]] = []
        self.made: list[Senses] = []
        picture = Picture(CLUSTER, watching_since=START)
        self.loop = SensesLoop(SensesParts(
            rules=shipped, prove=lambda: "", make=self._make, picture=picture,
            clock=clock, trends=trends,
        ))  # fmt: skip
        node = SlurmNode(name="n1", state=("IDLE",), gpus=1)
        picture.show(SlurmSnapshot(cluster=CLUSTER, taken_at=clock.at, nodes={"n1": node}, jobs={}))

    def _make(self, rules: Ruleset) -> tuple[Senses, Samples]:
        self.made.append(Senses(CLUSTER, rules, self.book))
        return self.made[-1], self

    def new(self) -> tuple[list[Report], list[StepBatch]]:
        return (self.chunks.pop(0) if self.chunks else []), []

    def add_point(self, rows: float, *, after: timedelta = timedelta(minutes=10)) -> None:
        self.clock.at += after
        self.chunks.append([Report(CLUSTER, "n1", self.clock.at, self.clock.at, self.ids, np.array([rows]))])
        self.loop.once()

    def known(self) -> list[float]:
        forecasts = next(one for one in self.made[-1].detectors if isinstance(one, Forecasts))
        followed = next(one for one in forecasts.followed if one.rule.name == "rows-remapped")
        points = followed.series.series(np.arange(followed.series.rows))
        return points[np.isfinite(points)].tolist()


@pytest.fixture
def trends(fresh_database: sa.Engine) -> Iterator[PostgresTrends]:
    yield PostgresTrends(fresh_database, CLUSTER)


def test_trends_are_read_back_and_overwritten(trends: PostgresTrends, fresh_database: sa.Engine) -> None:
    assert trends.read() == {}
    trends.write({}, START)
    trends.write({"a": b"1", "b": b"\x00\xff"}, START)
    trends.write({"a": b"2"}, START + timedelta(hours=1))
    assert trends.read() == {"a": b"2", "b": b"\x00\xff"}
    assert PostgresTrends(fresh_database, "another").read() == {}


def test_the_next_detector_goes_on_where_the_last_one_was(trends: PostgresTrends) -> None:
    clock = Clock()
    first = Detector(trends, clock)
    for day in (1.0, 2.0, 3.0):
        first.add_point(day, after=timedelta(hours=6))
    stopped = threading.Event()
    stopped.set()
    first.loop.run(stopped)  # its end
    assert first.known() == [1.0, 2.0]
    second = Detector(trends, clock)
    second.add_point(3.0)
    second.add_point(4.0, after=timedelta(hours=6))
    assert second.known() == [1.0, 2.0, 3.0]


def test_each_hour_it_is_written_and_a_kill_loses_no_more(trends: PostgresTrends) -> None:
    clock = Clock()
    first = Detector(trends, clock)
    first.add_point(1.0, after=timedelta(hours=6))
    first.add_point(2.0, after=timedelta(hours=6))
    first.add_point(2.0, after=KEEP_TRENDS)
    second = Detector(trends, clock)
    second.add_point(2.0)
    assert second.known() == [1.0]


def test_a_database_that_is_away_stops_no_tick(
    trends: PostgresTrends, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    one = Detector(trends, clock)
    one.add_point(1.0)

    def away(*_: object) -> None:
        raise LedgerAway("the database does not answer")

    monkeypatch.setattr(trends, "write", away)
    one.add_point(1.0, after=KEEP_TRENDS)
    assert one.loop.problem == ""
