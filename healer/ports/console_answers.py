"""Shapes of what the pages read, where they are more than a noun."""

from datetime import datetime
from typing import Generic, NamedTuple, TypeVar

import msgspec

from healer.model import (
    AuditRecord,
    Breaker,
    Checkpoint,
    Component,
    Controller,
    Decision,
    EvidenceFile,
    Finding,
    ForecastScore,
    GuardSettings,
    Incident,
    IncidentState,
    IncidentVerdict,
    LogEntry,
    Loss,
    Message,
    Mode,
    Pause,
    Ruleset,
    Run,
    Sender,
    Severity,
    Similar,
    Slot,
    SlurmSnapshot,
    Trial,
    Verdict,
    VerdictAt,
    Veto,
)
from healer.model.incident import bad_nodes
from healer.ports.api_answers import Note
from healer.ports.self_health import Queue

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One page of a list. `total` is the number of rows that match, None where counting is too dear."""

    items: tuple[T, ...] = ()
    next_cursor: str | None = None
    total: int | None = None


class OpenIncident(msgspec.Struct, frozen=True, kw_only=True):
    """The few fields of an unresolved incident that every page needs (header figures, the fleet map)."""

    id: str
    severity: Severity
    state: IncidentState
    rule: str
    title: str
    root: Component
    opened: datetime
    nodes: dict[str, Verdict] = {}
    known_bad_in_service: bool = False
    folded: tuple[str, ...] = ()
    owner: str | None = None
    acknowledged_by: str | None = None
    fault: str = ""
    jobs_hit: tuple[str, ...] = ()

    @property
    def bad_nodes(self) -> tuple[str, ...]:
        return bad_nodes(self.root, self.folded, self.nodes) if self.known_bad_in_service else ()


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How one cluster stands now. Read on every page, so it must be cheap (aim: under 10 ms at 1,250 nodes).

    `rules` are those in force, `guards` the cluster's own of them. `snapshot` is Slurm's latest picture
    (None before the first), `snapshot_version` its row's version and `snapshot_error` the poller's last
    error, empty when the last poll worked. `controller` is how slurmctld does, None before the first
    poll. `slots` are those held now, `granted_last_hour` counts slots granted in the last 60 min (not
    those by law 2). `pauses` and `vetoes` are those in force. `asking` are runs that want a person:
    waiting for approval, proposed, stuck, held, or waiting with a question; oldest first, 50 at most.
    `rules_error` is the reason why changed rule files were not taken, empty when the current set is
    theirs. `detector_at` is when the detector last showed that it lives, None when unknown.
    """

    cluster: str
    rules: Ruleset
    breaker: Breaker
    guards: GuardSettings
    default_mode: Mode
    snapshot: SlurmSnapshot | None = None
    snapshot_version: int = 0
    snapshot_error: str = ""
    controller: Controller | None = None
    slots: tuple[Slot, ...] = ()
    granted_last_hour: int = 0
    pauses: tuple[Pause, ...] = ()
    vetoes: tuple[Veto, ...] = ()
    open_incidents: tuple[OpenIncident, ...] = ()
    asking: tuple[Run, ...] = ()
    rules_error: str = ""
    detector_at: datetime | None = None


class NodeGauges(msgspec.Struct, frozen=True):
    """Each GPU's newest temperature and the reasons of a lower clock as bits; None: not told of late."""

    temperature_c: tuple[float | None, ...] = ()
    reasons: tuple[float | None, ...] = ()


class ToldAt(msgspec.Struct, frozen=True, kw_only=True):
    """One channel of a message: `healer.model.DeliveryState`."""

    channel: str
    state: str
    error: str = ""


class SentMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A page, note or ticket and how its delivery stands: `state` (due, sent, failed, listed: no sink) is
    that of the generic webhook, or of the tickets."""

    at: datetime
    kind: str
    state: str
    message: Message
    error: str = ""
    reference: str = ""
    channels: tuple[ToldAt, ...] = ()


class RunDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A run with its whole log, oldest first, and the decisions taken for it (each gate's answer).

    `plan`: the titles of its playbook's steps as they are now.
    """

    run: Run
    log: tuple[LogEntry, ...] = ()
    decisions: tuple[Decision, ...] = ()
    plan: tuple[str, ...] = ()


class IncidentDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One incident with everything that belongs to it. All lists oldest first.

    `records` are the audit records whose subject is this incident or one of its runs (200 at most);
    `similar` are up to five other incidents, of the same part and node first, then of the same fault;
    `merged` those that ended as a part of this one.
    """

    incident: Incident
    verdict: IncidentVerdict
    verdicts: tuple[VerdictAt, ...] = ()
    findings: tuple[Finding, ...] = ()
    decisions: tuple[Decision, ...] = ()
    runs: tuple[RunDetail, ...] = ()
    notes: tuple[Note, ...] = ()
    records: tuple[AuditRecord, ...] = ()
    messages: tuple[SentMessage, ...] = ()
    similar: tuple[Similar, ...] = ()
    #: What was collected on its nodes.
    collected: tuple[EvidenceFile, ...] = ()
    merged: tuple[OpenIncident, ...] = ()


class Arriving(NamedTuple):
    """How signals arrive at one cluster: each list the latest first."""

    losses: list[Loss]
    senders: list[Sender]
    queues: list[Queue]


class ChainState(msgspec.Struct, frozen=True, kw_only=True):
    """Where the audit chain ends: last sealed record, how many wait for the seal, last signed checkpoint."""

    cluster: str
    seq: int = 0
    hash: str = ""
    unsealed: int = 0
    checkpoint: Checkpoint | None = None


class CheckpointSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint as the job told it. A requeue goes back to the newest durable one."""

    at: datetime
    step: int
    restart: int = 0
    durable: bool = True
    path: str = ""
    sha256: str | None = None


class Requeue(msgspec.Struct, frozen=True, kw_only=True):
    """One requeue of a job by healer: which of its lives was ended, and for which incident."""

    at: datetime
    restarts: int
    incident: str | None = None
    run: str | None = None


class JobDone(msgspec.Struct, frozen=True, kw_only=True):
    """One sentence of what healer did to a job, or why it did nothing, from a run's log.

    `event` is done, skipped or failed. `step` is the step's id: `requeue`, `revive`, `owner` …
    """

    at: datetime
    step: str
    event: str
    text: str
    run: str
    incident: str | None = None


class JobErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of one code that the driver logged on the job's GPUs while it ran, as of its own programs.

    They are counted, and say nothing against a node: Xid 43 and 45 come whenever a program fails or is ended.
    `lines` in all, on `nodes` nodes (`node` is one of them), from `since` to `until`.
    """

    fault: str
    text: str
    lines: int
    nodes: int
    node: str
    since: datetime
    until: datetime


class JobHistory(msgspec.Struct, frozen=True, kw_only=True):
    """What healer knows of a job. `incidents` that hit it newest first, the rest oldest first.

    `checkpoints` are the last 50 told. `gpu_hours_lost` is what its lives lost, as the incidents that hit it
    tell (`Incident.hit`); None while that is not known. `gpu_hours_at_most`: it may be less. `errors` of its
    own programs in the last 7 days, the most frequent first.
    """

    incidents: tuple[Incident, ...] = ()
    requeues: tuple[Requeue, ...] = ()
    done: tuple[JobDone, ...] = ()
    errors: tuple[JobErrors, ...] = ()
    checkpoints: tuple[CheckpointSeen, ...] = ()
    gpu_hours_lost: float | None = None
    gpu_hours_at_most: bool = False

    @property
    def empty(self) -> bool:
        return not (self.incidents or self.requeues or self.done or self.errors or self.checkpoints)


class RuleRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What running made of one rule. `mode` was set while running, None: the file's or the default.

    `fired` counts its incidents' findings of the last 7 days.
    """

    mode: Mode | None = None
    mode_by: str | None = None
    mode_at: datetime | None = None
    last_at: datetime | None = None
    last_incident: str | None = None
    open: int = 0
    fired: int = 0
    true_faults: int = 0
    false_alarms: int = 0
    forecasts: ForecastScore | None = None


class RuleBook(msgspec.Struct, frozen=True, kw_only=True):
    """The rules in force and what became of each. `cases` counts the cases beside the files, by rule."""

    rules: Ruleset
    records: dict[str, RuleRecord] = {}
    cases: dict[str, int] = {}
    trials: tuple[Trial, ...] = ()
