"""The score board as pictures: each figure with its bounds, the baseline below it, and the goal.

They are drawn from a kept run (`docs/scoreboard.json`), so that page and figures are one.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree as Xml

#: Rows of a board: (name, figures by column), None where nothing was measured.
Rows = Sequence[tuple[str, Mapping[str, float | None]]]


@dataclass(frozen=True, slots=True)
class Dot:
    """A figure with its bounds; infinite: never."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart. `ours` is healer's; of a baseline the circle is empty."""

    name: str
    dot: Dot
    ours: bool
    goal: float | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """`ticks`: the labelled figures of the axis, the first and the last are its ends. `more`: whether more is
    better, for the words of the goal."""

    file: str
    title: str
    ticks: tuple[float, ...]
    lines: tuple[Line, ...]
    more: bool
    log: bool = False


# --- which figures ---

#: Recall, delay in s, by case; None: no goal.
_SLOW: Mapping[str, tuple[float, float | None]] = {
    "equal, 5% slower": (0.98, 15),
    "unequal, 10% slower": (0.95, 400),
    "trace, 10% slower": (0.95, 600),
    "trace, 20% slower": (1.0, 150),
    "equal, 10% slower from the first step": (0.95, 120),
    "unequal, 10% slower from the first step": (0.95, None),
    "trace, 10% slower from the first step": (0.95, None),
}
_NEVER_SLOW = ("equal, nobody slow", "unequal, nobody slow", "trace, nobody slow")
_FALSE_GOAL, _F1_GOAL, _LEMON_GOAL = 0.2, 0.60, 0.40


SLOW_NODES, METRICS = (
    f"{what}, simulated by another author" for what in ("Slow nodes", "Metrics around jobs")
)


def shown(boards: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The boards that have pictures; of each kind the last, which has the fresh seed."""
    by_kind = {board["title"].split(":")[0]: board for board in boards}
    return [by_kind[kind] for kind in (SLOW_NODES, METRICS)]


def charts_of(boards: Sequence[dict[str, Any]]) -> Iterator[Chart]:
    slow, metrics = ([(row["name"], row["figures"]) for row in board["rows"]] for board in shown(boards))
    yield from _slow_nodes(slow)
    yield _metrics(metrics)


def _slow_nodes(rows: Rows) -> Iterator[Chart]:
    pairs = [(rows[at], rows[at + 1]) for at in range(0, len(rows), 2)]
    recall, delay, wrong = list[Line](), list[Line](), list[Line]()
    for ours, baseline in pairs:
        goals = _SLOW.get(ours[0], (None, None))
        for (name, figures), is_ours in ((ours, True), (baseline, False)):
            if ours[0] in _NEVER_SLOW:
                dot = Dot(_at(figures, "a job-day"), _at(figures, "from"), _at(figures, "to"))
                wrong.append(Line(name.strip(), dot, is_ours, _FALSE_GOAL if is_ours else None))
                continue
            share = _at(figures, "recall")
            recall.append(
                Line(name.strip(), Dot(share, _at(figures, "recall from"), share), is_ours, goals[0])
            )
            seconds = _at(figures, "delay s")
            delay.append(Line(name.strip(), Dot(seconds, seconds, _at(figures, "to s")), is_ours, goals[1]))
    yield Chart("recall", "Slow nodes that are found, and the lower bound", _SHARES, tuple(recall), more=True)
    seconds = (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
    yield Chart(
        "delay",
        "Median delay until they are found, s, and the upper bound",
        seconds,
        tuple(delay),
        more=False,
        log=True,
    )
    yield Chart(
        "false-alarms",
        "False alarms a job-day where nobody is slow",
        (0.01, 0.1, 1.0, 10.0, 100.0),
        tuple(wrong),
        more=False,
        log=True,
    )


_SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def _metrics(rows: Rows) -> Chart:
    lines = tuple(
        Line(
            f"of these, {name.strip()}" if 0 < index < _OWN_ROWS else name,
            Dot(_at(figures, "F1"), _at(figures, "F1 from"), _at(figures, "F1 to")),
            index < _OWN_ROWS,
            _F1_GOAL if index == 0 else None,
        )
        for index, (name, figures) in enumerate(rows)
    )
    return Chart("metrics", "Anomalies of metrics: F1 of events", _SHARES, lines, more=True)


#: healer's rows of the board of metrics: all series, and those with and without anomalies in their past.
_OWN_ROWS = 3


def _at(figures: Mapping[str, float | None], column: str) -> float:
    """JSON knows no infinity: a delay that is not there is one."""
    value = figures[column]
    return math.inf if value is None else value


# --- how they are drawn ---

WIDE, LEFT, RIGHT, TOP, STEP, FOOT = 820, 330, 690, 48, 22, 54
_OURS, _THEIRS, _GOAL, _INK, _FAINT = "#1f6f54", "#8a8f98", "#b4541a", "#22262b", "#d9dce0"


def svg_of(chart: Chart) -> str:
    """The same chart gives the same bytes."""
    high = TOP + STEP * len(chart.lines) + FOOT
    root = Xml.Element(
        "svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDE} {high}", role="img", width=str(WIDE)
    )
    Xml.SubElement(root, "title").text = chart.title
    Xml.SubElement(root, "rect", width=str(WIDE), height=str(high), fill="white")
    _write(root, 16, 24, chart.title, font_size="15", font_weight="600")
    bottom = TOP + STEP * len(chart.lines)
    for tick in chart.ticks:
        x = _x(chart, tick)
        _draw(root, x, TOP - 8, x, bottom, _FAINT)
        _write(root, x, bottom + 16, f"{tick:g}", _THEIRS, text_anchor="middle")
    for index, line in enumerate(chart.lines):
        _draw_line(root, chart, line, TOP + STEP * index + STEP / 2)
    _legend(root, chart, bottom + 40)
    Xml.indent(root)
    return Xml.tostring(root, encoding="unicode") + "\n"


def _draw_line(root: Xml.Element, chart: Chart, line: Line, y: float) -> None:
    ink = _OURS if line.ours else _THEIRS
    _write(root, 16 if line.ours else 30, y + 4, line.name, ink=_INK if line.ours else _THEIRS)
    dot, x = line.dot, _x(chart, line.dot.value)
    if line.goal is not None and line.ours:
        goal = _x(chart, line.goal)
        _draw(root, goal, y - 9, goal, y + 9, _GOAL, width=2)
    _draw(root, _x(chart, dot.low), y, _x(chart, dot.high), y, ink, width=2)
    if math.isfinite(dot.value):
        fill = ink if line.ours else "white"
        Xml.SubElement(
            root, "circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r="4.5", fill=fill, stroke=ink, attrib=_STROKE
        )
    _write(root, RIGHT + 16, y + 4, _said(dot), ink=ink)


_STROKE = {"stroke-width": "1.5"}


def _said(dot: Dot) -> str:
    if not math.isfinite(dot.value):
        return "not found"
    ends = [end for end in (dot.low, dot.high) if end != dot.value]
    words = " to ".join(_figure(end) for end in ends)
    return f"{_figure(dot.value)} ({words})" if words else _figure(dot.value)


def _figure(value: float) -> str:
    if not math.isfinite(value):
        return "never"
    return f"{value:.0f}" if value >= 10 else f"{value:.2f}"


def _legend(root: Xml.Element, chart: Chart, y: float) -> None:
    better = "at least" if chart.more else "at most"
    for x, ink, fill, words in (
        (22, _OURS, _OURS, "healer, as shipped"),
        (190, _THEIRS, "white", "baseline, its best threshold in hindsight"),
    ):
        Xml.SubElement(
            root, "circle", cx=str(x), cy=f"{y - 4:.1f}", r="4.5", fill=fill, stroke=ink, attrib=_STROKE
        )
        _write(root, x + 12, y, words, ink=_INK)
    _draw(root, 480, y - 12, 480, y + 4, _GOAL, width=2)
    _write(root, 490, y, f"goal: {better}", ink=_INK)
    _write(root, 590, y, "lines and brackets: 90 % bounds", ink=_INK)


def _x(chart: Chart, value: float) -> float:
    """Beyond the axis: its end."""
    first, last = chart.ticks[0], chart.ticks[-1]
    held = min(max(value, first), last)
    if chart.log:
        first, last, held = math.log(first), math.log(last), math.log(held)
    return LEFT + (RIGHT - LEFT) * (held - first) / (last - first)


def _write(root: Xml.Element, x: float, y: float, words: str, ink: str = _INK, **more: str) -> None:
    """`more`: other attributes, with `_` for `-`."""
    look = {
        "x": f"{x:.1f}", "y": f"{y:.1f}", "fill": ink, "font-family": "system-ui, sans-serif",
        "font-size": "12", **{name.replace("_", "-"): value for name, value in more.items()},
    }  # fmt: skip
    Xml.SubElement(root, "text", look).text = words


def _draw(root: Xml.Element, x1: float, y1: float, x2: float, y2: float, ink: str, width: int = 1) -> None:
    ends = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
    look = {name: f"{at:.1f}" for name, at in ends.items()} | {"stroke": ink, "stroke-width": str(width)}
    Xml.SubElement(root, "line", look)
