"""Between the queues and the store: while the database is away, accepted signals wait on disk.

As long as any wait there, new ones are appended behind them, so each sender's order is kept. One thread
stores them when the database is back. What a dying process stored without dropping it from the spool is
stored twice: observations are recognised by their digest, step times by the last of their series.
"""

import asyncio
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

import msgspec
import structlog

from healer.api.db_health import Database
from healer.api.quotas import Losses
from healer.api.services import Services
from healer.model import LossReason
from healer.model.packed import pack_steps, unpack_steps
from healer.model.telemetry import StepBatch
from healer.ports.request_errors import DiskFull, NoRoom, Unavailable, Unstorable
from healer.ports.signal_stores import Arrival, Spool, Spooled
from healer.text import Said, said_by, say

log = structlog.get_logger()
#: Records stored by one commit.
BATCH, BATCH_BYTES = 4_000, 4 * 1024 * 1024
_RETRY_S = 0.2
#: More refused in a row mean that the store is at fault: they stay, and people have to look.
REFUSED_MAX = 10
#: How often an idle process looks for spools of dead processes.
_ADOPT_S = 5.0
#: Step times that waited longer fall into no window any more.
_STEPS_FOR = timedelta(minutes=15)
T = TypeVar("T")
R = TypeVar("R")
#: Errors of a single item, not of the store: its values are refused, or cannot be encoded.
_WRONG = (Unstorable, msgspec.MsgspecError, ValueError, TypeError, OverflowError, struct.error)


class _Stuck(Exception):
    """So many items were refused in a row that the store must be at fault."""


class Lane(Generic[T, R]):
    """Items of one kind on their way to their store. A queue calls `put`, from one thread at a time.

    `spooled` is the result for each spooled item: whether it is a duplicate shows only later.
    """

    def __init__(
        self,
        spooling: "Spooling",
        store: Callable[[Sequence[T]], Sequence[R]],
        *,
        name: str,
        encode: Callable[[T], bytes],
        decode: Callable[[bytes], T],
        spooled: R,
    ) -> None:
        #: `kind` marks its records in the spool: each lane's name begins with another letter.
        self.name, self.kind = name, name[:1].encode()
        self.decode = decode
        self._spooling, self._store, self._encode, self._result = spooling, store, encode, spooled
        # A separate thread: a store that hangs must not hold up the queue, and is called once at a time.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"store {name}")

    def put(self, items: Sequence[T]) -> Sequence[R]:
        """From a thread: the store's results, or those of the spool. Raises NoRoom if neither took them."""
        if self._spooling.straight:
            call = self.submit(items)
            wait([call], self._spooling.database.patience_s)
            if (results := self._results(call)) is not None:
                return results
        return self._spool(items)

    def put_soon(self, items: Sequence[T]) -> Awaitable[Sequence[R]]:
        """The same from the event loop: a thread in between would delay each commit by half a ms."""
        if self._spooling.straight:
            return self._stored_or_spooled(self.submit(items), items)
        return self._spooling.on_disk(self._spool, items)

    async def _stored_or_spooled(self, call: "Future[Sequence[R]]", items: Sequence[T]) -> Sequence[R]:
        answer = asyncio.wrap_future(call)
        answer.add_done_callback(_retrieve_error)
        await asyncio.wait([answer], timeout=self._spooling.database.patience_s)
        if (results := self._results(call)) is not None:
            return results
        return await self._spooling.on_disk(self._spool, items)

    def _results(self, call: "Future[Sequence[R]]") -> Sequence[R] | None:
        """The store's results; None if there are none yet, and then Database knows why."""
        database = self._spooling.database
        try:
            results = call.result(0)
        except TimeoutError:
            database.failed(say("api.database_silent"))
        except DiskFull as error:
            database.no_room(error)
        except Unavailable as error:
            database.failed(said_by(error))
        else:
            database.wrote()
            return results
        return None

    def _spool(self, items: Sequence[T]) -> Sequence[R]:
        try:
            self._spooling.append([Spooled(self.kind, self._encode(item)) for item in items])
        except NoRoom as error:
            error.entries = len(items)
            raise
        return [self._result] * len(items)

    def submit(self, items: Sequence[T]) -> "Future[Sequence[R]]":
        return self._thread.submit(self._store_twice, items)

    def _store_twice(self, items: Sequence[T]) -> Sequence[R]:
        """Tries twice: after a restart of the server the first call only finds its connection broken."""
        try:
            return self._store(items)
        except DiskFull:
            raise
        except Unavailable:
            return self._store(items)

    def close(self) -> None:
        self._thread.shutdown(wait=False)


def _retrieve_error(answer: "asyncio.Future[Any]") -> None:
    """The lane reports the error; asyncio would log it again, with the sender's data."""
    if not answer.cancelled():
        answer.exception()


class Spooling:
    """The spool and the thread that empties it. `start` it once it has all its lanes."""

    def __init__(self, spool: Spool, database: Database, losses: Losses) -> None:
        self.database = database
        self._spool, self._losses = spool, losses
        self._lanes: dict[bytes, Lane[Any, Any]] = {}
        self._wake, self._over = threading.Event(), threading.Event()
        self._looked_at = time.monotonic()
        self._refused = 0  # in a row
        self._thread = threading.Thread(target=self._run, name="spool", daemon=True)
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="spool disk")

    @property
    def straight(self) -> bool:
        """Whether new items may go to the store: no earlier ones wait on disk."""
        return not self.database.away and not self._spool.pending

    def add_lane(self, lane: Lane[T, R]) -> Lane[T, R]:
        assert lane.kind not in self._lanes
        self._lanes[lane.kind] = lane
        return lane

    @property
    def stuck(self) -> bool:
        """The store refuses one item after the other: no more are stored."""
        return self._refused > REFUSED_MAX

    def on_disk(self, append: Callable[[T], R], items: T) -> Awaitable[R]:
        """Runs `append` in the thread for the disk, which may be slow."""
        return asyncio.get_running_loop().run_in_executor(self._disk, append, items)

    def append(self, records: Sequence[Spooled]) -> None:
        self._spool.append(records)
        self._wake.set()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """What still waits stays on disk. From a thread."""
        self._over.set()
        self._wake.set()
        self._thread.join(self.database.patience_s)
        for lane in self._lanes.values():
            lane.close()
        self._disk.shutdown()
        self._spool.close()

    # --- storing what waits ---

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                pause = self.store_batch()
            except Exception:
                log.exception("draining the spool failed")
                pause = _ADOPT_S
            for entries, why in self._spool.take_lost():
                self._losses.add("spool", LossReason.rejected, entries, example=why)
            if pause:
                self._wake.wait(pause)
                self._wake.clear()
                if self.stuck:
                    self._over.wait(_ADOPT_S)
                elif self._spool.pending:  # it was filled because the store failed, which takes a while
                    self._over.wait(_RETRY_S)

    def store_batch(self) -> float:
        """Stores one batch, oldest first; the seconds until the next one."""
        records = self._spool.oldest(BATCH, BATCH_BYTES)
        if not records:
            if time.monotonic() - self._looked_at > _ADOPT_S:
                self._looked_at = time.monotonic()
                return 0.0 if self._spool.adopt() else _ADOPT_S
            return _ADOPT_S
        # For after everything else is stored: until then the same batch may come again.
        last: list[Callable[[], None]] = []
        try:
            for kind in sorted({record.kind for record in records}):
                last += self._store_kind(kind, [record for record in records if record.kind == kind])
        except _Stuck as error:
            log.error("database rejects spooled signals, keeping them", why=str(error))
            return _ADOPT_S
        except DiskFull as error:
            self.database.no_room(error)
            return _RETRY_S
        except Unavailable as error:
            self.database.failed(said_by(error))
            return _RETRY_S
        for step in last:
            step()
        self._spool.drop_oldest(records)
        self.database.answered()
        self.database.wrote()
        if not self._spool.pending:
            log.info("spool drained")
        return 0.0

    def _store_kind(self, kind: bytes, records: list[Spooled]) -> list[Callable[[], None]]:
        """Stores them; returns what to do at the end with those that cannot be stored."""
        lane = self._lanes.get(kind)
        if lane is None:
            name = kind.decode("latin-1")
            return [lambda: self._set_aside(name, records, say("api.spool_kind"))]
        items: list[Any] = []
        unread: list[Spooled] = []
        for record in records:
            try:
                items.append(lane.decode(record.body))
            except Exception:  # of another version: it must not stop the others
                unread.append(record)
        refused: list[tuple[Any, Exception]] = []
        if items:
            try:
                self._wait(lane, items)
                self._refused = 0
            except _WRONG:
                refused = self._one_by_one(lane, items)

        def rest() -> None:
            if unread:
                self._set_aside(lane.name, unread, say("api.spool_unreadable"))
            for item, error in refused:
                log.error("spooled signal lost", lane=lane.name, why=str(error), record=repr(item)[:2000])
                self._losses.add(f"spool/{lane.name}", LossReason.rejected, example=said_by(error))

        return [rest]

    def _one_by_one(self, lane: Lane[Any, Any], items: list[Any]) -> list[tuple[Any, Exception]]:
        """Stores each by itself, so that a refused one does not keep the others; the refused ones.

        A store that takes an item after refusing some may have been repaired in between: those are tried
        again.
        """
        refused, doubtful = list[tuple[Any, Exception]](), list[tuple[Any, Exception]]()
        for item in items:
            try:
                self._wait(lane, [item])
            except _WRONG as error:
                doubtful.append((item, error))
                self._refused += 1
                if self.stuck:
                    raise _Stuck(str(error)) from error
                continue
            self._refused = 0
            for earlier, _ in doubtful:
                try:
                    self._wait(lane, [earlier])
                except _WRONG as error:
                    refused.append((earlier, error))
            doubtful.clear()
        return refused + doubtful

    def _set_aside(self, name: str, records: list[Spooled], why: Said) -> None:
        """Keeps records on disk for another version that may be able to read them."""
        try:
            self._spool.set_aside(records)
        except NoRoom as error:
            body = records[0].body[:2000].decode("latin-1")
            log.error("spooled signals lost", lane=name, why=why, entries=len(records), record=body)
            example = say("api.spool_lost", why=why, error=said_by(error))
            self._losses.add(f"spool/{name}", LossReason.rejected, len(records), example=example)
        else:
            log.error("spooled signals set aside", lane=name, why=why, entries=len(records))

    def _wait(self, lane: Lane[Any, Any], items: Sequence[Any]) -> None:
        """Waits until the store has answered: it may hang for as long as the database does."""
        call = lane.submit(items)
        while True:
            try:
                call.result(self.database.patience_s)
                return
            except TimeoutError:
                if call.done():
                    raise
                self.database.failed(say("api.database_silent"))
                if self._over.is_set():
                    raise Unavailable(say("api.shutting_down")) from None


# --- the lanes ---------------------------------------------------------------------------------------------


def events_lane(spooling: Spooling, services: Services) -> Lane[Arrival, bool]:
    """Observations of the queue of events: spooled ones count as new."""
    encode, decode = msgspec.json.Encoder().encode, msgspec.json.Decoder(Arrival).decode
    store = services.signals.store
    return spooling.add_lane(Lane(spooling, store, name="events", encode=encode, decode=decode, spooled=True))


class _StepHead(msgspec.Struct, array_like=True):
    cluster: str
    job: str
    arrived_at: datetime


def steps_lane(spooling: Spooling, services: Services, losses: Losses) -> Lane[StepBatch, None]:
    """Step times; those that waited on disk too long for any window are counted as late."""

    def store(batches: Sequence[StepBatch]) -> list[None]:
        oldest = services.clock.now() - _STEPS_FOR
        fresh = [batch for batch in batches if batch.arrived_at >= oldest]
        for batch in batches:
            if batch.arrived_at < oldest:
                losses.add("step-times", LossReason.late, len(batch.rank), cluster=batch.cluster)
        if fresh:
            services.samples.put_steps(fresh)
        return [None] * len(batches)

    def encode(batch: StepBatch) -> bytes:
        head = msgspec.msgpack.encode(_StepHead(batch.cluster, batch.job, batch.arrived_at))
        return len(head).to_bytes(4, "little") + head + pack_steps(batch)

    def decode(body: bytes) -> StepBatch:
        end = 4 + int.from_bytes(body[:4], "little")
        head = msgspec.msgpack.decode(body[4:end], type=_StepHead)
        return unpack_steps(body[end:], cluster=head.cluster, job=head.job, arrived_at=head.arrived_at)

    lane = Lane(spooling, store, name="steps", encode=encode, decode=decode, spooled=None)
    return spooling.add_lane(lane)
