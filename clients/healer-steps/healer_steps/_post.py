"""What the sender's thread does: requests of what waits, patience, and what becomes of them."""

from __future__ import annotations

import json
import math
import random
import time
from collections import deque
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Tuple

from healer_steps._environ import Settings
from healer_steps._link import TIMEOUT_S, Link
from healer_steps._token import NoToken, Token

if TYPE_CHECKING:
    from healer_steps._sender import Sender

#: Checkpoints that wait at most, and samples of one request.
CHECKPOINTS, BATCH = 100, 5_000
#: How often a stuck rank reports it.
_AGAIN_S = 10.0
#: healer takes no older ones (15 minutes), so they are dropped here.
_OLD_S = 14 * 60.0
_SLOWEST_S = 60.0
#: What sending again cannot mend.
_NEVER = frozenset({400, 403, 404, 405, 413, 415, 422})
#: What is over soon: too much at once, or healer starts.
_SOON = frozenset({429, 503})

#: In this order a sample is queued; the names are those of healer's step-times route.
FIELDS = (
    "time", "step", "step_s", "compute_s", "comm_s", "data_s", "work", "stage", "loss", "grad_norm",
)  # fmt: skip
#: Results of a step: NaN is worth reporting.
RESULTS = ("loss", "grad_norm")
_NUMBERS = frozenset({int, float})
#: Left out where it is not known which rank this is.
_OF_A_RANK = frozenset({"compute_s", "comm_s"})
Sample = Tuple[Any, ...]
_STEPS, _CHECKPOINTS = "/api/v1/signals/step-times", "/api/v1/signals/checkpoints"


class Post:
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
            with sender._counting:
                if not self._marks:
                    self._marks = taken(sender._checkpoints, CHECKPOINTS)
                if not self.held:
                    self.held = taken(sender._samples, BATCH)
                self._count()
            if self._marks:
                body = [dict(one, **self._about()) for one in self._marks]
                if not self._went(_CHECKPOINTS, body, 0):
                    return self._later()
                self._marks = []
                self._count()
            if not self.held:
                if not self._send_location():
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
        self._sender._settled(count, dropped=count)
        self._sender.say("lost", "%d step times or checkpoints are dropped: %r" % (count, error))

    def _send_location(self) -> bool:
        """Reports where this rank is stuck, if it is; False: report it again later. Nothing is kept."""
        settings, at = self._sender.settings, self._sender.where()
        if at is None or settings.rank is None or self._sender._closing:
            return True
        doing, step, open_s = at
        now = time.monotonic()
        if (doing, step) == self._said and now - self._said_at < _AGAIN_S - 0.5:
            return True
        sample = {"time": utc(time.time()), "step": step, "doing": doing, "open_s": round(open_s, 1)}
        if not self._went(_STEPS, dict(self._about(), samples=[dict(sample, **_place(settings))]), 0):
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
        old = len(self.held) - len(young)
        self._sender._settled(old, dropped=old)
        self.held = young

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
            sender._settled(count, rejected=count)
            sender.say("refused", "step times are refused (%d): %.300s" % (status, answer.get("detail", "")))
            return True
        if status != 202 or not answer:  # a proxy's own page may have that status too
            if status not in _SOON:
                sender.say(
                    "answer", "%s answers with %d, and step times wait" % (sender.settings.url, status)
                )
            return False
        wrong, lost = answer.get("rejected") or [], 0
        if wrong:
            # Read in full before anything is counted: what is no answer of healer's raises here.
            lost = len(wrong) + int(answer.get("rejected_more") or 0)
            why = "healer rejects step times: {:.300}".format(wrong[0].get("reason", ""))
            sender.say("rejected", why)
        sender._settled(count, sent=max(0, count - lost), rejected=lost)
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
        settings, fields = self._sender.settings, _fields(sample)
        if settings.rank is None:  # of the job as a whole: no rank may be blamed for it
            return {name: value for name, value in fields.items() if name not in _OF_A_RANK}
        fields.update(_place(settings))
        return fields


def _place(settings: Settings) -> dict[str, Any]:
    """Which rank this is, and where."""
    place: dict[str, Any] = {"rank": settings.rank}
    if settings.node:
        place["node"] = settings.node
        if settings.gpu is not None:
            place["gpu"] = settings.gpu
    return place


def taken(queue: deque[Any], most: int) -> list[Any]:
    taken = []
    while len(taken) < most:
        try:
            taken.append(queue.popleft())
        except IndexError:
            break
    return taken


def _fields(sample: Sample) -> dict[str, Any]:
    """As healer reads it; what is not known is left out, and so is what is no number."""
    fields = {
        name: value for name, value in zip(FIELDS, sample) if type(value) in _NUMBERS and _finite(value)
    }
    if fields.get("work", 1) <= 0:
        del fields["work"]  # healer would take nothing of the step
    # That a result became no number is news; JSON has a word for it at most.
    lost = [name for name, value in zip(FIELDS, sample) if name in RESULTS and not _finite(value)]
    fields.update(dict.fromkeys(lost, "NaN"))
    fields["time"] = utc(sample[0])
    return fields


def utc(seconds: float) -> str:
    """RFC 3339."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat()


def _finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
