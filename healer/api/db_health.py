"""Whether the database answers, as this process's own questions find it; and what all share of its answers.

A server that is down refuses at once; one that is stopped, frozen or cut off says nothing, and whoever asks
hangs. So no request waits longer than `PATIENCE_S`, and while the database is known to be away none waits at
all: one question at a time looks whether it is back.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from healer.api.services import Services
from healer.model import SlurmSnapshot
from healer.ports.answers import Readiness
from healer.ports.request_errors import Unavailable

P = ParamSpec("P")
T = TypeVar("T")
#: A hook gives up after 3 s and has to be answered before.
PATIENCE_S = 2.0
#: How often somebody looks whether it is back, and when a look that still hangs is given up.
_LOOK_S, _LOOK_AGAIN_S = 0.5, 10.0
#: Questions at once; those that hang hold no thread of the other routes.
_THREADS = 8
#: Who waits for one of them: so many, and for so long.
_QUEUED_MAX, _QUEUE_S = 200, 0.5
#: Whether healer is ready is asked of the database this often, for all who ask us.
_READY_S = 1.0
_SILENT = "the database does not answer"
_CROWDED = "too many questions wait for the database"


class Crowded(Unavailable):
    """Others ask so much that this was not asked. It says nothing about the database."""


class Reach:
    """Thread-safe, but for `ask`, which belongs to the event loop."""

    def __init__(self, *, patience_s: float = PATIENCE_S) -> None:
        self.patience_s = patience_s
        #: Why nothing more can be written, while the database answers: its disk is full.
        self.disk_full = ""
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ask")
        self._lock = threading.Lock()
        self._away_since: float | None = None
        self._why = ""
        self._looked_at = float("-inf")
        self._look: Future[Any] | None = None
        self._queued = 0

    @property
    def away(self) -> bool:
        return self._away_since is not None

    def failed(self, why: str) -> None:
        with self._lock:
            self._why = why
            if self._away_since is None:
                self._away_since = time.monotonic()

    def answered(self) -> None:
        with self._lock:
            self._away_since = None

    async def ask(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work` finds in the database, asked in a thread. Raises Unavailable within the patience, and
        at once while the database is known to be away."""
        if self.away:
            self._look_for(lambda: work(*args, **kwargs))
            raise Unavailable(self._why or _SILENT)
        return await self.insist(work, *args, **kwargs)

    async def insist(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same, tried whatever was found before.

        The database is silent from when it is asked: who waits only for a thread, because others ask so much,
        hears Crowded and learns nothing about the database.
        """
        if self._queued >= _QUEUED_MAX:
            raise Crowded(_CROWDED)
        loop = asyncio.get_running_loop()
        begun = asyncio.Event()

        def begin() -> T:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(begun.set)
            return self._told(lambda: work(*args, **kwargs))

        asked = self._threads.submit(begin)
        self._queued += 1
        try:
            await asyncio.wait_for(begun.wait(), _QUEUE_S)
        except TimeoutError:
            if asked.cancel():
                raise Crowded(_CROWDED) from None
        finally:
            self._queued -= 1
        try:
            return await asyncio.wait_for(asyncio.wrap_future(asked), self.patience_s)
        except TimeoutError:
            self.failed(_SILENT)
            raise Unavailable(f"{_SILENT} within {self.patience_s:g} s") from None

    def _look_for(self, work: Callable[[], Any]) -> None:
        now = time.monotonic()
        busy = self._look is not None and not self._look.done()
        if now - self._looked_at < (_LOOK_AGAIN_S if busy else _LOOK_S):
            return
        self._looked_at, self._look = now, self._threads.submit(self._told, work)

    def _told(self, work: Callable[[], T]) -> T:
        try:
            found = work()
        except Unavailable as error:
            self.failed(str(error))
            raise
        self.answered()
        return found


class Readying:
    """What /readyz tells of the database: anybody may ask, so all who do share one answer a second."""

    def __init__(self, ask: Callable[[], Readiness], reach: Reach) -> None:
        self._ask, self._reach = ask, reach
        self._asked_at, self._told = float("-inf"), Readiness(ready=False, checks={})
        self._asking: asyncio.Task[None] | None = None

    async def current(self) -> Readiness:
        if time.monotonic() - self._asked_at > _READY_S:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._look(), name="readiness")
            await asyncio.shield(self._asking)
        return self._told

    async def _look(self) -> None:
        asked = time.monotonic()
        try:
            self._told = await self._reach.insist(self._ask)
        except Unavailable as error:
            self._told = Readiness(ready=False, checks={"database": {"ok": False, "text": str(error)}})
        self._asked_at = asked


_FRESH_S = 1.0
#: While the database is away the old picture still says which nodes there are, for as long as tokens that
#: were good still count (`access.REMEMBERED_S`).
_USABLE_S = 900.0


class Fleet:
    """The snapshots of all clusters, cached."""

    def __init__(self, services: Services, reach: Reach) -> None:
        self._services, self._reach = services, reach
        self._snapshots: dict[str, SlurmSnapshot] = {}
        self._read_at = float("-inf")
        self._lock = threading.Lock()
        self._reading: asyncio.Future[dict[str, SlurmSnapshot]] | None = None

    @property
    def latest(self) -> dict[str, SlurmSnapshot]:
        """By cluster, as they were last read; asks nobody."""
        return self._snapshots

    @property
    def fresh(self) -> dict[str, SlurmSnapshot] | None:
        """The same, where they need not be read anew."""
        return self._snapshots if time.monotonic() - self._read_at <= _FRESH_S else None

    def snapshots(self) -> dict[str, SlurmSnapshot]:
        """By cluster; from a thread."""
        with self._lock:
            asked = time.monotonic()
            if asked - self._read_at > _FRESH_S:
                self._snapshots = self._services.queries.clusters.snapshots()
                self._read_at = asked
            return self._snapshots

    async def current(self) -> dict[str, SlurmSnapshot]:
        """By cluster; inside the event loop. Requests that find it stale share one read."""
        if (snapshots := self.fresh) is not None:
            return snapshots
        age = time.monotonic() - self._read_at
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(self._reach.ask(self.snapshots))
        try:
            await asyncio.shield(self._reading)
        except Unavailable:
            if age > _USABLE_S or not self._snapshots:
                raise
        return self._snapshots
