"""Live events: triggers NOTIFY (migration 0003), one thread per process listens, every listener has a queue.

The last events are kept in memory for pages that reconnect. A page that missed more than that, or whose
process lost its connection meanwhile, gets `reset` and reads everything again.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec
import psycopg
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from healer.adapters.postgres.engine import connect_outside_pool
from healer.ports.answers import Event

CHANNEL = "healer_events"
KEPT = 2_000
#: Events that a listener may be behind before it gets `reset`.
QUEUE = 500
SILENCE_S = 15.0
_RECONNECT_S = 0.5


class _Payload(msgspec.Struct):
    seq: int
    kind: str
    data: dict


class _Listener:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.queue: asyncio.Queue[Event] = asyncio.Queue(QUEUE)

    def put(self, event: Event) -> None:
        """Called in the listener's event loop."""
        if self.queue.full():
            while not self.queue.empty():
                self.queue.get_nowait()
            event = Event(id=event.id, kind="reset", data={})
        self.queue.put_nowait(event)


class PostgresEvents:
    """`healer.ports.queries.EventFeed`. The thread starts with the first listener; `close` ends it."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._kept: deque[Event] = deque(maxlen=KEPT)
        self._listeners: set[_Listener] = set()
        self._thread: threading.Thread | None = None
        self._listening = threading.Event()
        self._closed = threading.Event()

    async def listen(self, last_id: int | None) -> AsyncIterator[Event | None]:
        """Events as they happen, from the one after `last_id` on; None after each 15 s without an event."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._start)
        listener = _Listener(loop)
        with self._lock:
            missed = self._missed(last_id)
            self._listeners.add(listener)
        try:
            for event in missed:
                yield event
            while not self._closed.is_set():
                try:
                    yield await asyncio.wait_for(listener.queue.get(), SILENCE_S)
                except TimeoutError:
                    yield None
        finally:
            with self._lock:
                self._listeners.discard(listener)

    def ready(self) -> bool:
        """Whether the connection is listening."""
        return self._listening.is_set()

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join(timeout=3)

    def _missed(self, last_id: int | None) -> list[Event]:
        if last_id is None:
            return []
        # By position: ids are assigned before the commit, but events arrive in the order of commits.
        missed: list[Event] = []
        for event in reversed(self._kept):
            if event.id == last_id:
                return missed[::-1]
            missed.append(event)
        newest = self._kept[-1].id if self._kept else last_id
        return [Event(id=newest, kind="reset", data={})]

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="events", daemon=True)
                self._thread.start()
        self._listening.wait(timeout=3)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._follow()
            except (psycopg.Error, SQLAlchemyError):
                self._listening.clear()
                self._closed.wait(_RECONNECT_S)

    def _follow(self) -> None:
        with connect_outside_pool(self._engine) as connection:
            connection.execute(f"LISTEN {CHANNEL}")
            # Events were missed while nothing listened, so the kept ones are no longer complete.
            with self._lock:
                behind = self._kept[-1].id if self._kept else None
                self._kept.clear()
            if behind is not None:
                self._publish(Event(id=behind, kind="reset", data={}), keep=False)
            self._listening.set()
            while not self._closed.is_set():
                for notice in connection.notifies(timeout=1.0, stop_after=1):
                    with suppress(msgspec.MsgspecError):  # any login of the database may send one
                        payload = msgspec.json.decode(notice.payload, type=_Payload)
                        self._publish(Event(id=payload.seq, kind=payload.kind, data=payload.data))

    def _publish(self, event: Event, *, keep: bool = True) -> None:
        with self._lock:
            if keep:
                self._kept.append(event)
            listeners = list(self._listeners)
        for listener in listeners:
            listener.loop.call_soon_threadsafe(listener.put, event)
