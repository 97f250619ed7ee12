"""Charts: which are shown, what is added to them, what is shown beside them."""

import json
from datetime import UTC, datetime, timedelta

import msgspec
import numpy as np
import pytest

from healer.console import words
from healer.console.views import charts_view
from healer.model import Catalogue, Column, Part, Scope, Signal, SignalKind
from healer.model.detection import Chart, ChartLine, ChartMark
from healer.model.telemetry import Report
from tests.support.console_sample import NOW
from tests.support.console_telemetry import SLOW_NODE, clock_chart, slow_node

START = datetime(2026, 11, 20, 3, 0, tzinfo=UTC).timestamp()
CATALOGUE = Catalogue(
    signals={
        name: Signal(name=name, unit=unit, kind=kind, scope=Scope.gpu, text="", source="")
        for name, unit, kind in (
            ("clock_mhz", "MHz", SignalKind.gauge),
            ("errors_total", "count", SignalKind.counter),
        )
    }
)


def chart(**fields: object) -> Chart:
    given = {
        "title": "Clock",
        "unit": "MHz",
        "times": (START, START + 5),
        "lines": (
            ChartLine(label="GPU 3", role="own", values=(1700.0, 1300.0)),
            ChartLine(label="peers", role="peers", values=(1750.0, 1750.0)),
            ChartLine(label="limit", role="threshold", values=(1500.0, 1500.0)),
            ChartLine(label="85% of peers", role="threshold", values=(1480.0, 1490.0)),
        ),
        "signal": "clock_mhz",
        "node": "n1",
        "gpu": 3,
    }
    return Chart(**(given | fields))  # type: ignore[arg-type]


def report(after_s: float, value: float, gpu: int = 3) -> Report:
    at = datetime.fromtimestamp(START + after_s, UTC)
    return Report("c", "n1", at, at, np.array([gpu], np.int32), np.array([value]))


COLUMNS = {gpu: Column("clock_mhz", Part(gpu=gpu)) for gpu in range(8)}


def test_later_samples_of_the_same_part_continue_its_own_line() -> None:
    later = [report(3, 1.0), report(10, 1310.0), report(15, float("nan")), report(20, 1700.0, gpu=4)]
    made = charts_view.continued(chart(), CATALOGUE, later, COLUMNS)
    assert made.times == (START, START + 5, START + 10)
    own, peers, fixed, moving = (line.values for line in made.lines)
    assert own == (1700.0, 1300.0, 1310.0)
    assert peers == (1750.0, 1750.0, None)
    assert fixed == (1500.0, 1500.0, 1500.0)
    assert moving == (1480.0, 1490.0, None)


@pytest.mark.parametrize(
    "fields",
    [{"signal": "errors_total"}, {"signal": "unheard_of"}, {"unit": "GHz"}, {"x": "step"}, {"times": ()}],
)
def test_a_chart_that_cannot_be_continued_stays_as_it_was(fields: dict) -> None:
    made = chart(**fields)
    assert charts_view.continued(made, CATALOGUE, [report(10, 1.0)], COLUMNS) == made


def test_samples_long_after_the_chart_are_left_out() -> None:
    far = report(charts_view.LATER.total_seconds() + 60, 1.0)
    assert charts_view.continued(chart(), CATALOGUE, [far], COLUMNS).times == (START, START + 5)


def test_silence_breaks_the_line() -> None:
    times, (values,) = charts_view.with_gaps(
        (0.0, 5.0, 5.0 + charts_view.GAP_S + 1), [(1.0, 2.0, 3.0)], timed=True
    )
    assert values == [1.0, 2.0, None, 3.0]
    assert times == sorted(times)
    assert charts_view.with_gaps((0.0, 900.0), [(1.0, 2.0)], timed=False) == ([0.0, 900.0], [[1.0, 2.0]])


def test_events_outside_the_range_are_reported_and_not_drawn() -> None:
    at = datetime.fromtimestamp(START, UTC)
    marks = [ChartMark(at=at, label="opened"), ChartMark(at=at + timedelta(days=1), label="returned")]
    view = charts_view.chart_view("c1", chart(), marks)
    assert [(one.label, one.drawn) for one in view.moments] == [("opened", True), ("returned", False)]
    assert [mark["l"] for mark in view.data["m"]] == ["opened"]


def test_the_table_says_what_the_chart_says() -> None:
    many = chart(
        times=tuple(START + 5 * slot for slot in range(180)),
        lines=(ChartLine(label="GPU 3", role="own", values=(*([1700.0] * 178), None, 1234.0)),),
    )
    view = charts_view.chart_view("c1", many)
    assert len(view.rows) <= charts_view.TWIN_ROWS + 1
    assert view.rows[0] == ("03:00:00", "1,700 MHz")
    assert view.rows[-1] == ("03:14:55", "1,234 MHz")
    assert view.label == "Clock: GPU 3 ends at 1,234 MHz."


def test_values_that_are_no_numbers_are_drawn_as_unknown() -> None:
    odd = chart(lines=(ChartLine(label="x", role="own", values=(float("nan"), float("inf"))),))
    view = charts_view.chart_view("c1", odd)
    assert json.loads(json.dumps(view.data, allow_nan=False))["s"][0]["v"] == [None, None]
    assert view.label == "Clock: no values."
    assert view.rows[0][1] == "unknown"


def test_an_incident_shows_the_newest_finding_of_each_fault_and_four_charts_at_most() -> None:
    detail = slow_node(("4711",))
    clock = detail.findings[0]
    older = msgspec.structs.replace(clock, at=clock.at - timedelta(minutes=5), text="older")
    many = tuple(msgspec.structs.replace(clock_chart(), gpu=gpu) for gpu in (0, 1, 2, 3))
    more = msgspec.structs.replace(clock, fault="other", charts=many)
    detail = msgspec.structs.replace(detail, findings=(older, *detail.findings, more))
    shown = charts_view.incident_charts(detail, CATALOGUE)
    assert "older" not in [one.text for one in shown]
    assert sum(len(one.charts) for one in shown) == charts_view.CHARTS_SHOWN
    assert [one.fault for one in shown if one.why] == ["unusual-node"]
    assert len({chart.id for one in shown for chart in one.charts}) == charts_view.CHARTS_SHOWN


def test_a_signal_that_two_rules_watch_is_drawn_once() -> None:
    detail = slow_node(())
    clock = detail.findings[0]
    again = msgspec.structs.replace(clock, fault="other", text="again", at=clock.at - timedelta(seconds=9))
    shown = charts_view.incident_charts(msgspec.structs.replace(detail, findings=(clock, again)), CATALOGUE)
    assert [(one.fault, len(one.charts)) for one in shown] == [(clock.fault, 2), ("other", 0)]


def test_the_moments_of_an_incident() -> None:
    assert [mark.label for mark in charts_view.incident_moments(slow_node(()))] == [
        "opened",
        "decided",
        "drained",
    ]


def test_later_samples_are_asked_for_while_they_are_kept() -> None:
    found = slow_node(()).findings
    wanted = charts_view.later_since(found, NOW)
    assert wanted is not None and wanted[0] == SLOW_NODE
    assert charts_view.later_since(found, NOW + timedelta(hours=3)) is None
    assert charts_view.later_since((), NOW) is None


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1290.4, "MHz", "1,290 MHz"), (98.0, "%", "98%"), (1.1834, "ratio", "1.183"), (-0.26, "", "−0.26"),
        (0.0, "W", "0 W"), (0.004217, "/s", "0.00422 /s"), (655.25, "W", "655.2 W"), (None, "W", ""),
        (float("nan"), "W", ""), (2e-9, "/s", "2e−09 /s"),
    ],
)  # fmt: skip
def test_figures_in_words(value: float | None, unit: str, text: str) -> None:
    assert words.figure(value, unit) == text
