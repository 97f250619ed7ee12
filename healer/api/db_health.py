"""Whether the database answers, by this process's own queries; and answers of it that all requests share.

A server that is down refuses at once; one that is stopped, frozen or cut off hangs its clients. So no request
waits longer than `PATIENCE_S`, and while the database is away none waits at all: one query at a time probes
whether it is back.
"""

import asyncio
import contextlib
import functools
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, ParamSpec, TypeVar

from healer.api.services import Services
from healer.model import SlurmSnapshot
from healer.ports.answers import Readiness
from healer.ports.request_errors import DiskFull, Unavailable
from healer.text import Said, said_by, say

P = ParamSpec("P")
T = TypeVar("T")
#: A hook gives up after 3 s and has to be answered before.
PATIENCE_S = 2.0
#: How long a full disk is remembered that no further write met.
FULL_S = 30.0
#: How often a probe looks whether it is back, and when a probe that still hangs is given up.
_PROBE_S, _PROBE_AGAIN_S = 0.5, 10.0
#: Queries at once; those that hang hold no thread of the other routes.
_THREADS = 8
#: Requests that may wait for a thread of a lane, and for how long.
_QUEUED_MAX, _QUEUE_S = 200, 0.5
_SILENT = say("api.database_silent")
_CROWDED = say("api.database_crowded")


class Crowded(Unavailable):
    """Too many queries wait for a thread; this one was not sent. It says nothing about the database."""


class Lane:
    """Threads for the queries of some callers, so that no others take them. `queued` wait for one."""

    def __init__(self, threads: int, name: str) -> None:
        #: One more than are lent: a probe takes it without asking.
        self.threads = ThreadPoolExecutor(threads + 1, thread_name_prefix=name)
        self.free = asyncio.Semaphore(threads)
        self.queued = 0


class Database:
    """Thread-safe, except for `ask`, which belongs to the event loop. `stopwatch`: monotonic seconds."""

    def __init__(
        self, *, patience_s: float = PATIENCE_S, stopwatch: Callable[[], float] = time.monotonic
    ) -> None:
        self.patience_s, self._stopwatch = patience_s, stopwatch
        self._full = ("", float("-inf"))
        #: For all calls without a lane of their own.
        self.common = Lane(_THREADS, "ask")
        self._lock = threading.Lock()
        self._away_since: float | None = None
        self._why = _SILENT
        self._probed_at = float("-inf")
        self._probe: Future[Any] | None = None

    @property
    def away(self) -> bool:
        return self._away_since is not None

    @property
    def disk_full(self) -> str:
        """Why the last write failed while the database answered: its disk was full. Empty if it did not, or
        not lately: through an API that is not ready perhaps nothing is written that would show the disk's
        new room."""
        why, at_s = self._full
        return why if self._stopwatch() - at_s < FULL_S else ""

    def no_room(self, error: DiskFull) -> None:
        self._full = (str(error), self._stopwatch())

    def wrote(self) -> None:
        self._full = ("", float("-inf"))

    def failed(self, why: Said) -> None:
        with self._lock:
            self._why = why
            if self._away_since is None:
                self._away_since = time.monotonic()

    def answered(self) -> None:
        with self._lock:
            self._away_since = None

    async def ask(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of the query `work`, run in a thread. Raises Unavailable within the patience, and at
        once while the database is known to be away."""
        return await self.ask_in(self.common, functools.partial(work, *args, **kwargs))

    async def ask_in(self, lane: Lane, work: Callable[[], T]) -> T:
        """The same in a thread of this lane."""
        if self.away:
            self._start_probe(work)
            raise Unavailable(self._why)
        return await self._run(lane, work)

    async def ask_anyway(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same, even while the database is known to be away.

        Patience counts from when the query starts. Waiting too long for a thread raises Crowded, which says
        nothing about the database.
        """
        return await self._run(self.common, functools.partial(work, *args, **kwargs))

    async def _run(self, lane: Lane, work: Callable[[], T]) -> T:
        if lane.queued >= _QUEUED_MAX:
            raise Crowded(_CROWDED)
        lane.queued += 1
        try:
            await asyncio.wait_for(lane.free.acquire(), _QUEUE_S)
        except TimeoutError:
            raise Crowded(_CROWDED) from None
        finally:
            lane.queued -= 1
        asked = asyncio.get_running_loop().run_in_executor(lane.threads, work)
        try:
            found = await asyncio.wait_for(asyncio.shield(asked), self.patience_s)
        except TimeoutError:
            self.failed(_SILENT)
            raise Unavailable(_SILENT) from None
        except Unavailable as error:
            self.failed(said_by(error))
            raise
        finally:
            if asked.done():
                lane.free.release()
            else:  # it hangs, or its request is gone: its thread is still busy
                asked.add_done_callback(functools.partial(self._ended_late, lane))
        self.answered()
        return found

    def _ended_late(self, lane: Lane, asked: "asyncio.Future[Any]") -> None:
        lane.free.release()
        error = asked.exception()
        if error is None:
            self.answered()
        elif isinstance(error, Unavailable):
            self.failed(said_by(error))

    def _start_probe(self, work: Callable[[], Any]) -> None:
        now = time.monotonic()
        busy = self._probe is not None and not self._probe.done()
        if now - self._probed_at < (_PROBE_AGAIN_S if busy else _PROBE_S):
            return
        self._probed_at, self._probe = now, self.common.threads.submit(self._observed, work)

    def _observed(self, work: Callable[[], T]) -> T:
        """`work`, with its outcome noted."""
        try:
            found = work()
        except Unavailable as error:
            self.failed(said_by(error))
            raise
        self.answered()
        return found


class SharedRead(Generic[T]):
    """The result of `read`, at most a second old: requests share one call. Where it raises Unavailable, the
    result before it stays."""

    def __init__(self, read: Callable[[], Awaitable[T]], initial: T) -> None:
        self._read, self._result = read, initial
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def current(self, *, renewed: bool = False) -> T:
        """`renewed`: read it now, whatever its age."""
        if renewed or time.monotonic() - self._read_at > _FRESH_S:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._renew())
            await asyncio.shield(self._reading)
        return self._result

    @property
    def age_s(self) -> float:
        """Seconds since the result was true."""
        return time.monotonic() - self._read_at

    async def _renew(self) -> None:
        started = time.monotonic()
        with contextlib.suppress(Unavailable):
            self._result = await self._read()
            self._read_at = started


def shared_readiness(ask: Callable[[], Readiness], database: Database) -> SharedRead[Readiness]:
    """The database's part of /readyz: anyone may ask, so all requests share one answer a second."""

    async def read() -> Readiness:
        try:
            return await database.ask_anyway(ask)
        except Unavailable as error:
            return Readiness(ready=False, checks={"database": {"ok": False, "text": str(error)}})

    return SharedRead(read, Readiness(ready=False, checks={}))


_FRESH_S = 1.0
#: While the database is away, the old snapshots still say which nodes there are, for as long as tokens
#: remembered as valid still count (`access.REMEMBERED_S`).
_USABLE_S = 900.0


class Fleet:
    """The snapshots of all clusters of this installation, cached. One that was removed from the settings
    leaves its last snapshot in the database: no detector reads what its nodes send."""

    def __init__(self, services: Services, database: Database) -> None:
        self._services, self._database, self._clusters = services, database, frozenset(services.served)
        #: By cluster, as last read, and until when they are fresh.
        self.latest: dict[str, SlurmSnapshot] = {}
        self.fresh_until = float("-inf")
        self._lock = threading.Lock()
        self._reading: asyncio.Task[None] | None = None

    def snapshots(self) -> dict[str, SlurmSnapshot]:
        """By cluster; from a thread."""
        with self._lock:
            asked = time.monotonic()
            if asked > self.fresh_until:
                found = self._services.queries.clusters.snapshots()
                self.latest, self.fresh_until = self._served(found), asked + _FRESH_S
            return self.latest

    def _served(self, found: dict[str, SlurmSnapshot]) -> dict[str, SlurmSnapshot]:
        return {name: snapshot for name, snapshot in found.items() if name in self._clusters}

    async def current(self) -> dict[str, SlurmSnapshot]:
        """By cluster; inside the event loop. Requests that find it stale share one read."""
        now = time.monotonic()
        if now <= self.fresh_until:
            return self.latest
        is_usable = now - self.fresh_until <= _USABLE_S and bool(self.latest)
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._renew())
        try:
            await asyncio.shield(self._reading)
        except Unavailable:
            if not is_usable:
                raise
        return self.latest

    async def _renew(self) -> None:
        asked = time.monotonic()
        found = await self._database.ask(self._services.queries.clusters.snapshots)
        self.latest, self.fresh_until = self._served(found), asked + _FRESH_S
