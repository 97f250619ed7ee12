"""The answer of a request is kept for its repeat, by its Idempotency-Key."""

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

import msgspec


class Kept(msgspec.Struct, frozen=True):
    """An answer kept for a repeat of the same request."""

    status: int
    headers: dict[str, str]
    body: bytes


class KeyInFlight(Exception):
    """Another request with this key is being worked on."""


class KeyReused(Exception):
    """The key was used with another body."""


class Idempotency(Protocol):
    def once(self, key: str, who: str, request: bytes, now: datetime, act: Callable[[], Kept]) -> Kept:
        """Runs `act` once per (key, who) in 24 h and keeps its answer; a repeat gets the kept answer.

        The row is committed before `act`; when the process dies in between, the next request with the key
        runs `act` again, with the same request id. Answers of 500 and above are not kept.
        """
        ...
