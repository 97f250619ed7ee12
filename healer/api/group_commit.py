"""Many signals, one commit: whatever waits is written together, and each sender is answered after it.

While one batch is being written the next one gathers, so that the cost of a commit is shared by all that
came in its time. One writer for each queue of a process; the order of arrival is kept.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from healer.api.services import Unavailable

#: A sender waits this long for a database that is away before it hears 503.
WAIT_S = 5.0
#: Observations that may wait at once; a storm of 10,000 nodes with several lines each fits.
QUEUE = 50_000
#: Observations in one INSERT.
BATCH = 4_000
#: Above this share of a queue what matters less is shed: heartbeats before events, metrics before both.
SHED_SHARE = 0.5
_RETRY_S = 0.1

T = TypeVar("T")
R = TypeVar("R")


class Busy(Exception):
    """The queue is full: 429. `retry_after_s` is a whole number of seconds."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__("too many signals wait to be written")
        self.retry_after_s = retry_after_s


@dataclass(slots=True, eq=False)
class _Waiter(Generic[T, R]):
    items: Sequence[T]
    weight: int
    future: "asyncio.Future[Sequence[R]]"


class _Patience:
    """Senders wait so long and no longer. One timer for all of them: ten thousand come in a second, in order,
    and each waits as long as the others."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._waiting: deque[tuple[float, asyncio.Future[Any]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, future: "asyncio.Future[Any]") -> None:
        loop, waiting = future.get_loop(), self._waiting
        while waiting and waiting[0][1].done():
            waiting.popleft()  # so that no more is kept than waits, but for what comes late behind the first
        waiting.append((loop.time() + self._wait_s, future))
        if self._timer is None:
            self._timer = loop.call_later(self._wait_s, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting, now = self._waiting, loop.time()
        while waiting and (waiting[0][0] <= now or waiting[0][1].done()):
            _, future = waiting.popleft()
            if not future.done():
                future.set_exception(Unavailable("the database does not answer"))
        self._timer = loop.call_at(waiting[0][0], self._look, loop) if waiting else None


class GroupCommit(Generic[T, R]):
    """Start it inside the event loop; `add` may be called by any number of requests at once.

    `store` writes items in one commit and gives one result for each; it is called from one thread. It raises
    Unavailable when the database is away: then nothing is stored, and the same items come again. `queue` and
    `batch` bound the sum of what `weigh` gives (1 for each item without it). While a queue of `before` is
    over half full, nothing is taken here: what is in it matters more. `gather_s`: the first of a batch waits
    so long for others, where a commit costs more than what is in it.
    """

    def __init__(
        self,
        store: Callable[[Sequence[T]], Sequence[R]],
        *,
        name: str = "signals",
        wait_s: float = WAIT_S,
        queue: int = QUEUE,
        batch: int = BATCH,
        weigh: Callable[[T], int] | None = None,
        before: "Sequence[GroupCommit[Any, Any]]" = (),
        gather_s: float = 0.0,
    ) -> None:
        self._store = store
        self._wait_s = wait_s
        self._queue, self._batch, self._weigh = queue, batch, weigh
        self._before, self._gather_s = before, gather_s
        self._waiting: deque[_Waiter[T, R]] = deque()
        self._patience = _Patience(wait_s)
        self._depth = 0
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._task: asyncio.Task[None] | None = None

    @property
    def depth(self) -> int:
        """Weight of what waits or is being written."""
        return self._depth

    @property
    def limit(self) -> int:
        """What `depth` may come to before senders are told to wait."""
        return self._queue

    @property
    def pressed(self) -> bool:
        """Over half full: what matters less has to stand back."""
        return self._depth > self._queue * SHED_SHARE

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="group commit")

    async def stop(self) -> None:
        """Writes what waits, at most `wait_s`, then ends."""
        if self._task is None:
            return
        deadline = asyncio.get_running_loop().time() + self._wait_s
        while self._depth and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown(wait=False)

    async def add(self, items: Sequence[T], *, shed_first: bool = False) -> Sequence[R]:
        """Stores the items durably; the store's result for each.

        Raises Busy when too much waits, Unavailable when the database did not come back in time. After
        Unavailable they may still have been stored: a repeat by the sender is then a duplicate.
        """
        if not items:
            return []
        weight = len(items) if self._weigh is None else sum(self._weigh(one) for one in items)
        bound = self._queue * SHED_SHARE if shed_first else self._queue
        if (self._depth and self._depth + weight > bound) or (
            self._before and any(one.pressed for one in self._before)
        ):
            raise Busy(1)
        waiter: _Waiter[T, R] = _Waiter(items, weight, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._depth += weight
        self._wake.set()
        self._patience.begin(waiter.future)
        return await waiter.future

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                if self._gather_s and self._depth < self._batch:
                    await asyncio.sleep(self._gather_s)
                batch = self._take()
                if batch and not await self._write(batch):
                    await asyncio.sleep(_RETRY_S)

    def _take(self) -> list[_Waiter[T, R]]:
        """The next waiters whose senders still wait, up to the size of one batch."""
        batch: list[_Waiter[T, R]] = []
        size = 0
        while self._waiting and (not batch or size + self._waiting[0].weight <= self._batch):
            waiter = self._waiting.popleft()
            if waiter.future.done():
                self._depth -= waiter.weight
                continue
            batch.append(waiter)
            size += waiter.weight
        return batch

    async def _write(self, batch: list[_Waiter[T, R]]) -> bool:
        """False when the database is away: the batch waits in front again."""
        items = [item for waiter in batch for item in waiter.items]
        try:
            told = await asyncio.get_running_loop().run_in_executor(self._thread, self._store, items)
        except Unavailable:
            self._waiting.extendleft(reversed(batch))
            return False
        except Exception as error:
            # A batch that cannot be written must not take its neighbours with it.
            if len(batch) > 1:
                for waiter in batch:
                    if not await self._write([waiter]):
                        await asyncio.sleep(_RETRY_S)
                return True
            self._finish(batch[0], error)
            return True
        start = 0
        for waiter in batch:
            end = start + len(waiter.items)
            self._finish(waiter, told[start:end])
            start = end
        return True

    def _finish(self, waiter: _Waiter[T, R], result: Sequence[R] | Exception) -> None:
        self._depth -= waiter.weight
        if waiter.future.done():
            return
        if isinstance(result, Exception):
            waiter.future.set_exception(result)
        else:
            waiter.future.set_result(result)
