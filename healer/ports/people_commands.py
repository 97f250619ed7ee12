"""What people ask healer to do."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from healer.model import AuditRecord, Breaker, Command, Earn, Mode, Pause, Reference, Review, Run
from healer.model.drift import Drift, Reconciled
from healer.ports.api_answers import Preview


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


class RunCommands(Protocol):
    """What people do to runs. Each is one transaction that passes the gate and writes its audit record.

    Raises GuardRefused, NotFound, Conflict, Forbidden. `request` is the API's id of this very request: an
    implementation that meets the same one twice answers what stands.
    """

    def preview(self, request: RunRequest) -> Preview:
        """The plan with live checks; does and stores nothing. Guards never raise here: they answer."""
        ...

    def start(self, request: RunRequest) -> Run:
        """A guard's Hold comes back as a run in state `held`; its Refuse is GuardRefused."""
        ...

    def approve(self, run: str, *, by: str, reason: str, request: str, restart: Sequence[str] = ()) -> Run:
        """Forbidden when law 8 wants a second person and `by` is who asked. `restart`: jobs on the run's node
        whose restart `by` agrees to."""
        ...

    def reject(self, run: str, *, by: str, reason: str, request: str) -> Run: ...
    def cancel(self, run: str, *, by: str, reason: str, request: str) -> Run: ...
    def retry(self, run: str, *, by: str, reason: str, request: str, step: str | None = None) -> Run:
        """A stuck run goes on at the step where it stopped. With `step` one that waits or is stuck goes back
        to that step, and does it and all after it anew."""
        ...

    def undo(self, run: str, *, by: str, reason: str, request: str) -> Run:
        """Whatever the run is at, it goes back: what it did is taken back, the last first, and it ends."""
        ...

    def reset_breaker(self, cluster: str, *, by: str, reason: str, request: str) -> Breaker:
        """Open -> half-open. Conflict when it is not open."""
        ...


class Reconcile(Protocol):
    """Where healer's book and Slurm do not agree. Raises Unavailable."""

    def drifts(self, cluster: str) -> list[Drift]: ...

    def repair(self, cluster: str, *, by: str, reason: str, request: str) -> list[Reconciled]:
        """Each that is healer's own, through the gate and into the audit."""
        ...


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
