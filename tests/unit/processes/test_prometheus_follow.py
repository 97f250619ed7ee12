"""What a Prometheus-compatible server received since the last question, each sample once."""

import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from healer.model.telemetry import Report
from healer.ports.measurements import HasNode, HistoryAway, Points
from healer.processes.prometheus_follow import LATE, PrometheusFollow
from tests.support.loop import shipped

START = datetime(2026, 11, 25, 3, 0, 0, 400_000, tzinfo=UTC)
CATALOGUE = shipped().catalogue


class _Server:
    """Has one sample a second, and may be away."""

    name = "prometheus"

    def __init__(self) -> None:
        self.asked: list[tuple[datetime, datetime]] = []
        self.is_away = False

    def between(
        self, since: datetime, until: datetime, has_node: HasNode, *, go_on: Callable[[], bool] = lambda: True
    ) -> list[Report]:
        if self.is_away:
            raise HistoryAway("it does not answer")
        self.asked.append((since, until))
        times = [since + timedelta(seconds=n + 0.5) for n in range(round((until - since).total_seconds()))]
        return [Report("pod1", "gpu0001", at, at, np.array([1]), np.array([1.0])) for at in times]

    def node(
        self, node: str, signal: str, since: datetime, until: datetime, step_s: int, has_node: HasNode
    ) -> Points:
        return {}


def _fetched(follow: PrometheusFollow, after_s: float) -> list[datetime]:
    now = START + timedelta(seconds=after_s)
    measured = follow.fetch(CATALOGUE, lambda *_: True, now)
    assert measured.samples == len(measured.reports)
    assert all(report.arrived_at == now for report in measured.reports)
    return [report.at for report in measured.reports]


def test_questions_neither_overlap_nor_leave_a_gap() -> None:
    server = _Server()
    follow = PrometheusFollow(lambda _: server)
    times = [at for after_s in (0, 15, 29.9, 45.3) for at in _fetched(follow, after_s)]
    assert times == sorted(set(times))
    assert {after - before for before, after in itertools.pairwise(times)} == {timedelta(seconds=1)}
    assert times[-1] <= START + timedelta(seconds=45.3) - LATE


def test_the_time_of_a_failed_question_is_asked_for_again_up_to_a_minute() -> None:
    server = _Server()
    follow = PrometheusFollow(lambda _: server)
    before = _fetched(follow, 0)
    server.is_away = True
    for after_s in (15, 30):
        with pytest.raises(HistoryAway):
            _fetched(follow, after_s)
    server.is_away = False
    assert _fetched(follow, 45)[0] == before[-1] + timedelta(seconds=1)
    assert len(_fetched(follow, 600)) == 60


def test_a_second_question_in_the_same_second_asks_nothing() -> None:
    server = _Server()
    follow = PrometheusFollow(lambda _: server)
    _fetched(follow, 0)
    assert _fetched(follow, 0.1) == []
    assert len(server.asked) == 1


def test_a_changed_catalogue_makes_a_new_history() -> None:
    made: list[object] = []

    def history_of(catalogue: object) -> _Server:
        made.append(catalogue)
        return _Server()

    follow = PrometheusFollow(history_of)
    changed = type(CATALOGUE)(signals=dict(CATALOGUE.signals))
    for catalogue in (CATALOGUE, CATALOGUE, changed):
        follow.fetch(catalogue, lambda *_: True, START)
    assert made == [CATALOGUE, changed]
