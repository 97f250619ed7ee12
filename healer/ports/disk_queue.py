"""Accepted signals on disk while the database is away."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple, Protocol


class Spooled(NamedTuple):
    """One accepted thing on its way to the store. `kind` is one byte, `body` what that kind's store reads."""

    kind: bytes
    body: bytes


class SpoolState(NamedTuple):
    """What waits on disk. `since`: when the oldest of it began to; None: nothing waits."""

    entries: int
    size_bytes: int
    limit_bytes: int
    since: datetime | None


class Spool(Protocol):
    """Accepted signals on disk while the database is away, in their order. Thread-safe.

    One thread alone calls `oldest`, `drop_oldest` and `adopt`.
    """

    @property
    def pending(self) -> bool: ...

    def state(self) -> SpoolState: ...

    def append(self, records: Sequence[Spooled]) -> None:
        """All of them, safe on disk when this returns; or none, and `request_errors.NoRoom`."""
        ...

    def oldest(self, most: int, size: int) -> list[Spooled]:
        """The oldest records: at most `most`, and at most `size` bytes but for the first one."""
        ...

    def drop_oldest(self, records: Sequence[Spooled]) -> None:
        """What `oldest` gave last is stored."""
        ...

    def set_aside(self, records: Sequence[Spooled]) -> None:
        """Keeps what this version cannot read for one that can, off the queue. NoRoom."""
        ...

    def take_lost(self) -> list[tuple[int, str]]:
        """What could not be read since the last call: (entries, at least; a sentence)."""
        ...

    def adopt(self) -> int:
        """Takes over what processes left that died; the number of records."""
        ...

    def close(self) -> None:
        """What is left stays for the next process."""
        ...
