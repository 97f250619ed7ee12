"""Moments of a step: by the host's clock, or by events of the GPU's stream, read once they are over."""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import Any, Callable, Optional

#: Steps whose events the GPU has not reached yet; beyond it they are dropped.
PENDING = 64


class Timed:
    """One step's moments, by the clock that took them: start, compute done, communication done, end."""

    __slots__ = ("about", "comm", "compute", "data_s", "end", "previous", "start")

    def __init__(self) -> None:
        self.start: Any = None
        self.compute: Any = None
        self.comm: Any = None
        self.end: Any = None
        #: The end of the step before, where data was waited for between it and this start.
        self.previous: Any = None
        #: How long the host waited for data.
        self.data_s: float | None = None
        self.about: Any = None


#: (about, step_s, compute_s, comm_s, data_s)
Done = Callable[[Any, float, Optional[float], Optional[float], Optional[float]], None]


class HostMarks:
    """Everything is over as soon as it is marked."""

    def __init__(self, done: Done, clock: Callable[[], float] = time.perf_counter) -> None:
        self._done = done
        self.mark = clock

    def again(self, _: Any) -> float:
        return self.mark()

    def ended(self, timed: Timed) -> int:
        """How many steps were dropped."""
        _read(timed, lambda a, b: b - a, self._done)
        return 0

    def collect(self) -> int:
        return 0

    def finish(self) -> int:
        return 0


class CudaMarks:
    """Events of the current stream. Nothing here waits for the GPU: an event is asked whether it is over."""

    def __init__(self, cuda: Any, done: Done) -> None:
        self._cuda = cuda
        self._done = done
        self._pending: deque[Timed] = deque()
        self._free: list[Any] = []

    def mark(self) -> Any:
        event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def again(self, event: Any) -> Any:
        """Marks the same thing later: the last time counts."""
        if event is None:
            return self.mark()
        event.record()
        return event

    def ended(self, timed: Timed) -> int:
        self._pending.append(timed)
        dropped = self.collect()
        while len(self._pending) > PENDING:
            self._pending.popleft()  # its events are still awaited by the stream: not used again
            dropped += 1
        return dropped

    def where(self, doing: str, step: int, is_open: Timed | None) -> tuple[str, int]:
        """Where the GPU is, which may be steps behind its host. Called by another thread, while the one
        that trains is blocked."""
        for timed in tuple(self._pending):
            if not timed.end.query():
                return _phase(timed), timed.about[1].number
        if is_open is not None and doing == "collective":
            return _phase(is_open), step
        return doing, step

    def finish(self) -> int:
        lost = self.collect()
        left, self._pending = len(self._pending), deque()
        return lost + left

    def collect(self) -> int:
        """How many steps were dropped, whose events cannot be read: recorded in a graph, or on two GPUs."""
        lost = 0
        while self._pending:
            timed = self._pending[0]
            try:
                if not timed.end.query():
                    break
                self._send(timed)
            except Exception:
                lost += 1  # none of its events is used again
                self._pending.popleft()
                continue
            self._pending.popleft()
            # The end may still be the next step's `previous`: two steps later it is free.
            for event in (timed.start, timed.compute, timed.comm, timed.previous):
                if event is not None and len(self._free) < 4 * PENDING:
                    self._free.append(event)
        return lost

    def _send(self, timed: Timed) -> None:
        if timed.previous is not None and timed.data_s is not None:
            # The GPU waited no longer than it was idle, and for data no longer than the host did: what else
            # lay between two steps (evaluation, saving) is neither.
            idle_s = max(0.0, timed.previous.elapsed_time(timed.start) / 1000)
            timed.data_s = min(timed.data_s, idle_s)
        _read(timed, lambda a, b: a.elapsed_time(b) / 1000, self._done)


def _phase(timed: Timed) -> str:
    """`collective` once the GPU has passed the compute of the step, and not yet the collective."""
    waits = timed.compute is not None and timed.compute.query()
    return "collective" if waits and not (timed.comm is not None and timed.comm.query()) else "compute"


def _read(timed: Timed, between: Callable[[Any, Any], float], done: Done) -> None:
    step_s = between(timed.start, timed.end) + (timed.data_s or 0.0)
    compute_s = comm_s = None
    if timed.compute is not None:
        compute_s = max(0.0, between(timed.start, timed.compute))
        if timed.comm is not None:
            comm_s = max(0.0, between(timed.compute, timed.comm))
    done(timed.about, step_s, compute_s, comm_s, timed.data_s)


def cuda_in_use() -> Any:
    """torch.cuda, once this process has used it; None before, and where there is none. Imports nothing."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None
