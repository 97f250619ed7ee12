"""How a PostgreSQL is stopped: by its starter, or by its guardian, which loads nothing else of it."""

import signal
from collections.abc import Callable

STOP_FAST_S = 5.0
STOP_IMMEDIATE_S = 2.0


def stop_postgres(
    send: Callable[[int], None],
    ended: Callable[[float], bool],
    *,
    fast_s: float = STOP_FAST_S,
    last_s: float = STOP_IMMEDIATE_S,
) -> None:
    """Fast shutdown, then immediate, then SIGKILL. `ended(s)` waits up to s seconds for the end."""
    steps = ((signal.SIGINT, fast_s), (signal.SIGQUIT, last_s), (signal.SIGKILL, last_s))
    for number, patience_s in steps:
        try:
            send(number)
        except ProcessLookupError:
            return
        if ended(patience_s):
            return
