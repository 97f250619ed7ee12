"""One bound in time over all that a call does: looks, token, several requests, one adapter after another.

The bound stands in the context of the call and is asked for wherever something is waited for. Bounds within
bounds only get narrower. Without one only each request's own time-out holds.
"""

import contextlib
import math
import time
from collections.abc import Iterator
from contextvars import ContextVar

_UNTIL: ContextVar[float] = ContextVar("until", default=math.inf)


@contextlib.contextmanager
def within(limit_s: float) -> Iterator[None]:
    """All that is waited for inside ends within `limit_s` from now."""
    before = _UNTIL.set(min(_UNTIL.get(), time.monotonic() + limit_s))
    try:
        yield
    finally:
        _UNTIL.reset(before)


def left_s(most_s: float | None) -> float:
    """How long may still be waited, `most_s` at most (None: no other limit); 0 when it is over."""
    return max(0.0, min(math.inf if most_s is None else most_s, _UNTIL.get() - time.monotonic()))
