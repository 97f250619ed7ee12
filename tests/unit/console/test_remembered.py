"""The chart of a node over more than healer itself keeps."""

from datetime import UTC, datetime

import numpy as np
import pytest

from healer.console.views.node_view import NodeNow, remembered_chart
from healer.model import Column, Part
from healer.ports.measurements import Points
from healer.text import to_plain
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


def _chart_with_jump(at_point: int | None) -> list[str]:
    """The words of the marks in a chart of 300 points over a day, with a jump of five minutes or none."""
    start, random = NOW.timestamp() - 86_400, np.random.default_rng(20_261_125)
    values = 60 + random.normal(0, 1, (300, 4))
    if at_point is not None:
        values[at_point : at_point + 10, 2] += 15
    points: Points = {
        Column("gpu_temp_c", Part(gpu=gpu)): [
            (start + 288 * step, float(value)) for step, value in enumerate(values[:, gpu])
        ]
        for gpu in range(4)
    }
    view = remembered_chart(points, shipped().catalogue.signals["gpu_temp_c"], NODE, hours=24)
    begins = [round((mark["t"] - start) / 288) for mark in view.data["m"]]
    return [f"{to_plain(mark['l'])} at {begin}" for mark, begin in zip(view.data["m"], begins, strict=True)]


def test_unusual_values_are_marked_where_they_begin() -> None:
    (mark,) = _chart_with_jump(200)
    word, _, begin = mark.rpartition(" at ")
    assert word == "unusual"
    assert 200 <= int(begin) <= 205


@pytest.mark.parametrize("at_point", [None, 40])
def test_a_healthy_half_and_the_half_that_is_learnt_from_have_no_marks(at_point: int | None) -> None:
    assert _chart_with_jump(at_point) == []


def test_a_server_that_remembers_nothing_gives_an_empty_chart() -> None:
    signal = shipped().catalogue.signals["gpu_temp_c"]
    assert remembered_chart({}, signal, NODE, hours=6).data["s"] == []
