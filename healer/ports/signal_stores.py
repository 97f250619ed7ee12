"""Where accepted signals are stored, on disk while the database is away; who sent them, what was lost."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

import msgspec

from healer.model import Loss, Observation, Sender, UnknownSeries


class Arrival(msgspec.Struct, frozen=True):
    """One observation to store. `also`: digests (hex) under which the same signal may be stored already."""

    observation: Observation
    also: tuple[str, ...] = ()


class SignalStore(Protocol):
    """The durable end of the group commit. Called from one thread at a time."""

    # One INSERT and one durable commit for all; True where the observation was new.
    # Raises Unavailable when the database is away: then nothing of it is stored.
    def store(self, arrivals: Sequence[Arrival]) -> list[bool]: ...


class Inbox(Protocol):
    """Where accepted signals lie until the walk takes them. Accepted means stored."""

    # Stores what is new in one durable commit and returns its number; the rest are duplicates.
    def add(self, observations: Sequence[Observation]) -> int: ...
    # Oldest first, of this cluster.
    def unconsumed(self, limit: int) -> list[Observation]: ...
    # Consumed or not, by arrival: to rebuild the picture after a restart.
    def since(self, moment: datetime) -> Iterable[Observation]: ...
    # Of kind `alert` alone, since an earlier moment: they stand for hours.
    def alerts(self, moment: datetime) -> Iterable[Observation]: ...


class UnknownBook(Protocol):
    """Series that arrive and have no place, counted by name. At most 2,000 names of a cluster."""

    # Adds the counts to those of the same cluster and name. Raises Unavailable, and adds nothing.
    def add(self, series: Sequence[UnknownSeries]) -> None: ...
    # The most frequent first; None: of all clusters.
    def series(self, clusters: Sequence[str] | None, limit: int) -> list[UnknownSeries]: ...


class LossBook(Protocol):
    """What was sent and is not stored. `add` raises `request_errors.Unavailable`, and adds nothing."""

    # Adds the counts to those of the same cluster, source, reason and sender.
    def add(self, told: Sequence[Loss]) -> None: ...
    # The latest first; None: of all clusters.
    def losses(self, clusters: Sequence[str] | None, limit: int) -> list[Loss]: ...


class SenderBook(Protocol):
    """Who sends what. `add` raises `request_errors.Unavailable`, and adds nothing."""

    # Adds to what is known of the same cluster, token's name and route.
    def add(self, told: Sequence[Sender]) -> None: ...
    # The latest first; None: of all clusters.
    def senders(
        self, clusters: Sequence[str] | None, limit: int, *, node: str | None = None
    ) -> list[Sender]: ...


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
    # All of them, safe on disk when this returns; or none, and `request_errors.NoRoom`.
    def append(self, records: Sequence[Spooled]) -> None: ...
    # The oldest records: at most `most`, and at most `size` bytes but for the first one.
    def oldest(self, most: int, size: int) -> list[Spooled]: ...
    # What `oldest` gave last is stored.
    def drop_oldest(self, records: Sequence[Spooled]) -> None: ...
    # Keeps what this version cannot read for one that can, off the queue. NoRoom.
    def set_aside(self, records: Sequence[Spooled]) -> None: ...
    # What could not be read since the last call: (entries, at least; a sentence).
    def take_lost(self) -> list[tuple[int, str]]: ...
    # Takes over what processes left that died; the number of records.
    def adopt(self) -> int: ...
    # What is left stays for the next process.
    def close(self) -> None: ...
