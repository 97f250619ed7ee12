"""Who sends what, summed up in this process between two writes."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from healer.api.services import Caller
from healer.model import Sender
from healer.ports import SenderBook

#: Pairs of token and route that are summed up between two writes; what is more is not told apart.
PAIRS = 50_000
REST = "…"


class Senders:
    """Thread-safe. `heard` never raises and never asks the database."""

    def __init__(self, book: SenderBook, now: Callable[[], datetime], home: str) -> None:
        """`home` is the cluster of tokens that are bound to none."""
        self._book, self._now, self._home = book, now, home
        self._counted: dict[tuple[str, str, str], _Heard] = {}
        self._lock = threading.Lock()

    def heard(self, caller: Caller, source: str, size: int) -> None:
        """This caller sent a body of that many bytes by that route."""
        now = self._now()
        key = (caller.cluster or self._home, caller.name, source)
        with self._lock:
            if key not in self._counted and len(self._counted) >= PAIRS:
                key = (key[0], REST, source)
            one = self._counted.get(key)
            if one is None:
                node = (caller.node or "") if key[1] != REST else ""
                self._counted[key] = _Heard(node, now, now, 1, size)
            else:
                one.node = caller.node or "" if key[1] != REST else ""
                one.requests += 1
                one.bytes += size
                one.last_seen = now

    def flush(self) -> None:
        """Writes what was counted; raises Unavailable, and keeps it for the next time."""
        with self._lock:
            counted, self._counted = self._counted, {}
        try:
            self._book.add([_sender(key, one) for key, one in counted.items()])
        except Exception:
            with self._lock:
                for key, one in counted.items():
                    later = self._counted.get(key)
                    if later is None:
                        self._counted[key] = one
                    else:
                        later.first_seen = one.first_seen
                        later.requests += one.requests
                        later.bytes += one.bytes
            raise


@dataclass(slots=True)
class _Heard:
    """A `Sender` that is still summed up: changed in place, as each request does so."""

    node: str
    first_seen: datetime
    last_seen: datetime
    requests: int
    bytes: int


def _sender(key: tuple[str, str, str], one: _Heard) -> Sender:
    return Sender(
        cluster=key[0],
        who=key[1],
        source=key[2],
        node=one.node,
        requests=one.requests,
        bytes=one.bytes,
        first_seen=one.first_seen,
        last_seen=one.last_seen,
    )
