"""Who sends what, summed up in this process between two writes."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from healer.api.summed import Summed
from healer.model import Sender
from healer.ports.callers import Caller
from healer.ports.signal_stores import SenderBook

#: Pairs of token and route that are summed up between two writes; what is more is not told apart.
PAIRS = 50_000
REST = "…"


class Senders(Summed[tuple[str, str, str], "_Heard"]):
    """Thread-safe. `heard` never raises and never asks the database."""

    def __init__(self, book: SenderBook, now: Callable[[], datetime], home: str) -> None:
        """`home` is the cluster of tokens that are bound to none."""
        super().__init__(
            lambda counted: book.add([_sender(key, one) for key, one in counted.items()]), _joined
        )
        self._now, self._home = now, home

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


@dataclass(slots=True)
class _Heard:
    """A `Sender` that is still summed up: changed in place, as each request does so."""

    node: str
    first_seen: datetime
    last_seen: datetime
    requests: int
    bytes: int


def _joined(earlier: _Heard, later: _Heard) -> _Heard:
    later.first_seen = earlier.first_seen
    later.requests += earlier.requests
    later.bytes += earlier.bytes
    return later


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
