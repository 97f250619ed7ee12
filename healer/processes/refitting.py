"""Makes models anew in a process of its own: no thread that watches or acts waits for it."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from healer.ports.clock import Clock

log = structlog.get_logger()

LOOK_S = 5.0
#: How often it is looked whether a model is due. What is due, the process finds out.
EVERY = timedelta(hours=1)
#: After a start other things come first.
FIRST_AFTER = timedelta(minutes=5)
#: A process that takes longer is ended; it is bounded in CPU too.
LONGEST = timedelta(minutes=30)


class Child(Protocol):
    """A process under way. `problem` is None while it is, empty when it ended well."""

    def problem(self) -> str | None: ...
    def stop(self) -> None: ...


class Refitting:
    """A duty of the scheduler: one process at a time."""

    def __init__(self, begin: Callable[[], Child], clock: Clock) -> None:
        self._begin, self._clock = begin, clock
        self._due_at = clock.now() + FIRST_AFTER
        self._child: tuple[Child, datetime] | None = None

    def __call__(self) -> None:
        now = self._clock.now()
        if self._child is None:
            # A clock that was set back by more than the rest leaves nobody waiting.
            if now >= self._due_at or self._due_at - now > EVERY:
                self._due_at = now + EVERY
                self._child = self._begin(), now
            return
        child, begun = self._child
        problem = child.problem()
        if problem is None and now - begun <= LONGEST:
            return
        if problem is None:
            problem = f"it took longer than {LONGEST}"
        if problem:
            log.warning("models of classes of nodes are not looked after", why=problem)
        self.close()

    def close(self) -> None:
        """Ends what is under way."""
        if self._child is not None:
            self._child[0].stop()
            self._child = None
