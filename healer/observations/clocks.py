"""When it was, by our clock, what others tell with theirs."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from healer.model.samples import StepBatch

#: A sender's clock that is ahead of the arrival by more is not believed: the arrival counts.
AHEAD_S = 5.0
#: What lies further in the future of this process is counted: clocks of machines differ a little.
FUTURE_S = 30.0
#: This process's own clock went back if it is so far before what it has seen: two slots of the windows.
BACK_S = 10.0
#: Senders that lag by more for two looks in a row have a slow clock, or are steadily behind.
SLOW_S = 30.0
LOOK_S = 120.0
#: A lag is steady when the least of two looks differs by no more; a clock set right changes it by more.
STEADY_S = 10.0


def timely(batch: StepBatch, now: datetime) -> StepBatch:
    """Step times with what lies further in the future than clocks differ told of now."""
    latest = now + timedelta(seconds=FUTURE_S)
    late = batch.at > latest.timestamp()
    if batch.arrived_at <= latest and not late.any():
        return batch
    at = np.where(late, now.timestamp(), batch.at)
    return replace(batch, at=at, arrived_at=min(batch.arrived_at, now))


class ClockStepped(Exception):
    """This process's clock went back: what is remembered is of a time that has not come yet."""


@dataclass(slots=True)
class _Lag:
    """Of one node that lags. `off_s` is what is taken off; the rest is of the look under way."""

    begun_s: float
    least_s: float
    before_s: float = float("nan")
    off_s: float = 0.0


class Clocks:
    """Dates reports. A node whose samples come steadily late is taken to have a slow clock and is dated by
    its least lag, so that its samples are neither stale nor older than all windows. A backlog that is being
    sent is not steady: it stays as old as it is. One value per `Telemetry`; bounded by its nodes.
    """

    def __init__(self) -> None:
        #: Reports with a time in the future, of their sender or of the host where they arrived.
        self.future = 0
        self._lags: dict[int, _Lag] = {}

    @property
    def slow(self) -> int:
        """Nodes whose samples are dated by their lag now."""
        return sum(one.off_s > 0 for one in self._lags.values())

    def date(self, node: NDArray, at_s: NDArray, arrived_s: NDArray, now_s: float) -> NDArray[np.float64]:
        """When reports were measured, s since 1970, never after `now_s`. `node`: their rows, as they came."""
        ahead = at_s - arrived_s > AHEAD_S
        self.future += int(np.count_nonzero(ahead | (np.maximum(at_s, arrived_s) > now_s + FUTURE_S)))
        arrived_s = np.minimum(arrived_s, now_s)
        at_s = np.where(ahead, arrived_s, at_s)
        lag_s = arrived_s - at_s
        lagging = lag_s > SLOW_S
        if self._lags or lagging.any():
            slow = np.isin(node, [*self._lags, *node[lagging].tolist()])
            for one in np.flatnonzero(slow).tolist():
                row, late_s = int(node[one]), float(lag_s[one])
                if late_s > SLOW_S or row in self._lags:
                    at_s[one] += self._off(row, late_s, float(arrived_s[one]))
        return np.minimum(at_s, now_s)

    def _off(self, node: int, lag_s: float, arrived_s: float) -> float:
        one = self._lags.get(node)
        if lag_s <= SLOW_S:
            del self._lags[node]
            return 0.0
        if one is None or lag_s < one.off_s - STEADY_S:
            one = self._lags[node] = _Lag(begun_s=arrived_s, least_s=lag_s)
        one.least_s = min(one.least_s, lag_s)
        if arrived_s - one.begun_s >= LOOK_S:
            if abs(one.least_s - one.before_s) <= STEADY_S:
                one.off_s = one.least_s
            one.before_s, one.begun_s, one.least_s = one.least_s, arrived_s, lag_s
        return one.off_s
