"""Many signals, one commit: whatever waits is written together, and each sender is answered after it.

While one batch is being written the next one gathers, so that the cost of an fsync is shared by all that
came in its time. One writer per process; the order of arrival is kept.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from healer.api.services import Arrival, SignalStore, Unavailable

#: A sender waits this long for a database that is away before it hears 503.
WAIT_S = 5.0
#: Observations that may wait at once; a storm of 10,000 nodes with several lines each fits.
QUEUE = 50_000
#: Above this share of the queue heartbeats are shed; fault events only when it is full.
HEARTBEAT_SHARE = 0.5
#: Observations in one INSERT.
BATCH = 4_000
_RETRY_S = 0.1


class Busy(Exception):
    """The queue is full: 429. `retry_after_s` is a whole number of seconds."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__("too many signals wait to be written")
        self.retry_after_s = retry_after_s


class _Waiter(msgspec.Struct, eq=False):
    arrivals: Sequence[Arrival]
    future: asyncio.Future[list[bool]]


class GroupCommit:
    """Start it inside the event loop; `add` may be called by any number of requests at once."""

    def __init__(self, store: SignalStore, *, wait_s: float = WAIT_S, queue: int = QUEUE) -> None:
        self._store = store
        self._wait_s = wait_s
        self._queue = queue
        self._waiting: deque[_Waiter] = deque()
        self._depth = 0
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="signals")
        self._task: asyncio.Task[None] | None = None

    @property
    def depth(self) -> int:
        """Observations that wait or are being written."""
        return self._depth

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

    async def add(self, arrivals: Sequence[Arrival], *, shed_first: bool = False) -> list[bool]:
        """Stores the arrivals durably; True for each that was new.

        Raises Busy when too many wait, Unavailable when the database did not come back in time. After
        Unavailable they may still have been stored: a repeat by the sender is then a duplicate.
        """
        if not arrivals:
            return []
        bound = self._queue * HEARTBEAT_SHARE if shed_first else self._queue
        if self._depth and self._depth + len(arrivals) > bound:
            raise Busy(1)
        waiter = _Waiter(arrivals, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._depth += len(arrivals)
        self._wake.set()
        try:
            return await asyncio.wait_for(waiter.future, self._wait_s)
        except TimeoutError:
            raise Unavailable("the database does not answer") from None

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                batch = self._take()
                if batch and not await self._write(batch):
                    await asyncio.sleep(_RETRY_S)

    def _take(self) -> list[_Waiter]:
        """The next waiters whose senders still wait, up to the size of one batch."""
        batch: list[_Waiter] = []
        size = 0
        while self._waiting and (not batch or size + len(self._waiting[0].arrivals) <= BATCH):
            waiter = self._waiting.popleft()
            if waiter.future.done():
                self._depth -= len(waiter.arrivals)
                continue
            batch.append(waiter)
            size += len(waiter.arrivals)
        return batch

    async def _write(self, batch: list[_Waiter]) -> bool:
        """False when the database is away: the batch waits in front again."""
        arrivals = [arrival for waiter in batch for arrival in waiter.arrivals]
        try:
            new = await asyncio.get_running_loop().run_in_executor(self._thread, self._store.store, arrivals)
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
            end = start + len(waiter.arrivals)
            self._finish(waiter, new[start:end])
            start = end
        return True

    def _finish(self, waiter: _Waiter, result: list[bool] | Exception) -> None:
        self._depth -= len(waiter.arrivals)
        if waiter.future.done():
            return
        if isinstance(result, Exception):
            waiter.future.set_exception(result)
        else:
            waiter.future.set_result(result)
