"""The queue and the one thread that sends. The training thread appends to a deque, and does no more."""

from __future__ import annotations

import atexit
import json
import logging
import math
import random
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from datetime import datetime, timezone
from queue import Empty, SimpleQueue
from typing import Any, Callable, Optional, Tuple

from healer_steps._environ import Settings
from healer_steps._fork import begins_anew
from healer_steps._link import TIMEOUT_S, Link
from healer_steps._token import NoToken, Token

log = logging.getLogger("healer_steps")

#: Samples that wait at most: the oldest goes first. One is about 300 bytes.
QUEUE = 20_000
#: Checkpoints that wait at most, and samples of one request.
CHECKPOINTS, BATCH = 100, 5_000
EVERY_S = 5.0
#: What waits is sent for so long at most, when the program or the steps end.
CLOSE_S = 3.0
#: When the program's end is over, once it began.
_until: list[float] = []
#: A rank that stands still says so as often.
_AGAIN_S = 10.0
#: healer takes no older ones (15 minutes), so they are dropped here.
_OLD_S = 14 * 60.0
_SLOWEST_S = 60.0
#: What sending again cannot mend.
_NEVER = frozenset({400, 403, 404, 405, 413, 415, 422})

#: In this order a sample is queued; the names are those of healer's step-times route.
FIELDS = (
    "time", "step", "step_s", "compute_s", "comm_s", "data_s", "work", "stage", "loss", "grad_norm",
)  # fmt: skip
#: What a step came to: that it is no number is worth telling.
RESULTS = ("loss", "grad_norm")
_NUMBERS = frozenset({int, float})
#: Left out where it is not known which rank this is.
_OF_A_RANK = frozenset({"compute_s", "comm_s"})
Sample = Tuple[Any, ...]
#: What is done in which step, and for how long.
Where = Callable[[], Optional[Tuple[str, int, float]]]
_STEPS, _CHECKPOINTS = "/api/v1/signals/step-times", "/api/v1/signals/checkpoints"


class Sender:
    """Sends what is put, at most every `every_s`. A child of a fork begins with an empty queue."""

    def __init__(self, settings: Settings, every_s: float = EVERY_S, queue: int = QUEUE) -> None:
        self.settings = settings
        self.every_s = every_s
        self._limit = queue
        #: Asked before each sending, whether the training stands somewhere.
        self.where: Where = lambda: None
        self.sent = self.dropped = self.rejected = 0
        self._said: dict[str, bool] = {}
        self._reset()
        begins_anew(self)
        atexit.register(_close, weakref.ref(self))

    def _reset(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=self._limit)
        self._checkpoints: deque[dict[str, Any]] = deque(maxlen=CHECKPOINTS)
        # Both may be taken again by a signal's handler, in the midst of the training thread's own use.
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._end = float("inf")
        #: Samples and checkpoints that the thread took and has not sent.
        self._held = 0
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
            if self._thread is None and not self._closing:
                thread = threading.Thread(target=self._run, name="healer-steps", daemon=True)
                thread.start()
                self._thread = thread  # where it could not start, the next step tries again

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
        left = len(self._samples) + len(self._checkpoints) + self._held
        if left:
            self.dropped += left
            log.debug("%d step times and checkpoints were not sent", left)

    def say(self, kind: str, text: str) -> None:
        """One line in the log for each kind of trouble."""
        if not self._said.get(kind):
            self._said[kind] = True
            with suppress(Exception):  # of the program's own handlers
                log.warning("healer: %s (said once)", text)

    # --- the sender's thread ---

    def _run(self) -> None:
        try:
            self._loop(_Post(self))
        except Exception as error:  # the training goes on, whatever it was
            self.say("ended", f"step times are not sent any more: {error!r}")

    def _loop(self, post: _Post) -> None:
        # Ranks begin together. Spread over the whole round some rank sends at any moment, and healer hears of
        # each step as soon as it ends.
        wait = self.every_s * random.random()  # noqa: S311
        while True:
            self._sleep(min(wait, max(0.0, self._end - time.monotonic())))
            flushes = _taken(self._flushes, len(self._flushes))
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


class _Post:
    """What the thread keeps: a batch that has to be sent again, and the patience for it."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._link = Link(sender.settings)
        self._token = Token(sender.settings, self._link.post)
        self.held: list[Sample] = []
        self._marks: list[dict[str, Any]] = []
        self._again_s = 1.0
        self._said_at = float("-inf")
        self._said: Any = None

    def more(self) -> bool:
        """Something waits to be sent."""
        return bool(self.held or self._marks or self._sender._samples or self._sender._checkpoints)

    def all(self) -> float:
        """Sends everything that waits, or as far as it goes; after how many s to look again."""
        sender = self._sender
        while True:
            self._link.timeout_s = max(0.1, min(TIMEOUT_S, sender._end - time.monotonic()))
            if not self._marks:
                self._marks = _taken(sender._checkpoints, CHECKPOINTS)
            if not self.held:
                self.held = _taken(sender._samples, BATCH)
            self._count()
            if self._marks:
                body = [dict(one, **self._about()) for one in self._marks]
                if not self._went(_CHECKPOINTS, body, 0):
                    return self._later()
                self._marks = []
                self._count()
            if not self.held:
                if not self._stands():
                    return self._later()
                self._again_s = 1.0
                return sender.every_s
            self._drop_old()
            if self.held and not self._went(_STEPS, self._body(), len(self.held)):
                return self._later()
            self.held = []
            self._count()

    def lost(self, error: Exception) -> float:
        """What was being sent is dropped, and nothing else; after how many s to go on."""
        self._drop(len(self.held) + len(self._marks), error)
        self.held, self._marks = [], []
        self._count()
        return self._later()

    def _drop(self, count: int, error: Exception) -> None:
        self._sender.dropped += count
        self._sender.say("lost", "%d step times or checkpoints are dropped: %r" % (count, error))

    def _stands(self) -> bool:
        """Says where this rank stands, if it stands; False: say it again later. Nothing of it is kept."""
        settings, at = self._sender.settings, self._sender.where()
        if at is None or settings.rank is None or self._sender._closing:
            return True
        doing, step, open_s = at
        now = time.monotonic()
        if (doing, step) == self._said and now - self._said_at < _AGAIN_S - 0.5:
            return True
        told = {"time": utc(time.time()), "step": step, "doing": doing, "open_s": round(open_s, 1)}
        if not self._went(_STEPS, dict(self._about(), samples=[dict(told, **_place(settings))]), 0):
            return False
        self._said, self._said_at = (doing, step), now
        return True

    def _count(self) -> None:
        self._sender._held = len(self.held) + len(self._marks)

    def _later(self) -> float:
        if self._sender._closing:
            return 0.2
        wait = max(self._again_s, min(self._link.retry_after_s, _SLOWEST_S))
        self._again_s = min(self._again_s * 2, _SLOWEST_S)
        return wait * (0.75 + random.random() / 2)  # noqa: S311

    def _drop_old(self) -> None:
        edge = time.time() - _OLD_S
        young = [sample for sample in self.held if sample[0] > edge]
        self._sender.dropped += len(self.held) - len(young)
        self.held = young
        self._count()

    def _went(self, path: str, body: Any, count: int) -> bool:
        """False: send it again later."""
        sender = self._sender
        try:
            raw = json.dumps(body).encode()
        except Exception as error:  # it would be the same the next time
            self._drop(len(body) if isinstance(body, list) else count, error)
            return True
        try:
            status, answer = self._link.post(path, raw, self._token.value())
            if status == 401:
                self._token.refused()
        except NoToken as error:
            if not error.soon:
                sender.say("token", str(error))
            return False
        except Exception as error:  # OSError and HTTPException; ValueError of an address that is none
            sender.say("away", f"healer does not answer at {sender.settings.url}: {error}")
            return False
        if status == 401:
            sender.say("token", "healer does not take the token")
            return False
        if status in _NEVER:
            sender.rejected += count
            sender.say("refused", "step times are refused (%d): %.300s" % (status, answer.get("detail", "")))
            return True
        if status >= 300:
            return False
        wrong = answer.get("rejected") or []
        if wrong:
            lost = len(wrong) + int(answer.get("rejected_more") or 0)
            sender.rejected += lost
            count -= min(lost, count)
            sender.say("rejected", "healer rejects step times: {:.300}".format(wrong[0].get("reason", "")))
        sender.sent += count
        return True

    def _about(self) -> dict[str, Any]:
        settings = self._sender.settings
        about: dict[str, Any] = {"job": settings.job, "restart": settings.restart}
        if settings.cluster:
            about["cluster"] = settings.cluster
        return about

    def _body(self) -> dict[str, Any]:
        return dict(self._about(), samples=[self._sample(sample) for sample in self.held])

    def _sample(self, sample: Sample) -> dict[str, Any]:
        settings, told = self._sender.settings, _told(sample)
        if settings.rank is None:  # of the job as a whole: nobody may be blamed for it
            return {name: value for name, value in told.items() if name not in _OF_A_RANK}
        told.update(_place(settings))
        return told


def _place(settings: Settings) -> dict[str, Any]:
    """Which rank this is, and where."""
    place: dict[str, Any] = {"rank": settings.rank}
    if settings.node:
        place["node"] = settings.node
        if settings.gpu is not None:
            place["gpu"] = settings.gpu
    return place


def _taken(queue: deque[Any], most: int) -> list[Any]:
    taken = []
    while len(taken) < most:
        try:
            taken.append(queue.popleft())
        except IndexError:
            break
    return taken


def _told(sample: Sample) -> dict[str, Any]:
    """As healer reads it; what is not known is left out, and so is what is no number."""
    told = {name: value for name, value in zip(FIELDS, sample) if type(value) in _NUMBERS and _finite(value)}
    if told.get("work", 1) <= 0:
        del told["work"]  # healer would take nothing of the step
    # That a result became no number is news; JSON has a word for it at most.
    lost = [name for name, value in zip(FIELDS, sample) if name in RESULTS and not _finite(value)]
    told.update(dict.fromkeys(lost, "NaN"))
    told["time"] = utc(sample[0])
    return told


def utc(seconds: float) -> str:
    """RFC 3339."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat()


def _finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def left_s() -> float:
    """Of the 3 s in which all of a program's senders together send what waits at its end."""
    if not _until:
        _until.append(time.monotonic() + CLOSE_S)
    return max(0.0, _until[0] - time.monotonic())


def _close(one: weakref.ref[Sender]) -> None:
    sender = one()
    if sender is not None:
        sender.close(left_s())
