"""Charts of a page: the data that the script draws, the moments in it, and the same in a table.

A chart is stored with its finding. Later samples of the node are appended while they are still kept.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from healer.console import words
from healer.console.views import Shown
from healer.engine.records import IncidentRecord
from healer.model import Column, Outcome, Part, SignalKind, StepEvent
from healer.model.detection import Chart, ChartLine, ChartMark, Finding
from healer.model.telemetry import Catalogue
from healer.text import joined, quoted, say

if TYPE_CHECKING:
    from healer.model.telemetry import Report


#: As many as a person will look at.
CHARTS_SHOWN = 4
#: Rows of a chart's table.
TWIN_ROWS = 24
#: A moment or a later sample within this time after the last value still belongs into the chart.
LATER = timedelta(minutes=30)
#: After this long without a sample a line is interrupted.
GAP_S = 120.0


class ChartView(msgspec.Struct, frozen=True, kw_only=True):
    """One figure. `data` is for `charts.js`, `head` and `rows` are the same as a table."""

    id: str
    title: str
    label: str
    data: dict[str, Any]
    moments: tuple[Shown, ...] = ()
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    note: str = ""


def newest_findings(findings: Sequence[Finding]) -> list[Finding]:
    """The newest of each fault that has something to show: those with charts first, the newest first."""
    found: dict[str, Finding] = {}
    for finding in sorted(findings, key=lambda finding: finding.at, reverse=True):
        if finding.charts or finding.contributions:
            found.setdefault(finding.fault, finding)
    return sorted(found.values(), key=lambda finding: not finding.charts)


def shown_charts(findings: Sequence[Finding]) -> list[Chart]:
    return [chart for finding in newest_findings(findings) for chart in finding.charts][:CHARTS_SHOWN]


def later_since(findings: Sequence[Finding], now: datetime) -> tuple[str, datetime] | None:
    """The node whose later samples continue the charts, and since when. None: nothing can be added."""
    ends = [
        (chart.times[-1], chart.node)
        for chart in shown_charts(findings)
        if chart.x == "time" and chart.times and chart.node and chart.signal
    ]
    if not ends:
        return None
    end, node = min(ends)
    since = datetime.fromtimestamp(end, UTC)
    return (node, since) if now - since < timedelta(hours=1) else None


def incident_charts(
    detail: IncidentRecord,
    catalogue: Catalogue,
    later: tuple[Sequence["Report"], Mapping[int, Column]] = ((), {}),
) -> list[Shown]:
    """Of each finding its sentence, its charts, and why a model found it unusual. `later`: what the
    incident's node reported since, with the meaning of its columns."""
    moments = incident_moments(detail)
    shown: list[Shown] = []
    drawn: list[Chart] = []
    for finding in newest_findings(detail.findings):
        charts = []
        # Two rules over one signal would draw the same line twice.
        fresh = [chart for chart in finding.charts if not any(_same(chart, other) for other in drawn)]
        for chart in fresh[: CHARTS_SHOWN - len(drawn)]:
            name = f"chart-{len(shown)}-{len(charts)}"
            charts.append(chart_view(name, continued(chart, catalogue, *later), moments))
            drawn.append(chart)
        if charts or finding.contributions or len(fresh) < len(finding.charts):
            shown.append(
                Shown(
                    fault=finding.fault,
                    # A device's text begins with its name, which is written as it is.
                    text=finding.text if finding.component.device else words.sentence(finding.text),
                    at=finding.at,
                    charts=tuple(charts),
                    why=tuple(
                        Shown(
                            feature=part.feature,
                            share=f"{part.share:.0%}",
                            value=words.figure(part.value),
                            peers=words.figure(part.peers),
                        )
                        for part in finding.contributions
                    ),
                )
            )
    return shown


_SERIES = attrgetter("signal", "unit", "node", "gpu", "link", "port")


def _same(chart: Chart, other: Chart) -> bool:
    return bool(chart.signal) and _SERIES(chart) == _SERIES(other)


def incident_moments(detail: IncidentRecord) -> list[ChartMark]:
    """The moments that a person looks for in a chart: opened, decided, drained, returned."""
    incident = detail.incident
    found = [ChartMark(at=incident.opened, label=say("console.charts_opened"))]
    decided = [decision for decision in detail.decisions if decision.outcome is not Outcome.nothing]
    if decided:
        acts = next((decision for decision in decided if decision.outcome is Outcome.act), None)
        first = acts or decided[0]
        label = say("console.charts_decided") if acts else quoted(first.outcome.value)
        found.append(ChartMark(at=first.at, label=label))
    for run in detail.runs:
        if run.run.shadow:
            continue
        for entry in run.log:
            if entry.event is StepEvent.done and entry.step in _STEPS_MARKED:
                found.append(ChartMark(at=entry.at, label=say(f"console.step_{entry.step}")))
    if incident.closed:
        found.append(ChartMark(at=incident.closed, label=say("console.charts_resolved")))
    return sorted(found, key=lambda mark: mark.at)


_STEPS_MARKED = frozenset({"drain", "restart", "reset", "reboot", "resume"})


def continued(
    chart: Chart, catalogue: Catalogue, reports: Sequence["Report"], columns: Mapping[int, Column]
) -> Chart:
    """The chart with later samples of its own line. Peers and counters end at the finding: rates of a counter
    and the median of the fleet are the detector's work, not a page's."""
    signal = catalogue.signals.get(chart.signal)
    if chart.x != "time" or not chart.times or signal is None or signal.kind is not SignalKind.gauge:
        return chart
    if signal.unit != chart.unit or all(line.role != "own" for line in chart.lines):
        return chart
    part = Part(gpu=chart.gpu, link=chart.link, port=chart.port)
    more = [
        (at, value)
        for at, value in series(reports, columns, Column(signal=chart.signal, part=part))
        if chart.times[-1] < at <= chart.times[-1] + LATER.total_seconds()
    ]
    if not more:
        return chart
    lines = tuple(
        msgspec.structs.replace(line, values=(*line.values, *_after(line, more))) for line in chart.lines
    )
    return msgspec.structs.replace(chart, times=(*chart.times, *(at for at, _ in more)), lines=lines)


def _after(line: ChartLine, more: list[tuple[float, float]]) -> list[float | None]:
    if line.role == "own":
        return [value for _, value in more]
    # A constant threshold continues; one that follows the peers ends with them.
    fixed = line.role == "threshold" and len(set(line.values)) == 1
    return [line.values[0] if fixed else None for _ in more]


def series(
    reports: Iterable["Report"], columns: Mapping[int, Column], column: Column
) -> list[tuple[float, float]]:
    """(Unix seconds, value) of one column, by time; without NaN."""
    wanted = [number for number, found in columns.items() if found == column]
    found: list[tuple[float, float]] = []
    for report in reports:
        for number in wanted:
            for value in report.values[report.columns == number].tolist():
                if not math.isnan(value):
                    found.append((report.at.timestamp(), value))
    return sorted(found)


def chart_view(
    name: str, chart: Chart, moments: Sequence[ChartMark] = (), *, gap_s: float = GAP_S
) -> ChartView:
    """The figure of one chart with the moments of its incident; `drawn` is False of one that is outside
    it."""
    timed = chart.x == "time"
    marks = _marks([*chart.marks, *moments]) if timed else _marks(chart.marks)
    first, last = (chart.times[0], chart.times[-1]) if chart.times else (0.0, 0.0)
    drawn = [mark for mark in marks if timed and _near(mark.at.timestamp(), first, last)]
    listed = tuple(Shown(at=mark.at, label=mark.label, drawn=mark in drawn) for mark in marks)
    times, values = with_gaps(chart.times, [line.values for line in chart.lines], timed=timed, gap_s=gap_s)
    return ChartView(
        id=name,
        title=chart.title,
        label=_label(chart),
        data={
            "unit": chart.unit,
            "x": chart.x,
            "t": times,
            "s": [
                {"l": line.label, "r": line.role, "v": [_short(value) for value in column]}
                for line, column in zip(chart.lines, values, strict=True)
            ],
            "m": [{"t": round(mark.at.timestamp(), 1), "l": mark.label} for mark in drawn],
        },
        moments=listed,
        head=(
            say("console.charts_time_utc") if timed else say("console.charts_step"),
            *(words.bracketed(line.label, say(f"console.role_{line.role}")) for line in chart.lines),
        ),
        rows=tuple(_twin(chart, timed=timed)),
    )


def _near(at: float, first: float, last: float) -> bool:
    """Whether a moment is near enough to be drawn: up to half an hour after the last value."""
    return first - 60 <= at <= last + LATER.total_seconds()


def _marks(marks: Iterable[ChartMark]) -> list[ChartMark]:
    """By time; the same word at the same second once."""
    found: dict[tuple[int, str], ChartMark] = {}
    for mark in sorted(marks, key=lambda mark: mark.at):
        found.setdefault((int(mark.at.timestamp()), mark.label), mark)
    return list(found.values())


def with_gaps(
    times: Sequence[float],
    lines: Sequence[Sequence[float | None]],
    *,
    timed: bool,
    gap_s: float = GAP_S,
) -> tuple[list[float], list[list[float | None]]]:
    """Inserts an empty value wherever no sample came for `gap_s`: silence must not look like a straight
    line."""
    at: list[float] = []
    columns: list[list[float | None]] = [[] for _ in lines]
    for index, moment in enumerate(times):
        if timed and at and moment - at[-1] > gap_s:
            at.append(round(at[-1] + 1, 1))
            for column in columns:
                column.append(None)
        at.append(round(moment, 1))
        for column, values in zip(columns, lines, strict=True):
            column.append(values[index] if index < len(values) else None)
    return at, columns


def _short(value: float | None) -> float | None:
    """Rounded to six digits, more than a screen shows; NaN is not JSON."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")


def _twin(chart: Chart, *, timed: bool) -> list[tuple[str, ...]]:
    count = len(chart.times)
    every = max(1, -(-count // TWIN_ROWS))
    rows = []
    for index in range(count):
        if index % every and index != count - 1:
            continue
        at = chart.times[index]
        when = datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S") if timed else f"{at:,.0f}"
        cells = (_short(line.values[index]) if index < len(line.values) else None for line in chart.lines)
        rows.append((when, *(words.figure(value, chart.unit) or "unknown" for value in cells)))
    return rows


def _label(chart: Chart) -> str:
    """The chart in one sentence, for screen readers."""
    ends = []
    for role in ("own", "peers", "threshold"):
        for line in chart.lines:
            last = next((value for value in reversed(line.values) if _short(value) is not None), None)
            if line.role == role and last is not None:
                ends.append(
                    say("console.charts_ends", label=line.label, figure=words.figure(last, chart.unit))
                )
    return (
        say("console.charts_ends_of", title=chart.title, ends=joined(ends, "comma"))
        if ends
        else say("console.charts_no_values", title=chart.title)
    )
