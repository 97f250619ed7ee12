"""When a node last spoke, and what its follower lost."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import httpx
import pytest
import sqlalchemy as sa

from healer.model import Role
from healer.ports.signal_stores import Arrival
from healer.signals.wire import heartbeat_observations
from tests.support.api import CLUSTER, Api, serving


@pytest.fixture
def served(fresh_database: sa.Engine) -> Iterator[tuple[Api, httpx.Client]]:
    with serving(fresh_database) as both:
        yield both


def test_a_node_shows_when_its_follower_spoke_and_how_many_lines_it_lost(
    served: tuple[Api, httpx.Client],
) -> None:
    api, client = served
    body = {"node": "gpu0001", "time": datetime.now(UTC).isoformat(), "lost": 41}
    answer = client.post("/api/v1/signals/heartbeat", json=body, headers=api.headers(Role.signals))
    assert answer.json()["accepted"] == 1, answer.text
    since = datetime.now(UTC) - timedelta(minutes=1)
    assert api.services.queries.signals.heard(CLUSTER, "gpu0001", since).heartbeat_at is not None
    assert api.services.queries.signals.heard(CLUSTER, "gpu0002", since).heartbeat_at is None
    viewer = api.headers(Role.viewer)
    shown = client.get("/api/v1/nodes/pod1/gpu0001", headers=viewer).json()["heard"]
    assert datetime.fromisoformat(shown["heartbeat_at"]) > since and "hook_at" not in shown
    assert shown["lines_lost"] == 41
    assert client.get("/api/v1/nodes/pod1/gpu0002", headers=viewer).json()["heard"] == {}


@pytest.mark.parametrize("lost", [-1, 1.5, "many", 2**60])
def test_a_count_that_is_none_is_rejected(served: tuple[Api, httpx.Client], lost: object) -> None:
    api, client = served
    body = {"node": "gpu0001", "lost": lost}
    answer = client.post("/api/v1/signals/heartbeat", json=body, headers=api.headers(Role.signals)).json()
    assert answer["accepted"] == 0 and "lost" in answer["rejected"][0]["reason"]


@pytest.mark.parametrize("ahead_s", [42.0, -42.0, 8 * 3600.0])
def test_a_node_shows_how_far_its_clock_is_off_by_the_quickest_of_its_words(
    served: tuple[Api, httpx.Client], ahead_s: float
) -> None:
    api, client = served
    viewer = api.headers(Role.viewer)
    for late_s in (300.0, 0.0, 20.0):  # the first and the last were long on their way
        at = datetime.now(UTC) + timedelta(seconds=ahead_s - late_s)
        body = {"node": "gpu0001", "time": at.isoformat()}
        # Not by the route: of beats within a second it stores one.
        parsed = heartbeat_observations(body, lambda *_: True, datetime.now(UTC), cluster=CLUSTER)
        api.signals.store([Arrival(one) for one in parsed.observations])
    skew_s = client.get("/api/v1/nodes/pod1/gpu0001", headers=viewer).json()["heard"]["clock_skew_s"]
    assert ahead_s - 5 < skew_s <= ahead_s
    other = client.get("/api/v1/nodes/pod1/gpu0002", headers=viewer).json()["heard"]
    assert "clock_skew_s" not in other
