"""Lanes of marks and spans over one time axis, as SVG: an incident at a glance and the life line of a node.

Pure functions. Places are in percent, as in `svg_charts`. Marks that would cover each other are drawn as one,
with all their texts; a square is trouble, so that nothing depends on color alone.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree as ET

import msgspec
from markupsafe import Markup

from healer.console import words
from healer.console.views.csv_table import csv_table
from healer.console.views.svg_charts import ROOM_BELOW, add_text, draw_line, percent
from healer.text import Said, joined, say

#: A lane: its name, then its track.
LANE, TRACK, MIDDLE = 42, 18, 30
#: Marks nearer than this share of the axis are drawn as one, and labels of the axis are left out.
NEAR, NEAR_TICKS = 0.025, 0.06
#: The least length of a span, so that it is seen. Spans of one tone that begin nearer are drawn as one.
THIN = 0.008
#: Rows of the table: the newest.
ROWS = 500
#: Texts of marks drawn as one.
_TEXTS = 8
#: The worst first: the tone of marks drawn as one.
_TONES = ("bad", "warn", "ask", "good", "plain")
_SQUARE = frozenset({"bad", "warn"})

_Translate = Callable[[str], str]


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """`moment`: its name among the numbered moments of the chart; empty if it has none. `url`: the page
    about it."""

    at: datetime
    text: str
    tone: str = "plain"
    moment: str = ""
    url: str = ""


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """`end` None: it lasts."""

    begin: datetime
    end: datetime | None
    text: str
    tone: str = "plain"
    url: str = ""


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    marks: tuple[Mark, ...] = ()
    spans: tuple[Span, ...] = ()


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table behind the chart."""

    at: datetime
    end: datetime | None
    lane: str
    text: str
    url: str


class LaneChart(msgspec.Struct, frozen=True, kw_only=True):
    """`zero`: the axis grows with the logarithm of the distance from this moment, so that seconds and days
    fit on it; None: it is linear."""

    id: str
    title: str
    note: str
    since: datetime
    until: datetime
    lanes: tuple[Lane, ...]
    ticks: tuple[tuple[datetime, str], ...] = ()
    zero: datetime | None = None

    @property
    def height(self) -> int:
        return LANE * len(self.lanes) + ROOM_BELOW

    @property
    def moments(self) -> tuple[Mark, ...]:
        """The numbered ones, oldest first."""
        named = dict.fromkeys(mark for lane in self.lanes for mark in lane.marks if mark.moment)
        return tuple(sorted(named, key=lambda mark: mark.at))

    @property
    def rows(self) -> tuple[Row, ...]:
        """Marks and spans within the axis, the newest first, no more than `ROWS`."""
        return tuple(self.all_rows[:ROWS])

    @property
    def more_rows(self) -> int:
        """Older ones that the table leaves out."""
        return max(0, len(self.all_rows) - ROWS)

    @property
    def all_rows(self) -> "list[Row]":
        """Marks and spans within the axis, the newest first."""
        found = [_row(lane, each) for lane in self.lanes for each in (*lane.marks, *lane.spans)]
        within = (row for row in found if self.holds(row.at, row.end))
        return sorted(within, key=lambda row: row.at, reverse=True)

    def holds(self, begin: datetime, end: datetime | None) -> bool:
        """Whether any of it is within the axis."""
        return begin <= self.until and (end is None or end >= self.since)

    def place(self, at: datetime) -> float:
        """0..1 along the axis; times outside are at its ends."""
        first, last, here = (self._distance(moment) for moment in (self.since, self.until, at))
        return min(1.0, max(0.0, (here - first) / (last - first))) if last > first else 0.0

    def _distance(self, at: datetime) -> float:
        seconds = (at - (self.zero or self.since)).total_seconds()
        return seconds if self.zero is None else math.copysign(math.log1p(abs(seconds)), seconds)


def _row(lane: Lane, each: Mark | Span) -> Row:
    if isinstance(each, Mark):
        return Row(at=each.at, end=each.at, lane=lane.name, text=each.text, url=each.url)
    return Row(at=each.begin, end=each.end, lane=lane.name, text=each.text, url=each.url)


def csv_text(chart: LaneChart, translate: _Translate) -> str:
    """Times are ISO 8601 in UTC; a span that lasts has no end."""
    head = [say(f"console.lanes_column_{name}") for name in ("begin", "end", "lane", "text")]
    rows = [[_iso(row.at), _iso(row.end), row.lane, row.text] for row in chart.all_rows]
    return csv_table([head, *rows], translate)


def _iso(at: datetime | None) -> str | None:
    return at and at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# --- layout


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """Marks drawn as one, oldest first, and their place on the axis (0..1)."""

    x: float
    marks: tuple[Mark, ...]

    @property
    def tone(self) -> str:
        return min((mark.tone for mark in self.marks), key=_TONES.index)


def placed_marks(chart: LaneChart, lane: Lane) -> list[Placed]:
    """Those within the axis. A mark joins the first one of a group that it is near."""
    found: list[Placed] = []
    for mark in sorted(lane.marks, key=lambda mark: mark.at):
        if not chart.holds(mark.at, mark.at):
            continue
        x = chart.place(mark.at)
        if found and x - found[-1].x < NEAR:
            found[-1] = Placed(x=found[-1].x, marks=(*found[-1].marks, mark))
        else:
            found.append(Placed(x=x, marks=(mark,)))
    return found


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """Spans drawn as one, all of one tone, and all or none of them lasting; its place on the axis (0..1)."""

    x: float
    end: float
    spans: tuple[Span, ...]


def placed_spans(chart: LaneChart, lane: Lane) -> list[Bar]:
    """Those that reach into the axis, cut at its ends; one that lasts goes to its end. Of those that begin
    within `THIN` one is drawn for each tone, so there are no more bars than an axis has room for."""
    found: dict[tuple[str, bool, int], Bar] = {}
    for span in lane.spans:
        if not chart.holds(span.begin, span.end):
            continue
        x = min(chart.place(span.begin), 1 - THIN)
        end = max(chart.place(span.end or chart.until), x + THIN)
        key = span.tone, span.end is None, int(x / THIN)
        bar = found.get(key, Bar(x=x, end=end, spans=()))
        found[key] = Bar(x=min(x, bar.x), end=max(end, bar.end), spans=(*bar.spans, span))
    return list(found.values())


def placed_ticks(chart: LaneChart) -> list[tuple[float, str]]:
    """Labels with room between them: an earlier one in `ticks` keeps its place, a later one yields."""
    kept: list[tuple[float, str]] = []
    for at, label in chart.ticks:
        x = chart.place(at)
        if chart.since <= at <= chart.until and all(abs(x - other) >= NEAR_TICKS for other, _ in kept):
            kept.append((x, label))
    return sorted(kept)


_ZERO = "0"
_OFFSETS_S = (1, 10, 60, 600, 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400, 365 * 86400)


def offset_ticks(zero: datetime) -> tuple[tuple[datetime, str], ...]:
    """Round distances from a moment, the moment itself first."""
    found: list[tuple[datetime, str]] = [(zero, _ZERO)]
    for sign, seconds in ((sign, seconds) for seconds in _OFFSETS_S for sign in (1, -1)):
        label = joined(("+" if sign > 0 else "−", words.span(seconds)), "nothing")
        found.append((zero + timedelta(seconds=sign * seconds), label))
    return tuple(found)


def month_ticks(since: datetime, until: datetime) -> tuple[tuple[datetime, str], ...]:
    """The first day of each month, UTC."""
    found: list[tuple[datetime, str]] = []
    year, month = since.astimezone(UTC).year, since.astimezone(UTC).month
    while (first := datetime(year, month, 1, tzinfo=UTC)) <= until:
        if first >= since:
            found.append((first, f"{first:%Y-%m}"))
        year, month = (year + 1, 1) if month == 12 else (year, month + 1)
    return tuple(found)


# --- markup


def lanes_svg(chart: LaneChart, translate: _Translate) -> Markup:
    """The chart in the language of the page. Text of others is escaped by the tree that holds it."""
    root = ET.Element(
        "svg",
        {
            "class": "pic", "id": chart.id, "width": "100%", "height": str(chart.height),
            "role": "img", "aria-labelledby": f"{chart.id}-t {chart.id}-d",
        },
    )  # fmt: skip
    add_text(root, "title", translate(chart.title), id=f"{chart.id}-t")
    add_text(root, "desc", translate(described_lanes(chart)), id=f"{chart.id}-d")
    bottom = str(chart.height - ROOM_BELOW)
    ticks = placed_ticks(chart)
    # On a narrow screen every second label is left out, never that of the moment itself.
    kept = next((number for number, (_, label) in enumerate(ticks) if label == _ZERO), 0)
    for number, (x, label) in enumerate(ticks):
        draw_line(root, "rule", (percent(x), "0"), (percent(x), bottom))
        name = "x odd" if (number - kept) % 2 else "x"
        add_text(
            root, "text", translate(label), **{"class": name, "x": percent(x), "y": str(chart.height - 5)}
        )
    numbers = {mark: str(number) for number, mark in enumerate(chart.moments, 1)}
    for row, lane in enumerate(chart.lanes):
        _draw_lane(root, chart, lane, row * LANE, numbers, translate)
    # The text of others is in attributes and text nodes, which the serializer escapes.
    return Markup(ET.tostring(root, encoding="unicode"))  # noqa: S704


def described_lanes(chart: LaneChart) -> Said:
    """The chart in a sentence for those who do not see it: its moments, or how much each lane holds."""
    if chart.moments:
        parts: Iterable[str] = (words.labelled(mark.moment, words.utc(mark.at)) for mark in chart.moments)
    else:
        parts = (words.labelled(lane.name, str(_count(chart, lane))) for lane in chart.lanes)
    return say("console.lanes_described", parts=joined(parts, "semicolon"))


def _count(chart: LaneChart, lane: Lane) -> int:
    marks = sum(len(group.marks) for group in placed_marks(chart, lane))
    return marks + sum(len(bar.spans) for bar in placed_spans(chart, lane))


def _draw_lane(
    root: ET.Element, chart: LaneChart, lane: Lane, top: int, numbers: dict[Mark, str], translate: _Translate
) -> None:
    name = lane.name if _count(chart, lane) else say("console.lanes_empty", name=lane.name)
    add_text(root, "text", translate(name), **{"class": "lane", "x": "0", "y": str(top + 13)})
    middle = str(top + MIDDLE)
    draw_line(root, "track", ("0", middle), ("100%", middle))
    for bar in placed_spans(chart, lane):
        first, width = bar.spans[0], percent(bar.end - bar.x)
        tone = f"{first.tone} open" if first.end is None else first.tone
        place = {"x": percent(bar.x), "y": str(top + MIDDLE - 4), "width": width, "height": "8"}
        drawn = ET.SubElement(root, "rect", {"class": f"stretch {tone}", "rx": "2", **place})
        add_text(drawn, "title", _listed([_span_text(span, translate) for span in bar.spans], translate))
    for group in placed_marks(chart, lane):
        place = {"x": percent(group.x), "y": middle, "overflow": "visible", "class": f"pin {group.tone}"}
        pin = ET.SubElement(root, "svg", place)
        add_text(pin, "title", _marks_text(group.marks, translate))
        if numbers or len(group.marks) == 1:
            _draw_pin(pin, group, [numbers[mark] for mark in group.marks if mark in numbers])
        else:
            _draw_pin(pin, group, [str(len(group.marks))])


def _draw_pin(pin: ET.Element, group: Placed, numbers: Sequence[str]) -> None:
    """A dot, or numbers in its place: of the moments in it, or how many marks it is in a chart without
    moments. In pixels about its place."""
    text = " ".join(dict.fromkeys(numbers))
    half = 5 if not text else 5 + 3.5 * len(text)
    high = 5 if not text else 8
    size = {"width": f"{2 * half:g}", "height": str(2 * high)}
    round_by = "1" if group.tone in _SQUARE else str(high)
    ET.SubElement(pin, "rect", {"x": f"{-half:g}", "y": str(-high), "rx": round_by, **size})
    if text:
        add_text(pin, "text", text, **{"class": "number", "x": "0", "y": "4"})


def _span_text(span: Span, translate: _Translate) -> str:
    if span.end is None:
        times = say("console.lanes_since", at=words.utc(span.begin))
    else:
        times = say("console.lanes_from_to", begin=words.utc(span.begin), end=words.utc(span.end))
    return f"{translate(span.text)}\n{translate(times)}"


def _marks_text(marks: Sequence[Mark], translate: _Translate) -> str:
    return _listed([f"{words.utc(mark.at)} {translate(mark.text)}" for mark in marks], translate)


def _listed(texts: Sequence[str], translate: _Translate) -> str:
    lines = list(texts[:_TEXTS])
    if len(texts) > _TEXTS:
        lines.append(translate(say("console.lanes_more", count=len(texts) - _TEXTS)))
    return "\n".join(lines)
