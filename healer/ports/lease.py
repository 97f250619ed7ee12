"""How long a worker may trust that a run is its own, and when another one may take it. No wall clock decides.

Hosts' clocks differ and leap, so a moment that one host wrote tells another nothing. The holder proves its
claim in the database and trusts that for FRESH_S by its own stopwatch; a call that it begins then ends within
`preferred.WRITE_S` (7 s). Whoever finds a run that was left without a word waits LEASE_S by its own stopwatch
from the moment when it first had the run's lock: by then nothing of the holder's is under way.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

#: Longer than FRESH_S and the longest call together.
LEASE_S = 10.0
FRESH_S = 1.5
#: A proof that takes longer than FRESH_S proves nothing any more: it is tried so often.
PROOFS = 4
#: What is written beside the run: it tells that somebody holds it, and to people until when at least.
LEASE = timedelta(seconds=LEASE_S)
#: A lease that was not renewed for so long is looked after. A holder at work renews it with each write.
UNHEARD = timedelta(seconds=2)
#: Whoever begins a run sends it to the workers: so long the sweep leaves a new one to that message.
SENT = timedelta(seconds=1)
_FORGOTTEN_S = 600.0


def is_unheard(until: datetime | None, now: datetime) -> bool:
    """Whether a sweep should send somebody to look: the lease is not being renewed, or is of a wrong clock.

    Sending one too many is harmless, so here the clock may be asked.
    """
    return until is None or until <= now + LEASE - UNHEARD or until > now + 2 * LEASE


class Left:
    """Runs that were left without a word, as this process has seen them. One for all its threads.

    `stopwatch`: seconds that no change of the clock touches, also while the process is stopped.
    """

    def __init__(self, stopwatch: Callable[[], float]) -> None:
        self._stopwatch = stopwatch
        self._seen: dict[str, tuple[int, float]] = {}

    def seen(self, run: str, epoch: int) -> None:
        """The lock of this run was free, and its last holder, of this epoch, had not given it back."""
        known, now_s = self._seen.get(run), self._stopwatch()
        if known is None or known[0] != epoch:
            self._seen[run] = (epoch, now_s)
        for name, (_, since_s) in list(self._seen.items()) if len(self._seen) > 1000 else ():
            if now_s - since_s > _FORGOTTEN_S:
                self._seen.pop(name, None)

    def epoch(self, run: str) -> int | None:
        """The epoch from which the run may be taken now; None: it has to wait, or was not left."""
        known = self._seen.get(run)
        if known is None or self._stopwatch() - known[1] < LEASE_S:
            return None
        return known[0]

    def taken(self, run: str) -> None:
        self._seen.pop(run, None)
