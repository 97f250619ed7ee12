"""Charts of reports: their parts of time, what is drawn, and the table as a file."""

import csv
import io
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree as ET

import pytest

from healer.console.views import report_charts_view, svg_charts
from healer.console.views.report_charts_view import Span, span_between
from healer.console.views.svg_charts import COLORS, Kind, Series, SvgChart, Unit
from healer.ports.answers import BucketFigure, BucketReviews, Buckets, BucketSpread, ChartFigures

NOW = datetime(2026, 11, 20, 3, 16, tzinfo=UTC)
DAYS = Buckets(start=datetime(2026, 11, 18, tzinfo=UTC), step_s=86400, count=3)


def last(**length: float) -> Span:
    return Span(since=NOW - timedelta(**length), until=NOW)


def drawn(figures: ChartFigures) -> dict[str, SvgChart]:
    return {chart.id: chart for chart in report_charts_view.charts(figures, DAYS, DAYS)}


def figure(bucket: int, name: str, value: float) -> BucketFigure:
    return BucketFigure(bucket=bucket, name=name, value=value)


@pytest.mark.parametrize(("days", "step_h"), [(0.5, 1), (1, 1), (7, 24), (30, 24), (90, 168)])
def test_parts_cover_the_period_from_a_whole_hour_or_day(days: float, step_h: int) -> None:
    span = last(days=days)
    parts = report_charts_view.buckets(span)
    assert parts.step_s == step_h * 3600
    assert parts.start <= span.since < parts.begin(1)
    assert parts.begin(parts.count - 1) < span.until <= parts.begin(parts.count)
    assert (parts.first, parts.end) == (span.since, span.until)
    assert len(report_charts_view.ticks(parts)) <= 8


def test_days_in_the_address_are_a_period_or_are_not_understood() -> None:
    span = span_between("2026-11-01", "2026-11-10", NOW)
    assert span is not None
    assert (span.since.isoformat(), span.until.isoformat()) == (
        "2026-11-01T00:00:00+00:00",
        "2026-11-11T00:00:00+00:00",
    )
    today = span_between("2026-11-20", "2026-11-20", NOW)
    assert today is not None and today.until == NOW
    for first, until in (("2026-11-10", "2026-11-01"), ("x", "2026-11-01"), ("2026-12-01", "2026-12-02"),
                         ("2020-01-01", "2026-11-01"), ("", "")):  # fmt: skip
        assert span_between(first, until, NOW) is None


def test_bars_are_stacked_and_the_largest_is_at_the_bottom() -> None:
    chart = drawn(
        ChartFigures(incidents=(figure(0, "fatal", 1), figure(0, "fabric", 3), figure(2, "fatal", 1)))
    )
    bars = chart["incidents"]
    assert [(each.name, each.values) for each in bars.series] == [
        ("fabric", (3, 0, 0)),
        ("fatal", (1, 0, 1)),
    ]
    root = ET.fromstring(svg_charts.svg(bars, str))
    found = [rect for rect in root.iter("rect") if (rect.get("class") or "").startswith("bar ")]
    bottoms = [float(rect.get("y", "")) + float(rect.get("height", "")) for rect in found]
    assert bottoms[0] == pytest.approx(svg_charts.HEIGHT - svg_charts.ROOM_BELOW)
    assert bottoms[1] == pytest.approx(float(found[0].get("y", "")), abs=0.02)
    assert bars.rows == (("2026-11-20", "0", "1"), ("2026-11-18", "3", "1"))


def test_capacity_out_of_service_is_stacked_by_actor_with_planned_work_last() -> None:
    hours = (figure(0, "planned", 48), figure(0, "person", 1.5), figure(1, "healer", 3))
    chart = drawn(ChartFigures(out=hours))["out"]
    assert [(str(each.name), each.values) for each in chart.series] == [
        ("healer", (0, 3, 0)),
        ("Slurm", (0, 0, 0)),
        ("people", (1.5, 0, 0)),
        ("unknown", (0, 0, 0)),
        ("planned maintenance", (48, 0, 0)),
    ]
    assert chart.rows[-1] == ("2026-11-18", "0", "0", "1.5", "0", "48")
    assert not chart.empty and drawn(ChartFigures())["out"].empty


def test_more_names_than_colors_share_the_last_one() -> None:
    many = tuple(figure(0, f"class{number:02}", 20 - number) for number in range(12))
    series = drawn(ChartFigures(incidents=many))["incidents"].series
    assert len(series) == svg_charts.COLORS
    assert (series[-1].name, series[-1].values[0]) == ("5 others", 13 + 12 + 11 + 10 + 9)


def test_a_line_breaks_where_nothing_was_measured() -> None:
    spreads = (BucketSpread(bucket=0, p50_s=-0.1, p90_s=60), BucketSpread(bucket=2, p50_s=1, p90_s=90))
    chart = drawn(ChartFigures(detect=spreads))["detect"]
    assert chart.series[0].values == (0.0, None, 1)
    root = ET.fromstring(svg_charts.svg(chart, str))
    assert [line for line in root.iter("line") if (line.get("class") or "").startswith("line")] == []
    assert len([dot for dot in root.iter("circle")]) == 4
    assert chart.rows == (("2026-11-20", "1 s", "1 min"), ("2026-11-18", "0 ms", "1 min"))


def test_precision_says_how_many_reviews_it_rests_on() -> None:
    reviews = (
        BucketReviews(bucket=0, rule="b", true_faults=1, false_alarms=1),
        BucketReviews(bucket=1, rule="a", true_faults=3, false_alarms=0),
    )
    chart = drawn(ChartFigures(reviews=reviews))["precision"]
    assert [(each.name, each.values, each.basis) for each in chart.series] == [
        ("a", (None, 1.0, None), (0, 3, 0)),
        ("b", (0.5, None, None), (2, 0, 0)),
    ]
    assert chart.rows[0] == ("2026-11-19", "100% of 3", "–")
    rows = list(csv.reader(io.StringIO(report_charts_view.csv_text(chart, str))))
    assert rows[0] == ["Time (UTC)", "a", "b", "a, reviewed", "b, reviewed"]
    assert rows[2] == ["2026-11-19", "1.0", "", "3", "0"]


@pytest.mark.parametrize(
    ("top", "unit", "lines"),
    [
        (0, Unit.whole, [0, 1]),
        (3, Unit.whole, [0, 1, 2, 3]),
        (39, Unit.whole, [0, 10, 20, 30, 40]),
        (0.7, Unit.hours, [0, 0.2, 0.4, 0.6, 0.8]),
        (71, Unit.seconds, [0, 20, 40, 60, 80]),
        (3 * 86400, Unit.seconds, [0, 86400, 172800, 259200]),
    ],
)
def test_the_axis_has_round_values(top: float, unit: Unit, lines: list[float]) -> None:
    assert svg_charts.grid_values(top, unit) == pytest.approx(lines)


@pytest.mark.parametrize("top", [0.007, 0.15, 0.18, 0.7, 2.5, 1200])
def test_lines_of_the_axis_have_different_labels(top: float) -> None:
    labels = [svg_charts.value_text(line, Unit.hours) for line in svg_charts.grid_values(top, Unit.hours)]
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize("note", ["By class", "By class."])
def test_a_chart_in_a_sentence_has_one_stop_after_its_note(note: str) -> None:
    chart = SvgChart(
        id="x", title="Incidents", note=note, kind=Kind.bars, unit=Unit.whole, times=("03:00",), ticks=(),
        series=(Series(name="fatal", values=(1,)),),
    )  # fmt: skip
    assert svg_charts.described(chart).startswith("By class. fatal: ")


def test_text_of_others_stays_text() -> None:
    name = "<script>alert(1)</script>"
    series = Series(name=name, values=(0.5,), basis=(2,))
    chart = SvgChart(
        id="precision", title="t", note="n", kind=Kind.matrix, unit=Unit.share, times=("now",),
        ticks=((0, "now"),), series=(series,),
    )  # fmt: skip
    assert "<script" not in svg_charts.svg(chart, str)
    assert report_charts_view.csv_text(
        SvgChart(
            id="x",
            title="t",
            note="n",
            kind=Kind.bars,
            unit=Unit.whole,
            times=("now",),
            ticks=(),
            series=(Series(name="=HYPERLINK(1)", values=(1,)),),
        ),
        str,
    ).startswith("Time (UTC),'=HYPERLINK(1)")


def test_a_count_in_the_file_has_no_decimals() -> None:
    chart = SvgChart(
        id="x", title="t", note="n", kind=Kind.bars, unit=Unit.whole, times=("now", "then"), ticks=(),
        series=(Series(name="a", values=(2.0, None)),),
    )  # fmt: skip
    assert report_charts_view.csv_text(chart, str).splitlines()[1:] == ["now,2", "then,"]


def test_hours_by_class_have_as_many_series_as_colors_and_hangs_and_slow_steps_are_one() -> None:
    spent = (figure(0, "productive", 90), figure(0, "hung", 2), figure(0, "slowed", 3))
    series = drawn(ChartFigures(goodput=spent))["goodput"].series
    assert len(series) == COLORS
    assert sorted(each.values[0] or 0 for each in series if any(each.values)) == [5, 90]
