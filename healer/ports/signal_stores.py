"""Stores of accepted signals, on disk while the database does not answer; of their senders, and of losses."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

import msgspec

from healer.model import Loss, Observation, Sender, UnknownSeries
from healer.ports.answers import SendersHeard
from healer.text import Said


class Arrival(msgspec.Struct, frozen=True):
    """One observation to store. `also`: digests (hex) under which the same signal may already be stored."""

    observation: Observation
    also: tuple[str, ...] = ()


class SignalStore(Protocol):
    """The durable end of the group commit. Called from one thread at a time."""

    def store(self, arrivals: Sequence[Arrival]) -> list[bool]:
        """One INSERT and one durable commit for all; True if the observation was new. Raises Unavailable if
        the database does not answer: then nothing is stored.
        """
        ...


class Inbox(Protocol):
    """Accepted signals until the walk processes them. Accepted means stored."""

    def add(self, observations: Sequence[Observation]) -> int:
        """Stores new ones in one durable commit and returns their number; the rest are duplicates."""
        ...

    def unconsumed(self, limit: int) -> list[Observation]:
        """Oldest first, of this cluster."""
        ...

    def since(self, moment: datetime, *, lines: datetime) -> Iterable[Observation]:
        """Consumed or not, by arrival: to rebuild the picture after a restart. Kernel lines since `lines`."""
        ...

    def alerts(self, moment: datetime) -> Iterable[Observation]:
        """Only those of kind `alert`, since an earlier moment: they stay in force for hours."""
        ...


class UnknownBook(Protocol):
    """Series without a place, counted by name. At most 2,000 names per cluster."""

    def add(self, series: Sequence[UnknownSeries]) -> None:
        """Adds the counts to those of the same cluster and name. Raises Unavailable, and adds nothing."""

    def series(self, clusters: Sequence[str] | None, limit: int) -> list[UnknownSeries]:
        """The most frequent first; None: of all clusters."""
        ...


class LossBook(Protocol):
    """Signals that were sent but not stored. `add` raises `request_errors.Unavailable`, and adds nothing."""

    def add(self, counts: Sequence[Loss]) -> None:
        """Adds the counts to those of the same cluster, source, reason and sender."""

    def losses(self, clusters: Sequence[str] | None, limit: int) -> list[Loss]:
        """The latest first; None: of all clusters."""
        ...


class SenderBook(Protocol):
    """Who sends what. `add` raises `request_errors.Unavailable`, and adds nothing."""

    def add(self, counts: Sequence[Sender]) -> None:
        """Adds the counts to those of the same cluster, token name and route."""

    def senders(self, clusters: Sequence[str] | None, limit: int, *, node: str | None = None) -> list[Sender]:
        """The latest first; None: of all clusters."""
        ...

    def heard(self, cluster: str, limit: int, now: datetime) -> SendersHeard:
        """With at most `limit` routes. A token is silent where it sent nothing for 15 min and for ten of its
        usual intervals; that of a job never is, as jobs end."""
        ...


class Spooled(NamedTuple):
    """One accepted item on its way to the store. `kind` is one byte, `body` what that kind's lane decodes."""

    kind: bytes
    body: bytes


class SpoolState(NamedTuple):
    """What waits on disk. `since`: when the oldest item was added; None: nothing waits."""

    entries: int
    size_bytes: int
    limit_bytes: int
    since: datetime | None


class Spool(Protocol):
    """Accepted signals on disk while the database does not answer, in order. Thread-safe.

    Only one thread calls `oldest`, `drop_oldest` and `adopt`.
    """

    @property
    def pending(self) -> bool: ...
    def state(self) -> SpoolState: ...

    def append(self, records: Sequence[Spooled]) -> None:
        """All of them, safe on disk on return; or none, and `request_errors.NoRoom`."""

    def oldest(self, most: int, size: int) -> list[Spooled]:
        """The oldest records: at most `most`, and at most `size` bytes unless the first one is larger."""
        ...

    def drop_oldest(self, records: Sequence[Spooled]) -> None:
        """Removes the last result of `oldest`, as it is stored now."""

    def set_aside(self, records: Sequence[Spooled]) -> None:
        """Moves records that this version cannot read out of the queue, for a version that can. Raises
        NoRoom."""

    def take_lost(self) -> list[tuple[int, Said]]:
        """Unreadable losses since the last call: (entries, at least; a sentence)."""
        ...

    def adopt(self) -> int:
        """Takes over the spools of dead processes; returns the number of records."""
        ...

    def close(self) -> None:
        """Closes it; the remaining records wait for the next process."""
