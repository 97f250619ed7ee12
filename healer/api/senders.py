"""Who sends what, summed up in this process between two writes."""

import threading
from collections.abc import Callable
from datetime import datetime

import msgspec

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
        self._counted: dict[tuple[str, str, str], Sender] = {}
        self._lock = threading.Lock()

    def heard(self, caller: Caller, source: str, size: int) -> None:
        """This caller sent a body of that many bytes by that route."""
        now = self._now()
        key = (caller.cluster or self._home, caller.name, source)
        with self._lock:
            if key not in self._counted and len(self._counted) >= PAIRS:
                key = (key[0], REST, source)
            before = self._counted.get(key)
            self._counted[key] = Sender(
                cluster=key[0],
                who=key[1],
                source=source,
                node=(caller.node or "") if key[1] != REST else "",
                requests=1 + (before.requests if before else 0),
                bytes=size + (before.bytes if before else 0),
                first_seen=before.first_seen if before else now,
                last_seen=now,
            )

    def flush(self) -> None:
        """Writes what was counted; raises Unavailable, and keeps it for the next time."""
        with self._lock:
            counted, self._counted = self._counted, {}
        try:
            self._book.add(list(counted.values()))
        except Exception:
            with self._lock:
                for key, one in counted.items():
                    later = self._counted.get(key)
                    self._counted[key] = one if later is None else _sum(one, later)
            raise


def _sum(one: Sender, later: Sender) -> Sender:
    return msgspec.structs.replace(
        later,
        first_seen=one.first_seen,
        requests=one.requests + later.requests,
        bytes=one.bytes + later.bytes,
    )
