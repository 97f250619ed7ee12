"""Where the chain of the audit is kept: for its one sealer, and for those who read it back."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from healer.model import AuditRecord, Checkpoint
from healer.model.run import ChainLink


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
        ...

    def unlock(self) -> None:
        """Gives the lock back at once, for the next sealer, and drops the connection."""
        ...

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
        ...
