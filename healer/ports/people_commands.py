"""What people ask healer to do."""

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol

import msgspec

from healer.model import AuditRecord, Command, Earn, Mode, Pause, Reference, Review


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A person (or program) asks for a run. `id` is fixed by the API from the Idempotency-Key.

    The same `id` again is the same request: answer with the run that stands, start nothing.
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


class Commands(Protocol):
    """What people tell: rows of their own, or commands in the detector's inbox; each with its audit record.

    `request` makes a repeat harmless: the same one again changes nothing.
    """

    def tell(self, command: Command, *, request: str) -> int:
        """Puts the command into the inbox, committed; the row's id."""
        ...

    def consumed(self, row: int) -> bool:
        """Whether the detector has taken it."""
        ...

    def note(self, incident: str, text: str, *, by: str, at: datetime, request: str) -> None: ...
    def pause(self, pause: Pause, *, request: str) -> Pause: ...
    def learn(self, reference: Reference, *, reason: str, request: str) -> None:
        """Takes it in place of the one of its kind."""
        ...

    def forget_reference(
        self, reference: Reference, *, by: str, reason: str, at: datetime, request: str
    ) -> None: ...
    def end_pause(self, pause: str, *, by: str, reason: str, at: datetime, request: str) -> Pause: ...

    def set_mode(
        self,
        rule: str,
        mode: Mode,
        *,
        by: str,
        reason: str,
        at: datetime,
        request: str,
        earn: Earn,
        given: Mode,
        texts: Mapping[str, str],
    ) -> None:
        """`given`: the mode by the files; `texts`: what rules say now. Conflict where auto is not earned."""
        ...

    def judge_mode(
        self,
        rule: str,
        *,
        incident: str,
        review: Review,
        given: Mode,
        earn: Earn,
        texts: Mapping[str, str],
        at: datetime,
        request: str,
    ) -> None:
        """After a review: a rule in mode auto falls back to approve where it is wrong too often."""
        ...

    def audit(self, record: AuditRecord) -> None: ...
