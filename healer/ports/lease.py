"""How long a worker may trust its claim of a run, and when another worker may take the run over. No wall
clock decides: where one is asked, a worker too many is all that a wrong one costs.

Hosts' clocks differ and jump, so a time written by one host means nothing to another. The holder proves its
claim in the database and trusts that for FRESH_S by its own monotonic clock; a call that it begins then ends
within `preferred.WRITE_S` (7 s). A worker that finds an abandoned run waits LEASE_S by its own monotonic
clock from when it first held the run's lock: by then no call of the former holder is under way.
"""

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
#: A run sleeps no longer at a time. One that is to sleep longer sleeps again.
NAP = timedelta(minutes=2)


def is_awake(wake_at: datetime | None, now: datetime) -> bool:
    """Whether a sleep is over: its moment has come, or a clock that was ahead wrote it."""
    return wake_at is None or wake_at <= now or wake_at > now + 2 * NAP


def is_unheard(until: datetime | None, now: datetime) -> bool:
    """Whether a sweep should send a worker to the run: its lease is not renewed, or is of a wrong clock.

    A worker too many is harmless, so here the wall clock may be used.
    """
    return until is None or until <= now + LEASE - UNHEARD or until > now + 2 * LEASE
