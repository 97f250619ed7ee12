"""How long a worker may trust that a run is its own. Pure: the times come from the caller.

A lease is a moment of the holder's clock, written beside the run. Clocks differ and leap, so it decides only
together with the session's lock (who takes the run) and with a stopwatch (how long the holder trusts it).
"""

from datetime import datetime, timedelta

LEASE = timedelta(seconds=10)
#: A holder that has not proven its claim for this long by its stopwatch does so before an effect. What is
#: left of the lease then is longer than any call to Slurm that changes something (`preferred.WRITE_S`, 7 s).
FRESH_S = 1.5


def is_over(until: datetime | None, now: datetime) -> bool:
    """Whether another worker may take the run, once it has its lock.

    Nobody writes a lease that lasts longer than LEASE: one that seems to is of a clock that was wrong, and a
    run must not wait for as long as that clock had leapt.
    """
    return until is None or until <= now or until > now + 2 * LEASE
