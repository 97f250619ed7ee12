"""The anomaly score of a node is in its answer, by scorer, and only for that node."""

from collections.abc import Iterator
from datetime import UTC, datetime

import httpx
import msgspec
import pytest
import sqlalchemy as sa

from healer.adapters.postgres.forest_rows import keep_unusual
from healer.model import Role
from tests.support.api import CLUSTER, Api, serving
from tests.support.console_telemetry import unusual as scored


@pytest.fixture
def served(fresh_database: sa.Engine) -> Iterator[tuple[Api, httpx.Client]]:
    with serving(fresh_database) as both:
        yield both


def test_node_shows_its_anomaly_score(served: tuple[Api, httpx.Client], fresh_database: sa.Engine) -> None:
    api, client = served
    known = scored(CLUSTER, "gpu0001")
    assert known is not None
    keep_unusual(fresh_database, [msgspec.structs.replace(known, at=datetime.now(UTC))])
    viewer = api.headers(Role.viewer)
    shown = client.get(f"/api/v1/nodes/{CLUSTER}/gpu0001", headers=viewer).json()["unusual"]
    assert [way["way"] for way in shown["ways"]] == ["forest"]
    assert shown["ways"][0]["score"] > shown["ways"][0]["threshold"]
    assert shown["ways"][0]["parts"][0]["feature"] == "SM clock, slowest; own past"
    other = client.get(f"/api/v1/nodes/{CLUSTER}/gpu0002", headers=viewer).json()
    assert other.get("unusual") is None
