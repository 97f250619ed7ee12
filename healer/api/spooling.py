"""Between the queues and the store: while the database is away what was accepted waits on disk.

As long as anything waits there, all that comes is put behind it, so each sender's order is kept. One thread
brings it into the store when the database is back. What is stored a second time, because a process died
before it could say so, is known by its digest; step times are compared with the last of their series.
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

from healer.api.db_health import Reach
from healer.api.quotas import Losses
from healer.api.services import Services
from healer.model import LossReason
from healer.model.packed import pack_steps, unpack_steps
from healer.model.telemetry import StepBatch
from healer.ports.request_errors import DiskFull, NoRoom, Unavailable, Unstorable
from healer.ports.signal_stores import Arrival, Spool, Spooled

log = structlog.get_logger()
#: Records brought into the store by one commit.
BATCH, BATCH_BYTES = 4_000, 4 * 1024 * 1024
_RETRY_S = 0.2
#: More in a row are not refused for what they are: they stay, and people have to look.
REFUSED_MAX = 10
#: How often an idle process looks for what a dead one left.
_ADOPT_S = 5.0
#: Step times that waited for longer are in no window any more.
_STEPS_FOR = timedelta(minutes=15)
T = TypeVar("T")
R = TypeVar("R")
#: What is wrong with one thing and not with the store: its values are refused, or cannot be encoded.
_WRONG = (Unstorable, msgspec.MsgspecError, ValueError, TypeError, OverflowError, struct.error)


class _Stuck(Exception):
    """So many were refused one after the other that it cannot be them."""


class Lane(Generic[T, R]):
    """One kind of thing on its way to its store. `put` is what a queue calls; one thread at a time does.

    `taken` is what is told of each that is spooled: whether it is a duplicate shows only later.
    """

    def __init__(
        self,
        spooling: "Spooling",
        store: Callable[[Sequence[T]], Sequence[R]],
        *,
        name: str,
        encode: Callable[[T], bytes],
        decode: Callable[[bytes], T],
        taken: R,
    ) -> None:
        self.name, self.kind = name, name[:1].encode()
        self.decode = decode
        self._spooling, self._store, self._encode, self._taken = spooling, store, encode, taken
        # Its own thread: a store that hangs must not hold up the queue, and is called by one at a time.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"store {name}")

    def put(self, items: Sequence[T]) -> Sequence[R]:
        """From a thread: what the store says; or they are in the spool. Raises NoRoom: they are nowhere."""
        if self._spooling.straight:
            asked = self.stored(items)
            wait([asked], self._spooling.reach.patience_s)
            if (told := self._told(asked)) is not None:
                return told
        return self._spooled(items)

    def put_soon(self, items: Sequence[T]) -> Awaitable[Sequence[R]]:
        """The same from the event loop: a thread between the two would make each commit half a ms later."""
        if self._spooling.straight:
            return self._answered(self.stored(items), items)
        return self._spooling.on_disk(self._spooled, items)

    async def _answered(self, asked: "Future[Sequence[R]]", items: Sequence[T]) -> Sequence[R]:
        answer = asyncio.wrap_future(asked)
        answer.add_done_callback(_heard)
        await asyncio.wait([answer], timeout=self._spooling.reach.patience_s)
        if (told := self._told(asked)) is not None:
            return told
        return await self._spooling.on_disk(self._spooled, items)

    def _told(self, asked: "Future[Sequence[R]]") -> Sequence[R] | None:
        """What the store answered; None where it did not, and then Reach knows why."""
        reach = self._spooling.reach
        try:
            told = asked.result(0)
        except TimeoutError:
            reach.failed("the database does not answer")
        except DiskFull as error:
            reach.disk_full = str(error)
        except Unavailable as error:
            reach.failed(str(error))
        else:
            reach.disk_full = ""
            return told
        return None

    def _spooled(self, items: Sequence[T]) -> Sequence[R]:
        try:
            self._spooling.append([Spooled(self.kind, self._encode(one)) for one in items])
        except NoRoom as error:
            error.entries = len(items)
            raise
        return [self._taken] * len(items)

    def stored(self, items: Sequence[T]) -> "Future[Sequence[R]]":
        return self._thread.submit(self._twice, items)

    def _twice(self, items: Sequence[T]) -> Sequence[R]:
        """A server that was started anew costs the first who asks its old connection, and no more."""
        try:
            return self._store(items)
        except DiskFull:
            raise
        except Unavailable:
            return self._store(items)

    def close(self) -> None:
        self._thread.shutdown(wait=False)


def _heard(answer: "asyncio.Future[Any]") -> None:
    """What it failed with is told by the lane; asyncio would log it again, with what the sender wrote."""
    if not answer.cancelled():
        answer.exception()


class Spooling:
    """The spool and the thread that empties it. `start` it once all lanes are made."""

    def __init__(self, spool: Spool, reach: Reach, losses: Losses) -> None:
        self.reach = reach
        self._spool, self._losses = spool, losses
        self._lanes: dict[bytes, Lane[Any, Any]] = {}
        self._wake, self._over = threading.Event(), threading.Event()
        self._looked_at = time.monotonic()
        self._refused = 0  # in a row
        self._thread = threading.Thread(target=self._run, name="spool", daemon=True)
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="spool disk")

    @property
    def straight(self) -> bool:
        """Whether what comes may go to the store: nothing waits on disk that came before it."""
        return not self.reach.away and not self._spool.pending

    def lane(
        self,
        store: Callable[[Sequence[T]], Sequence[R]],
        *,
        name: str,
        encode: Callable[[T], bytes],
        decode: Callable[[bytes], T],
        taken: R,
    ) -> Lane[T, R]:
        """`name`: each lane's begins with another letter, which marks its records."""
        made = Lane(self, store, name=name, encode=encode, decode=decode, taken=taken)
        assert made.kind not in self._lanes
        self._lanes[made.kind] = made
        return made

    @property
    def stuck(self) -> bool:
        """The store refuses one thing after the other: nothing more is brought in."""
        return self._refused > REFUSED_MAX

    def on_disk(self, append: Callable[[T], R], items: T) -> Awaitable[R]:
        """What writes to the spool, for the event loop: the disk may be slow."""
        return asyncio.get_running_loop().run_in_executor(self._disk, append, items)

    def append(self, records: Sequence[Spooled]) -> None:
        self._spool.append(records)
        self._wake.set()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """What is left stays on disk. From a thread."""
        self._over.set()
        self._wake.set()
        self._thread.join(self.reach.patience_s)
        for lane in self._lanes.values():
            lane.close()
        self._disk.shutdown()
        self._spool.close()

    # --- bringing in ---

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                pause = self.bring_in()
            except Exception:
                log.exception("the spool cannot be brought in")
                pause = _ADOPT_S
            self._count_lost()
            if pause:
                self._wake.wait(pause)
                self._wake.clear()
                if self.stuck:
                    self._over.wait(_ADOPT_S)
                elif self._spool.pending:  # it was filled because the store failed: that is not at once over
                    self._over.wait(_RETRY_S)

    def bring_in(self) -> float:
        """One batch, oldest first; in how many s to come again."""
        records = self._spool.oldest(BATCH, BATCH_BYTES)
        if not records:
            if time.monotonic() - self._looked_at > _ADOPT_S:
                self._looked_at = time.monotonic()
                return 0.0 if self._spool.adopt() else _ADOPT_S
            return _ADOPT_S
        last: list[
            Callable[[], None]
        ] = []  # once all else is stored: until then the same batch may come again
        try:
            for kind in sorted({one.kind for one in records}):
                last += self._bring(kind, [one for one in records if one.kind == kind])
        except _Stuck as error:
            log.error("the store refuses all that is spooled: it stays there", why=str(error))
            return _ADOPT_S
        except DiskFull as error:
            self.reach.disk_full = str(error)
            return _RETRY_S
        except Unavailable as error:
            self.reach.failed(str(error))
            return _RETRY_S
        for step in last:
            step()
        self._spool.drop_oldest(records)
        self.reach.answered()
        self.reach.disk_full = ""
        if not self._spool.pending:
            log.info("all that was spooled is stored")
        return 0.0

    def _bring(self, kind: bytes, records: list[Spooled]) -> list[Callable[[], None]]:
        """Stores them; what is left to do for those that cannot be."""
        lane = self._lanes.get(kind)
        if lane is None:
            name = kind.decode("latin-1")
            return [lambda: self._set_aside(name, records, "of a kind that this version does not know")]
        items: list[Any] = []
        unread: list[Spooled] = []
        for one in records:
            try:
                items.append(lane.decode(one.body))
            except Exception:  # of another version: it must not stop the others
                unread.append(one)
        refused: list[tuple[Any, Exception]] = []
        if items:
            try:
                self._wait(lane, items)
                self._refused = 0
            except _WRONG:
                refused = self._one_by_one(lane, items)

        def rest() -> None:
            if unread:
                self._set_aside(lane.name, unread, "that this version cannot read")
            for item, error in refused:
                self._lose(lane, item, error)

        return [rest]

    def _one_by_one(self, lane: Lane[Any, Any], items: list[Any]) -> list[tuple[Any, Exception]]:
        """One that the store refuses must not keep the others; those that it refuses.

        A store that takes one after it refused some may have been mended between: these are asked once more.
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
            for one, _ in doubtful:
                try:
                    self._wait(lane, [one])
                except _WRONG as error:
                    refused.append((one, error))
            doubtful.clear()
        return refused + doubtful

    def _lose(self, lane: Lane[Any, Any], item: Any, error: Exception) -> None:
        log.error("a spooled signal is lost", lane=lane.name, why=str(error), record=repr(item)[:2000])
        self._losses.add(f"spool/{lane.name}", LossReason.rejected, example=str(error)[:200])

    def _set_aside(self, name: str, records: list[Spooled], why: str) -> None:
        """What another version may read waits for it on disk."""
        try:
            self._spool.set_aside(records)
        except NoRoom as error:
            body = records[0].body[:2000].decode("latin-1")
            log.error("spooled signals are lost", lane=name, why=why, entries=len(records), record=body)
            example = f"one {why[:200]}; {error}"
            self._losses.add(f"spool/{name}", LossReason.rejected, len(records), example=example)
        else:
            log.error("spooled signals are set aside", lane=name, why=why, entries=len(records))

    def _count_lost(self) -> None:
        for entries, why in self._spool.take_lost():
            self._losses.add("spool", LossReason.rejected, entries, example=why)

    def _wait(self, lane: Lane[Any, Any], items: Sequence[Any]) -> None:
        """Until the store has answered: it may hang for as long as the database does."""
        asked = lane.stored(items)
        while True:
            try:
                asked.result(self.reach.patience_s)
                return
            except TimeoutError:
                if asked.done():
                    raise
                self.reach.failed("the database does not answer")
                if self._over.is_set():
                    raise Unavailable("this process ends") from None


# --- what is spooled ---------------------------------------------------------------------------------------


def events_lane(spooling: Spooling, services: Services) -> Lane[Arrival, bool]:
    """Observations as the queue of events has them: those that are spooled count as new."""
    return spooling.lane(
        services.signals.store,
        name="events",
        encode=msgspec.json.Encoder().encode,
        decode=msgspec.json.Decoder(Arrival).decode,
        taken=True,
    )


class _StepHead(msgspec.Struct, array_like=True):
    cluster: str
    job: str
    arrived_at: datetime


def steps_lane(spooling: Spooling, services: Services, losses: Losses) -> Lane[StepBatch, None]:
    """Step times; those that came back from disk too late for any window are counted as late."""

    def store(batches: Sequence[StepBatch]) -> list[None]:
        oldest = services.clock.now() - _STEPS_FOR
        fresh = [one for one in batches if one.arrived_at >= oldest]
        for one in batches:
            if one.arrived_at < oldest:
                losses.add("step-times", LossReason.late, len(one.rank), cluster=one.cluster)
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

    return spooling.lane(store, name="steps", encode=encode, decode=decode, taken=None)
