"""Processes of one thread: each runs until its next point, where chance says who goes on, dies or stops.

A process is a greenlet. `point(name)` gives the word to the hub, which may come back to it at once, later,
much later (SIGSTOP), or never (SIGKILL: `Killed` is raised at the point, nothing behind it is run).
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from greenlet import getcurrent, greenlet

#: Where a process says that it has nothing to do until the next tick.
IDLE = "idle"


class Killed(BaseException):
    """kill -9 at this point."""


class TrueClock:
    """Time itself: only the hub moves it, and only forward."""

    def __init__(self, start: datetime) -> None:
        self._now = start

    def now(self) -> datetime:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)


@dataclass
class HostClock:
    """A machine's clock: it may be wrong, and it may leap."""

    true: TrueClock
    offset: timedelta = timedelta()

    def now(self) -> datetime:
        return self.true.now() + self.offset

    def monotonic(self) -> float:
        """Seconds that no leap touches."""
        return self.true.now().timestamp()


class Session:
    """A process's connections to PostgreSQL. Cut: its locks are free, and its next word is an error."""

    def __init__(self, owner: str) -> None:
        self.owner, self.alive = owner, True


@dataclass
class Process:
    """`main` runs for ever, a unit of work between two `IDLE` points; it is restarted after a death."""

    name: str
    clock: HostClock
    main: Callable[["Process"], None]
    cut: Callable[[Session], None]
    session: Session = field(init=False)
    stopped_until: datetime | None = None
    dead_until: datetime | None = None
    at: str = IDLE
    _greenlet: greenlet | None = None

    def __post_init__(self) -> None:
        self.session = Session(self.name)

    def point(self, name: str) -> None:
        """To be called by the process itself. Outside of any process (the test's own words) it is nothing."""
        current = getcurrent()
        if current is self._greenlet:
            assert current.parent is not None
            current.parent.switch(name)

    def go_on(self) -> str | None:
        """Runs it to its next point; None: it ended by itself (as after an error that ends a process)."""
        if self._greenlet is None:
            self.session = Session(self.name)
            self._greenlet = greenlet(self._run)
        point = self._greenlet.switch()
        if self._greenlet is not None and self._greenlet.dead:
            self.over()
            return None
        self.at = point
        return point

    def _run(self) -> None:
        try:
            self.main(self)
        except Killed:
            return

    def kill(self) -> None:
        if self._greenlet is not None and not self._greenlet.dead:
            self._greenlet.throw(Killed(self.at))
        self.over()

    def over(self) -> None:
        self.cut(self.session)
        self._greenlet, self.at = None, IDLE
        self.stopped_until = None

    @property
    def begun(self) -> bool:
        return self._greenlet is not None


@dataclass
class Chances:
    """How often, at each point; `effect` at the points around what is done to Slurm and to nodes."""

    kill: float = 0.006
    kill_effect: float = 0.06
    stop: float = 0.004
    stop_effect: float = 0.05
    #: Of those that are stopped: their connection breaks meanwhile.
    cut: float = 0.5
    slow: float = 0.05


@dataclass
class Hub:
    """Runs one process after the other; its story lists all that happened to them."""

    true: TrueClock
    chance: random.Random
    processes: list[Process]
    chances: Chances
    story: list[str] = field(default_factory=list)
    kills: int = 0
    stops: int = 0
    points: int = 0
    calm: bool = False

    def log(self, text: str) -> None:
        self.story.append(f"{self.true.now():%H:%M:%S.%f}"[:-3] + f" {text}")

    def tick(self) -> None:
        """Every process that lives does a unit of work, in any order, taking turns at every point."""
        now = self.true.now()
        ready = []
        for one in self.processes:
            if one.dead_until is not None and (self.calm or one.dead_until <= now):
                one.dead_until = None
            if one.stopped_until is not None and (self.calm or one.stopped_until <= now):
                one.stopped_until = None
                self.log(f"{one.name} goes on at {one.at}")
            if one.dead_until is None and one.stopped_until is None:
                ready.append(one)
        while ready:
            one = self.chance.choice(ready)
            where = one.go_on()
            self.points += 1
            if where is None:
                self.log(f"{one.name} ended by itself")
                one.dead_until = self.true.now() + timedelta(seconds=1)
                ready.remove(one)
            elif where == IDLE or (not self.calm and self._befalls(one, where)):
                ready.remove(one)

    def _befalls(self, one: Process, where: str) -> bool:
        """Whether it is gone, for now or for good."""
        luck, effect = self.chance.random(), where.startswith(("before:", "after:"))
        kill = self.chances.kill_effect if effect else self.chances.kill
        stop = self.chances.stop_effect if effect else self.chances.stop
        if luck < kill:
            self.log(f"{one.name} is killed at {where}")
            self.kills += 1
            one.kill()
            one.dead_until = self.true.now() + timedelta(seconds=self.chance.choice((0, 1, 3, 12)))
            return True
        if luck < kill + stop:
            lasts_s = self.chance.choice((2, 6, 9, 12, 20, 45))
            cut = self.chance.random() < self.chances.cut
            self.log(
                f"{one.name} is stopped for {lasts_s} s at {where}" + (", its session cut" if cut else "")
            )
            self.stops += 1
            one.stopped_until = self.true.now() + timedelta(seconds=lasts_s)
            if cut:
                one.cut(one.session)
            return True
        if self.chance.random() < self.chances.slow:
            self.true.advance(self.chance.uniform(0.01, 0.4))
        return False
