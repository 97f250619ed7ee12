"""What a Prometheus-compatible server answers for the chart of a node."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from healer.model import Column, Part
from healer.processes.metric_history import PromqlHistory
from healer.sim.stores import MemoryColumns
from tests.support.loop import CLUSTER, shipped

NOW = datetime(2026, 11, 20, 3, tzinfo=UTC)
STEP_S = 72


class Server:
    """Answers each query with these points of GPU 0."""

    def __init__(self, *points: tuple[float, float]) -> None:
        values = [[at, str(value)] for at, value in points]
        metric = {"__name__": "DCGM_FI_DEV_GPU_TEMP", "gpu": "0", "Hostname": "gpu0001"}
        data = {"resultType": "matrix", "result": [{"metric": metric, "values": values}]}
        self.answer = json.dumps({"status": "success", "data": data}).encode()

    def query_range(self, *_: Any) -> bytes:
        return self.answer

    query = names = query_range


def test_points_far_from_the_period_are_not_drawn() -> None:
    """A server may align its points to the step; one that made them up must not take the page down."""
    since, until = (at.timestamp() for at in (NOW - timedelta(hours=6), NOW))
    good = [(since - STEP_S / 2, 60.0), (since + 1, 61.0), (until, 62.0)]
    made_up = [(-5.0, 1.0), (until + 1e9, 2.0), (1e300, 3.0)]
    history = PromqlHistory(
        Server(*made_up[:1], *good, *made_up[1:]), shipped().catalogue, MemoryColumns(), CLUSTER
    )
    found = history.node("gpu0001", "gpu_temp_c", NOW - timedelta(hours=6), NOW, STEP_S, lambda *_: True)
    assert found == {Column("gpu_temp_c", Part(gpu=0)): good}
