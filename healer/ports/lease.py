"""How long a worker may trust its claim of a run, and when another worker may take the run over. No wall
clock decides.

Hosts' clocks differ and jump, so a time written by one host means nothing to another. The holder proves its
claim in the database and trusts that for FRESH_S by its own monotonic clock; a call that it begins then ends
within `preferred.WRITE_S` (7 s). A worker that finds an abandoned run waits LEASE_S by its own monotonic
clock from when it first held the run's lock: by then no call of the former holder is under way.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

#: Longer than FRESH_S and the longest call together.
LEASE_S = 10.0
FRESH_S = 1.5
#: A proof that takes longer than FRESH_S proves nothing any more: it is tried so often.
PROOFS = 4
#: Stored with the run: shows that it is held, and people until when at least.
LEASE = timedelta(seconds=LEASE_S)
#: A lease not renewed for so long is checked by the sweep. A working holder renews it with each write.
UNHEARD = timedelta(seconds=2)
#: A new run is announced to the workers by a message: for so long the sweep leaves it to them.
SENT = timedelta(seconds=1)
_FORGOTTEN_S = 600.0


def is_unheard(until: datetime | None, now: datetime) -> bool:
    """Whether a sweep should send a worker to the run: its lease is not renewed, or is of a wrong clock.

    A worker too many is harmless, so here the wall clock may be used.
    """
    return until is None or until <= now + LEASE - UNHEARD or until > now + 2 * LEASE


class Left:
    """Abandoned runs, as this process has seen them. One for all its threads.

    `stopwatch`: a monotonic clock in seconds that also runs while the process is stopped.
    """

    def __init__(self, stopwatch: Callable[[], float]) -> None:
        self._stopwatch = stopwatch
        self._seen: dict[str, tuple[int, float]] = {}

    def seen(self, run: str, epoch: int) -> None:
        """The lock of this run was free, and its last holder, of this epoch, had not given it back."""
        seen, now_s = self._seen.get(run), self._stopwatch()
        if seen is None or seen[0] != epoch:
            self._seen[run] = (epoch, now_s)
        for name, (_, since_s) in list(self._seen.items()) if len(self._seen) > 1000 else ():
            if now_s - since_s > _FORGOTTEN_S:
                self._seen.pop(name, None)

    def epoch(self, run: str) -> int | None:
        """The epoch from which the run may be taken now; None: it has to wait, or was not abandoned."""
        seen = self._seen.get(run)
        return seen[0] if seen is not None and self._stopwatch() - seen[1] >= LEASE_S else None

    def taken(self, run: str) -> None:
        self._seen.pop(run, None)
