"""A run of a playbook and its append-only log. The log alone tells where a run stands."""

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from healer.model.words import Mode, RunState


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """`by` is who asked (`healer` for its own). `epoch` grows with each claim; `wake_at` ends a wait.

    `input` holds what the steps need and the incident does not: the job of a requeue, the drain's reason
    text. `shadow` runs go the same way and touch nothing.
    """

    id: str
    cluster: str
    playbook: str
    state: RunState
    by: str
    reason: str
    created_at: datetime
    node: str | None = None
    job: str | None = None
    incident: str | None = None
    rule: str = ""
    mode: Mode = Mode.auto
    shadow: bool = False
    epoch: int = 0
    wake_at: datetime | None = None
    lease_until: datetime | None = None
    approved_by: str | None = None
    approve_until: datetime | None = None
    ended_at: datetime | None = None
    question: str | None = None
    input: dict[str, Any] = {}


class StepEvent(StrEnum):
    """`started` is committed before the effect, `done` after it was read back."""

    started = "started"
    done = "done"
    failed = "failed"
    waiting = "waiting"
    held = "held"
    skipped = "skipped"
    undone = "undone"
    retry = "retry"


class LogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a run's log. `step` is the step's key: its id, or `id:item` for each item of a list."""

    run: str
    at: datetime
    epoch: int
    step: str
    event: StepEvent
    attempt: int = 1
    text: str = ""
    data: dict[str, Any] = {}
    seq: int = 0
