"""How far something long is, and how long it takes yet."""

from collections import deque
from datetime import datetime


class Pace:
    """What is left at the pace of the last minute: the hours of a recording are not alike."""

    WINDOW_S, LEAST_S = 60.0, 3.0

    def __init__(self) -> None:
        self._marks: deque[tuple[float, float]] = deque()

    def left_s(self, share: float, at_s: float) -> float | None:
        """`at_s` by a stopwatch; None where its pace is not known yet."""
        marks = self._marks
        marks.append((at_s, share))
        while len(marks) > 2 and at_s - marks[1][0] >= self.WINDOW_S:
            marks.popleft()
        begun_s, begun = marks[0]
        if at_s - begun_s < self.LEAST_S or share <= begun:
            return None
        return (1 - share) * (at_s - begun_s) / (share - begun)


def share_of(at: datetime, span: tuple[datetime, datetime]) -> float:
    """Of the span, 0 to 1."""
    since, until = span
    whole_s = (until - since).total_seconds() or 1.0
    return min(1.0, max(0.0, (at - since).total_seconds() / whole_s))
