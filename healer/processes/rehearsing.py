"""Carries out one rehearsal after another, in a process of its own, and stops one that is cancelled."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Protocol

import structlog

from healer.model.rehearsal import Rehearsal
from healer.ports.clock import Clock
from healer.processes.progress import Pace

log = structlog.get_logger()

EVERY_S = 2.0
#: A replay that takes longer is given up.
LONGEST = timedelta(hours=6)


class Book(Protocol):
    """Where rehearsals stand."""

    def claim(self, cluster: str, now: datetime) -> Rehearsal | None: ...
    def advance(self, name: str, progress: float, now: datetime, left_s: float | None) -> bool: ...
    def end(
        self, name: str, now: datetime, *, result: Mapping[str, Any] | None = None, problem: str = ""
    ) -> None: ...


class Child(Protocol):
    """A replay under way. `result` is None while it is; a text is why it failed."""

    def progress(self) -> float: ...
    def result(self) -> Mapping[str, Any] | str | None: ...
    def stop(self) -> None: ...


class Rehearsing:
    """A duty of the scheduler: one rehearsal of the cluster at a time."""

    def __init__(self, book: Book, cluster: str, begin: Callable[[Rehearsal], Child], clock: Clock) -> None:
        """`begin` raises OSError or ValueError where there is nothing to replay."""
        self._book, self._cluster, self._begin, self._clock = book, cluster, begin, clock
        self._now: tuple[Rehearsal, Child, datetime] | None = None
        self._pace = Pace()

    def __call__(self) -> None:
        if self._now is None:
            self._start()
        else:
            self._look(*self._now)

    def close(self) -> None:
        """Ends what is under way with the process."""
        if self._now is not None:
            self._finish(self._now[0], self._now[1], problem="healer was stopped")

    def _start(self) -> None:
        now = self._clock.now()
        asked = self._book.claim(self._cluster, now)
        if asked is None:
            return
        try:
            child = self._begin(asked)
        except (OSError, ValueError) as error:
            self._book.end(asked.id, now, problem=str(error))
            return
        log.info("a change of rules is tried", rehearsal=asked.id, file=asked.file)
        self._now, self._pace = (asked, child, now), Pace()

    def _look(self, asked: Rehearsal, child: Child, begun: datetime) -> None:
        now = self._clock.now()
        result = child.result()
        if isinstance(result, str):
            self._finish(asked, child, problem=result)
        elif result is not None:
            self._finish(asked, child, result=result)
        elif now - begun > LONGEST:
            hours = LONGEST.total_seconds() / 3600
            why = f"it took longer than {hours:g} hours: try fewer days, or without what was measured"
            self._finish(asked, child, problem=why)
        elif not self._advance(asked, child.progress(), now):
            self._finish(asked, child)

    def _advance(self, asked: Rehearsal, progress: float, now: datetime) -> bool:
        return self._book.advance(asked.id, progress, now, self._pace.left_s(progress, now.timestamp()))

    def _finish(
        self, asked: Rehearsal, child: Child, *, result: Mapping[str, Any] | None = None, problem: str = ""
    ) -> None:
        child.stop()
        self._now = None
        if result is not None or problem:
            self._book.end(asked.id, self._clock.now(), result=result, problem=problem)
