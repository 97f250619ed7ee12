"""The part of the ledger that people's commands use: `healer.engine.command`."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from healer.model import AuditRecord, Command, Decision, GateFacts, LogEntry, Run, Slot
from healer.ports.transactions import WalkTx

T = TypeVar("T")

#: A result of common work: not together with the others, that item gets a transaction of its own.
ALONE = object()


class NodeTaken(Exception):
    """Another run works on the node of this one already. Nothing of the transaction was done."""


class CommandTx(WalkTx, Protocol):
    """One transaction of a person's command. All of it becomes true together, or none."""

    def read_gate(self) -> GateFacts:
        """What `lock_gate` reads, without its lock: for a look."""
        ...

    def lock_run(self, run: str) -> Run | None:
        """The run with the epoch of its newest claim. It does not change before the transaction ends."""
        ...

    def known_runs(self, names: Sequence[str]) -> dict[str, Run]:
        """Those of these that exist, by id."""
        ...

    def waiting_on(self, nodes: Sequence[str]) -> list[Run]:
        """Runs on these nodes that have not ended and do not work: held, stuck, or waiting for something."""
        ...

    def running_beside(self, node: str | None, playbook: str) -> str | None:
        """A run of the playbook that works on the node, or None."""
        ...

    def log(self, run: str) -> list[LogEntry]:
        """Oldest first."""
        ...

    def write(self, entry: LogEntry) -> None: ...

    def add_starts(
        self,
        runs: Sequence[Run],
        slots: Sequence[Slot],
        decisions: Sequence[Decision],
        records: Sequence[AuditRecord],
    ) -> None:
        """What runs that begin together write: one statement for each kind. No node has two of them."""
        ...

    def tell(self, command: Command, *, request: str) -> None:
        """Tells the detector; the same command of the same request again is nothing."""
        ...


class CommandLedger(Protocol):
    """A ledger as people's commands see it. All raise Unavailable when the database is away."""

    cluster: str

    def has_run(self, run: str) -> bool: ...

    def command(self) -> AbstractContextManager[CommandTx]:
        """Raises NodeTaken; Invalid for what cannot be stored."""
        ...

    def together(self, work: "Callable[[CommandTx, Sequence[T]], Sequence[object]]") -> "Callable[[T], Any]":
        """Makes one transaction of what comes at the same time: the result of `work` for each item.

        A result that is an exception is raised; for ALONE the item is tried by itself. `work` must bear to be
        called again with an item whose transaction was rolled back.
        """
        ...
