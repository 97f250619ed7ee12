"""The signal that mattered, against its peers, as the incident page draws it."""

from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from healer.detection.figures import label, rows_of
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
from healer.observations.telemetry import Telemetry

#: All that the rings hold.
SPAN_S = 900.0
#: Peers beyond this many are thinned out: a median of so many is the same picture.
MOST_PEERS = 256
LEAST_PEERS = 4
_FIGURES = 5


class Charts:
    """Charts of one tick."""

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
        """The last 15 min of `signal` for a row of the rule's axis. None: nothing is known of it.

        `limit` is drawn across. A counter is drawn as its rate per second, `grown` as its growth.
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
        known = np.flatnonzero(np.any([~np.isnan(curve) for _, _, curve in curves], axis=0))
        if not len(known):
            return None
        if limit is not None:
            curves.append(("limit", "threshold", np.full(len(times), limit)))
        where = self.telemetry.axis(signal.scope).components()[shown] if shown is not None else None
        return Chart(
            title=_title(signal, where, counter and not grown),
            unit=signal.unit + ("/s" if counter and not grown else ""),
            times=tuple(times[known].tolist()),
            lines=tuple(
                ChartLine(label=name, role=role, values=_values(curve[known])) for name, role, curve in curves
            ),
            marks=(ChartMark(at=began, label="began"),),
            signal=signal.name,
            node=where.node if where else None,
            gpu=where.gpu if where else None,
            link=where.link if where else None,
            port=where.nic if where else None,
        )

    def _of_one(
        self, signal: Signal, window: NDArray[np.float32], row: int
    ) -> list[tuple[str, str, NDArray[np.float64]]]:
        lines = [("this one", "own", window[:, row].astype(np.float64))]
        groups = self.telemetry.groups(signal.scope)
        if groups.ids[row] >= 0:
            peers = np.flatnonzero(groups.ids == groups.ids[row])
            peers = peers[peers != row]
            if len(peers) >= LEAST_PEERS:
                lines += _band(window[:, _thinned(peers)], f"peers ({groups.labels[groups.ids[row]]})")
        return lines

    def _of_whole(
        self, signal: Signal, window: NDArray[np.float32], rows: NDArray[np.int64]
    ) -> list[tuple[str, str, NDArray[np.float64]]]:
        """A job's, switch's or fabric's parts: their median stands for it."""
        middle, *band = _band(window[:, _thinned(rows)], f"{len(rows)} {signal.scope}s")
        return [(middle[0], "own", middle[2]), *band]


def _thinned(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return rows[:: max(1, -(-len(rows) // MOST_PEERS))]


def _band(window: NDArray[np.float32], name: str) -> list[tuple[str, str, NDArray[np.float64]]]:
    """Median and 10-90 % band per slot, of the known values (nearest rank)."""
    ranked = np.sort(window, axis=0 if window.ndim == 1 else 1).astype(np.float64)
    count = (~np.isnan(ranked)).sum(axis=1)
    slots = np.arange(len(ranked))
    found = []
    for label_, role, share in ((name, "peers", 0.5), ("10 %", "low", 0.1), ("90 %", "high", 0.9)):
        place = np.rint(share * np.maximum(count - 1, 0)).astype(np.int64)
        found.append((label_, role, np.where(count > 0, ranked[slots, place], np.nan)))
    return found


def _farthest(window: NDArray[np.float32], rows: NDArray[np.int64]) -> int:
    """Of several parts the one whose newest values lie farthest from the others'."""
    known = window[-24:, rows]  # 2 min
    last = np.full(len(rows), np.nan)
    for slot in known:
        last = np.where(np.isnan(slot), last, slot)
    if np.isnan(last).all():
        return int(rows[0])
    return int(rows[np.nanargmax(np.abs(last - np.nanmedian(last)))])


def _curve(signal: Signal, column: NDArray[np.float64], *, grown: bool) -> NDArray[np.float64]:
    """A gauge as it is. A counter's growth in the window so far, or its rate per second since the value
    before."""
    if signal.kind is not SignalKind.counter:
        return column
    known = np.flatnonzero(~np.isnan(column))
    if grown:
        return np.where(np.isnan(column), np.nan, np.nancumsum(column))
    found = np.full(len(column), np.nan)
    found[known[1:]] = column[known[1:]] / (5.0 * np.diff(known))
    return found


def _values(curve: NDArray[np.float64]) -> tuple[float | None, ...]:
    return tuple(None if np.isnan(one) else float(f"{one:.{_FIGURES}g}") for one in curve.tolist())


def _title(signal: Signal, where: Component | None, rate: bool) -> str:
    name = label(signal)
    name = f"{name[:1].upper()}{name[1:]}{' per second' if rate else ''}"
    if where is None:
        return name
    return f"{name}, {where}" + (f" port {where.nic}" if where.nic else "")
