"""Duties of the scheduler that work in a process of their own: models made anew, changes of rules tried."""

from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Protocol

import structlog

from healer.model.run import Rehearsal
from healer.ports.clock import Clock


class Pace:
    """What is left at the pace of the last minute: the hours of a recording are not alike."""

    WINDOW_S, LEAST_S = 60.0, 3.0

    def __init__(self) -> None:
        self._marks: deque[tuple[float, float]] = deque()

    def left_s(self, share: float, at_s: float) -> float | None:
        """`at_s` by a stopwatch; None where its pace is not known yet."""
        marks = self._marks
        marks.append((at_s, share))
        while len(marks) > 2 and at_s - marks[1][0] >= self.WINDOW_S:
            marks.popleft()
        begun_s, begun = marks[0]
        if at_s - begun_s < self.LEAST_S or share <= begun:
            return None
        return (1 - share) * (at_s - begun_s) / (share - begun)


def share_of(at: datetime, span: tuple[datetime, datetime]) -> float:
    """Of the span, 0 to 1."""
    since, until = span
    whole_s = (until - since).total_seconds() or 1.0
    return min(1.0, max(0.0, (at - since).total_seconds() / whole_s))


log = structlog.get_logger()

REFIT_S = 5.0
#: How often it is looked whether a model is due. What is due, the process finds out.
REFIT_EVERY = timedelta(hours=1)
#: After a start other things come first.
FIRST_REFIT_AFTER = timedelta(minutes=5)
#: A process that takes longer is ended; it is bounded in CPU too.
LONGEST_REFIT = timedelta(minutes=30)


class RefitChild(Protocol):
    """A process under way. `problem` is None while it is, empty when it ended well."""

    def problem(self) -> str | None: ...
    def stop(self) -> None: ...


class Refitting:
    """A duty of the scheduler: one process at a time."""

    def __init__(self, begin: Callable[[], RefitChild], clock: Clock) -> None:
        self._begin, self._clock = begin, clock
        self._due_at = clock.now() + FIRST_REFIT_AFTER
        self._child: tuple[RefitChild, datetime] | None = None

    def __call__(self) -> None:
        now = self._clock.now()
        if self._child is None:
            # A clock that was set back by more than the rest leaves nobody waiting.
            if now >= self._due_at or self._due_at - now > REFIT_EVERY:
                self._due_at = now + REFIT_EVERY
                self._child = self._begin(), now
            return
        child, begun = self._child
        problem = child.problem()
        if problem is None and now - begun <= LONGEST_REFIT:
            return
        if problem is None:
            problem = f"it took longer than {LONGEST_REFIT}"
        if problem:
            log.warning("models of classes of nodes are not looked after", why=problem)
        self.close()

    def close(self) -> None:
        """Ends what is under way."""
        if self._child is not None:
            self._child[0].stop()
            self._child = None


log = structlog.get_logger()

REHEARSE_S = 2.0
#: A replay that takes longer is given up.
LONGEST_REHEARSAL = timedelta(hours=6)


class RehearsalBook(Protocol):
    """Where rehearsals stand."""

    def claim(self, cluster: str, now: datetime) -> Rehearsal | None: ...
    def advance(self, name: str, progress: float, now: datetime, left_s: float | None) -> bool: ...
    def end(
        self, name: str, now: datetime, *, result: Mapping[str, Any] | None = None, problem: str = ""
    ) -> None: ...


class RehearsalChild(Protocol):
    """A replay under way. `result` is None while it is; a text is why it failed."""

    def progress(self) -> float: ...
    def result(self) -> Mapping[str, Any] | str | None: ...
    def stop(self) -> None: ...


class Rehearsing:
    """A duty of the scheduler: one rehearsal of the cluster at a time."""

    def __init__(
        self, book: RehearsalBook, cluster: str, begin: Callable[[Rehearsal], RehearsalChild], clock: Clock
    ) -> None:
        """`begin` raises OSError or ValueError where there is nothing to replay."""
        self._book, self._cluster, self._begin, self._clock = book, cluster, begin, clock
        self._now: tuple[Rehearsal, RehearsalChild, datetime] | None = None
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

    def _look(self, asked: Rehearsal, child: RehearsalChild, begun: datetime) -> None:
        now = self._clock.now()
        result = child.result()
        if isinstance(result, str):
            self._finish(asked, child, problem=result)
        elif result is not None:
            self._finish(asked, child, result=result)
        elif now - begun > LONGEST_REHEARSAL:
            hours = LONGEST_REHEARSAL.total_seconds() / 3600
            why = f"it took longer than {hours:g} hours: try fewer days, or without what was measured"
            self._finish(asked, child, problem=why)
        elif not self._advance(asked, child.progress(), now):
            self._finish(asked, child)

    def _advance(self, asked: Rehearsal, progress: float, now: datetime) -> bool:
        return self._book.advance(asked.id, progress, now, self._pace.left_s(progress, now.timestamp()))

    def _finish(
        self,
        asked: Rehearsal,
        child: RehearsalChild,
        *,
        result: Mapping[str, Any] | None = None,
        problem: str = "",
    ) -> None:
        child.stop()
        self._now = None
        if result is not None or problem:
            self._book.end(asked.id, self._clock.now(), result=result, problem=problem)
