"""Waiting for something to become true, with a deadline instead of a sleep of fixed length."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

#: Deadlines only end what hangs, they measure nothing: on a machine that others share all takes longer, as
#: the load of each processor says.
PATIENCE, MOST_PATIENCE = 3, 12
#: A check leaves so many times its own time to others, up to `LONGEST_REST_S`: what is waited for needs the
#: processor too, and so do other tests. A slow check (a process, a page) rests twice its time, and so does
#: one whose caller has to know at once (`every_s` below the default).
REST, LEAST_REST, LONGEST_REST_S = 8, 2, 0.25
EVERY_S = 0.02


def patience() -> float:
    """So many times its own length a deadline takes on this machine now."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return min(PATIENCE * max(1.0, load / 2), MOST_PATIENCE)


def wait_until(
    check: Callable[[], T], timeout_s: float = 10.0, *, what: str = "", every_s: float = EVERY_S
) -> T:
    """Calls `check` until it returns something true, and returns that. AssertionError after
    `patience()` times `timeout_s`. A check that takes long is called less often."""
    start = time.monotonic()
    while True:
        begun = time.monotonic()
        value = check()
        if value:
            return value
        now = time.monotonic()
        took = now - begun
        if now - start > PATIENCE * timeout_s and now - start > (limit := patience() * timeout_s):
            raise AssertionError(f"not within {limit:.4g} s: {what or check}; last answer {value!r}")
        rest = min(REST * took, LONGEST_REST_S) if every_s >= EVERY_S else 0.0
        time.sleep(max(every_s, rest, LEAST_REST * took))


@contextmanager
def in_background(step: Callable[[], object], every_s: float) -> Iterator[None]:
    """Calls `step` again and again in a thread of its own; what it raised is raised at the end."""
    over, errors = threading.Event(), list[Exception]()

    def run() -> None:
        try:
            while not over.wait(every_s):
                step()
        except Exception as error:  # passed on to the waiter for the end
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if errors:
        raise errors[0]
