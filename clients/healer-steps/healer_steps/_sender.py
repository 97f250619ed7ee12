"""The queue and the one thread that sends. The training thread appends to a deque, and does no more."""

from __future__ import annotations

import atexit
import logging
import random
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Callable, Optional, Tuple

from healer_steps._environ import Settings
from healer_steps._fork import after_fork, take_no_signals
from healer_steps._post import CHECKPOINTS, Post, Sample, taken

log = logging.getLogger("healer_steps")

#: Samples that wait at most: the oldest goes first. One is about 300 bytes.
QUEUE = 20_000
EVERY_S = 5.0
#: What waits is sent for so long at most, when the program or the steps end.
CLOSE_S = 3.0
#: When the program's end is over, once it began.
_until: list[float] = []

#: What is done in which step, and for how long.
Where = Callable[[], Optional[Tuple[str, int, float]]]


class Sender:
    """Sends what is put, at most every `every_s`. A child of a fork begins with an empty queue."""

    def __init__(self, settings: Settings, every_s: float = EVERY_S, queue: int = QUEUE) -> None:
        self.settings = settings
        self.every_s = every_s
        self._limit = queue
        #: Called before each send: is the training stuck somewhere?
        self.where: Where = lambda: None
        self.sent = self.dropped = self.rejected = 0
        self._said: dict[str, bool] = {}
        self._reset()
        after_fork(self)
        atexit.register(_close, weakref.ref(self))

    def _reset(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=self._limit)
        self._checkpoints: deque[dict[str, Any]] = deque(maxlen=CHECKPOINTS)
        # Both may be taken again by a signal's handler, in the midst of the training thread's own use.
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._starting = False
        self._closing = False
        self._end = float("inf")
        #: Samples and checkpoints that the thread took and has not sent.
        self._held = 0
        #: Held by the thread while what it holds changes: close() counts each one once.
        self._counting = threading.Lock()
        #: Set when the next try to send is over.
        self._flushes: deque[threading.Event] = deque()

    # --- the training thread ---

    def put(self, sample: Sample) -> None:
        if self._closing:
            self._late()
            return
        if len(self._samples) >= self._limit:
            self.dropped += 1
        self._samples.append(sample)
        if self._thread is None:
            self._start()

    def put_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self._closing:
            self._late()
            return
        if len(self._checkpoints) >= CHECKPOINTS:
            self.dropped += 1
        self._checkpoints.append(checkpoint)
        self._start()
        self.wake()

    def _late(self) -> None:
        self.dropped += 1
        self.say("closed", "what comes after close() is not sent, only counted")

    def flush(self, timeout_s: float = CLOSE_S) -> None:
        """Sends what waits now. Comes back when that was tried once, at the latest after this long; what did
        not go stays in the queue."""
        thread = self._thread
        if thread is None or self._closing or not thread.is_alive():
            return
        over = threading.Event()
        self._flushes.append(over)
        self.wake()
        over.wait(timeout_s)

    def wake(self) -> None:
        """Sends at once, if anything was ever sent."""
        if self._wake.empty():
            self._wake.put(None)

    def _start(self) -> None:
        with self._lock:
            if self._starting:  # this is a signal's handler, that came in the midst of it
                return
            self._starting = True
            try:
                if self._thread is None and not self._closing:
                    self._thread = threading.Thread(target=self._run, name="healer-steps", daemon=True)
                    self._thread.start()
            except (RuntimeError, MemoryError) as error:
                self._thread = None
                self.say("start", f"step times wait, the next step tries again: {error!r}")
            finally:
                self._starting = False

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Sends what waits, for at most this long. A second time is nothing."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            self._end = time.monotonic() + timeout_s
        self.wake()
        thread = self._thread
        if thread is not None and thread.is_alive():  # it may never have begun: too many are there
            thread.join(timeout_s)
        with self._counting:
            left = len(self._samples) + len(self._checkpoints) + self._held
            self.dropped += left
        if left:
            log.debug("%d step times and checkpoints were not sent", left)

    def say(self, kind: str, text: str) -> None:
        """One line in the log for each kind of trouble."""
        if not self._said.get(kind):
            self._said[kind] = True
            with suppress(Exception):  # of the program's own handlers
                log.warning("healer: %s (said once)", text)

    # --- the sender's thread ---

    def _settled(self, count: int, sent: int = 0, rejected: int = 0, dropped: int = 0) -> None:
        """So many of those that the thread holds are done with."""
        with self._counting:
            self.sent += sent
            self.rejected += rejected
            self.dropped += dropped
            self._held -= count

    def _run(self) -> None:
        try:
            take_no_signals()
            self._loop(Post(self))
        except Exception as error:  # the training goes on, whatever it was
            self.say("ended", f"step times are not sent any more: {error!r}")

    def _loop(self, post: Post) -> None:
        # Ranks begin together. Spread over the whole round some rank sends at any moment, and healer hears of
        # each step as soon as it ends.
        wait = self.every_s * random.random()  # noqa: S311
        while True:
            self._sleep(min(wait, max(0.0, self._end - time.monotonic())))
            flushes = taken(self._flushes, len(self._flushes))
            try:
                wait = post.all()
            except Exception as error:  # nothing that a batch brings may end the thread
                wait = post.lost(error)
            for over in flushes:
                over.set()
            if self._closing and (time.monotonic() >= self._end or not post.more()):
                return

    def _sleep(self, most_s: float) -> None:
        with suppress(Empty):  # not woken
            self._wake.get(timeout=most_s)


def left_s() -> float:
    """Of the 3 s in which all of a program's senders together send what waits at its end."""
    if not _until:
        _until.append(time.monotonic() + CLOSE_S)
    return max(0.0, _until[0] - time.monotonic())


def _close(one: weakref.ref[Sender]) -> None:
    sender = one()
    if sender is not None:
        sender.close(left_s())
