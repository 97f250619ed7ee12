"""Where the chain of the audit is kept: for its one sealer, and for those who read it back."""

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
    """The chain for one sealer at a time, on the connection that holds its lock: when that breaks, lock and
    work are lost together. Each call is a transaction of its own. Errors of the database go to the caller."""

    def lock(self) -> bool:
        """Takes the lock; False while another sealer has it."""
        ...

    def drop(self) -> None:
        """Gives the lock up with its connection. Never fails."""

    def unlock(self) -> None:
        """Gives the lock back at once, for the next sealer, and drops the connection."""

    def unsealed(self, limit: int) -> list[AuditRecord]:
        """Records that have no link and wait for one, the oldest first."""
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
    """One moment of the whole audit."""

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
    """Where checkpoints are also kept, outside the database."""

    def lines(self) -> list[bytes]:
        """Nothing when it does not exist."""
        ...

    def append(self, lines: Iterable[bytes]) -> None:
        """Returns when they are on the disk."""


# --- witnesses


class WitnessAway(UserError):
    """The witness did not take it, or cannot be read; the text says why, without secrets."""


class Witness(Protocol):
    """A place of others that keeps the checkpoints. `name` is shown to people."""

    name: str

    def send(self, lines: Sequence[bytes]) -> None:
        """Returns when the witness has these lines. WitnessAway: it may have none, some or all of them."""


class Tail(Protocol):
    """A file that only grows."""

    def after(self, at: int, most: int) -> tuple[list[bytes], int]:
        """Whole lines from byte `at` on, `most` at most, and where they end."""
        ...


class Position(Protocol):
    """How far one witness was served, kept over restarts."""

    def read(self) -> int: ...
    def write(self, at: int) -> None: ...
