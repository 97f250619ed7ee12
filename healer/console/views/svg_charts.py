"""Charts as SVG, made on the server: pure functions from figures to markup.

Places along the time axis are in percent and heights in pixels, so a chart fits every width and its text
keeps its size. Colors are classes of console.css (`s0` to `s7`). Each series also has a texture or a dash of
its own, and the table behind the chart holds every value: nothing depends on color alone.
"""

import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from xml.etree import ElementTree as ET

import msgspec
from markupsafe import Markup

from healer.console import words
from healer.text import Said, joined, say, unstopped

HEIGHT, ROOM_ABOVE, ROOM_BELOW = 190, 12, 22
#: Series that have a color of their own.
COLORS = 8
#: A row of the matrix: its name, then its cells.
ROW, CELL = 42, 20

_Translate = Callable[[str], str]


class Unit(StrEnum):
    whole = "whole"
    hours = "hours"
    nodes = "nodes"
    seconds = "seconds"
    share = "share"


class Kind(StrEnum):
    """`bars` are stacked; `lines` share one axis; a `matrix` has a row of cells for each series."""

    bars = "bars"
    lines = "lines"
    matrix = "matrix"


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """A value for each bucket of time, None where nothing was measured. `basis`: how many cases each value of
    a share rests on."""

    name: str
    values: tuple[float | None, ...]
    basis: tuple[int, ...] = ()


class SvgChart(msgspec.Struct, frozen=True, kw_only=True):
    """One picture. `times` name the buckets, `ticks` are those (by index) with a label on the axis."""

    id: str
    title: str
    note: str
    kind: Kind
    unit: Unit
    times: tuple[str, ...]
    ticks: tuple[tuple[int, str], ...]
    series: tuple[Series, ...]

    @property
    def empty(self) -> bool:
        return not any(value for each in self.series for value in each.values)

    @property
    def height(self) -> int:
        if self.kind is Kind.matrix:
            return ROW * len(self.series) + ROOM_BELOW
        return HEIGHT

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """The table behind it, the newest first: without buckets that hold nothing."""
        found: list[tuple[str, ...]] = []
        for at, time in reversed(list(enumerate(self.times))):
            if any(each.values[at] for each in self.series):
                found.append((time, *(self._cell(each, at) for each in self.series)))
        return tuple(found)

    def _cell(self, series: Series, at: int) -> str:
        value = series.values[at]
        if value is None:
            return "–"
        if not series.basis:
            return value_text(value, self.unit)
        return say("console.svg_share_of", share=f"{value:.0%}", count=series.basis[at])


def value_text(value: float, unit: Unit) -> str:
    match unit:
        case Unit.seconds:
            return words.span(max(0.0, value))
        case Unit.share:
            return f"{value:.0%}"
        case Unit.hours | Unit.nodes:
            if value < 1:
                return f"{value:.2g}"
            return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"
        case Unit.whole:
            return f"{value:,.0f}"


# --- the axis of values

_STEPS_S = (
    0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200,
)  # fmt: skip
_DAY_S = 86400.0
_MOST_LINES = 4


def grid_values(top: float, unit: Unit) -> list[float]:
    """Round values from 0 to just above `top`."""
    step = _step(top / _MOST_LINES, unit)
    return [step * number for number in range(max(1, math.ceil(top / step - 1e-9)) + 1)]


def _step(least: float, unit: Unit) -> float:
    if unit is Unit.seconds and least <= _STEPS_S[-1]:
        return next(step for step in _STEPS_S if step >= least)
    if unit is Unit.seconds:
        return _DAY_S * _step(least / _DAY_S, Unit.whole)
    if least <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))
    return step if unit is Unit.hours else max(1.0, step)


# --- markup


def svg(chart: SvgChart, translate: _Translate) -> Markup:
    """The chart in the language of the page. Text of others is escaped by the tree that holds it."""
    root = ET.Element(
        "svg",
        {
            "class": f"pic {chart.kind.value}", "id": chart.id, "width": "100%", "height": str(chart.height),
            "role": "img", "aria-labelledby": f"{chart.id}-t {chart.id}-d", "data-pic": chart.id,
        },
    )  # fmt: skip
    add_text(root, "title", translate(chart.title), id=f"{chart.id}-t")
    add_text(root, "desc", translate(described(chart)), id=f"{chart.id}-d")
    if chart.kind is Kind.matrix:
        _matrix(root, chart, translate)
    else:
        _drawn(root, chart, translate)
    for number, (at, label) in enumerate(chart.ticks):
        x = percent((at + 0.5) / len(chart.times))
        name = "x odd" if number % 2 else "x"
        add_text(root, "text", translate(label), **{"class": name, "x": x, "y": str(chart.height - 5)})
    # The text of others is in attributes and text nodes, which the serializer escapes.
    return Markup(ET.tostring(root, encoding="unicode"))  # noqa: S704


def swatch(chart: SvgChart, number: int) -> Markup:
    """The sign of a series in the legend."""
    root = ET.Element("svg", {"class": "swatch", "width": "18", "height": "12", "aria-hidden": "true"})
    if chart.kind is Kind.lines:
        draw_line(root, f"line {_paint(number)}", ("0", "6"), ("18", "6"))
        ET.SubElement(root, "circle", {"class": f"dot {_paint(number)}", "cx": "9", "cy": "6", "r": "3"})
    else:
        place = {"x": "0", "y": "0", "width": "18", "height": "12"}
        ET.SubElement(root, "rect", {"class": _paint(number), **place})
        if number:
            ET.SubElement(root, "rect", {**place, "fill": f"url(#{chart.id}-{_texture(number)})"})
    return Markup(ET.tostring(root, encoding="unicode"))  # noqa: S704


def described(chart: SvgChart) -> Said:
    """The chart in a sentence for people who cannot see it: each series with its total or range."""
    if chart.empty:
        return say("console.svg_nothing")
    parts = [_summary(each, chart.unit) for each in chart.series]
    return say("console.svg_described", parts=joined(parts, "semicolon"), note=unstopped(chart.note))


def _summary(series: Series, unit: Unit) -> Said:
    values = [value for value in series.values if value is not None]
    if not values:
        return say("console.svg_series_nothing", name=series.name)
    if unit in (Unit.whole, Unit.hours):
        return say("console.svg_series_total", name=series.name, total=value_text(sum(values), unit))
    low, high = value_text(min(values), unit), value_text(max(values), unit)
    return say("console.svg_series_range", name=series.name, low=low, high=high)


def _drawn(root: ET.Element, chart: SvgChart, translate: _Translate) -> None:
    """Bars or lines over a grid, and for each bucket an invisible column that shows its values."""
    stacked = chart.kind is Kind.bars
    columns = list(zip(*(each.values for each in chart.series), strict=True))
    tops = [sum(value or 0 for value in column) if stacked else _highest(column) for column in columns]
    lines = grid_values(max(tops, default=0), chart.unit)
    bottom = HEIGHT - ROOM_BELOW

    def y(value: float) -> float:
        return bottom - (bottom - ROOM_ABOVE) * value / lines[-1]

    for value in lines:
        draw_line(root, "rule", ("0", f"{y(value):.1f}"), ("100%", f"{y(value):.1f}"))
        label = translate(value_text(value, chart.unit)) if value else "0"
        add_text(root, "text", label, **{"class": "y", "x": "-8", "y": f"{y(value) + 4:.1f}"})
    if stacked:
        _textures(root, chart)
        _bars(root, chart, y)
    else:
        _lines(root, chart, y)
    for at, time in enumerate(chart.times):
        hit = ET.SubElement(root, "rect", {"class": "hit", **_column(at, len(chart.times), 1.0)})
        hit.set("y", "0")
        hit.set("height", str(bottom))
        add_text(hit, "title", _of_bucket(chart, at, time, translate))


def _highest(values: Sequence[float | None]) -> float:
    return max((value for value in values if value is not None), default=0)


def _of_bucket(chart: SvgChart, at: int, time: str, translate: _Translate) -> str:
    lines = [translate(time)]
    for each in chart.series:
        value = each.values[at]
        if value:
            lines.append(f"{translate(each.name)}: {translate(value_text(value, chart.unit))}")
    return "\n".join(lines)


def _bars(root: ET.Element, chart: SvgChart, y: Callable[[float], float]) -> None:
    for at in range(len(chart.times)):
        below = 0.0
        for number, each in enumerate(chart.series):
            value = each.values[at] or 0.0
            if value <= 0:
                continue
            place = _column(at, len(chart.times), 0.76)
            place |= {"y": f"{y(below + value):.2f}", "height": f"{y(below) - y(below + value):.2f}"}
            ET.SubElement(root, "rect", {"class": f"bar {_paint(number)}", **place})
            if number:
                ET.SubElement(root, "rect", {**place, "fill": f"url(#{chart.id}-{_texture(number)})"})
            below += value


def _lines(root: ET.Element, chart: SvgChart, y: Callable[[float], float]) -> None:
    """A line is drawn between values that follow each other; a lone one is a dot."""
    count = len(chart.times)
    for number, each in enumerate(chart.series):
        before: tuple[str, str] | None = None
        dots: list[tuple[str, str]] = []
        for at, value in enumerate(each.values):
            if value is None:
                before = None
                continue
            point = percent((at + 0.5) / count), f"{y(max(0.0, value)):.2f}"
            if before is not None:
                draw_line(root, f"line {_paint(number)}", before, point)
            before = point
            dots.append(point)
        for x, top in dots:
            ET.SubElement(root, "circle", {"class": f"dot {_paint(number)}", "cx": x, "cy": top, "r": "3"})


def _matrix(root: ET.Element, chart: SvgChart, translate: _Translate) -> None:
    count = len(chart.times)
    for row, each in enumerate(chart.series):
        top = row * ROW
        add_text(root, "text", translate(each.name), **{"class": "name", "x": "0", "y": str(top + 13)})
        for at, value in enumerate(each.values):
            tone = "none" if value is None else "good" if value >= 0.95 else "warn" if value >= 0.8 else "bad"
            place = {**_column(at, count, 0.94), "y": str(top + 18), "height": str(CELL)}
            cell = ET.SubElement(root, "rect", {"class": f"cell-{tone}", "rx": "3", **place})
            if value is None:
                continue
            add_text(
                cell, "title", f"{each.name}, {translate(chart.times[at])}: {value:.0%} ({each.basis[at]})"
            )
            middle = {"x": percent((at + 0.5) / count), "y": str(top + 32)}
            add_text(root, "text", f"{value * 100:.0f}", **{"class": f"share {tone}", **middle})


def _textures(root: ET.Element, chart: SvgChart) -> None:
    """Hatches and dots in the color of the paper, laid over the bars."""
    defs = ET.SubElement(root, "defs")
    shapes = {
        "rising": "M-1 7 L7 -1 M-1 1 L1 -1 M5 7 L7 5",
        "dots": "M2 3 h1.6 M5 0 h1 M0 0 h.6 M5 6 h1",
        "falling": "M-1 -1 L7 7 M-1 5 L1 7 M5 -1 L7 1",
        "level": "M0 3 H6",
    }
    for name, path in shapes.items():
        size = {"width": "6", "height": "6", "patternUnits": "userSpaceOnUse"}
        pattern = ET.SubElement(defs, "pattern", {"id": f"{chart.id}-{name}", **size})
        ET.SubElement(pattern, "path", {"class": "texture", "d": path})


_TEXTURES = ("rising", "dots", "falling", "level")


def _texture(number: int) -> str:
    return _TEXTURES[(number - 1) % len(_TEXTURES)]


def _paint(number: int) -> str:
    return f"s{number % COLORS}"


def _column(at: int, count: int, share: float) -> dict[str, str]:
    """The place of a bucket along the axis, of which `share` is filled."""
    return {"x": percent((at + (1 - share) / 2) / count), "width": percent(share / count)}


def percent(share: float) -> str:
    """A place along the axis."""
    return f"{100 * share:.3f}%"


def draw_line(root: ET.Element, name: str, start: tuple[str, str], end: tuple[str, str]) -> None:
    ends = {"x1": start[0], "y1": start[1], "x2": end[0], "y2": end[1]}
    ET.SubElement(root, "line", {"class": name, **ends})


def add_text(parent: ET.Element, tag: str, text: str, **attributes: str) -> None:
    ET.SubElement(parent, tag, attributes).text = text
