"""How good alarms are, by events: never sample by sample, and never point-adjusted.

Point adjustment calls every sample of an event found when one of them is, so that random numbers reach an F1
of 0.78. Here an event counts once, and so does an alarm.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Half-open, in samples.
Span = tuple[int, int]


def alarms(on: NDArray[np.bool_], gap: int) -> list[Span]:
    """Alarms with at most `gap` quiet samples between them are one."""
    at = np.flatnonzero(on)
    if not len(at):
        return []
    cuts = np.flatnonzero(np.diff(at) > gap + 1)
    begins, ends = at[np.concatenate([[0], cuts + 1])], at[np.concatenate([cuts, [len(at) - 1]])] + 1
    return list(zip(begins.tolist(), ends.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts that can be added up over series. `delays`: samples from onset to alarm, of each event found."""

    events: int = 0
    found: int = 0
    alarms: int = 0
    true_alarms: int = 0
    days: float = 0.0
    delays: tuple[int, ...] = ()

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.events + other.events,
            self.found + other.found,
            self.alarms + other.alarms,
            self.true_alarms + other.true_alarms,
            self.days + other.days,
            self.delays + other.delays,
        )

    @property
    def precision(self) -> float:
        """Of the alarms; 0 without any."""
        return self.true_alarms / self.alarms if self.alarms else 0.0

    @property
    def recall(self) -> float:
        """Of the events; 0 without any."""
        return self.found / self.events if self.events else 0.0

    @property
    def f1(self) -> float:
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0

    @property
    def false_per_day(self) -> float:
        return (self.alarms - self.true_alarms) / self.days if self.days else 0.0

    @property
    def delay(self) -> float:
        """Median, in samples; infinite where nothing was found."""
        return float(np.median(self.delays)) if self.delays else float("inf")


def judge(raised: Sequence[Span], events: Sequence[Span], *, days: float, early: int) -> Tally:
    """An alarm is true when it overlaps an event and began at most `early` samples before its onset: an
    alarm that was on long before the fault, or is always on, finds nothing."""

    def predicts(alarm: Span, event: Span) -> bool:
        return alarm[0] < event[1] and event[0] < alarm[1] and alarm[0] >= event[0] - early

    true = [alarm for alarm in raised if any(predicts(alarm, event) for event in events)]
    firsts = [min((alarm[0] for alarm in true if predicts(alarm, event)), default=None) for event in events]
    delays = tuple(
        max(0, first - event[0]) for first, event in zip(firsts, events, strict=True) if first is not None
    )
    return Tally(len(events), len(delays), len(raised), len(true), days, delays)
