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
    """A request by a person (or program) for a run. `id` is derived by the API from the Idempotency-Key.

    The same `id` again is the same request: return that run, start nothing.
    """

    id: str
    playbook: str
    cluster: str
    by: str
    reason: str
    node: str | None = None
    job: str | None = None
    incident: str | None = None
    #: Values for the playbook's `inputs`, checked against them.
    inputs: dict[str, str | int | bool] = {}
    #: Jobs on the node whose restart the person consents to.
    restart: tuple[str, ...] = ()


T = TypeVar("T")

#: A result of batched work: this item cannot be combined with the others, and gets a transaction of its own.
ALONE = object()


class NodeTaken(Exception):
    """Another run already works on the run's node. Nothing of the transaction was done."""


# Wide: everything that a person's command reads and writes in its single transaction.
class CommandTx(WalkTx, Protocol):
    """One transaction of a person's command: all or nothing."""

    def read_gate(self) -> GateFacts:
        """Like `lock_gate`, but without the lock: for previews."""
        ...

    def known_runs(self, names: Sequence[str]) -> dict[str, Run]: ...

    def waiting_on(self, nodes: Sequence[str]) -> list[Run]:
        """Runs on these nodes that have not ended and do not act: held, stuck, or waiting for something."""
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
        """Writes several runs that begin together: one statement per kind. No two of them are on one node."""

    def send_command(self, command: Command, *, request: str) -> int:
        """Sends the detector a command; a second one for the same request is ignored. Returns the row's
        id."""
        ...

    def audited(self, subject: str, request: str) -> bool:
        """Whether the audit has a record of this request about the subject."""
        ...

    def add_note(self, incident: str, text: str, *, by: str, at: datetime) -> None: ...

    def add_pause(self, pause: Pause) -> bool:
        """False if one with its id exists: nothing is changed."""
        ...

    def pause(self, name: str) -> Pause | None:
        """In force or ended."""
        ...

    def end_pause(self, name: str, *, by: str, at: datetime) -> Pause | None:
        """The pause that ended now; None if none with this id was in force."""
        ...

    def rule_mode(self, rule: str) -> tuple[Mode, str] | None:
        """The mode that was set at run time, and by whom."""
        ...

    def save_rule_mode(self, rule: str, mode: Mode, *, by: str, reason: str, at: datetime) -> None: ...

    def proof(
        self,
        rule: str,
        most: int,
        *,
        digests: Mapping[str, tuple[str, str]],
        review: tuple[str, Review] | None = None,
    ) -> Proof:
        """The outcomes of the rule's newest `most` judged incidents, with the reviews that the detector has
        not taken yet. `digests`: of the present rules (`Ruleset.digests`). `review`: an incident, and a
        person's review of it that is not sent yet.
        """
        ...

    def save_reference(self, reference: Reference) -> None:
        """Stores it in place of the one of its kind."""

    def drop_reference(self, reference: Reference) -> bool:
        """Whether there was one of its kind."""
        ...


class CommandLedger(Protocol):
    """A ledger as seen by people's commands. All methods raise Unavailable if the database does not
    answer."""

    cluster: str

    def has_run(self, run: str) -> bool: ...

    def consumed(self, row: int) -> bool:
        """Whether the detector has taken the command of this row."""
        ...

    def command(self) -> AbstractContextManager[CommandTx]:
        """Raises NodeTaken, and Invalid for values that cannot be stored."""
        ...

    def together(
        self,
        work: "Callable[[CommandTx, Sequence[T]], Sequence[object]]",
        after: Callable[[Sequence[object]], None],
    ) -> "Callable[[T], Any]":
        """Combines simultaneous items into one transaction: `work` returns a result for each item. `after`
        gets all results of a transaction once it is committed. A result that is an exception is raised; for
        ALONE the item is tried again by itself. `work` must tolerate being called again with an item whose
        transaction was rolled back.
        """
        ...
