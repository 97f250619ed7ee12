"""Is a job slower than itself before? Needs only whole step times; names the job, never a node."""

from collections import deque
from statistics import median

from healer.detection.streams import WARM_UP

#: So much more than before counts at the least, and so many steps in a row have to say so.
SLOWER = 1.10
STEPS = 5
#: Steps that "before" means, and how many of them have to be known.
BEFORE = 100
BEFORE_LEAST = 30
#: The median of five steps of Gaussian noise has this share of one step's deviation.
_SHORT_DEVIATION = 0.54


class Pace:
    """Step times of one job, told in order. While it is slow, "before" stands still."""

    def __init__(self) -> None:
        self.told = 0
        self.slow = False
        #: The step at which the slow ones began; the pace before and now, s per step (NaN unknown).
        self.since = -1
        self.before_s = float("nan")
        self.now_s = float("nan")
        self.limit_s = float("nan")
        self._before: deque[float] = deque(maxlen=BEFORE)
        self._last: deque[tuple[int, float]] = deque(maxlen=STEPS)
        self._run = 0

    @property
    def known(self) -> bool:
        return len(self._before) >= BEFORE_LEAST and len(self._last) == STEPS

    def step(self, number: int, step_s: float) -> None:
        self.told += 1
        if self.told <= WARM_UP or not step_s > 0:
            return
        if len(self._last) == STEPS and not self.slow and self._run == 0:
            self._before.append(self._last[0][1])
        self._last.append((number, step_s))
        if self.known:
            self._judge()

    def _judge(self) -> None:
        self.before_s = median(self._before)
        self.now_s = median(value for _, value in self._last)
        spread_s = 1.4826 * median(abs(value - self.before_s) for value in self._before)
        self.limit_s = max(SLOWER * self.before_s, self.before_s + 5 * _SHORT_DEVIATION * spread_s)
        if self.now_s >= self.limit_s:
            if self._run == 0:
                self.since = next(number for number, value in self._last if value >= self.limit_s)
            self._run += 1
        else:
            self._run = 0
        # Half-way back is not back.
        self.slow = self._run >= STEPS or (self.slow and self.now_s > (self.before_s + self.limit_s) / 2)
