"""Many signals, one commit: whatever waits is written together, and each sender is answered after it.

While one batch is being written the next one gathers, so that the cost of a commit is shared by all that
came in its time. One writer for each queue of a process. Each owner, a token as a rule, keeps the order of
its own requests; owners take turns by slices, so that no owner waits for everything that another one sent.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec
from starlette.responses import Response

from healer.api.metrics import COMMIT_S, SIGNALS
from healer.api.problems import Problem
from healer.model import Verdict
from healer.ports.callers import Caller
from healer.ports.request_errors import Unavailable
from healer.signals import wire
from healer.signals.hook_reports import HOOKS
from healer.text import said_by, say, to_text

#: A sender waits this long for a database that is away before it hears 503.
WAIT_S = 5.0
#: Observations that may wait at once; a storm of 10,000 nodes with several lines each fits.
QUEUE = 50_000
#: Observations in one INSERT.
BATCH = 4_000
#: So many events are a batch that need not wait for the others that have come with them.
BEGIN_AT = 16
#: Items of one request per turn.
SLICE = 500
#: Shares of the queue for one token bound to a node or a job, and for any other. A longer request is accepted
#: while its token holds nothing else, and fills no more of the queue than this share.
SHARE_OF_BOUND, SHARE = 0.1, 0.8
#: Above this share of a queue what matters less is shed: heartbeats before events, metrics before both.
SHED_SHARE = 0.5
_RETRY_S = 0.1
T = TypeVar("T")
R = TypeVar("R")
#: Writes a batch: the call starts the write, the awaitable yields one result for each item.
Store = Callable[[Sequence[T]], Awaitable[Sequence[R]]]


def in_thread(store: Callable[[Sequence[T]], Sequence[R]], name: str = "signals") -> Store[T, R]:
    """`store`, called in a thread of its own."""
    thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    return lambda items: asyncio.get_running_loop().run_in_executor(thread, store, items)


class Busy(Exception):
    """The queue is full: 429, to be retried after a second."""

    def __init__(self) -> None:
        super().__init__(say("api.signals_full"))


@dataclass(slots=True, eq=False)
class _Waiter(Generic[T, R]):
    """One request. `at`: how many of its items were taken for a batch; `counts`: its share of the depth;
    `results`: those of the items written so far."""

    items: Sequence[T]
    weight: int
    counts: int
    owner: str
    future: "asyncio.Future[Sequence[R]]"
    at: int = 0
    results: list[R] = field(default_factory=list)
    over: bool = False


#: Items of a waiter, from, to.
_Slice = tuple[_Waiter[T, R], int, int]


class _Timeouts:
    """Fails requests that waited for `wait_s`. One timer serves all of them: ten thousand come in a second,
    in order, and each waits as long as the others."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._waiting: deque[tuple[float, asyncio.Future[Any]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, future: "asyncio.Future[Any]") -> None:
        loop, waiting = future.get_loop(), self._waiting
        while waiting and waiting[0][1].done():
            waiting.popleft()  # keep only what still waits
        waiting.append((loop.time() + self._wait_s, future))
        if self._timer is None:
            self._timer = loop.call_later(self._wait_s, self._expire, loop)

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting, now = self._waiting, loop.time()
        while waiting and (waiting[0][0] <= now or waiting[0][1].done()):
            _, future = waiting.popleft()
            if not future.done():
                future.set_exception(Unavailable(say("api.not_stored_yet", seconds=self._wait_s)))
        self._timer = loop.call_at(waiting[0][0], self._expire, loop) if waiting else None


@dataclass(frozen=True, kw_only=True)
class QueueBounds:
    """`queue` and `batch` bound the total weight by `weigh` (1 for each item without it). While a queue of
    `before` is over half full, this one takes nothing: what is in those matters more. `gather_s`: the first
    of a batch waits so long for others, where a commit costs more than its contents. `begin_at`: once so much
    waits and nothing is being written, the commit begins at once, while the event loop reads on.
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
        self._store, self.bounds = store, bounds
        #: What waits, by owner, and the owners in the order of their turns.
        self._lines: dict[str, deque[_Waiter[T, R]]] = {}
        self._turns: deque[str] = deque()
        #: What each owner holds: waiting or being written.
        self._held: dict[str, int] = {}
        self._timeouts = _Timeouts(bounds.wait_s)
        #: Weight of items that wait or are being written.
        self.depth = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: The batch that is being written.
        self._begun: tuple[list[_Slice[T, R]], Awaitable[Sequence[R]]] | None = None

    @property
    def pressed(self) -> bool:
        """Over half full: what matters less has to give way."""
        return self.depth > self.bounds.queue * SHED_SHARE

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="group commit")

    async def stop(self) -> None:
        """Writes what waits, at most `wait_s`, then ends."""
        if self._task is None:
            return
        deadline = asyncio.get_running_loop().time() + self.bounds.wait_s
        while self.depth and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def add(
        self, items: Sequence[T], *, owner: str = "", share: float = 1.0, shed_first: bool = False
    ) -> Sequence[R]:
        """Stores the items durably; the store's result for each.

        Raises Busy when too much waits, in all or of this `owner`, who may hold that `share` of the queue;
        Unavailable when the database did not come back in time. After Unavailable they may still have been
        stored: a repeat by the sender is then a duplicate.
        """
        if not items:
            return []
        bounds = self.bounds
        weight = len(items) if bounds.weigh is None else sum(map(bounds.weigh, items))
        limit = bounds.queue * SHED_SHARE if shed_first else bounds.queue
        most = int(bounds.queue * share)
        counts, held = min(weight, most) if share < 1 else weight, self._held.get(owner, 0)
        if (
            (self.depth and self.depth + counts > limit)
            or (share < 1 and held and held + counts > most)
            or (bounds.before and any(queue.pressed for queue in bounds.before))
        ):
            raise Busy
        future = asyncio.get_running_loop().create_future()
        self._line(owner).append(_Waiter(items, weight, counts, owner, future))
        self.depth += counts
        self._held[owner] = held + counts
        self._wake.set()
        self._timeouts.begin(future)
        if bounds.begin_at is not None and self._begun is None and self.depth >= bounds.begin_at:
            self._begin()
        return await future

    def _line(self, owner: str, *, first: bool = False) -> "deque[_Waiter[T, R]]":
        """The waiting requests of an owner; an owner with none gets a turn."""
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
                if self._begun is None and self.bounds.gather_s and self.depth < self.bounds.batch:
                    await asyncio.sleep(self.bounds.gather_s)
                if self._begun is None:
                    self._begin()
                if self._begun is not None:
                    await self._end(*self._begun)
                    self._begun = None

    def _begin(self) -> None:
        batch = self._take()
        if not batch:
            return
        try:
            results = self._write(batch)
        except Exception as error:  # it cannot even begin, for example without a free thread
            results = asyncio.get_running_loop().create_future()
            results.set_exception(error)
        self._begun = batch, results

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
                if batch and size + weight > self.bounds.batch:
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
        """(end, weight) of its next slice. What is weighed comes in requests of one item."""
        if self.bounds.weigh is not None or len(waiter.items) <= SLICE:
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

    async def _end(self, batch: list[_Slice[T, R]], results: Awaitable[Sequence[R]]) -> None:
        """Waits for a batch that is being written. When the database is away it goes back to the front."""
        try:
            self._deliver(batch, await results)
        except Unavailable:
            self._put_back(batch)
            await asyncio.sleep(_RETRY_S)
        except Exception as error:
            if len(batch) > 1:
                await self._write_alone(batch)
            else:
                self._finish(batch[0][0], error)

    async def _write_alone(self, batch: list[_Slice[T, R]]) -> None:
        """Writes each slice by itself: one that cannot be written must not fail the others of its batch."""
        for index, part in enumerate(batch):
            if part[0].over:
                continue
            try:
                self._deliver([part], await self._write([part]))
            except Unavailable:
                self._put_back(batch[index:])
                await asyncio.sleep(_RETRY_S)
                return
            except Exception as error:
                self._finish(part[0], error)

    def _write(self, batch: list[_Slice[T, R]]) -> Awaitable[Sequence[R]]:
        return self._store([item for waiter, start, end in batch for item in waiter.items[start:end]])

    def _deliver(self, batch: list[_Slice[T, R]], results: Sequence[R]) -> None:
        first = 0
        for waiter, start, end in batch:
            waiter.results += results[first : first + end - start]
            first += end - start
            if len(waiter.results) == len(waiter.items):
                self._finish(waiter, waiter.results)

    def _finish(self, waiter: _Waiter[T, R], result: Sequence[R] | Exception) -> None:
        self._release(waiter)
        if waiter.future.done():
            return
        if isinstance(result, Exception):
            waiter.future.set_exception(result)
        else:
            waiter.future.set_result(result)

    def _release(self, waiter: _Waiter[T, R]) -> None:
        """Frees its place in the queue, once."""
        if waiter.over:
            return
        waiter.over = True
        self.depth -= waiter.counts
        held = self._held[waiter.owner] - waiter.counts
        if held:
            self._held[waiter.owner] = held
        else:
            del self._held[waiter.owner]


# --- results of signals, counted and answered: the same for every route that takes them

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
_encode = msgspec.json.Encoder(enc_hook=to_text).encode


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    reason: str


class NodeVerdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`leave`: healer has drained the node for a fault of its hardware, by this incident and rule, at `at`.
    Whatever is less than that, a suspicion, a shadow decision, a person's drain, is `healthy`."""

    node: str
    state: Literal["healthy", "leave", "unknown"]
    incident: str = ""
    rule: str = ""
    reason: str = ""
    at: datetime | None = None


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to signals: every entry falls into exactly one of the four. `rejected` lists the first
    1,000; `rejected_more` is the number of the others, and left out when there are none."""

    accepted: int
    duplicates: int
    unrecognised: int
    rejected: list[Rejected] = []
    rejected_more: int | msgspec.UnsetType = msgspec.UNSET
    #: With a heartbeat of a node's own token.
    verdict: NodeVerdict | msgspec.UnsetType = msgspec.UNSET

    @property
    def entries(self) -> int:
        """Entries that were not rejected."""
        return self.accepted + self.duplicates + self.unrecognised


class EncodedJson(Response):
    """202 with JSON that is encoded already. It writes its two headers itself: Response's constructor costs
    as much as reading a kernel line."""

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


class Parsed(Protocol):
    """What the readers of bodies have in common. `rejected_more`: rejected beyond those that are listed."""

    @property
    def rejected(self) -> Sequence[wire.Rejected]: ...
    @property
    def rejected_more(self) -> int: ...


def rejected_views(rejected: Sequence[wire.Rejected]) -> list[Rejected]:
    return [Rejected(index=entry.index, reason=entry.reason) for entry in rejected]


def count_accepted(
    route: str, parsed: Parsed, count: int, *, unrecognised: int = 0, duplicates: int = 0
) -> Accepted:
    """The answer to a parsed body of which `count` entries are new, counted as results of the route."""
    count_results(route, count, duplicates, unrecognised, len(parsed.rejected) + parsed.rejected_more)
    return Accepted(
        accepted=count,
        duplicates=duplicates,
        unrecognised=unrecognised,
        rejected=rejected_views(parsed.rejected),
        rejected_more=parsed.rejected_more or msgspec.UNSET,
    )


async def store_parsed(
    queue: GroupCommit[Any, Any],
    route: str,
    items: Sequence[Any],
    parsed: wire.Accepted,
    caller: Caller,
    *,
    shed_first: bool = False,
) -> Accepted:
    """`store`, and the answer: items of the parsed body that are not new are duplicates."""
    count = sum(await store(queue, route, items, caller, shed_first=shed_first))
    duplicates = len(parsed.observations) - count
    return count_accepted(route, parsed, count, unrecognised=parsed.unrecognised, duplicates=duplicates)


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
    caller: Caller,
    *,
    lost: int | None = None,
    shed_first: bool = False,
) -> Sequence[R]:
    """The store's result for each item, after the commit. `caller`: whose share of the queue they take.

    Raises Problem 429 when the queue is full: then `lost` entries are counted as lost, all without it.
    """
    share = SHARE_OF_BOUND if caller.node or caller.job else SHARE
    started = time.perf_counter()
    try:
        results = await queue.add(items, owner=caller.owner, share=share, shed_first=shed_first)
    except Busy as error:
        _COUNTERS[route]["shed"].inc(len(items))
        problem = Problem(429, said_by(error), headers={"Retry-After": "1"})
        problem.lost = len(items) if lost is None else lost
        raise problem from None
    COMMIT_S.observe(time.perf_counter() - started)
    return results
