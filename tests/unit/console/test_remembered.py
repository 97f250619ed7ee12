"""The chart of a node over more than healer itself keeps."""

from datetime import UTC, datetime

from healer.console.views.node_view import NodeNow, remembered_chart
from healer.model import Column, Part
from tests.support.loop import shipped

NOW = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
NODE = NodeNow(name="gpu0001", gpus=8, incidents=[], now=NOW)


def test_points_far_apart_are_one_line_and_silence_breaks_it() -> None:
    start = NOW.timestamp() - 86_400
    points = [(start + 288 * step, 50.0 + step) for step in range(10)]
    points += [(at + 288 * 40, value) for at, value in points]
    signal = shipped().catalogue.signals["gpu_temp_c"]
    view = remembered_chart({Column("gpu_temp_c", Part(gpu=3)): points}, signal, NODE, hours=24)
    (line,) = view.data["s"]
    assert line["l"] == "GPU 3"
    assert line["v"] == [*(50.0 + step for step in range(10)), None, *(50.0 + step for step in range(10))]


def test_a_server_that_remembers_nothing_gives_an_empty_chart() -> None:
    signal = shipped().catalogue.signals["gpu_temp_c"]
    assert remembered_chart({}, signal, NODE, hours=6).data["s"] == []
