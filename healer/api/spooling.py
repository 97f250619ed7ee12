"""Between the queues and the store: while the database is away what was accepted waits on disk.

As long as anything waits there, all that comes is put behind it, so each sender's order is kept. One thread
brings it into the store when the database is back. What is stored a second time, because a process died
before it could say so, is known by its digest; step times are compared with the last of their series.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

import msgspec
import structlog

from healer.api.losses import Losses
from healer.api.reach import Reach
from healer.api.services import Arrival, DiskFull, NoRoom, Services, Unavailable
from healer.model import LossReason
from healer.model.samples import StepBatch
from healer.ports import Spool, Spooled
from healer.signals.packed import pack_steps, unpack_steps

log = structlog.get_logger()

#: Records brought into the store by one commit.
BATCH, BATCH_BYTES = 4_000, 4 * 1024 * 1024
_RETRY_S = 0.2
#: How often an idle process looks for what a dead one left.
_ADOPT_S = 5.0
#: Step times that waited for longer are in no window any more.
_STEPS_FOR = timedelta(minutes=15)

T = TypeVar("T")
R = TypeVar("R")


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
        """What the store says; or they are in the spool. Raises NoRoom, then they are nowhere."""
        reach = self._spooling.reach
        if not reach.away and not self._spooling.pending:
            try:
                told = self.stored(items).result(reach.patience_s)
            except TimeoutError:
                reach.failed("the database does not answer")
            except DiskFull as error:
                reach.disk_full = str(error)
            except Unavailable as error:
                reach.failed(str(error))
            else:
                reach.disk_full = ""
                return told
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


class Spooling:
    """The spool and the thread that empties it. `start` it once all lanes are made."""

    def __init__(self, spool: Spool, reach: Reach, losses: Losses) -> None:
        self.reach = reach
        self._spool, self._losses = spool, losses
        self._lanes: dict[bytes, Lane[Any, Any]] = {}
        self._wake, self._over = threading.Event(), threading.Event()
        self._looked_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="spool", daemon=True)

    @property
    def pending(self) -> bool:
        return self._spool.pending

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
        self._spool.close()

    # --- bringing in ---

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                pause = self.bring_in()
            except Exception:
                log.exception("the spool cannot be brought in")
                pause = _ADOPT_S
            if pause:
                self._wake.wait(pause)
                self._wake.clear()
                if self._spool.pending:  # it was filled because the store failed: that is not at once over
                    self._over.wait(_RETRY_S)

    def bring_in(self) -> float:
        """One batch, oldest first; in how many s to come again."""
        records = self._spool.oldest(BATCH, BATCH_BYTES)
        if not records:
            if time.monotonic() - self._looked_at > _ADOPT_S:
                self._looked_at = time.monotonic()
                return 0.0 if self._spool.adopt() else _ADOPT_S
            return _ADOPT_S
        try:
            for kind in sorted({one.kind for one in records}):
                self._bring(kind, [one.body for one in records if one.kind == kind])
        except DiskFull as error:
            self.reach.disk_full = str(error)
            return _RETRY_S
        except Unavailable as error:
            self.reach.failed(str(error))
            return _RETRY_S
        self._spool.drop_oldest(records)
        self.reach.answered()
        self.reach.disk_full = ""
        if not self._spool.pending:
            log.info("all that was spooled is stored")
        return 0.0

    def _bring(self, kind: bytes, bodies: list[bytes]) -> None:
        lane = self._lanes.get(kind)
        items = [] if lane is None else [item for body in bodies if (item := self._read(lane, body))]
        if lane is None:
            log.error("the spool holds what this version does not know", kind=kind.decode("latin-1"))
        elif items:
            try:
                self._wait(lane, items)
            except Unavailable:
                raise
            except Exception:
                for item in items:  # one that the store refuses must not keep the others
                    self._alone(lane, item)

    def _read(self, lane: Lane[T, Any], body: bytes) -> T | None:
        try:
            return lane.decode(body)
        except Exception as error:  # of another version: it must not stop the others
            self._lost(lane, f"a record cannot be read: {error}", body)
            return None

    def _alone(self, lane: Lane[Any, Any], item: Any) -> None:
        try:
            self._wait(lane, [item])
        except Unavailable:
            raise
        except Exception as error:
            self._lost(lane, f"the store refuses it: {error}", repr(item)[:2000].encode())

    def _lost(self, lane: Lane[Any, Any], why: str, body: bytes) -> None:
        log.error("a spooled signal is lost", lane=lane.name, why=why, record=body[:2000].decode("latin-1"))
        self._losses.add(f"spool/{lane.name}", LossReason.rejected, example=why[:200])

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
