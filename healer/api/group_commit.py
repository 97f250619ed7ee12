"""Many signals, one commit: whatever waits is written together, and each sender is answered after it.

While one batch is being written the next one gathers, so that the cost of a commit is shared by all that
came in its time. One writer for each queue of a process. Each owner, a token as a rule, keeps the order of
its own requests; between owners slices are taken in turn, so that nobody waits for all that another one sent.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec
from starlette.responses import Response

from healer.api.metrics import COMMIT_S, SIGNALS
from healer.api.problems import Problem
from healer.model import Verdict
from healer.ports.callers import Caller
from healer.ports.request_errors import Unavailable
from healer.signals import wire
from healer.signals.hook_reports import HOOKS

#: A sender waits this long for a database that is away before it hears 503.
WAIT_S = 5.0
#: Observations that may wait at once; a storm of 10,000 nodes with several lines each fits.
QUEUE = 50_000
#: Observations in one INSERT.
BATCH = 4_000
#: So many events are a batch that need not wait for the others that have come with them.
BEGIN_AT = 16
#: Of one request so many are taken in one turn.
SLICE = 500
#: Of the queue, what one token bound to a node or a job may hold, and any other one. A request that is longer
#: is taken while its token holds nothing else, and fills no more of the queue than this share.
SHARE_OF_BOUND, SHARE = 0.1, 0.8
#: Above this share of a queue what matters less is shed: heartbeats before events, metrics before both.
SHED_SHARE = 0.5
_RETRY_S = 0.1
T = TypeVar("T")
R = TypeVar("R")
#: What a queue is emptied into. The call begins to write; what it gives tells the end.
Store = Callable[[Sequence[T]], Awaitable[Sequence[R]]]


def in_thread(store: Callable[[Sequence[T]], Sequence[R]], name: str = "signals") -> Store[T, R]:
    """`store`, called in a thread of its own."""
    thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    def aside(items: Sequence[T]) -> Awaitable[Sequence[R]]:
        return asyncio.get_running_loop().run_in_executor(thread, store, items)

    return aside


class Busy(Exception):
    """The queue is full: 429. `retry_after_s` is a whole number of seconds."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__("too many signals wait to be written")
        self.retry_after_s = retry_after_s


@dataclass(slots=True, eq=False)
class _Waiter(Generic[T, R]):
    """One request. `at`: how many of its items were taken for a batch; `counts`: its part of the depth."""

    items: Sequence[T]
    weight: int
    counts: int
    owner: str
    future: "asyncio.Future[Sequence[R]]"
    at: int = 0
    told: list[R] = field(default_factory=list)
    over: bool = False


#: Items of a waiter, from, to.
_Slice = tuple[_Waiter[T, R], int, int]


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


@dataclass(frozen=True, kw_only=True)
class QueueBounds:
    """`queue` and `batch` bound the sum of what `weigh` gives (1 for each item without it). While a queue of
    `before` is over half full, nothing is taken here: what is in it matters more. `gather_s`: the first of a
    batch waits so long for others, where a commit costs more than what is in it. `begin_at`: where nothing is
    being written and so much waits, its commit begins at once, while the event loop reads what else has come.
    """

    wait_s: float = WAIT_S
    queue: int = QUEUE
    batch: int = BATCH
    weigh: Callable[[Any], int] | None = None
    before: "Sequence[GroupCommit[Any, Any]]" = ()
    gather_s: float = 0.0
    begin_at: int | None = None


class GroupCommit(Generic[T, R]):
    """Start it inside the event loop; `add` may be called by any number of requests at once.

    `store` writes items in one commit and gives one result for each; the next call waits for it. It raises
    Unavailable when the database is away: then nothing is stored, and the same items come again.
    """

    def __init__(self, store: Store[T, R], bounds: QueueBounds = QueueBounds()) -> None:
        self._store = store
        self._wait_s = bounds.wait_s
        self._queue, self._batch, self._weigh = bounds.queue, bounds.batch, bounds.weigh
        self._before, self._gather_s, self._begin_at = bounds.before, bounds.gather_s, bounds.begin_at
        #: What waits, by owner, and the owners in the order of their turns.
        self._lines: dict[str, deque[_Waiter[T, R]]] = {}
        self._turns: deque[str] = deque()
        #: What each owner holds: waiting or being written.
        self._held: dict[str, int] = {}
        self._patience = _Patience(bounds.wait_s)
        self._depth = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: The batch that is being written.
        self._begun: tuple[list[_Slice[T, R]], Awaitable[Sequence[R]]] | None = None

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

    async def add(
        self, items: Sequence[T], *, owner: str = "", share: float = 1.0, shed_first: bool = False
    ) -> Sequence[R]:
        """Stores the items durably; the store's result for each.

        Raises Busy when too much waits, of all or of this `owner`, who may hold that `share` of the queue;
        Unavailable when the database did not come back in time. After Unavailable they may still have been
        stored: a repeat by the sender is then a duplicate.
        """
        if not items:
            return []
        weight = len(items) if self._weigh is None else sum(map(self._weigh, items))
        bound = self._queue * SHED_SHARE if shed_first else self._queue
        most = int(self._queue * share)
        counts, held = min(weight, most) if share < 1 else weight, self._held.get(owner, 0)
        if (
            (self._depth and self._depth + counts > bound)
            or (share < 1 and held and held + counts > most)
            or (self._before and any(one.pressed for one in self._before))
        ):
            raise Busy(1)
        waiter: _Waiter[T, R] = _Waiter(
            items, weight, counts, owner, asyncio.get_running_loop().create_future()
        )
        self._line(owner).append(waiter)
        self._depth += counts
        self._held[owner] = held + counts
        self._wake.set()
        self._patience.begin(waiter.future)
        if self._begin_at is not None and self._begun is None and self._depth >= self._begin_at:
            self._begin()
        return await waiter.future

    def _line(self, owner: str, *, first: bool = False) -> "deque[_Waiter[T, R]]":
        """What of an owner waits; one who had nothing waiting gets a turn."""
        line = self._lines.get(owner)
        if line is None:
            line = self._lines[owner] = deque()
            if first:
                self._turns.appendleft(owner)
            else:
                self._turns.append(owner)
        return line

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._turns or self._begun:
                if self._begun is None and self._gather_s and self._depth < self._batch:
                    await asyncio.sleep(self._gather_s)
                if self._begun is None:
                    self._begin()
                if self._begun is not None:
                    await self._end(*self._begun)
                    self._begun = None

    def _begin(self) -> None:
        batch = self._take()
        if batch:
            self._begun = batch, self._asked(batch)

    def _asked(self, batch: list[_Slice[T, R]]) -> Awaitable[Sequence[R]]:
        """A store that cannot even begin, as where the system has no thread left, has failed as any other."""
        try:
            return self._put(batch)
        except Exception as error:
            failed: asyncio.Future[Sequence[R]] = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            return failed

    def _take(self) -> list[_Slice[T, R]]:
        """Slices of the owners in turn, of requests whose senders still wait, up to the size of one batch."""
        batch: list[_Slice[T, R]] = []
        size = 0
        while self._turns:
            owner = self._turns.popleft()
            line = self._lines[owner]
            waiter = line[0]
            if waiter.future.done():
                line.popleft()
                self._release(waiter)
            else:
                end, weight = self._slice_of(waiter)
                if batch and size + weight > self._batch:
                    self._turns.appendleft(owner)
                    break
                batch.append((waiter, waiter.at, end))
                size += weight
                waiter.at = end
                if end == len(waiter.items):
                    line.popleft()
            if line:
                self._turns.append(owner)
            else:
                del self._lines[owner]
        return batch

    def _slice_of(self, waiter: _Waiter[T, R]) -> tuple[int, int]:
        """(end, weight) of what is taken of it next. What is weighed comes in requests of one item."""
        if self._weigh is not None or len(waiter.items) <= SLICE:
            return len(waiter.items), waiter.weight
        end = min(len(waiter.items), waiter.at + SLICE)
        return end, end - waiter.at

    def _put_back(self, batch: list[_Slice[T, R]]) -> None:
        for waiter, start, _ in reversed(batch):
            if waiter.over:
                continue
            line = self._line(waiter.owner, first=True)
            if not line or line[0] is not waiter:
                line.appendleft(waiter)
            waiter.at = start

    async def _end(self, batch: list[_Slice[T, R]], told: Awaitable[Sequence[R]]) -> None:
        """Of a batch that is being written. When the database is away it waits in front again."""
        try:
            self._tell(batch, await told)
        except Unavailable:
            self._put_back(batch)
            await asyncio.sleep(_RETRY_S)
        except Exception as error:
            if len(batch) > 1:
                await self._write_alone(batch)
            else:
                self._finish(batch[0][0], error)

    async def _write_alone(self, batch: list[_Slice[T, R]]) -> None:
        """A batch that cannot be written must not take its neighbours with it."""
        for index, one in enumerate(batch):
            if one[0].over:
                continue
            try:
                self._tell([one], await self._put([one]))
            except Unavailable:
                self._put_back(batch[index:])
                await asyncio.sleep(_RETRY_S)
                return
            except Exception as error:
                self._finish(one[0], error)

    def _put(self, batch: list[_Slice[T, R]]) -> Awaitable[Sequence[R]]:
        return self._store([item for waiter, start, end in batch for item in waiter.items[start:end]])

    def _tell(self, batch: list[_Slice[T, R]], told: Sequence[R]) -> None:
        first = 0
        for waiter, start, end in batch:
            waiter.told += told[first : first + end - start]
            first += end - start
            if len(waiter.told) == len(waiter.items):
                self._finish(waiter, waiter.told)

    def _finish(self, waiter: _Waiter[T, R], result: Sequence[R] | Exception) -> None:
        self._release(waiter)
        if waiter.future.done():
            return
        if isinstance(result, Exception):
            waiter.future.set_exception(result)
        else:
            waiter.future.set_result(result)

    def _release(self, waiter: _Waiter[T, R]) -> None:
        """Its place in the queue is free, once."""
        if waiter.over:
            return
        waiter.over = True
        self._depth -= waiter.counts
        held = self._held[waiter.owner] - waiter.counts
        if held:
            self._held[waiter.owner] = held
        else:
            del self._held[waiter.owner]


# --- what becomes of signals, counted and answered: the same for every route that takes them

_RESULTS = ("accepted", "duplicate", "unrecognised", "rejected", "shed")
_EVENTS = ("kernel-log", "heartbeat", "checkpoints", "logs", "otlp/v1/logs", "alertmanager", "cloudevents")
_SAMPLES = ("metrics", "prometheus/write", "openmetrics", "nvidia-smi", "step-times", "otlp/v1/metrics")
_COUNTERS = {
    route: {result: SIGNALS.labels(route, result) for result in _RESULTS}
    for route in (*_EVENTS, *(f"hooks/{hook}" for hook in HOOKS))
} | {
    # No sample is known as a duplicate.
    route: {result: SIGNALS.labels(route, result) for result in _RESULTS if result != "duplicate"}
    for route in _SAMPLES
}
_encode = msgspec.json.Encoder().encode


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    reason: str


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to signals: every entry falls into exactly one of the four. `rejected` tells of the first
    1,000; `rejected_more` is the number of the others, and left out when there are none."""

    accepted: int
    duplicates: int
    unrecognised: int
    rejected: list[Rejected] = []
    rejected_more: int | msgspec.UnsetType = msgspec.UNSET


class EncodedJson(Response):
    """202 with JSON that is encoded already. Its two headers are written here: Response's own constructor
    costs as much as to read a kernel line."""

    def __init__(self, body: bytes) -> None:
        self.body, self.status_code, self.background = body, 202, None
        self.raw_headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]


class HookAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a hook's report. `may_refuse` is the gate's permit for a non-zero exit."""

    verdict: Verdict
    may_refuse: bool
    reason: str
    accepted: int = 0
    duplicates: int = 0
    unrecognised: int = 0
    rejected: list[Rejected] = []


def accepted(
    count: int, unrecognised: int, rejected: Sequence[wire.Rejected], more: int, *, duplicates: int = 0
) -> Accepted:
    """`more`: rejected beyond those that are named."""
    return Accepted(
        accepted=count,
        duplicates=duplicates,
        unrecognised=unrecognised,
        rejected=shown(rejected),
        rejected_more=more or msgspec.UNSET,
    )


def shown(rejected: Sequence[wire.Rejected]) -> list[Rejected]:
    return [Rejected(index=one.index, reason=one.reason) for one in rejected]


def counted(
    route: str,
    count: int,
    unrecognised: int,
    rejected: Sequence[wire.Rejected],
    more: int,
    *,
    duplicates: int = 0,
) -> Accepted:
    """`accepted`, and counted as results of the route."""
    count_results(route, count, duplicates, unrecognised, len(rejected) + more)
    return accepted(count, unrecognised, rejected, more, duplicates=duplicates)


def respond(answer: Accepted | HookAnswer) -> EncodedJson:
    return EncodedJson(_encode(answer))


def count_results(route: str, *counts: int) -> None:
    """`counts`: accepted, duplicates, unrecognised, rejected."""
    counters = _COUNTERS[route]
    for result, count in zip(_RESULTS, counts, strict=False):
        if count:
            counters[result].inc(count)


async def store(
    queue: GroupCommit[Any, R],
    route: str,
    items: Sequence[Any],
    caller: Caller | None = None,
    *,
    lost: int | None = None,
    shed_first: bool = False,
) -> Sequence[R]:
    """The store's result for each item, after the commit. `caller`: whose share of the queue they take.

    Raises Problem 429 when the queue is full: then `lost` entries are counted as lost, all without it.
    """
    owner, share = "", 1.0
    if caller is not None:
        owner, share = caller.owner, SHARE_OF_BOUND if caller.node or caller.job else SHARE
    started = time.perf_counter()
    try:
        results = await queue.add(items, owner=owner, share=share, shed_first=shed_first)
    except Busy as error:
        _COUNTERS[route]["shed"].inc(len(items))
        problem = Problem(429, str(error), headers={"Retry-After": str(error.retry_after_s)})
        problem.lost = len(items) if lost is None else lost
        raise problem from None
    COMMIT_S.observe(time.perf_counter() - started)
    return results
