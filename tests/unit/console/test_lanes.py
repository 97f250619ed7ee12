"""Lanes over one time axis: the layout of marks and spans, an incident at a glance and a node's life line."""

import csv
import io
import itertools
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from healer.console.views import glance_view, life_view, svg_lanes
from healer.console.views.svg_lanes import Lane, LaneChart, Mark, Span
from healer.model import FaultBurst, FaultClass, Inventory, SlurmNode
from healer.model.telemetry import StepBatch
from healer.ports.answers import NodeLife, NodeStep, OutOfService

NOW = datetime(2026, 11, 20, 3, 16, tzinfo=UTC)


def before(**length: float) -> datetime:
    return NOW - timedelta(**length)


def chart_of(*lanes: Lane, hours: float = 100, zero: datetime | None = None) -> LaneChart:
    return LaneChart(
        id="x", title="Title", note="note", since=before(hours=hours), until=NOW, lanes=lanes, zero=zero
    )


def lane(*each: Mark | Span) -> Lane:
    return Lane(
        name="Lane",
        marks=tuple(one for one in each if isinstance(one, Mark)),
        spans=tuple(one for one in each if isinstance(one, Span)),
    )


def drawn(chart: LaneChart) -> ET.Element:
    return ET.fromstring(svg_lanes.lanes_svg(chart, str))


def bar_of(chart: LaneChart, only: Lane) -> tuple[float, float, Span]:
    """Begin and length of its only bar, and the bar's only span."""
    (bar,) = svg_lanes.placed_spans(chart, only)
    (span,) = bar.spans
    return bar.x, bar.end - bar.x, span


def test_the_file_has_every_row_with_times_that_a_program_reads() -> None:
    lasts = Span(begin=before(hours=2), end=None, text="=cmd()")
    marks = (Mark(at=before(hours=1, seconds=number), text=f"mark {number}") for number in range(600))
    rows = svg_lanes.csv_text(chart_of(lane(lasts, *marks)), str).splitlines()
    assert len(rows) == 602
    assert rows[0] == "Time (UTC),Until (UTC),Lane,What"
    assert rows[1] == "2026-11-20T02:16:00.000Z,2026-11-20T02:16:00.000Z,Lane,mark 0"
    assert rows[-1] == "2026-11-20T01:16:00.000Z,,Lane,'=cmd()"


def pieces(file: str, separator: str, *, quoted: bool) -> list[str]:
    """The cells of a file as a spreadsheet with this separator reads it."""
    quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    return [
        cell for row in csv.reader(io.StringIO(file), delimiter=separator, quoting=quoting) for cell in row
    ]


@pytest.mark.parametrize(
    "formula", ["=cmd|'/c calc'!A1", "@SUM(1)", "+1", "-1", " =1", "＝1", '"=1"', '=HYPERLINK("x","y")']
)
@pytest.mark.parametrize(
    "before_it", ["", "GPU lost; ", "GPU lost;", "GPU lost\t", "GPU lost\n", "GPU, lost;"]
)
def test_no_spreadsheet_of_any_country_runs_what_a_sender_wrote(before_it: str, formula: str) -> None:
    """One whose country writes decimals with a comma splits a file at semicolons."""
    mark = Mark(at=before(hours=1), text=before_it + formula)
    file = svg_lanes.csv_text(chart_of(lane(mark)), str)
    cells = [
        cell
        for by in (",", ";", "\t")
        for quoted in (True, False)
        for cell in pieces(file, by, quoted=quoted)
    ]
    assert [cell for cell in cells if cell.strip(' "')[:1] in tuple("=+-@＝＋－＠")] == []


def test_many_steps_are_few_bars_and_few_rows() -> None:
    many = lane(*(
        Span(begin=before(minutes=number), end=before(minutes=number), text=f"step {number}", tone=tone)
        for number in range(3000) for tone in ("good", "bad")
    ))  # fmt: skip
    chart = chart_of(many)
    bars = svg_lanes.placed_spans(chart, many)
    assert len(bars) <= 2 * (1 / svg_lanes.THIN + 1)
    assert sum(len(bar.spans) for bar in bars) == 6000
    assert max(len(str(title.text).splitlines()) for title in drawn(chart).iter("title")) < 20
    assert (len(chart.rows), chart.rows[0].text, chart.more_rows) == (svg_lanes.ROWS, "step 0", 5500)


def test_marks_that_fall_together_are_one_with_the_worst_tone() -> None:
    near = lane(
        Mark(at=before(hours=49), text="late"),
        Mark(at=before(hours=50), text="early", tone="bad"),
        Mark(at=before(hours=10), text="alone", tone="good"),
    )
    groups = svg_lanes.placed_marks(chart_of(near), near)
    assert [([mark.text for mark in group.marks], group.tone) for group in groups] == [
        (["early", "late"], "bad"),
        (["alone"], "good"),
    ]
    assert groups[0].x == pytest.approx(0.5)


def test_a_mark_joins_the_first_of_a_group_so_that_a_row_of_them_is_no_single_one() -> None:
    row = lane(*(Mark(at=before(hours=50 - number), text=str(number)) for number in range(10)))
    assert len(svg_lanes.placed_marks(chart_of(row), row)) == 4


def test_a_span_without_an_end_lasts_to_the_end_of_the_axis() -> None:
    lasting = lane(Span(begin=before(hours=25), end=None, text="out"))
    begin, length, _ = bar_of(chart_of(lasting), lasting)
    assert (begin, length) == (pytest.approx(0.75), pytest.approx(0.25))
    assert "since 2026-11-19" in "".join(drawn(chart_of(lasting)).itertext())


def test_times_outside_are_left_out_and_spans_are_cut() -> None:
    beyond = lane(
        Mark(at=before(hours=101), text="before"),
        Mark(at=NOW + timedelta(seconds=1), text="after"),
        Span(begin=before(hours=200), end=before(hours=50), text="cut"),
        Span(begin=before(hours=200), end=before(hours=150), text="before"),
        Span(begin=NOW + timedelta(hours=1), end=None, text="after"),
    )
    chart = chart_of(beyond)
    assert svg_lanes.placed_marks(chart, beyond) == []
    begin, length, span = bar_of(chart, beyond)
    assert (begin, length, span.text) == (0.0, pytest.approx(0.5), "cut")
    assert [row.text for row in chart.rows] == ["cut"]


def test_a_short_span_is_still_seen_and_does_not_leave_the_axis() -> None:
    short = lane(Span(begin=before(seconds=1), end=NOW, text="short"))
    begin, length, _ = bar_of(chart_of(short), short)
    assert length == pytest.approx(svg_lanes.THIN) and begin + length <= 1


def test_an_empty_lane_says_so() -> None:
    chart = chart_of(lane(), Lane(name="Drains", marks=(Mark(at=before(hours=3), text="one"),)))
    names = [text.text for text in drawn(chart).iter("text") if text.get("class") == "lane"]
    assert names == ["Lane: none", "Drains"]


def test_a_chart_without_length_and_without_lanes_is_drawn() -> None:
    assert drawn(chart_of(lane(Mark(at=NOW, text="now")), hours=0)).get("role") == "img"
    assert drawn(chart_of()).get("height") == str(svg_lanes.ROOM_BELOW)


def test_the_axis_about_a_moment_shows_seconds_and_days_apart() -> None:
    zero = before(hours=99)
    chart = chart_of(hours=100, zero=zero)
    places = [chart.place(zero + timedelta(seconds=seconds)) for seconds in (-10, 0, 3, 60, 3600, 99 * 3600)]
    assert places == sorted(places) and places[-1] == 1
    assert all(after - here > 0.05 for here, after in itertools.pairwise(places))
    assert chart.place(zero - timedelta(days=400)) == 0


def test_labels_of_the_axis_keep_apart_and_the_moment_itself_stays() -> None:
    zero = before(seconds=20)
    chart = LaneChart(
        id="x", title="t", note="n", since=zero, until=NOW, lanes=(), zero=zero,
        ticks=svg_lanes.offset_ticks(zero),
    )  # fmt: skip
    assert [str(label) for _, label in svg_lanes.placed_ticks(chart)] == ["0", "+1 s", "+10 s"]
    months = svg_lanes.month_ticks(before(days=365), NOW)
    assert [label for _, label in months][::11] == ["2025-12", "2026-11"]


def test_moments_are_numbered_by_time_and_named_in_the_description() -> None:
    found = Mark(at=before(hours=60), text="found", moment="Detected")
    chart = chart_of(lane(Mark(at=before(hours=9), text="x", moment="Drained"), found), lane(found))
    assert [mark.moment for mark in chart.moments] == ["Detected", "Drained"]
    root = drawn(chart)
    numbers = [text.text for text in root.iter("text") if text.get("class") == "number"]
    assert numbers == ["1", "2", "1"]
    assert "Detected: 2026-11-17 15:16:00 UTC" in (root.findtext("desc") or "")


def test_without_moments_a_number_counts_marks_that_fall_together() -> None:
    marks = (Mark(at=before(hours=hours), text="x") for hours in (5, 5.1, 40))
    root = drawn(chart_of(lane(*marks)))
    assert [text.text for text in root.iter("text") if text.get("class") == "number"] == ["2"]


def test_a_narrow_screen_keeps_the_label_of_the_moment_itself() -> None:
    zero = before(seconds=60)
    chart = LaneChart(
        id="x", title="t", note="n", since=zero - timedelta(seconds=1), until=NOW, lanes=(), zero=zero,
        ticks=svg_lanes.offset_ticks(zero),
    )  # fmt: skip
    always = [text.text for text in drawn(chart).iter("text") if text.get("class") == "x"]
    assert always == ["0", "+10 s"]


def test_many_marks_at_once_name_the_first_and_count_the_rest() -> None:
    marks = (Mark(at=before(hours=5), text=f"line {number} <b>") for number in range(20))
    titles = [title.text or "" for title in drawn(chart_of(lane(*marks))).iter("title")]
    assert titles[-1].count("\n") == 8 and titles[-1].endswith("and 12 more") and "<b>" in titles[-1]


def batch(restart: int, steps: list[int], at: datetime, **fields: Any) -> StepBatch:
    count = len(steps)
    whole, real = np.zeros(count, np.int32), np.zeros(count)
    times = np.array([at.timestamp() + number for number in range(count)])
    return StepBatch(
        cluster="pod1", job="1", restart=restart, arrived_at=at, nodes=(), rank=whole,
        step=np.array(steps, np.int64), at=times, node=whole, gpu=whole, stage=whole, step_s=real,
        compute_s=real, comm_s=real, data_s=real, work=real, loss=real, grad_norm=real, **fields,
    )  # fmt: skip


def test_steps_are_seen_by_life_and_unfinished_ones_are_not() -> None:
    seen = glance_view.steps_seen(
        [
            batch(1, [70, 71], before(minutes=1)),
            batch(0, [80, 81, 82], before(minutes=9)),
            batch(0, [83], before(minutes=8)),
            batch(2, [99], NOW, doing=np.zeros(1, np.int8)),
            batch(3, [], NOW),
        ]
    )
    assert [(one.restart, one.first, one.last) for one in seen] == [(0, 80, 83), (1, 70, 71)]
    assert seen[0].end == before(minutes=8)


def life_of(shown: SlurmNode, **fields: Any) -> dict[str, Lane]:
    inventory = Inventory(
        node="gpu0001",
        at=NOW,
        facts={},
        changed={"driver": ("580.95.05", before(days=3))},
        earlier=[("driver", "570.86", before(days=200))],
    )
    chart = life_view.life_line(NodeLife(**fields), shown, inventory, NOW)
    return {str(each.name): each for each in chart.lanes}


def test_a_life_line_has_drains_repairs_parts_and_versions() -> None:
    burst = FaultBurst(
        cluster="pod1", node="gpu0001", part="GPU-1", fault="part-replaced", pci="0000:9b:00",
        fault_class=FaultClass.informational, began_at=before(days=9), last_at=before(days=9),
    )  # fmt: skip
    found = life_of(
        SlurmNode(name="gpu0001", state=("IDLE",)),
        outs=(OutOfService(drained_at=before(days=12), released_at=before(days=8)),),
        steps=(NodeStep(at=before(days=8), verb="resume", run="run-1"),),
        parts=(burst,),
    )
    assert [span.text for span in found["Out of service"].spans] == ["out of service by healer"]
    (back,) = found["Repairs and returns"].marks
    assert (back.text, back.tone, back.url) == ("returned to service", "good", "/runs/run-1")
    assert [mark.text for mark in found["Replaced GPUs"].marks] == ["GPU-1 is new at 0000:9b:00"]
    assert [mark.text for mark in found["Versions and boot"].marks] == [
        "NVIDIA driver changed to 570.86",
        "NVIDIA driver changed to 580.95.05",
    ]


def test_a_drain_that_only_slurm_knows_lasts_until_now() -> None:
    shown = SlurmNode(
        name="gpu0001", state=("IDLE", "DRAIN"), reason="PSU", reason_user="ann", reason_at=before(days=2)
    )
    (span,) = life_of(shown)["Out of service"].spans
    assert (span.text, span.end) == ("out of service by ann", None)
    ours = OutOfService(drained_at=before(days=2))
    assert len(life_of(shown, outs=(ours,))["Out of service"].spans) == 1
