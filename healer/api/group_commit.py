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


def _too_late(future: "asyncio.Future[Any]") -> None:
    if not future.done():
        future.set_exception(Unavailable("the database does not answer"))


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
        if (self._depth and self._depth + weight > bound) or any(one.pressed for one in self._before):
            raise Busy(1)
        loop = asyncio.get_running_loop()
        waiter: _Waiter[T, R] = _Waiter(items, weight, loop.create_future())
        self._waiting.append(waiter)
        self._depth += weight
        self._wake.set()
        # A timer and a future, and not asyncio.wait_for: this is waited for ten thousand times a second.
        timer = loop.call_later(self._wait_s, _too_late, waiter.future)
        try:
            return await waiter.future
        finally:
            timer.cancel()

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
