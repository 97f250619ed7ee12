"""How long a worker may trust its claim of a run, and when another worker may take over the run. No wall
clock decides; where one is used, an error costs at most one superfluous worker.

Hosts' clocks differ and jump, so a time written by one host means nothing to another. The holder proves its
claim in the database and trusts that for FRESH_S by its own monotonic clock; a call that it begins then ends
within `preferred.WRITE_S` (7 s). A worker that finds an abandoned run waits LEASE_S by its own monotonic
clock from when it first held the run's lock: by then no call of the former holder is in progress.
"""

from datetime import datetime, timedelta

#: Longer than FRESH_S and the longest call together.
LEASE_S = 10.0
FRESH_S = 1.5
#: A proof that takes longer than FRESH_S proves nothing; it is tried this often.
PROOFS = 4
#: Stored with the run: shows people that it is held, and until when at least.
LEASE = timedelta(seconds=LEASE_S)
#: A lease not renewed for this long is checked by the sweep. A working holder renews it with each write.
UNHEARD = timedelta(seconds=2)
#: A new run is announced to the workers by a message: for this long the sweep leaves it to them.
SENT = timedelta(seconds=1)
#: The longest single sleep of a run. A run that must sleep longer sleeps again.
NAP = timedelta(minutes=2)


def is_awake(wake_at: datetime | None, now: datetime) -> bool:
    """Whether a sleep is over: its time has come, or it was written by a clock that was ahead."""
    return wake_at is None or wake_at <= now or wake_at > now + 2 * NAP


def is_unheard(until: datetime | None, now: datetime) -> bool:
    """Whether a sweep should send a worker to the run: its lease is not renewed, or was written by a wrong
    clock.

    A superfluous worker is harmless, so the wall clock may be used here.
    """
    return until is None or until <= now + LEASE - UNHEARD or until > now + 2 * LEASE
