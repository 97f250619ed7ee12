"""A run of a playbook and its append-only log. The log alone tells where a run stands."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec

from healer.model.words import REMEDY_LADDER, Mode, Remedy, RunState, Verb


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """`by` is who asked (`healer` for its own). `epoch` grows with each claim; `wake_at` ends a wait.

    `input` holds what the steps need and the incident does not: the job of a requeue, the drain's reason
    text. `shadow` runs go the same way and touch nothing. `beside`: it takes
    nothing from its node, and keeps no other run off it.

    `input.restart` names the jobs whose restart a person agreed to with the run, each with the life (restart
    count) that it had then; `input.restart_by` names each job's person.
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
    beside: bool = False
    epoch: int = 0
    wake_at: datetime | None = None
    lease_until: datetime | None = None
    approved_by: str | None = None
    approve_until: datetime | None = None
    ended_at: datetime | None = None
    question: str | None = None
    input: dict[str, Any] = {}


#: After that somebody is told that an approval does not come. Nothing is done for it.
APPROVAL_LASTS = timedelta(minutes=30)


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


def tests_of(log: Sequence[LogEntry]) -> dict[str, str]:
    """`{"tests": "passed"}` or `failed`, by the last test of the node that came to an end; else nothing."""
    for one in reversed(log):
        if one.data.get("verb") != Verb.diagnose:
            continue
        if one.event is StepEvent.done:
            return {"tests": "failed" if one.data.get("passed") is False else "passed"}
        if one.event is StepEvent.failed and one.data.get("final"):
            return {"tests": "failed"}
    return {}


def restarted(log: Sequence[LogEntry]) -> bool:
    """The run has put a job back."""
    return any(one.event is StepEvent.done and one.data.get("verb") == Verb.requeue for one in log)


#: What of the ladder a step does, once it was read back.
_REMEDIES = {
    Verb.restart_service: Remedy.restart_service,
    Verb.reset_gpu: Remedy.drain_then_reset,
    Verb.reboot: Remedy.reboot_node,
    Verb.power_cycle: Remedy.power_cycle,
}


def tried_of(log: Sequence[LogEntry]) -> dict[str, str]:
    """`{"tried": "reboot_node"}`: the highest rung of the ladder that the run carried out; else nothing."""
    done = {one.data.get("verb") for one in log if one.event is StepEvent.done}
    rungs = [rung for verb, rung in _REMEDIES.items() if verb in done]
    return {"tried": str(max(rungs, key=REMEDY_LADDER.index))} if rungs else {}
