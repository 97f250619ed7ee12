"""A run of a playbook and its append-only log, the only record of its progress; and audit records."""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from typing import Any

import msgspec

from healer.model.slurm import SlurmNode
from healer.model.vocabulary import REMEDY_LADDER, Mode, Remedy, RunState, Verb
from healer.text import Said, no_words


def run_id(subject: str) -> str:
    """The id of one of healer's own runs, derived from its subject, so that a second one is the same."""
    return f"r{sha256(subject.encode()).hexdigest()[:23]}"


# Wide: a row of the ledger, and the API's answer: who asked, for what, and its progress.
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
    reason: Said
    created_at: datetime
    node: str | None = None
    job: str | None = None
    incident: str | None = None
    rule: str = ""
    mode: Mode = Mode.auto
    shadow: bool = False
    alongside: bool = msgspec.field(default=False, name="beside")
    epoch: int = 0
    wake_at: datetime | None = None
    lease_until: datetime | None = None
    approved_by: str | None = None
    approve_until: datetime | None = None
    ended_at: datetime | None = None
    question: Said | None = None
    input: dict[str, Any] = {}


def asked_of(run: Run) -> str:
    """Which approval the run waits for, as named in messages: empty for its start, else the second until
    which people are expected to answer at one of its steps."""
    if run.state is not RunState.waiting or run.approve_until is None:
        return ""
    return f"{run.approve_until.timestamp():.0f}"


#: After this, people are reminded of a missing approval. Nothing else happens.
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
    text: Said = msgspec.field(default_factory=no_words)
    data: dict[str, Any] = {}
    seq: int = 0


def tests_result(log: Sequence[LogEntry]) -> dict[str, str]:
    """`{"tests": "passed"}` or `failed`, by the last completed test of the node; else nothing."""
    for entry in reversed(log):
        if entry.data.get("verb") != Verb.diagnose:
            continue
        if entry.event is StepEvent.done:
            return {"tests": "failed" if entry.data.get("passed") is False else "passed"}
        if entry.event is StepEvent.failed and entry.data.get("final"):
            return {"tests": "failed"}
    return {}


def look_result(log: Sequence[LogEntry]) -> dict[str, dict[str, Any]]:
    """`{"look": {...}}`: the answer of a node that was asked about a relay's text; else nothing."""
    return next(({"look": entry.data["look"]} for entry in reversed(log) if "look" in entry.data), {})


def has_requeued(log: Sequence[LogEntry]) -> bool:
    """The run has requeued a job."""
    return any(entry.event is StepEvent.done and entry.data.get("verb") == Verb.requeue for entry in log)


#: The rung of the ladder that a step carries out, once it was read back.
_REMEDIES = {
    Verb.restart_service: Remedy.restart_service,
    Verb.reset_gpu: Remedy.drain_then_reset,
    Verb.reboot: Remedy.reboot_node,
    Verb.power_cycle: Remedy.power_cycle,
}


def highest_remedy(log: Sequence[LogEntry]) -> dict[str, str]:
    """`{"tried": "reboot_node"}`: the highest rung of the ladder that the run carried out; else nothing."""
    done = {entry.data.get("verb") for entry in log if entry.event is StepEvent.done}
    rungs = [rung for verb, rung in _REMEDIES.items() if verb in done]
    return {"tried": str(max(rungs, key=REMEDY_LADDER.index))} if rungs else {}


_KEY = "healer"


def is_our_note(text: str) -> bool:
    if not text.startswith("{"):
        return False
    try:
        note = json.loads(text)
    except ValueError:
        return False
    return isinstance(note, dict) and list(note) == [_KEY]


def note_of(run: Run, state: str, node: SlurmNode) -> str:
    """`since`: when the drain was set; `state`: that of the run."""
    note: dict[str, Any] = {
        "incident": (run.incident or run.id)[:8],
        "rule": run.rule or run.playbook,
        "since": node.reason_at.isoformat() if node.reason_at else None,
        "state": state,
    }
    return json.dumps({_KEY: note}, separators=(",", ":"))


class RehearsalState(StrEnum):
    queued = "queued"
    running = "running"
    done = "done"
    failed = "failed"
    cancelled = "cancelled"


#: At most one rehearsal of a cluster may be in these states.
ACTIVE_REHEARSALS = frozenset({RehearsalState.queued, RehearsalState.running})


# Wide: the API's answer and its stored row: what was requested, and its progress.
class Rehearsal(msgspec.Struct, frozen=True, kw_only=True):
    """`text` is what `file` of `rules/` would say, `before` what it says now (None: there is no such file).

    The newest `days` that are recorded are replayed with both, with what was measured if `samples`.
    `progress`: 0 to 1. `problem`: why it failed. `result`: the comparison (`docs/recordings.md`), the new
    rules being the later ones, and what each changed rule opened (`opened`).
    """

    id: str
    cluster: str
    file: str
    text: str
    before: str | None
    days: float
    samples: bool
    by: str
    reason: str
    created_at: datetime
    state: RehearsalState = RehearsalState.queued
    ended_at: datetime | None = None
    progress: float = 0.0
    #: Remaining time at the pace of its last minute; None if unknown.
    left_s: float | None = None
    problem: Said = msgspec.field(default_factory=no_words)
    result: dict[str, Any] | None = None


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule as edited opened in a replay: `digest` says which text that is (`Ruleset.texts`).

    `missed`: incidents that only the old text opened.
    """

    rule: str
    digest: str
    incidents: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()


class Outcomes(msgspec.Struct, frozen=True, kw_only=True):
    """How the real incidents of the same ids turned out. `missed_true`: true faults that the rule as edited
    opens no more. `counted`: it was made proof, by whom and when."""

    rule: str
    digest: str
    right: int = 0
    wrong: int = 0
    unknown: int = 0
    missed_true: int = 0
    missed_wrong: int = 0
    counted_by: str = ""
    counted_at: datetime | None = None


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Who did what to what, when. `actor` is a person, a token's name or `healer`.

    `verb` is dotted and in the past tense: `incident.opened`, `run.started`, `node.drained`, `token.refused`.
    `subject` is what it is about: `node/gpu0001`, `incident/1f2e…`. `seq`, `prev` and `hash` are the place in
    the cluster's chain (hex SHA-256); None until sealed.
    """

    cluster: str
    at: datetime
    actor: str
    verb: str
    subject: str
    data: dict[str, Any] = {}
    id: int | None = None
    seq: int | None = None
    prev: str | None = None
    hash: str | None = None


def audit_record(
    cluster: str, at: datetime, actor: str, verb: str, subject: str, /, **data: Any
) -> AuditRecord:
    """A record that is not sealed yet, as written by the work that it describes."""
    texts = {name: str(value) if isinstance(value, Said) else value for name, value in data.items()}
    return AuditRecord(cluster=cluster, at=at, actor=actor, verb=verb, subject=subject, data=texts)


#: The subject of the audit's records of backups and restores, and their verbs.
BACKUP, BACKED_UP, RESTORED = "backup", "backup.made", "backup.restored"


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The signed head of a chain: Ed25519 over `cluster`, `seq`, `hash` and `at`. Bytes in hex."""

    cluster: str
    seq: int
    hash: str
    at: datetime
    key: str
    signature: str


class Broken(msgspec.Struct, frozen=True, kw_only=True):
    """One place where a chain does not hold."""

    cluster: str
    seq: int
    what: Said


class ChainLink(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One place in a cluster's chain. `record` is None when the row it points to is gone."""

    cluster: str
    seq: int
    prev: bytes
    hash: bytes
    record_id: int
    record: AuditRecord | None
