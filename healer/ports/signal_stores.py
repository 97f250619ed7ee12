"""Where accepted signals are stored, and who sent them; counts of unknown series and of losses."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from healer.model import Loss, Observation, Sender, UnknownSeries


class Arrival(msgspec.Struct, frozen=True):
    """One observation to store. `also`: digests (hex) under which the same signal may be stored already."""

    observation: Observation
    also: tuple[str, ...] = ()


class SignalStore(Protocol):
    """The durable end of the group commit. Called from one thread at a time."""

    def store(self, arrivals: Sequence[Arrival]) -> list[bool]:
        """One INSERT and one durable commit for all; True where the observation was new.

        Raises Unavailable when the database is away: then nothing of it is stored.
        """
        ...


class Inbox(Protocol):
    """Where accepted signals lie until the walk takes them. Accepted means stored."""

    def add(self, observations: Sequence[Observation]) -> int:
        """Stores what is new in one durable commit and returns its number; the rest are duplicates."""
        ...

    def unconsumed(self, limit: int) -> list[Observation]:
        """Oldest first, of this cluster."""
        ...

    def since(self, moment: datetime) -> Iterable[Observation]:
        """Consumed or not, by arrival: to rebuild the picture after a restart."""
        ...

    def alerts(self, moment: datetime) -> Iterable[Observation]:
        """Of kind `alert` alone, since an earlier moment: they stand for hours."""
        ...


class UnknownBook(Protocol):
    """Series that arrive and have no place, counted by name. At most 2,000 names of a cluster."""

    def add(self, series: Sequence[UnknownSeries]) -> None:
        """Adds the counts to those of the same cluster and name. Raises Unavailable, and adds nothing."""
        ...

    def series(self, clusters: Sequence[str] | None, limit: int) -> list[UnknownSeries]:
        """The most frequent first; None: of all clusters."""
        ...


class LossBook(Protocol):
    """What was sent and is not stored. `add` raises `request_errors.Unavailable`, and adds nothing."""

    def add(self, told: Sequence[Loss]) -> None:
        """Adds the counts to those of the same cluster, source, reason and sender."""
        ...

    def losses(self, clusters: Sequence[str] | None, limit: int) -> list[Loss]:
        """The latest first; None: of all clusters."""
        ...


class SenderBook(Protocol):
    """Who sends what. `add` raises `request_errors.Unavailable`, and adds nothing."""

    def add(self, told: Sequence[Sender]) -> None:
        """Adds to what is known of the same cluster, token's name and route."""
        ...

    def senders(self, clusters: Sequence[str] | None, limit: int, *, node: str | None = None) -> list[Sender]:
        """The latest first; None: of all clusters."""
        ...
