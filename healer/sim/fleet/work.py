"""What a large synchronous job comes to: each second of it is kept, lost, or spent on something.

Effective training time is what was kept, divided by the wall time, as Llama 3 defines it (arXiv 2407.21783,
section 3.3.4). Work counts as kept once a checkpoint holds it.
"""

from collections import defaultdict
from datetime import datetime, timedelta
from enum import StrEnum

from healer.sim.fleet.scenario import JobSpec


class Spent(StrEnum):
    """Where the job's seconds go."""

    #: Work that a checkpoint holds.
    kept = "kept"
    #: Work that no checkpoint holds yet: only at the end of the simulation.
    open = "open"
    #: Work that was done and had to be done again.
    lost = "lost"
    #: By how much steps took longer under a slow node.
    slowed = "slowed"
    checkpoints = "checkpoints"
    #: It holds its nodes and goes no further.
    stands = "stands"
    #: It waits in Slurm's queue.
    waits = "waits"
    starts = "starts"


#: What is nobody's fault.
NOBODY = "none"


class Work:
    """The job's account. `be` says what it does from now on; everything before is booked then."""

    def __init__(self, spec: JobSpec, start: datetime) -> None:
        self._spec = spec
        self._at = start
        self._doing = Spent.waits
        self._cause = "start"
        self._slower, self._slow_cause = 1.0, NOBODY
        #: Seconds of the cycle of work and checkpoint that went by, and of what each second of it was.
        self._in_cycle = 0.0
        self._unsaved: dict[tuple[Spent, str], float] = defaultdict(float)
        self.spent: dict[tuple[Spent, str], float] = defaultdict(float)
        self.saved = 0
        self.saved_at: datetime | None = None

    @property
    def doing(self) -> Spent:
        return self._doing

    @property
    def cause(self) -> str:
        return self._cause

    def be(
        self, doing: Spent, cause: str, now: datetime, *, slower: float = 1.0, slow_cause: str = NOBODY
    ) -> None:
        """`doing`: `kept` for work, else `stands`, `waits` or `starts`, for the sake of `cause`."""
        self.pass_to(now)
        if self._doing is Spent.kept and doing is not Spent.kept:
            self._lose(cause)
        self._doing, self._cause = doing, cause
        self._slower, self._slow_cause = slower, slow_cause

    def pass_to(self, now: datetime) -> None:
        left = (now - self._at).total_seconds()
        if self._doing is not Spent.kept:
            self.spent[self._doing, self._cause] += left
            self._at = now
            return
        cycle = self._spec.checkpoint_s + self._spec.checkpoint_stall_s
        while left > 0:
            step = min(left, cycle - self._in_cycle)
            self._work(self._in_cycle, self._in_cycle + step)
            self._in_cycle += step
            self._at += timedelta(seconds=step)
            left -= step
            if self._in_cycle >= cycle - 1e-6:
                self._save()
        self._at = now

    def save(self, now: datetime) -> None:
        """A checkpoint now, as before a stop that is planned."""
        self.pass_to(now)
        if self._doing is Spent.kept:
            self._save()

    def close(self, now: datetime) -> None:
        """The end of the simulation: what no checkpoint holds is nobody's loss, and no gain yet."""
        self.pass_to(now)
        for seconds in self._unsaved.values():
            self.spent[Spent.open, NOBODY] += seconds
        self._unsaved.clear()

    def total(self, kind: Spent) -> float:
        """Seconds."""
        return sum(seconds for (one, _), seconds in self.spent.items() if one is kind)

    def by_cause(self) -> dict[str, float]:
        """Seconds that a cause took, of any kind."""
        found: dict[str, float] = defaultdict(float)
        for (kind, cause), seconds in self.spent.items():
            if seconds and kind not in {Spent.kept, Spent.open}:
                found[cause] += seconds
        return dict(found)

    def _work(self, begin: float, end: float) -> None:
        worked = max(0.0, min(end, self._spec.checkpoint_s) - begin)
        stalled = (end - begin) - worked
        self._unsaved[Spent.kept, NOBODY] += worked / self._slower
        self._unsaved[Spent.slowed, self._slow_cause] += worked - worked / self._slower
        self._unsaved[Spent.checkpoints, NOBODY] += stalled

    def _save(self) -> None:
        for key, seconds in self._unsaved.items():
            self.spent[key] += seconds
        self._unsaved.clear()
        self._in_cycle = 0.0
        self.saved += 1
        self.saved_at = self._at

    def _lose(self, cause: str) -> None:
        self.spent[Spent.lost, cause] += sum(self._unsaved.values())
        self._unsaved.clear()
        self._in_cycle = 0.0
