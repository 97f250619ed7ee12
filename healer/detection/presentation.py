"""What people see of a rule's finding: its figures with units, its sentence and its chart."""

import math
import re
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from healer.detection.language.expr import LEAST_PEERS
from healer.model import (
    Catalogue,
    Chart,
    ChartLine,
    ChartMark,
    Component,
    DetectionRule,
    Scope,
    Signal,
    SignalKind,
)
from healer.observations.groups import peer_median
from healer.observations.telemetry_windows import Telemetry
from healer.text import Said, capital, joined, quoted, say

#: Counters are shown by their increase over this time.
INCREASE_S = 300.0
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_TAIL = re.compile(r"(?:,? since |; |, in the GPU| of the GPU's life|, all ).*$")


def label(signal: Signal) -> str:
    """The name of a signal in a sentence, from its text: `port: symbol errors; PAM4 …`."""
    return _TAIL.sub("", signal.text.rpartition(": ")[2]) or signal.name


def shown_value(signal: Signal, value: float | None) -> str:
    """`1,290 MHz`, `98%`, `Completed`, `hw_slowdown`; as Said: yes, no, none, and unknown for None."""
    if value is None or not math.isfinite(value):
        return say("detection.unknown")
    if signal.kind is SignalKind.bits:
        names = [name for name, bit in signal.bits.items() if int(value) & bit]
        return ", ".join(names) or say("detection.none")
    if signal.kind is SignalKind.enum and signal.words:
        return next((word for word, code in signal.words.items() if code == value), f"{value:g}")
    if signal.unit == "bool":
        return say("detection.yes" if value else "detection.no")
    return with_unit(value, signal.unit)


def with_unit(value: float, unit: str) -> str:
    if unit in ("B", "B/s"):
        power = min(int(math.log(abs(value), 1024)), 4) if abs(value) >= 1 else 0
        return f"{number(value / 1024**power)} {_BINARY[power]}{unit[1:]}"
    if unit == "ratio":
        return f"{number(100 * value)}%" if abs(value) >= 0.001 or value == 0 else f"{value:.1e}"
    if unit == "%":
        return f"{number(value)}%"
    if unit.startswith("count"):
        return f"{number(value)}{unit[5:]}"
    return number(value) if unit in ("state", "bits", "bool", "a plain number") else f"{number(value)} {unit}"


def number(value: float) -> str:
    """Three significant figures are enough, but no digit of a larger whole number is dropped."""
    if value == round(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.1e}"


def duration(seconds: float) -> Said:
    if seconds < 90:
        return say("words.seconds", n=f"{seconds:.0f}")
    if seconds < 5400:
        return say("words.minutes", n=f"{seconds / 60:.0f}")
    return say("words.hours", n=f"{seconds / 3600:.1f}")


class Sentences:
    """The sentences of one tick."""

    def __init__(self, telemetry: Telemetry, catalogue: Catalogue, now: datetime) -> None:
        self.telemetry, self.signals, self.now = telemetry, catalogue.signals, now
        self._medians: dict[str, np.ndarray] = {}

    def of(
        self,
        rule: DetectionRule,
        signal: Signal,
        row: int,
        limit: float | None,
        held_s: float,
        *,
        peers: bool,
    ) -> Said:
        """`GPU clock below its peers: SM clock 1,290 MHz (peers 1,755 MHz, limit 1,492 MHz), …`"""
        notes = []
        if peers and (middle := self._peers(rule, signal, row)) is not None:
            notes.append(say("detection.of_peers", value=shown_value(signal, middle)))
        if limit is not None and signal.kind is SignalKind.gauge and signal.unit != "bool":
            notes.append(say("detection.limit", value=shown_value(signal, limit)))
        first = self.figure(rule.scope, signal, row)
        if notes:
            first = say("detection.noted", text=first, note=joined(notes, "comma"))
        others = (self.figure(rule.scope, self.signals[name], row) for name in rule.evidence)
        text = say("detection.told", head=quoted(rule.title), text=joined((first, *others), "comma"))
        return say("detection.lasted", text=text, span=duration(held_s)) if held_s >= 5 else text

    def figure(self, scope: Scope, signal: Signal, row: int) -> Said:
        """One signal of a row: its own value, that of its whole, or the range over its parts."""
        counter = signal.kind is SignalKind.counter
        if counter:
            values, _ = self.telemetry.increase(signal.name, INCREASE_S, self.now)
        else:
            values = self.telemetry.value(signal.name, self.now)
        values = values[rows_of(self.telemetry, scope, signal.scope, row)]
        values = values[~np.isnan(values)]
        name = quoted(label(signal))
        if not len(values):
            return say("detection.figure_word", label=name, value=shown_value(signal, None))
        low, high = float(values.min()), float(values.max())
        value = shown_value(signal, high)
        if low != high:
            text = say("detection.figure_range", label=name, low=shown_value(signal, low), high=value)
        elif counter:
            text = say("detection.figure_grown", label=name, value=value)
        else:
            is_word = isinstance(value, Said)
            text = say("detection.figure_word" if is_word else "detection.figure", label=name, value=value)
        return say("detection.figure_within", text=text, span=duration(INCREASE_S)) if counter else text

    def _peers(self, rule: DetectionRule, signal: Signal, row: int) -> float | None:
        if signal.scope is not rule.scope or signal.kind is not SignalKind.gauge:
            return None
        if signal.name not in self._medians:
            values = self.telemetry.value(signal.name, self.now)
            groups = self.telemetry.groups(signal.scope)
            self._medians[signal.name] = peer_median(values, groups, LEAST_PEERS)
        value = float(self._medians[signal.name][row])
        return None if math.isnan(value) else value


def rows_of(telemetry: Telemetry, scope: Scope, other: Scope, row: int) -> np.ndarray:
    """Rows of the axis `other` that contain, or are part of, a row of `scope`."""
    if scope is other:
        return np.array([row])
    up = int(telemetry.axis(scope).parent(other)[row])
    if up >= 0:
        return np.array([up])
    return np.flatnonzero(telemetry.axis(other).parent(scope) == row)


#: All that the rings hold.
SPAN_S = 900.0
#: More peers than this are thinned out, because the median of this many looks the same.
MOST_PEERS = 256
_FIGURES = 5

#: Label, role and values of a chart's line.
_Line = tuple[Said, str, NDArray[np.float64]]


class Charts:
    """The charts of one tick."""

    def __init__(self, telemetry: Telemetry, catalogue: Catalogue, now: datetime) -> None:
        self.telemetry, self.catalogue, self.now = telemetry, catalogue, now
        self._windows: dict[str, NDArray[np.float32]] = {}

    def of(
        self,
        rule: DetectionRule,
        signal: Signal,
        row: int,
        limit: float | None,
        began: datetime,
        *,
        grown: bool = False,
    ) -> Chart | None:
        """The last 15 min of `signal` for a row of the rule's axis. None: no data.

        `limit` is drawn across. A counter is drawn as its rate per second, or with `grown` as its growth.
        """
        rows = rows_of(self.telemetry, rule.scope, signal.scope, row)
        if not len(rows):
            return None
        if signal.name not in self._windows:
            self._windows[signal.name] = self.telemetry.window(signal.name, SPAN_S, self.now)
        window = self._windows[signal.name]
        times = self.telemetry.times(SPAN_S, self.now)
        parts = rule.scope in (Scope.job, Scope.switch, Scope.rack, Scope.fabric)
        if parts:
            lines, shown = self._of_whole(signal, window, rows), None
        else:
            shown = int(rows[0]) if len(rows) == 1 else _farthest(window, rows)
            lines = self._of_one(signal, window, shown)
        counter = signal.kind is SignalKind.counter
        curves = [(name, role, _curve(signal, column, grown=grown)) for name, role, column in lines]
        slots = np.flatnonzero(np.any([~np.isnan(curve) for _, _, curve in curves], axis=0))
        if not len(slots):
            return None
        if limit is not None:
            curves.append((say("detection.chart_limit"), "threshold", np.full(len(times), limit)))
        where = self.telemetry.axis(signal.scope).components()[shown] if shown is not None else None
        return Chart(
            title=_title(signal, where, counter and not grown),
            unit=signal.unit + ("/s" if counter and not grown else ""),
            times=tuple(times[slots].tolist()),
            lines=tuple(
                ChartLine(label=name, role=role, values=_values(curve[slots])) for name, role, curve in curves
            ),
            marks=(ChartMark(at=began, label=say("detection.chart_began")),),
            signal=signal.name,
            node=where.node if where else None,
            gpu=where.gpu if where else None,
            link=where.link if where else None,
            port=where.nic if where else None,
        )

    def _of_one(self, signal: Signal, window: NDArray[np.float32], row: int) -> list[_Line]:
        lines: list[_Line] = [(say("detection.chart_own"), "own", window[:, row].astype(np.float64))]
        groups = self.telemetry.groups(signal.scope)
        if groups.ids[row] >= 0:
            peers = np.flatnonzero(groups.ids == groups.ids[row])
            peers = peers[peers != row]
            if len(peers) >= LEAST_PEERS:
                who = quoted(groups.labels[int(groups.ids[row])])
                lines += _band(window[:, _thinned(peers)], say("detection.chart_peers", who=who))
        return lines

    def _of_whole(self, signal: Signal, window: NDArray[np.float32], rows: NDArray[np.int64]) -> list[_Line]:
        """The parts of a job, switch or fabric, drawn as their median."""
        middle, *band = _band(window[:, _thinned(rows)], say(f"detection.many_{signal.scope}", n=len(rows)))
        return [(middle[0], "own", middle[2]), *band]


def _thinned(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return rows[:: max(1, -(-len(rows) // MOST_PEERS))]


def _band(window: NDArray[np.float32], name: Said) -> list[_Line]:
    """Median and 10-90 % band per slot, of the known values (nearest rank)."""
    ranked = np.sort(window, axis=0 if window.ndim == 1 else 1).astype(np.float64)
    count = (~np.isnan(ranked)).sum(axis=1)
    slots = np.arange(len(ranked))
    found = []
    low, high = say("words.percent", n=10), say("words.percent", n=90)
    for label_, role, share in ((name, "peers", 0.5), (low, "low", 0.1), (high, "high", 0.9)):
        place = np.rint(share * np.maximum(count - 1, 0)).astype(np.int64)
        found.append((label_, role, np.where(count > 0, ranked[slots, place], np.nan)))
    return found


def _farthest(window: NDArray[np.float32], rows: NDArray[np.int64]) -> int:
    """Of several parts, the one whose newest values are farthest from the others'."""
    last = np.full(len(rows), np.nan)
    for slot in window[-24:, rows]:  # 2 min
        last = np.where(np.isnan(slot), last, slot)
    if np.isnan(last).all():
        return int(rows[0])
    return int(rows[np.nanargmax(np.abs(last - np.nanmedian(last)))])


def _curve(signal: Signal, column: NDArray[np.float64], *, grown: bool) -> NDArray[np.float64]:
    """A gauge as it is; for a counter its growth in the window so far, or its rate per second since the value
    before."""
    if signal.kind is not SignalKind.counter:
        return column
    if grown:
        return np.where(np.isnan(column), np.nan, np.nancumsum(column))
    valid = np.flatnonzero(~np.isnan(column))
    found = np.full(len(column), np.nan)
    found[valid[1:]] = column[valid[1:]] / (5.0 * np.diff(valid))
    return found


def _values(curve: NDArray[np.float64]) -> tuple[float | None, ...]:
    return tuple(None if np.isnan(value) else float(f"{value:.{_FIGURES}g}") for value in curve.tolist())


def _title(signal: Signal, where: Component | None, rate: bool) -> Said:
    name = capital(quoted(label(signal)))
    if rate:
        name = say("detection.per_second", name=name)
    if where is None:
        return name
    if where.nic:
        return say("detection.chart_of_port", name=name, where=str(where), port=where.nic)
    return say("detection.chart_of", name=name, where=str(where))
