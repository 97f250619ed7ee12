"""A node's measurements, and its comparison with its class by each scorer of the model."""

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from healer.console import words
from healer.console.views import Shown
from healer.console.views.charts_view import GAP_S, ChartView, chart_view
from healer.detection import anomaly
from healer.detection.features import feature_words
from healer.model import Column, Part, Signal, SignalKind
from healer.model.detection import Chart, ChartLine, ChartMark
from healer.model.telemetry import FOREST, Catalogue, Unusual
from healer.ports.answers import OpenIncident
from healer.ports.measurements import Points
from healer.text import Said, capital, joined, quoted, say

if TYPE_CHECKING:
    from healer.model.telemetry import Report


def unusual_row(unusual: Unusual | None) -> Shown | None:
    """`among`: the class in words; `model`: the beginning of its id."""
    # A scorer of an older version is not shown.
    result = next((way for way in unusual.ways if way.way == FOREST), None) if unusual else None
    if unusual is None or result is None:
        return None
    return Shown(
        at=unusual.at,
        among=say(
            "console.node_are",
            scored=unusual.scored,
            hardware=unusual.hardware or say("console.node_nodes"),
            load=quoted(unusual.load),
        ),
        model=unusual.model[:12],
        score=f"{result.score:.2f}",
        threshold=f"{result.threshold:.2f}",
        middle=f"{result.middle:.2f}",
        above=result.score > result.threshold,
        parts=tuple(
            say("console.node_feature", feature=feature_words(part.feature), away=part.away, share=part.share)
            for part in result.parts
        ),
    )


#: What the page looks back.
WINDOW = timedelta(minutes=15)
#: Columns of the table: heading and signal of the catalogue.
_GPU_FIGURES = (
    (say("console.node_use"), "gpu_util_percent"),
    (say("console.colour_temperature"), "gpu_temp_c"),
    (say("console.node_memory"), "memory_temp_c"),
    (say("console.node_power"), "power_w"),
    (say("console.node_sm_clock"), "sm_clock_mhz"),
)
_CORRECTED, _UNCORRECTED = "ecc_sbe_volatile_total", "ecc_dbe_volatile_total"
_REMAPS = (("row_remap_failed", "failed"), ("row_remap_pending", "pending"))
_REMAPPED = "row_remap_uncorrectable_rows"
_REASONS = "clock_event_reasons"
#: Drawn by default.
_FIRST_DRAWN = ("sm_clock_mhz", "gpu_temp_c")
#: Counters of links whose growth indicates a problem; traffic counters grow all the time.
_TROUBLE = ("err", "fail", "replay", "recover", "discard", "drop", "crc", "symbol", "down", "flap", "exceed")
_DOWN = frozenset({"down", "inactive", "disabled", "off", "polling"})
#: Harmless reasons for a lower clock: idle, a configured limit or a fixed clock.
_CALM = ("idle", "setting", "sync_boost", "power_cap")


class Cell(msgspec.Struct, frozen=True):
    """`is_known` is False if the value is stale; then `title` names the old one."""

    text: str
    title: str = ""
    is_known: bool = True


class NodeNow(NamedTuple):
    """Whose measurements these are: `gpus` is how many Slurm counts."""

    name: str
    gpus: int
    incidents: Sequence[OpenIncident]
    now: datetime

    def bad(self, gpu: int | None = None) -> tuple[OpenIncident, ...]:
        """Open incidents of its GPUs, or of this one."""
        roots = ((incident, incident.root) for incident in self.incidents if incident.root.node == self.name)
        return tuple(
            incident for incident, root in roots if root.gpu is not None and (gpu is None or root.gpu == gpu)
        )


class _Newest(msgspec.Struct, frozen=True):
    at: datetime
    value: float


def measured(
    reports: Sequence["Report"],
    columns: Mapping[int, Column],
    catalogue: Catalogue,
    node: NodeNow,
    signal: str,
) -> Shown:
    """All that the page shows of a node's measurements; `head` names the figures of its GPUs. `signal`: what
    the address asks to be drawn (empty: ours to choose)."""
    found = _series(reports, columns)
    newest = {column: values[-1] for column, values in found.items()}
    choices = _choices(found, catalogue)
    wanted = signal if signal in dict(choices) else _first([name for name, _ in choices])
    present = [column.part.gpu for column in found if column.part.gpu is not None]
    count = max([node.gpus, *(index + 1 for index in present)])
    return Shown(
        seen=max((value.at for value in newest.values()), default=None),
        head=tuple(title for title, _ in _GPU_FIGURES),
        gpus=tuple(_gpu_row(index, newest, catalogue, node) for index in range(count)) if present else (),
        links=tuple(_link_rows(found, catalogue)),
        signals=choices,
        signal=wanted,
        chart=_chart(found, catalogue.signals[wanted], node) if wanted else None,
    )


def _series(reports: Sequence["Report"], columns: Mapping[int, Column]) -> dict[Column, list[_Newest]]:
    """Each column's known values by time."""
    found: dict[Column, list[_Newest]] = {}
    for report in sorted(reports, key=lambda report: report.at):
        for number, value in zip(report.columns.tolist(), report.values.tolist(), strict=True):
            if number in columns and not math.isnan(value):
                found.setdefault(columns[number], []).append(_Newest(report.at, value))
    return found


def _choices(found: Mapping[Column, object], catalogue: Catalogue) -> tuple[tuple[str, str], ...]:
    """Name and words of each signal that came, as the select lists them."""
    names = {column.signal for column in found if column.signal in catalogue.signals}
    return tuple((name, catalogue.signals[name].text or name) for name in catalogue.signals if name in names)


def _first(names: Sequence[str]) -> str:
    return next((name for name in _FIRST_DRAWN if name in names), names[0] if names else "")


def _gpu_row(index: int, newest: Mapping[Column, _Newest], catalogue: Catalogue, node: NodeNow) -> Shown:
    def read(name: str) -> tuple[Signal | None, _Newest | None]:
        return catalogue.signals.get(name), newest.get(Column(name, Part(gpu=index)))

    def fresh(name: str) -> float | None:
        signal, value = read(name)
        return value.value if signal and value and _is_fresh(signal, value, node.now) else None

    corrected, uncorrected = fresh(_CORRECTED), fresh(_UNCORRECTED)
    reasons, calm = _reasons(catalogue.signals.get(_REASONS), fresh(_REASONS))
    return Shown(
        index=index,
        figures=tuple(_cell(*read(name), node.now) for _, name in _GPU_FIGURES),
        ecc=_ecc(corrected, uncorrected),
        ecc_bad=bool(uncorrected),
        remap=_remap(fresh),
        remap_bad=any(fresh(name) for name, _ in _REMAPS),
        throttle=reasons,
        throttle_bad=not calm,
        seen=max((value.at for column, value in newest.items() if column.part.gpu == index), default=None),
        incidents=node.bad(index),
    )


def _is_fresh(signal: Signal, value: _Newest, now: datetime) -> bool:
    return (now - value.at).total_seconds() <= signal.stale_s


def _cell(signal: Signal | None, value: _Newest | None, now: datetime) -> Cell:
    if signal is None or value is None:
        return Cell("–", say("console.node_never_reported"), is_known=False)
    text = words.figure(value.value, signal.unit)
    if _is_fresh(signal, value, now):
        return Cell(text)
    return Cell("–", say("console.node_last", text=text, ago=words.ago(value.at, now)), is_known=False)


def _ecc(corrected: float | None, uncorrected: float | None) -> Cell:
    if corrected is None and uncorrected is None:
        return Cell("–", is_known=False)
    parts = [
        say("console.node_ecc_uncorrected", n=words.number(uncorrected)) if uncorrected else "",
        say("console.node_ecc_corrected", n=words.number(corrected)) if corrected else "",
    ]
    return Cell(joined(filter(None, parts), "comma") or say("console.none"))


def _remap(fresh: Callable[[str], float | None]) -> Cell:
    states = {word: fresh(name) for name, word in _REMAPS}
    rows = fresh(_REMAPPED)
    if rows is None and all(value is None for value in states.values()):
        return Cell("–", is_known=False)
    parts = [quoted(word) for word, value in states.items() if value]
    if rows:
        parts.append(words.counted(int(rows), "row"))
    return Cell(joined(parts, "comma") or say("console.none"))


def _reasons(signal: Signal | None, mask: float | None) -> tuple[str, bool]:
    """The set bits in words, and whether all of them are calm."""
    if signal is None or mask is None:
        return "–", True
    whole = int(mask)
    names = [name for name, bit in signal.bits.items() if bit and whole & bit == bit]
    if not names:
        return (say("console.none") if not whole else say("console.node_bits", whole=whole)), not whole
    calm = all(any(word in name.lower() for word in _CALM) for name in names)
    return joined((quoted(name.replace("_", " ")) for name in names), "comma"), calm


def _link_rows(found: Mapping[Column, Sequence[_Newest]], catalogue: Catalogue) -> Iterator[Shown]:
    for column, values in sorted(found.items(), key=lambda item: _order(item[0])):
        signal = catalogue.signals.get(column.signal)
        if signal is None or (column.part.link is None and column.part.port is None):
            continue
        last = values[-1].value
        if signal.kind is SignalKind.counter and any(word in signal.name for word in _TROUBLE):
            grown = sum(step for _, step in _increases(values))
            if grown > 0:
                yield Shown(
                    part=part_words(column.part),
                    what=signal.text or signal.name,
                    grown="+" + words.figure(grown, signal.unit),
                    total=words.figure(last, signal.unit),
                )
        elif signal.kind is SignalKind.enum:
            word = next((word for word, value in signal.words.items() if value == last), "")
            if word.lower() in _DOWN:
                yield Shown(
                    part=part_words(column.part), what=signal.text or signal.name, grown="", total=word
                )


def _order(column: Column) -> tuple[str, int, int, str]:
    part = column.part
    return (part.port or "", -1 if part.gpu is None else part.gpu, part.link or 0, column.signal)


def part_words(part: Part) -> Said:
    """`GPU 3`, `GPU 3 NVLink 4`, `mlx5_0/1`, or `node`."""
    parts = [say("console.node_gpu", gpu=part.gpu)] if part.gpu is not None else []
    parts += [say("console.node_nvlink", link=part.link)] if part.link is not None else []
    parts += [part.port] if part.port else []
    return joined(parts, "space") or say("console.node")


def _increases(values: Sequence[_Newest]) -> Iterator[tuple[datetime, float]]:
    """The growth of a counter up to each value. A counter that fell was reset: it grew by its present
    value."""
    for before, after in itertools.pairwise(values):
        grown = after.value - before.value
        yield after.at, grown if grown >= 0 else after.value


def _chart(
    found: Mapping[Column, list[_Newest]],
    signal: Signal,
    node: NodeNow,
    *,
    span: timedelta = WINDOW,
    gap_s: float = GAP_S,
    judged: bool = False,
) -> ChartView:
    """One line per part that reports the signal, and their median if there are three or more.
    `judged`: marks what is unusual in the second half."""
    parts = sorted((column for column in found if column.signal == signal.name), key=_order)[:_LINES_DRAWN]
    counter = signal.kind is SignalKind.counter
    drawn = {column.part: _per_minute(found[column]) if counter else found[column] for column in parts}
    times = sorted({value.at for values in drawn.values() for value in values})
    lines: list[ChartLine] = []
    by_time: list[list[float]] = [[] for _ in times]
    for part, values in drawn.items():
        value_at = {value.at: value.value for value in values}
        lines.append(
            ChartLine(label=part_words(part), role="own", values=tuple(value_at.get(at) for at in times))
        )
        for index, at in enumerate(times):
            if at in value_at:
                by_time[index].append(value_at[at])
    part_lines = tuple(lines)
    if len(lines) >= 3:
        middle = tuple(statistics.median(values) if values else None for values in by_time)
        lines.append(ChartLine(label=say("console.node_median_here"), role="peers", values=middle))
    since = node.now - span
    title = capital(quoted(signal.text or signal.name))
    chart = Chart(
        title=say("console.node_per_minute", signal=title) if counter else title,
        unit=signal.unit,
        times=tuple(at.timestamp() for at in times),
        lines=tuple(lines),
        marks=tuple(
            ChartMark(at=incident.opened, label=quoted(incident.rule))
            for incident in node.incidents
            if incident.opened > since
        )
        + (_unusual(part_lines, times) if judged else ()),
        signal=signal.name,
        node=node.name,
    )
    view = chart_view("chart-signal", chart, gap_s=gap_s)
    bad = {incident.root.gpu for incident in node.bad()}
    for line, part in zip(view.data["s"], drawn, strict=False):
        line["b"] = part.gpu in bad
    return view


def remembered_chart(points: Points, signal: Signal, node: NodeNow, *, hours: int) -> ChartView:
    """The same from a Prometheus-compatible server; lines are interrupted where points are missing."""
    found = {
        column: [_Newest(datetime.fromtimestamp(at, UTC), value) for at, value in line]
        for column, line in points.items()
    }
    steps = [
        after - before for line in points.values() for (before, _), (after, _) in itertools.pairwise(line)
    ]
    gap_s = max(GAP_S, 4 * min(steps, default=0.0))
    view = _chart(found, signal, node, span=timedelta(hours=hours), gap_s=gap_s, judged=True)
    return msgspec.structs.replace(view, note=say("console.node_unusual_note"))


def _unusual(lines: Sequence[ChartLine], times: Sequence[datetime]) -> tuple[ChartMark, ...]:
    """Marks where the most unusual stretches of the second half begin, by time."""
    if not lines:
        return ()
    found = anomaly.unusual(np.array([line.values for line in lines], dtype=np.float64).T)
    worst = sorted(found, key=lambda each: -each.highest)[:_UNUSUAL_MARKED]
    label = say("console.node_unusual_here")
    return tuple(ChartMark(at=times[each.first], label=label) for each in sorted(worst))


#: More lines than that are a carpet; the table of links names those that matter.
_LINES_DRAWN = 16
#: More marks than that hide the lines.
_UNUSUAL_MARKED = 4


def _per_minute(values: Sequence[_Newest]) -> list[_Newest]:
    found = []
    for before, (at, grown) in zip(values, _increases(values), strict=False):
        spent_s = (at - before.at).total_seconds()
        if spent_s > 0:
            found.append(_Newest(at, grown * 60 / spent_s))
    return found
