"""Two weeks of one value for many parts, one point per 6 hours: the input of `rules/forecasts.yaml`.

Columns over the rows of one axis, which never move. 10,000 GPUs take 2.7 MB per rule. Used by one thread
only.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from healer.model import Component
from healer.observations.axes import grown

#: Seconds of a point, and how many points there are.
POINT_S, POINTS = 6 * 3600.0, 56
#: A counter not read for longer than this starts over: it is unknown when it grew.
GAP_S = 2 * 86400.0
_DAY_S = 86400.0
#: How many points the last one may be ahead before its clock counts as wrong.
AHEAD_MOST = 4
#: State kept per row in addition to the points.
_STATE = ("last", "last_s", "before", "total", "weight")


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """One rule's series as stored: arrays as bytes, one column for each of `parts`."""

    head: int
    parts: list[Component]
    points: bytes
    state: dict[str, bytes]


def means(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n,) of the finite values of each column of (k, n), NaN where there are none."""
    count = np.isfinite(rows).sum(axis=0)
    return np.where(count > 0, np.nansum(rows, axis=0) / np.maximum(count, 1), np.nan)


@dataclass(slots=True)
class Series:
    """`counter`: readings are of a counter, and a point is events per day; otherwise a point is the mean
    reading."""

    counter: bool
    #: Seconds of a point.
    point_s: float = POINT_S
    #: The current point, as a number of points since 1970; None before the first reading.
    head: int | None = None
    #: (POINTS, rows): the points before it, by their number modulo POINTS; NaN unknown.
    points: NDArray[np.float32] = field(default_factory=lambda: np.full((POINTS, 0), np.nan, np.float32))
    #: (rows,) the last reading and its time; the value before it fell; growth (or sum) and seconds (or
    #: count).
    last: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    last_s: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    before: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    total: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    weight: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    @property
    def rows(self) -> int:
        return self.points.shape[1]

    @property
    def nbytes(self) -> int:
        return self.points.nbytes + sum(getattr(self, name).nbytes for name in _STATE)

    def look(self, readings: NDArray[np.float64], at_s: float) -> bool:
        """Adds (n,) readings of one moment, NaN where unknown. Returns True when a point was completed.

        A moment before the current point changes nothing, unless that point was ahead by more than a day.
        """
        self.reserve(len(readings))
        number = int(at_s // self.point_s)
        if self.head is not None and number < self.head:
            if self.head - number <= AHEAD_MOST:
                return False
            self._go_back(number)
        done = self.head is not None and number > self.head
        if done:
            self._complete(number)
        self.head = number
        n = len(readings)
        valid = np.flatnonzero(np.isfinite(readings))
        if self.counter:
            self._count(valid, readings[valid], at_s)
        else:
            self.total[valid] += readings[valid]
            self.weight[valid] += 1.0
            self.last_s[:n][valid] = at_s
        return done

    def series(self, rows: NDArray[np.intp]) -> NDArray[np.float64]:
        """(POINTS, k) completed points of these rows, oldest first."""
        if self.head is None:
            return np.full((POINTS, len(rows)), np.nan)
        order = np.arange(self.head - POINTS, self.head) % POINTS
        return self.points[order][:, rows].astype(np.float64)

    def newest(self, points: int) -> NDArray[np.float64]:
        """(rows,) mean of the newest completed points; NaN if none of them is known."""
        if self.head is None:
            return np.full(self.rows, np.nan)
        return means(self.points[np.arange(self.head - points, self.head) % POINTS].astype(np.float64))

    def heard_s(self, row: int) -> float:
        """When this row was last read, seconds since 1970; -inf: never."""
        return float(self.last_s[row]) if row < self.rows else -np.inf

    def forget(self, rows: NDArray[np.intp]) -> None:
        """Restarts the series of these rows, because another part is there now."""
        rows = rows[rows < self.rows]
        self.points[:, rows] = np.nan
        self.last[rows] = self.before[rows] = np.nan
        self.last_s[rows] = -np.inf
        self.total[rows] = self.weight[rows] = 0.0

    # --- one reading ------------------------------------------------------------------------------------

    def _count(self, rows: NDArray[np.intp], now: NDArray[np.float64], at_s: float) -> None:
        """A counter that falls starts over; one that is back at its old value has not grown (an exporter
        returned 0 once)."""
        last, before, span_s = self.last[rows], self.before[rows], at_s - self.last_s[rows]
        fell, back = now < last, now >= before
        growth = np.where(fell, now, np.where(back, now - before, now - last))
        counts = (span_s > 0) & (span_s <= GAP_S) & np.isfinite(growth)
        self.total[rows[counts]] += growth[counts]
        self.weight[rows[counts]] += span_s[counts]
        self.before[rows] = np.where(fell, last, np.where(back, np.nan, before))
        self.last[rows] = now
        self.last_s[rows] = at_s

    def _complete(self, number: int) -> None:
        """Completes the points up to `number`; those in between had no reading."""
        head = self.head if self.head is not None else number
        scale = _DAY_S if self.counter else 1.0
        mean = np.where(self.weight > 0, scale * self.total / np.maximum(self.weight, 1e-9), np.nan)
        self.points[head % POINTS] = mean
        for missed in range(max(head + 1, number - POINTS), number):
            self.points[missed % POINTS] = np.nan
        self.total[:] = self.weight[:] = 0.0

    def _go_back(self, number: int) -> None:
        """The clock was ahead, in this life or an earlier one: the time of what was read then is unknown."""
        head = self.head if self.head is not None else number
        for ahead in range(number, min(head, number + POINTS)):
            self.points[ahead % POINTS] = np.nan
        self.head = number
        self.total[:] = self.weight[:] = 0.0

    def reserve(self, rows: int) -> None:
        if rows <= self.rows:
            return
        self.points = np.ascontiguousarray(grown(self.points.T, rows, np.nan).T)
        for name in _STATE:
            fill = {"last": np.nan, "last_s": -np.inf, "before": np.nan}.get(name, 0.0)
            setattr(self, name, grown(getattr(self, name), self.rows, fill))

    # --- keeping ----------------------------------------------------------------------------------------

    def pack(self, parts: Sequence[Component], saved: "Saved | None" = None) -> bytes:
        """All data, by part. `parts` are those of the rows; `saved`: data of parts that have had no row since
        the last start, such as those of a node that is away for days."""
        n = min(self.rows, len(parts))
        held = np.flatnonzero(np.isfinite(self.last_s[:n]) | np.isfinite(self.points[:, :n]).any(axis=0))
        names, points = [parts[row] for row in held.tolist()], self.points[:, held]
        state = {name: getattr(self, name)[held] for name in _STATE}
        if saved is not None and self.head is not None:
            more, more_state = saved.at_head(saved.parts(), self.head)
            # The others were away for the whole kept period.
            lasting: NDArray[np.bool_] = np.asarray(np.isfinite(more).any(axis=0))
            names += [part for part, lasts in zip(saved.parts(), lasting.tolist(), strict=True) if lasts]
            points = np.concatenate([points, more[:, lasting]], axis=1)
            state = {name: np.concatenate([state[name], more_state[name][lasting]]) for name in _STATE}
        kept = _Kept(
            head=self.head or 0,
            parts=names,
            points=np.ascontiguousarray(points).tobytes(),
            state={name: values.tobytes() for name, values in state.items()},
        )
        return zlib.compress(msgspec.msgpack.encode(kept), 1)


class Saved:
    """Unpacked series of one rule, which are restored as their rows appear."""

    def __init__(self, packed: bytes) -> None:
        """Raises ValueError if the data was not made by `Series.pack`."""
        try:
            kept = msgspec.msgpack.decode(zlib.decompress(packed), type=_Kept)
            k = len(kept.parts)
            self._points = np.frombuffer(kept.points, np.float32).reshape(POINTS, k)
            self._state = {name: np.frombuffer(kept.state[name], np.float64) for name in _STATE}
            if any(len(values) != k for values in self._state.values()):
                raise ValueError("columns of different lengths")
        except (zlib.error, msgspec.DecodeError, KeyError) as error:
            raise ValueError(f"no series: {error}") from None
        self.head = kept.head
        self._columns = {part: column for column, part in enumerate(kept.parts)}

    def __len__(self) -> int:
        return len(self._columns)

    def forget(self, part: Component) -> None:
        """Drops the data, because another part is there now."""
        self._columns.pop(part, None)

    def parts(self) -> list[Component]:
        """Parts that have not been restored yet."""
        return list(self._columns)

    def give(self, series: Series, parts: Sequence[Component], first: int) -> None:
        """Restores the data of `parts[first:]`, which are new rows."""
        rows = [row for row in range(first, len(parts)) if parts[row] in self._columns]
        if not rows:
            return
        series.reserve(len(parts))
        if series.head is None:
            series.head = self.head
        given = [parts[row] for row in rows]
        series.points[:, rows], state = self.at_head(given, series.head)
        for name in _STATE:
            getattr(series, name)[rows] = state[name]
        for part in given:
            del self._columns[part]

    def at_head(
        self, parts: Sequence[Component], head: int
    ) -> tuple[NDArray[np.float32], dict[str, NDArray[np.float64]]]:
        """(POINTS, k) points and the state of these parts, for a series whose current point is `head`."""
        columns = np.array([self._columns[part] for part in parts], np.intp)
        points = self._points[:, columns].copy()
        state = {name: self._state[name][columns] for name in _STATE}
        # Points between the two heads were not observed.
        ahead = head - self.head
        for missed in range(min(max(0, ahead), POINTS)):
            points[(self.head + missed) % POINTS] = np.nan
        if ahead:
            state |= {name: np.zeros(len(columns)) for name in ("total", "weight")}
        return points, state
