"""Storage of the audit's chain: for its one sealer, and for readers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import NamedTuple, Protocol

from healer.model import AuditRecord, Checkpoint
from healer.model.run import ChainLink
from healer.model.vocabulary import UserError


class ChainHead(NamedTuple):
    """The last link of a cluster's chain."""

    seq: int
    hash: bytes


class ChainStore(Protocol):
    """The chain for one sealer at a time, on the connection that holds its lock: if that breaks, lock and
    work are lost together. Each call is a transaction of its own. Database errors go to the caller."""

    def lock(self) -> bool:
        """Takes the lock; False if another sealer has it."""
        ...

    def drop(self) -> None:
        """Gives up the lock and its connection. Never fails."""

    def unlock(self) -> None:
        """Releases the lock immediately, for the next sealer, and drops the connection."""

    def unsealed(self, limit: int) -> list[AuditRecord]:
        """Records without a link that wait for one, oldest first."""
        ...

    def add(self, links: Sequence[ChainLink]) -> None: ...
    def heads(self) -> dict[str, ChainHead]: ...
    def head(self, cluster: str) -> ChainHead | None: ...

    def signed_seq(self, cluster: str) -> int:
        """The newest checkpoint's seq; 0 without any."""
        ...

    def checkpoints(self) -> list[Checkpoint]: ...
    def add_checkpoint(self, checkpoint: Checkpoint) -> None: ...


class ChainSnapshot(Protocol):
    """A snapshot of the whole audit."""

    def links(self) -> Iterator[ChainLink]:
        """By cluster and seq, with the records as they are now; streamed."""
        ...

    def heads(self) -> dict[str, ChainHead]: ...
    def checkpoints(self) -> list[Checkpoint]: ...
    def unsealed(self) -> int: ...

    def unsealed_since(self) -> datetime | None:
        """The time of the oldest record that waits for the sealer."""
        ...

    def unsigned_since(self) -> Mapping[str, datetime]:
        """By cluster: the time of its oldest sealed record that no checkpoint covers."""
        ...

    def never_sealed(self) -> list[AuditRecord]:
        """Records that neither have a link nor wait for one."""
        ...


class ChainReads(Protocol):
    def snapshot(self) -> AbstractContextManager[ChainSnapshot]: ...


class CheckpointFile(Protocol):
    """A file with a copy of the checkpoints, outside the database."""

    def lines(self) -> list[bytes]:
        """Empty if it does not exist."""
        ...

    def append(self, lines: Iterable[bytes]) -> None:
        """Returns when the lines are on disk."""


# --- witnesses


class WitnessAway(UserError):
    """The witness did not accept it, or cannot be read; the text says why, without secrets."""


class Witness(Protocol):
    """An external place that keeps the checkpoints. `name` is shown to people."""

    name: str

    def send(self, lines: Sequence[bytes]) -> None:
        """Returns when the witness has these lines. Raises WitnessAway: it may have none, some or all of
        them."""


class Tail(Protocol):
    """A file that only grows."""

    def after(self, at: int, most: int) -> tuple[list[bytes], int]:
        """Whole lines from byte `at` on, at most `most`, and where they end."""
        ...


class Position(Protocol):
    """How far one witness was served; survives restarts."""

    def read(self) -> int: ...
    def write(self, at: int) -> None: ...
