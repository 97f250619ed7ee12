"""The part of the ledger that people's commands use: `healer.engine.command`."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Protocol, TypeVar

import msgspec

from healer.model import (
    AuditRecord,
    Command,
    Decision,
    GateFacts,
    LogEntry,
    Mode,
    Pause,
    Proof,
    Reference,
    Review,
    Run,
)
from healer.ports.transactions import WalkTx


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A person (or program) asks for a run. `id` is fixed by the API from the Idempotency-Key.

    The same `id` again is the same request: answer with that run, start nothing.
    """

    id: str
    playbook: str
    cluster: str
    by: str
    reason: str
    node: str | None = None
    job: str | None = None
    incident: str | None = None
    #: What the playbook's `inputs` are, checked against them.
    inputs: dict[str, str | int | bool] = {}
    #: Jobs on the node whose restart the person agrees to.
    restart: tuple[str, ...] = ()


T = TypeVar("T")

#: A result of common work: not together with the others, that item gets a transaction of its own.
ALONE = object()


class NodeTaken(Exception):
    """Another run works on the node of this one already. Nothing of the transaction was done."""


# Wide: all that a person's command reads and writes in its single transaction.
class CommandTx(WalkTx, Protocol):
    """One transaction of a person's command. All of it becomes true together, or none."""

    def read_gate(self) -> GateFacts:
        """What `lock_gate` reads, without its lock: for a look."""
        ...

    def known_runs(self, names: Sequence[str]) -> dict[str, Run]: ...

    def waiting_on(self, nodes: Sequence[str]) -> list[Run]:
        """Runs on these nodes that have not ended and do not work: held, stuck, or waiting for something."""
        ...

    def running_on(self, node: str | None, playbook: str) -> str | None:
        """A run of the playbook that works on the node, or None."""
        ...

    def log(self, run: str) -> list[LogEntry]:
        """Oldest first."""
        ...

    def write(self, entry: LogEntry) -> None: ...

    def add_starts(
        self, runs: Sequence[Run], decisions: Sequence[Decision], records: Sequence[AuditRecord]
    ) -> None:
        """What runs that begin together write: one statement for each kind. No node has two of them."""

    def send_command(self, command: Command, *, request: str) -> int:
        """Sends the detector a command; a second one of the same request is ignored. Returns the row's id."""
        ...

    def audited(self, subject: str, request: str) -> bool:
        """Whether the audit has a record of this request about the subject."""
        ...

    def add_note(self, incident: str, text: str, *, by: str, at: datetime) -> None: ...

    def add_pause(self, pause: Pause) -> bool:
        """False where one of its id exists: nothing is changed."""
        ...

    def pause(self, name: str) -> Pause | None:
        """In force or ended."""
        ...

    def end_pause(self, name: str, *, by: str, at: datetime) -> Pause | None:
        """The pause that ended now; None where none of this id was in force."""
        ...

    def rule_mode(self, rule: str) -> tuple[Mode, str] | None:
        """The mode that was set while healer ran, and by whom."""
        ...

    def save_rule_mode(self, rule: str, mode: Mode, *, by: str, reason: str, at: datetime) -> None: ...

    def proof(
        self, rule: str, most: int, *, texts: Mapping[str, str], review: tuple[str, Review] | None = None
    ) -> Proof:
        """How the rule's newest `most` judged incidents turned out. `texts`: what rules say now. `review`: an
        incident, and what a person says of it that is not stored yet.
        """
        ...

    def save_reference(self, reference: Reference) -> None:
        """In place of the one of its kind."""

    def drop_reference(self, reference: Reference) -> bool:
        """Whether there was one of its kind."""
        ...


class CommandLedger(Protocol):
    """A ledger as people's commands see it. All raise Unavailable when the database is away."""

    cluster: str

    def has_run(self, run: str) -> bool: ...

    def consumed(self, row: int) -> bool:
        """Whether the detector has taken the command of this row."""
        ...

    def command(self) -> AbstractContextManager[CommandTx]:
        """Raises NodeTaken; Invalid for what cannot be stored."""
        ...

    def together(
        self,
        work: "Callable[[CommandTx, Sequence[T]], Sequence[object]]",
        after: Callable[[Sequence[object]], None],
    ) -> "Callable[[T], Any]":
        """Makes one transaction of what comes at the same time: the result of `work` for each item. `after`
        gets all results of a transaction once it is committed. A result that is an exception is raised; for
        ALONE the item is tried by itself. `work` must bear to be called again with an item whose transaction
        was rolled back.
        """
        ...
